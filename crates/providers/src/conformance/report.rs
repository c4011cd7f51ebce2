//! The report of a conformance kit: its table of checks, the outcomes of a run, and how both are written.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::verdict::{CheckVerdict, Judged};

/// The time at which a check can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckGroup {
    /// Judged by every call of the run.
    Calls,
    /// The check needs no machine.
    Cheap,
    /// The check needs machines (`--live`).
    Live,
}

/// A promise.
#[derive(Debug, PartialEq, Eq)]
pub struct Check {
    /// Stable, for scripts and searches.
    pub name: &'static str,
    pub group: CheckGroup,
    /// The promise, in one sentence.
    pub expects: &'static str,
    /// Remedy if the check fails, in the imperative.
    pub help: &'static str,
}

/// A check that was made, or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckOutcome {
    pub check: &'static Check,
    pub verdict: CheckVerdict,
    pub took: Duration,
}

pub const fn check(
    name: &'static str,
    group: CheckGroup,
    expects: &'static str,
    help: &'static str,
) -> Check {
    Check { name, group, expects, help }
}

/// The check of a name.
///
/// # Panics
/// If the table has no such check: names are literals, and the kits' tests call each.
pub fn named(checks: &'static [Check], name: &str) -> &'static Check {
    checks.iter().find(|check| check.name == name).expect("each name stands in the table")
}

/// The outcomes so far.
#[derive(Debug)]
pub struct Outcomes {
    checks: &'static [Check],
    /// The first violation of each check that every call is judged by.
    violated: RefCell<BTreeMap<&'static str, CheckVerdict>>,
    made: RefCell<Vec<CheckOutcome>>,
}

impl Outcomes {
    pub fn new(checks: &'static [Check]) -> Self {
        Self { checks, violated: RefCell::default(), made: RefCell::default() }
    }

    /// Records that a call broke what every call has to keep.
    pub fn violate(&self, check: &'static str, verdict: CheckVerdict) {
        self.violated.borrow_mut().entry(check).or_insert(verdict);
    }

    /// Makes a check, unless it has been made; true if it passed.
    pub async fn check(&self, name: &str, work: impl Future<Output = Judged>) -> bool {
        let begun = Instant::now();
        let judged = work.await;
        self.record(name, judged, begun)
    }

    /// Records a check that began at this moment; true if it passed. An earlier record decides.
    pub fn record(&self, name: &str, judged: Judged, begun: Instant) -> bool {
        let verdict = judged.err().unwrap_or(CheckVerdict::Passed);
        let check = named(self.checks, name);
        let mut made = self.made.borrow_mut();
        if let Some(earlier) = made.iter().find(|outcome| outcome.check == check) {
            return earlier.verdict == CheckVerdict::Passed;
        }
        let is_passed = verdict == CheckVerdict::Passed;
        made.push(CheckOutcome { check, verdict, took: begun.elapsed() });
        is_passed
    }

    /// The number of failed checks.
    pub fn failures(&self) -> usize {
        let is_failure = |verdict: &&CheckVerdict| matches!(verdict, CheckVerdict::Failed(_));
        let made = self.made.borrow();
        let violated = self.violated.borrow();
        let verdicts = made.iter().map(|outcome| &outcome.verdict).chain(violated.values());
        verdicts.filter(is_failure).count()
    }

    /// The outcome of every check of these groups, in the order of the table. `why`: the reason why the rest was not
    /// made.
    pub fn all(&self, groups: &[CheckGroup], why: &str) -> Vec<CheckOutcome> {
        let made = self.made.borrow();
        let violated = self.violated.borrow();
        let outcome = |check: &'static Check| {
            let of_calls = || violated.get(check.name).cloned().unwrap_or(CheckVerdict::Passed);
            let verdict = match check.group {
                CheckGroup::Calls => of_calls(),
                CheckGroup::Cheap | CheckGroup::Live => {
                    match made.iter().find(|outcome| outcome.check == check) {
                        Some(found) => return found.clone(),
                        None => CheckVerdict::Skipped(why.to_owned()),
                    }
                }
            };
            CheckOutcome { check, verdict, took: Duration::ZERO }
        };
        self.checks.iter().filter(|check| groups.contains(&check.group)).map(outcome).collect()
    }
}

/// A run of the kit. Field names are stable.
#[derive(Debug, Clone, Serialize)]
pub struct KitReport {
    /// True if no check failed.
    pub conforms: bool,
    pub program: String,
    /// The name that the program gives itself; `None`: it gave none.
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
    pub group: CheckGroup,
    pub result: CheckResult,
    pub expected: &'static str,
    /// The deviation.
    pub actual: Option<String>,
    /// The reason the check was skipped.
    pub reason: Option<String>,
    pub help: Option<&'static str>,
    pub seconds: f64,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CheckResult {
    Failed,
    Warned,
    Passed,
    Skipped,
}

impl KitReport {
    pub fn new(program: String, name: Option<String>, live: bool, outcomes: Vec<CheckOutcome>) -> Self {
        let checks: Vec<CheckReport> = outcomes.into_iter().map(CheckReport::of).collect();
        let count = |result| checks.iter().filter(|check| check.result == result).count();
        let failed = count(CheckResult::Failed);
        Self {
            conforms: failed == 0,
            program,
            name,
            live,
            passed: count(CheckResult::Passed),
            failed,
            warned: count(CheckResult::Warned),
            skipped: count(CheckResult::Skipped),
            calls: 0,
            checks,
            remaining: Vec::new(),
        }
    }
}

impl CheckReport {
    fn of(outcome: CheckOutcome) -> Self {
        let CheckOutcome { check, verdict, took } = outcome;
        let (result, actual, reason) = match verdict {
            CheckVerdict::Passed => (CheckResult::Passed, None, None),
            CheckVerdict::Warned(came) => (CheckResult::Warned, Some(came), None),
            CheckVerdict::Failed(came) => (CheckResult::Failed, Some(came), None),
            CheckVerdict::Skipped(why) => (CheckResult::Skipped, None, Some(why)),
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
