//! Adapters that launch, list and terminate instances; one folder each, and the list of them.
//!
//! Adding one: a folder beside this file, its name in `providers!`, a fixture in tests/contract/provider.rs.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::Duration;

use greenroom_core::container::ordering::OrderSettings;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_keys::KeyTable;
use greenroom_keys::near::nearest_or_all;
use greenroom_keys::problem::{Problem, Problems};
use greenroom_ports::clock::Clock;
use greenroom_ports::finding::Finding;
use greenroom_ports::host_keys::HostKeys;
use greenroom_ports::provider::Provider;
use greenroom_ports::setup::{Cleaning, Pulls};

pub mod as_json;
pub mod authorities;
pub mod aws_ec2;
pub mod cloud;
pub mod console;
pub mod environment;
pub mod external;
#[cfg(test)]
mod failing_writes;
pub mod fleeting;
pub mod gce;
pub mod halt;
pub mod held;
pub mod instance_dir;
#[cfg(test)]
mod key_tables;
pub mod kubernetes;
pub mod launch;
pub mod local;
pub mod mistakes;
pub mod process;
pub mod program;
pub mod qemu;
pub mod scope;
pub mod static_hosts;
pub mod supervised;
pub mod supervisor;

macro_rules! providers {
    ($($folder:ident),*) => {
        /// All providers, those of clouds without their calls: for a program that has to start fast.
        pub const WITHOUT_BACKENDS: &[Registration] = &[$($folder::REGISTRATION),*];

        /// All providers, with the cloud calls that were compiled in.
        #[cfg(feature = "backends")]
        pub const WITH_BACKENDS: &[Registration] = &[$($folder::WITH_CALLS),*];

        /// The keys of every provider: first those of its table, then those of inner tables. For docs/configuration.md;
        /// each provider reads its table by its own.
        pub const KEYS: &[(&str, &[KeyTable])] = &[$(($folder::REGISTRATION.kind, $folder::KEYS)),*];
    };
}

providers!(local, qemu, static_hosts, aws_ec2, gce, external, fleeting, kubernetes);

/// The providers of this program, once `install` has set them.
static PROVIDERS: OnceLock<&'static [Registration]> = OnceLock::new();

/// Sets the providers of this program; the first call counts. The default is `WITHOUT_BACKENDS`.
pub fn install(providers: &'static [Registration]) {
    PROVIDERS.set(providers).ok();
}

/// True for the program with the calls that were compiled in.
pub fn has_calls() -> bool {
    PROVIDERS.get().is_some()
}

/// Every provider that this program has.
pub fn all() -> &'static [Registration] {
    PROVIDERS.get().copied().unwrap_or(WITHOUT_BACKENDS)
}

/// True if a provider needs an environment variable in the keeper.
pub fn needs_variable(name: &str) -> bool {
    all().iter().any(|known| known.environment.contains(&name))
}

/// The program that makes a provider's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// This program.
    Here,
    /// `greenroom-backends`, in the same directory.
    Delegated,
}

/// A provider, or everything that is wrong with its table.
pub type Built = Result<Rc<dyn Provider>, Problems>;

/// Why jobs of a pool reach an address of the runner host.
pub type Reaches = fn(&PoolName, &toml::Table, SocketAddr) -> Option<String>;

/// A provider as the rest of the program sees it.
#[derive(Debug, Clone, Copy)]
pub struct Registration {
    /// The value of `kind` in a pool's provider table.
    pub kind: &'static str,
    /// A pool's provider table with every key, commented; it parses and builds (`allow_root` aside).
    pub example: &'static str,
    pub calls: Calls,
    /// Environment variables that a keeper started in the background may have. They name files and places; a variable
    /// with a secret does not belong here.
    pub environment: &'static [&'static str],
    /// Checks the table and creates the provider, without side effects.
    pub build: fn(&BuildContext, &toml::Table) -> Built,
    /// Directories of jobs on instances that share the runner host's file system, derived from the state directory.
    /// `None`: an instance has a file system of its own.
    pub guest_dirs: Option<fn(&std::path::Path) -> GuestDirs>,
    /// Default of `max_lifetime`, after which an instance ends even if its manager is lost. `None`: no limit.
    pub lifetime: Option<Duration>,
    /// True if it may be able to suspend instances. Whether it can, its capabilities say at run time.
    pub suspends: bool,
    /// False if its instances cannot have a container engine.
    pub engines: bool,
    /// True if its instances may still be set up by cloud-init when their SSH server answers.
    pub cloud_init: bool,
    /// What jobs may order in a pool; its result is `None` if the table does not allow it. Takes a table that builds.
    pub orders: Option<fn(&PoolName, &toml::Table) -> Option<OrderSettings>>,
    /// Why jobs on its instances reach an address of the runner host, as the end of a sentence; the result is `None` if nothing
    /// in the table lets them. `None`: no table does. Takes a table that builds.
    pub reaches: Option<Reaches>,
    /// Set for a provider of static hosts; `None`: instances are launched and terminated.
    pub static_hosts: Option<StaticHostCalls>,
    /// Checks whether the provider can work here, without launching anything. If the table does not build, reports
    /// its mistakes.
    pub doctor: fn(&BuildContext, &toml::Table) -> Vec<Finding>,
}

impl Registration {
    /// True if it launches and terminates instances, as its capabilities say; false for static hosts.
    pub fn launches(&self) -> bool {
        self.static_hosts.is_none()
    }
}

/// What a provider of static hosts implements in addition to the trait. Both functions take a table that builds.
#[derive(Debug, Clone, Copy)]
pub struct StaticHostCalls {
    /// Every host of the table, the jump host first.
    pub named: fn(&BuildContext, &toml::Table) -> Result<Vec<NamedHost>, Problems>,
    /// The largest number of concurrent jobs that the table sets for a host; `None`: it sets none.
    pub most_slots: fn(&toml::Table) -> Option<u32>,
    /// Greenroom's own part of cleaning; `None`: the table turns it off.
    pub clean: fn(&PoolName, &toml::Table, &CleanDirs<'_>) -> Result<Option<Cleaning>, Problems>,
}

/// Directories that cleaning may touch in addition to those that each job recorded.
#[derive(Debug, Clone, Copy)]
pub struct CleanDirs<'a> {
    /// Contains the builds of all jobs.
    pub builds: &'a str,
    pub cache: &'a str,
    /// True if builds stay on a host that stays with its trust domain.
    pub keep_builds: bool,
    /// True if jobs of the pool run in containers.
    pub containers: bool,
}

/// A host that the operator names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedHost {
    pub name: InstanceId,
    /// With an empty `host_key` as long as none is known.
    pub endpoint: Endpoint,
    /// Number of concurrent jobs; `None`: the pool's `capacity_per_instance`.
    pub capacity: Option<u32>,
    /// Passes connections on and runs no jobs.
    pub is_jump: bool,
    /// Path of its pinned host key; `None`: the table states the key.
    pub pin: Option<PathBuf>,
    /// Why Greenroom cannot connect yet: the jump host's key is unknown.
    pub blocked: Option<String>,
}

/// Directories of jobs, as the instance sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestDirs {
    pub builds: String,
    pub cache: String,
}

/// The input of a provider in addition to its table.
#[derive(Clone)]
pub struct BuildContext {
    /// The one pool that this provider serves.
    pub pool: PoolName,
    /// Absolute.
    pub state_dir: PathBuf,
    /// Greenroom's executable, for instances that are processes on the runner host. Absolute.
    pub program: PathBuf,
    /// Whether jobs run in containers of Podman on its instances.
    pub containers: bool,
    /// How images are pulled for the pool; `None`: its instances run no containers, or none is launched.
    pub pulls: Option<Rc<dyn Pulls>>,
    pub clock: Rc<dyn Clock>,
    /// For instances whose host key only they can show.
    pub host_keys: Rc<dyn HostKeys>,
}

#[cfg(test)]
impl BuildContext {
    /// Of a pool `linux` whose provider connects to nothing.
    pub(crate) fn fixture(state_dir: &std::path::Path) -> Self {
        Self {
            pool: PoolName::new("linux"),
            state_dir: state_dir.to_owned(),
            program: "/bin/true".into(),
            containers: false,
            pulls: None,
            clock: Rc::new(greenroom_testkit::clock::ManualClock::default()),
            host_keys: Rc::new(greenroom_ports::host_keys::Unconnected),
        }
    }
}

impl std::fmt::Debug for BuildContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BuildContext").field("pool", &self.pool).finish_non_exhaustive()
    }
}

/// The hidden command `instance`, which runs a process of a provider's; `arguments` follow its name.
pub fn instance(arguments: &[OsString]) -> ExitCode {
    match arguments.split_first() {
        Some((kind, rest)) if kind == "qemu" => qemu::process::main(rest),
        Some((kind, rest)) if kind == program::holder::KIND => program::holder::main(rest),
        Some((kind, rest)) if kind == fleeting::holder::KIND => fleeting::holder::main(rest),
        _ => local::server::main(arguments),
    }
}

/// The provider of a kind; the error suggests the most similar one.
pub fn find(kind: &str) -> Result<&'static Registration, Problem> {
    all().iter().find(|known| known.kind == kind).ok_or_else(|| {
        let kinds = all().iter().map(|known| known.kind);
        Problem::new(format!("there is no provider `{kind}`")).help(nearest_or_all(kind, kinds))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_kind_names_the_nearest_one() {
        assert_eq!(find("local").unwrap().kind, "local");
        let error = |kind| find(kind).unwrap_err().to_string();
        assert_eq!(error("locla"), "there is no provider `locla` (did you mean `local`?)");
        let all = "there is no provider `0` (name one of `local`, `qemu`, `static`, `aws-ec2`, `gce`, `external`, `fleeting`, `kubernetes`)";
        assert_eq!(error("0"), all);
    }

    #[test]
    fn kinds_are_unique_and_examples_parse() {
        for (at, provider) in all().iter().enumerate() {
            assert!(all()[..at].iter().all(|other| other.kind != provider.kind), "{}", provider.kind);
            assert!(provider.example.parse::<toml::Table>().is_ok(), "{}", provider.kind);
        }
    }

    #[test]
    fn every_cloud_has_a_lifetime_and_no_other_provider_has() {
        for provider in WITHOUT_BACKENDS {
            let is_cloud = provider.calls == Calls::Delegated;
            assert_eq!(provider.lifetime.is_some(), is_cloud, "{}", provider.kind);
        }
    }
}
