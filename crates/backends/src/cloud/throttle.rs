//! Shared API back-off: one for all pools of a cloud account.
//!
//! A cloud throttles the account, whichever pool made the calls. So all calls of all its pools pause together, and
//! longer each time in a row; then one trial call decides.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::failure::{ErrorClass, Failure};
use greenroom_core::time::Stamp;
use greenroom_ports::provider::ProviderError;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The time for which the other calls wait for the result of the trial.
const TRIAL: Duration = Duration::from_secs(1);

/// The API back-off of one account.
#[derive(Debug, Default)]
pub(super) struct AccountThrottle {
    state: Cell<ThrottleState>,
    /// Throttled calls in a row.
    throttled: Cell<u32>,
}

#[derive(Debug, Clone, Copy, Default)]
enum ThrottleState {
    #[default]
    Open,
    /// No calls before this.
    Paused { until: Stamp },
    /// One call is on its way; the others wait until this.
    Trial { until: Stamp },
}

thread_local! {
    /// All pools of a keeper share one thread.
    static ACCOUNTS: RefCell<BTreeMap<String, Rc<AccountThrottle>>> = const { RefCell::new(BTreeMap::new()) };
}

impl AccountThrottle {
    /// The back-off of an account.
    pub(super) fn of(account: &str) -> Rc<Self> {
        ACCOUNTS.with_borrow_mut(|known| Rc::clone(known.entry(account.to_owned()).or_default()))
    }

    /// Admits a call, or returns [`ErrorClass::Throttled`] without one.
    pub(super) fn admit(&self, now: Stamp) -> Result<(), ProviderError> {
        match self.state.get() {
            ThrottleState::Paused { until } | ThrottleState::Trial { until } if !now.reached(until) => {
                let message = "call postponed: the cloud has just throttled this account";
                Err(ProviderError::new(ErrorClass::Throttled { until: Some(until) }, message))
            }
            ThrottleState::Paused { .. } | ThrottleState::Trial { .. } => {
                // The trial has a time limit: its caller may be dropped, and then records no answer.
                self.state.set(ThrottleState::Trial { until: now.plus(TRIAL) });
                Ok(())
            }
            ThrottleState::Open => Ok(()),
        }
    }

    /// Records the answer of a call.
    pub(super) fn record<T>(&self, answer: Result<T, ProviderError>, now: Stamp) -> Result<T, ProviderError> {
        match &answer {
            Err(ProviderError { failure: Failure { class: ErrorClass::Throttled { until: asked }, .. } }) => {
                let until = self.pause(now, *asked);
                let class = ErrorClass::Throttled { until: Some(until) };
                answer.map_err(|error| ProviderError::new(class, error.failure.message))
            }
            // Without an answer, the back-off does not change.
            Err(error) if *error.class() == ErrorClass::Unknown => answer,
            Ok(_) | Err(_) => {
                // An answer that arrives during a pause is that of an earlier call, and does not end the pause.
                if let ThrottleState::Trial { .. } = self.state.get() {
                    self.state.set(ThrottleState::Open);
                    self.throttled.set(0);
                }
                answer
            }
        }
    }

    /// Starts a pause and returns its end, which is not before the one that the cloud requested. Concurrent throttled calls
    /// count as one.
    fn pause(&self, now: Stamp, asked: Option<Stamp>) -> Stamp {
        // Calls that were under way when the pause began are throttled, too: they must not double it.
        if let ThrottleState::Paused { until } = self.state.get() {
            return until;
        }
        // The exponent is bounded before the shift overflows; `LONGEST_PAUSE` is reached long before.
        let factor = 1_u32 << self.throttled.get().min(10);
        let until = now.plus((FIRST_PAUSE * factor).min(LONGEST_PAUSE));
        let until = asked.filter(|asked| !until.reached(*asked)).unwrap_or(until);
        self.throttled.set(self.throttled.get().saturating_add(1));
        self.state.set(ThrottleState::Paused { until });
        until
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::time::{BootId, ManagerId};

    use super::*;

    fn at(ms: u64) -> Stamp {
        Stamp { wall_ms: 0, manager: ManagerId(1), boot: BootId(1), uptime_ms: ms }
    }

    fn throttled() -> Result<(), ProviderError> {
        Err(ProviderError::new(ErrorClass::Throttled { until: None }, "slow down"))
    }

    #[test]
    fn all_hold_still_and_longer_each_time() {
        let throttle = AccountThrottle::of("all_hold_still");
        assert!(Rc::ptr_eq(&throttle, &AccountThrottle::of("all_hold_still")), "one account, one budget");
        throttle.admit(at(0)).unwrap();
        throttle.record(throttled(), at(0)).unwrap_err();
        throttle.record(throttled(), at(0)).unwrap_err();
        assert!(throttle.admit(at(999)).is_err(), "for a second");
        throttle.admit(at(1_000)).unwrap();
        assert!(throttle.admit(at(1_001)).is_err(), "one tries, the others wait");
        let refused = throttle.record(throttled(), at(1_500)).unwrap_err();
        assert!(
            matches!(refused.class(), ErrorClass::Throttled { until: Some(at) } if at.uptime_ms == 3_500)
        );
        throttle.admit(at(3_500)).unwrap();
        throttle.record(Ok(()), at(3_600)).unwrap();
        throttle.admit(at(3_600)).unwrap();
        throttle.admit(at(3_600)).unwrap();
    }

    #[test]
    fn a_pause_is_as_long_as_the_cloud_asks_for() {
        let throttle = AccountThrottle::default();
        let later =
            |until| Err::<(), _>(ProviderError::new(ErrorClass::Throttled { until: Some(at(until)) }, ""));
        throttle.record(later(9_000), at(0)).unwrap_err();
        assert!(throttle.admit(at(8_999)).is_err());
        throttle.admit(at(9_000)).unwrap();
        // It is never shorter than Greenroom's own.
        throttle.record(later(9_001), at(9_000)).unwrap_err();
        assert!(throttle.admit(at(10_999)).is_err());
        throttle.admit(at(11_000)).unwrap();
    }

    #[test]
    fn another_error_is_an_answer_and_silence_is_none() {
        let throttle = AccountThrottle::default();
        throttle.record(throttled(), at(0)).unwrap_err();
        throttle.admit(at(1_000)).unwrap();
        let silence: Result<(), _> = Err(ProviderError::new(ErrorClass::Unknown, ""));
        throttle.record(silence, at(1_100)).unwrap_err();
        assert!(throttle.admit(at(1_200)).is_err());
        throttle.admit(at(2_000)).unwrap();
        let denied: Result<(), _> = Err(ProviderError::new(ErrorClass::Denied, "no"));
        throttle.record(denied, at(2_100)).unwrap_err();
        throttle.admit(at(2_100)).unwrap();
    }
}
