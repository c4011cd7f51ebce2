//! A provider as the rest of the program sees it, and what it is built from.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::container::ordering::OrderSettings;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_keys::problem::Problems;
use greenroom_ports::clock::Clock;
use greenroom_ports::finding::Finding;
use greenroom_ports::host_keys::HostKeys;
use greenroom_ports::provider::Provider;
use greenroom_ports::setup::{Cleaning, Pulls};

use crate::first_pool::FirstPool;

/// The program that makes a provider's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// The program that is running.
    Here,
    /// `greenroom-backends`, in the same directory.
    Delegated,
}

/// A provider, or everything that is wrong with its table.
pub type Built = Result<Rc<dyn Provider>, Problems>;

/// Returns why jobs of a pool reach an address of the runner host; see [`Registration::reaches`].
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
    /// The dedicated instances that jobs may order in a pool; the result is `None` if the table does not allow it. ValueType
    /// a table that builds.
    pub orders: Option<fn(&PoolName, &toml::Table) -> Option<OrderSettings>>,
    /// The function that says why jobs on its instances reach an address of the runner host, such as
    /// `they run as processes of the runner host`; the
    /// result is `None` if nothing in the table lets them. `None`: no table does. Takes a table that builds.
    pub reaches: Option<Reaches>,
    /// The calls of a provider of static hosts; `None`: instances are launched and terminated.
    pub static_hosts: Option<StaticHostCalls>,
    /// Checks whether the provider can work here, without launching anything. If the table does not build, reports
    /// its mistakes.
    pub doctor: fn(&BuildContext, &toml::Table) -> Vec<Finding>,
    pub first_pool: FirstPool,
}

impl Registration {
    /// True if it launches and terminates instances, as its capabilities say; false for static hosts.
    pub fn launches(&self) -> bool {
        self.static_hosts.is_none()
    }
}

/// The functions of a provider of static hosts in addition to the trait. Both functions take a table that builds.
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
    /// The host's endpoint, with an empty `host_key` as long as none is known.
    pub endpoint: Endpoint,
    /// Number of concurrent jobs; `None`: the pool's `capacity_per_instance`.
    pub capacity: Option<u32>,
    /// Passes connections on and runs no jobs.
    pub is_jump: bool,
    /// Path of its pinned host key; `None`: the table states the key.
    pub pin: Option<PathBuf>,
    /// The reason Greenroom cannot connect yet: the jump host's key is unknown.
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
    /// True if jobs run in containers of Podman on the pool's instances.
    pub containers: bool,
    /// The way images are pulled for the pool; `None`: its instances run no containers, or none is launched.
    pub pulls: Option<Rc<dyn Pulls>>,
    pub clock: Rc<dyn Clock>,
    /// For instances whose host key only they can show.
    pub host_keys: Rc<dyn HostKeys>,
}

impl std::fmt::Debug for BuildContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BuildContext").field("pool", &self.pool).finish_non_exhaustive()
    }
}
