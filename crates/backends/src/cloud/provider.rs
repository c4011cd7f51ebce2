//! [`Cloud`], the provider that makes a cloud's calls through its [`Api`].

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashSet};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_core::inventory::{Capabilities, Listed, Listing, Notice, Resource, ResourceKind, Resources};
use greenroom_core::metadata::MetadataAnswers;
use greenroom_core::report::ApiCalls;
use greenroom_core::time::Stamp;
use greenroom_ports::finding::Finding;
use greenroom_ports::provider::{Demand, LaunchRequest, Provider, ProviderError, Termination};
use greenroom_providers::registration::BuildContext;

use super::api::{Api, Disk, Ended, Machines};
use super::ledger::{LaunchLedger, LaunchLedgerEntry, is_launched};
use super::machine::{Machine, MachineId, MachineList, MachineState};
use super::offerings::capabilities;
use super::settings::Common;
use super::shared::SharedAnswer;
use super::throttle::AccountThrottle;

mod launch;
#[cfg(test)]
mod tests;

/// The maximum age of a list for a caller that waits for a boot or a termination. A second is short compared with a
/// boot, and hundreds of callers share one list in it.
const WAIT_AGE: Duration = Duration::from_secs(1);
/// The maximum age of a list for an address. Addresses do not change, and a probe shows whether the instance answers.
const ADDRESS_AGE: Duration = Duration::from_secs(10);
/// The time for which the launch spec of an instance that no longer exists is kept.
const SPEC_RETENTION: Duration = Duration::from_hours(24);

/// The entry of a launch in the ledger.
type StoredLaunch<A> = LaunchLedgerEntry<<A as Api>::LaunchSpec, <A as Api>::MachineId>;

/// The [`Provider`] of one pool whose machines are in a cloud.
pub struct Cloud<A: Api> {
    context: BuildContext,
    settings: Common,
    /// Stored because each pass reads it several times, and it is as large as the table.
    capabilities: Capabilities,
    api: A,
    throttle: Rc<AccountThrottle>,
    calls: Cell<ApiCalls>,
    ledger: LaunchLedger,
    last: SharedAnswer<MachineList<A::MachineId>>,
    /// Instances that were listed and whose termination was requested: if a list lacks them, they are gone.
    ended: RefCell<BTreeSet<InstanceId>>,
    /// The machines of the last list that a launch created, by [`is_launched`]: this never changes.
    launched: RefCell<HashSet<A::MachineId>>,
}

impl<A: Api> std::fmt::Debug for Cloud<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cloud").field("context", &self.context).finish_non_exhaustive()
    }
}

impl<A: Api> Cloud<A> {
    /// The provider of a pool. Pools with the same `account` share its API back-off.
    pub fn new(context: &BuildContext, settings: Common, account: &str, api: A) -> Self {
        Self {
            ledger: LaunchLedger::new(&context.state_dir, &context.pool),
            context: context.clone(),
            capabilities: Capabilities {
                notice_interval: Some(api.notice_interval()),
                orders: api.makes_orders(),
                ..capabilities(&settings.offerings)
            },
            settings,
            api,
            throttle: AccountThrottle::of(account),
            calls: Cell::default(),
            last: SharedAnswer::default(),
            ended: RefCell::default(),
            launched: RefCell::default(),
        }
    }

    fn now(&self) -> Stamp {
        self.context.clock.now()
    }

    /// Makes one call, unless the account is backing off.
    async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, ProviderError>>,
    ) -> Result<T, ProviderError> {
        let throttle =
            || self.api.account().map_or_else(|| Rc::clone(&self.throttle), |of| AccountThrottle::of(&of));
        let answer = match throttle().admit(self.now()) {
            // The first answer may show the account.
            Ok(()) => {
                let answer = call.await;
                throttle().record(answer, self.now())
            }
            Err(postponed) => {
                self.count(|calls| &mut calls.postponed);
                return Err(postponed);
            }
        };
        self.count(match &answer {
            Ok(_) => |calls| &mut calls.ok,
            Err(error) if matches!(error.class(), ErrorClass::Throttled { .. }) => {
                |calls| &mut calls.throttled
            }
            Err(_) => |calls| &mut calls.failed,
        });
        answer
    }

    fn count(&self, result: fn(&mut ApiCalls) -> &mut u64) {
        let mut calls = self.calls.get();
        *result(&mut calls) += 1;
        self.calls.set(calls);
    }

    /// All machines, from a list at most `age` old.
    async fn machine_list(&self, age: Duration) -> Result<Rc<MachineList<A::MachineId>>, ProviderError> {
        let list = async |begun| {
            let listed = self.call(self.api.machines()).await?;
            let (machines, copies): (Vec<Machine<A::MachineId>>, _) =
                listed.all.into_iter().partition(|machine| self.is_launched(machine));
            // Replaced as a whole, so that machines that are no longer listed do not accumulate.
            *self.launched.borrow_mut() = machines.iter().map(|machine| machine.handle.clone()).collect();
            let Machines { complete, location, .. } = listed;
            Ok(MachineList { begun, complete, location, machines, copies })
        };
        self.last.within(age, &*self.context.clock, list).await
    }

    /// True if a launch of Greenroom created the machine.
    fn is_launched(&self, machine: &Machine<A::MachineId>) -> bool {
        if self.launched.borrow().contains(&machine.handle) {
            return true;
        }
        // Without a legible launch spec, the token decides.
        let entry = self.ledger.read::<A::LaunchSpec, A::MachineId>(&machine.instance).unwrap_or_default();
        let shown = |token: &str| self.api.shown_token(&machine.tags.owner, token);
        is_launched(machine, entry.as_ref(), shown)
    }

    /// True if a disk belongs to a machine that a launch created: the one that uses it, or the one that had it.
    fn is_of_launched(&self, disk: &Disk<A::MachineId>, list: &MachineList<A::MachineId>) -> bool {
        let recorded = || {
            let of = |id: &InstanceId| self.ledger.disks(id).contains(&disk.resource.name);
            disk.resource.instance.as_ref().is_some_and(of)
        };
        if self.api.is_of_launch(&disk.resource) {
            return true;
        }
        let uses = |handle: &A::MachineId| list.machines.iter().any(|machine| machine.handle == *handle);
        disk.attached.as_ref().is_some_and(uses) || recorded()
    }

    fn entry(&self, id: &InstanceId) -> Result<Option<StoredLaunch<A>>, ProviderError> {
        self.ledger.read(id).map_err(|error| store_error(id, &error))
    }

    /// The machine of an instance, as listed, or as the launch call returned it.
    async fn handle(&self, id: &InstanceId) -> Result<A::MachineId, ProviderError> {
        let listed = self.machine_list(ADDRESS_AGE).await?;
        let seen = listed.best(id).map(|machine| machine.handle.clone());
        let answered = || Ok::<_, ProviderError>(self.entry(id)?.and_then(|entry| entry.made));
        seen.map_or_else(answered, |seen| Ok(Some(seen)))?.ok_or_else(|| not_found(id))
    }

    /// True if the cloud may not show the instance yet.
    fn may_appear(&self, id: &InstanceId, entry: &StoredLaunch<A>) -> bool {
        entry.age(self.now()) < self.api.list_lag() && !entry.seen && !self.ended.borrow().contains(id)
    }

    /// Notes that the cloud has shown the machine, and its disks: a later list without it proves something.
    async fn note_seen(&self, machine: &Machine<A::MachineId>, entry: StoredLaunch<A>) {
        if !entry.seen {
            let disks = machine.disks.clone();
            // On failure, its absence is believed later.
            let _noted =
                self.ledger.write(&machine.instance, &LaunchLedgerEntry { seen: true, disks, ..entry }).await;
        }
    }

    async fn endpoint_of(
        &self,
        machine: &Machine<A::MachineId>,
        host_key: String,
    ) -> Result<Endpoint, ProviderError> {
        let Common { user, ssh_port, address, .. } = &self.settings;
        if let Some(failure) = &machine.refused {
            return Err(ProviderError { failure: failure.clone() });
        }
        if machine.state != MachineState::Running {
            return Err(ProviderError::new(ErrorClass::Transient, "the instance is not running yet"));
        }
        let access = self.api.access(machine).await?;
        let address = access.address.as_deref().or(machine.addresses.of(*address)).ok_or_else(|| {
            let why = "the instance is running but has no address of the kind set by `address`";
            ProviderError::new(ErrorClass::Transient, why)
        })?;
        Ok(Endpoint {
            address: address.to_owned(),
            port: access.port.unwrap_or(*ssh_port),
            user: user.clone(),
            host_key: access.host_key.unwrap_or(host_key),
            key: None,
            jump: None,
            forward: access.forward.map(Box::new),
            metadata: machine.metadata,
        })
    }

    /// Drops what is stored for an instance that the cloud no longer shows. The engine decides whether it is gone.
    fn forget(&self, id: &InstanceId) {
        self.ledger.forget(id);
        self.ended.borrow_mut().remove(id);
    }

    /// Requests the termination of a machine that is not ending yet.
    async fn terminate_machine(&self, machine: &Machine<A::MachineId>) -> Result<Ended, ProviderError> {
        if machine.state == MachineState::Ending {
            return Ok(Ended::Requested);
        }
        let ended = self.call(self.api.end(&machine.handle)).await?;
        // Other callers must not see the machine as running in the shared list, which was fetched before this call.
        self.last.amend(|list| list.mark_ending(&machine.handle)).await;
        self.ended.borrow_mut().insert(machine.instance.clone());
        Ok(ended)
    }
}

fn listed<Id>(machine: &Machine<Id>, now: Stamp) -> Option<Listed> {
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
        by_job: machine.state <= MachineState::Stopped && machine.by_job,
        refused: None,
        static_host: None,
        notice: machine.announced(now),
    })
}

/// The machines that are not gone, as resources.
fn billed<Id: MachineId>(machines: &[Machine<Id>], now: Stamp) -> impl Iterator<Item = Resource> {
    let living = machines.iter().filter(|machine| machine.state != MachineState::Gone);
    living.map(move |machine| Resource {
        kind: ResourceKind::Instance,
        name: machine.handle.name().to_owned(),
        instance: Some(machine.instance.clone()),
        tags: Some(machine.tags.clone()),
        created: machine.created(now),
        detail: Some(machine.what.clone()),
    })
}

fn store_error(id: &InstanceId, error: &io::Error) -> ProviderError {
    ProviderError::new(ErrorClass::Transient, format!("cannot store the launch spec of `{id}`: {error}"))
}

fn not_found(id: &InstanceId) -> ProviderError {
    ProviderError::new(ErrorClass::NotFound, format!("no machine of the cloud belongs to `{id}`"))
}

#[async_trait(?Send)]
impl<A: Api> Provider for Cloud<A> {
    async fn launch(&self, request: &LaunchRequest) -> Result<(), ProviderError> {
        self.launch_instance(request).await
    }

    async fn terminate(&self, id: &InstanceId) -> Result<Termination, ProviderError> {
        let list = self.machine_list(WAIT_AGE).await?;
        let living: Vec<&Machine<A::MachineId>> =
            list.of(id).filter(|machine| machine.state != MachineState::Gone).collect();
        let mut requested = false;
        for machine in &living {
            requested |= self.terminate_machine(machine).await? == Ended::Requested;
        }
        if requested {
            return Ok(Termination::Requested);
        }
        if list.best(id).is_some() {
            self.forget(id);
            return Ok(Termination::Gone);
        }
        let entry = self.entry(id)?;
        if let Some(young) = entry.filter(|entry| self.may_appear(id, entry)) {
            // No list has it yet. The engine repeats the call until one has it, or none can show it any more.
            let Some(handle) = &young.made else { return Ok(Termination::Requested) };
            return match self.call(self.api.delete(handle)).await {
                // EC2 denies the ID of a machine that it is only about to show.
                Err(error) if *error.class() != ErrorClass::NotFound => Err(error),
                _ => Ok(Termination::Requested),
            };
        }
        if !list.complete {
            return Err(ProviderError::new(
                ErrorClass::Transient,
                "the list of the pool's instances is incomplete",
            ));
        }
        self.forget(id);
        Err(not_found(id))
    }

    async fn list(&self, pool: &PoolName) -> Result<Listing, ProviderError> {
        if *pool != self.context.pool {
            return Ok(Listing::empty(self.now(), None));
        }
        let latest = self.machine_list(Duration::ZERO).await?;
        let now = self.now();
        let mut machines: Vec<&Machine<A::MachineId>> = latest.machines.iter().collect();
        // One machine of each instance, the furthest from its end.
        machines.sort_by(|a, b| a.instance.cmp(&b.instance).then(b.state.cmp(&a.state)));
        machines.dedup_by(|later, first| later.instance == first.instance);
        if latest.complete {
            // An incomplete list proves no absence.
            self.ledger.sweep(|id| latest.best(id).is_some(), SPEC_RETENTION, now);
        }
        // A cloud lists terminated machines for an hour. Greenroom drops them once they are reported.
        let matters = |machine: &&Machine<A::MachineId>| {
            machine.state != MachineState::Gone || self.ledger.contains(&machine.instance)
        };
        let instances =
            machines.into_iter().filter(matters).filter_map(|machine| listed(machine, now)).collect();
        let copies = billed(&latest.copies, now).collect();
        let MachineList { begun, complete, ref location, .. } = *latest;
        Ok(Listing { begun, complete, location: location.clone(), instances, copies })
    }

    async fn endpoint(&self, id: &InstanceId) -> Result<Endpoint, ProviderError> {
        let runs = |list: &MachineList<A::MachineId>| {
            list.best(id).is_some_and(|machine| machine.state == MachineState::Running)
        };
        let mut list = self.machine_list(ADDRESS_AGE).await?;
        if !runs(&list) {
            // The older list may date from before the boot. For a running machine it suffices: addresses do not change.
            list = self.machine_list(WAIT_AGE).await?;
        }
        let entry = self.entry(id)?;
        let machine = list.best(id).filter(|machine| machine.state != MachineState::Gone);
        match (machine, entry) {
            (Some(machine), Some(entry)) => {
                let endpoint = self.endpoint_of(machine, entry.host_key.clone()).await?;
                self.note_seen(machine, entry).await;
                Ok(endpoint)
            }
            (None, Some(entry)) if self.may_appear(id, &entry) && list.best(id).is_none() => {
                Err(ProviderError::new(ErrorClass::Transient, "the cloud does not list the instance yet"))
            }
            (None, _) if !list.complete => Err(ProviderError::new(
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
        self.call(self.api.console(&handle)).await
    }

    async fn resources(&self, pool: &PoolName) -> Result<Resources, ProviderError> {
        if *pool != self.context.pool {
            return Ok(self.list(pool).await?.into());
        }
        let list = self.machine_list(Duration::ZERO).await?;
        let now = self.now();
        let disks = self.call(self.api.disks(now)).await?;
        let (own, copied): (Vec<Disk<A::MachineId>>, Vec<Disk<A::MachineId>>) = disks
            .all
            .into_iter()
            .partition(|disk| disk.resource.tags.is_none() || self.is_of_launched(disk, &list));
        let resources = |disks: Vec<Disk<A::MachineId>>| disks.into_iter().map(|disk| disk.resource);
        let found = billed(&list.machines, now).chain(resources(own)).collect();
        let copies = billed(&list.copies, now).chain(resources(copied)).collect();
        let complete = list.complete && disks.complete;
        let location = list.location.clone();
        Ok(Resources { begun: list.begun, complete, location, found, copies })
    }

    async fn delete(&self, resource: &Resource) -> Result<(), ProviderError> {
        match (resource.kind, &resource.instance) {
            (ResourceKind::Instance, Some(id)) => self.terminate(id).await?.of_resource(&resource.name),
            _ => self.call(self.api.delete_resource(resource)).await,
        }
    }

    async fn examine(&self, demand: &Demand) -> Vec<Finding> {
        self.api.examine(demand).await
    }

    fn announced(&self, answers: &MetadataAnswers) -> Option<Notice> {
        let text = self.api.announced(answers)?.to_owned();
        Some(Notice { text, at: None })
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn api_calls(&self) -> Option<ApiCalls> {
        Some(self.calls.get())
    }
}
