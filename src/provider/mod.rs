//! Adapters that make instances; one folder each, and the list of them.
//!
//! Adding one: a folder beside this file, a line in `WITHOUT_BACKENDS`, a fixture in tests/contract/provider.rs.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::OnceLock;

use crate::core::endpoint::Endpoint;
use crate::core::ids::{InstanceId, PoolName};
use crate::keys::KeyTable;
use crate::port::clock::Clock;
use crate::port::finding::Finding;
use crate::port::provider::Provider;

pub mod aws_ec2;
pub mod cloud;
pub mod console;
pub mod gce;
pub mod halt;
pub mod instance_dir;
#[cfg(test)]
mod key_tables;
pub mod keys;
pub mod launch;
pub mod local;
pub mod process;
pub mod qemu;
pub mod remove;
pub mod scope;
pub mod static_hosts;
pub mod supervised;
pub mod supervisor;

use keys::KeyError;

/// Every provider, those of clouds without their calls: what a program has that is to start fast.
pub const WITHOUT_BACKENDS: &[Registration] = &[
    local::REGISTRATION,
    qemu::REGISTRATION,
    static_hosts::REGISTRATION,
    aws_ec2::REGISTRATION,
    gce::REGISTRATION,
];

/// Every provider, with the calls to clouds that were built in.
#[cfg(feature = "backends")]
pub const WITH_BACKENDS: &[Registration] = &[
    local::REGISTRATION,
    qemu::REGISTRATION,
    static_hosts::REGISTRATION,
    aws_ec2::WITH_CALLS,
    gce::WITH_CALLS,
];

/// The keys of every provider: of its own table first, then of the tables in it. They are not in `Registration`, because
/// only docs/configuration.md has a use for them: a program does not carry what it does not name.
pub const KEYS: &[(&str, &[KeyTable])] = &[
    (local::REGISTRATION.kind, local::KEYS),
    (qemu::REGISTRATION.kind, qemu::KEYS),
    (static_hosts::REGISTRATION.kind, static_hosts::KEYS),
    (aws_ec2::REGISTRATION.kind, aws_ec2::KEYS),
    (gce::REGISTRATION.kind, gce::KEYS),
];

/// What this program has.
static PROVIDERS: OnceLock<&'static [Registration]> = OnceLock::new();

/// Says what this program has; the first one counts. Without it: `WITHOUT_BACKENDS`.
pub fn install(providers: &'static [Registration]) {
    PROVIDERS.set(providers).ok();
}

/// Every provider that this program has.
pub fn all() -> &'static [Registration] {
    PROVIDERS.get().copied().unwrap_or(WITHOUT_BACKENDS)
}

/// Who makes the calls of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// This program.
    Here,
    /// `greenroom-backends`, which lies beside it.
    Delegated,
}

/// A provider, or the key that is in its way.
pub type Built = Result<Rc<dyn Provider>, KeyError>;

/// A provider as the rest of the program knows it.
#[derive(Debug, Clone, Copy)]
pub struct Registration {
    /// The value of `provider` in a pool's table.
    pub kind: &'static str,
    /// One line for `init` and the documentation.
    pub summary: &'static str,
    /// A pool's provider table with every key, commented; it parses and builds (`allow_root` aside).
    pub example: &'static str,
    pub calls: Calls,
    /// Checks the table and makes the provider. Touches nothing outside.
    pub build: fn(&BuildContext, &toml::Table) -> Built,
    /// Where jobs build on instances that share this machine's file system, from the state directory; `None` where
    /// an instance has a file system of its own.
    pub guest_dirs: Option<fn(&std::path::Path) -> GuestDirs>,
    /// For a provider of fixed hosts; `None` where instances are made and thrown away.
    pub fixed: Option<FixedHosts>,
    /// Looks whether the provider could work here, without launching anything. Takes a table that builds; says
    /// what is wrong with one that does not.
    pub doctor: fn(&BuildContext, &toml::Table) -> Vec<Finding>,
}

/// What a provider of fixed hosts says beside the trait. Both functions take a table that builds.
#[derive(Debug, Clone, Copy)]
pub struct FixedHosts {
    /// Every host of the table, the jump host first.
    pub named: fn(&BuildContext, &toml::Table) -> Result<Vec<NamedHost>, KeyError>,
    /// Our own part of a clean, as a script for `/bin/sh`; `None` where the table turns it off.
    pub clean: fn(&toml::Table, &CleanDirs<'_>) -> Result<Option<String>, KeyError>,
}

/// What a clean may touch beside what each job noted.
#[derive(Debug, Clone, Copy)]
pub struct CleanDirs<'a> {
    /// Below it lie the builds of all jobs.
    pub builds: &'a str,
    /// Is emptied; `None`: what jobs have cached stays.
    pub cache: Option<&'a str>,
}

/// A host that the operator names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedHost {
    pub name: InstanceId,
    /// With an empty `host_key` as long as none is known.
    pub endpoint: Endpoint,
    /// Jobs at once; `None`: the pool's `capacity_per_instance`.
    pub capacity: Option<u32>,
    /// Passes connections on and runs no jobs.
    pub is_jump: bool,
    /// Where its pinned host key is kept; `None`: the table states it.
    pub pin: Option<PathBuf>,
    /// Why nothing can be said to it yet: the jump host on the way is not known.
    pub blocked: Option<String>,
}

/// Directories of jobs, as the instance sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestDirs {
    pub builds: String,
    pub cache: String,
}

/// What a provider may know beside its own table.
#[derive(Clone)]
pub struct BuildContext {
    /// The one pool that this provider serves.
    pub pool: PoolName,
    /// Absolute.
    pub state_dir: PathBuf,
    /// Our own executable, for instances that are processes on this machine. Absolute.
    pub program: PathBuf,
    pub clock: Rc<dyn Clock>,
}

impl std::fmt::Debug for BuildContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BuildContext").field("pool", &self.pool).finish_non_exhaustive()
    }
}

/// The hidden command `instance`, by what follows: a process of an instance's. Not for people.
pub fn instance(arguments: &[OsString]) -> ExitCode {
    match arguments.split_first() {
        Some((kind, rest)) if kind == "qemu" => qemu::process::main(rest),
        _ => local::server::main(arguments),
    }
}

/// The provider of a kind, or what may have been meant.
pub fn find(kind: &str) -> Result<&'static Registration, KeyError> {
    all().iter().find(|known| known.kind == kind).ok_or_else(|| {
        let kinds: Vec<&str> = all().iter().map(|known| known.kind).collect();
        KeyError::choice("provider", kind, &kinds)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_kind_names_the_nearest_one() {
        assert_eq!(find("local").unwrap().kind, "local");
        let error = find("locla").unwrap_err().to_string();
        let said = "`provider` is \"locla\", expected \"local\" or \"qemu\" or \"static\" or \"aws-ec2\" or \"gce\": did you mean \"local\"?";
        assert_eq!(error, said);
    }

    #[test]
    fn kinds_are_unique_and_examples_parse() {
        for (at, provider) in all().iter().enumerate() {
            assert!(all()[..at].iter().all(|other| other.kind != provider.kind), "{}", provider.kind);
            assert!(provider.example.parse::<toml::Table>().is_ok(), "{}", provider.kind);
        }
    }

    #[test]
    fn every_provider_has_its_keys_listed() {
        let kinds: Vec<&str> = all().iter().map(|known| known.kind).collect();
        assert_eq!(KEYS.iter().map(|(kind, _)| *kind).collect::<Vec<&str>>(), kinds);
    }
}
