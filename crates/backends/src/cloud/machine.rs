//! Machines as a cloud reports them, and the last list of a pool's machines.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;

use greenroom_core::failure::Failure;
use greenroom_core::ids::{InstanceId, Location};
use greenroom_core::inventory::{Notice, Status, Tags};
use greenroom_core::metadata::MetadataService;
use greenroom_core::time::Stamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::settings::AddressKind;

/// A cloud's identifier of one machine. Stored with the launch that created the machine.
pub trait MachineId: Debug + Clone + Eq + Hash + Serialize + DeserializeOwned {
    /// The name in messages and among resources. A cloud may use it again for another machine.
    fn name(&self) -> &str;
}

/// The [`MachineId`] of a cloud that names machines, perhaps in zones.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Handle {
    /// EC2's `i-0abc…`, Compute Engine's name.
    pub name: String,
    /// Compute Engine's zone; empty if the name is unique.
    pub zone: String,
}

impl MachineId for Handle {
    fn name(&self) -> &str {
        &self.name
    }
}

/// State of a machine; a greater one is further from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MachineState {
    /// Gone, but still listed by the cloud.
    Gone,
    /// Stopping, or being deleted.
    Ending,
    /// Stopped, and kept until a call deletes it.
    Stopped,
    /// Accepted, but still without capacity: the cloud may refuse it.
    Accepted,
    Starting,
    Running,
}

/// Addresses of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses {
    pub private: Option<String>,
    pub public: Option<String>,
    pub ipv6: Option<String>,
}

/// A machine of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine<Id = Handle> {
    pub handle: Id,
    pub instance: InstanceId,
    pub tags: Tags,
    /// The token of the launch that created it; `None` if the cloud shows none. Unlike tags, a copy does not have it.
    pub token: Option<String>,
    /// The machine's disks, named like resources.
    pub disks: Vec<String>,
    pub state: MachineState,
    /// Time of creation by the cloud's clock, in milliseconds since 1970.
    pub created_ms: Option<i64>,
    pub addresses: Addresses,
    /// A short description: `m7i.large, spot, eu-west-1b`.
    pub what: String,
    /// The reason of an end that Greenroom did not request, as the predicate of a sentence about the instance:
    /// `was reclaimed by EC2 at 14:03:07 (spot)`.
    pub why: Option<String>,
    /// True if a job ended it by using up its memory or disk.
    pub by_job: bool,
    /// The reason why the machine cannot serve the job that it was launched for.
    pub refused: Option<Failure>,
    /// The cloud's announcement of what it is about to do to the machine.
    pub notice: Option<CloudNotice>,
    /// The metadata service that the machine can query for further notices.
    pub metadata: Option<MetadataService>,
}

/// An announcement of the cloud's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloudNotice {
    /// The predicate of a sentence about the instance: `will be reclaimed by EC2 (spot)`.
    pub text: String,
    /// The announced time by the cloud's clock, in milliseconds since 1970; `None`: at any moment.
    pub at_ms: Option<i64>,
}

impl Addresses {
    pub fn of(&self, kind: AddressKind) -> Option<&str> {
        match kind {
            AddressKind::Private => self.private.as_deref(),
            AddressKind::Public => self.public.as_deref(),
            AddressKind::Ipv6 => self.ipv6.as_deref(),
        }
    }
}

impl<Id> Machine<Id> {
    /// `None` if the machine is gone and has no reason to report.
    pub fn status(&self) -> Option<Status> {
        match self.state {
            MachineState::Running => Some(Status::Running),
            MachineState::Accepted | MachineState::Starting => Some(Status::Starting),
            MachineState::Ending | MachineState::Stopped => Some(Status::Stopping),
            // Its job reports the reason.
            MachineState::Gone => self.why.as_ref().map(|_| Status::Stopping),
        }
    }

    /// The announcement, relative to `now`.
    pub fn announced(&self, now: Stamp) -> Option<Notice> {
        let CloudNotice { text, at_ms } = self.notice.clone()?;
        let left = |at_ms: i64| u64::try_from(at_ms.saturating_sub(now.wall_ms)).unwrap_or(0);
        let at = at_ms.map(|at_ms| now.plus(Duration::from_millis(left(at_ms))));
        Some(Notice { text, at })
    }

    /// Time of creation, relative to `now`.
    pub fn created(&self, now: Stamp) -> Option<Stamp> {
        self.created_ms.map(|at_ms| moment(at_ms, now))
    }
}

/// A time of the cloud's, in milliseconds since 1970, relative to `now` and at most `now`: the cloud's clock may be
/// ahead of the runner host's.
pub fn moment(at_ms: i64, now: Stamp) -> Stamp {
    let ago = u64::try_from(now.wall_ms.saturating_sub(at_ms)).unwrap_or(0);
    now.minus(Duration::from_millis(ago))
}

/// One list of a pool's machines.
#[derive(Debug, Clone)]
pub(super) struct MachineList<Id> {
    /// The time before the call.
    pub(super) begun: Stamp,
    pub(super) complete: bool,
    pub(super) location: Option<Location>,
    /// Machines that launches created.
    pub(super) machines: Vec<Machine<Id>>,
    /// Machines with the pool's tags that no launch created.
    pub(super) copies: Vec<Machine<Id>>,
}

impl<Id: PartialEq> MachineList<Id> {
    /// The machines of an instance: one, unless a launch was repeated without Greenroom's knowledge.
    pub(super) fn of<'a>(&'a self, id: &'a InstanceId) -> impl Iterator<Item = &'a Machine<Id>> {
        self.machines.iter().filter(move |machine| machine.instance == *id)
    }

    /// The machine of an instance that is furthest from its end.
    pub(super) fn best(&self, id: &InstanceId) -> Option<&Machine<Id>> {
        self.machines.iter().filter(|machine| machine.instance == *id).max_by_key(|machine| machine.state)
    }

    /// Marks a machine as ending, until the next list, after its termination was requested.
    pub(super) fn mark_ending(&mut self, handle: &Id) {
        let known = self.machines.iter_mut().filter(|machine| machine.handle == *handle);
        known.for_each(|machine| machine.state = machine.state.min(MachineState::Ending));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use greenroom_core::ids::{Generation, OwnerId, PoolName};
    use greenroom_core::time::{BootId, ManagerId};

    use super::*;

    pub(crate) fn machine(id: &str, state: MachineState) -> Machine {
        let tags = Tags {
            pool: PoolName::new("linux"),
            owner: OwnerId::new("owner"),
            generation: Generation::new("c0ffee"),
            number: 1,
        };
        Machine {
            handle: Handle { name: format!("i-{id}"), zone: String::new() },
            instance: InstanceId::new(id),
            tags,
            token: Some(format!("owner {id}/1")),
            disks: vec![format!("disk-of-{id}")],
            state,
            created_ms: Some(9_000),
            addresses: Addresses { private: Some("10.0.0.7".to_owned()), ..Addresses::default() },
            what: "small".to_owned(),
            why: None,
            by_job: false,
            refused: None,
            notice: None,
            metadata: None,
        }
    }

    #[test]
    fn what_is_gone_is_told_only_where_there_is_a_reason() {
        let mut gone = machine("a", MachineState::Gone);
        assert_eq!(gone.status(), None);
        gone.why = Some("was reclaimed".to_owned());
        assert_eq!(gone.status(), Some(Status::Stopping));
        assert_eq!(machine("a", MachineState::Accepted).status(), Some(Status::Starting));
    }

    #[test]
    fn an_age_survives_a_clock_that_is_ahead() {
        let now = Stamp { wall_ms: 10_000, manager: ManagerId(1), boot: BootId(1), uptime_ms: 5_000 };
        let mut one = machine("a", MachineState::Running);
        assert_eq!(one.created(now).map(|at| (at.wall_ms, at.uptime_ms)), Some((9_000, 4_000)));
        one.created_ms = Some(99_000);
        assert_eq!(one.created(now), Some(now));
        one.created_ms = Some(-99_000);
        assert_eq!(one.created(now).map(|at| at.uptime_ms), Some(0), "before this machine was booted");
    }

    #[test]
    fn what_was_asked_to_end_counts_as_ending() {
        let begun = Stamp { wall_ms: 0, manager: ManagerId(1), boot: BootId(1), uptime_ms: 1 };
        let machines = vec![machine("a", MachineState::Running), machine("b", MachineState::Running)];
        let mut list = MachineList { begun, complete: true, location: None, machines, copies: Vec::new() };
        list.mark_ending(&machine("a", MachineState::Running).handle);
        let state = |name| list.best(&InstanceId::new(name)).unwrap().state;
        assert_eq!((state("a"), state("b")), (MachineState::Ending, MachineState::Running));
    }
}
