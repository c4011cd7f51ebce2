//! The results in the XML format of JUnit: a suite for each step, flaky tests as Maven's Surefire marks them.
//!
//! The format needs five elements. The crate `quick-junit` would add five libraries to Cargo.lock for them.

use std::fmt::Write as _;

use crate::output::{FailedTest, TestResult};
use crate::report::StepReport;
use crate::summary::SkippedTests;

/// The document of all steps that were run.
pub fn render(reports: &[StepReport], skipped: &SkippedTests) -> String {
    let suites: String = reports.iter().map(|report| suite(report, skipped)).collect();
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"scripts/test\">\n{suites}</testsuites>\n"
    )
}

/// A test case, and the element inside it that says how it ended.
struct Case {
    class: String,
    name: String,
    inner: Option<String>,
}

fn suite(report: &StepReport, skipped: &SkippedTests) -> String {
    let mut cases: Vec<Case> = Vec::new();
    let element = |tag: &str, test: &FailedTest| {
        let message = test.message.join("\n");
        format!("<{tag} message=\"{}\"/>", escaped(&message))
    };
    let named = |tests: &[FailedTest], name: &str| tests.iter().find(|test| test.name == name).cloned();
    for step_case in &report.cases {
        let name = &step_case.case.name;
        let reason = skipped.reason(&format!("{}::{name}", step_case.program));
        let inner = if let Some(test) = named(&report.failed, name) {
            Some(element("failure", &test))
        } else if let Some(test) = named(&report.flaky, name) {
            Some(element("flakyFailure", &test))
        } else if let Some(reason) = reason {
            Some(format!("<skipped message=\"{}\"/>", escaped(reason)))
        } else {
            (step_case.case.result == TestResult::Ignored)
                .then(|| "<skipped message=\"ignored\"/>".to_owned())
        };
        cases.push(Case { class: step_case.program.clone(), name: name.clone(), inner });
    }
    // Failures of tests without a line of their own: those of programs that ended early, and of Python.
    let is_new = |test: &&FailedTest| report.cases.iter().all(|step_case| step_case.case.name != test.name);
    for (tag, tests) in [("failure", &report.failed), ("flakyFailure", &report.flaky)] {
        for test in tests.iter().filter(is_new) {
            let inner = Some(element(tag, test));
            cases.push(Case { class: report.name.clone(), name: test.name.clone(), inner });
        }
    }
    let has_failure =
        cases.iter().any(|case| case.inner.as_ref().is_some_and(|inner| inner.starts_with("<failure")));
    match &report.result {
        Err(why) if !has_failure => {
            let test = FailedTest { name: report.name.clone(), message: vec![why.to_string()] };
            let inner = Some(element("failure", &test));
            cases.push(Case { class: "scripts/test".to_owned(), name: test.name, inner });
        }
        Ok(()) if cases.is_empty() => {
            cases.push(Case { class: "scripts/test".to_owned(), name: report.name.clone(), inner: None });
        }
        Ok(()) | Err(_) => {}
    }
    written(report, &cases)
}

fn written(report: &StepReport, cases: &[Case]) -> String {
    let count = |tag: &str| {
        cases.iter().filter(|case| case.inner.as_ref().is_some_and(|inner| inner.starts_with(tag))).count()
    };
    let mut text = format!(
        "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"0\" skipped=\"{}\" time=\"{:.3}\">\n",
        escaped(&report.name),
        cases.len(),
        count("<failure"),
        count("<skipped"),
        report.elapsed.as_secs_f64()
    );
    for case in cases {
        let (class, name) = (escaped(&case.class), escaped(&case.name));
        let written = match &case.inner {
            Some(inner) => {
                writeln!(text, "    <testcase classname=\"{class}\" name=\"{name}\">{inner}</testcase>")
            }
            None => writeln!(text, "    <testcase classname=\"{class}\" name=\"{name}\"/>"),
        };
        written.ok();
    }
    if !report.is_passed() {
        writeln!(text, "    <system-out>{}</system-out>", escaped(&report.output)).ok();
    }
    text.push_str("  </testsuite>\n");
    text
}

/// Text for an attribute or an element. Characters that XML cannot have become a replacement.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push_str("&#10;"),
            '\t' => escaped.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::TestCase;
    use crate::process::ProcessEnd;
    use crate::report::{StepCase, StepFailure};
    use crate::summary::tests::report;

    fn case(name: &str, result: TestResult) -> StepCase {
        StepCase { program: "jobs".to_owned(), case: TestCase { name: name.to_owned(), result } }
    }

    #[test]
    fn each_step_is_a_suite_with_its_tests() {
        let failed = |name: &str, message: &str| FailedTest {
            name: name.to_owned(),
            message: vec![message.to_owned()],
        };
        let mut jobs = report("jobs", Err(StepFailure::Process(ProcessEnd::Exited(101))));
        jobs.cases = [
            ("passes", TestResult::Passed),
            ("fails", TestResult::Failed),
            ("flaps", TestResult::Failed),
            ("skips", TestResult::Passed),
        ]
        .map(|(name, result)| case(name, result))
        .into();
        jobs.failed = vec![failed("fails", "left: \"a\" < right: \u{1b}[1mb")];
        jobs.flaky = vec![failed("flaps", "too late")];
        jobs.output = "a & b".to_owned();
        let format = report("format", Ok(()));
        let limit = StepFailure::Process(ProcessEnd::TimedOut(std::time::Duration::from_hours(1)));
        let lint = report("lint", Err(limit));
        let skipped = SkippedTests::read("jobs::skips\tnot root\n");
        assert_eq!(
            render(&[jobs, format, lint], &skipped),
            r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="scripts/test">
  <testsuite name="jobs" tests="4" failures="1" errors="0" skipped="1" time="1.250">
    <testcase classname="jobs" name="passes"/>
    <testcase classname="jobs" name="fails"><failure message="left: &quot;a&quot; &lt; right: �[1mb"/></testcase>
    <testcase classname="jobs" name="flaps"><flakyFailure message="too late"/></testcase>
    <testcase classname="jobs" name="skips"><skipped message="not root"/></testcase>
    <system-out>a &amp; b</system-out>
  </testsuite>
  <testsuite name="format" tests="1" failures="0" errors="0" skipped="0" time="1.250">
    <testcase classname="scripts/test" name="format"/>
  </testsuite>
  <testsuite name="lint" tests="1" failures="1" errors="0" skipped="0" time="1.250">
    <testcase classname="scripts/test" name="lint"><failure message="killed at its limit of 60 min"/></testcase>
    <system-out></system-out>
  </testsuite>
</testsuites>
"#
        );
    }
}
