//! The results that test programs print: counts, names and messages, from the output of libtest and of Python's
//! `unittest`.

/// Lines of a failure's message that are kept.
const MESSAGE_LINES: usize = 6;
/// Characters of such a line.
const MESSAGE_WIDTH: usize = 400;

/// The end of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TestResult {
    Passed,
    Failed,
    Ignored,
}

/// A test of a program, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestCase {
    pub name: String,
    pub result: TestResult,
}

/// A failed test and the first lines of its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedTest {
    pub name: String,
    pub message: Vec<String>,
}

/// The output of one test program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TestOutput {
    /// The tests whose ends were printed.
    pub cases: Vec<TestCase>,
    pub passed: usize,
    pub failed: Vec<FailedTest>,
    /// True if the program printed its result. If not, it ended early, and tests without a result may be those that
    /// failed.
    pub is_complete: bool,
    /// The first panic anywhere in the output: of an aborted program, nothing says which test it belongs to.
    pub first_panic: Vec<String>,
}

/// The part of libtest's output that a line belongs to.
enum Part {
    Cases,
    /// The captured output of a failed test.
    Captured(FailedTest),
    /// The list of failed tests.
    Names,
}

/// Reads the output of a program of libtest. Output of tests in between is left out, as far as it can be told apart.
pub fn libtest(text: &str) -> TestOutput {
    let mut output = TestOutput { first_panic: first_panic(text.lines()), ..TestOutput::default() };
    let mut part = Part::Cases;
    let mut captured: Vec<FailedTest> = Vec::new();
    let mut names: Vec<String> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            let next = FailedTest { name: name.to_owned(), message: message(lines.clone()) };
            if let Part::Captured(test) = std::mem::replace(&mut part, Part::Captured(next)) {
                captured.push(test);
            }
        } else if line == "failures:" {
            if let Part::Captured(test) = std::mem::replace(&mut part, Part::Names) {
                captured.push(test);
            }
            names.clear();
        } else if let Some(counts) = line.strip_prefix("test result: ") {
            // A failed test may have captured such a line of another program: the last one counts.
            output.passed = count_before(counts, " passed");
            output.is_complete = true;
        } else {
            match &part {
                Part::Names => names.extend(line.strip_prefix("    ").map(str::to_owned)),
                Part::Cases => output.cases.extend(case(line)),
                Part::Captured(_) => {}
            }
        }
    }
    let failed_cases = output.cases.iter().filter(|case| case.result == TestResult::Failed);
    for name in failed_cases.map(|case| &case.name) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    output.failed = names
        .into_iter()
        .map(|name| {
            let known = captured.iter().find(|test| test.name == name);
            known.cloned().unwrap_or(FailedTest { name, message: Vec::new() })
        })
        .collect();
    output
}

/// A line such as `test plan::tests::scales ... ok`.
fn case(line: &str) -> Option<TestCase> {
    let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let result = match result.split([' ', ',', '(']).next()? {
        "ok" => TestResult::Passed,
        "FAILED" => TestResult::Failed,
        "ignored" => TestResult::Ignored,
        _ => return None,
    };
    let name = name.strip_suffix(" - should panic").unwrap_or(name);
    (!name.contains(' ')).then(|| TestCase { name: name.to_owned(), result })
}

/// True for the line of a test that did not fail.
pub fn is_unremarkable(line: &str) -> bool {
    case(line).is_some_and(|case| case.result != TestResult::Failed)
}

/// The number before a word: 3 in `ok. 3 passed; 0 failed`.
fn count_before(text: &str, word: &str) -> usize {
    let before = text.split(word).next().unwrap_or_default();
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

/// The first panic of some lines, up to the hint at backtraces.
fn first_panic<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    lines
        .skip_while(|line| !line.contains(" panicked at "))
        .take_while(|line| {
            !line.is_empty() && !line.starts_with("note: run with") && *line != "stack backtrace:"
        })
        .take(MESSAGE_LINES)
        .map(shortened)
        .collect()
}

/// The message of a failed test, from its captured output on: its panic, or else the last lines of what it printed.
fn message<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let is_end = |line: &str| line == "failures:" || line.starts_with("---- ") && line.ends_with(" ----");
    let captured: Vec<&str> =
        lines.take_while(|line| !is_end(line)).filter(|line| !line.is_empty()).collect();
    let panic = first_panic(captured.iter().copied());
    if panic.is_empty() {
        let last = captured.len().saturating_sub(MESSAGE_LINES);
        captured[last..].iter().copied().map(shortened).collect()
    } else {
        panic
    }
}

fn shortened(line: &str) -> String {
    line.chars().take(MESSAGE_WIDTH).collect()
}

/// Reads the output of Python's `unittest`.
pub fn unittest(text: &str) -> TestOutput {
    let mut output = TestOutput::default();
    let mut has_failed_beyond_tests = false;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(heading) = line.strip_prefix("FAIL: ").or_else(|| line.strip_prefix("ERROR: ")) {
            // `test_launch (test_ec2.Launch.test_launch)`: the name to run it again stands in parentheses.
            let name = heading.split_once(" (").and_then(|(_, rest)| rest.split(')').next());
            has_failed_beyond_tests |= !heading.starts_with("test_");
            let name = name.unwrap_or(heading).to_owned();
            output.failed.push(FailedTest { name, message: exception(lines.clone()) });
        } else if let Some(counts) = line.strip_prefix("Ran ") {
            output.passed = counts.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or_default();
        } else if line == "OK" || line.starts_with("OK (") || line.starts_with("FAILED (") {
            output.is_complete = !has_failed_beyond_tests;
        }
    }
    output.passed = output.passed.saturating_sub(output.failed.len());
    output
}

/// The exception of a failed test of `unittest`, from its heading on.
fn exception<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let is_exception = |line: &&str| {
        let name = line.split(':').next().unwrap_or_default();
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_'));
        is_name && (name.ends_with("Error") || name.ends_with("Exception"))
    };
    let own = lines.take_while(|line| !line.starts_with("======"));
    own.skip_while(|line| !is_exception(line))
        .take_while(|line| !line.is_empty())
        .take(3)
        .map(shortened)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture(name: &str) -> String {
        let path = format!("{}/tests/outputs/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    }

    fn names(output: &TestOutput) -> Vec<&str> {
        output.failed.iter().map(|test| test.name.as_str()).collect()
    }

    #[test]
    fn tests_that_pass_are_counted_and_named() {
        let output = libtest(&fixture("passed"));
        assert_eq!((output.passed, output.is_complete), (3, true));
        assert!(output.failed.is_empty());
        let cases: Vec<_> = output.cases.iter().map(|case| (case.name.as_str(), case.result)).collect();
        assert_eq!(
            cases,
            [
                ("deep::passes", TestResult::Passed),
                ("passes", TestResult::Passed),
                ("skips_what_takes_long", TestResult::Ignored),
                ("panics_as_it_should", TestResult::Passed),
            ]
        );
    }

    #[test]
    fn a_failed_test_has_the_first_lines_of_its_panic() {
        let output = libtest(&fixture("failed"));
        assert_eq!((output.passed, output.is_complete), (1, true));
        assert_eq!(names(&output), ["deep::compares", "returns_an_error", "shows_output_of_another_suite"]);
        let compares = &output.failed[0].message;
        assert!(compares[0].contains("panicked at tests/samples.rs:"), "{compares:?}");
        assert_eq!(
            compares[1..],
            ["assertion `left == right` failed: two numbers", "  left: 1", " right: 2"]
        );
        assert_eq!(output.failed[1].message, ["Error: \"no such pool\""]);
    }

    /// The test had printed the output of a suite that failed otherwise.
    #[test]
    fn captured_output_of_another_suite_is_not_the_result() {
        let output = libtest(&fixture("failed"));
        assert!(!names(&output).contains(&"inner"), "{output:?}");
        assert!(output.cases.iter().all(|case| case.name != "inner"));
    }

    #[test]
    fn an_aborted_program_is_incomplete_and_has_its_panic() {
        let output = libtest(&fixture("aborted"));
        assert!(!output.is_complete && output.failed.is_empty());
        assert!(output.first_panic[0].contains("panicked at"), "{output:?}");
        assert!(!libtest("").is_complete);
    }

    #[test]
    fn python_tests_have_the_names_that_run_them_again() {
        let output = unittest(&fixture("unittest"));
        assert_eq!((output.passed, output.is_complete), (1, true));
        assert_eq!(names(&output), ["test_sample.Sample.test_raises", "test_sample.Sample.test_compares"]);
        assert_eq!(output.failed[1].message, ["AssertionError: 1 != 2 : two numbers"]);
        assert_eq!(output.failed[0].message, ["KeyError: 'region'"]);
    }

    #[test]
    fn a_python_class_that_fails_as_a_whole_leaves_the_failed_tests_unknown() {
        let output = unittest(&fixture("unittest_class"));
        assert!(!output.is_complete, "{output:?}");
    }
}
