//! What the book has of one launch: without a machine, with one, and after its end.

use std::time::Duration;

use greenroom_core::ids::InstanceId;
use greenroom_core::inventory::{Status, Tags};
use greenroom_core::time::Stamp;
use serde::{Deserialize, Serialize};

use crate::fleeting::group::{Start, State};

/// How many states of an instance are kept for its console.
const HISTORY: usize = 32;
/// After how many good updates without it an instance is gone.
pub const MISSED: u32 = 5;
/// The time after which a removal is requested once more.
const RETRY: Duration = Duration::from_mins(1);
/// The same for an instance that the plugin shows as being deleted.
const STUCK: Duration = Duration::from_mins(10);

/// How far a launch without a machine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Progress {
    /// No call was made for it.
    Wanted,
    /// It is part of a call whose answer is unknown.
    Asked,
    /// The plugin has accepted it.
    Accepted,
    /// It was refused, cancelled, or has not appeared in time. It no longer counts against the group's size, but a machine
    /// that appears late may be its machine.
    GivenUp,
}

impl Progress {
    /// True if its machine is expected.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Asked | Self::Accepted)
    }
}

/// A launch without a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    pub instance: InstanceId,
    pub token: String,
    pub tags: Tags,
    pub progress: Progress,
    /// When its call was last made or answered.
    pub at: Stamp,
    /// The plugin's start that got its call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<Start>,
}

/// A machine that belongs to a launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The plugin's id.
    pub id: String,
    pub token: String,
    pub tags: Tags,
    pub state: State,
    /// When the plugin first showed it.
    pub appeared: Stamp,
    /// Good updates in a row without it.
    #[serde(default)]
    pub missed: u32,
    /// True once Greenroom wants it removed.
    #[serde(default)]
    pub unwanted: bool,
    /// When the plugin last accepted its removal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removal: Option<Stamp>,
    /// The public host key that it must present, once one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_key: Option<String>,
    /// The plugin's start that was asked for it, which may have made a key for it; `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<Start>,
    /// Its states, and when the plugin first showed each.
    pub history: Vec<(Stamp, State)>,
}

/// Why a machine is no longer in the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// The plugin showed it as deleted.
    Deleted,
    /// Updates lack it after its removal.
    Removed,
    /// Updates lack it without a reason.
    Vanished,
}

/// A machine that is no longer in the group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Former {
    pub instance: InstanceId,
    pub machine: Machine,
    pub how: How,
    pub at: Stamp,
    /// Good updates without it since then.
    #[serde(default)]
    pub missed: u32,
}

impl Machine {
    /// Changes its state.
    pub(super) fn note(&mut self, state: State, now: Stamp) {
        self.missed = 0;
        // A state that this version does not know proves nothing.
        if state == self.state || matches!(state, State::Unknown(_)) {
            return;
        }
        self.state = state;
        if self.history.len() < HISTORY {
            self.history.push((now, state));
        }
    }

    pub fn status(&self) -> Status {
        if self.unwanted {
            return Status::Stopping;
        }
        match self.state {
            State::Running => Status::Running,
            State::Creating | State::Resuming | State::Unknown(_) => Status::Starting,
            State::Suspended => Status::Suspended,
            State::Deleting | State::Deleted | State::Timeout | State::Suspending => Status::Stopping,
        }
    }

    /// True if a call has to request its removal now.
    pub(super) fn is_due(&self, now: Stamp) -> bool {
        let pause = if self.state == State::Deleting { STUCK } else { RETRY };
        let since = |then: Stamp| now.since(then.seen_from(now));
        let waits = match (self.removal, self.state) {
            (Some(then), _) => since(then) < pause,
            // The group's own scaling, or a call without an answer, removes it.
            (None, State::Deleting) => self.history.last().is_some_and(|(then, _)| since(*then) < STUCK),
            (None, _) => false,
        };
        self.unwanted && !waits
    }

    /// Why it is gone if an update shows it in `state`; `None`: it is not.
    pub(super) fn ended(&self, state: State) -> Option<How> {
        match state {
            State::Deleted => Some(How::Deleted),
            State::Timeout if self.removal.is_some() => Some(How::Removed),
            _ => None,
        }
    }

    /// Why it is gone after one more good update without it; `None`: it may come back.
    pub(super) fn missing(&mut self) -> Option<How> {
        self.missed += 1;
        if self.removal.is_some() || self.state == State::Deleting {
            return Some(How::Removed);
        }
        (self.missed > MISSED).then_some(How::Vanished)
    }
}

impl Former {
    /// True if a machine with the same id is another machine: the plugin uses its ids again.
    pub(super) fn is_over(&self) -> bool {
        match self.how {
            // In the update that follows at once, it is the same machine.
            How::Deleted => self.missed > 0,
            How::Removed => self.missed > MISSED,
            How::Vanished => false,
        }
    }
}
