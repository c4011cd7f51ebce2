//! The settings of static hosts, from a pool's provider table.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::core::endpoint::LoginKey;
use crate::provider::keys::{KeyError, Keys};

/// The jump host is pinned under this name, so no host may have it.
pub(super) const JUMP: &str = "jump";
const SSH_PORT: u32 = 22;
/// Longer names make file names and messages unusable.
const LONGEST_NAME: usize = 63;

/// The table, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) hosts: Vec<Host>,
    pub(super) jump: Option<Server>,
    /// Whether Greenroom does its own part of cleaning. Default true.
    pub(super) clean: bool,
    /// Whether only jobs use the account; cleaning then stops all its processes. Default false.
    pub(super) dedicated_user: bool,
}

/// A host that runs jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) server: Server,
    /// Number of concurrent jobs; `None`: the pool's `capacity_per_instance`.
    pub(super) capacity: Option<u32>,
}

/// An SSH server of the operator's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) address: String,
    /// Default 22.
    pub(super) port: u16,
    pub(super) user: String,
    pub(super) key: LoginKey,
    /// In OpenSSH form; `None`: it is pinned.
    pub(super) host_key: Option<String>,
}

/// The values for hosts that do not set their own.
struct Defaults {
    user: Option<String>,
    key: Option<LoginKey>,
    port: u16,
}

impl Settings {
    pub(super) fn read(table: &toml::Table) -> Result<Self, KeyError> {
        let mut keys = Keys::of(table);
        let defaults = Defaults {
            user: user(&mut keys)?,
            key: login_key(&mut keys)?,
            port: port(&mut keys)?.unwrap_or(22),
        };
        let clean = keys.flag("clean")?.unwrap_or(true);
        let dedicated_user = keys.flag("dedicated_user")?.unwrap_or(false);
        let jump = keys.table("jump")?.map(|table| jump(table, &defaults)).transpose()?;
        let tables = keys.tables("host")?;
        if tables.is_empty() {
            let why = "is missing: name each host in a `[[pool.NAME.provider.host]]` table of its own";
            return Err(KeyError::new("host", why));
        }
        let hosts: Vec<Host> =
            tables.into_iter().map(|table| host(table, &defaults)).collect::<Result<_, _>>()?;
        keys.finish()?;
        check_distinct(&hosts)?;
        let settings = Self { hosts, jump, clean, dedicated_user };
        settings.check_dedicated()?;
        Ok(settings)
    }

    pub(super) fn host(&self, name: &str) -> Option<&Host> {
        self.hosts.iter().find(|host| host.name == name)
    }

    fn check_dedicated(&self) -> Result<(), KeyError> {
        let root = self.hosts.iter().find(|host| host.server.user == "root");
        match root.filter(|_| self.dedicated_user) {
            Some(host) => Err(KeyError::new(
                "dedicated_user",
                format!(
                    "is true, but jobs on host \"{}\" run as root: cleaning would kill every process of the \
                     host",
                    host.name
                ),
            )),
            None => Ok(()),
        }
    }
}

fn host(mut keys: Keys<'_>, defaults: &Defaults) -> Result<Host, KeyError> {
    let name = match keys.text("name")? {
        Some(name) => plain_name(&keys.name("name"), name)?,
        None => return Err(KeyError::new(keys.name("name"), "is missing: the name of this host")),
    };
    let capacity = match keys.count("capacity")? {
        Some(0) => return Err(KeyError::new(keys.name("capacity"), "is 0, expected a whole number from 1")),
        capacity => capacity,
    };
    let server = server(&mut keys, defaults)?;
    keys.finish()?;
    Ok(Host { name, server, capacity })
}

fn jump(mut keys: Keys<'_>, defaults: &Defaults) -> Result<Server, KeyError> {
    // The hosts' port does not apply to the jump host.
    let defaults = Defaults { user: defaults.user.clone(), key: defaults.key.clone(), port: 22 };
    let server = server(&mut keys, &defaults)?;
    keys.finish()?;
    Ok(server)
}

fn server(keys: &mut Keys<'_>, defaults: &Defaults) -> Result<Server, KeyError> {
    let missing = |key: &str, what: &str| KeyError::new(key, format!("is missing: {what}"));
    let address = keys.text("address")?.map(str::trim).filter(|address| !address.is_empty());
    let address = address.ok_or_else(|| missing(&keys.name("address"), "an IP address or a host name"))?;
    let user = user(keys)?.or_else(|| defaults.user.clone());
    let user =
        user.ok_or_else(|| missing(&keys.name("user"), "the user that jobs run as, here or for all hosts"))?;
    let key = login_key(keys)?.or_else(|| defaults.key.clone());
    let key = key.ok_or_else(|| {
        missing(&keys.name("key"), "the file of a private key (or `agent`, a socket), here or for all hosts")
    })?;
    let host_key = match keys.text("host_key")? {
        Some(text) => Some(host_key(&keys.name("host_key"), text)?),
        None => None,
    };
    Ok(Server {
        address: address.to_owned(),
        port: port(keys)?.unwrap_or(defaults.port),
        user,
        key,
        host_key,
    })
}

fn user(keys: &mut Keys<'_>) -> Result<Option<String>, KeyError> {
    Ok(keys.text("user")?.map(str::to_owned))
}

fn port(keys: &mut Keys<'_>) -> Result<Option<u16>, KeyError> {
    let Some(number) = keys.count("port")? else { return Ok(None) };
    match u16::try_from(number) {
        Ok(port) if port > 0 => Ok(Some(port)),
        _ => Err(KeyError::new(
            keys.name("port"),
            format!("is {number}, expected 1 to 65535 (it is {SSH_PORT} by default)"),
        )),
    }
}

/// `key`, or `agent` with an optional `agent_key`.
fn login_key(keys: &mut Keys<'_>) -> Result<Option<LoginKey>, KeyError> {
    let file = keys.text("key")?;
    let agent = keys.text("agent")?;
    let agent_key = keys.text("agent_key")?;
    match (file, agent) {
        (Some(_), Some(_)) => {
            Err(KeyError::new(keys.name("agent"), "conflicts with `key`: remove one of the two"))
        }
        (None, None) if agent_key.is_some() => Err(KeyError::new(
            keys.name("agent_key"),
            "has no effect without `agent`, the socket of an ssh-agent",
        )),
        (Some(_), None) if agent_key.is_some() => Err(KeyError::new(
            keys.name("agent_key"),
            "conflicts with `key`: it selects one of an agent's keys",
        )),
        (None, None) => Ok(None),
        (Some(file), None) => Ok(Some(LoginKey::File(absolute(&keys.name("key"), file)?))),
        (None, Some(socket)) => Ok(Some(LoginKey::Agent {
            socket: absolute(&keys.name("agent"), socket)?,
            key: agent_key.map(str::to_owned),
        })),
    }
}

fn absolute(key: &str, text: &str) -> Result<PathBuf, KeyError> {
    let path = Path::new(text);
    if path.is_absolute() {
        return Ok(path.to_owned());
    }
    Err(KeyError::new(
        key,
        format!("is {text:?}, expected an absolute path (GitLab Runner starts each call in a new directory)"),
    ))
}

/// Names become file names and arguments.
fn plain_name(key: &str, name: &str) -> Result<String, KeyError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let wrong = if name == JUMP {
        "the jump host's name: choose another"
    } else if name.len() > LONGEST_NAME {
        "is longer than 63 characters"
    } else if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || !name.chars().all(plain) {
        "expected letters, digits, `-`, `_` and `.`, beginning with a letter or a digit"
    } else {
        return Ok(name.to_owned());
    };
    Err(KeyError::new(key, format!("is {name:?}, {wrong}")))
}

fn host_key(key: &str, text: &str) -> Result<String, KeyError> {
    let mut fields = text.split_whitespace();
    match (fields.next(), fields.next()) {
        (Some(kind), Some(blob)) if kind == "ssh-ed25519" || kind.starts_with("ecdsa-sha2-") => {
            Ok(format!("{kind} {blob}"))
        }
        _ => Err(KeyError::new(
            key,
            "is not an Ed25519 or ECDSA key in OpenSSH format (`ssh-ed25519 AAAA…`): take it from \
             /etc/ssh/ssh_host_ed25519_key.pub on the host",
        )),
    }
}

/// Refuses two hosts with the same name, or with the same account, which they would share unawares.
fn check_distinct(hosts: &[Host]) -> Result<(), KeyError> {
    let (mut names, mut places) = (BTreeSet::new(), BTreeSet::new());
    for (at, host) in hosts.iter().enumerate() {
        if !names.insert(&host.name) {
            let why = format!("is {:?}, the name of another host", host.name);
            return Err(KeyError::new(format!("host.{at}.name"), why));
        }
        let Server { address, port, user, .. } = &host.server;
        if !places.insert((address, port, user)) {
            let why = format!("is {address:?}, but another host has the same address, port and user");
            return Err(KeyError::new(format!("host.{at}.address"), why));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::key_tables;

    const COMMON: &str = "user = \"ci\"\nkey = \"/etc/greenroom/id\"\n";
    const HOST_KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ";

    fn read(text: &str) -> Result<Settings, String> {
        Settings::read(&text.parse().unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_host_takes_from_the_table_what_it_does_not_say_itself() {
        let text = format!(
            "{COMMON}port = 2222\n[[host]]\nname = \"a\"\naddress = \"10.0.0.1\"\n\
             [[host]]\nname = \"mac-1\"\naddress = \"mac.example\"\nport = 22\nuser = \"build\"\n\
             agent = \"/run/agent\"\ncapacity = 2\nhost_key = \"{HOST_KEY} root@mac\"\n"
        );
        let settings = read(&text).unwrap();
        let a = &settings.hosts[0];
        assert_eq!((a.server.port, a.server.user.as_str(), a.capacity), (2222, "ci", None));
        assert_eq!(a.server.key, LoginKey::File("/etc/greenroom/id".into()));
        let mac = settings.host("mac-1").unwrap();
        assert_eq!((mac.server.port, mac.server.user.as_str(), mac.capacity), (22, "build", Some(2)));
        assert_eq!(mac.server.key, LoginKey::Agent { socket: "/run/agent".into(), key: None });
        assert_eq!(mac.server.host_key.as_deref(), Some(HOST_KEY), "without its comment");
        assert!(settings.clean && !settings.dedicated_user);
    }

    #[test]
    fn mistakes_are_named_by_their_key_with_what_was_expected() {
        let host = "[[host]]\nname = \"a\"\naddress = \"h\"\n";
        for (text, message) in [
            (COMMON.to_owned(), "`host` is missing"),
            (format!("key = \"/k\"\n{host}"), "`host.0.user` is missing"),
            (format!("user = \"ci\"\n{host}"), "`host.0.key` is missing"),
            (format!("user = \"ci\"\nkey = \"id\"\n{host}"), "`key` is \"id\", expected an absolute path"),
            (format!("{COMMON}agent = \"/a\"\n{host}"), "`agent` conflicts with `key`"),
            (
                format!("{COMMON}{host}prot = 22\n"),
                "`host.0.prot` is not a key of this table: did you mean `port`?",
            ),
            (format!("{COMMON}{host}port = 70000\n"), "`host.0.port` is 70000, expected 1 to 65535"),
            (format!("{COMMON}{host}capacity = 0\n"), "`host.0.capacity` is 0"),
            (
                format!("{COMMON}{host}host_key = \"ssh-rsa AAAA\"\n"),
                "`host.0.host_key` is not an Ed25519 or ECDSA",
            ),
            (format!("{COMMON}{host}{host}"), "`host.1.name` is \"a\", the name of another host"),
            (
                format!("{COMMON}{host}[[host]]\nname = \"b\"\naddress = \"h\"\n"),
                "`host.1.address` is \"h\", but another host has the same",
            ),
            (
                format!("{COMMON}[[host]]\nname = \"jump\"\n"),
                "`host.0.name` is \"jump\", the jump host's name",
            ),
            (format!("{COMMON}[[host]]\nname = \"../x\"\n"), "`host.0.name` is \"../x\", expected letters"),
            (format!("{COMMON}[jump]\nuser = \"j\"\n{host}"), "`jump.address` is missing"),
            (
                format!("user = \"root\"\nkey = \"/k\"\ndedicated_user = true\n{host}"),
                "`dedicated_user` is true, but jobs on host \"a\" run as root",
            ),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.starts_with(message), "{error}\n is not\n{message}");
        }
    }

    #[test]
    fn the_table_of_keys_is_the_one_that_is_read() {
        let least = "[[host]]\nname = \"a\"\naddress = \"h\"\n[jump]\naddress = \"j\"\n";
        key_tables::hold(super::super::keys::TABLES, &format!("{COMMON}{least}"), Settings::read);
    }

    #[test]
    fn the_example_shows_every_key() {
        key_tables::shown(super::super::keys::TABLES, include_str!("example.toml"));
    }
}
