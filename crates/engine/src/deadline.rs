//! Time limits of effects, by their class.
//!
//! An effect that is given up is like one whose keeper was killed at that moment: the next pass continues. What it began
//! on another thread ends there, and is not begun a second time until then.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use greenroom_core::failure::{ErrorClass, Failure};
use greenroom_core::plan::Effect;
use greenroom_core::policy::Policy;
use greenroom_core::time::Pretty;
use greenroom_core::unbegun::CheckKind;
use greenroom_ports::provider::ProviderError;

use super::{Engine, container, warm};

/// Limit for one exchange with a provider: a few calls, each with a limit of its own in most providers.
pub(super) const CALL: Duration = Duration::from_mins(2);
/// Limit for what an effect does on the runner host: locks, records, directories.
const HERE: Duration = Duration::from_mins(1);
/// The most commands of one cleaning, each of which may take all of `clean_timeout`: that of root, its proof twice, and
/// the operator's. The check that follows has limits of its own.
const CLEAN_COMMANDS: u32 = 4;
/// Limit for stopping a command that has used up its time.
const STOPPING: Duration = Duration::from_secs(30);
/// Limit for what must not hold up the rest of an effect: removing an attempt's TMPDIR, reading a console.
pub(super) const ASIDE: Duration = Duration::from_secs(10);

/// The longest time that an effect may take.
pub(super) fn of(effect: &Effect, policy: &Policy) -> Duration {
    let timing = &policy.timing;
    let reach = CALL + timing.connect_timeout;
    let limits: &[Duration] = match effect {
        // A cloud may look for capacity for minutes. Later than this, the instance would be given up anyway.
        Effect::Launch { .. } => &[CALL, timing.launch_timeout],
        Effect::Probe { .. } => &[timing.pass_interval, reach, timing.ready_timeout, timing.ready_timeout],
        Effect::Resume { .. } => {
            &[CALL, timing.pass_interval, reach, timing.ready_timeout, timing.ready_timeout]
        }
        Effect::CheckHealth { .. } => &[CALL, reach, timing.probe_interval, CALL, reach],
        Effect::Check { kind: CheckKind::Stages, .. } => &[reach, timing.connect_timeout * 2],
        Effect::Check { kind: CheckKind::Engine | CheckKind::Network, .. } => {
            &[reach, timing.connect_timeout, container::check::WITHIN, STOPPING]
        }
        Effect::Recheck { .. } => {
            &[timing.connect_timeout * 6, timing.ready_timeout.saturating_add(STOPPING).saturating_mul(6)]
        }
        Effect::Warm { .. } => &[reach, policy.warm.pull_timeout, warm::MARGIN, STOPPING],
        Effect::Clean { .. } => {
            let checks = timing.ready_timeout.saturating_add(STOPPING).saturating_mul(4);
            &[reach, timing.clean_timeout.saturating_add(STOPPING).saturating_mul(CLEAN_COMMANDS), checks]
        }
        Effect::Adopt { .. }
        | Effect::Suspend { .. }
        | Effect::Terminate { .. }
        | Effect::Forget { .. }
        | Effect::Reap { .. } => &[CALL],
        Effect::EndAttempt { .. } | Effect::DropRequest { .. } | Effect::ForgetAttempt { .. } => &[],
    };
    limits.iter().fold(HERE, |sum, limit| sum.saturating_add(*limit))
}

/// The failure of work that was given up.
pub(super) fn passed(limit: Duration) -> Failure {
    Failure { class: ErrorClass::Transient, message: format!("no result within {}", Pretty(limit)) }
}

impl Engine {
    /// A call to a provider, for at most `limit`.
    pub(super) async fn call<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T, ProviderError>>,
    ) -> Result<T, Failure> {
        let answer = self.within(limit, call).await;
        answer.map_or_else(|| Err(passed(limit)), |answer| answer.map_err(|error| error.failure))
    }

    /// Does something for at most `limit`; `None`: it was given up.
    pub(super) async fn within<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        match select(pin!(work), self.host.wakeups.pause(limit)).await {
            Either::Left((done, _)) => Some(done),
            Either::Right(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::ids::{AttemptName, InstanceId};
    use greenroom_core::policy::Timing;

    use super::*;

    #[test]
    fn each_class_has_a_limit_that_its_own_steps_do_not_reach() {
        let policy = Policy::default();
        let timing = &policy.timing;
        let instance = || InstanceId::new("i");
        let launch = of(&Effect::Launch { instance: instance(), repeated: false }, &policy);
        assert!(launch > timing.launch_timeout);
        // Root's command, its proof, the proof once more after a lost connection, the operator's command.
        assert!(of(&Effect::Clean { instance: instance() }, &policy) > timing.clean_timeout * 4);
        assert!(
            of(&Effect::Probe { instance: instance() }, &policy)
                > timing.pass_interval + timing.ready_timeout
        );
        assert!(
            of(&Effect::Resume { instance: instance() }, &policy)
                > CALL + timing.pass_interval + timing.ready_timeout
        );
        assert!(of(&Effect::CheckHealth { instance: instance() }, &policy) > timing.connect_timeout * 2);
        let check = |kind| of(&Effect::Check { instance: instance(), kind }, &policy);
        assert!(check(CheckKind::Stages) > timing.connect_timeout * 3);
        assert!(check(CheckKind::Network) > timing.connect_timeout + container::check::WITHIN);
        let warm = of(&Effect::Warm { instance: instance(), image: "ruby".into() }, &policy);
        assert!(warm > policy.warm.pull_timeout + warm::MARGIN);
        assert_eq!(of(&Effect::Terminate { instance: instance() }, &policy), CALL + HERE);
        assert_eq!(of(&Effect::ForgetAttempt { attempt: AttemptName::new("a") }, &policy), HERE);
        let timing = Timing { clean_timeout: Duration::MAX, ..timing.clone() };
        let endless = Policy { timing, ..policy };
        assert_eq!(of(&Effect::Clean { instance: instance() }, &endless), Duration::MAX, "no overflow");
    }
}
