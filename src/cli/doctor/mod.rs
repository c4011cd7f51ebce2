//! `doctor`: diagnoses the installation and suggests fixes.

pub(in crate::cli) mod boot;
pub mod clock;
pub mod code;
mod config;
mod containers;
mod examine;
mod host_containers;
mod hosts;
pub mod keeper;
mod links;
mod pin;
pub mod pools;
mod provider;
mod recorded;
mod repair;
mod reporting;
pub mod runner;
mod state_dir;

use std::path::Path;

use anstyle::AnsiColor;
use greenroom_ports::finding::{Finding, Severity};
use serde::Serialize;
use serde_json::Value;

use super::args::{DoctorOptions, GlobalOptions};
use super::context::config_file;
use super::error::CliError;
use super::program;
use super::ui::{self, paint, plural, wrapped};
use examine::{CheckPaths, examine};
use keeper::UNIT_DIRS;

/// The subjects of all checks, and the findings, as text and as JSON. Field names are stable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Examination {
    /// The worst first, otherwise in the order of the checks.
    findings: Vec<Finding>,
    /// The subjects of the checks.
    checked: Vec<&'static str>,
    /// Information without a severity, in sentences.
    seen: Vec<String>,
    /// The changes by `--repair`, `--take-over` or `--new-owner`, in sentences.
    repaired: Vec<String>,
}

impl Examination {
    /// Takes the findings of one check, named for the last line.
    pub(crate) fn add(&mut self, checked: &'static str, findings: impl IntoIterator<Item = Finding>) {
        if !self.checked.contains(&checked) {
            self.checked.push(checked);
        }
        self.findings.extend(findings);
        self.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    }

    /// Adds information that is not a finding.
    pub(crate) fn saw(&mut self, what: impl Into<String>) {
        self.seen.push(what.into());
    }

    /// Adds what was changed before the checks.
    pub(crate) fn repaired(&mut self, what: impl Into<String>) {
        self.repaired.push(what.into());
    }

    /// True if an error is among the findings. Then the exit status is 1.
    pub fn is_bad(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Error)
    }

    /// The report for a terminal of `width` columns.
    pub fn text(&self, width: usize) -> String {
        text(self, width)
    }

    pub fn json(&self) -> Value {
        // Texts only: nothing in it can fail to be JSON.
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// The directory that exists if systemd manages the runner host: `sd_booted(3)`.
const SYSTEMD: &str = "/run/systemd/system";

/// Examines the installation; false if an error is among the findings.
pub(in crate::cli) async fn doctor(place: &GlobalOptions, options: &DoctorOptions) -> Result<bool, CliError> {
    if let Some(host) = &options.pin {
        return pin::pin(place, options, host).await;
    }
    if let Some(host) = &options.clean_script {
        return pin::print_clean_script(place, options.pool.as_deref(), host);
    }
    if let Some(pool) = &options.boot {
        return boot::boot(place, pool).await;
    }
    let config = config_file(place)?;
    let program = program::driver()?;
    let unit_dirs: Vec<&Path> = UNIT_DIRS.iter().map(Path::new).collect();
    let paths = CheckPaths {
        config: &config,
        state_dir: place.state_dir.as_deref(),
        program: &program,
        unit_dirs: &unit_dirs,
        has_systemd: Path::new(SYSTEMD).is_dir(),
    };
    let examined = examine(&paths, options).await?;
    if options.json {
        ui::out(&format!("{:#}\n", examined.json()));
    } else {
        ui::out(&examined.text(ui::width()));
    }
    Ok(!examined.is_bad())
}

/// One block for each finding, the worst first, and a last line that sums up.
fn text(examined: &Examination, width: usize) -> String {
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

#[cfg(test)]
mod tests;
