//! A launch without an answer, where a repeated call would make a second machine.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::InstanceId;
use greenroom_ports::provider::ProviderError;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::super::api::Api;
use super::super::ledger::Entry;
use super::super::machine::{Handle, MachineState};
use super::{Cloud, store_error};

thread_local! {
    /// Launches under way, by their files. All pools of a keeper share one thread.
    static LAUNCHES: RefCell<BTreeMap<PathBuf, Weak<Mutex<()>>>> = const { RefCell::new(BTreeMap::new()) };
}

impl<A: Api> Cloud<A> {
    /// Held by the one call for this launch, if a second call could make a second machine.
    pub(super) async fn launch_alone(&self, id: &InstanceId) -> Option<OwnedMutexGuard<()>> {
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

    /// The machine of an earlier call for this launch. `None`: the call may be repeated. Until lists can prove that it made
    /// no machine, its outcome is unknown.
    pub(super) async fn made_before(
        &self,
        id: &InstanceId,
        entry: &mut Entry<A::LaunchSpec>,
    ) -> Result<Option<Handle>, ProviderError> {
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
}
