//! `doctor`: diagnoses the installation and suggests fixes.

pub(in crate::cli) mod boot;
pub mod clock;
pub mod code;
pub(in crate::cli) mod command;
mod config;
mod examine;
mod hosts;
pub mod keeper;
mod links;
mod pin;
mod place;
pub mod pools;
mod provider;
mod recorded;
mod repair;
pub mod runner;
mod show;
mod trial;

use serde_json::Value;

use crate::port::finding::{Finding, Severity};

/// What was checked, and the findings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Examination {
    /// The worst first, otherwise in the order of the checks.
    findings: Vec<Finding>,
    checked: Vec<&'static str>,
    /// Information without a severity, in sentences.
    seen: Vec<String>,
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
        show::text(self, width)
    }

    pub fn json(&self) -> Value {
        show::as_json(self)
    }
}

#[cfg(test)]
mod tests;
