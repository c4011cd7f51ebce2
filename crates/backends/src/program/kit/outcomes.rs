//! What became of each check of a run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::check::{Check, Group, Judged, Outcome, Verdict, named};

/// The outcomes so far.
#[derive(Debug)]
pub struct Outcomes {
    checks: &'static [Check],
    /// The first violation of each check that every call is judged by.
    violated: RefCell<BTreeMap<&'static str, Verdict>>,
    made: RefCell<Vec<Outcome>>,
}

impl Outcomes {
    pub fn new(checks: &'static [Check]) -> Self {
        Self { checks, violated: RefCell::default(), made: RefCell::default() }
    }

    /// Records that a call broke what every call has to keep.
    pub fn violate(&self, check: &'static str, verdict: Verdict) {
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
        let verdict = judged.err().unwrap_or(Verdict::Passed);
        let check = named(self.checks, name);
        let mut made = self.made.borrow_mut();
        if let Some(earlier) = made.iter().find(|outcome| outcome.check == check) {
            return earlier.verdict == Verdict::Passed;
        }
        let is_passed = verdict == Verdict::Passed;
        made.push(Outcome { check, verdict, took: begun.elapsed() });
        is_passed
    }

    /// The number of failed checks.
    pub fn failures(&self) -> usize {
        let is_failure = |verdict: &&Verdict| matches!(verdict, Verdict::Failed(_));
        let (made, violated) = (self.made.borrow(), self.violated.borrow());
        let verdicts = made.iter().map(|outcome| &outcome.verdict).chain(violated.values());
        verdicts.filter(is_failure).count()
    }

    /// The outcome of every check of these groups, in the order of the table. `why`: the reason why the rest was not
    /// made.
    pub fn all(&self, groups: &[Group], why: &str) -> Vec<Outcome> {
        let (made, violated) = (self.made.borrow(), self.violated.borrow());
        let outcome = |check: &'static Check| {
            let of_calls = || violated.get(check.name).cloned().unwrap_or(Verdict::Passed);
            let verdict = match check.group {
                Group::Calls => of_calls(),
                Group::Cheap | Group::Live => match made.iter().find(|outcome| outcome.check == check) {
                    Some(found) => return found.clone(),
                    None => Verdict::Skipped(why.to_owned()),
                },
            };
            Outcome { check, verdict, took: Duration::ZERO }
        };
        self.checks.iter().filter(|check| groups.contains(&check.group)).map(outcome).collect()
    }
}
