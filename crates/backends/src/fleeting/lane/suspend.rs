//! `Suspend` in the lane, and `Resume` and `Heartbeat` beside it.

use std::rc::Rc;
use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::InstanceId;
use greenroom_ports::provider::ProviderError;

use super::{Lane, failures};
use crate::fleeting::group::{CallError, CallErrorKind, State};

/// The maximum age of an update before an instance is suspended or resumed.
const BEFORE: Duration = Duration::from_secs(2);

impl Lane {
    /// Requests that a running instance is suspended.
    pub(in crate::fleeting) async fn suspend(
        self: &Rc<Self>,
        instance: &InstanceId,
    ) -> Result<(), ProviderError> {
        self.update(BEFORE).await?;
        let id = match self.state_of(instance)? {
            (_, State::Suspending | State::Suspended) => return Ok(()),
            (id, State::Running) => id,
            (_, _) => return Err(not_now("the instance does not run")),
        };
        let (lane, answer) = (Rc::clone(self), Rc::new(std::cell::RefCell::new(None)));
        let (noted, ids) = (Rc::clone(&answer), vec![id]);
        self.serial
            .run(async move {
                let called = match lane.group() {
                    Ok(group) => lane.counted(group.suspend(&ids).await),
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
            (_, State::Running | State::Resuming) => return Ok(()),
            (id, State::Suspended) => id,
            (_, State::Suspending) => return Err(not_now("the instance is still being suspended")),
            (_, _) => return Err(not_now("the instance is not suspended")),
        };
        let ids = vec![id];
        let called = self.counted(self.group()?.resume(&ids).await);
        changed(called, &ids, "resume an instance")
    }

    /// What the plugin finds wrong with an instance that its last update shows as running.
    pub(in crate::fleeting) async fn heartbeat(
        &self,
        instance: &InstanceId,
    ) -> Result<Option<String>, ProviderError> {
        let Ok((id, State::Running)) = self.state_of(instance) else { return Ok(None) };
        match self.counted(self.group()?.heartbeat(&id).await) {
            Ok(()) => Ok(None),
            Err(CallError { kind: CallErrorKind::Refused, message }) => {
                Ok(Some(format!("the plugin finds it unhealthy: {message}")))
            }
            Err(error) => Err(failures::of_call("check an instance", &error)),
        }
    }

    /// The plugin's id of an instance in the last update, and its state there.
    fn state_of(&self, instance: &InstanceId) -> Result<(String, State), ProviderError> {
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
        Err(error) => Err(failures::of_call(what, &error)),
    }
}

fn not_now(why: &str) -> ProviderError {
    ProviderError::new(ErrorClass::Transient, why)
}
