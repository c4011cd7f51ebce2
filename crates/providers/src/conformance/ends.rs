//! Promises of terminations: they are repeatable, end one instance and no other, and find nothing that does not exist.

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_core::inventory::{Resource, ResourceKind, Status};
use greenroom_core::time::Pretty;
use greenroom_ports::provider::Termination;

use super::subject::{Subject, is_alive};
use super::verdict::{Judged, failed};

/// The result of one call of `terminate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TerminateStep {
    Stopping,
    Gone,
    NotFound,
}

/// A call for one instance or resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallForOne {
    Terminate,
    Endpoint,
    Console,
    Delete,
}

impl CallForOne {
    pub fn name(self) -> &'static str {
        match self {
            Self::Terminate => "terminate",
            Self::Endpoint => "endpoint",
            Self::Console => "console",
            Self::Delete => "delete",
        }
    }
}

impl Subject<'_> {
    /// One call of `terminate`. Lists may lack the instance from now on.
    pub async fn terminate(&self, id: &InstanceId) -> Judged<TerminateStep> {
        self.watch.forget(id);
        match self.provider.terminate(id).await {
            Ok(Termination::Requested) => Ok(TerminateStep::Stopping),
            Ok(Termination::Gone) => Ok(TerminateStep::Gone),
            Err(error) if *error.class() == ErrorClass::NotFound => Ok(TerminateStep::NotFound),
            Err(error) if self.may_pass(&error) => Ok(TerminateStep::Stopping),
            Err(error) => self.refused(&error),
        }
    }

    /// Terminates until the instance is gone or not found.
    pub async fn goes(&self, id: &InstanceId) -> Judged {
        let gone = self.poll(self.limits.end, async || {
            let step = self.terminate(id).await?;
            Ok((step != TerminateStep::Stopping).then_some(()))
        });
        match gone.await? {
            Some(()) => Ok(()),
            None => failed(format!("`{id}` was not gone {} after its termination", Pretty(self.limits.end))),
        }
    }

    /// Terminates an instance that exists, until it is gone.
    pub async fn ends(&self, id: &InstanceId) -> Judged {
        match self.terminate(id).await? {
            TerminateStep::Stopping => self.goes(id).await,
            TerminateStep::Gone => Ok(()),
            TerminateStep::NotFound => failed(format!("`terminate` does not find `{id}`, which runs")),
        }
    }

    /// A termination of what is gone is repeatable.
    pub async fn stays_gone(&self, id: &InstanceId) -> Judged {
        match self.terminate(id).await? {
            TerminateStep::Gone | TerminateStep::NotFound => Ok(()),
            TerminateStep::Stopping => failed("`terminate` answered `gone` first, and then `stopping`"),
        }
    }

    /// No list has what is gone as running.
    pub async fn is_not_running(&self, pool: &PoolName, id: &InstanceId) -> Judged {
        match self.entry(pool, id).await? {
            Some(listed) if is_alive(&listed) => failed(format!("a list has `{id}` as running")),
            _ => Ok(()),
        }
    }

    /// Waits until no list has an instance that was removed.
    pub async fn is_unlisted(&self, pool: &PoolName, id: &InstanceId) -> Judged {
        let unlisted =
            self.poll(self.limits.end, async || Ok(self.entry(pool, id).await?.is_none().then_some(())));
        match unlisted.await? {
            Some(()) => Ok(()),
            None => failed(format!("`{id}` is still listed after {}", Pretty(self.limits.end))),
        }
    }

    /// Instances that were not terminated are still there.
    pub async fn spares<'a>(&self, others: impl Iterator<Item = (&'a PoolName, &'a InstanceId)>) -> Judged {
        for (pool, id) in others {
            match self.entry(pool, id).await? {
                Some(listed) if listed.status != Status::Stopping => {}
                Some(listed) => return failed(format!("`{id}` is {}, too", self.state(Some(&listed)))),
                None => return failed(format!("`{id}` is gone, too")),
            }
        }
        Ok(())
    }

    /// A call for something that does not exist is refused as not found. The ID may be impossible in a program's cloud, and an
    /// adapter may answer that what does not exist is gone.
    pub async fn refuses_unknown(&self, call: CallForOne, id: &InstanceId) -> Judged {
        let answer = match call {
            CallForOne::Terminate => match self.provider.terminate(id).await {
                Ok(Termination::Gone) if self.is_adapter() => return Ok(()),
                Ok(Termination::Gone) => Ok(" `gone`"),
                Ok(Termination::Requested) => Ok(" `stopping`"),
                Err(error) => Err(error),
            },
            CallForOne::Endpoint => self.provider.endpoint(id).await.map(|_| " an address"),
            CallForOne::Console => self.provider.console(id).await.map(|_| " a text"),
            CallForOne::Delete => self.provider.delete(&volume(id)).await.map(|()| " that it is deleted"),
        };
        match answer {
            Ok(came) => failed(format!("`{}` of `{id}`, which does not exist, answered{came}", call.name())),
            Err(error) => match error.class() {
                ErrorClass::NotFound => Ok(()),
                ErrorClass::Invalid if !self.is_adapter() => Ok(()),
                _ => self.refused(&error),
            },
        }
    }
}

/// A volume of this name.
fn volume(id: &InstanceId) -> Resource {
    Resource {
        kind: ResourceKind::Volume,
        name: id.to_string(),
        instance: None,
        tags: None,
        created: None,
        detail: None,
    }
}
