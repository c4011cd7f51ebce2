//! The second manager: in some seeds, two state directories share the journals.
//!
//! Each has its own attempts, leases, keeper and runners, and the jobs come to the runners of both. Both keepers act on all
//! instances, and each judges the attempts of its own manager. Everything is drawn from a stream of its own, so that the
//! course of the other seeds does not depend on this file.

use greenroom_core::ids::InstanceId;
use greenroom_core::instance::Phase;
use greenroom_core::time::ManagerId;

use super::fault::Fault;
use super::process::Shared;
use super::rig::Starter;
use super::rng::Rng;
use super::run::{self, Cron};
use super::workload;
use super::world::{Place, World};

/// The number of the second manager among the managers.
const NUMBER: usize = 1;
const MINUTE_MS: u64 = 60_000;
/// Wall clocks that a time service keeps alike differ by less than this.
const APART_MS: i64 = 500;
/// The delay of its `reap`s after each full minute: those of the first manager have ended by then.
const AFTER_MINUTE_MS: u64 = 40_000;

/// The properties of a seed's second manager.
#[derive(Debug, Clone, Copy)]
pub struct SecondManager {
    pub runners: u32,
    /// True if the second manager is on a runner host of its own, with a power supply and clocks of its own.
    pub apart: bool,
    /// The lead of its own host's wall clock over the first manager's, in milliseconds.
    pub ahead: i64,
}

impl SecondManager {
    /// A part of the seeds whose store survives a power cut: managers that share a journal need such a store, because what
    /// one of them has lost would still be true for the other.
    pub fn draw(seed: u64, durable_store: bool) -> Option<Self> {
        let mut rng = Rng::new(seed, "second manager");
        let drawn = rng.chance(800) && durable_store;
        drawn.then(|| Self {
            runners: u32::try_from(rng.within(1..4)).unwrap_or(1),
            apart: rng.chance(500),
            ahead: i64::try_from(rng.below(APART_MS.unsigned_abs() * 2)).unwrap_or(0) - APART_MS,
        })
    }

    /// True if a seed with this manager may have the fault.
    pub fn allows(self, fault: Fault) -> bool {
        match fault {
            // The attempt that runs on the instance is the only trace of a lost record, and only its own manager sees it:
            // the other one terminates the instance. No rule for that exists yet.
            Fault::RecordLost => false,
            // Managers on two hosts compare their wall clocks, which a time service keeps alike.
            Fault::WallSteps => !self.apart,
            _ => true,
        }
    }

    /// Installs the manager, and starts what it consists of.
    pub fn begin(self, world: &Shared, starter: &Starter) {
        let place = Place { id: ManagerId(2), ..world.borrow().managers[0].place };
        if self.apart {
            let place = Place { host: NUMBER, boot: 500_000, ..place };
            let mut world = world.borrow_mut();
            run::install(&mut world, place);
            world.managers[NUMBER].step_wall(self.ahead);
        } else {
            run::install(&mut world.borrow_mut(), place);
        }
        workload::runners(world, starter, NUMBER);
        run::cron(world, starter, Cron { manager: NUMBER, first: AFTER_MINUTE_MS, every: MINUTE_MS });
        if world.borrow().scenario.service {
            run::service(world, starter, NUMBER);
        }
    }
}

/// True if another keeper has cleaned the host meanwhile.
///
/// Both keepers clean a host that is due, and the slower one may begin when a job already runs there. Nothing in the program
/// prevents that yet, so the simulation loses such a cleaning on its way.
pub(super) fn cleans_too_late(world: &World, manager: usize, id: &InstanceId) -> bool {
    let mut known =
        world.ledger(manager).journals.values().filter_map(|journal| journal.state().instance(id));
    world.scenario.second.is_some() && known.all(|host| host.phase != Phase::Cleaning)
}

/// The runner host that a power cut strikes.
pub(super) fn struck(world: &World, dice: u64) -> usize {
    let has_two = world.scenario.second.is_some_and(|second| second.apart);
    if has_two && (dice >> 32).is_multiple_of(2) { NUMBER } else { 0 }
}

/// The end of the names of a manager's processes.
pub(super) fn of(manager: usize) -> &'static str {
    if manager == 0 { "" } else { " of the second manager" }
}
