//! How an instance is reached.

use serde::{Deserialize, Serialize};

/// Address, user and the one host key that is accepted there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// An IP address, or a name.
    pub address: String,
    pub port: u16,
    pub user: String,
    /// The host's public key in OpenSSH form (`ssh-ed25519 AAAA…`): no other is accepted.
    pub host_key: String,
}
