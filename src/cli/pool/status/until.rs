//! When the next policy entry becomes active.

use std::time::Duration;

use greenroom_core::policy::Policy;
use greenroom_core::time::Stamp;

/// A week has every weekday once; another day covers them all after a change of the clocks, too.
const MINUTES: u64 = 8 * 24 * 60;

/// The first minute in which another entry of `policy` is active; `None`: not within eight days.
pub(super) fn until(policy: &Policy, now: Stamp) -> Option<Stamp> {
    if policy.schedules.is_empty() {
        return None;
    }
    let (_, here) = policy.in_force(now);
    let into_minute = Duration::from_millis(now.wall_ms.rem_euclid(60_000).unsigned_abs());
    (1..=MINUTES)
        .map(|minute| now.plus(Duration::from_mins(minute).saturating_sub(into_minute)))
        .find(|at| policy.in_force(*at).1 != here)
}

#[cfg(test)]
mod tests {
    use greenroom_core::policy::{IdlePolicy, ScheduledIdle};
    use greenroom_core::schedule::{Schedule, ScheduleText};
    use greenroom_core::time::{BootId, ManagerId};

    use super::*;

    fn policy(periods: &[&str]) -> Policy {
        let periods = periods.iter().map(|p| (*p).to_owned()).collect();
        let when = Schedule::parse(ScheduleText { periods, timezone: "Europe/Berlin".into() }).unwrap();
        let entry = ScheduledIdle { when, idle: IdlePolicy { idle_count: 3, ..IdlePolicy::default() } };
        Policy { schedules: vec![entry], ..Policy::default() }
    }

    fn at(utc: &str) -> Stamp {
        let wall: jiff::Timestamp = utc.parse().unwrap();
        Stamp { wall_ms: wall.as_millisecond(), manager: ManagerId(1), boot: BootId(1), uptime_ms: 1_000_000 }
    }

    fn until_utc(periods: &[&str], now: &str) -> Option<String> {
        until(&policy(periods), at(now)).map(crate::cli::when::rfc3339)
    }

    #[test]
    fn a_period_ends_with_its_last_minute_and_the_next_begins_after_the_weekend() {
        let office = ["* 9-17 * * mon-fri"];
        // A Friday.
        assert_eq!(until_utc(&office, "2026-11-20T10:03:07.5Z").unwrap(), "2026-11-20T17:00:00Z");
        assert_eq!(until_utc(&office, "2026-11-20T17:00:00Z").unwrap(), "2026-11-23T08:00:00Z");
    }

    #[test]
    fn what_never_changes_has_no_end() {
        assert_eq!(until_utc(&["* * * * *"], "2026-11-20T10:03:07Z"), None);
        assert_eq!(until(&Policy::default(), at("2026-11-20T10:03:07Z")), None);
    }
}
