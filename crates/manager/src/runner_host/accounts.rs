//! The file `containers` of an attempt: what became of its job's containers.
//!
//! It is only shown. One that cannot be read counts as missing.

use greenroom_core::container::account::{ContainerAccount, FailureAccount};
use greenroom_core::ids::AttemptName;
use greenroom_ports::host_error::HostError;

use super::error::cannot;
use super::files::{self, Durable};
use super::host::LocalHost;

const CONTAINERS: &str = "containers";

impl LocalHost {
    /// Notes what became of a job's containers.
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

    /// What became of the containers of an attempt's job.
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
