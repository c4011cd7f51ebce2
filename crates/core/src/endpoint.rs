//! The endpoint at which an instance is reached.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::metadata::MetadataService;

/// Address, user and the one host key that is accepted there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// An IP address, or a name.
    pub address: String,
    pub port: u16,
    pub user: String,
    /// The host's public key in OpenSSH format (`ssh-ed25519 AAAA…`); no other key is accepted. Or what [`certified`]
    /// makes: each key is accepted for which the host has a certificate. With the comment of [`on_first_use`], nothing
    /// verified it.
    pub host_key: String,
    /// The key or the password for the login; `None`: the instance's own key, which Greenroom created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<LoginKey>,
    /// The jump host; `None`: it is reached directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jump: Option<Box<Jump>>,
    /// The port-forward that leads to it, instead of a connection to [`address`](Self::address); `None`: there is a route.
    /// Never with [`jump`](Self::jump).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<Box<Forward>>,
    /// The metadata service that the instance can ask for notices of its cloud; `None`: there is none, or no need.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<MetadataService>,
}

/// The location of a key or a password for the login, never the secret itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoginKey {
    /// A private key without a passphrase: Ed25519, ECDSA or RSA.
    File(PathBuf),
    /// A file with a password. One line break at its end does not count.
    Password(PathBuf),
    /// A key in an ssh-agent, of any kind.
    Agent {
        /// The agent's socket (`SSH_AUTH_SOCK`).
        socket: PathBuf,
        /// The only key to use, in OpenSSH format; `None`: the first five are tried.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
    },
}

/// A host that forwards connections to others. It sees their SSH traffic only in encrypted form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jump {
    pub address: String,
    pub port: u16,
    pub user: String,
    /// The jump host's own host key, verified like any other.
    pub host_key: String,
    pub key: LoginKey,
}

/// A pod to which its cluster's API server forwards connections. The API server sees SSH traffic only in encrypted form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forward {
    /// The files with the context and the credentials, in the order in which they are merged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kubeconfig: Vec<PathBuf>,
    /// `None`: the service account of the pod that Greenroom runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    pub namespace: String,
    pub pod: String,
    /// Tells the pod from another one that was created later under its name.
    pub uid: String,
}

impl Endpoint {
    /// The location of the endpoint, as people write it.
    pub fn place(&self) -> String {
        self.forward.as_deref().map_or_else(|| place(&self.address, self.port), |way| way.place(self.port))
    }

    /// The fingerprint of its host key if that was accepted on the first connection, without a verification.
    pub fn first_use(&self) -> Option<&str> {
        self.host_key.split_ascii_whitespace().nth(2)?.strip_prefix(FIRST_USE)
    }
}

impl Forward {
    /// The location of a port of the pod, with the way to it.
    pub fn place(&self, port: u16) -> String {
        format!("{} (through the API server's port-forward)", place(&self.pod, port))
    }
}

/// Before the fingerprint in the comment of a key that nothing verified.
const FIRST_USE: &str = "first-use:";

/// A host key that was accepted because it was the first one that the host presented.
pub fn on_first_use(key: &str, fingerprint: &str) -> String {
    format!("{} {FIRST_USE}{fingerprint}", without_comment(key))
}

/// The mark of a certificate authority, as in OpenSSH's `known_hosts`.
pub const AUTHORITY: &str = "@cert-authority";

/// The host key of an endpoint whose key certificate authorities sign: the lines that OpenSSH's `known_hosts` would
/// have. A certificate has to be for one of these names. What cannot stand in such a line is left out.
pub fn certified(names: &[&str], authorities: &[String]) -> String {
    let is_plain = |name: &&str| !name.contains(|c: char| c == ',' || c.is_whitespace() || c.is_control());
    let names: Vec<&str> = names.iter().copied().filter(is_plain).collect();
    let names = names.join(",");
    let lines: Vec<String> = authorities.iter().map(|key| format!("{AUTHORITY} {names} {key}")).collect();
    lines.join("\n")
}

/// A public key in OpenSSH format, without its comment.
pub fn without_comment(key: &str) -> String {
    key.split_ascii_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

/// The location of a server, as people write it: `host:22`, `[::1]:22`.
pub fn place(address: &str, port: u16) -> String {
    // Only IPv6 addresses contain a colon; names do not.
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_no_part_of_a_key() {
        assert_eq!(without_comment(" ssh-ed25519  AAAA root@a\n"), "ssh-ed25519 AAAA");
    }

    #[test]
    fn a_key_that_nothing_verified_says_so() {
        let of = |host_key: &str| Endpoint {
            address: "192.0.2.7".to_owned(),
            port: 22,
            user: "ci".to_owned(),
            host_key: host_key.to_owned(),
            key: None,
            jump: None,
            forward: None,
            metadata: None,
        };
        let key = on_first_use("ssh-ed25519 AAAA root@a", "SHA256:abc");
        assert_eq!(key, "ssh-ed25519 AAAA first-use:SHA256:abc");
        assert_eq!(of(&key).first_use(), Some("SHA256:abc"));
        for verified in
            ["ssh-ed25519 AAAA", "ssh-ed25519 AAAA root@a", &certified(&["m1"], &["k 1".to_owned()])]
        {
            assert_eq!(of(verified).first_use(), None, "{verified}");
        }
    }

    #[test]
    fn a_name_cannot_bring_a_line_of_its_own() {
        let keys = ["k1".to_owned(), "k2".to_owned()];
        let text = certified(&["m1", "x\n@cert-authority x k3", "a,b"], &keys);
        assert_eq!(text, "@cert-authority m1 k1\n@cert-authority m1 k2");
    }

    #[test]
    fn what_was_recorded_before_there_were_keys_and_jump_hosts_still_reads() {
        let old = r#"{"address":"192.0.2.7","port":22,"user":"ci","host_key":"ssh-ed25519 AAAA"}"#;
        let endpoint: Endpoint = serde_json::from_str(old).unwrap();
        assert_eq!((&endpoint.key, &endpoint.jump), (&None, &None));
        assert_eq!(serde_json::to_string(&endpoint).unwrap(), old);
    }

    #[test]
    fn a_place_reads_as_people_write_it() {
        for (address, text) in [
            ("10.0.0.1", "10.0.0.1:22"),
            ("::1", "[::1]:22"),
            ("fe80::1%eth0", "[fe80::1%eth0]:22"),
            ("ci.example", "ci.example:22"),
        ] {
            assert_eq!(place(address, 22), text);
        }
    }
}
