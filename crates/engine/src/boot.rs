//! Records of a failed boot, and of a failed check between jobs.

use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::InstanceId;
use greenroom_core::obstacle::{Cause, Obstacle};
use greenroom_core::plan::Effect;
use greenroom_core::pool::PoolState;
use greenroom_core::report::{FailedBoot, Note};
use greenroom_core::text::clean_line;
use greenroom_core::time::Stamp;
use greenroom_ports::connector::{ConnectError, Step};
use greenroom_ports::setup::PoolSetup;

use crate::pass::KeeperCache;
use crate::{Engine, deadline};

/// Number of lines of a console that are reported: the last ones, each cut to this many characters.
const LINES: usize = 10;
const COLUMNS: usize = 200;
/// The time for which a failed boot is reported, and the number of failed boots that are.
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
        let instance = instance.clone();
        let why = why.clone();
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

// What a failed connection says about an instance.

/// A failed try to log in. `hint` follows the fingerprints obstacle_of another host key.
pub(super) fn obstacle_of(error: &ConnectError, hint: Option<&str>) -> Obstacle {
    let (cause, at, detail) = match error {
        ConnectError::Unreachable { at, problem } => (Cause::Silent, at, problem.clone()),
        ConnectError::TurnedAway { at, problem } => (Cause::TurnedAway, at, problem.clone()),
        ConnectError::HostFault { at, problem } => (Cause::RunnerHost, at, problem.clone()),
        ConnectError::TimedOut { at, waited, during } => {
            let cause = match during {
                Step::Connect => return silent(at, &format!("no answer within {waited}")),
                Step::Greeting => Cause::NoGreeting,
                Step::Exchange => Cause::NoHostKey,
                Step::Login => Cause::SlowLogin,
                Step::Shell => Cause::SlowShell,
            };
            (cause, at, waited.clone())
        }
        ConnectError::HostKey { at, expected, found } => {
            let hint = hint.map_or(String::new(), |hint| format!("; {hint}"));
            (Cause::OtherKey, at, format!("{found}, expected {expected}{hint}"))
        }
        ConnectError::Refused { at, user, problem } => {
            (Cause::LoginDenied, at, format!("{problem} (user `{user}`)"))
        }
        ConnectError::Lost { at, problem, .. } => (Cause::Cut, at, problem.clone()),
        ConnectError::NotBegun { at, why } | ConnectError::NoContainer { at, why, .. } => {
            (Cause::NoStage, at, why.clone())
        }
        ConnectError::Local { what } => return no_address_of(what.clone()),
    };
    Obstacle { cause, at: at.clone(), detail }
}

fn silent(at: &str, detail: &str) -> Obstacle {
    Obstacle { cause: Cause::Silent, at: at.to_owned(), detail: detail.to_owned() }
}

/// The provider does not tell how to reach the instance, or the runner host lacks what that needs.
pub(super) fn no_address_of(detail: String) -> Obstacle {
    Obstacle { cause: Cause::NoAddress, at: String::new(), detail }
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

    #[test]
    fn each_failed_connection_has_its_cause() {
        let at = || "a:22".to_owned();
        let problem = || "why".to_owned();
        let late = |step| ConnectError::timed_out_in(step, "a:22", Duration::from_secs(10));
        for (error, cause, end) in [
            (ConnectError::Unreachable { at: at(), problem: problem() }, Cause::Silent, "at a:22: why"),
            (late(Step::Connect), Cause::Silent, "at a:22: no answer within 10 s"),
            (ConnectError::TurnedAway { at: at(), problem: problem() }, Cause::TurnedAway, "greeting: why"),
            (late(Step::Greeting), Cause::NoGreeting, "no SSH greeting within 10 s"),
            (late(Step::Exchange), Cause::NoHostKey, "no host key within 10 s"),
            (late(Step::Login), Cause::SlowLogin, "the login within 10 s"),
            (late(Step::Shell), Cause::SlowShell, "no command within 10 s"),
            (
                ConnectError::HostKey { at: at(), expected: "old".into(), found: "new".into() },
                Cause::OtherKey,
                "new, expected old; look",
            ),
            (
                ConnectError::Refused { at: at(), user: "ci".into(), problem: problem() },
                Cause::LoginDenied,
                "denies the login: why (user `ci`)",
            ),
            (ConnectError::Lost { at: at(), problem: problem(), sent: false }, Cause::Cut, "check: why"),
            (ConnectError::NotBegun { at: at(), why: problem() }, Cause::NoStage, "begins no stage: why"),
            (ConnectError::HostFault { at: at(), problem: problem() }, Cause::RunnerHost, "a:22: why"),
            (ConnectError::Local { what: problem() }, Cause::NoAddress, "contacted: why"),
        ] {
            let obstacle = obstacle_of(&error, Some("look"));
            assert_eq!(obstacle.cause, cause, "{error}");
            let sentence = obstacle.sentence(&InstanceId::new("h1"));
            assert!(sentence.ends_with(end), "{sentence}");
        }
    }
}
