//! The clocks: whether they can be read, and agree with the records.

use std::time::Duration;

use greenroom_core::time::Stamp;
use greenroom_ports::finding::Finding;
use greenroom_ports::host_error::HostError;

use super::code;
use crate::cli::when::{rfc3339, whole};

/// The clocks of one machine drift, and time synchronization moves them by seconds.
const TOLERANCE: Duration = Duration::from_mins(1);

/// The moments that are compared.
#[derive(Debug, Clone)]
pub struct ClockFacts {
    /// The time of the clocks, or why they cannot be read.
    pub now: Result<Stamp, HostError>,
    /// The moment when this program was installed, by the time of its file, in milliseconds since 1970.
    pub installed_ms: Option<i64>,
    /// The newest recorded event of any pool.
    pub newest: Option<Stamp>,
}

pub(super) fn check(facts: &ClockFacts) -> Vec<Finding> {
    let now = match &facts.now {
        Ok(now) => *now,
        Err(problem) => {
            let remedy = "mount /proc, and give this user read access to /proc/sys/kernel/random/boot_id";
            return vec![code::CLOCK_UNREADABLE.found(problem.to_string(), remedy)];
        }
    };
    let mut found = Vec::new();
    if let Some(installed) = facts.installed_ms
        && now.wall_ms.saturating_add(ms(TOLERANCE)) < installed
    {
        let then = rfc3339(Stamp { wall_ms: installed, ..now });
        let what = format!("the wall clock shows {}, but this program was installed at {then}", rfc3339(now));
        found.push(code::CLOCK_BEHIND.found(what, SET_CLOCK));
    }
    if let Some(newest) = facts.newest {
        found.extend(against(now, newest));
    }
    found
}

const SET_CLOCK: &str = "set the clock: `timedatectl set-ntp true`";

/// Compares the clock with the newest record.
fn against(now: Stamp, newest: Stamp) -> Option<Finding> {
    let ahead = newest.wall_ms.saturating_sub(now.wall_ms);
    if now.boot == newest.boot {
        let passed = i64::try_from(now.uptime_ms).unwrap_or(i64::MAX)
            - i64::try_from(newest.uptime_ms).unwrap_or(i64::MAX);
        let jump = now.wall_ms.saturating_sub(newest.wall_ms).saturating_sub(passed);
        let by = duration(jump);
        let direction = if jump < 0 { "back" } else { "forward" };
        return (by > TOLERANCE).then(|| {
            let what = format!(
                "the wall clock was set {direction} by {} since the last event; this affects `periods` and \
                 displayed times, but not ages",
                whole(by)
            );
            code::CLOCK_JUMPED.noted(what)
        });
    }
    (ahead > ms(TOLERANCE)).then(|| {
        let what = format!(
            "the last recorded event is dated {}, {} from now; until then, ages across the reboot count as zero",
            rfc3339(newest),
            whole(duration(ahead))
        );
        code::CLOCK_WENT_BACK.found(what, SET_CLOCK)
    })
}

fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn duration(ms: i64) -> Duration {
    Duration::from_millis(ms.unsigned_abs())
}

#[cfg(test)]
pub(super) mod tests {
    use greenroom_core::time::BootId;

    use super::*;
    use crate::cli::fixture::at;

    fn facts(now: Stamp, installed: Option<Stamp>, newest: Option<Stamp>) -> ClockFacts {
        ClockFacts { now: Ok(now), installed_ms: installed.map(|at| at.wall_ms), newest }
    }

    fn set(stamp: Stamp, seconds: i64) -> Stamp {
        Stamp { wall_ms: stamp.wall_ms + seconds * 1000, ..stamp }
    }

    fn rebooted(stamp: Stamp) -> Stamp {
        Stamp { boot: BootId(2), uptime_ms: 1_000, ..stamp }
    }

    #[test]
    fn clocks_that_agree_have_no_finding() {
        assert_eq!(check(&facts(at(60.0), Some(at(0.0)), Some(at(30.0)))), []);
        assert_eq!(check(&facts(rebooted(at(60.0)), None, Some(at(30.0)))), []);
        assert_eq!(check(&facts(at(0.0), None, None)), []);
    }

    #[test]
    fn a_clock_before_the_installation_is_an_error() {
        let found = check(&facts(set(at(0.0), -86_400), Some(at(0.0)), None));
        assert_eq!(
            found[0].to_string(),
            "error [clock-behind]: the wall clock shows 2026-11-19T13:00:00Z, but this program was installed at \
             2026-11-20T13:00:00Z\n  help: set the clock: `timedatectl set-ntp true`"
        );
    }

    #[test]
    fn a_clock_that_was_set_within_a_boot_is_worth_a_note() {
        for (by, expected) in [(-7200, "set back by 2h"), (7200, "set forward by 2h")] {
            let found = check(&facts(set(at(60.0), by), None, Some(at(0.0))));
            assert_eq!(found[0].code, "clock-jumped");
            assert!(found[0].message.contains(expected), "{}", found[0].message);
        }
    }

    #[test]
    fn a_record_of_the_future_after_a_reboot_is_a_warning() {
        let found = check(&facts(rebooted(at(0.0)), None, Some(at(7200.0))));
        assert_eq!(found[0].code, "clock-went-back");
        assert!(found[0].message.contains("2h from now"), "{}", found[0].message);
    }

    /// One finding of each code.
    pub(in crate::cli::doctor) fn provoked() -> Vec<Finding> {
        let no_clock = ClockFacts {
            now: Err(HostError::Io { what: "cannot read the boot id".into() }),
            installed_ms: None,
            newest: None,
        };
        let sights = [
            no_clock,
            facts(set(at(0.0), -86_400), Some(at(0.0)), None),
            facts(set(at(60.0), -7200), None, Some(at(0.0))),
            facts(rebooted(at(0.0)), None, Some(at(7200.0))),
        ];
        sights.iter().flat_map(check).collect()
    }
}
