//! Calls about instances that exist: terminations share one `Decrease`; `Suspend`, `Resume` and `Heartbeat` concern one
//! instance.

use std::rc::Rc;
use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::InstanceId;
use greenroom_ports::provider::{ProviderError, Termination};

use super::PluginQueue;
use crate::fleeting::book::Removal;
use crate::fleeting::book::entry::Departure;
use crate::fleeting::group::{CallError, CallErrorKind, InstanceState, call_failure};

/// The maximum age of an update for a caller that waits for the end of an instance.
const WAIT_AGE: Duration = Duration::from_secs(2);
/// The maximum age of an update before an instance is suspended or resumed.
const BEFORE: Duration = Duration::from_secs(2);

impl PluginQueue {
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
            let queue = Rc::clone(self);
            let before = self.removals.get();
            self.serial
                .run(async move {
                    // One for all that were marked before it.
                    if queue.removals.get() == before {
                        queue.decrease().await;
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
        let now = self.now();
        let within = self.rules().appears_within;
        self.change(|book| book.remove(instance, within, now))
    }

    fn due(&self) -> Vec<String> {
        self.read(|book| book.due(self.now()))
    }

    /// One call for all removals that are due, in the queue.
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
                answer.map_err(|error| call_failure("remove an instance", &error))
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
fn gone(instance: &InstanceId, how: Option<Departure>) -> Result<Termination, ProviderError> {
    match how {
        Some(Departure::Deleted | Departure::Removed) => Ok(Termination::Gone),
        Some(Departure::Vanished) | None => {
            let why = format!("no machine of the plugin belongs to `{instance}`");
            Err(ProviderError::new(ErrorClass::NotFound, why))
        }
    }
}

impl PluginQueue {
    /// Requests that a running instance is suspended.
    pub(in crate::fleeting) async fn suspend(
        self: &Rc<Self>,
        instance: &InstanceId,
    ) -> Result<(), ProviderError> {
        self.update(BEFORE).await?;
        let id = match self.state_of(instance)? {
            (_, InstanceState::Suspending | InstanceState::Suspended) => return Ok(()),
            (id, InstanceState::Running) => id,
            (_, _) => return Err(not_now("the instance does not run")),
        };
        let queue = Rc::clone(self);
        let answer = Rc::new(std::cell::RefCell::new(None));
        let noted = Rc::clone(&answer);
        let ids = vec![id];
        self.serial
            .run(async move {
                let called = match queue.group() {
                    Ok(group) => queue.counted(group.suspend(&ids).await),
                    Err(error) => return drop(noted.replace(Some(Err(error)))),
                };
                noted.replace(Some(changed(called, &ids, "suspend an instance")));
            })
            .await;
        answer.take().unwrap_or_else(|| Err(not_now("the suspension was not requested")))
    }

    /// Requests that a suspended instance is resumed.
    pub(in crate::fleeting) async fn resume(
        self: &Rc<Self>,
        instance: &InstanceId,
    ) -> Result<(), ProviderError> {
        self.update(BEFORE).await?;
        let id = match self.state_of(instance)? {
            (_, InstanceState::Running | InstanceState::Resuming) => return Ok(()),
            (id, InstanceState::Suspended) => id,
            (_, InstanceState::Suspending) => return Err(not_now("the instance is still being suspended")),
            (_, _) => return Err(not_now("the instance is not suspended")),
        };
        let ids = vec![id];
        let called = self.counted(self.group()?.resume(&ids).await);
        changed(called, &ids, "resume an instance")
    }

    /// The plugin's complaint about an instance that its last update shows as running.
    pub(in crate::fleeting) async fn heartbeat(
        &self,
        instance: &InstanceId,
    ) -> Result<Option<String>, ProviderError> {
        let Ok((id, InstanceState::Running)) = self.state_of(instance) else { return Ok(None) };
        match self.counted(self.group()?.heartbeat(&id).await) {
            Ok(()) => Ok(None),
            Err(CallError { kind: CallErrorKind::Refused, message }) => {
                Ok(Some(format!("the plugin finds it unhealthy: {message}")))
            }
            Err(error) => Err(call_failure("check an instance", &error)),
        }
    }

    /// The plugin's id of an instance in the last update, and its state there.
    fn state_of(&self, instance: &InstanceId) -> Result<(String, InstanceState), ProviderError> {
        let found = self.read(|book| {
            let machine = book.machines().get(instance).filter(|machine| machine.missed == 0)?;
            Some((machine.id.clone(), machine.state))
        });
        found.ok_or_else(|| not_now("the plugin does not show the instance"))
    }
}

/// An answer about one instance. A plugin that leaves it out did not accept it.
fn changed(called: Result<Vec<String>, CallError>, ids: &[String], what: &str) -> Result<(), ProviderError> {
    match called {
        Ok(accepted) if ids.iter().all(|id| accepted.contains(id)) => Ok(()),
        Ok(_) => Err(not_now(&format!("the plugin did not {what}"))),
        Err(error) => Err(call_failure(what, &error)),
    }
}

fn not_now(why: &str) -> ProviderError {
    ProviderError::new(ErrorClass::Transient, why)
}
