//! Moments and ages, without reading a clock.
//!
//! A [`Stamp`] carries wall time and the boot clock. Within one boot, ages come from the boot clock, so jumps of the wall
//! clock have no effect. Across boots, only wall time remains, and an age is never negative.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Identifies a boot of the runner host: the first 64 bits of the kernel's boot ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootId(pub u64);

/// Identifies a manager: a state directory with its keeper, on one runner host. 0: none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ManagerId(pub u32);

/// A recorded moment. Serialised as `[wall, manager, boot, uptime]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "(i64, u32, u64, u64)", into = "(i64, u32, u64, u64)")]
pub struct Stamp {
    /// Milliseconds since 1970-01-01 UTC, by the wall clock.
    pub wall_ms: i64,
    /// The manager whose clocks these are.
    pub manager: ManagerId,
    pub boot: BootId,
    /// Milliseconds since boot, suspended time included (`CLOCK_BOOTTIME`).
    pub uptime_ms: u64,
}

impl From<(i64, u32, u64, u64)> for Stamp {
    fn from((wall_ms, manager, boot, uptime_ms): (i64, u32, u64, u64)) -> Self {
        Self { wall_ms, manager: ManagerId(manager), boot: BootId(boot), uptime_ms }
    }
}

impl From<Stamp> for (i64, u32, u64, u64) {
    fn from(stamp: Stamp) -> Self {
        (stamp.wall_ms, stamp.manager.0, stamp.boot.0, stamp.uptime_ms)
    }
}

impl Stamp {
    /// The time from `earlier` to `self`; zero if `earlier` lies ahead.
    pub fn since(self, earlier: Stamp) -> Duration {
        if self.boot == earlier.boot {
            return Duration::from_millis(self.uptime_ms.saturating_sub(earlier.uptime_ms));
        }
        let gap = self.wall_ms.saturating_sub(earlier.wall_ms).max(0);
        Duration::from_millis(gap.unsigned_abs())
    }

    /// The moment on the boot clock of `now`: a moment of the same manager's earlier boot maps to the boot's start,
    /// whatever the wall clock did. For pauses that must not last a day because the clock was set back before a reboot.
    /// Another manager's moment stays as it is: that its boot is another one says nothing about time.
    #[must_use]
    pub fn seen_from(self, now: Stamp) -> Stamp {
        if self.boot == now.boot || self.manager != now.manager {
            return self;
        }
        Stamp { boot: now.boot, uptime_ms: 0, ..self }
    }

    /// The least time since `past`, which is a moment that has passed: one of the same manager's earlier boot is no
    /// younger than this boot, whatever the wall clock did.
    pub fn age_of(self, past: Stamp) -> Duration {
        self.since(past).max(self.since(past.seen_from(self)))
    }

    /// The moment `after` later, on both clocks.
    #[must_use]
    pub fn plus(self, after: Duration) -> Stamp {
        let ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        Stamp {
            wall_ms: self.wall_ms.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX)),
            uptime_ms: self.uptime_ms.saturating_add(ms),
            ..self
        }
    }

    /// The moment `before` earlier, on both clocks; not before the boot.
    #[must_use]
    pub fn minus(self, before: Duration) -> Stamp {
        let ms = u64::try_from(before.as_millis()).unwrap_or(u64::MAX);
        Stamp {
            wall_ms: self.wall_ms.saturating_sub_unsigned(ms),
            uptime_ms: self.uptime_ms.saturating_sub(ms),
            ..self
        }
    }

    /// The time from `self` to `later`; zero if `later` has passed.
    pub fn until(self, later: Stamp) -> Duration {
        later.since(self)
    }

    /// True if `moment` has been reached, by the boot clock within one boot.
    pub fn reached(self, moment: Stamp) -> bool {
        if self.boot == moment.boot {
            return self.uptime_ms >= moment.uptime_ms;
        }
        self.wall_ms >= moment.wall_ms
    }

    /// True if it is after `earlier`. Moments within one millisecond are not ordered.
    pub fn is_after(self, earlier: Stamp) -> bool {
        !earlier.seen_from(self).reached(self)
    }

    /// Whole seconds since 1970, for schedules and display.
    pub fn wall_seconds(self) -> i64 {
        self.wall_ms.div_euclid(1000)
    }
}

/// A duration for people: `850 ms`, `24.7 s`, `3m 12s`, `2h 5m`, `4d 1h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pretty(pub Duration);

impl fmt::Display for Pretty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        let seconds = self.0.as_secs();
        match seconds {
            0 => write!(f, "{ms} ms"),
            1..60 => match (ms % 1000) / 100 {
                0 => write!(f, "{seconds} s"),
                tenth => write!(f, "{seconds}.{tenth} s"),
            },
            60..3600 => two(f, seconds / 60, "m", seconds % 60, "s"),
            3600..86_400 => two(f, seconds / 3600, "h", seconds % 3600 / 60, "m"),
            _ => two(f, seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
        }
    }
}

fn two(f: &mut fmt::Formatter<'_>, major: u64, unit: &str, minor: u64, small: &str) -> fmt::Result {
    match minor {
        0 => write!(f, "{major}{unit}"),
        _ => write!(f, "{major}{unit} {minor}{small}"),
    }
}

/// Durations as whole milliseconds in the journal.
pub mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(value.as_millis()).unwrap_or(u64::MAX))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);

    fn at(wall_ms: i64, boot: u64, uptime_ms: u64) -> Stamp {
        Stamp { wall_ms, manager: ManagerId(1), boot: BootId(boot), uptime_ms }
    }

    #[test]
    fn a_wall_clock_that_jumps_a_day_changes_no_age_within_a_boot() {
        let then = at(1_000_000, 1, 500);
        for jump in [-86_400_000, 0, 86_400_000] {
            assert_eq!(at(1_000_000 + jump, 1, 2_500).since(then), Duration::from_secs(2));
        }
    }

    #[test]
    fn across_boots_wall_time_counts_and_never_backwards() {
        let then = at(1_000_000, 1, 900_000);
        assert_eq!(at(1_060_000, 2, 5).since(then), Duration::from_mins(1));
        assert_eq!(at(900_000, 2, 5).since(then), Duration::ZERO);
    }

    #[test]
    fn a_moment_of_an_earlier_boot_is_seen_at_the_begin_of_this_one() {
        let then = at(1_000_000, 1, 900_000);
        assert_eq!(at(900_000, 2, 7).since(then.seen_from(at(900_000, 2, 7))), Duration::from_millis(7));
        assert_eq!(then.seen_from(at(0, 1, 9)), then);
    }

    #[test]
    fn a_moment_of_an_earlier_boot_is_no_younger_than_this_boot() {
        let then = at(1_000_000, 1, 900_000);
        assert_eq!(at(900_000, 2, 7).age_of(then), Duration::from_millis(7), "the clock was set back");
        assert_eq!(at(1_060_000, 2, 7).age_of(then), Duration::from_mins(1));
        assert_eq!(at(0, 1, 900_009).age_of(then), Duration::from_millis(9));
        let there = Stamp { manager: ManagerId(2), ..then };
        assert_eq!(at(900_000, 2, 7).age_of(there), Duration::ZERO);
    }

    #[test]
    fn another_managers_boot_says_nothing_about_time() {
        let there = Stamp { manager: ManagerId(2), ..at(1_000_000, 5, 900_000) };
        let now = at(1_030_000, 1, 7);
        assert_eq!(there.seen_from(now), there);
        assert_eq!(now.since(there.seen_from(now)), Duration::from_secs(30));
        assert!(now.is_after(there) && !at(999_999, 1, 7).is_after(there));
        let beside = Stamp { manager: ManagerId(2), ..at(0, 1, 5) };
        assert_eq!(now.since(beside), Duration::from_millis(2), "managers of one host share its clocks");
    }

    #[test]
    fn a_deadline_is_reached_exactly_when_its_time_is_up() {
        let then = at(0, 1, 100);
        let due = then.plus(HOUR);
        assert!(!at(9_999_999_999, 1, 100 + 3_599_999).reached(due));
        assert!(at(0, 1, 100 + 3_600_000).reached(due));
        assert!(at(3_600_000, 2, 0).reached(due));
        assert!(!at(3_599_999, 2, u64::MAX).reached(due));
    }

    #[test]
    fn minus_takes_both_clocks_back_and_stops_at_the_boot() {
        assert_eq!(at(0, 1, 7_200_000).minus(HOUR), at(-3_600_000, 1, 3_600_000));
        assert_eq!(at(0, 1, 5).minus(HOUR), at(-3_600_000, 1, 0));
        assert_eq!(at(i64::MIN, 1, 5).minus(Duration::MAX), at(i64::MIN, 1, 0));
    }

    #[test]
    fn until_is_what_is_left() {
        let now = at(0, 1, 1_000);
        assert_eq!(now.until(now.plus(HOUR)), HOUR);
        assert_eq!(now.plus(HOUR).until(now), Duration::ZERO);
    }

    #[test]
    fn durations_read_as_people_say_them() {
        for (ms, text) in [
            (0, "0 ms"),
            (850, "850 ms"),
            (1_000, "1 s"),
            (24_749, "24.7 s"),
            (60_000, "1m"),
            (192_000, "3m 12s"),
            (7_500_000, "2h 5m"),
            (86_400_000 * 4 + 3_600_000, "4d 1h"),
        ] {
            assert_eq!(Pretty(Duration::from_millis(ms)).to_string(), text);
        }
    }

    #[test]
    fn a_stamp_is_four_numbers_in_the_journal() {
        let stamp = at(-5, 7, 9);
        let text = serde_json::to_string(&stamp).unwrap();
        assert_eq!(text, "[-5,1,7,9]");
        assert_eq!(serde_json::from_str::<Stamp>(&text).unwrap(), stamp);
        assert_eq!(stamp.wall_seconds(), -1);
    }
}
