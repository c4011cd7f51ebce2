//! The cloud's last list of a pool's machines.

use greenroom_core::ids::{InstanceId, Location};
use greenroom_core::time::Stamp;

use super::machine::{Handle, Machine, MachineState};

/// One list.
#[derive(Debug, Clone)]
pub(super) struct MachineList {
    /// The time before the call.
    pub(super) begun: Stamp,
    pub(super) complete: bool,
    pub(super) location: Option<Location>,
    /// Machines that launches created.
    pub(super) machines: Vec<Machine>,
    /// Machines with the pool's tags that no launch created.
    pub(super) copies: Vec<Machine>,
}

impl MachineList {
    /// The machines of an instance: one, unless a launch was repeated without Greenroom's knowledge.
    pub(super) fn of<'a>(&'a self, id: &'a InstanceId) -> impl Iterator<Item = &'a Machine> {
        self.machines.iter().filter(move |machine| machine.instance == *id)
    }

    /// The one of them that is furthest from its end.
    pub(super) fn best(&self, id: &InstanceId) -> Option<&Machine> {
        self.machines.iter().filter(|machine| machine.instance == *id).max_by_key(|machine| machine.state)
    }

    /// Marks a machine as ending, until the next list, after its termination was requested.
    pub(super) fn mark_ending(&mut self, handle: &Handle) {
        let known = self.machines.iter_mut().filter(|machine| machine.handle == *handle);
        known.for_each(|machine| machine.state = machine.state.min(MachineState::Ending));
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::time::{BootId, ManagerId};

    use super::super::machine::tests::machine;
    use super::*;

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
