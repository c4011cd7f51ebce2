//! Launches: stored before the call, repeated after an unknown answer, and followed until the machine has capacity.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::InstanceId;
use greenroom_ports::provider::{LaunchRequest, ProviderError};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::{Cloud, StoredLaunch, store_error};
use crate::cloud::api::{Api, LaunchStatus};
use crate::cloud::ledger::LaunchLedgerEntry;
use crate::cloud::machine::MachineState;
use crate::cloud::offerings;

/// The time in which a cloud must find the capacity of an accepted launch. Then the call ends, and the machine may be
/// terminated.
pub(super) const CAPACITY_WITHIN: Duration = Duration::from_mins(5);
/// The machine of a launch that [`Api::create`] accepted is gone, or neither lists nor its status show it in time.
const DISAPPEARED: (ErrorClass, &str) =
    (ErrorClass::Transient, "the cloud accepted the launch, but the instance disappeared");
const UNCONFIRMED: (ErrorClass, &str) =
    (ErrorClass::Unknown, "the cloud accepted the launch, but its outcome is unknown");

thread_local! {
    /// Launches under way, by their files. All pools of a keeper share one thread.
    static LAUNCHES: RefCell<BTreeMap<PathBuf, Weak<Mutex<()>>>> = const { RefCell::new(BTreeMap::new()) };
}

impl<A: Api> Cloud<A> {
    /// Launches an instance, or completes its earlier launch.
    pub(super) async fn launch_instance(&self, request: &LaunchRequest) -> Result<(), ProviderError> {
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

    /// Returns the guard of the one call for this launch, if a second call could make a second machine.
    async fn launch_alone(&self, id: &InstanceId) -> Option<OwnedMutexGuard<()>> {
        if self.api.repeats_find_the_machine() {
            return None;
        }
        let file = self.context.state_dir.join(self.context.pool.as_str()).join(id.as_str());
        let lock = LAUNCHES.with_borrow_mut(|known| {
            known.retain(|_, lock| lock.strong_count() > 0);
            let lock = known.get(&file).and_then(Weak::upgrade).unwrap_or_default();
            known.insert(file, Arc::downgrade(&lock));
            lock
        });
        Some(lock.lock_owned().await)
    }

    /// The launch spec, stored before the call. A repeat uses the stored one.
    async fn launch_spec(&self, request: &LaunchRequest) -> Result<StoredLaunch<A>, ProviderError> {
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
        let entry = LaunchLedgerEntry::new(request, self.api.launch_spec(request, &offering)?, self.now());
        self.ledger.write(id, &entry).await.map_err(|error| store_error(id, &error))?;
        Ok(entry)
    }

    /// The machine of an earlier call for this launch. `None`: the call may be repeated. Until lists can prove that it made
    /// no machine, its outcome is unknown.
    async fn made_before(
        &self,
        id: &InstanceId,
        entry: &mut StoredLaunch<A>,
    ) -> Result<Option<A::MachineId>, ProviderError> {
        if entry.made.is_some() || self.api.repeats_find_the_machine() {
            return Ok(None);
        }
        let unknown = |why: &str| ProviderError::new(ErrorClass::Unknown, why);
        if entry.answered_at.is_none() {
            // That call was interrupted, perhaps a moment ago: its time begins now.
            entry.answered_at = Some(self.now());
            self.ledger.write(id, entry).await.map_err(|error| store_error(id, &error))?;
        }
        let list = self.machine_list(Duration::ZERO).await?;
        if let Some(machine) = list.best(id) {
            return Ok(Some(machine.handle.clone()));
        }
        if list.copies.iter().any(|copy| copy.instance == *id && copy.state != MachineState::Gone) {
            return Err(unknown(
                "the launch had no answer, and the list has several machines that it may have made",
            ));
        }
        if !list.complete {
            return Err(unknown("the launch had no answer, and the list of machines is incomplete"));
        }
        if entry.age(list.begun) < self.api.list_lag() {
            return Err(unknown("the launch had no answer, and its machine may still appear in the list"));
        }
        // An interruption of the next call must not count from this one.
        entry.answered_at = None;
        self.ledger.write(id, entry).await.map_err(|error| store_error(id, &error))?;
        Ok(None)
    }

    /// Calls for a machine, and waits for its capacity.
    async fn create(&self, id: &InstanceId, spec: &A::LaunchSpec) -> Result<A::MachineId, ProviderError> {
        let created = self.call(self.api.create(spec)).await?;
        if !created.capacity_confirmed {
            self.wait_for_capacity(id, spec).await?;
        }
        Ok(created.handle)
    }

    /// Waits until the machine has capacity: some clouds accept a launch before they look for it.
    async fn wait_for_capacity(&self, id: &InstanceId, spec: &A::LaunchSpec) -> Result<(), ProviderError> {
        let begun = self.now();
        let interval = self.api.capacity_interval();
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

    /// Stores that a launch has made a machine.
    async fn store_made(
        &self,
        id: &InstanceId,
        entry: StoredLaunch<A>,
        made: A::MachineId,
    ) -> Result<(), ProviderError> {
        let entry =
            LaunchLedgerEntry { made: Some(made), spec: None, answered_at: Some(self.now()), ..entry };
        // Otherwise, the call is repeated: the machine exists.
        self.ledger.write(id, &entry).await.map_err(|error| unstored_answer(id, &error))
    }
}

fn unstored_answer(id: &InstanceId, error: &io::Error) -> ProviderError {
    let why = format!("the cloud launched `{id}`, which cannot be stored: {error}");
    ProviderError::new(ErrorClass::Unknown, why)
}
