//! Errors as people see them: what failed, its causes, help. The only printer of errors.

use std::error::Error;
use std::fmt::Write as _;

use super::ui;
use crate::config::ConfigError;

/// Whose fault, and so which exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// The job asks for what is impossible, or its script failed.
    Job,
    /// Ours, the operator's, or the cloud's.
    System,
}

/// An error on its way to stderr.
#[derive(Debug)]
pub struct CliError {
    pub blame: Blame,
    /// Complete sentences or fragments, one line each; the first says what failed.
    lines: Vec<String>,
    remedies: Vec<String>,
    /// What a terminal shows instead: a configuration's complaints with their lines.
    rendered: Option<String>,
}

impl CliError {
    /// Something on our side.
    pub fn system(error: impl Into<Box<dyn Error>>) -> Self {
        Self::of(Blame::System, error)
    }

    /// The job asks for what this runner does not offer.
    pub fn impossible(sentence: impl Into<String>) -> Self {
        Self { blame: Blame::Job, lines: vec![sentence.into()], remedies: Vec::new(), rendered: None }
    }

    /// A plain sentence, on our side.
    pub fn say(text: impl Into<String>) -> Self {
        Self { blame: Blame::System, lines: vec![text.into()], remedies: Vec::new(), rendered: None }
    }

    fn of(blame: Blame, error: impl Into<Box<dyn Error>>) -> Self {
        let error = error.into();
        let mut lines = vec![error.to_string()];
        let mut source = error.source();
        while let Some(cause) = source {
            let line = cause.to_string();
            // Transparent wrappers repeat what they wrap.
            if lines.last() != Some(&line) {
                lines.push(line);
            }
            source = cause.source();
        }
        Self { blame, lines, remedies: Vec::new(), rendered: None }
    }

    /// What is wrong with a configuration: in full for a terminal, in one line for a job's log.
    pub fn config(error: ConfigError) -> Self {
        let rendered = match &error {
            ConfigError::Invalid(diagnostics) => Some(diagnostics.render(ui::colours())),
            ConfigError::Read(_) => None,
        };
        Self { rendered, ..Self::of(Blame::System, error) }
    }

    /// An error with its chain, in one line.
    pub fn message(error: &dyn Error) -> String {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let line = cause.to_string();
            if !text.ends_with(&line) {
                text = format!("{text}: {line}");
            }
            source = cause.source();
        }
        text
    }

    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.remedies.push(help.into());
        self
    }

    /// For an operator's terminal.
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

    /// As a part of another sentence.
    pub fn in_a_line(&self) -> String {
        self.lines.join(": ")
    }

    /// For the job's author: one sentence, who is to blame, what remedies.
    pub fn for_job(&self) -> String {
        let what = self.in_a_line();
        let end = if what.ends_with(['.', '!', '?']) { "" } else { "." };
        match self.blame {
            Blame::Job => format!("greenroom: {what}{end}\n"),
            Blame::System => format!(
                "greenroom: system failure: {what}{end} The job did nothing wrong; \
                 `retry: when: runner_system_failure` repeats it.\n"
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
    fn a_job_is_told_whose_fault_it_was() {
        let system = CliError::system(Outer("x", std::io::Error::other("disk full"))).for_job();
        assert!(system.starts_with("greenroom: system failure: cannot boot `x`: disk full."), "{system}");
        assert!(system.contains("did nothing wrong"));
        assert_eq!(CliError::impossible("no image `a` here").for_job(), "greenroom: no image `a` here.\n");
    }
}
