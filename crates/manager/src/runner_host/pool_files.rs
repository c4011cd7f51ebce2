//! The files of a pool beside its recorded state: the report of the last pass, and the jobs that were refused lately.
//!
//! GitLab Runner repeats a `prepare` that failed, twice. What has just failed after several tries fails again: the repeat
//! answers with the same sentence and takes no machine. Of two concurrent calls, one may overwrite the other's note; the
//! other job's repeat then tries again.

use std::fmt;
use std::time::Duration;

use greenroom_core::ids::{JobKey, PoolName};
use greenroom_core::report::Report;
use greenroom_core::time::Stamp;
use greenroom_ports::clock::Clock as _;
use greenroom_ports::host_error::HostError;
use serde::{Deserialize, Serialize};

use super::clock::SystemClock;
use super::files::{self, Durable, broken, cannot};
use super::host::LocalHost;

const REPORT: &str = "report.json";

/// Takes each report that a pass writes. It must not block.
pub type OnReport = Box<dyn Fn(&PoolName, &Report)>;

/// The observer of reports in this process, beside the file.
pub(super) struct ReportHook(OnReport);

impl fmt::Debug for ReportHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReportHook")
    }
}

impl LocalHost {
    /// Calls `told` with each report that a pass writes, also if its file cannot be written.
    pub fn on_report(&self, told: OnReport) {
        *self.report_hook.borrow_mut() = Some(ReportHook(told));
    }

    /// A clock of the same manager.
    pub fn clock(&self) -> SystemClock {
        self.clock
    }

    pub(super) fn put_report(&self, pool: &PoolName, report: &Report) -> Result<(), HostError> {
        if let Some(ReportHook(told)) = &*self.report_hook.borrow() {
            told(pool, report);
        }
        let dir = self.state.ensure_pool(pool)?;
        let path = dir.join(REPORT);
        let mut text =
            serde_json::to_vec(report).map_err(|e| cannot("write", &path, std::io::Error::from(e)))?;
        text.push(b'\n');
        // Not synced: after a power cut, the next pass writes it again.
        files::replace_alone(&dir, REPORT, &text).map_err(|e| cannot("write", &path, e))
    }

    pub(super) fn get_report(&self, pool: &PoolName) -> Result<Option<Report>, HostError> {
        let path = self.state.pool(pool)?.join(REPORT);
        let text = files::read(&path).map_err(|e| cannot("read", &path, e))?;
        let parse = |text: Vec<u8>| {
            serde_json::from_slice(&text)
                .map_err(|e| broken(format_args!("`{}` is not a valid report: {e}", path.display())))
        };
        // An empty file, as after a power cut, counts as missing.
        text.filter(|text| !text.is_empty()).map(parse).transpose()
    }
}

const REFUSALS: &str = "refusals.json";
/// The runner repeats 3 s after a failure. A retry by a person is a job of its own.
const KEPT: Duration = Duration::from_mins(2);
/// The notes of as many jobs are kept.
const MOST: usize = 64;

#[derive(Debug, Serialize, Deserialize)]
struct RefusedJob {
    job: JobKey,
    at: Stamp,
    why: String,
}

impl LocalHost {
    /// Notes that a job cannot be prepared at present.
    pub fn note_refusal(&self, pool: &PoolName, job: &JobKey, why: &str) -> Result<(), HostError> {
        let mut refusals = self.refusals(pool)?;
        refusals.retain(|refusal| refusal.job != *job);
        refusals.push(RefusedJob { job: job.clone(), at: self.now(), why: why.to_owned() });
        let surplus = refusals.len().saturating_sub(MOST);
        refusals.drain(..surplus);
        let dir = self.state.ensure_pool(pool)?;
        let path = dir.join(REFUSALS);
        let text = serde_json::to_vec(&refusals).map_err(|e| cannot("write", &path, e))?;
        files::replace(&dir, REFUSALS, &text, Durable::No).map_err(|e| cannot("write", &path, e))
    }

    /// Returns why the job was refused a moment ago, if it was.
    pub fn refusal(&self, pool: &PoolName, job: &JobKey) -> Result<Option<String>, HostError> {
        let found = self.refusals(pool)?.into_iter().find(|refusal| refusal.job == *job);
        Ok(found.map(|refusal| refusal.why))
    }

    /// The notes that still count.
    fn refusals(&self, pool: &PoolName) -> Result<Vec<RefusedJob>, HostError> {
        let path = self.state.pool(pool)?.join(REFUSALS);
        let text = files::read(&path).map_err(|e| cannot("read", &path, e))?;
        // Notes only save time: those that cannot be read count as missing.
        let all: Vec<RefusedJob> =
            text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        let now = self.now();
        Ok(all.into_iter().filter(|refusal| now.age_of(refusal.at) < KEPT).collect())
    }
}
