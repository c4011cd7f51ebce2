//! The settings that the pod gives the server, in environment variables.

use std::env::{VarError, var};
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use russh::keys::PublicKey;

/// The settings of the server. Each variable's name begins with `GREENROOM_`.
#[derive(Debug)]
pub(crate) struct Settings {
    /// `GREENROOM_AUTHORIZED_KEY`: the only key that logs in.
    pub(crate) authorized_key: PublicKey,
    /// `GREENROOM_USER`: the only user that logs in; `root` if unset.
    pub(crate) user: String,
    /// `GREENROOM_KEEP_USER`, if not empty: sessions stay with the user that the container started as.
    pub(crate) keep_user: bool,
    /// `GREENROOM_LISTEN` and `GREENROOM_PORT`: address, all of IPv4 if unset, and port, 22 if unset.
    pub(crate) listen: SocketAddr,
    /// `GREENROOM_LIFETIME`: after this number of seconds, the server ends. Without end if unset.
    pub(crate) lifetime: Option<Duration>,
    /// `GREENROOM_SHELL`: what runs commands; `/bin/sh` if unset.
    pub(crate) shell: String,
}

impl Settings {
    pub(crate) fn read() -> Result<Self, String> {
        let key = of("GREENROOM_AUTHORIZED_KEY")?.ok_or("GREENROOM_AUTHORIZED_KEY is not set")?;
        let authorized_key = PublicKey::from_openssh(key.trim())
            .map_err(|error| format!("GREENROOM_AUTHORIZED_KEY is not a public key: {error}"))?;
        let address = parsed("GREENROOM_LISTEN")?.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        Ok(Self {
            authorized_key,
            user: of("GREENROOM_USER")?.unwrap_or_else(|| "root".to_owned()),
            keep_user: of("GREENROOM_KEEP_USER")?.is_some(),
            listen: SocketAddr::new(address, parsed("GREENROOM_PORT")?.unwrap_or(22)),
            lifetime: parsed("GREENROOM_LIFETIME")?.map(Duration::from_secs),
            shell: of("GREENROOM_SHELL")?.unwrap_or_else(|| "/bin/sh".to_owned()),
        })
    }
}

fn of(name: &str) -> Result<Option<String>, String> {
    match var(name) {
        Ok(text) => Ok(Some(text).filter(|text| !text.is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(format!("{name} is not text")),
    }
}

fn parsed<T: FromStr<Err: Display>>(name: &str) -> Result<Option<T>, String> {
    let text = of(name)?;
    text.map(|text| text.parse().map_err(|error| format!("{name} is {text:?}: {error}"))).transpose()
}
