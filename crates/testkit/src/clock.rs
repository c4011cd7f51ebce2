//! A clock that a test sets.

use std::cell::Cell;
use std::time::Duration;

use greenroom_core::time::{BootId, ManagerId, Stamp};
use greenroom_ports::clock::Clock;

/// A clock of manager 1 and boot 1 that starts at 0. Time passes only in [`ManualClock::pass`].
#[derive(Debug, Default)]
pub struct ManualClock(Cell<u64>);

impl ManualClock {
    /// Lets time pass, in whole milliseconds. A test that lets more than 500 million years pass has a wrong number.
    pub fn pass(&self, time: Duration) {
        self.0.set(self.0.get().saturating_add(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)));
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Stamp {
        let uptime_ms = self.0.get();
        let wall_ms = i64::try_from(uptime_ms).unwrap_or(i64::MAX);
        Stamp { wall_ms, manager: ManagerId(1), boot: BootId(1), uptime_ms }
    }
}
