//! A machine as a cloud tells of it.

use serde::{Deserialize, Serialize};

use super::settings::AddressKind;
use crate::core::ids::InstanceId;
use crate::core::inventory::{Status, Tags};
use crate::core::time::Stamp;

/// By what a cloud knows one machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Handle {
    /// EC2's `i-0abc…`, Compute Engine's name.
    pub name: String,
    /// Compute Engine's zone; empty where the name says enough.
    pub zone: String,
}

/// How far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MachineState {
    /// Gone; the cloud still tells of it.
    Gone,
    /// Stopping, or being deleted.
    Ending,
    /// Stopped, and there until somebody asks for its deletion.
    Stopped,
    /// Accepted, but no place has been found for it yet: it may still be refused.
    Accepted,
    Starting,
    Running,
}

/// Where it can be reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses {
    pub private: Option<String>,
    pub public: Option<String>,
    pub ipv6: Option<String>,
}

/// One machine of a pool's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    pub handle: Handle,
    pub instance: InstanceId,
    pub tags: Tags,
    pub state: MachineState,
    /// When it was made, by the cloud's clock; milliseconds since 1970.
    pub created_ms: Option<i64>,
    pub addresses: Addresses,
    /// What it is, in a few words: `m7i.large, spot, eu-west-1b`.
    pub what: String,
    /// Why it ended, where that was not our doing: `was reclaimed by EC2 at 14:03:07 (spot)`.
    pub why: Option<String>,
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

impl Machine {
    /// `None`: it is gone, and nobody needs to hear of it any more.
    pub fn status(&self) -> Option<Status> {
        match self.state {
            MachineState::Running => Some(Status::Running),
            MachineState::Accepted | MachineState::Starting => Some(Status::Starting),
            MachineState::Ending | MachineState::Stopped => Some(Status::Stopping),
            // A job of it may want to know why.
            MachineState::Gone => self.why.as_ref().map(|_| Status::Stopping),
        }
    }

    /// When it was made, seen from `now`.
    pub fn created(&self, now: Stamp) -> Option<Stamp> {
        self.created_ms.map(|at_ms| moment(at_ms, now))
    }
}

/// A moment of the cloud's, in milliseconds since 1970, seen from `now`. Its clock may be ahead of ours: nothing was made
/// later than now.
pub fn moment(at_ms: i64, now: Stamp) -> Stamp {
    let ago = u64::try_from(now.wall_ms.saturating_sub(at_ms)).unwrap_or(0);
    let uptime_ms = now.uptime_ms.saturating_sub(ago);
    Stamp { wall_ms: now.wall_ms.saturating_sub_unsigned(ago), uptime_ms, ..now }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::core::ids::{Generation, OwnerId, PoolName};
    use crate::core::time::BootId;

    pub(in crate::provider::cloud) fn machine(id: &str, state: MachineState) -> Machine {
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
            state,
            created_ms: Some(9_000),
            addresses: Addresses { private: Some("10.0.0.7".to_owned()), ..Addresses::default() },
            what: "small".to_owned(),
            why: None,
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
        let now = Stamp { wall_ms: 10_000, boot: BootId(1), uptime_ms: 5_000 };
        let mut one = machine("a", MachineState::Running);
        assert_eq!(one.created(now).map(|at| (at.wall_ms, at.uptime_ms)), Some((9_000, 4_000)));
        one.created_ms = Some(99_000);
        assert_eq!(one.created(now), Some(now));
        one.created_ms = Some(-99_000);
        assert_eq!(one.created(now).map(|at| at.uptime_ms), Some(0), "before this machine was booted");
    }
}
