//! Instances that are processes on the runner host.
//!
//! An instance is a directory and a Greenroom process that serves SSH on loopback.
//! There is no isolation: jobs run as the user that runs Greenroom.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::rc::Rc;

use async_trait::async_trait;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_core::inventory::{Capabilities, Listed, Listing};
use greenroom_keys::KeyTable;
use greenroom_ports::provider::{LaunchRequest, Provider, ProviderError, Termination};
use greenroom_system::threads::disk::BlockingPool;

use crate::first_pool::{Danger, FirstPool, Found, Given};
use crate::registration::{BuildContext, Built, Calls, GuestDirs, Registration};
use crate::supervised::Supervised;
use crate::supervised::instance_dir::{InstanceDir, Launched};
use crate::supervised::launch::InstanceProgram;
use launch::{Launch, Spec};
use settings::Settings;

mod doctor;
mod launch;
mod processes;
pub mod server;
mod settings;

pub const REGISTRATION: Registration = Registration {
    kind: "local",
    example: include_str!("example.toml"),
    calls: Calls::Here,
    environment: &[],
    build,
    guest_dirs: Some(guest_dirs),
    lifetime: None,
    suspends: false,
    engines: true,
    cloud_init: false,
    orders: None,
    reaches: Some(|_, _, _| Some("they run as processes of the runner host".to_owned())),
    static_hosts: None,
    doctor: doctor::doctor,
    first_pool: FIRST_POOL,
};

/// The keys of the provider's tables, for docs/configuration.md.
pub const KEYS: &[KeyTable] = settings::TABLES;

/// Instances share the runner host's files. A job's files are removed with the attempt's directory.
fn guest_dirs(state_dir: &Path) -> GuestDirs {
    let under = |name: &str| state_dir.join(name).display().to_string();
    GuestDirs { builds: under("builds"), cache: under("cache") }
}

/// The instances of one pool on the runner host.
#[derive(Debug)]
struct Local {
    context: BuildContext,
    supervised: Supervised,
    settings: Settings,
}

fn build(context: &BuildContext, table: &toml::Table) -> Built {
    let settings = Settings::read(&context.pool, table, rustix::process::geteuid().is_root())?;
    let arguments = ["instance", "serve", "--dir"].map(OsString::from).to_vec();
    let supervised = Supervised {
        kind: REGISTRATION.kind,
        pool: context.pool.clone(),
        instances: context.state_dir.join("instances"),
        server: InstanceProgram { program: context.program.clone(), arguments },
        clock: Rc::clone(&context.clock),
        disk: BlockingPool::default(),
    };
    Ok(Rc::new(Local { context: context.clone(), supervised, settings }))
}

impl Local {
    /// The list entry of a directory; `None`: it is not an instance, or `list_lag` has not passed.
    fn entry(&self, dir: &InstanceDir) -> io::Result<Option<Listed>> {
        let Some(Spec { launched, list_lag, .. }) = dir.read("spec.json")? else { return Ok(None) };
        if self.context.clock.now().since(launched.created) < list_lag {
            return Ok(None);
        }
        let Launched { instance: id, tags, created, .. } = launched;
        Ok(Some(Listed {
            id,
            tags: Some(tags),
            status: dir.life()?.status(),
            created: Some(created),
            detail: None,
            by_job: false,
            refused: None,
            static_host: None,
            notice: None,
        }))
    }
}

#[async_trait(?Send)]
impl Provider for Local {
    async fn launch(&self, request: &LaunchRequest) -> Result<(), ProviderError> {
        let pool_dir = self.supervised.instances.join(self.context.pool.as_str());
        let now = self.context.clock.now();
        let launch = Launch { pool_dir: &pool_dir, settings: &self.settings, request, now };
        self.supervised.launch(request, &launch).await
    }

    async fn terminate(&self, id: &InstanceId) -> Result<Termination, ProviderError> {
        self.supervised.terminate(id).await
    }

    async fn list(&self, pool: &PoolName) -> Result<Listing, ProviderError> {
        self.supervised.list(pool, |dir| self.entry(dir))
    }

    async fn endpoint(&self, id: &InstanceId) -> Result<Endpoint, ProviderError> {
        self.supervised.endpoint(id)
    }

    async fn console(&self, id: &InstanceId) -> Result<String, ProviderError> {
        self.supervised.console(id)
    }

    fn capabilities(&self) -> Capabilities {
        // A boot is the start of one small process, so concurrent boots are not limited.
        Capabilities { boots_here: Some(u32::MAX), ..Capabilities::default() }
    }
}

pub(super) const FIRST_POOL: FirstPool = FirstPool {
    name: "local",
    about: "processes here, to try it",
    comments: &[],
    look: |_| Box::new(LocalFirstPool { is_root: rustix::process::geteuid().is_root() }),
};

#[derive(Debug)]
struct LocalFirstPool {
    is_root: bool,
}

impl Found for LocalFirstPool {
    fn danger(&self, given: &Given<'_>) -> Option<Danger> {
        let danger = Danger {
            what: "jobs of provider `local` would run as root on this machine",
            key: "allow_root",
            otherwise: "name another provider",
        };
        (self.is_root && !given.has(danger.key)).then_some(danger)
    }

    fn spare(&self) -> u32 {
        1
    }
}
