//! Suspended instances, where the plugin can suspend.

use greenroom_core::time::Pretty;

use super::{Kit, states};
use crate::fleeting::group::{Group as _, GroupInfo, State};
use crate::program::kit::check::{Judged, failed, skipped};
use crate::program::kit::poll::poll;

impl Kit {
    /// Suspends an instance, and resumes it, if it is listed.
    pub(super) async fn check_tier(&self, first: &str, group: &GroupInfo, is_listed: bool) {
        if !group.suspends || !is_listed {
            let not_offered = "the plugin does not offer it: its capabilities lack `suspend_resume`";
            let why = if group.suspends { super::NOT_LISTED } else { not_offered };
            return self.skip(&["suspend", "resume"], why);
        }
        let is_suspended = self.outcomes.check("suspend", self.suspended(first)).await;
        let resumed = async {
            if !is_suspended {
                return skipped("no instance is suspended, see `suspend`");
            }
            self.resumed(first).await
        };
        self.outcomes.check("resume", resumed).await;
    }

    async fn suspended(&self, id: &str) -> Judged {
        let ids = [id.to_owned()];
        let accepted = self.answer("Suspend", self.plugin().suspend(&ids).await)?;
        if accepted.is_empty() {
            return failed("`Suspend` accepted no instance");
        }
        let mut last = None;
        let done = poll(self.limits.end, async || {
            last = states(&self.listed().await?).get(id).copied();
            Ok((last == Some(State::Suspended)).then_some(()))
        });
        if done.await?.is_some() {
            return Ok(());
        }
        let last = last.map_or_else(|| "not listed".to_owned(), |state| format!("{state:?}").to_lowercase());
        failed(format!("after {}, `{id}` is {last}", Pretty(self.limits.end)))
    }

    async fn resumed(&self, id: &str) -> Judged {
        let accepted = self.answer("Resume", self.plugin().resume(&[id.to_owned()]).await)?;
        if accepted.is_empty() {
            return failed("`Resume` accepted no instance");
        }
        self.runs(id).await?;
        self.logs_in(id).await
    }
}
