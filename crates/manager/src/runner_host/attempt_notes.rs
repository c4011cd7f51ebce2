//! Facts of an attempt that are only shown: the files `failure`, `containers` and `summary`.
//!
//! `failure` is the stage that decides how the job ends, if one did not succeed; `containers` the history of the job's containers.
//! `summary` has one line for each part of the job, and exists only if the pool has `summary = true`. A file that cannot be read
//! counts as missing, and a line of the summary is left out.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;

use greenroom_core::container::account::{ContainerAccount, FailureAccount};
use greenroom_core::ids::AttemptName;
use greenroom_core::job_end::{StageFailure, SummaryRow};
use greenroom_ports::host_error::HostError;

use super::files::{self, Durable, cannot};
use super::host::LocalHost;

const FAILURE: &str = "failure";

impl LocalHost {
    /// Notes why a stage did not succeed, unless a noted failure decides already. An attempt that does not exist stays so.
    pub fn note_stage_failure(&self, attempt: &AttemptName, failure: &StageFailure) -> Result<(), HostError> {
        let dir = self.state.attempt(attempt)?;
        if !dir.is_dir() || self.stage_failure(attempt).is_some_and(|known| known.outweighs(failure)) {
            return Ok(());
        }
        let path = dir.join(FAILURE);
        let text = serde_json::to_vec(failure).map_err(|e| cannot("write", &path, e))?;
        files::replace(&dir, FAILURE, &text, Durable::No).map_err(|e| cannot("write", &path, e))
    }

    /// A stage has succeeded: a noted failure of the same stage is over.
    pub fn note_stage_success(&self, attempt: &AttemptName, stage: &str) -> Result<(), HostError> {
        if self.stage_failure(attempt).is_some_and(|known| known.ends_with_success_of(stage)) {
            let path = self.state.attempt(attempt)?.join(FAILURE);
            std::fs::remove_file(&path).map_err(|e| cannot("remove", &path, e))?;
        }
        Ok(())
    }

    /// The noted failure of an attempt.
    pub fn stage_failure(&self, attempt: &AttemptName) -> Option<StageFailure> {
        let path = self.state.attempt(attempt).ok()?.join(FAILURE);
        serde_json::from_slice(&files::read(&path).ok()??).ok()
    }
}

const CONTAINERS: &str = "containers";

impl LocalHost {
    /// Notes the history of a job's containers.
    pub fn note_containers(
        &self,
        attempt: &AttemptName,
        account: &ContainerAccount,
    ) -> Result<(), HostError> {
        let dir = self.state.attempt(attempt)?;
        let path = dir.join(CONTAINERS);
        let text = serde_json::to_vec(account).map_err(|e| cannot("write", &path, e))?;
        files::replace(&dir, CONTAINERS, &text, Durable::No).map_err(|e| cannot("write", &path, e))
    }

    /// Notes why a stage of a job with containers failed. The first failure counts.
    pub fn note_container_failure(
        &self,
        attempt: &AttemptName,
        failure: FailureAccount,
    ) -> Result<(), HostError> {
        match self.containers_of(attempt) {
            Some(account) if account.failure.is_none() => {
                self.note_containers(attempt, &ContainerAccount { failure: Some(failure), ..account })
            }
            _ => Ok(()),
        }
    }

    /// The history of the containers of an attempt's job.
    pub fn containers_of(&self, attempt: &AttemptName) -> Option<ContainerAccount> {
        let path = self.state.attempt(attempt).ok()?.join(CONTAINERS);
        serde_json::from_slice(&files::read(&path).ok()??).ok()
    }

    /// The accounts of all attempts of a job that are kept, oldest first. `number`: of the job, at any server.
    pub fn containers_of_job(&self, number: u64) -> Vec<ContainerAccount> {
        let entries = std::fs::read_dir(self.state.attempts()).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| AttemptName::parse(entry.file_name().to_str()?).ok());
        let accounts = names.filter_map(|name| self.containers_of(&name));
        let mut accounts: Vec<_> = accounts.filter(|account| account.job.id == number).collect();
        accounts.sort_by_key(|account| account.at.wall_ms);
        accounts
    }
}

const SUMMARY: &str = "summary";

impl LocalHost {
    /// Begins the summary of a job. From here on, each stage adds its row.
    pub fn begin_summary(&self, attempt: &AttemptName, rows: &[SummaryRow]) -> io::Result<()> {
        let dir = self.state.attempt(attempt).map_err(io::Error::other)?;
        let mut text = Vec::new();
        for row in rows {
            text.extend(row_line(row)?);
        }
        files::replace(&dir, SUMMARY, &text, Durable::No)
    }

    /// Adds the row of a stage; `false` if the job has no summary. That costs one system call.
    pub fn add_to_summary(
        &self,
        attempt: &AttemptName,
        row: impl FnOnce() -> SummaryRow,
    ) -> io::Result<bool> {
        let path = self.state.attempt(attempt).map_err(io::Error::other)?.join(SUMMARY);
        let Some(mut file) = files::missing_is_none(OpenOptions::new().append(true).open(path))? else {
            return Ok(false);
        };
        file.write_all(&row_line(&row())?)?;
        Ok(true)
    }

    /// The rows so far.
    pub fn summary(&self, attempt: &AttemptName) -> io::Result<Vec<SummaryRow>> {
        let path = self.state.attempt(attempt).map_err(io::Error::other)?.join(SUMMARY);
        read_rows(&path)
    }
}

fn row_line(row: &SummaryRow) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(row)?;
    line.push(b'\n');
    Ok(line)
}

fn read_rows(path: &Path) -> io::Result<Vec<SummaryRow>> {
    let text = files::read(path)?.unwrap_or_default();
    Ok(text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use greenroom_core::container::account::{
        ContainerAccount, FailureAccount, FailureClass, ImageAccount, ImageSource, ServiceAccount,
        ServiceStart,
    };
    use greenroom_core::golden;
    use greenroom_core::ids::{JobKey, PoolName};
    use greenroom_core::time::{BootId, ManagerId, Stamp};

    #[test]
    fn accounts_of_format_2_are_read() {
        let second = Duration::from_secs(1);
        let image = |source| ImageAccount { name: "ruby:3.3".to_owned(), digest: None, source };
        let service =
            |start| ServiceAccount { name: "db".to_owned(), image: image(Some(ImageSource::Present)), start };
        let bare = ContainerAccount {
            job: JobKey::new("https://gitlab.example.com", 4711),
            pool: PoolName::new("linux"),
            at: Stamp { wall_ms: 1, manager: ManagerId(1), boot: BootId(1), uptime_ms: 1 },
            image: image(None),
            services: Vec::new(),
            removed: Vec::new(),
            failure: None,
        };
        let failure = |class| Some(FailureAccount { class, message: "why".to_owned() });
        let digest = Some("sha256:0a".to_owned());
        let full = ContainerAccount {
            image: ImageAccount { digest, ..image(Some(ImageSource::Pulled { after: second, bytes: None })) },
            services: vec![
                service(None),
                service(Some(ServiceStart::Answered { after: second })),
                service(Some(ServiceStart::Exited { after: second, status: "7".to_owned() })),
                service(Some(ServiceStart::Silent { waited: second })),
                service(Some(ServiceStart::Unstarted)),
            ],
            failure: failure(FailureClass::System),
            ..bare.clone()
        };
        let failed = ContainerAccount { failure: failure(FailureClass::Job), ..bare.clone() };
        let made_room = ContainerAccount { removed: vec!["ruby:2.7".to_owned()], ..bare.clone() };
        golden::hold(golden::recorded!("containers.jsonl"), &[bare, full, failed, made_room]);
    }
}
