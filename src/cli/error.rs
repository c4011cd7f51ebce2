//! Errors as people see them: what failed, its causes, help. The only printer of errors.

use std::error::Error;
use std::fmt::Write as _;

use greenroom_core::ids::PoolName;
use greenroom_core::text::sentences;
use greenroom_keys::near::nearest_or_all;

use super::ui;
use crate::config::ConfigError;

/// The cause of an error, which decides the exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// The job requires the impossible, its script failed, or it used up its instance.
    Job,
    /// Greenroom, the installation, or the cloud.
    System,
}

/// An error on its way to stderr.
#[derive(Debug)]
pub struct CliError {
    pub blame: Blame,
    /// Complete sentences or fragments, one line each; the first contains what failed.
    lines: Vec<String>,
    remedies: Vec<String>,
    /// The text for a terminal instead: the errors of a configuration with their lines.
    rendered: Option<String>,
}

impl CliError {
    /// An error that the job did not cause.
    pub fn system(error: impl Into<Box<dyn Error>>) -> Self {
        Self::of(Blame::System, error)
    }

    /// The job requires what this runner does not offer.
    pub fn impossible(sentence: impl Into<String>) -> Self {
        Self { blame: Blame::Job, lines: vec![sentence.into()], remedies: Vec::new(), rendered: None }
    }

    /// An error that the job caused.
    pub fn by_job(error: impl Into<Box<dyn Error>>) -> Self {
        Self::of(Blame::Job, error)
    }

    /// A plain sentence for an error that the job did not cause.
    pub fn say(text: impl Into<String>) -> Self {
        Self { blame: Blame::System, lines: vec![text.into()], remedies: Vec::new(), rendered: None }
    }

    /// An error about a pool that does not exist. Its help names the nearest pool, or all of them.
    pub fn no_such_pool<'a>(name: &str, pools: impl Iterator<Item = &'a PoolName> + Clone) -> Self {
        Self::say(format!("there is no pool `{name}`"))
            .help(nearest_or_all(name, pools.map(PoolName::as_str)))
    }

    fn of(blame: Blame, error: impl Into<Box<dyn Error>>) -> Self {
        let lines = sentences(&*error.into());
        Self { blame, lines, remedies: Vec::new(), rendered: None }
    }

    /// The errors of a configuration: in full for a terminal, in one line for a job log.
    pub fn config(error: ConfigError) -> Self {
        let rendered = match &error {
            ConfigError::Invalid(diagnostics) => Some(diagnostics.render(ui::colours()) + "\n"),
            ConfigError::Read(_) => None,
        };
        Self { rendered, ..Self::of(Blame::System, error) }
    }

    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.remedies.push(help.into());
        self
    }

    /// The error as an operator's terminal shows it: each cause on a line of its own, then the help.
    pub fn for_operator(&self) -> String {
        let mut text = self.rendered.clone().unwrap_or_default();
        let lines = if self.rendered.is_some() { &[][..] } else { &self.lines[..] };
        for (at, line) in lines.iter().enumerate() {
            let head = if at == 0 { "error" } else { "caused by" };
            // Writing to a string cannot fail.
            writeln!(text, "{head}: {line}").ok();
        }
        for help in &self.remedies {
            writeln!(text, "help: {help}").ok();
        }
        text
    }

    /// The error without its help in one line, to be a part of another sentence.
    pub fn in_a_line(&self) -> String {
        self.lines.join(": ")
    }

    /// The error as the job log shows it: the failure, the blame ([`Blame`]), and how to retry the job if it is not to
    /// blame.
    pub fn for_job(&self) -> String {
        let what = self.in_a_line();
        let end = if what.ends_with(['.', '!', '?']) { "" } else { "." };
        match self.blame {
            Blame::Job => format!("greenroom: {what}{end}\n"),
            Blame::System => format!(
                "greenroom: system failure: {what}{end} The job did not cause it; \
                 `retry: when: runner_system_failure` retries the job.\n"
            ),
        }
    }
}

impl<E: Error + 'static> From<E> for CliError {
    fn from(error: E) -> Self {
        Self::system(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot boot `{0}`")]
    struct Outer(&'static str, #[source] std::io::Error);

    #[test]
    fn the_chain_is_printed_once_and_the_help_last() {
        let error = CliError::system(Outer("x", std::io::Error::other("disk full"))).help("make room");
        assert_eq!(error.for_operator(), "error: cannot boot `x`\ncaused by: disk full\nhelp: make room\n");
    }

    #[test]
    fn the_job_log_says_what_caused_the_error() {
        let system = CliError::system(Outer("x", std::io::Error::other("disk full"))).for_job();
        assert!(system.starts_with("greenroom: system failure: cannot boot `x`: disk full."), "{system}");
        assert!(system.contains("did not cause it"));
        assert_eq!(CliError::impossible("no image `a` here").for_job(), "greenroom: no image `a` here.\n");
    }
}
