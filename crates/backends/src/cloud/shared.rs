//! The last answer of a call, shared by all callers ([`SharedAnswer`]).
//!
//! Hundreds of instances may boot, end and be probed concurrently. Each caller states the oldest answer that it
//! accepts. An older one is replaced by one new call for all waiting callers. A call that fails, fails for all of them:
//! otherwise each would wait for a timeout of its own, one after the other.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::time::Stamp;
use greenroom_ports::clock::Clock;
use greenroom_ports::provider::ProviderError;
use tokio::sync::Mutex;

/// An answer in a [`LastCall`], and the time before its call.
type Cached<T> = (Stamp, Rc<T>);

/// The results of the last calls.
#[derive(Debug)]
struct LastCall<T> {
    answer: Option<Cached<T>>,
    /// The last call's error, and the callers that had come when it arrived.
    failure: Option<(u64, ProviderError)>,
}

/// The last answer of a call, for all callers.
#[derive(Debug)]
pub struct SharedAnswer<T> {
    last: Mutex<LastCall<T>>,
    /// The number of callers up to now.
    callers: Cell<u64>,
}

impl<T> Default for SharedAnswer<T> {
    fn default() -> Self {
        Self { last: Mutex::new(LastCall { answer: None, failure: None }), callers: Cell::new(0) }
    }
}

impl<T: Clone> SharedAnswer<T> {
    /// An answer whose call began at most `age` ago; if `age` is zero, that of a call that begins after this request.
    pub async fn within<F: Future<Output = Result<T, ProviderError>>>(
        &self,
        age: Duration,
        clock: &dyn Clock,
        fetch: impl FnOnce(Stamp) -> F,
    ) -> Result<Rc<T>, ProviderError> {
        let requested = clock.now();
        let caller = self.callers.get() + 1;
        self.callers.set(caller);
        let mut last = self.last.lock().await;
        // Another caller may have fetched it while this one waited.
        let serves = |begun: Stamp| {
            // The age counts from before the call: the cloud may have read its data at any moment since then. With `age`
            // zero, a call that began in the same millisecond may have begun before this request.
            requested.since(begun) <= age && (!age.is_zero() || begun.uptime_ms > requested.uptime_ms)
        };
        if let Some((_, answer)) = last.answer.as_ref().filter(|(begun, _)| serves(*begun)) {
            return Ok(Rc::clone(answer));
        }
        // A caller that came before the failure shares it. One that came later makes a call of its own.
        if let Some((_, error)) = last.failure.as_ref().filter(|(waited, _)| caller <= *waited) {
            return Err(error.clone());
        }
        let begun = clock.now();
        match fetch(begun).await {
            Ok(fresh) => {
                let fresh = Rc::new(fresh);
                *last = LastCall { answer: Some((begun, Rc::clone(&fresh))), failure: None };
                Ok(fresh)
            }
            Err(error) => {
                last.failure = Some((self.callers.get(), error.clone()));
                Err(error)
            }
        }
    }

    /// Changes the last answer by what Greenroom learned in another way.
    pub async fn amend(&self, change: impl FnOnce(&mut T)) {
        if let Some((_, answer)) = self.last.lock().await.answer.as_mut() {
            change(Rc::make_mut(answer));
        }
    }
}

#[cfg(test)]
mod tests {
    use greenroom_testkit::clock::ManualClock;

    use super::*;

    #[tokio::test]
    async fn many_questions_are_one() {
        let shared = SharedAnswer::default();
        let clock = ManualClock::default();
        let questions = Cell::new(0);
        clock.pass(Duration::from_secs(1));
        let ask = async |age: u64| {
            let ask = async |begun: Stamp| {
                questions.set(questions.get() + 1);
                tokio::task::yield_now().await;
                Ok(begun.uptime_ms)
            };
            *shared.within(Duration::from_millis(age), &clock, ask).await.unwrap()
        };
        let (a, b, c) = tokio::join!(ask(100), ask(100), ask(100));
        assert_eq!((a, b, c, questions.get()), (1_000, 1_000, 1_000, 1));
        clock.pass(Duration::from_millis(100));
        assert_eq!((ask(100).await, questions.get()), (1_000, 1));
        clock.pass(Duration::from_millis(1));
        assert_eq!((ask(100).await, questions.get()), (1_101, 2));
        assert_eq!((ask(0).await, questions.get()), (1_101, 3), "what is old was not asked for");
    }

    #[tokio::test]
    async fn fifty_questions_to_a_cloud_that_does_not_answer_cost_one_timeout() {
        let shared = SharedAnswer::<u32>::default();
        let clock = ManualClock::default();
        let questions = Cell::new(0);
        let ask = async |age: Duration| {
            let ask = async |_| {
                questions.set(questions.get() + 1);
                tokio::task::yield_now().await;
                clock.pass(Duration::from_secs(30));
                Err(ProviderError::new(greenroom_core::failure::ErrorClass::Transient, "no answer"))
            };
            shared.within(age, &clock, ask).await.unwrap_err().to_string()
        };
        let ages = [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(10)];
        let all = futures_util::future::join_all((0..50).map(|number| ask(ages[number % 3]))).await;
        assert_eq!((all.len(), questions.get()), (50, 1));
        assert!(all.iter().all(|error| *error == all[0]), "{all:?}");
        ask(ages[2]).await;
        assert_eq!(questions.get(), 2, "a later question is a call of its own");
    }

    #[tokio::test]
    async fn a_failure_hides_no_answer_that_still_serves() {
        let shared = SharedAnswer::default();
        let clock = ManualClock::default();
        shared.within(Duration::ZERO, &clock, async |_| Ok(1)).await.unwrap();
        let broken = async |_| Err(ProviderError::new(greenroom_core::failure::ErrorClass::Transient, ""));
        shared.within(Duration::ZERO, &clock, broken).await.unwrap_err();
        let unused = async |_| Err(ProviderError::new(greenroom_core::failure::ErrorClass::Transient, ""));
        assert_eq!(*shared.within(Duration::from_secs(1), &clock, unused).await.unwrap(), 1);
    }

    #[tokio::test]
    async fn what_is_learned_otherwise_is_told_to_all() {
        let shared = SharedAnswer::default();
        let clock = ManualClock::default();
        shared.amend(|answer| *answer = 1).await;
        shared.within(Duration::ZERO, &clock, async |_| Ok(2)).await.unwrap();
        shared.amend(|answer| *answer = 3).await;
        let unused = async |_| Err(ProviderError::new(greenroom_core::failure::ErrorClass::Transient, ""));
        assert_eq!(*shared.within(Duration::from_secs(1), &clock, unused).await.unwrap(), 3);
    }
}
