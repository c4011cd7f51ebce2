//! Errors of the runner host.

use greenroom_core::attempt::Closed;
use greenroom_core::ids::AttemptName;

#[derive(Debug, Clone, thiserror::Error)]
pub enum HostError {
    /// The attempt was closed and accepts no more calls.
    #[error("attempt `{attempt}` is closed: {closed}")]
    Closed { attempt: AttemptName, closed: Closed },
    #[error("{what}")]
    Io { what: String },
}
