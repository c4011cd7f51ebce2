//! Errors of the runner host.

use crate::core::attempt::Closed;
use crate::core::ids::AttemptName;

#[derive(Debug, Clone, thiserror::Error)]
pub enum HostError {
    /// The attempt was closed and accepts no more calls.
    #[error("attempt `{attempt}` is closed: {closed}")]
    Closed { attempt: AttemptName, closed: Closed },
    #[error("{what}")]
    Io { what: String },
}
