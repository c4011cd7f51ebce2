//! Reads the host key that a server presents, for a provider that cannot know it otherwise.

use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::endpoint::Endpoint;

use super::connector::ConnectError;

/// A host's public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresentedKey {
    /// In OpenSSH format, without a comment.
    pub line: String,
    /// As `ssh-keygen -l` shows it: `SHA256:…`.
    pub fingerprint: String,
}

/// A reader of the host keys that servers present.
///
/// An implementer promises one connection for each call, without a login, and that it ends within the given time. The key
/// is what the server showed, and proves nothing: a caller shows it to the operator, or compares it with a pinned one. It never
/// becomes the key of an [`Endpoint`] by itself.
#[async_trait(?Send)]
pub trait HostKeys {
    /// The key that a server presents to a client that accepts any, without a login. It proves nothing about the server.
    async fn presented(&self, at: &Endpoint, within: Duration) -> Result<PresentedKey, ConnectError>;
}

/// The [`HostKeys`] of callers that connect to no instance: every call fails.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unconnected;

#[async_trait(?Send)]
impl HostKeys for Unconnected {
    async fn presented(&self, _at: &Endpoint, _within: Duration) -> Result<PresentedKey, ConnectError> {
        Err(ConnectError::Local { what: "this command connects to no instance".to_owned() })
    }
}
