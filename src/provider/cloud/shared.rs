//! The last answer of a call, shared by all callers.
//!
//! Hundreds of instances may boot, end and be probed concurrently. Each caller states the oldest answer that it
//! accepts. An older one is replaced by one new call for all waiting callers.

use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::core::time::Stamp;
use crate::port::clock::Clock;
use crate::port::provider::ProviderError;

/// An answer, and the time before its call.
type Cached<T> = (Stamp, Rc<T>);

#[derive(Debug)]
pub struct Shared<T>(Mutex<Option<Cached<T>>>);

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Shared<T> {
    /// An answer whose call began at most `age` ago; if `age` is zero, that of a call that begins after this request.
    pub async fn within<F: Future<Output = Result<T, ProviderError>>>(
        &self,
        age: Duration,
        clock: &dyn Clock,
        fetch: impl FnOnce(Stamp) -> F,
    ) -> Result<Rc<T>, ProviderError> {
        let requested = clock.now();
        let mut last = self.0.lock().await;
        // Another caller may have fetched it while this one waited.
        let serves = |begun: Stamp| {
            requested.since(begun) <= age && (!age.is_zero() || begun.uptime_ms > requested.uptime_ms)
        };
        if let Some((_, answer)) = last.as_ref().filter(|(begun, _)| serves(*begun)) {
            return Ok(Rc::clone(answer));
        }
        let begun = clock.now();
        let fresh = Rc::new(fetch(begun).await?);
        *last = Some((begun, Rc::clone(&fresh)));
        Ok(fresh)
    }

    /// Changes the last answer by what Greenroom learned otherwise.
    pub async fn amend(&self, change: impl FnOnce(&mut T)) {
        if let Some((_, answer)) = self.0.lock().await.as_mut() {
            change(Rc::make_mut(answer));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::port::clock::tests::ManualClock;

    #[tokio::test]
    async fn many_questions_are_one() {
        let (shared, clock, questions) = (Shared::default(), ManualClock::default(), Cell::new(0));
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
    async fn what_is_learned_otherwise_is_told_to_all() {
        let (shared, clock) = (Shared::default(), ManualClock::default());
        shared.amend(|answer| *answer = 1).await;
        shared.within(Duration::ZERO, &clock, async |_| Ok(2)).await.unwrap();
        shared.amend(|answer| *answer = 3).await;
        let unused = async |_| Err(ProviderError::new(crate::core::failure::ErrorClass::Transient, ""));
        assert_eq!(*shared.within(Duration::from_secs(1), &clock, unused).await.unwrap(), 3);
    }
}
