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

#[async_trait(?Send)]
pub trait HostKeys {
    /// The key that a server presents to a client that accepts any, without a login. It proves nothing about the server.
    async fn presented(&self, at: &Endpoint, within: Duration) -> Result<PresentedKey, ConnectError>;
}

/// For callers that connect to no instance.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unconnected;

#[async_trait(?Send)]
impl HostKeys for Unconnected {
    async fn presented(&self, _at: &Endpoint, _within: Duration) -> Result<PresentedKey, ConnectError> {
        Err(ConnectError::Local { what: "this command connects to no instance".to_owned() })
    }
}
