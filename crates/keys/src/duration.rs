//! Durations as operators write them.

use std::time::Duration;

use jiff::SpanRelativeTo;
use jiff::fmt::friendly::SpanParser;

/// Ten years; a longer duration is probably a typo.
const LONGEST: Duration = Duration::from_hours(24 * 365 * 10);

/// The reason [`parse`] takes a text for no duration. Its sentence says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    #[error("{}", no_unit(.number))]
    NoUnit { number: String },
    #[error("a duration cannot be negative")]
    Negative,
    #[error("not a duration such as \"30s\", \"20m\", \"1h 30m\" or \"1d\"")]
    Form,
    #[error("years and months have no fixed length: use days (`d`)")]
    Calendar,
    #[error("longer than ten years")]
    TooLong,
    #[error("the smallest unit is a millisecond (`ms`)")]
    TooFine,
}

/// Parses `30s`, `20m0s`, `1h 30m`, `1.5h`, `1d` (24 hours), `1w`. Accepts whole milliseconds only, because the journal
/// stores those: a policy must be the same after it was written and read.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(DurationError::NoUnit { number: text.to_owned() });
    }
    let negative = text.starts_with('-') || text.ends_with(" ago");
    if negative {
        return Err(DurationError::Negative);
    }
    let span = SpanParser::new().parse_span(text).map_err(|_| DurationError::Form)?;
    if span.get_years() != 0 || span.get_months() != 0 {
        return Err(DurationError::Calendar);
    }
    let signed = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| DurationError::TooLong)?;
    let duration = Duration::try_from(signed).map_err(|_| DurationError::Negative)?;
    if duration > LONGEST {
        return Err(DurationError::TooLong);
    }
    if !duration.subsec_nanos().is_multiple_of(1_000_000) {
        return Err(DurationError::TooFine);
    }
    Ok(duration)
}

/// The help for a number without a unit.
pub fn no_unit(number: &str) -> String {
    format!("a number needs its unit: \"{number}s\", \"{number}m\" or \"{number}h\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_usual_ways_to_write_a_duration_are_understood() {
        for (text, seconds) in [
            ("30s", 30.0),
            ("20m0s", 1200.0),
            ("1h 30m", 5400.0),
            ("1h20m", 4800.0),
            ("1.5h", 5400.0),
            ("1d", 86_400.0),
            ("7d", 604_800.0),
            ("1w", 604_800.0),
            ("1d 12h", 129_600.0),
            ("250ms", 0.25),
            ("0s", 0.0),
            (" 5 min ", 300.0),
            ("90 seconds", 90.0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_with_what_to_write_instead() {
        for (text, expected) in [
            ("30", "\"30s\""),
            ("1.5", "needs its unit"),
            ("", "not a duration"),
            ("soon", "not a duration"),
            ("-30s", "cannot be negative"),
            ("30s ago", "cannot be negative"),
            ("1y", "years and months"),
            ("2mo", "years and months"),
            ("500us", "millisecond"),
            ("1h 1ns", "millisecond"),
            ("40000d", "ten years"),
            ("99999999999999999999d", "duration"),
        ] {
            let problem = parse(text).unwrap_err().to_string();
            assert!(problem.contains(expected), "{text}: {problem}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic_and_what_it_accepts_fits_the_journal(text in ".{0,20}") {
            if let Ok(duration) = parse(&text) {
                let ms = u64::try_from(duration.as_millis()).unwrap();
                prop_assert_eq!(Duration::from_millis(ms), duration);
            }
        }

        #[test]
        fn hours_minutes_and_seconds_add_up(h in 0u64..1000, m in 0u64..60, s in 0u64..60) {
            prop_assert_eq!(parse(&format!("{h}h{m}m{s}s")), Ok(Duration::from_secs(h * 3600 + m * 60 + s)));
        }
    }
}
