//! A pool's report, renamed into place after each pass.

use std::fmt;

use greenroom_core::ids::PoolName;
use greenroom_core::report::Report;
use greenroom_ports::host_error::HostError;

use super::clock::SystemClock;
use super::error::{cannot, io};
use super::files;
use super::host::LocalHost;

const REPORT: &str = "report.json";

/// Takes each report that a pass writes. It must not block.
pub type OnReport = Box<dyn Fn(&PoolName, &Report)>;

/// What is told of each report in this process, beside the file.
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
                .map_err(|e| io(format_args!("`{}` is not a valid report: {e}", path.display())))
        };
        // An empty file, as after a power cut, counts as missing.
        text.filter(|text| !text.is_empty()).map(parse).transpose()
    }
}
