//! The report of a kit, for people.

use std::fmt::Write as _;

use anstyle::AnsiColor;
use greenroom_backends::program::kit::report::{CheckReport, Report, Result};

use crate::cli::ui::paint;

/// The failed checks first, then warnings, what was skipped and why, and the counts. `subject`: what was checked, as a
/// noun.
pub(in crate::cli) fn render(report: &Report, subject: &str) -> String {
    let mut text = String::new();
    for result in [Result::Failed, Result::Warned] {
        for check in report.checks.iter().filter(|check| check.result == result) {
            write_full(&mut text, check);
        }
    }
    let passed: Vec<&str> = of(report, Result::Passed).map(|check| check.name).collect();
    if !passed.is_empty() {
        writeln!(text, "{} {}", paint(AnsiColor::Green, "passed"), passed.join(", ")).ok();
    }
    // One line for each reason: most checks are skipped for the same one.
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for check in of(report, Result::Skipped) {
        let reason = check.reason.as_deref().unwrap_or_default();
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, names)) => names.push(check.name),
            None => reasons.push((reason, vec![check.name])),
        }
    }
    for (reason, names) in reasons {
        writeln!(text, "skipped {}: {reason}", names.join(", ")).ok();
    }
    text.push_str(&summary(report, subject));
    text
}

fn of(report: &Report, result: Result) -> impl Iterator<Item = &CheckReport> {
    report.checks.iter().filter(move |check| check.result == result)
}

fn write_full(text: &mut String, check: &CheckReport) {
    let head = match check.result {
        Result::Failed => paint(AnsiColor::Red, "FAILED"),
        _ => paint(AnsiColor::Yellow, "warned"),
    };
    writeln!(text, "{head} {}", check.name).ok();
    writeln!(text, "  expected: {}", check.expected).ok();
    writeln!(text, "  actual:   {}", check.actual.as_deref().unwrap_or_default()).ok();
    if let Some(help) = check.help {
        writeln!(text, "  help:     {help}").ok();
    }
    text.push('\n');
}

fn summary(report: &Report, subject: &str) -> String {
    let Report { passed, failed, warned, skipped, .. } = report;
    let mut text = format!("\n{passed} passed, {failed} failed, {warned} warned, {skipped} skipped: ");
    let verdict = match (report.conforms, report.live) {
        (true, true) => "conforms",
        (true, false) => "conforms as far as it can be judged without machines",
        (false, _) => "does not conform",
    };
    writeln!(text, "the {subject} {verdict}.").ok();
    if !report.remaining.is_empty() {
        let all = report.remaining.join(", ");
        writeln!(text, "{}: {all}", paint(AnsiColor::Red, "LEFT, and perhaps costing money")).ok();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use greenroom_backends::program::kit::check::{Check, Group, Outcome, Verdict, check, named};

    use super::*;

    static CHECKS: [Check; 4] = [
        check("capabilities", Group::Cheap, "The program describes itself.", "read the log"),
        check("launch", Group::Live, "`launch` answers.", "call `launch` by hand"),
        check("login", Group::Live, "The key can log in.", "install the key"),
        check("host-key", Group::Live, "The host key is the right one.", "install the host key"),
    ];

    #[test]
    fn failures_come_first_with_what_to_do_and_equal_reasons_share_a_line() {
        let outcome = |name, verdict| Outcome { check: named(&CHECKS, name), verdict, took: Duration::ZERO };
        let skipped = || Verdict::Skipped("no machine".to_owned());
        let outcomes = vec![
            outcome("capabilities", Verdict::Passed),
            outcome("launch", Verdict::Failed("`launch` was refused".to_owned())),
            outcome("login", skipped()),
            outcome("host-key", skipped()),
        ];
        let text = render(&Report::new("./mine".to_owned(), None, true, outcomes), "program");
        let text = anstream::adapter::strip_str(&text).to_string();
        assert!(text.starts_with("FAILED launch\n  expected: `launch` answers"), "{text}");
        assert!(text.contains("  help:     call `launch` by hand"), "{text}");
        assert!(text.contains("passed capabilities\nskipped login, host-key: no machine\n"), "{text}");
        assert!(
            text.ends_with("1 passed, 1 failed, 0 warned, 2 skipped: the program does not conform.\n"),
            "{text}"
        );
    }
}
