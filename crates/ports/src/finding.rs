//! A finding of `doctor`.

use std::fmt;

use serde::Serialize;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Worth knowing; everything works.
    Note,
    /// Harmless today, harmful later.
    Warning,
    /// Jobs fail until it is fixed.
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

/// One finding of `doctor`, as text and as JSON. Field names are stable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Stable and short, for scripts and searches: `local-no-isolation`.
    pub code: &'static str,
    pub severity: Severity,
    /// The problem and its cause, in one sentence.
    pub message: String,
    /// The fix, in the imperative: a command or a key. `None` if none is needed.
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
