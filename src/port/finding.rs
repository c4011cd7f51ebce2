//! What a health check found.

use std::fmt;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Worth knowing; everything works.
    Note,
    /// Works today, bites later.
    Warning,
    /// Jobs fail until it is dealt with.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// One thing that `doctor` has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Stable and short, for scripts and for searching: `local-no-isolation`.
    pub code: &'static str,
    pub severity: Severity,
    /// What is so, in one sentence.
    pub message: String,
    /// What to do about it: a command or a key; `None` if nothing has to be done.
    pub remedy: Option<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, severity, message: what, remedy } = self;
        write!(f, "{severity} [{code}]: {what}")?;
        match remedy {
            Some(remedy) => write!(f, "\n  help: {remedy}"),
            None => Ok(()),
        }
    }
}
