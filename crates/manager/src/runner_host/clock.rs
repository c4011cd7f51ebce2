//! The clocks of the runner host, and the timeouts and intervals that they are compared with.

use std::fs;
use std::path::Path;
use std::time::Duration;

use greenroom_core::time::{BootId, ManagerId, Stamp};
use greenroom_ports::clock::Clock;
use greenroom_ports::host_error::HostError;
use rustix::time::{ClockId, clock_gettime};

use super::files::{broken, cannot};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Wall clock and boot clock of a manager; the boot id is read once.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    manager: ManagerId,
    boot: BootId,
}

impl SystemClock {
    /// `manager` may be 0 where nothing is recorded.
    pub fn new(manager: ManagerId) -> Result<Self, HostError> {
        let path = Path::new(BOOT_ID);
        let text = fs::read_to_string(path).map_err(|e| cannot("read", path, e))?;
        let boot = parse_boot_id(&text)
            .ok_or_else(|| broken(format_args!("`{BOOT_ID}` holds `{}`, expected a UUID", text.trim())))?;
        Ok(Self { manager, boot })
    }

    pub fn boot(&self) -> BootId {
        self.boot
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Stamp {
        let wall = clock_gettime(ClockId::Realtime);
        let up = clock_gettime(ClockId::Boottime);
        let wall_ms = wall.tv_sec.saturating_mul(1000).saturating_add(wall.tv_nsec / 1_000_000);
        let uptime_ms = up.tv_sec.saturating_mul(1000).saturating_add(up.tv_nsec / 1_000_000);
        Stamp {
            wall_ms,
            manager: self.manager,
            boot: self.boot,
            uptime_ms: u64::try_from(uptime_ms).unwrap_or(0),
        }
    }
}

/// The first 64 bits of a UUID.
fn parse_boot_id(text: &str) -> Option<BootId> {
    let digits: String = text.trim().chars().filter(|c| *c != '-').take(16).collect();
    if digits.len() < 16 {
        return None;
    }
    u64::from_str_radix(&digits, 16).ok().map(BootId)
}

/// Bounds and intervals; tests shorten them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Times {
    /// A call waits this long for a lease that the keeper holds. Default 10 s.
    pub lease_lock_timeout: Duration,
    /// A call that waits or runs writes the time into its lease this often. Default 60 s.
    pub lease_renew_interval: Duration,
    /// The keeper checks this often whether the state directory is still its own. Default 5 s.
    pub self_check_interval: Duration,
    /// A started keeper must have detached itself within this time. Default 3 s.
    pub keeper_start_timeout: Duration,
    /// Incomplete directories of killed calls are removed at this age. Default 1 h.
    pub half_made_retention: Duration,
    /// Attempts without a `prepare` are removed at this age. Default 1 day.
    pub unprepared_retention: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            lease_lock_timeout: Duration::from_secs(10),
            lease_renew_interval: Duration::from_mins(1),
            self_check_interval: Duration::from_secs(5),
            keeper_start_timeout: Duration::from_secs(3),
            half_made_retention: Duration::from_hours(1),
            unprepared_retention: Duration::from_hours(24),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_id_is_the_first_half_of_the_uuid() {
        let parsed = parse_boot_id("01234567-89ab-cdef-ffff-ffffffffffff\n");
        assert_eq!(parsed, Some(BootId(0x0123_4567_89ab_cdef)));
        assert_eq!(parse_boot_id("nonsense"), None);
    }

    #[test]
    fn the_boot_clock_runs_forward_within_one_boot() {
        let clock = SystemClock::new(ManagerId(7)).unwrap();
        let one = clock.now();
        let two = clock.now();
        assert_eq!((one.manager, one.boot), (ManagerId(7), two.boot));
        assert!(two.uptime_ms >= one.uptime_ms && one.uptime_ms > 0);
        assert!(one.wall_ms > 1_700_000_000_000);
    }
}
