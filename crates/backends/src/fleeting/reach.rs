//! The way to an instance: its address, account and port, and the host key that it must present.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::endpoint::{self, Endpoint};
use greenroom_core::failure::ErrorClass;
use greenroom_ports::host_keys::{HostKeys, PresentedKey};
use greenroom_ports::provider::ProviderError;
use tokio::sync::Semaphore;

use super::group::ConnectInfo;
use super::settings::{HostKeyCheck, Settings};
use crate::program::child::ProgramEnd;
use crate::program::environment::ProgramEnvironment;
use crate::program::{CallEnd, Program};

/// The time limit for an instance to present its key.
const PRESENT_WITHIN: Duration = Duration::from_secs(10);
/// The time limit for the operator's program.
const COMMAND_WITHIN: Duration = Duration::from_secs(30);
/// Longest line of the program's in a message, in characters.
const SHOWN: usize = 200;
/// The most that the operator's program may print, in bytes.
const OUTPUT: u64 = 64 << 10;

/// The reason an instance has no [`endpoint`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ReachError {
    /// The instance may get one later.
    #[error("the instance has no address yet")]
    NoAddress,
    #[error("the instance is reached with `{0}`, and Greenroom connects with SSH only")]
    Protocol(String),
    #[error("the plugin reports no account for the login: set `user`")]
    NoUser,
}

/// Address, port and account, without a host key and without the key of the login.
pub(super) fn endpoint(settings: &Settings, info: &ConnectInfo) -> Result<Endpoint, ReachError> {
    if !matches!(info.protocol.as_str(), "" | "ssh") {
        return Err(ReachError::Protocol(info.protocol.clone()));
    }
    let (address, port) = address_of(info, settings.use_external_address).ok_or(ReachError::NoAddress)?;
    let named = Some(info.username.clone()).filter(|name| !name.is_empty());
    let user = named.or_else(|| settings.user.clone()).ok_or(ReachError::NoUser)?;
    let port = port.or(info.port).unwrap_or(settings.ssh_port);
    Ok(Endpoint {
        address,
        port,
        user,
        host_key: String::new(),
        key: None,
        jump: None,
        forward: None,
        metadata: None,
    })
}

/// The address to connect to, and the port that stands with it. `None`: there is none yet.
fn address_of(info: &ConnectInfo, external: bool) -> Option<(String, Option<u16>)> {
    let outer = info.external_address.trim();
    let inner = info.internal_address.trim();
    let chosen = if inner.is_empty() || (external && !outer.is_empty()) { outer } else { inner };
    (!chosen.is_empty()).then(|| split_port(chosen))
}

/// An address may contain a port; one of IPv6 may stand without brackets.
fn split_port(text: &str) -> (String, Option<u16>) {
    if let Some((host, rest)) = text.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        return (host.to_owned(), rest.strip_prefix(':').and_then(|port| port.parse().ok()));
    }
    match text.split_once(':') {
        Some((host, port)) if !port.contains(':') => match port.parse() {
            Ok(port) => (host.to_owned(), Some(port)),
            Err(_) => (text.to_owned(), None),
        },
        _ => (text.to_owned(), None),
    }
}

/// The verification of a pool's instances.
pub(super) struct Trust {
    pub(super) ways: HostKeyCheck,
    pub(super) reader: Rc<dyn HostKeys>,
    /// Greenroom's own program, which runs as the guard process.
    pub(super) guard: PathBuf,
    pub(super) environment: ProgramEnvironment,
}

impl Trust {
    /// The certificate that an instance must present at each connection; `None`: its host key is recorded.
    pub(super) fn certified(&self, id: &str, address: &str) -> Option<String> {
        let HostKeyCheck::Certificates { authorities, name } = &self.ways else { return None };
        let names = name.as_ref().map_or_else(|| vec![address, id], |name| vec![name.as_str()]);
        Some(endpoint::certified(&names, authorities))
    }

    /// The host key that a new instance must present from now on. `at` is its endpoint without one.
    pub(super) async fn establish(&self, id: &str, at: &Endpoint) -> Result<String, ProviderError> {
        match &self.ways {
            HostKeyCheck::Certificates { .. } => Ok(self.certified(id, &at.address).unwrap_or_default()),
            HostKeyCheck::FirstUse => {
                let presented = self.presented(at).await?;
                Ok(endpoint::on_first_use(&presented.line, &presented.fingerprint))
            }
            HostKeyCheck::Command(program) => {
                let expected = self.ask(program, id, &at.address).await?;
                let presented = self.presented(at).await?;
                if matches_key(&expected, &presented) {
                    return Ok(presented.line);
                }
                let why = format!(
                    "{} presents host key {}, which `{}` does not print",
                    at.place(),
                    presented.fingerprint,
                    program.display()
                );
                Err(ProviderError::new(ErrorClass::Denied, why))
            }
        }
    }

    async fn presented(&self, at: &Endpoint) -> Result<PresentedKey, ProviderError> {
        let presented = self.reader.presented(at, PRESENT_WITHIN).await;
        presented.map_err(|error| ProviderError::new(ErrorClass::Transient, error.to_string()))
    }

    /// Output of the operator's program about an instance.
    async fn ask(&self, path: &Path, id: &str, address: &str) -> Result<String, ProviderError> {
        let program = Program {
            guard: self.guard.clone(),
            path: path.to_owned(),
            arguments: vec![id.to_owned()],
            directory: path.parent().unwrap_or(Path::new("/")).to_owned(),
            environment: self.environment.clone(),
            output_limit: OUTPUT,
            concurrent: Rc::new(Semaphore::new(1)),
        };
        let ended = program.call(address, COMMAND_WITHIN, b"{}".to_vec()).await;
        if ended.exit == CallEnd::Ended(ProgramEnd::Code(0)) {
            return Ok(String::from_utf8_lossy(&ended.output).into_owned());
        }
        let how = ended.exit.summary(COMMAND_WITHIN);
        let log = ended.last_log_line(SHOWN).map_or_else(String::new, |line| format!(": {line}"));
        let why = format!("`{}`, which prints host keys, {how}{log}", path.display());
        Err(ProviderError::new(ErrorClass::Transient, why))
    }
}

/// True if one of the lines is the key's fingerprint, or the key itself.
fn matches_key(output: &str, presented: &PresentedKey) -> bool {
    output.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_fingerprint = words.contains(&presented.fingerprint.as_str());
        is_fingerprint || words.windows(2).any(|pair| pair.join(" ") == presented.line)
    })
}

#[cfg(test)]
mod tests {
    use greenroom_core::ids::PoolName;

    use super::*;

    #[test]
    fn the_plugins_words_come_first_and_the_table_completes_them() {
        let read = |more: &str| {
            let table = format!("plugin = \"/p\"\nhost_keys = \"first-use\"\nssh_port = 2022\n{more}");
            Settings::read(&PoolName::new("linux"), &table.parse().unwrap()).unwrap()
        };
        let info = |protocol: &str, address: &str, username: &str, port| ConnectInfo {
            protocol: protocol.to_owned(),
            internal_address: address.to_owned(),
            username: username.to_owned(),
            port,
            ..ConnectInfo::default()
        };
        let plain = read("");
        let named = read("user = \"ci\"");
        let invalid = |info: &ConnectInfo, text: &str| match endpoint(&plain, info) {
            Err(error) if error != ReachError::NoAddress => {
                assert!(error.to_string().contains(text), "{error}");
            }
            other => panic!("{other:?}"),
        };
        invalid(&info("winrm", "10.0.0.1", "ci", None), "reached with `winrm`");
        invalid(&info("", "10.0.0.1", "", None), "set `user`");
        assert_eq!(endpoint(&plain, &info("ssh", "", "ci", None)), Err(ReachError::NoAddress));
        for (info, user, port) in [
            (info("ssh", "10.0.0.1", "", None), "ci", 2022),
            (info("", "10.0.0.1", "admin", Some(2200)), "admin", 2200),
            (info("", "10.0.0.1:2222", "admin", Some(2200)), "admin", 2222),
        ] {
            let at = endpoint(&named, &info).unwrap();
            assert_eq!((at.address.as_str(), at.user.as_str(), at.port), ("10.0.0.1", user, port));
        }
    }

    #[test]
    fn addresses_are_read_with_ports_and_brackets() {
        for (text, host, port) in [
            ("10.0.0.9", "10.0.0.9", None),
            ("10.0.0.9:2222", "10.0.0.9", Some(2222)),
            ("fd00::7", "fd00::7", None),
            ("[fd00::7]", "fd00::7", None),
            ("[fd00::7]:2222", "fd00::7", Some(2222)),
            ("vm-1.example", "vm-1.example", None),
            ("vm-1.example:22", "vm-1.example", Some(22)),
        ] {
            assert_eq!(split_port(text), (host.to_owned(), port), "{text}");
        }
    }

    #[test]
    fn the_external_address_is_used_where_it_is_wanted_or_the_only_one() {
        for (outer, inner, external, chosen) in [
            ("1.1.1.1", "10.0.0.1", false, Some("10.0.0.1")),
            ("1.1.1.1", "10.0.0.1", true, Some("1.1.1.1")),
            ("", "10.0.0.1", true, Some("10.0.0.1")),
            ("1.1.1.1", "", false, Some("1.1.1.1")),
            ("", "", true, None),
        ] {
            let info = ConnectInfo {
                external_address: outer.to_owned(),
                internal_address: inner.to_owned(),
                ..ConnectInfo::default()
            };
            let found = address_of(&info, external).map(|(host, _)| host);
            assert_eq!(found.as_deref(), chosen, "{outer} {inner} {external}");
        }
    }

    #[test]
    fn a_fingerprint_or_a_key_matches_and_nothing_else_does() {
        let presented =
            PresentedKey { line: "ssh-ed25519 AAAAkey".to_owned(), fingerprint: "SHA256:abc".to_owned() };
        for (output, expected) in [
            ("SHA256:abc", true),
            ("256 SHA256:abc root@a (ED25519)\n", true),
            ("SHA256:other\nSHA256:abc\n", true),
            ("ssh-ed25519 AAAAkey root@a\n", true),
            ("10.0.0.7 ssh-ed25519 AAAAkey", true),
            ("", false),
            ("SHA256:abcd", false),
            ("SHA256", false),
            ("ssh-ed25519 AAAAkeyother", false),
            ("AAAAkey", false),
        ] {
            assert_eq!(matches_key(output, &presented), expected, "{output}");
        }
    }
}
