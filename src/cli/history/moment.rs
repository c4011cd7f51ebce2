//! Moments as operators write them: RFC 3339, a date, a time of day, or how long ago.

use greenroom_keys::duration;
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _, Zoned};

/// The moment of a day that a date alone means: the first or the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Edge {
    Begin,
    End,
}

/// The reasons for which a text is not a moment. Each message is help: it says what is understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum MomentError {
    /// A number alone, which is probably a duration.
    #[error("{}", duration::no_unit(.0))]
    NoUnit(String),
    #[error(
        "name a duration before now such as `12h` or `2d`, a date such as `2026-11-20`, a time such as `22:30`, \
         `2026-11-20 22:30`, or RFC 3339 such as `2026-11-20T22:30:00Z`"
    )]
    NotAMoment,
}

/// Parses a moment into milliseconds since 1970. `edge` decides about a date alone; [`MomentError`] says what is understood.
pub(super) fn parse(text: &str, edge: Edge, now: Timestamp, zone: &TimeZone) -> Result<i64, MomentError> {
    let text = text.trim();
    let zoned = |at: DateTime| at.to_zoned(zone.clone()).ok().map(|at| at.timestamp());
    let today = || now.to_zoned(zone.clone()).date();
    let understood = match text {
        "now" => Some(now),
        "today" => day(today(), edge, zone),
        "yesterday" => today().yesterday().ok().and_then(|date| day(date, edge, zone)),
        _ => text
            .parse::<Timestamp>()
            .ok()
            .or_else(|| text.parse::<Zoned>().ok().map(|at| at.timestamp()))
            .or_else(|| is_date(text).and_then(|date| day(date, edge, zone)))
            .or_else(|| text.parse::<DateTime>().ok().and_then(zoned))
            .or_else(|| time_of_day(text).map(|time| today().to_datetime(time)).and_then(zoned)),
    };
    if let Some(at) = understood {
        return Ok(at.as_millisecond());
    }
    let ago = text.strip_suffix(" ago").unwrap_or(text);
    let ago = duration::parse(ago).map_err(|_| not_a_moment(text))?;
    let ago = i64::try_from(ago.as_millis()).unwrap_or(i64::MAX);
    Ok(now.as_millisecond().saturating_sub(ago))
}

fn not_a_moment(text: &str) -> MomentError {
    // A number without its unit has a better explanation than the list of all forms.
    if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
        return MomentError::NoUnit(text.to_owned());
    }
    MomentError::NotAMoment
}

/// The text as a date, if it has no time: a date with a time is parsed as a date, too.
fn is_date(text: &str) -> Option<Date> {
    (text.len() == "2026-11-20".len()).then(|| text.parse().ok()).flatten()
}

fn time_of_day(text: &str) -> Option<Time> {
    text.contains(':').then(|| text.parse().ok()).flatten()
}

fn day(date: Date, edge: Edge, zone: &TimeZone) -> Option<Timestamp> {
    let begin = |date: Date| Some(date.to_zoned(zone.clone()).ok()?.timestamp());
    match edge {
        Edge::Begin => begin(date),
        Edge::End => begin(date.tomorrow().ok()?)?.checked_sub(1.millisecond()).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, edge: Edge) -> String {
        let now: Timestamp = "2026-11-20T13:00:00Z".parse().unwrap();
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        match parse(text, edge, now, &zone) {
            Ok(ms) => Timestamp::from_millisecond(ms).unwrap().to_string(),
            Err(problem) => problem.to_string(),
        }
    }

    #[test]
    fn each_usual_way_to_write_a_moment_is_understood() {
        for (text, at) in [
            ("12h", "2026-11-20T01:00:00Z"),
            ("2d", "2026-11-18T13:00:00Z"),
            ("1h 30m", "2026-11-20T11:30:00Z"),
            ("90m ago", "2026-11-20T11:30:00Z"),
            ("now", "2026-11-20T13:00:00Z"),
            ("today", "2026-11-19T23:00:00Z"),
            ("yesterday", "2026-11-18T23:00:00Z"),
            ("2026-11-19", "2026-11-18T23:00:00Z"),
            ("2026-11-19 22:30", "2026-11-19T21:30:00Z"),
            ("2026-11-19T22:30:05", "2026-11-19T21:30:05Z"),
            ("2026-11-19T22:30:00Z", "2026-11-19T22:30:00Z"),
            ("2026-11-19T22:30:00+05:30", "2026-11-19T17:00:00Z"),
            ("09:15", "2026-11-20T08:15:00Z"),
        ] {
            assert_eq!(read(text, Edge::Begin), at, "{text}");
        }
    }

    #[test]
    fn the_end_of_a_period_contains_its_day() {
        assert_eq!(read("2026-11-19", Edge::End), "2026-11-19T22:59:59.999Z");
        assert_eq!(read("yesterday", Edge::End), "2026-11-19T22:59:59.999Z");
        assert_eq!(read("2026-11-19 08:00", Edge::End), "2026-11-19T07:00:00Z");
    }

    #[test]
    fn a_day_on_which_the_clocks_change_has_its_own_length() {
        assert_eq!(read("2026-03-29", Edge::Begin), "2026-03-28T23:00:00Z");
        assert_eq!(read("2026-03-29", Edge::End), "2026-03-29T21:59:59.999Z");
    }

    #[test]
    fn what_is_no_moment_is_refused_with_examples() {
        for text in ["", "lastnight", "2026-13-40", "-5h", "25:00", "12 parsecs"] {
            assert!(read(text, Edge::Begin).contains("such as `12h`"), "{text}: {}", read(text, Edge::Begin));
        }
        assert!(read("12", Edge::Begin).contains("needs its unit"), "{}", read("12", Edge::Begin));
    }
}
