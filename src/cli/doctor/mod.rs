//! `doctor`: diagnoses the installation and suggests fixes.

pub(in crate::cli) mod boot;
mod clean_script;
pub mod clock;
pub mod code;
pub(in crate::cli) mod command;
mod config;
mod containers;
mod examine;
mod host_containers;
mod hosts;
pub mod keeper;
mod links;
mod metrics;
mod notify;
mod pin;
mod place;
pub mod pools;
mod provider;
mod recorded;
mod repair;
pub mod runner;
mod text;
mod trial;

use greenroom_ports::finding::{Finding, Severity};
use serde::Serialize;
use serde_json::Value;

/// What was checked, and the findings, as text and as JSON. Field names are stable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Examination {
    /// The worst first, otherwise in the order of the checks.
    findings: Vec<Finding>,
    /// What was checked.
    checked: Vec<&'static str>,
    /// Information without a severity, in sentences.
    seen: Vec<String>,
    /// What `--repair`, `--take-over` or `--new-owner` did.
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

    /// For a terminal of `width` columns.
    pub fn text(&self, width: usize) -> String {
        text::text(self, width)
    }

    pub fn json(&self) -> Value {
        // Texts only: nothing in it can fail to be JSON.
        serde_json::to_value(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
