//! The identity of a machine, which distinguishes it from other clones of its image.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::protocol::{CommandError, HostCommand};
use crate::ssh::{Server, quiet};
use crate::{naming, sys, write_file};

/// The home of the user that jobs log in as.
const HOME: &str = "/root";
const PROXY_FOR_SHELLS: &str = "/etc/profile.d/greenroom-proxy.sh";
const PROXY_FOR_APT: &str = "/etc/apt/apt.conf.d/99greenroom-proxy";

/// The parts of an identity that the host has sent so far. The guest uses none before GO, so that after a snapshot is
/// resumed fresh entropy comes before anything that might draw on it.
#[derive(Debug, Default)]
pub(crate) struct PartialIdentity {
    time: Option<Duration>,
    seed: Option<Box<[u8; 64]>>,
    hostname: Option<String>,
    machine_id: Option<String>,
    host_key: Option<Vec<u8>>,
    authorized_key: Option<String>,
    proxy: Option<String>,
}

/// A complete identity.
#[derive(Debug)]
pub(crate) struct Identity {
    time: Duration,
    seed: Box<[u8; 64]>,
    hostname: String,
    machine_id: String,
    host_key: Vec<u8>,
    authorized_key: String,
    proxy: Option<String>,
}

impl PartialIdentity {
    /// Keeps the part of the identity that a command carries; other commands carry none.
    pub(crate) fn keep(&mut self, order: HostCommand) {
        match order {
            HostCommand::Time(time) => self.time = Some(time),
            HostCommand::Seed(seed) => self.seed = Some(seed),
            HostCommand::Hostname(name) => self.hostname = Some(name),
            HostCommand::MachineId(id) => self.machine_id = Some(id),
            HostCommand::HostKey(key) => self.host_key = Some(key),
            HostCommand::AuthorizedKey(key) => self.authorized_key = Some(key),
            HostCommand::Proxy(url) => self.proxy = Some(url),
            HostCommand::Ping(_)
            | HostCommand::WarmUp
            | HostCommand::ImageStore
            | HostCommand::Script(_)
            | HostCommand::Run
            | HostCommand::Go
            | HostCommand::PowerOff => {}
        }
    }

    /// The URL of the proxy, if the host has named one.
    pub(crate) fn proxy(&self) -> Option<&str> {
        self.proxy.as_deref()
    }

    /// The whole identity, if no part but the proxy is missing.
    pub(crate) fn complete(self) -> Result<Identity, CommandError> {
        let missing = CommandError::GoWithout;
        Ok(Identity {
            time: self.time.ok_or_else(|| missing("TIME"))?,
            seed: self.seed.ok_or_else(|| missing("SEED"))?,
            hostname: self.hostname.ok_or_else(|| missing("HOSTNAME"))?,
            machine_id: self.machine_id.ok_or_else(|| missing("MACHINE-ID"))?,
            host_key: self.host_key.ok_or_else(|| missing("HOST-KEY"))?,
            authorized_key: self.authorized_key.ok_or_else(|| missing("AUTHORIZED-KEY"))?,
            proxy: self.proxy,
        })
    }
}

impl Identity {
    /// Gives the machine this identity. The SSH server must not run yet.
    pub(crate) fn assume(&self, server: Server) -> io::Result<()> {
        sys::seed_random(&self.seed).map_err(naming("seeding the random numbers"))?;
        sys::set_clock(self.time).map_err(naming("setting the clock"))?;
        sys::set_hostname(&self.hostname).map_err(naming("setting the host's name"))?;
        write_file("/etc/hostname", 0o644, format!("{}\n", self.hostname))?;
        write_file("/etc/hosts", 0o644, hosts(&self.hostname))?;
        // In place: with systemd the file may be a mount point.
        write_file("/etc/machine-id", 0o444, format!("{}\n", self.machine_id))?;
        server.install_host_key(&self.host_key)?;
        let ssh = Path::new(HOME).join(".ssh");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&ssh).map_err(naming(ssh.display()))?;
        write_file(ssh.join("authorized_keys"), 0o600, format!("{}\n", self.authorized_key))?;
        match &self.proxy {
            Some(url) => use_proxy(url),
            None => Ok(()),
        }
    }
}

fn hosts(name: &str) -> String {
    format!("127.0.0.1\tlocalhost\n127.0.1.1\t{name}\n::1\tlocalhost ip6-localhost ip6-loopback\n")
}

/// Sets the proxy for every program that fetches: shells and their children, git, apt.
fn use_proxy(url: &str) -> io::Result<()> {
    write_file(PROXY_FOR_SHELLS, 0o644, proxy_variables(url))?;
    write_file(
        PROXY_FOR_APT,
        0o644,
        format!("Acquire::http::Proxy \"{url}\";\nAcquire::https::Proxy \"{url}\";\n"),
    )?;
    quiet(Command::new("git").args(["config", "--system", "http.proxy", url]))
}

/// The environment variables that name the proxy to programs.
pub(crate) fn proxy_environment(url: &str) -> [(&'static str, &str); 3] {
    [("http_proxy", url), ("https_proxy", url), ("no_proxy", "localhost,127.0.0.1,::1")]
}

fn proxy_variables(url: &str) -> String {
    let lines = proxy_environment(url).map(|(name, value)| {
        let upper = name.to_ascii_uppercase();
        format!("export {name}={value} {upper}={value}\n")
    });
    lines.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<HostCommand> {
        vec![
            HostCommand::Time(Duration::from_secs(1)),
            HostCommand::Seed(Box::new([7; 64])),
            HostCommand::Hostname("a".to_owned()),
            HostCommand::MachineId("0".repeat(32)),
            HostCommand::HostKey(vec![1]),
            HostCommand::AuthorizedKey("ssh-ed25519 A".to_owned()),
        ]
    }

    #[test]
    fn nothing_but_the_proxy_may_be_missing() {
        for (left_out, name) in
            ["TIME", "SEED", "HOSTNAME", "MACHINE-ID", "HOST-KEY", "AUTHORIZED-KEY"].iter().enumerate()
        {
            let mut parts = PartialIdentity::default();
            all().into_iter().enumerate().filter(|(at, _)| *at != left_out).for_each(|(_, o)| parts.keep(o));
            assert_eq!(parts.complete().unwrap_err().to_string(), format!("GO without {name}"));
        }
        let mut parts = PartialIdentity::default();
        for order in all() {
            parts.keep(order);
        }
        assert!(parts.complete().unwrap().proxy.is_none());
    }

    #[test]
    fn a_proxy_is_told_in_both_spellings() {
        let text = proxy_variables("http://10.0.2.100:3128");
        assert!(
            text.contains("export https_proxy=http://10.0.2.100:3128 HTTPS_PROXY=http://10.0.2.100:3128\n")
        );
        assert_eq!(text.lines().count(), 3);
    }
}
