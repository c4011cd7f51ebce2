//! What the cloud said last of a pool's machines, shared by all who want to know.
//!
//! Hundreds of instances may boot, end and be looked after at once. Each question names the age that it can bear; what is
//! older is asked anew, once for all who wait.

use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Mutex;

use super::machine::{Handle, Machine, Standing};
use crate::core::ids::InstanceId;
use crate::core::time::Stamp;
use crate::port::provider::ProviderError;

/// One look.
#[derive(Debug, Clone)]
pub(super) struct Sight {
    /// Before the call.
    pub(super) begun: Stamp,
    pub(super) complete: bool,
    pub(super) machines: Vec<Machine>,
}

impl Sight {
    /// The machines of an instance: one, unless a launch was repeated behind our back.
    pub(super) fn of<'a>(&'a self, id: &'a InstanceId) -> impl Iterator<Item = &'a Machine> {
        self.machines.iter().filter(move |machine| machine.instance == *id)
    }

    /// Of those, the one that is furthest from its end.
    pub(super) fn best(&self, id: &InstanceId) -> Option<&Machine> {
        self.machines.iter().filter(|machine| machine.instance == *id).max_by_key(|machine| machine.standing)
    }
}

/// The last look.
#[derive(Debug, Default)]
pub(super) struct LastSight(Mutex<Option<Rc<Sight>>>);

impl LastSight {
    /// A look that began at most `age` before this question.
    pub(super) async fn within(
        &self,
        age: Duration,
        asked: Stamp,
        look: impl Future<Output = Result<Sight, ProviderError>>,
    ) -> Result<Rc<Sight>, ProviderError> {
        let mut last = self.0.lock().await;
        // Another may have looked while we waited. With no age at all, only what was begun after the question serves.
        let serves = |sight: &&Rc<Sight>| {
            asked.since(sight.begun) <= age && (!age.is_zero() || sight.begun.uptime_ms > asked.uptime_ms)
        };
        if let Some(sight) = last.as_ref().filter(serves) {
            return Ok(Rc::clone(sight));
        }
        let fresh = Rc::new(look.await?);
        *last = Some(Rc::clone(&fresh));
        Ok(fresh)
    }

    /// The end of a machine has been asked for: until the next look it counts as ending.
    pub(super) async fn ends(&self, handle: &Handle) {
        let mut last = self.0.lock().await;
        if let Some(sight) = last.as_mut() {
            let known = Rc::make_mut(sight).machines.iter_mut().filter(|machine| machine.handle == *handle);
            known.for_each(|machine| machine.standing = machine.standing.min(Standing::Ending));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::machine::tests::machine;
    use super::*;
    use crate::core::time::BootId;

    fn at(ms: u64) -> Stamp {
        Stamp { wall_ms: 0, boot: BootId(1), uptime_ms: ms }
    }

    fn sight(begun: Stamp) -> Sight {
        Sight { begun, complete: true, machines: vec![machine("a", Standing::Running)] }
    }

    #[tokio::test]
    async fn many_questions_are_one_look() {
        let last = LastSight::default();
        let looks = Cell::new(0);
        let ask = async |age: u64, asked: u64| {
            let look = async {
                looks.set(looks.get() + 1);
                tokio::task::yield_now().await;
                Ok(sight(at(asked)))
            };
            last.within(Duration::from_millis(age), at(asked), look).await.unwrap().begun
        };
        let (a, b, c) = tokio::join!(ask(100, 1_000), ask(100, 1_000), ask(100, 1_000));
        assert_eq!((a, b, c, looks.get()), (at(1_000), at(1_000), at(1_000), 1));
        assert_eq!((ask(100, 1_100).await, looks.get()), (at(1_000), 1));
        assert_eq!((ask(100, 1_101).await, looks.get()), (at(1_101), 2));
        assert_eq!((ask(0, 1_101).await, looks.get()), (at(1_101), 3), "what is old was not asked for");
    }

    #[tokio::test]
    async fn what_was_asked_to_end_ends_at_once_for_all() {
        let last = LastSight::default();
        last.within(Duration::ZERO, at(0), async { Ok(sight(at(1))) }).await.unwrap();
        last.ends(&machine("a", Standing::Running).handle).await;
        let nobody = async { Err(ProviderError::new(crate::core::failure::ErrorClass::Transient, "")) };
        let seen = last.within(Duration::from_secs(1), at(2), nobody).await.unwrap();
        assert_eq!(seen.best(&InstanceId::new("a")).unwrap().standing, Standing::Ending);
    }
}
