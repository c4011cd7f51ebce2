//! What a failed connection says about an instance.

use greenroom_core::obstacle::{Cause, Obstacle};
use greenroom_ports::connector::{ConnectError, Step};

/// A failed try to log in. `hint` follows the fingerprints of another host key.
pub(super) fn of(error: &ConnectError, hint: Option<&str>) -> Obstacle {
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
        ConnectError::Local { what } => return no_address(what.clone()),
    };
    Obstacle { cause, at: at.clone(), detail }
}

fn silent(at: &str, detail: &str) -> Obstacle {
    Obstacle { cause: Cause::Silent, at: at.to_owned(), detail: detail.to_owned() }
}

/// The provider does not tell how to reach the instance, or the runner host lacks what that needs.
pub(super) fn no_address(detail: String) -> Obstacle {
    Obstacle { cause: Cause::NoAddress, at: String::new(), detail }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use greenroom_core::ids::InstanceId;

    use super::*;

    #[test]
    fn each_failed_connection_has_its_cause() {
        let (at, problem) = (|| "a:22".to_owned(), || "why".to_owned());
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
            let obstacle = of(&error, Some("look"));
            assert_eq!(obstacle.cause, cause, "{error}");
            let sentence = obstacle.sentence(&InstanceId::new("h1"));
            assert!(sentence.ends_with(end), "{sentence}");
        }
    }
}
