//! The result of a step, and the lines that report it.

use std::time::Duration;

use crate::build;
use crate::output::{FailedTest, TestCase};
use crate::process::{ProcessEnd, ProcessError};

/// Lines of a failed step's output that are printed.
const SHOWN_LINES: usize = 200;

/// The reasons for which a step failed.
#[derive(Debug, thiserror::Error)]
pub enum StepFailure {
    #[error("{0}")]
    Process(ProcessEnd),
    #[error(transparent)]
    NotRun(#[from] ProcessError),
    #[error("its build failed")]
    Build,
    #[error("the build printed a warning")]
    Warning,
    #[error(transparent)]
    NoTestProgram(#[from] build::NoTestProgram),
    #[error("the second try did not run the failed tests")]
    NotRepeated,
    #[error("{0} processes are left")]
    Leftover(usize),
    #[error("the rest of the lane was not run")]
    Lane,
}

/// A test case of a step, with the program that has it.
#[derive(Debug)]
pub struct StepCase {
    pub program: String,
    pub case: TestCase,
}

/// A [`Step`](crate::step::Step) that was run.
#[derive(Debug)]
pub struct StepReport {
    pub name: String,
    /// The failure of the step, if it failed.
    pub result: Result<(), StepFailure>,
    pub elapsed: Duration,
    pub cpu: Duration,
    /// The tests whose ends were printed, the second try of failed ones excluded.
    pub cases: Vec<StepCase>,
    /// Tests that passed, in all tries.
    pub passed: usize,
    /// A line of the program that says what it did.
    pub remark: Option<String>,
    /// Tests that failed in the last try.
    pub failed: Vec<FailedTest>,
    /// Tests that failed in the first try, and passed in the second one.
    pub flaky: Vec<FailedTest>,
    pub output: String,
}

impl StepReport {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            result: Ok(()),
            elapsed: Duration::ZERO,
            cpu: Duration::ZERO,
            cases: Vec::new(),
            passed: 0,
            remark: None,
            failed: Vec::new(),
            flaky: Vec::new(),
            output: String::new(),
        }
    }

    pub fn is_passed(&self) -> bool {
        self.result.is_ok()
    }

    /// The lines that are printed when the step has ended.
    pub(crate) fn lines(&self) -> String {
        let word = if self.is_passed() { "ok" } else { "FAILED" };
        let (elapsed, cpu) = (self.elapsed.as_secs(), self.cpu.as_secs());
        let mut text = format!("{:<33} {word:<6} {elapsed:>4} s, CPU {cpu:>4} s  ", self.name);
        let mut add = |part: String| text.extend([" ", &part]);
        if let Err(failure) = &self.result {
            add(failure.to_string());
        } else {
            if self.passed > 0 {
                add(format!("{} tests", self.passed));
            }
            if let Some(remark) = &self.remark {
                add(remark.clone());
            }
        }
        if !self.flaky.is_empty() {
            let names: Vec<&str> = self.flaky.iter().map(|test| test.name.as_str()).collect();
            add(format!("(flaky: {})", names.join(", ")));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
        for line in self.flaky.iter().flat_map(|test| &test.message) {
            text.extend(["    first try: ", line, "\n"]);
        }
        if !self.is_passed() {
            let lines: Vec<&str> = self.output.lines().collect();
            for line in &lines[lines.len().saturating_sub(SHOWN_LINES)..] {
                text.extend(["    ", line, "\n"]);
            }
        }
        text
    }
}
