//! What the plugin has shown of an instance, in place of a console: plugins have none.

use std::fmt::Write as _;

use greenroom_core::ids::InstanceId;
use greenroom_core::time::Stamp;

use super::book::entry::Machine;
use super::book::{Book, Entry};
use super::group::State;

/// `None` if the instance is unknown.
pub(super) fn of(book: &Book, id: &InstanceId) -> Option<String> {
    Some(match book.entry(id)? {
        Entry::Machine(machine) => history(machine),
        Entry::Former(former) => format!("{}{} gone\n", history(&former.machine), time(former.at)),
        Entry::Intent(intent) => format!("{} requested; the plugin has not shown it\n", time(intent.at)),
    })
}

fn history(machine: &Machine) -> String {
    let mut text = String::new();
    for (number, (at, state)) in machine.history.iter().enumerate() {
        let what = if number == 0 { "requested" } else { self::state(*state) };
        let id = if number == 1 { format!(" as {}", machine.id) } else { String::new() };
        // Writing to a string does not fail.
        writeln!(text, "{} {what}{id}", time(*at)).ok();
    }
    text
}

/// A state as people read it.
pub(super) fn state(state: State) -> &'static str {
    match state {
        State::Creating => "creating",
        State::Running => "running",
        State::Deleting => "deleting",
        State::Deleted => "deleted",
        State::Timeout => "given up by the plugin",
        State::Suspending => "suspending",
        State::Suspended => "suspended",
        State::Resuming => "resuming",
        State::Unknown(_) => "in a state that this version does not know",
    }
}

fn time(at: Stamp) -> String {
    let seconds = at.wall_ms.div_euclid(1000).rem_euclid(86_400);
    format!("{:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}
