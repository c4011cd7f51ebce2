//! Periods: whether a schedule contains a minute.
//!
//! GitLab's `periods` are five-field cron expressions that denote a set of minutes. They are parsed when they enter
//! the process (configuration, journal); evaluating them is pure.

use std::fmt;

use cronexpr::Crontab;
use serde::{Deserialize, Serialize};

use super::time::Stamp;

/// The periods of one policy entry, as text with its zone, and parsed.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "ScheduleText", into = "ScheduleText")]
pub struct Schedule {
    text: ScheduleText,
    periods: Vec<Crontab>,
}

/// The periods as the operator wrote them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleText {
    pub periods: Vec<String>,
    /// An IANA name; `UTC` by default.
    pub timezone: String,
}

/// A period that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("period `{period}` in time zone `{timezone}` cannot be read: {problem}")]
pub struct ScheduleError {
    pub period: String,
    pub timezone: String,
    pub problem: String,
}

impl Schedule {
    /// Parses each period in its zone.
    pub fn parse(text: ScheduleText) -> Result<Self, ScheduleError> {
        let mut periods = Vec::with_capacity(text.periods.len());
        for period in &text.periods {
            let wrong = |problem: String| ScheduleError {
                period: period.clone(),
                timezone: text.timezone.clone(),
                problem,
            };
            let fields = period.split_whitespace().count();
            if fields != 5 {
                let hint = "five fields expected (minute hour day month weekday)";
                return Err(wrong(format!("{hint}, found {fields}")));
            }
            let zoned = format!("{period} {}", text.timezone);
            periods.push(cronexpr::parse_crontab(&zoned).map_err(|e| wrong(e.to_string()))?);
        }
        Ok(Self { text, periods })
    }

    /// True if the minute of `now` is in one of the periods.
    pub fn contains(&self, now: Stamp) -> bool {
        let Ok(moment) = jiff::Timestamp::from_second(now.wall_seconds().div_euclid(60) * 60) else {
            return false;
        };
        self.periods.iter().any(|p| p.matches(moment).unwrap_or(false))
    }

    pub fn text(&self) -> &ScheduleText {
        &self.text
    }
}

/// True for a name of the IANA time zone database. [`Schedule::parse`] accepts POSIX zones, too: they read `UTC+1` as one hour
/// *west* of Greenwich, so no configuration may name one.
pub fn is_time_zone(name: &str) -> bool {
    jiff::tz::TimeZone::get(name).is_ok()
}

impl PartialEq for Schedule {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl fmt::Debug for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Schedule({:?} {})", self.text.periods, self.text.timezone)
    }
}

impl TryFrom<ScheduleText> for Schedule {
    type Error = ScheduleError;

    fn try_from(text: ScheduleText) -> Result<Self, ScheduleError> {
        Self::parse(text)
    }
}

impl From<Schedule> for ScheduleText {
    fn from(schedule: Schedule) -> Self {
        schedule.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{BootId, ManagerId};

    fn at(utc: &str) -> Stamp {
        let wall: jiff::Timestamp = utc.parse().unwrap();
        Stamp { wall_ms: wall.as_millisecond(), manager: ManagerId(1), boot: BootId(1), uptime_ms: 0 }
    }

    fn schedule(periods: &[&str], timezone: &str) -> Schedule {
        let periods = periods.iter().map(|p| (*p).to_owned()).collect();
        Schedule::parse(ScheduleText { periods, timezone: timezone.to_owned() }).unwrap()
    }

    #[test]
    fn office_hours_follow_the_zone_and_its_summer_time() {
        let office = schedule(&["* 9-17 * * mon-fri"], "Europe/Berlin");
        for (utc, inside) in [
            ("2026-01-12T08:00:00Z", true),  // 09:00 in winter
            ("2026-01-12T07:59:59Z", false), // 08:59
            ("2026-07-13T07:00:00Z", true),  // 09:00 in summer
            ("2026-07-13T16:00:00Z", false), // 18:00
            ("2026-07-12T10:00:00Z", false), // a Sunday
        ] {
            assert_eq!(office.contains(at(utc)), inside, "{utc}");
        }
    }

    #[test]
    fn any_of_several_periods_suffices() {
        let both = schedule(&["0-4 3 * * *", "* * * * sat,sun"], "UTC");
        assert!(both.contains(at("2026-11-20T03:04:59Z")));
        assert!(!both.contains(at("2026-11-20T03:05:00Z")));
        assert!(both.contains(at("2026-11-21T12:00:00Z")));
    }

    #[test]
    fn a_period_of_seven_fields_is_refused_with_the_expected_form() {
        let text = ScheduleText { periods: vec!["* * 9-17 * * mon-fri *".into()], timezone: "UTC".into() };
        let error = Schedule::parse(text).unwrap_err().to_string();
        assert!(error.contains("five fields expected") && error.contains("found 7"), "{error}");
    }

    #[test]
    fn an_unknown_zone_is_refused_by_name() {
        let text = ScheduleText { periods: vec!["* * * * *".into()], timezone: "Mars/Olympus".into() };
        assert!(Schedule::parse(text).unwrap_err().to_string().contains("Mars/Olympus"));
    }

    #[test]
    fn only_names_of_the_database_are_time_zones() {
        for (name, is_one) in [
            ("UTC", true),
            ("Europe/Berlin", true),
            ("europe/berlin", true),
            ("Etc/GMT-1", true),
            ("UTC+1", false),
            ("+01:00", false),
            ("CET-1CEST", false),
            (" UTC", false),
            ("", false),
        ] {
            assert_eq!(is_time_zone(name), is_one, "{name}");
        }
    }

    #[test]
    fn a_schedule_survives_the_journal() {
        let office = schedule(&["* 9-17 * * mon-fri"], "Europe/Berlin");
        let text = serde_json::to_string(&office).unwrap();
        assert_eq!(serde_json::from_str::<Schedule>(&text).unwrap(), office);
    }

    #[test]
    fn the_hour_that_summer_time_skips_or_repeats_is_taken_as_the_clock_shows_it() {
        let night = schedule(&["* 2 * * *"], "Europe/Berlin");
        for (utc, inside) in [
            ("2026-03-29T00:59:00Z", false), // 01:59, then the clock shows 03:00
            ("2026-03-29T01:00:00Z", false), // 03:00
            ("2026-10-25T00:00:00Z", true),  // 02:00 the first time
            ("2026-10-25T01:30:00Z", true),  // 02:30 the second time
            ("2026-10-25T02:00:00Z", false), // 03:00
        ] {
            assert_eq!(night.contains(at(utc)), inside, "{utc}");
        }
    }

    #[test]
    fn every_second_of_a_minute_is_inside_or_none_is() {
        let minute = schedule(&["5 3 * * *"], "UTC");
        for (utc, inside) in [
            ("2026-11-20T03:04:59.999Z", false),
            ("2026-11-20T03:05:00Z", true),
            ("2026-11-20T03:05:59.999Z", true),
            ("2026-11-20T03:06:00Z", false),
            ("1969-12-31T03:05:30Z", true),
        ] {
            assert_eq!(minute.contains(at(utc)), inside, "{utc}");
        }
        let never = Stamp { wall_ms: i64::MAX, manager: ManagerId(1), boot: BootId(1), uptime_ms: 0 };
        assert!(!schedule(&["* * * * *"], "UTC").contains(never), "no such date");
    }

    #[test]
    fn schedules_are_the_same_if_their_words_are() {
        let office = || schedule(&["* 9-17 * * mon-fri"], "Europe/Berlin");
        assert_eq!(office(), office());
        assert_ne!(office(), schedule(&["* 9-17 * * mon-fri"], "UTC"));
        assert_ne!(office(), schedule(&["* 9-16 * * mon-fri"], "Europe/Berlin"));
        assert_eq!(office().text().timezone, "Europe/Berlin");
        assert_eq!(format!("{:?}", office()), "Schedule([\"* 9-17 * * mon-fri\"] Europe/Berlin)");
    }
}
