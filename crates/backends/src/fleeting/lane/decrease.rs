//! Terminations: all that are due share one `Decrease`.

use std::rc::Rc;
use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::InstanceId;
use greenroom_ports::provider::{ProviderError, Termination};

use super::{Lane, failures};
use crate::fleeting::book::Removal;
use crate::fleeting::book::entry::How;

/// The maximum age of an update for a caller that waits for the end of an instance.
const WAIT_AGE: Duration = Duration::from_secs(2);

impl Lane {
    /// Requests the end of an instance, and reports whether it has ended.
    pub(in crate::fleeting) async fn terminate(
        self: &Rc<Self>,
        instance: &InstanceId,
    ) -> Result<Termination, ProviderError> {
        self.update(Duration::MAX).await?;
        // The update after a removal may show that an earlier one was lost.
        for _ in 0..2 {
            match self.mark(instance) {
                Removal::Gone(how) => return gone(instance, how),
                Removal::MayAppear => {}
                Removal::Marked => self.remove(instance).await?,
            }
            self.update(WAIT_AGE).await?;
        }
        match self.mark(instance) {
            Removal::Gone(how) => gone(instance, how),
            Removal::MayAppear | Removal::Marked => Ok(Termination::Requested),
        }
    }

    /// Requests the removal of what is due, this instance included.
    async fn remove(self: &Rc<Self>, instance: &InstanceId) -> Result<(), ProviderError> {
        if !self.due().is_empty() {
            let (lane, before) = (Rc::clone(self), self.removals.get());
            self.serial
                .run(async move {
                    // One for all that were marked before it.
                    if lane.removals.get() == before {
                        lane.decrease().await;
                    }
                })
                .await;
        }
        let is_due = self.read(|book| {
            book.machines().get(instance).is_some_and(|machine| book.due(self.now()).contains(&machine.id))
        });
        let failure = self.removal_failure.borrow().clone().filter(|_| is_due);
        failure.map_or(Ok(()), Err)
    }

    fn mark(&self, instance: &InstanceId) -> Removal {
        let (now, within) = (self.now(), self.rules().appears_within);
        self.change(|book| book.remove(instance, within, now))
    }

    fn due(&self) -> Vec<String> {
        self.read(|book| book.due(self.now()))
    }

    /// One call for all removals that are due, in the lane.
    async fn decrease(&self) {
        // Terminations that begin at the same time join.
        tokio::task::yield_now().await;
        self.removals.set(self.removals.get() + 1);
        let due = self.due();
        if due.is_empty() {
            return;
        }
        let called = match self.group() {
            Ok(group) => {
                let answer = self.counted(group.decrease(&due).await);
                answer.map_err(|error| failures::of_call("remove an instance", &error))
            }
            Err(error) => Err(error),
        };
        let failure = match called {
            Ok(accepted) => {
                self.change(|book| book.removed(&accepted, self.now()));
                let why = "the plugin did not accept the removal of the instance";
                Some(ProviderError::new(ErrorClass::Transient, why))
            }
            Err(error) => {
                // It may have been done in part, or what is to be removed is gone: the next update shows it.
                self.updated.replace(None);
                Some(error)
            }
        };
        self.removal_failure.replace(failure);
        if let Err(error) = self.store().await {
            tracing::warn!(pool = %self.pool, "{error}");
        }
    }
}

/// *Gone* only if the plugin has removed it: what vanished may come back.
fn gone(instance: &InstanceId, how: Option<How>) -> Result<Termination, ProviderError> {
    match how {
        Some(How::Deleted | How::Removed) => Ok(Termination::Gone),
        Some(How::Vanished) | None => {
            let why = format!("no machine of the plugin belongs to `{instance}`");
            Err(ProviderError::new(ErrorClass::NotFound, why))
        }
    }
}
