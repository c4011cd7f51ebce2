//! What a failed boot leaves behind.

use std::time::Duration;

use super::Engine;
use super::pass::KeeperCache;
use crate::core::failure::ErrorClass;
use crate::core::ids::InstanceId;
use crate::core::plan::Effect;
use crate::core::pool::PoolState;
use crate::core::report::FailedBoot;
use crate::core::text::clean_line;
use crate::core::time::Stamp;
use crate::port::setup::PoolSetup;

/// How much of a console is told: its last lines, each cut to so many characters.
const LINES: usize = 10;
const COLUMNS: usize = 200;
/// How long a failed boot is told, and how many of them.
const TOLD: Duration = Duration::from_mins(10);
const BOOTS: usize = 5;

impl Engine {
    /// Asks for the console of an instance that will be gone soon.
    pub(super) async fn last_words(&self, boot: FailedBoot, setup: &PoolSetup) -> FailedBoot {
        let id = &boot.instance;
        let console = match setup.provider.console(id).await {
            Ok(text) => last_lines(&text),
            Err(error) => {
                if *error.class() != ErrorClass::NotFound {
                    tracing::warn!(pool = %self.pool, "cannot read the console of {id}: {error}");
                }
                Vec::new()
            }
        };
        FailedBoot { console, ..boot }
    }
}

impl KeeperCache {
    /// The boot whose failure this termination ends, if nothing is known of it yet; its console is not yet read.
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

    /// What the provider last said of an instance beside its status.
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

    /// The boots that are still worth telling.
    pub(super) fn failed_boots(&mut self, now: Stamp) -> &[FailedBoot] {
        self.boots.retain(|boot| now.since(boot.at) < TOLD);
        &self.boots
    }
}

/// Fit for messages: a console is the guest's own text.
fn last_lines(console: &str) -> Vec<String> {
    let lines = console.split(['\n', '\r']).map(|line| clean_line(line.as_bytes(), COLUMNS));
    let mut told: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
    told.drain(..told.len().saturating_sub(LINES));
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_console_is_told_without_what_acts_on_a_terminal() {
        let lines: Vec<String> = (0..40).map(|n| format!("line {n}\r\n")).collect();
        let console = lines.concat() + "\u{1b}[31mpanic\u{1b}[0m: no root\n\n";
        let told = last_lines(&console);
        assert_eq!(told.len(), LINES);
        assert_eq!((told[0].as_str(), told[LINES - 1].as_str()), ("line 31", "panic: no root"));
        assert!(last_lines("\n \n").is_empty());
        assert_eq!(last_lines(&"x".repeat(900))[0].chars().count(), COLUMNS);
    }
}
