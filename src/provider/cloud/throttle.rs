//! How much an account may be asked, shared by all who ask it.
//!
//! A cloud that says "too many calls" says it to the account, whoever made them. So all calls of all pools of an account
//! hold still together, and longer each time in a row; then one of them tries.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use crate::core::failure::ErrorClass;
use crate::core::time::Stamp;
use crate::port::provider::ProviderError;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// While one tries, the others wait for what it finds out.
const TRIAL: Duration = Duration::from_secs(1);

/// One account's.
#[derive(Debug, Default)]
pub(super) struct AccountThrottle {
    state: Cell<State>,
    /// Complaints in a row.
    complaints: Cell<u32>,
}

#[derive(Debug, Clone, Copy, Default)]
enum State {
    #[default]
    Open,
    /// Nobody asks.
    Paused { until: Stamp },
    /// One asks; the others, not before this.
    Trying { until: Stamp },
}

thread_local! {
    /// A keeper is one thread with all its pools.
    static ACCOUNTS: RefCell<BTreeMap<String, Rc<AccountThrottle>>> = const { RefCell::new(BTreeMap::new()) };
}

impl AccountThrottle {
    /// The budget of an account, whatever name it goes by.
    pub(super) fn of(account: &str) -> Rc<Self> {
        ACCOUNTS.with_borrow_mut(|known| Rc::clone(known.entry(account.to_owned()).or_default()))
    }

    /// May a call be made now? `Throttled` without asking the cloud otherwise.
    pub(super) fn admit(&self, now: Stamp) -> Result<(), ProviderError> {
        match self.state.get() {
            State::Paused { until } | State::Trying { until } if !now.reached(until) => {
                let message = "call postponed: the cloud has just throttled this account";
                Err(ProviderError::new(ErrorClass::Throttled { until: Some(until) }, message))
            }
            State::Paused { .. } | State::Trying { .. } => {
                self.state.set(State::Trying { until: now.plus(TRIAL) });
                Ok(())
            }
            State::Open => Ok(()),
        }
    }

    /// What came of a call.
    pub(super) fn heard<T>(&self, answer: Result<T, ProviderError>, now: Stamp) -> Result<T, ProviderError> {
        match &answer {
            Err(error) if matches!(error.class(), ErrorClass::Throttled { .. }) => {
                let until = self.pause(now);
                let class = ErrorClass::Throttled { until: Some(until) };
                answer.map_err(|error| ProviderError::new(class, error.failure.message))
            }
            // No answer says nothing about the budget.
            Err(error) if *error.class() == ErrorClass::Unknown => answer,
            Ok(_) | Err(_) => {
                if let State::Trying { .. } = self.state.get() {
                    self.state.set(State::Open);
                    self.complaints.set(0);
                }
                answer
            }
        }
    }

    /// Until when nobody asks. Calls that were under way together are one complaint.
    fn pause(&self, now: Stamp) -> Stamp {
        if let State::Paused { until } = self.state.get() {
            return until;
        }
        let factor = 1_u32 << self.complaints.get().min(10);
        let until = now.plus((FIRST_PAUSE * factor).min(LONGEST_PAUSE));
        self.complaints.set(self.complaints.get().saturating_add(1));
        self.state.set(State::Paused { until });
        until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::time::BootId;

    fn at(ms: u64) -> Stamp {
        Stamp { wall_ms: 0, boot: BootId(1), uptime_ms: ms }
    }

    fn throttled() -> Result<(), ProviderError> {
        Err(ProviderError::new(ErrorClass::Throttled { until: None }, "slow down"))
    }

    #[test]
    fn all_hold_still_and_longer_each_time() {
        let budget = AccountThrottle::of("all_hold_still");
        assert!(Rc::ptr_eq(&budget, &AccountThrottle::of("all_hold_still")), "one account, one budget");
        budget.admit(at(0)).unwrap();
        budget.heard(throttled(), at(0)).unwrap_err();
        budget.heard(throttled(), at(0)).unwrap_err();
        assert!(budget.admit(at(999)).is_err(), "for a second");
        budget.admit(at(1_000)).unwrap();
        assert!(budget.admit(at(1_001)).is_err(), "one tries, the others wait");
        let refused = budget.heard(throttled(), at(1_500)).unwrap_err();
        assert!(
            matches!(refused.class(), ErrorClass::Throttled { until: Some(at) } if at.uptime_ms == 3_500)
        );
        budget.admit(at(3_500)).unwrap();
        budget.heard(Ok(()), at(3_600)).unwrap();
        budget.admit(at(3_600)).unwrap();
        budget.admit(at(3_600)).unwrap();
    }

    #[test]
    fn another_error_is_an_answer_and_silence_is_none() {
        let budget = AccountThrottle::default();
        budget.heard(throttled(), at(0)).unwrap_err();
        budget.admit(at(1_000)).unwrap();
        let silence: Result<(), _> = Err(ProviderError::new(ErrorClass::Unknown, ""));
        budget.heard(silence, at(1_100)).unwrap_err();
        assert!(budget.admit(at(1_200)).is_err());
        budget.admit(at(2_000)).unwrap();
        let denied: Result<(), _> = Err(ProviderError::new(ErrorClass::Denied, "no"));
        budget.heard(denied, at(2_100)).unwrap_err();
        budget.admit(at(2_100)).unwrap();
    }
}
