//! The plain port of a plugin under test: each call of the port is one call of the plugin, without a queue or a repeat.
//!
//! The conformance suite judges groups through it. An instance's ID is the plugin's own, and nothing shows which request created it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use async_trait::async_trait;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_core::inventory::{Capabilities, Listed, Listing, Status};
use greenroom_ports::provider::{LaunchRequest, Provider, ProviderError, Termination};
use greenroom_providers::conformance::report::Outcomes;
use greenroom_providers::conformance::verdict::{CheckVerdict, Judged, failed, skipped};

use crate::fleeting::group::{CallError, CallErrorKind, InstanceGroup as _, InstanceState, SeenInstance};
use crate::fleeting::plugin::Plugin;

/// The plain port of a plugin.
pub(super) struct GroupPort {
    make: Box<dyn Fn() -> Plugin>,
    plugin: RefCell<Rc<Plugin>>,
    outcomes: Rc<Outcomes>,
    /// The ID of every instance that a list has had, in this order.
    seen: RefCell<Vec<String>>,
    calls: Cell<u32>,
}

impl GroupPort {
    pub(super) fn new(make: Box<dyn Fn() -> Plugin>, outcomes: Rc<Outcomes>) -> Self {
        let plugin = RefCell::new(Rc::new(make()));
        Self { make, plugin, outcomes, seen: RefCell::default(), calls: Cell::default() }
    }

    pub(super) fn plugin(&self) -> Rc<Plugin> {
        Rc::clone(&self.plugin.borrow())
    }

    /// Kills the plugin. The next call starts it again.
    pub(super) fn kill(&self) {
        self.plugin.replace(Rc::new((self.make)()));
    }

    /// The number of calls so far.
    pub(super) fn calls(&self) -> u32 {
        self.calls.get()
    }

    /// The ID of every instance that a list has had.
    pub(super) fn seen(&self) -> Vec<String> {
        self.seen.borrow().clone()
    }

    /// The result of a call as one of the port. A call without an answer is judged by a check of its own.
    ///
    /// Errors of plugins have no classes: none gets one that a check permits or repeats.
    fn result<T>(&self, call: &str, answer: Result<T, CallError>) -> Result<T, ProviderError> {
        self.calls.set(self.calls.get() + 1);
        answer.map_err(|error| match error.kind {
            CallErrorKind::Unknown => {
                self.outcomes.violate("call-answers", CheckVerdict::Failed(error.message));
                let message = format!("`{call}` has no answer, see `call-answers`");
                ProviderError::new(ErrorClass::Unknown, message)
            }
            CallErrorKind::Refused
            | CallErrorKind::Configuration
            | CallErrorKind::Unsupported
            | CallErrorKind::NotStarted => ProviderError::new(ErrorClass::Denied, error.message),
        })
    }

    /// The answer to a call; anything else ends the check.
    pub(super) fn answer<T>(&self, call: &str, answer: Result<T, CallError>) -> Judged<T> {
        self.result(call, answer).or_else(|error| match error.class() {
            ErrorClass::Unknown => skipped(error.failure.message),
            _ => failed(error.failure.message),
        })
    }

    /// The group's instances that exist. A state that the protocol does not have is a violation.
    async fn existing(&self) -> Result<Vec<SeenInstance>, ProviderError> {
        let all = self.result("Update", self.plugin().update().await)?;
        if let Some((id, number)) = all.iter().find_map(|seen| match seen.state {
            InstanceState::Unknown(number) => Some((&seen.id, number)),
            _ => None,
        }) {
            let came = format!("the state of `{id}` is {number}");
            self.outcomes.violate("list-states", CheckVerdict::Failed(came));
        }
        let all: Vec<SeenInstance> =
            all.into_iter().filter(|seen| seen.state != InstanceState::Deleted).collect();
        let mut seen = self.seen.borrow_mut();
        for one in &all {
            if !seen.contains(&one.id) {
                seen.push(one.id.clone());
            }
        }
        Ok(all)
    }
}

/// True for an instance whose removal has begun.
pub(super) fn is_being_removed(listed: &Listed) -> bool {
    listed.detail.as_deref() == Some(word(InstanceState::Deleting).as_str())
}

/// The protocol's word for a state.
fn word(state: InstanceState) -> String {
    format!("{state:?}").to_lowercase()
}

/// An instance as the port lists it.
fn listed(seen: &SeenInstance) -> Listed {
    Listed {
        id: InstanceId::new(&seen.id),
        tags: None,
        status: match seen.state {
            InstanceState::Running => Status::Running,
            InstanceState::Suspended => Status::Suspended,
            InstanceState::Deleting | InstanceState::Deleted | InstanceState::Timeout => Status::Stopping,
            InstanceState::Creating
            | InstanceState::Suspending
            | InstanceState::Resuming
            | InstanceState::Unknown(_) => Status::Starting,
        },
        created: None,
        detail: Some(word(seen.state)),
        by_job: false,
        refused: None,
        static_host: None,
        notice: None,
    }
}

/// The error of a call that the plugin has answered with nothing.
fn none_accepted(came: &str) -> ProviderError {
    ProviderError::new(ErrorClass::Denied, came)
}

/// The error of a call that plugins do not have, or that needs more than the port: the kit logs in by itself.
fn other_call(call: &str) -> ProviderError {
    ProviderError::new(ErrorClass::Invalid, format!("the plain port of a plugin has no `{call}`"))
}

#[async_trait(?Send)]
impl Provider for GroupPort {
    /// Requests one more instance, of any kind and with any key: a group has one of each.
    async fn launch(&self, _request: &LaunchRequest) -> Result<(), ProviderError> {
        match self.result("Increase", self.plugin().increase(1).await)? {
            0 => Err(none_accepted("it accepted no instance")),
            _ => Ok(()),
        }
    }

    async fn terminate(&self, id: &InstanceId) -> Result<Termination, ProviderError> {
        let accepted = self.result("Decrease", self.plugin().decrease(&[id.to_string()]).await)?;
        if accepted.is_empty() {
            return Err(none_accepted("it accepted no removal"));
        }
        Ok(Termination::Requested)
    }

    async fn suspend(&self, id: &InstanceId) -> Result<(), ProviderError> {
        let accepted = self.result("Suspend", self.plugin().suspend(&[id.to_string()]).await)?;
        if accepted.is_empty() { Err(none_accepted("`Suspend` accepted no instance")) } else { Ok(()) }
    }

    async fn resume(&self, id: &InstanceId) -> Result<(), ProviderError> {
        let accepted = self.result("Resume", self.plugin().resume(&[id.to_string()]).await)?;
        if accepted.is_empty() { Err(none_accepted("`Resume` accepted no instance")) } else { Ok(()) }
    }

    async fn list(&self, _pool: &PoolName) -> Result<Listing, ProviderError> {
        let mut instances: Vec<Listed> = self.existing().await?.iter().map(listed).collect();
        instances.sort_by(|one, other| one.id.cmp(&other.id));
        // The suite does not read when a list began.
        Ok(Listing { instances, ..Listing::empty((0, 0, 0, 0).into(), None) })
    }

    async fn endpoint(&self, _id: &InstanceId) -> Result<Endpoint, ProviderError> {
        Err(other_call("endpoint"))
    }

    async fn console(&self, _id: &InstanceId) -> Result<String, ProviderError> {
        Err(other_call("console"))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { idempotent_launch: false, ..Capabilities::default() }
    }
}
