//! What is kept of a failed boot, and of a failed check between jobs.

use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::InstanceId;
use greenroom_core::plan::Effect;
use greenroom_core::pool::PoolState;
use greenroom_core::report::{FailedBoot, Note};
use greenroom_core::text::clean_line;
use greenroom_core::time::Stamp;
use greenroom_ports::setup::PoolSetup;

use super::pass::KeeperCache;
use super::{Engine, deadline};

/// How much of a console is reported: its last lines, each cut to this many characters.
const LINES: usize = 10;
const COLUMNS: usize = 200;
/// How long a failed boot is reported, and how many of them.
const REPORTED_FOR: Duration = Duration::from_mins(10);
const BOOTS: usize = 5;

impl Engine {
    /// Reads the console of an instance before it is terminated.
    pub(super) async fn with_console(&self, boot: FailedBoot, setup: &PoolSetup) -> FailedBoot {
        let id = &boot.instance;
        let console = match self.call(deadline::ASIDE, setup.provider.console(id)).await {
            Ok(text) => last_lines(&text),
            Err(error) => {
                if error.class != ErrorClass::NotFound {
                    tracing::warn!(pool = %self.pool, "cannot read the console of {id}: {error}");
                }
                Vec::new()
            }
        };
        FailedBoot { console, ..boot }
    }
}

impl KeeperCache {
    /// The failed boot that this termination ends, unless it is recorded already. Its console has not been read yet.
    pub(super) fn news_of_a_boot(
        &self,
        effect: &Effect,
        state: &PoolState,
        now: Stamp,
    ) -> Option<FailedBoot> {
        let Effect::Terminate { instance } = effect else { return None };
        let why = state.instance(instance)?.failed_boot()?;
        let known = self.boots.iter().any(|boot| boot.instance == *instance);
        let (instance, why) = (instance.clone(), why.clone());
        let cause = self.detail(&instance);
        (!known).then(|| FailedBoot { instance, at: now, reason: why, cause, console: Vec::new() })
    }

    /// The provider's last details on an instance, beyond its status.
    fn detail(&self, id: &InstanceId) -> Option<String> {
        let (_, listing) = self.listing.as_ref()?;
        let listed = listing.as_ref().ok()?.instances.iter().find(|listed| listed.id == *id)?;
        listed.detail.clone()
    }

    pub(super) fn remember_boot(&mut self, boot: FailedBoot) {
        self.boots.push(boot);
        let surplus = self.boots.len().saturating_sub(BOOTS);
        self.boots.drain(..surplus);
    }

    /// An instance failed the check between jobs.
    pub(super) fn remember_unfit(&mut self, instance: InstanceId, reason: String, at: Stamp) {
        self.unfit.push((at, instance, reason));
        let surplus = self.unfit.len().saturating_sub(BOOTS);
        self.unfit.drain(..surplus);
    }

    /// The failed checks that are recent enough to report.
    pub(super) fn unfit_notes(&mut self, now: Stamp) -> Vec<Note> {
        self.unfit.retain(|(at, ..)| now.since(*at) < REPORTED_FOR);
        let note = |(_, instance, reason): &(_, InstanceId, String)| Note::Unfit {
            instance: instance.clone(),
            reason: reason.clone(),
        };
        self.unfit.iter().map(note).collect()
    }

    /// The failed boots that are recent enough to report.
    pub(super) fn failed_boots(&mut self, now: Stamp) -> &[FailedBoot] {
        self.boots.retain(|boot| now.since(boot.at) < REPORTED_FOR);
        &self.boots
    }
}

/// Made fit for messages: a console is the guest's own text.
fn last_lines(console: &str) -> Vec<String> {
    let cleaned = console.split(['\n', '\r']).map(|line| clean_line(line.as_bytes(), COLUMNS));
    let mut lines: Vec<String> = cleaned.filter(|line| !line.is_empty()).collect();
    lines.drain(..lines.len().saturating_sub(LINES));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_console_is_told_without_what_acts_on_a_terminal() {
        let lines: Vec<String> = (0..40).map(|n| format!("line {n}\r\n")).collect();
        let console = lines.concat() + "\u{1b}[31mpanic\u{1b}[0m: no root\n\n";
        let kept = last_lines(&console);
        assert_eq!(kept.len(), LINES);
        assert_eq!((kept[0].as_str(), kept[LINES - 1].as_str()), ("line 31", "panic: no root"));
        assert!(last_lines("\n \n").is_empty());
        assert_eq!(last_lines(&"x".repeat(900))[0].chars().count(), COLUMNS);
    }
}
