//! The outcomes of a kit's run, counted and ready for JSON.

use serde::Serialize;

use super::check::{Group, Outcome, Verdict};

/// A run of the kit. Field names are stable.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// True if no check failed.
    pub conforms: bool,
    pub program: String,
    /// As the program names itself; `None`: it did not.
    pub name: Option<String>,
    /// True if machines were made.
    pub live: bool,
    pub passed: usize,
    pub failed: usize,
    pub warned: usize,
    pub skipped: usize,
    /// Calls of the program.
    pub calls: u32,
    pub checks: Vec<CheckReport>,
    /// IDs of machines and other resources that the clean-up could not end.
    pub remaining: Vec<String>,
}

/// One check.
#[derive(Debug, Clone, Serialize)]
pub struct CheckReport {
    pub name: &'static str,
    pub group: Group,
    pub result: Result,
    pub expected: &'static str,
    /// What came instead.
    pub actual: Option<String>,
    /// Why it was skipped.
    pub reason: Option<String>,
    pub help: Option<&'static str>,
    pub seconds: f64,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Result {
    Failed,
    Warned,
    Passed,
    Skipped,
}

impl Report {
    pub fn new(program: String, name: Option<String>, live: bool, outcomes: Vec<Outcome>) -> Self {
        let checks: Vec<CheckReport> = outcomes.into_iter().map(CheckReport::of).collect();
        let count = |result| checks.iter().filter(|check| check.result == result).count();
        let failed = count(Result::Failed);
        Self {
            conforms: failed == 0,
            program,
            name,
            live,
            passed: count(Result::Passed),
            failed,
            warned: count(Result::Warned),
            skipped: count(Result::Skipped),
            calls: 0,
            checks,
            remaining: Vec::new(),
        }
    }
}

impl CheckReport {
    fn of(outcome: Outcome) -> Self {
        let Outcome { check, verdict, took } = outcome;
        let (result, actual, reason) = match verdict {
            Verdict::Passed => (Result::Passed, None, None),
            Verdict::Warned(came) => (Result::Warned, Some(came), None),
            Verdict::Failed(came) => (Result::Failed, Some(came), None),
            Verdict::Skipped(why) => (Result::Skipped, None, Some(why)),
        };
        Self {
            name: check.name,
            group: check.group,
            result,
            expected: check.expects,
            help: actual.is_some().then_some(check.help),
            actual,
            reason,
            seconds: (took.as_secs_f64() * 1000.0).round() / 1000.0,
        }
    }
}
