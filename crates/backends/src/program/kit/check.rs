//! A check of a kit: its name, its promise, and its verdict.

use std::time::Duration;

use serde::Serialize;

/// When a check can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// Judged by every call of the run.
    Calls,
    /// Without a machine.
    Cheap,
    /// With machines (`--live`).
    Live,
}

/// A promise.
#[derive(Debug, PartialEq, Eq)]
pub struct Check {
    /// Stable, for scripts and searches.
    pub name: &'static str,
    pub group: Group,
    /// What is expected, in one sentence.
    pub expects: &'static str,
    /// What to do if it fails, in the imperative.
    pub help: &'static str,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    /// Permitted, but it makes mistakes hard to find: what came.
    Warned(String),
    /// What came instead.
    Failed(String),
    /// Why it could not be made.
    Skipped(String),
}

impl Verdict {
    /// What came, or why it could not be made; empty if it passed.
    pub fn text(&self) -> String {
        match self {
            Self::Passed => String::new(),
            Self::Warned(text) | Self::Failed(text) | Self::Skipped(text) => text.clone(),
        }
    }
}

/// The result of a check that may end early: `Err` is any verdict but `Passed`.
pub type Judged<T = ()> = Result<T, Verdict>;

/// Ends a check with a failure.
pub fn failed<T>(came: impl Into<String>) -> Judged<T> {
    Err(Verdict::Failed(came.into()))
}

/// Ends a check with the reason why it cannot be made.
pub fn skipped<T>(why: impl Into<String>) -> Judged<T> {
    Err(Verdict::Skipped(why.into()))
}

/// A check that was made, or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub check: &'static Check,
    pub verdict: Verdict,
    pub took: Duration,
}

pub const fn check(name: &'static str, group: Group, expects: &'static str, help: &'static str) -> Check {
    Check { name, group, expects, help }
}

/// The check of a name.
///
/// # Panics
/// If the table has no such check: names are literals, and the kits' tests call each.
pub fn named(checks: &'static [Check], name: &str) -> &'static Check {
    checks.iter().find(|check| check.name == name).expect("each name stands in the table")
}

/// Holds a kit's table to its page of the documentation, which has a row for each check.
#[cfg(test)]
pub fn hold_to_page(checks: &[Check], page: &str) {
    for (at, check) in checks.iter().enumerate() {
        let name = check.name;
        assert!(checks[..at].iter().all(|other| other.name != name), "{name} comes twice");
        assert!(check.expects.ends_with('.'), "{name}");
        assert!(!check.help.ends_with('.') && !check.help.is_empty(), "{name}");
        let row = format!("| `{name}` | {} |", check.expects);
        assert!(page.contains(&row), "the page lacks this line:\n{row}");
    }
}
