//! The summary of a run: failed and flaky steps, skipped tests by reason, counts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use crate::report::StepReport;

/// The tests that reported themselves as skipped, by reason. A test of two steps counts once.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SkippedTests(pub BTreeMap<String, BTreeSet<String>>);

impl SkippedTests {
    /// Reads the file that `GREENROOM_SKIPPED` names: a line for each test, which has its name, a tab and the reason.
    pub fn read(text: &str) -> Self {
        let mut reasons: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (test, reason) in text.lines().filter_map(|line| line.split_once('\t')) {
            reasons.entry(reason.to_owned()).or_default().insert(test.to_owned());
        }
        Self(reasons)
    }

    pub fn count(&self) -> usize {
        self.0.values().map(BTreeSet::len).sum()
    }

    /// The reason for which a test was skipped, by the name of its program and its own.
    pub fn reason(&self, test: &str) -> Option<&str> {
        let of_test = self.0.iter().find(|(_, tests)| tests.contains(test));
        of_test.map(|(reason, _)| reason.as_str())
    }
}

/// The text that ends a run.
pub fn render(
    reports: &[StepReport],
    skipped_parts: &[String],
    skipped_tests: &SkippedTests,
    elapsed: Duration,
) -> String {
    let mut text = String::from("\n");
    let mut line = |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").ok();
    for report in reports {
        if let Err(failure) = &report.result {
            line(format_args!("FAILED: {}: {failure}", report.name));
            for test in &report.failed {
                line(format_args!("    {}", test.name));
            }
        }
    }
    for report in reports {
        for test in &report.flaky {
            line(format_args!("FLAKY: {}: {}", report.name, test.name));
        }
    }
    for part in skipped_parts {
        line(format_args!("SKIPPED: {part}"));
    }
    for (reason, tests) in &skipped_tests.0 {
        line(format_args!("SKIPPED: {reason}:"));
        for test in tests {
            line(format_args!("    {test}"));
        }
    }
    line(format_args!(
        "scripts/test: {} steps in {} s; skipped: {} tests, {} parts",
        reports.len(),
        elapsed.as_secs(),
        skipped_tests.count(),
        skipped_parts.len()
    ));
    let passed = reports.iter().filter(|report| report.is_passed()).count();
    line(format_args!("{passed} passed, {} failed", reports.len() - passed));
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::output::FailedTest;
    use crate::process::ProcessEnd;
    use crate::report::StepFailure;

    pub(crate) fn report(name: &str, result: Result<(), StepFailure>) -> StepReport {
        StepReport { elapsed: Duration::from_millis(1_250), result, ..StepReport::new(name) }
    }

    #[test]
    fn the_summary_counts_and_lists_what_failed_was_flaky_and_was_skipped() {
        let test = |name: &str| FailedTest { name: name.to_owned(), message: Vec::new() };
        let failed = Err(StepFailure::Process(ProcessEnd::Exited(101)));
        let reports = [
            StepReport { flaky: vec![test("kill")], ..report("jobs", Ok(())) },
            StepReport { failed: vec![test("boots")], ..report("virtual machines", failed) },
        ];
        let skipped = SkippedTests::read("vm::b\tno KVM\nvm::a\tno KVM\njobs::c\tnot root\nvm::a\tno KVM\n");
        let parts = ["packages: rpm cannot be installed here".to_owned()];
        assert_eq!(
            render(&reports, &parts, &skipped, Duration::from_secs(61)),
            "
FAILED: virtual machines: exit 101
    boots
FLAKY: jobs: kill
SKIPPED: packages: rpm cannot be installed here
SKIPPED: no KVM:
    vm::a
    vm::b
SKIPPED: not root:
    jobs::c
scripts/test: 2 steps in 61 s; skipped: 3 tests, 1 parts
1 passed, 1 failed
"
        );
        assert_eq!(skipped.reason("vm::a"), Some("no KVM"));
        assert_eq!(skipped.reason("vm::c"), None);
    }
}
