//! `periods` and `timezone` of an entry in `[[pool.NAME.policy]]`.

use greenroom_core::schedule::{Schedule, ScheduleText, is_time_zone};
use greenroom_keys::problem::Problem;
use greenroom_keys::table::Table;
use greenroom_keys::value_error::Got;

/// The fields of a period: their lowest and highest value, and the names that they take.
const FIELDS: [(u8, u8, &[&str]); 5] = [
    (0, 59, &[]),
    (0, 23, &[]),
    (1, 31, &[]),
    (1, 12, &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]),
    (0, 6, &["sun", "mon", "tue", "wed", "thu", "fri", "sat"]),
];

/// The schedule of an entry; `None` if its periods or its zone cannot be read.
pub(super) fn schedule(entry: &Table<'_>) -> Option<Schedule> {
    let zone = entry.text("timezone");
    let help = "set `periods`, such as `[\"* 9-17 * * mon-fri\"]` (minute, hour, day, month, weekday)";
    let periods = entry.required("periods", entry.texts("periods"), help);
    let mut timezone = zone.or_declared();
    let mut readable = !zone.is_bad();
    if let Got::Good(_, place) = zone {
        // Checked separately, so that a wrong time zone is not reported as a wrong period.
        if !is_time_zone(&timezone) {
            let title = format!("unknown time zone `{timezone}`");
            entry.report(Problem::new(title).at(place, "unknown").help(zone_help(&timezone)));
            "UTC".clone_into(&mut timezone);
            readable = false;
        }
    }
    let periods = periods.into_value()?;
    for (period, place) in &periods {
        let text = ScheduleText { periods: vec![period.clone()], timezone: timezone.clone() };
        if let Err(wrong) = Schedule::parse(text) {
            let title = format!("the period `{}` is invalid", wrong.period);
            let (problem, help) = if let Some((range, better)) = ascending(period) {
                (
                    format!("the range `{range}` is in descending order"),
                    format!("split the range where its field starts again: `\"{better}\"`"),
                )
            } else {
                // The parser adds a caret of its own under its last line.
                let problem = wrong.problem.lines().next_back().unwrap_or_default();
                let help =
                    "use five fields (minute, hour, day, month, weekday), such as \"* 9-17 * * mon-fri\"";
                (problem.trim_start_matches([' ', '^']).to_owned(), help.to_owned())
            };
            entry.report(Problem::new(title).at(place.clone(), problem).help(help));
            readable = false;
        }
    }
    let periods = periods.into_iter().map(|(period, _)| period).collect();
    readable.then(|| Schedule::parse(ScheduleText { periods, timezone }).ok()).flatten()
}

/// The help for a time zone that does not exist.
fn zone_help(zone: &str) -> String {
    let help = "use a name of the IANA time zone database, such as \"Europe/Berlin\" or \"UTC\"";
    // `Etc/GMT-1` is east of Greenwich, `UTC+1` too, and POSIX reads `UTC+1` as west of it.
    let offset = zone.trim_start_matches(|letter: char| letter.is_ascii_alphabetic());
    let hours = offset.trim_end_matches(":00").parse::<i8>();
    match hours {
        Ok(hours @ (-12..=14)) if offset.starts_with(['+', '-']) && hours != 0 => {
            let sign = if hours > 0 { '-' } else { '+' };
            let hours = hours.unsigned_abs();
            format!(
                "{help}; the zone {offset} hours from UTC, without summer time, is \"Etc/GMT{sign}{hours}\""
            )
        }
        _ => help.to_owned(),
    }
}

/// The first range of a period in descending order, such as `22-6`, and the period with all such ranges split.
fn ascending(period: &str) -> Option<(String, String)> {
    let mut first = None;
    let mut fields = Vec::new();
    for (at, field) in period.split_whitespace().enumerate() {
        let parts: Vec<String> = field
            .split(',')
            .map(|part| match FIELDS.get(at).and_then(|limits| split(part, *limits)) {
                Some(better) => {
                    first.get_or_insert_with(|| part.to_owned());
                    better
                }
                None => part.to_owned(),
            })
            .collect();
        fields.push(if parts.iter().any(|part| part == "*") { "*".to_owned() } else { parts.join(",") });
    }
    let better = fields.join(" ");
    let text = ScheduleText { periods: vec![better.clone()], timezone: "UTC".to_owned() };
    // Only what can be read is recommended.
    first.filter(|_| Schedule::parse(text).is_ok()).map(|range| (range, better))
}

/// A range in descending order, as ranges in ascending order; `None` for anything else.
fn split(part: &str, (lowest, highest, names): (u8, u8, &[&str])) -> Option<String> {
    let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
    let (from, to) = range.split_once('-')?;
    let value = |text: &str| {
        let named = names.iter().position(|name| name.eq_ignore_ascii_case(text));
        named.and_then(|at| u8::try_from(at).ok()).map(|at| at + lowest).or_else(|| text.parse().ok())
    };
    let first = value(from)?;
    let last = value(to)?;
    if first <= last || last < lowest || first > highest {
        return None;
    }
    let shown = |value: u8| match names.get(usize::from(value - lowest)) {
        Some(name) if range.starts_with(|letter: char| letter.is_ascii_alphabetic()) => (*name).to_owned(),
        _ => value.to_string(),
    };
    if let Some(step) = step {
        let step = usize::from(step.parse::<u8>().ok().filter(|step| *step > 0)?);
        let all: Vec<u8> = (first..=highest).chain(lowest..=last).step_by(step).collect();
        return Some(all.into_iter().map(shown).collect::<Vec<_>>().join(","));
    }
    if last + 1 == first {
        return Some("*".to_owned());
    }
    let one = |from: u8, to: u8| {
        if from == to { shown(from) } else { format!("{}-{}", shown(from), shown(to)) }
    };
    Some(format!("{},{}", one(first, highest), one(lowest, last)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::fails_with;

    #[test]
    fn descending_ranges_are_split() {
        for (period, range, better) in [
            ("* 22-6 * * *", "22-6", "* 22-23,0-6 * * *"),
            ("* 22-0 * * *", "22-0", "* 22-23,0 * * *"),
            ("* 23-6 * * *", "23-6", "* 23,0-6 * * *"),
            ("* 8,22-6 * * *", "22-6", "* 8,22-23,0-6 * * *"),
            ("*/5 22-6/2 * * *", "22-6/2", "*/5 22,0,2,4,6 * * *"),
            ("* * * * fri-mon", "fri-mon", "* * * * fri-sat,sun-mon"),
            ("* * * * Fri-Mon", "Fri-Mon", "* * * * fri-sat,sun-mon"),
            ("* * * * mon-sun", "mon-sun", "* * * * *"),
            ("* * * * tue-sun", "tue-sun", "* * * * tue-sat,sun"),
            ("* * * * 5-1", "5-1", "* * * * 5-6,0-1"),
            ("* 22-6 * * fri-mon", "22-6", "* 22-23,0-6 * * fri-sat,sun-mon"),
            ("* * * nov-feb *", "nov-feb", "* * * nov-dec,jan-feb *"),
            ("* * 28-3 * *", "28-3", "* * 28-31,1-3 * *"),
            ("50-10 * * * *", "50-10", "50-59,0-10 * * * *"),
        ] {
            assert_eq!(ascending(period), Some((range.to_owned(), better.to_owned())), "{period}");
        }
        for period in
            ["* 9-17 * * *", "* 25-6 * * *", "* 22-6", "* 22-6 * * fun", "* a-b * * *", "* 22-6/0 * * *", ""]
        {
            assert_eq!(ascending(period), None, "{period}");
        }
    }

    #[test]
    fn an_offset_gets_the_zone_that_has_it() {
        for (zone, name) in
            [("UTC+1", "\"Etc/GMT-1\""), ("GMT-5", "\"Etc/GMT+5\""), ("+02:00", "\"Etc/GMT-2\"")]
        {
            let help = zone_help(zone);
            assert!(help.ends_with(name), "{help}");
            let zone = name.trim_matches('"');
            assert!(is_time_zone(zone), "{zone}");
        }
        for zone in ["Mars/Olympus", "UTC+25", "UTC+0", "", "+"] {
            assert!(zone_help(zone).ends_with("\"UTC\""), "{zone}");
        }
    }

    #[test]
    fn periods_and_zones_that_cannot_be_read_are_pointed_at_one_by_one() {
        fails_with(
            "[pool.linux]\nmax_instances = 2\nprovider.kind = \"local\"\n[[pool.linux.policy]]\n\
             periods = [\"* 9-17 * * mon-fri\", \"* * 9-17 * * mon-fri *\", \"* 25 * * *\"]\ntimezone = \"Europa/Berlin\"\n",
            r#"
error: the period `* * 9-17 * * mon-fri *` is invalid
 --> greenroom.toml:5:34
  |
5 | periods = ["* 9-17 * * mon-fri", "* * 9-17 * * mon-fri *", "* 25 * * *"]
  |                                  ^^^^^^^^^^^^^^^^^^^^^^^^ five fields expected (minute hour day month weekday), found 7
  |
  = help: use five fields (minute, hour, day, month, weekday), such as "* 9-17 * * mon-fri"

error: the period `* 25 * * *` is invalid
 --> greenroom.toml:5:60
  |
5 | periods = ["* 9-17 * * mon-fri", "* * 9-17 * * mon-fri *", "* 25 * * *"]
  |                                                            ^^^^^^^^^^^^ value must be in range 0..=23; found 25
  |
  = help: use five fields (minute, hour, day, month, weekday), such as "* 9-17 * * mon-fri"

error: unknown time zone `Europa/Berlin`
 --> greenroom.toml:6:12
  |
6 | timezone = "Europa/Berlin"
  |            ^^^^^^^^^^^^^^^ unknown
  |
  = help: use a name of the IANA time zone database, such as "Europe/Berlin" or "UTC"
"#,
        );
    }

    #[test]
    fn a_descending_range_and_an_offset_as_a_zone_come_with_the_way_to_write_them() {
        fails_with(
            "[pool.linux]\nmax_instances = 2\nprovider.kind = \"local\"\n[[pool.linux.policy]]\n\
             periods = [\"* 22-6 * * *\", \"* * * * fri-mon\"]\ntimezone = \"UTC+1\"\n",
            r#"
error: the period `* 22-6 * * *` is invalid
 --> greenroom.toml:5:12
  |
5 | periods = ["* 22-6 * * *", "* * * * fri-mon"]
  |            ^^^^^^^^^^^^^^ the range `22-6` is in descending order
  |
  = help: split the range where its field starts again: `"* 22-23,0-6 * * *"`

error: the period `* * * * fri-mon` is invalid
 --> greenroom.toml:5:28
  |
5 | periods = ["* 22-6 * * *", "* * * * fri-mon"]
  |                            ^^^^^^^^^^^^^^^^^ the range `fri-mon` is in descending order
  |
  = help: split the range where its field starts again: `"* * * * fri-sat,sun-mon"`

error: unknown time zone `UTC+1`
 --> greenroom.toml:6:12
  |
6 | timezone = "UTC+1"
  |            ^^^^^^^ unknown
  |
  = help: use a name of the IANA time zone database, such as "Europe/Berlin" or "UTC"; the zone +1 hours from UTC, without summer time, is "Etc/GMT-1"
"#,
        );
    }
}
