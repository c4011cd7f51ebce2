//! The observations of a pass.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::attempt::AttemptSeen;
use crate::failure::{ErrorClass, Failure};
use crate::ids::{AttemptName, Generation, InstanceId, OwnerId, PoolName};
use crate::inventory::{Capabilities, Listing, Notice};
use crate::obstacle::Lasting;
use crate::pool::PoolState;
use crate::time::{ManagerId, Stamp};

/// Everything that is not recorded. May be stale or incomplete, and is marked as such.
#[derive(Debug, Clone)]
pub struct Observed {
    /// The last list, or why it failed.
    pub listing: Result<Listing, Failure>,
    /// Announcements of the metadata services of instances, as the instances report it.
    pub announced: BTreeMap<InstanceId, Notice>,
    /// Time at which `endpoint(id)` last answered *not found*. Each complete list since lacks the instance, and is of its
    /// location.
    pub denied: BTreeMap<InstanceId, Stamp>,
    /// Time at which an unrecorded instance was first seen, for providers that report no creation time.
    pub first_seen: BTreeMap<InstanceId, Stamp>,
    /// The manager whose attempts these are. About those of other managers, a pass knows only what is recorded.
    pub manager: ManagerId,
    /// The manager's attempt directories of this pool, read at [`attempts_at`](Self::attempts_at).
    pub attempts: BTreeMap<AttemptName, AttemptSeen>,
    pub attempts_at: Stamp,
    /// Attempts that are gone, although builds of theirs are left on the runner host.
    pub orphaned_builds: BTreeSet<AttemptName>,
    pub capabilities: Capabilities,
    pub owner: OwnerId,
    /// The problem of a state directory that was copied or moved.
    pub moved: Option<String>,
    /// Generations that began in this directory.
    pub generations: BTreeSet<Generation>,
    /// The generation that may launch; `None`: this pass launches nothing (`reap`).
    pub launching: Option<Fresh>,
    /// The reason why the state directory cannot take the records of launches: then [`launching`](Self::launching) is `None`.
    pub unrecordable: Option<String>,
    /// Calls about an instance that keep failing.
    pub failing_calls: BTreeMap<InstanceId, FailingCall>,
    /// Times until which calls that succeeded are not repeated: what it has requested takes its time.
    pub awaited: BTreeMap<InstanceId, Stamp>,
    /// Time of this process's last successful call about each instance.
    pub healthy: BTreeMap<InstanceId, Stamp>,
    /// Time at which this process last got no response from each ready instance.
    pub unhealthy: BTreeMap<InstanceId, Stamp>,
    /// The reasons why instances are not reached.
    pub obstacles: BTreeMap<InstanceId, Lasting>,
    /// Instances with an effect under way in this process.
    pub busy: BTreeSet<InstanceId>,
    /// The pulls of this process in advance; `None`: this pass begins none (`reap`).
    pub pulls: Option<Pulls>,
}

/// Pulls in advance.
#[derive(Debug, Clone, Default)]
pub struct Pulls {
    pub under_way: BTreeMap<InstanceId, Arc<str>>,
    /// Pulls that failed last.
    pub failing: BTreeMap<(InstanceId, Arc<str>), FailingCall>,
}

/// Names for new instances: the ids of [`InstanceId::launched`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fresh {
    pub pool: PoolName,
    pub generation: Generation,
}

/// A call that failed, and when it may be tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailingCall {
    pub failures: u32,
    pub failure: Failure,
    pub until: Stamp,
}

impl Observed {
    /// True if an attempt of this manager is judged by these directories. 0: one that was recorded without a manager.
    pub(super) fn is_own(&self, manager: ManagerId) -> bool {
        manager == self.manager || manager == ManagerId::default()
    }

    /// No observations: decisions follow from the record alone.
    pub(super) fn nothing(recorded: &PoolState, now: Stamp) -> Self {
        let launches = !recorded.instances.values().any(|i| i.is_static());
        Self {
            listing: Err(Failure { class: ErrorClass::Unknown, message: "not asked".to_owned() }),
            announced: BTreeMap::new(),
            denied: BTreeMap::new(),
            first_seen: BTreeMap::new(),
            manager: now.manager,
            attempts: BTreeMap::new(),
            attempts_at: now,
            orphaned_builds: BTreeSet::new(),
            capabilities: Capabilities { launches, ..Capabilities::default() },
            owner: OwnerId::new("nobody"),
            moved: None,
            generations: BTreeSet::new(),
            launching: Some(Fresh { pool: PoolName::new("pool"), generation: Generation::new("none") }),
            unrecordable: None,
            failing_calls: BTreeMap::new(),
            awaited: BTreeMap::new(),
            healthy: BTreeMap::new(),
            unhealthy: BTreeMap::new(),
            obstacles: BTreeMap::new(),
            busy: BTreeSet::new(),
            pulls: None,
        }
    }

    /// True if a call about this instance may be made now.
    pub(super) fn is_free(&self, id: &InstanceId, now: Stamp) -> bool {
        self.calls().are_free(id, now)
    }

    /// Time at which a call about this instance may be made again, if not now.
    pub(super) fn paused_until(&self, id: &InstanceId, now: Stamp) -> Option<Stamp> {
        self.calls().paused_until(id, now)
    }

    fn calls(&self) -> InstanceCalls<'_> {
        InstanceCalls { busy: &self.busy, failing: &self.failing_calls, awaited: &self.awaited }
    }
}

/// The calls of this process about instances, as far as they delay further ones. The [`Plan`](super::Plan) and the keeper
/// that carries it out judge them alike.
#[derive(Debug, Clone, Copy)]
pub struct InstanceCalls<'a> {
    /// Instances with an effect under way.
    pub busy: &'a BTreeSet<InstanceId>,
    /// Calls that keep failing.
    pub failing: &'a BTreeMap<InstanceId, FailingCall>,
    /// Times until which calls that succeeded are not repeated.
    pub awaited: &'a BTreeMap<InstanceId, Stamp>,
}

impl InstanceCalls<'_> {
    /// True if a call about this instance may be made now.
    pub fn are_free(&self, id: &InstanceId, now: Stamp) -> bool {
        !self.busy.contains(id) && self.paused_until(id, now).is_none()
    }

    /// Time at which a call about this instance may be made again, if not now.
    pub fn paused_until(&self, id: &InstanceId, now: Stamp) -> Option<Stamp> {
        let failing = self.failing.get(id).map(|call| call.until);
        let awaited = self.awaited.get(id).copied();
        failing.into_iter().chain(awaited).find(|until| !now.reached(*until))
    }
}
