//! The record of one launch in the book: without a machine, with one, and after its end; and its history as text, in place of a
//! console.

use std::fmt::Write as _;
use std::time::Duration;

use greenroom_core::ids::InstanceId;
use greenroom_core::inventory::{Status, Tags};
use greenroom_core::time::Stamp;
use serde::{Deserialize, Serialize};

use super::{Book, BookEntry};
use crate::fleeting::group::{InstanceState, PluginStart};

/// The number of an instance's states that are kept for its console.
const HISTORY: usize = 32;
/// After how many good updates without it an instance is gone.
pub const MISSED: u32 = 5;
/// The time after which a removal is requested once more.
const RETRY: Duration = Duration::from_mins(1);
/// Time after which a removal is requested once more if the plugin shows the instance as being deleted.
const STUCK: Duration = Duration::from_mins(10);

/// The progress of a launch without a [`BookMachine`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LaunchProgress {
    /// No call was made for it.
    Wanted,
    /// Part of a call whose answer is unknown.
    Asked,
    /// The plugin has accepted it.
    Accepted,
    /// Refused, cancelled, or not appeared in time. The launch no longer counts against the group's size, but a machine
    /// that appears late may be its machine.
    GivenUp,
}

impl LaunchProgress {
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
    pub progress: LaunchProgress,
    /// The time when the launch's call was last made or answered.
    pub at: Stamp,
    /// The plugin's start that got its call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<PluginStart>,
}

/// A machine that belongs to a launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BookMachine {
    /// The plugin's id.
    pub id: String,
    pub token: String,
    pub tags: Tags,
    pub state: InstanceState,
    /// The time when the plugin first showed the machine.
    pub appeared: Stamp,
    /// Good updates in a row without it.
    #[serde(default)]
    pub missed: u32,
    /// True once Greenroom wants it removed.
    #[serde(default)]
    pub unwanted: bool,
    /// The time when the plugin last accepted the machine's removal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removal: Option<Stamp>,
    /// The public host key that it must present, once one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_key: Option<String>,
    /// The plugin's start that was asked for it, which may have made a key for it; `None`: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_by: Option<PluginStart>,
    /// The machine's states, and when the plugin first showed each.
    pub history: Vec<(Stamp, InstanceState)>,
}

/// The reason a [`BookMachine`] is no longer in the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Departure {
    /// The plugin showed it as deleted.
    Deleted,
    /// Updates lack it after its removal.
    Removed,
    /// Updates lack it without a reason.
    Vanished,
}

/// A machine that is no longer in the group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerMachine {
    pub instance: InstanceId,
    pub machine: BookMachine,
    pub how: Departure,
    pub at: Stamp,
    /// Good updates without it since then.
    #[serde(default)]
    pub missed: u32,
}

impl BookMachine {
    /// Changes its state.
    pub(super) fn note(&mut self, state: InstanceState, now: Stamp) {
        self.missed = 0;
        // A state that this version does not know proves nothing.
        if state == self.state || matches!(state, InstanceState::Unknown(_)) {
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
            InstanceState::Running => Status::Running,
            InstanceState::Creating | InstanceState::Resuming | InstanceState::Unknown(_) => Status::Starting,
            InstanceState::Suspended => Status::Suspended,
            InstanceState::Deleting
            | InstanceState::Deleted
            | InstanceState::Timeout
            | InstanceState::Suspending => Status::Stopping,
        }
    }

    /// True if a call has to request its removal now.
    pub(super) fn is_due(&self, now: Stamp) -> bool {
        let pause = if self.state == InstanceState::Deleting { STUCK } else { RETRY };
        let since = |then: Stamp| now.since(then.seen_from(now));
        let waits = match (self.removal, self.state) {
            (Some(then), _) => since(then) < pause,
            // The group's own scaling, or a call without an answer, removes it.
            (None, InstanceState::Deleting) => {
                self.history.last().is_some_and(|(then, _)| since(*then) < STUCK)
            }
            (None, _) => false,
        };
        self.unwanted && !waits
    }

    /// Returns why the machine is gone if an update shows it in `state`; `None`: it is not.
    pub(super) fn ended(&self, state: InstanceState) -> Option<Departure> {
        match state {
            InstanceState::Deleted => Some(Departure::Deleted),
            InstanceState::Timeout if self.removal.is_some() => Some(Departure::Removed),
            _ => None,
        }
    }

    /// Returns why the machine is gone after one more good update without it; `None`: it may come back.
    pub(super) fn missing(&mut self) -> Option<Departure> {
        self.missed += 1;
        if self.removal.is_some() || self.state == InstanceState::Deleting {
            return Some(Departure::Removed);
        }
        (self.missed > MISSED).then_some(Departure::Vanished)
    }
}

impl FormerMachine {
    /// True if a machine with the same id is another machine: the plugin uses its ids again.
    pub(super) fn is_over(&self) -> bool {
        match self.how {
            // In the update that follows at once, it is the same machine.
            Departure::Deleted => self.missed > 0,
            Departure::Removed => self.missed > MISSED,
            Departure::Vanished => false,
        }
    }
}

/// `None` if the instance is unknown.
pub fn console_of(book: &Book, id: &InstanceId) -> Option<String> {
    Some(match book.entry(id)? {
        BookEntry::Machine(machine) => history(machine),
        BookEntry::Former(former) => format!("{}{} gone\n", history(&former.machine), time_of_day(former.at)),
        BookEntry::Intent(intent) => {
            format!("{} requested; the plugin has not shown it\n", time_of_day(intent.at))
        }
    })
}

fn history(machine: &BookMachine) -> String {
    let mut text = String::new();
    for (number, (at, state)) in machine.history.iter().enumerate() {
        let what = if number == 0 { "requested" } else { state_label(*state) };
        let id = if number == 1 { format!(" as {}", machine.id) } else { String::new() };
        // Writing to a string does not fail.
        writeln!(text, "{} {what}{id}", time_of_day(*at)).ok();
    }
    text
}

/// A state as people read it.
pub fn state_label(state: InstanceState) -> &'static str {
    match state {
        InstanceState::Creating => "creating",
        InstanceState::Running => "running",
        InstanceState::Deleting => "deleting",
        InstanceState::Deleted => "deleted",
        InstanceState::Timeout => "given up by the plugin",
        InstanceState::Suspending => "suspending",
        InstanceState::Suspended => "suspended",
        InstanceState::Resuming => "resuming",
        InstanceState::Unknown(_) => "in a state that this version does not know",
    }
}

fn time_of_day(at: Stamp) -> String {
    let seconds = at.wall_ms.div_euclid(1000).rem_euclid(86_400);
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}
