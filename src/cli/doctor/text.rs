//! Findings as text.

use anstyle::AnsiColor;
use greenroom_ports::finding::{Finding, Severity};

use super::Examination;
use crate::cli::rows::wrapped;
use crate::cli::ui::{paint, plural};

/// One block for each finding, the worst first, and a last line that sums up.
pub(super) fn text(examined: &Examination, width: usize) -> String {
    let mut text = String::new();
    for line in &examined.repaired {
        text.push_str(&wrapped(&format!("repaired: {line}"), width, "", "  "));
    }
    if !examined.repaired.is_empty() {
        text.push('\n');
    }
    for finding in &examined.findings {
        text.push_str(&block(finding, width));
        text.push('\n');
    }
    for line in &examined.seen {
        text.push_str(&wrapped(line, width, "", "  "));
    }
    if !examined.seen.is_empty() {
        text.push('\n');
    }
    text.push_str(&wrapped(&summary(examined), width, "", "  "));
    text
}

fn block(finding: &Finding, width: usize) -> String {
    let Finding { code, severity, message: what, remedy } = finding;
    let head = format!("{severity} [{code}]");
    let plain = wrapped(&format!("{head}: {what}"), width, "", "  ");
    // Painted after wrapping, so that escapes count for no column.
    let mut block =
        plain.replacen(&severity.to_string(), &paint(colour(*severity), &severity.to_string()), 1);
    if let Some(remedy) = remedy {
        block.push_str(&wrapped(&format!("help: {remedy}"), width, "  ", "        "));
    }
    block
}

fn colour(severity: Severity) -> AnsiColor {
    match severity {
        Severity::Error => AnsiColor::Red,
        Severity::Warning => AnsiColor::Yellow,
        Severity::Note => AnsiColor::Cyan,
    }
}

fn summary(examined: &Examination) -> String {
    let checked = examined.checked.join(", ");
    if examined.findings.is_empty() {
        return format!("doctor: all good; checked: {checked}");
    }
    let count = |severity| examined.findings.iter().filter(|f| f.severity == severity).count();
    format!(
        "doctor: {}, {}, {}; checked: {checked}",
        plural(count(Severity::Error), "error"),
        plural(count(Severity::Warning), "warning"),
        plural(count(Severity::Note), "note"),
    )
}
