//! A reader of the host keys that servers present, for a provider that cannot know it otherwise.

use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::endpoint::Endpoint;

use super::connector::ConnectError;

/// A host's public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresentedKey {
    /// The key in OpenSSH format, without a comment.
    pub line: String,
    /// The fingerprint as `ssh-keygen -l` shows it: `SHA256:…`.
    pub fingerprint: String,
}

/// A reader of the host keys that servers present.
///
/// # What an implementation promises
///
/// * **Answers.** Each call makes one connection, reads the key that the server shows, and does not log in. A jump host on
///   the way is verified and logged in to, as in any other connection. The `host_key` of the [`Endpoint`] is not compared.
/// * **Errors.** A [`ConnectError`] means that no key was read. It says no more about the server than that.
/// * **Repetition and concurrency.** A call changes nothing anywhere, so it may be repeated, and calls may overlap. Two calls may
///   return two keys.
/// * **Deadlines.** A call ends within the given time.
///
/// # What a caller may rely on
///
/// The key proves nothing by itself: any server that answers at the address may present one. A caller shows it to
/// the operator, compares it with a pinned one or with what an operator's program prints, or records it because the operator
/// has chosen to trust the first use. A recorded key is the key of the [`Endpoint`] from then on, and the
/// [`Connector`](super::connector::Connector) accepts no other.
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
