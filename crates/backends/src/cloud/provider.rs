//! A provider that makes a cloud's calls.

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

use super::api::{Api, Disk, Ended, LaunchStatus, Machines};
use super::ledger::{Entry, Ledger};
use super::machine::{Handle, Machine, MachineState};
use super::machine_list::MachineList;
use super::offerings::{self, capabilities};
use super::proof;
use super::settings::Common;
use super::shared::Shared;
use super::throttle::AccountThrottle;

/// The maximum age of a list for a caller that waits for a boot or a termination. A second is short compared with a
/// boot, and hundreds of callers share one list in it.
const WAIT_AGE: Duration = Duration::from_secs(1);
/// The maximum age of a list for an address. Addresses do not change, and a probe shows whether the instance answers.
const ADDRESS_AGE: Duration = Duration::from_secs(10);
/// How long a cloud may look for the capacity of an accepted launch. Then the call ends, and the machine may be
/// terminated.
const CAPACITY_WITHIN: Duration = Duration::from_mins(5);
/// The machine of an accepted launch is gone, or neither lists nor its status show it in time.
const DISAPPEARED: (ErrorClass, &str) =
    (ErrorClass::Transient, "the cloud accepted the launch, but the instance disappeared");
const UNCONFIRMED: (ErrorClass, &str) =
    (ErrorClass::Unknown, "the cloud accepted the launch, but its outcome is unknown");
/// How long the launch spec of an instance that no longer exists is kept.
const SPEC_RETENTION: Duration = Duration::from_hours(24);

/// One pool's machines in a cloud.
pub struct Cloud<A> {
    context: BuildContext,
    settings: Common,
    /// Stored because each pass reads it several times, and it is as large as the table.
    capabilities: Capabilities,
    api: A,
    throttle: Rc<AccountThrottle>,
    calls: Cell<ApiCalls>,
    ledger: Ledger,
    last: Shared<MachineList>,
    /// Instances that were listed and whose termination was requested: if a list lacks them, they are gone.
    ended: RefCell<BTreeSet<InstanceId>>,
    /// The machines of the last list that a launch created: this never changes.
    launched: RefCell<HashSet<Handle>>,
}

impl<A> std::fmt::Debug for Cloud<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cloud").field("context", &self.context).finish_non_exhaustive()
    }
}

impl<A: Api> Cloud<A> {
    /// Pools with the same `account` share its API back-off.
    pub fn new(context: &BuildContext, settings: Common, account: &str, api: A) -> Self {
        Self {
            ledger: Ledger::new(&context.state_dir, &context.pool),
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
            last: Shared::default(),
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
    async fn machine_list(&self, age: Duration) -> Result<Rc<MachineList>, ProviderError> {
        let list = async |begun| {
            let listed = self.call(self.api.machines()).await?;
            let (machines, copies): (Vec<Machine>, _) =
                listed.all.into_iter().partition(|machine| self.is_launched(machine));
            *self.launched.borrow_mut() = machines.iter().map(|machine| machine.handle.clone()).collect();
            let Machines { complete, location, .. } = listed;
            Ok(MachineList { begun, complete, location, machines, copies })
        };
        self.last.within(age, &*self.context.clock, list).await
    }

    /// True if a launch of Greenroom created the machine.
    fn is_launched(&self, machine: &Machine) -> bool {
        if self.launched.borrow().contains(&machine.handle) {
            return true;
        }
        // Without a legible launch spec, the token decides.
        let entry = self.ledger.read::<A::LaunchSpec>(&machine.instance).unwrap_or_default();
        let shown = |token: &str| self.api.shown_token(&machine.tags.owner, token);
        proof::is_launched(machine, entry.as_ref(), shown)
    }

    /// True if a disk belongs to a machine that a launch created: the one that uses it, or the one that had it.
    fn is_of_launched(&self, disk: &Disk, list: &MachineList) -> bool {
        let recorded = || {
            let of = |id: &InstanceId| self.ledger.disks(id).contains(&disk.resource.name);
            disk.resource.instance.as_ref().is_some_and(of)
        };
        if self.api.is_of_launch(&disk.resource) {
            return true;
        }
        let uses = |handle: &Handle| list.machines.iter().any(|machine| machine.handle == *handle);
        disk.attached.as_ref().is_some_and(uses) || recorded()
    }

    fn entry(&self, id: &InstanceId) -> Result<Option<Entry<A::LaunchSpec>>, ProviderError> {
        self.ledger.read(id).map_err(|error| store_error(id, &error))
    }

    /// The launch spec, stored before the call. A repeat uses the stored one.
    async fn launch_spec(&self, request: &LaunchRequest) -> Result<Entry<A::LaunchSpec>, ProviderError> {
        let id = &request.instance;
        match self.entry(id)? {
            Some(entry) if entry.token == request.token => return Ok(entry),
            Some(entry) if entry.made.is_some() => {
                let why = format!("`{id}` has been launched with a different token");
                return Err(ProviderError::new(ErrorClass::Invalid, why));
            }
            _ => {}
        }
        let offering = offerings::find(&self.settings.offerings, request.offering.as_ref());
        let offering = offering.ok_or_else(|| {
            let named = request.offering.as_ref().map_or("none", |named| named.as_str());
            let why = format!("the configuration no longer has the offering `{named}`");
            ProviderError::new(ErrorClass::Invalid, why)
        })?;
        let entry = Entry::new(request, self.api.launch_spec(request, &offering)?, self.now());
        self.ledger.write(id, &entry).await.map_err(|error| store_error(id, &error))?;
        Ok(entry)
    }

    /// Waits until the machine has capacity: some clouds accept a launch before they look for it.
    async fn wait_for_capacity(&self, id: &InstanceId, spec: &A::LaunchSpec) -> Result<(), ProviderError> {
        let (begun, interval) = (self.now(), self.api.capacity_interval());
        let mut last_report = begun;
        loop {
            tokio::time::sleep(interval).await;
            // A failed list proves nothing about the machine, nor does a list that lacks so new a machine.
            let (state, overdue) = match self.machine_list(interval).await {
                Ok(list) => match list.best(id) {
                    Some(machine) => (Ok(machine.state), self.api.is_overdue(machine)),
                    None => (Err(list.complete), false),
                },
                Err(_) => (Err(false), false),
            };
            let status = match state {
                Ok(MachineState::Starting | MachineState::Running) => LaunchStatus::Confirmed,
                Ok(MachineState::Accepted) if overdue => {
                    self.call(self.api.launch_status(spec)).await.unwrap_or(LaunchStatus::Pending)
                }
                Ok(MachineState::Accepted) => LaunchStatus::Pending,
                // Some clouds keep a refused machine. Any other one that is stopped had capacity.
                Ok(MachineState::Stopped) => match self.call(self.api.launch_status(spec)).await {
                    Ok(status @ (LaunchStatus::Refused(_) | LaunchStatus::Pending)) => status,
                    Ok(LaunchStatus::Confirmed | LaunchStatus::Unknown) | Err(_) => LaunchStatus::Confirmed,
                },
                Ok(MachineState::Gone | MachineState::Ending) | Err(true) => {
                    self.call(self.api.launch_status(spec)).await.unwrap_or(LaunchStatus::Unknown)
                }
                Err(false) => LaunchStatus::Unknown,
            };
            let now = self.now();
            let (class, why) = match (status, state) {
                (LaunchStatus::Refused(error), _) => return Err(error),
                (LaunchStatus::Confirmed, Ok(MachineState::Gone | MachineState::Ending)) => DISAPPEARED,
                (LaunchStatus::Confirmed, _) => return Ok(()),
                (LaunchStatus::Pending, _) if now.since(begun) > CAPACITY_WITHIN => UNCONFIRMED,
                (LaunchStatus::Pending, _) => {
                    last_report = now;
                    continue;
                }
                (LaunchStatus::Unknown, _) if now.since(last_report) <= self.api.list_lag() => continue,
                (LaunchStatus::Unknown, Err(false)) => UNCONFIRMED,
                (LaunchStatus::Unknown, _) => DISAPPEARED,
            };
            return Err(ProviderError::new(class, why));
        }
    }

    /// The machine of an instance, as listed, or as the launch call returned it.
    async fn handle(&self, id: &InstanceId) -> Result<Handle, ProviderError> {
        let listed = self.machine_list(ADDRESS_AGE).await?;
        let seen = listed.best(id).map(|machine| machine.handle.clone());
        let answered = || Ok::<_, ProviderError>(self.entry(id)?.and_then(|entry| entry.made));
        seen.map_or_else(answered, |seen| Ok(Some(seen)))?.ok_or_else(|| not_found(id))
    }

    /// True if the cloud may not show the instance yet.
    fn may_appear(&self, id: &InstanceId, entry: &Entry<A::LaunchSpec>) -> bool {
        entry.age(self.now()) < self.api.list_lag() && !entry.seen && !self.ended.borrow().contains(id)
    }

    /// Notes that the cloud has shown the machine, and its disks: a later list without it proves something.
    async fn note_seen(&self, machine: &Machine, entry: Entry<A::LaunchSpec>) {
        if !entry.seen {
            let disks = machine.disks.clone();
            // On failure, its absence is believed later.
            let _noted = self.ledger.write(&machine.instance, &Entry { seen: true, disks, ..entry }).await;
        }
    }

    async fn endpoint_of(&self, machine: &Machine, host_key: String) -> Result<Endpoint, ProviderError> {
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
        let (address, user) = (address.to_owned(), user.clone());
        let (port, host_key) = (access.port.unwrap_or(*ssh_port), access.host_key.unwrap_or(host_key));
        let forward = access.forward.map(Box::new);
        Ok(Endpoint {
            address,
            port,
            user,
            host_key,
            key: None,
            jump: None,
            forward,
            metadata: machine.metadata,
        })
    }

    /// Drops what is stored for an instance that the cloud no longer shows. The engine decides whether it is gone.
    fn forget(&self, id: &InstanceId) {
        self.ledger.forget(id);
        self.ended.borrow_mut().remove(id);
    }

    /// Requests the termination of a machine that is not ending yet.
    async fn terminate_machine(&self, machine: &Machine) -> Result<Ended, ProviderError> {
        if machine.state == MachineState::Ending {
            return Ok(Ended::Requested);
        }
        let ended = self.call(self.api.end(&machine.handle)).await?;
        self.last.amend(|list| list.mark_ending(&machine.handle)).await;
        self.ended.borrow_mut().insert(machine.instance.clone());
        Ok(ended)
    }

    /// Calls for a machine, and waits for its capacity.
    async fn create(&self, id: &InstanceId, spec: &A::LaunchSpec) -> Result<Handle, ProviderError> {
        let created = self.call(self.api.create(spec)).await?;
        if !created.capacity_confirmed {
            self.wait_for_capacity(id, spec).await?;
        }
        Ok(created.handle)
    }

    /// Stores that a launch has made a machine.
    async fn store_made(
        &self,
        id: &InstanceId,
        entry: Entry<A::LaunchSpec>,
        made: Handle,
    ) -> Result<(), ProviderError> {
        let entry = Entry { made: Some(made), spec: None, answered_at: Some(self.now()), ..entry };
        // Otherwise, the call is repeated: the machine exists.
        self.ledger.write(id, &entry).await.map_err(|error| unstored_answer(id, &error))
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
        by_job: machine.state <= MachineState::Stopped && machine.by_job,
        refused: None,
        static_host: None,
        notice: machine.announced(now),
    })
}

/// The machines that are not gone, as resources.
fn billed(machines: &[Machine], now: Stamp) -> impl Iterator<Item = Resource> {
    let living = machines.iter().filter(|machine| machine.state != MachineState::Gone);
    living.map(move |machine| Resource {
        kind: ResourceKind::Instance,
        name: machine.handle.name.clone(),
        instance: Some(machine.instance.clone()),
        tags: Some(machine.tags.clone()),
        created: machine.created(now),
        detail: Some(machine.what.clone()),
    })
}

fn store_error(id: &InstanceId, error: &io::Error) -> ProviderError {
    ProviderError::new(ErrorClass::Transient, format!("cannot store the launch spec of `{id}`: {error}"))
}

fn unstored_answer(id: &InstanceId, error: &io::Error) -> ProviderError {
    let why = format!("the cloud launched `{id}`, which cannot be stored: {error}");
    ProviderError::new(ErrorClass::Unknown, why)
}

fn not_found(id: &InstanceId) -> ProviderError {
    ProviderError::new(ErrorClass::NotFound, format!("no machine of the cloud belongs to `{id}`"))
}

#[async_trait(?Send)]
impl<A: Api> Provider for Cloud<A> {
    async fn launch(&self, request: &LaunchRequest) -> Result<(), ProviderError> {
        let id = &request.instance;
        let _alone = self.launch_alone(id).await;
        // A refusal removes the file: if there is one, the answer to an earlier call is unknown.
        let repeated = self.ledger.contains(id);
        let mut entry = self.launch_spec(request).await?;
        if repeated && let Some(made) = self.made_before(id, &mut entry).await? {
            return self.store_made(id, entry, made).await;
        }
        let (None, Some(spec)) = (&entry.made, &entry.spec) else { return Ok(()) };
        match self.create(id, spec).await {
            // Stored here, because the engine may have given up this call.
            Ok(made) => self.store_made(id, entry, made).await,
            Err(error) if error.class().created_nothing(repeated) => {
                self.ledger.forget(id);
                Err(error)
            }
            Err(error) => {
                entry.answered_at = Some(self.now());
                // On failure, the time of the request counts.
                let _noted = self.ledger.write(id, &entry).await;
                Err(error)
            }
        }
    }

    async fn terminate(&self, id: &InstanceId) -> Result<Termination, ProviderError> {
        let list = self.machine_list(WAIT_AGE).await?;
        let living: Vec<&Machine> =
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
        let mut machines: Vec<&Machine> = latest.machines.iter().collect();
        // One machine of each instance, the furthest from its end.
        machines.sort_by(|a, b| a.instance.cmp(&b.instance).then(b.state.cmp(&a.state)));
        machines.dedup_by(|later, first| later.instance == first.instance);
        if latest.complete {
            self.ledger.sweep(|id| latest.best(id).is_some(), SPEC_RETENTION, now);
        }
        // A cloud lists terminated machines for an hour. Greenroom drops them once they are reported.
        let matters = |machine: &&Machine| {
            machine.state != MachineState::Gone || self.ledger.contains(&machine.instance)
        };
        let instances =
            machines.into_iter().filter(matters).filter_map(|machine| listed(machine, now)).collect();
        let copies = billed(&latest.copies, now).collect();
        let MachineList { begun, complete, ref location, .. } = *latest;
        Ok(Listing { begun, complete, location: location.clone(), instances, copies })
    }

    async fn endpoint(&self, id: &InstanceId) -> Result<Endpoint, ProviderError> {
        let runs =
            |list: &MachineList| list.best(id).is_some_and(|machine| machine.state == MachineState::Running);
        let mut list = self.machine_list(ADDRESS_AGE).await?;
        if !runs(&list) {
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
        let (own, copied): (Vec<Disk>, Vec<Disk>) = disks
            .all
            .into_iter()
            .partition(|disk| disk.resource.tags.is_none() || self.is_of_launched(disk, &list));
        let resources = |disks: Vec<Disk>| disks.into_iter().map(|disk| disk.resource);
        let found = billed(&list.machines, now).chain(resources(own)).collect();
        let copies = billed(&list.copies, now).chain(resources(copied)).collect();
        let (complete, location) = (list.complete && disks.complete, list.location.clone());
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

mod unanswered;

#[cfg(test)]
mod tests;
