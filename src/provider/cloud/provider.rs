//! A provider out of a cloud's calls.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;

use super::api::{Api, LaunchStatus};
use super::ledger::{Entry, Ledger};
use super::machine::{Handle, Machine, MachineState};
use super::machine_list::MachineList;
use super::offerings::capabilities;
use super::settings::Common;
use super::shared::Shared;
use super::throttle::AccountThrottle;
use crate::core::endpoint::Endpoint;
use crate::core::failure::ErrorClass;
use crate::core::ids::{InstanceId, PoolName};
use crate::core::inventory::{Capabilities, Listed, Listing, Resource, ResourceKind, Resources};
use crate::core::time::Stamp;
use crate::port::finding::Finding;
use crate::port::provider::{Demand, LaunchRequest, Provider, ProviderError};
use crate::provider::BuildContext;

/// How old a look may be for who waits for something: a boot, an end, an answer. A second is little beside a boot in a
/// cloud, and hundreds that wait ask once in it.
const WAITING: Duration = Duration::from_secs(1);
/// How old it may be for an address that was known before: it does not change, and whether anybody answers there is
/// found out by going there.
const SETTLED: Duration = Duration::from_secs(10);
/// How long a list may lack what was made just now: clouds tell of new things late, by seconds as a rule.
const VISIBLE: Duration = Duration::from_secs(20);
/// From one look to the next, for a machine that was accepted and has no place yet.
const PLACING: Duration = Duration::from_millis(500);
/// What was accepted had a place, and lost it before anybody saw it there; or nobody ever tells.
const GONE: (ErrorClass, &str) =
    (ErrorClass::Transient, "the cloud accepted the launch, but the instance disappeared");
const UNHEARD: (ErrorClass, &str) =
    (ErrorClass::Unknown, "the cloud accepted the launch, but its outcome is unknown");
/// When an order that nobody needs any more is removed at last.
const ORDERS_KEPT: Duration = Duration::from_hours(24);

/// One pool's machines in a cloud.
pub struct Cloud<A> {
    context: BuildContext,
    settings: Common,
    /// Asked for several times in each pass, and as large as the table.
    capabilities: Capabilities,
    api: A,
    budget: Rc<AccountThrottle>,
    ledger: Ledger,
    last: Shared<MachineList>,
    /// Instances with machines that were seen, and whose end was asked for: a list without them is no late one.
    ended: RefCell<BTreeSet<InstanceId>>,
}

impl<A> std::fmt::Debug for Cloud<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cloud").field("context", &self.context).finish_non_exhaustive()
    }
}

impl<A: Api> Cloud<A> {
    /// `account`: all pools with the same one share its budget of calls.
    pub fn new(context: &BuildContext, settings: Common, account: &str, api: A) -> Self {
        Self {
            ledger: Ledger::new(&context.state_dir, &context.pool),
            context: context.clone(),
            capabilities: capabilities(&settings.offerings),
            settings,
            api,
            budget: AccountThrottle::of(account),
            last: Shared::default(),
            ended: RefCell::default(),
        }
    }

    fn now(&self) -> Stamp {
        self.context.clock.now()
    }

    /// One call, on the account's budget.
    async fn ask<T>(&self, call: impl Future<Output = Result<T, ProviderError>>) -> Result<T, ProviderError> {
        self.budget.admit(self.now())?;
        self.budget.heard(call.await, self.now())
    }

    /// All machines, as they were at most `age` ago.
    async fn sight(&self, age: Duration) -> Result<Rc<MachineList>, ProviderError> {
        let look = async |begun| {
            let machines = self.ask(self.api.machines()).await?;
            Ok(MachineList { begun, complete: machines.complete, machines: machines.all })
        };
        self.last.within(age, &*self.context.clock, look).await
    }

    fn entry(&self, id: &InstanceId) -> Result<Option<Entry<A::LaunchSpec>>, ProviderError> {
        self.ledger.read(id).map_err(|error| unwritten(id, &error))
    }

    /// What an order says, kept before it is given. A repeat says what was kept.
    fn launch_spec(&self, request: &LaunchRequest) -> Result<Entry<A::LaunchSpec>, ProviderError> {
        let id = &request.instance;
        match self.entry(id)? {
            Some(entry) if entry.token == request.token => return Ok(entry),
            Some(entry) if entry.made.is_some() => {
                let why = format!("`{id}` has been launched with a different token");
                return Err(ProviderError::new(ErrorClass::Invalid, why));
            }
            _ => {}
        }
        let offering = request
            .offering
            .as_ref()
            .and_then(|named| self.settings.offerings.iter().find(|offering| offering.name == *named));
        let offering = offering.ok_or_else(|| {
            let named = request.offering.as_ref().map_or("none", |named| named.as_str());
            let why = format!("the configuration no longer has the offering `{named}`");
            ProviderError::new(ErrorClass::Invalid, why)
        })?;
        let entry = Entry::new(request, self.api.launch_spec(request, offering)?, self.now());
        self.ledger.write(id, &entry).map_err(|error| unwritten(id, &error))?;
        Ok(entry)
    }

    /// Waits until the machine has a place: some clouds say yes first, and learn then that they have none left.
    async fn placed(&self, id: &InstanceId, order: &A::LaunchSpec) -> Result<(), ProviderError> {
        let mut told = self.now();
        loop {
            tokio::time::sleep(PLACING).await;
            // A look that fails says nothing about the machine, nor does one that a machine so young is not in yet.
            let state = match self.sight(PLACING).await {
                Ok(sight) => sight.best(id).map(|machine| machine.state).ok_or(sight.complete),
                Err(_) => Err(false),
            };
            let fate = match state {
                Ok(MachineState::Starting | MachineState::Running | MachineState::Stopped) => {
                    LaunchStatus::Confirmed
                }
                Ok(MachineState::Accepted) => LaunchStatus::Pending,
                Ok(MachineState::Gone | MachineState::Ending) | Err(true) => {
                    self.ask(self.api.launch_status(order)).await.unwrap_or(LaunchStatus::Unknown)
                }
                Err(false) => LaunchStatus::Unknown,
            };
            let now = self.now();
            let (class, why) = match (fate, state) {
                (LaunchStatus::Refused(error), _) => return Err(error),
                (LaunchStatus::Confirmed, Ok(MachineState::Gone | MachineState::Ending)) => GONE,
                (LaunchStatus::Confirmed, _) => return Ok(()),
                (LaunchStatus::Pending, _) => {
                    told = now;
                    continue;
                }
                (LaunchStatus::Unknown, _) if now.since(told) <= VISIBLE => continue,
                (LaunchStatus::Unknown, Err(false)) => UNHEARD,
                (LaunchStatus::Unknown, _) => GONE,
            };
            return Err(ProviderError::new(class, why));
        }
    }

    /// A machine that exists, by what was answered or seen.
    async fn handle(&self, id: &InstanceId) -> Result<Handle, ProviderError> {
        let sight = self.sight(SETTLED).await?;
        let seen = sight.best(id).map(|machine| machine.handle.clone());
        let answered = || Ok::<_, ProviderError>(self.entry(id)?.and_then(|entry| entry.made));
        seen.map_or_else(answered, |seen| Ok(Some(seen)))?.ok_or_else(|| not_found(id))
    }

    /// Was it asked for so lately that a list may not tell of it yet?
    fn is_young(&self, id: &InstanceId, entry: &Entry<A::LaunchSpec>) -> bool {
        self.now().since(entry.requested_at) < VISIBLE && !self.ended.borrow().contains(id)
    }

    fn endpoint_of(&self, machine: &Machine, host_key: String) -> Result<Endpoint, ProviderError> {
        let Common { user, ssh_port, address, .. } = &self.settings;
        if machine.state != MachineState::Running {
            return Err(ProviderError::new(ErrorClass::Transient, "the instance is not running yet"));
        }
        let address = machine.addresses.of(*address).ok_or_else(|| {
            let why = "the instance is running but has no address of the kind set by `address`";
            ProviderError::new(ErrorClass::Transient, why)
        })?;
        let (address, user) = (address.to_owned(), user.clone());
        Ok(Endpoint { address, port: *ssh_port, user, host_key, key: None, jump: None })
    }

    /// Asks for the end of what is not ending yet. What was ending before is no news.
    async fn end(&self, machine: &Machine) -> Result<(), ProviderError> {
        if machine.state == MachineState::Ending {
            return Ok(());
        }
        self.ask(self.api.delete(&machine.handle)).await?;
        self.last.amend(|sight| sight.ends(&machine.handle)).await;
        self.ended.borrow_mut().insert(machine.instance.clone());
        Ok(())
    }
}

fn listed(machine: &Machine, now: Stamp) -> Option<Listed> {
    Some(Listed {
        id: machine.instance.clone(),
        tags: Some(machine.tags.clone()),
        status: machine.status()?,
        created: machine.created(now),
        detail: if machine.state <= MachineState::Stopped {
            machine.why.clone()
        } else {
            Some(machine.what.clone())
        },
        fixed: None,
    })
}

fn unwritten(id: &InstanceId, error: &io::Error) -> ProviderError {
    ProviderError::new(ErrorClass::Transient, format!("cannot store the launch spec of `{id}`: {error}"))
}

fn not_found(id: &InstanceId) -> ProviderError {
    ProviderError::new(ErrorClass::NotFound, format!("no machine of the cloud belongs to `{id}`"))
}

#[async_trait(?Send)]
impl<A: Api> Provider for Cloud<A> {
    async fn launch(&self, request: &LaunchRequest) -> Result<(), ProviderError> {
        let id = &request.instance;
        let mut entry = self.launch_spec(request)?;
        let (None, Some(order)) = (&entry.made, &entry.spec) else { return Ok(()) };
        let answer = match self.ask(self.api.create(order)).await {
            Ok(created) if created.capacity_confirmed => Ok(created.handle),
            Ok(created) => self.placed(id, order).await.map(|()| created.handle),
            Err(error) => Err(error),
        };
        match answer {
            Ok(made) => {
                // The end of a call that the engine gave up would be unknown to it, but not to us.
                entry.made = Some(made);
                entry.spec = None;
                self.ledger.write(id, &entry).map_err(|error| unwritten(id, &error))
            }
            Err(error) => {
                if error.class().is_definite() {
                    self.ledger.forget(id);
                }
                Err(error)
            }
        }
    }

    async fn terminate(&self, id: &InstanceId) -> Result<(), ProviderError> {
        let sight = self.sight(WAITING).await?;
        let living: Vec<&Machine> =
            sight.of(id).filter(|machine| machine.state != MachineState::Gone).collect();
        for machine in &living {
            self.end(machine).await?;
        }
        if !living.is_empty() {
            return Ok(());
        }
        let entry = self.entry(id)?;
        if let Some(young) = entry.filter(|entry| self.is_young(id, entry) && sight.of(id).next().is_none()) {
            // No list tells of it yet. Asked again until one does, or it is no longer young.
            return match &young.made {
                Some(handle) => self.ask(self.api.delete(handle)).await,
                None => Ok(()),
            };
        }
        if !sight.complete {
            return Err(ProviderError::new(
                ErrorClass::Transient,
                "the list of the pool's instances is incomplete",
            ));
        }
        self.ledger.forget(id);
        self.ended.borrow_mut().remove(id);
        Err(not_found(id))
    }

    async fn list(&self, pool: &PoolName) -> Result<Listing, ProviderError> {
        if *pool != self.context.pool {
            return Ok(Listing { begun: self.now(), complete: true, instances: Vec::new() });
        }
        let sight = self.sight(Duration::ZERO).await?;
        let now = self.now();
        let mut machines: Vec<&Machine> = sight.machines.iter().collect();
        // One of an instance's, the furthest from its end.
        machines.sort_by(|a, b| a.instance.cmp(&b.instance).then(b.state.cmp(&a.state)));
        machines.dedup_by(|later, first| later.instance == first.instance);
        if sight.complete {
            self.ledger.sweep(|id| sight.best(id).is_some(), ORDERS_KEPT);
        }
        // A cloud tells for an hour of what has ended: here that ends when all is said of it.
        let matters =
            |machine: &&Machine| machine.state != MachineState::Gone || self.ledger.knows(&machine.instance);
        let instances =
            machines.into_iter().filter(matters).filter_map(|machine| listed(machine, now)).collect();
        Ok(Listing { begun: sight.begun, complete: sight.complete, instances })
    }

    async fn endpoint(&self, id: &InstanceId) -> Result<Endpoint, ProviderError> {
        let runs = |sight: &MachineList| {
            sight.best(id).is_some_and(|machine| machine.state == MachineState::Running)
        };
        let mut sight = self.sight(SETTLED).await?;
        if !runs(&sight) {
            sight = self.sight(WAITING).await?;
        }
        let entry = self.entry(id)?;
        let machine = sight.best(id).filter(|machine| machine.state != MachineState::Gone);
        match (machine, entry) {
            (Some(machine), Some(entry)) => self.endpoint_of(machine, entry.host_key),
            (None, Some(entry)) if self.is_young(id, &entry) && sight.best(id).is_none() => {
                Err(ProviderError::new(ErrorClass::Transient, "the cloud does not list the instance yet"))
            }
            (None, _) if !sight.complete => Err(ProviderError::new(
                ErrorClass::Transient,
                "the list of the pool's instances is incomplete",
            )),
            (Some(_), None) => {
                let why =
                    "its launch spec is missing, and with it the host key: the instance cannot be trusted";
                Err(ProviderError::new(ErrorClass::Invalid, why))
            }
            (None, _) => Err(not_found(id)),
        }
    }

    async fn console(&self, id: &InstanceId) -> Result<String, ProviderError> {
        let handle = self.handle(id).await?;
        self.ask(self.api.console(&handle)).await
    }

    async fn resources(&self, pool: &PoolName) -> Result<Resources, ProviderError> {
        if *pool != self.context.pool {
            return Ok(self.list(pool).await?.into());
        }
        let sight = self.sight(Duration::ZERO).await?;
        let now = self.now();
        let others = self.ask(self.api.resources(now)).await?;
        let living = sight.machines.iter().filter(|machine| machine.state != MachineState::Gone);
        let machines = living.map(|machine| Resource {
            kind: ResourceKind::Instance,
            name: machine.handle.name.clone(),
            instance: Some(machine.instance.clone()),
            tags: Some(machine.tags.clone()),
            created: machine.created(now),
            detail: Some(machine.what.clone()),
        });
        let found = machines.chain(others.all).collect();
        Ok(Resources { begun: sight.begun, complete: sight.complete && others.complete, found })
    }

    async fn delete(&self, resource: &Resource) -> Result<(), ProviderError> {
        match (resource.kind, &resource.instance) {
            (ResourceKind::Instance, Some(id)) => self.terminate(id).await,
            _ => self.ask(self.api.delete_resource(resource)).await,
        }
    }

    async fn examine(&self, demand: &Demand) -> Vec<Finding> {
        self.api.examine(demand).await
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }
}

#[cfg(test)]
mod tests;
