//! The entries of `allow`: addresses, networks and names that guests reach in addition to the internet.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use greenroom_keys::value_error::ValueError;
use greenroom_system::names;
use serde::{Deserialize, Serialize};
use tokio::time::error::Elapsed;

use super::EgressError;

/// The time limit for the resolution of one name in [`resolve`].
const LOOK_UP: Duration = Duration::from_secs(20);

/// The widest network: the largest private one. A wider one would turn off the rules.
const WIDEST: u8 = 8;

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::qemu) struct Allowed {
    host: Host,
    /// `None`: all ports, and all protocols.
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Host {
    Address(Ipv4Addr),
    /// The first address, and the length of the prefix.
    Network(Ipv4Addr, u8),
    Name(String),
}

/// Addresses that guests may reach. A single address is a network with a prefix of 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) network: (Ipv4Addr, u8),
    pub(super) port: Option<u16>,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.network {
            (address, 32) => write!(f, "{address}"),
            (first, prefix) => write!(f, "{first}/{prefix}"),
        }
    }
}

impl Allowed {
    /// True if it opens this address of the runner host's own: only the exact address does.
    pub(in crate::qemu) fn opens(&self, address: SocketAddr) -> bool {
        let Host::Address(host) = &self.host else { return false };
        // The unspecified address is each of the runner host's; which of them `allow` names is not known here.
        let is_it = address.ip() == IpAddr::V4(*host) || address.ip().is_unspecified();
        is_it && !address.ip().is_loopback() && self.port.is_none_or(|port| port == address.port())
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Address(address) => write!(f, "{address}")?,
            Host::Network(first, prefix) => write!(f, "{first}/{prefix}")?,
            Host::Name(name) => f.write_str(name)?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl FromStr for Allowed {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let expected = "an IPv4 address, a network or a name, with or without \":port\"";
        let wrong = || ValueError::entry(text, expected);
        if text.matches(':').count() > 1 {
            return Err(ValueError::unusable_entry(text, "but guests have no IPv6"));
        }
        let (host, port) = match text.split_once(':') {
            None => (text, None),
            Some((host, port)) => {
                let port = port.parse().ok().filter(|port| *port > 0);
                (host, Some(port.ok_or_else(wrong)?))
            }
        };
        let host = if let Some((first, prefix)) = host.split_once('/') {
            let first: Ipv4Addr = first.parse().map_err(|_| wrong())?;
            let prefix = prefix.parse().ok().filter(|prefix| *prefix <= 32).ok_or_else(wrong)?;
            if prefix < WIDEST {
                return Err(ValueError::unusable_entry(text, format!("a network wider than /{WIDEST}")));
            }
            Host::Network(Ipv4Addr::from_bits(first.to_bits() & (u32::MAX << (32 - prefix))), prefix)
        } else if let Ok(address) = host.parse() {
            Host::Address(address)
        } else if is_name(host) {
            Host::Name(host.to_owned())
        } else {
            return Err(wrong());
        };
        Ok(Self { host, port })
    }
}

/// True for a host name. A misspelled address is not one: no top-level domain is a number.
fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let inside = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        !label.is_empty() && !label.starts_with('-') && label.bytes().all(inside)
    };
    let mut labels = text.trim_end_matches('.').split('.');
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    labels.clone().all(is_label) && !labels.next_back().is_none_or(is_number)
}

/// The targets of all entries; the addresses of names are those of this moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Targets {
    /// Addresses that the operator wrote. Even one of the runner host's own is reached.
    pub(super) addresses: Vec<Target>,
    /// Networks, and what names resolve to. They open none of the runner host's own addresses.
    pub(super) others: Vec<Target>,
}

/// The reason a name of `allow` has no address: an error of [`resolve`].
#[derive(Debug, thiserror::Error)]
pub(in crate::qemu) enum ResolveError {
    #[error(transparent)]
    Late(#[from] Elapsed),
    #[error(transparent)]
    LookUp(#[from] io::Error),
    #[error("it has no IPv4 address")]
    NoIpv4,
}

pub(super) async fn resolve(allow: &[Allowed]) -> Result<Targets, EgressError> {
    let mut targets = Targets::default();
    for Allowed { host, port } in allow {
        let port = *port;
        match host {
            Host::Address(address) => targets.addresses.push(Target { network: (*address, 32), port }),
            Host::Network(first, prefix) => targets.others.push(Target { network: (*first, *prefix), port }),
            Host::Name(name) => {
                let addresses = addresses(name).await;
                let failed = |problem| EgressError::Resolve { name: name.clone(), problem };
                let networks = addresses.map_err(failed)?.into_iter().map(|address| (address, 32));
                targets.others.extend(networks.map(|network| Target { network, port }));
            }
        }
    }
    Ok(targets)
}

/// The IPv4 addresses of a name; at least one.
async fn addresses(name: &str) -> Result<Vec<Ipv4Addr>, ResolveError> {
    let found = tokio::time::timeout(LOOK_UP, names::look_up(name, 0)).await??;
    let addresses: Vec<Ipv4Addr> = found
        .iter()
        .filter_map(|address| match address.ip() {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        })
        .collect();
    if addresses.is_empty() { Err(ResolveError::NoIpv4) } else { Ok(addresses) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Allowed, ValueError> {
        text.parse()
    }

    fn refusal(text: &str) -> String {
        read(text).unwrap_err().to_string()
    }

    #[test]
    fn addresses_networks_and_names_may_have_a_port() {
        let address = Ipv4Addr::new(10, 0, 0, 5);
        for (text, host, port) in [
            ("10.0.0.5", Host::Address(address), None),
            ("10.0.0.5:443", Host::Address(address), Some(443)),
            ("10.0.0.5/16", Host::Network(Ipv4Addr::new(10, 0, 0, 0), 16), None),
            ("10.0.0.5/32:1", Host::Network(address, 32), Some(1)),
            ("git.corp:443", Host::Name("git.corp".to_owned()), Some(443)),
            ("gitlab", Host::Name("gitlab".to_owned()), None),
        ] {
            assert_eq!(read(text), Ok(Allowed { host, port }), "{text}");
        }
    }

    #[test]
    fn what_is_none_of_them_is_refused() {
        for text in [
            "",
            ":443",
            "10.0.0",
            "10.0.0.256",
            "git corp",
            "-x",
            "a..b",
            "git.corp:0",
            "git.corp:65536",
            "a/8",
        ] {
            assert!(refusal(text).contains("expected an IPv4 address"), "{text}");
        }
        assert!(refusal("10.0.0.0/33").contains("expected"));
        assert!(refusal("0.0.0.0/0").ends_with("a network wider than /8"));
        assert!(refusal("2001:db8::1").ends_with("guests have no IPv6"));
        // It would end a rule.
        assert!(read("a;b").is_err() && read("a\nb").is_err() && read("{a}").is_err());
    }

    #[tokio::test]
    async fn a_name_opens_its_ipv4_addresses_with_its_port() {
        let allow: Vec<Allowed> =
            ["localhost:7", "10.0.0.5", "10.2.0.0/16:80"].map(|text| read(text).unwrap()).into();
        let targets = resolve(&allow).await.unwrap();
        let shown = |targets: &[Target]| -> Vec<String> {
            targets.iter().map(|target| format!("{target} {:?}", target.port)).collect()
        };
        assert_eq!(shown(&targets.addresses), ["10.0.0.5 None"]);
        assert_eq!(shown(&targets.others), ["127.0.0.1 Some(7)", "10.2.0.0/16 Some(80)"]);
    }

    #[tokio::test]
    async fn an_unknown_name_is_an_error_that_names_it() {
        let error = resolve(&[read("greenroom.invalid").unwrap()]).await.unwrap_err().to_string();
        assert!(error.starts_with("cannot resolve `greenroom.invalid`, which `allow` names: "), "{error}");
    }
}
