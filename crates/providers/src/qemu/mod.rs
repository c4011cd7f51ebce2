//! Instances that are virtual machines on the runner host, through QEMU.
//!
//! Each has a supervisor: a Greenroom process that starts QEMU, talks to it and to the guest, and exits with it. As in
//! `supervised`, all state is on disk and in kernel locks.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::Path;
use std::rc::Rc;

use async_trait::async_trait;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, PoolName};
use greenroom_core::images::FoundImage;
use greenroom_core::inventory::{Capabilities, Listed, Listing};
use greenroom_keys::KeyTable;
use greenroom_keys::problem::{Place, Problem, Problems};
use greenroom_ports::provider::{LaunchRequest, Provider, ProviderError, Termination};
use greenroom_system::threads::disk::BlockingPool;

use crate::process::boot_id;
use crate::registration::{BuildContext, Built, Calls, Registration};
use crate::supervised::Supervised;
use crate::supervised::instance_dir::{InstanceDir, Launched, Life};
use crate::supervised::launch::InstanceProgram;
mod accel;
mod doctor;
mod egress;
mod first_pool;
pub mod image;
pub mod image_store;
mod launch;
pub mod process;
mod settings;
mod spec;
pub mod store_use;

use egress::Internet;
use image_store::Stores;
use launch::Launch;
use settings::{BootSource, Network, Settings};
use spec::{Booted, Ended, Spec};

pub const REGISTRATION: Registration = Registration {
    kind: "qemu",
    example: include_str!("example.toml"),
    calls: Calls::Here,
    environment: &[],
    build,
    guest_dirs: None,
    lifetime: None,
    suspends: false,
    engines: true,
    cloud_init: false,
    orders: None,
    reaches: Some(reaches),
    static_hosts: None,
    doctor: doctor::doctor,
    first_pool: first_pool::FIRST_POOL,
};

/// The keys of the provider's table, for docs/configuration.md.
pub const KEYS: &[KeyTable] = settings::TABLES;

/// Arguments of a machine's supervisor; the machine's directory follows.
const SUPERVISE: [&str; 4] = ["instance", "qemu", "supervise", "--dir"];

/// The machines of one pool.
#[derive(Debug)]
struct Qemu {
    context: BuildContext,
    supervised: Supervised,
    settings: Settings,
}

fn build(context: &BuildContext, table: &toml::Table) -> Built {
    let settings = Settings::read(&context.pool, table)?;
    may_set_rules(&context.pool, &settings, rustix::process::geteuid().is_root())?;
    let supervised = Supervised {
        kind: REGISTRATION.kind,
        pool: context.pool.clone(),
        instances: context.state_dir.join("instances"),
        server: InstanceProgram {
            program: context.program.clone(),
            arguments: SUPERVISE.map(OsString::from).to_vec(),
        },
        clock: Rc::clone(&context.clock),
        disk: BlockingPool::default(),
    };
    Ok(Rc::new(Qemu { context: context.clone(), supervised, settings }))
}

/// True if machines of this table boot that image of that directory.
pub fn boots(pool: &PoolName, table: &toml::Table, state_dir: &Path, images: &Path, image: &str) -> bool {
    Settings::read(pool, table).is_ok_and(|settings| {
        matches!(&settings.source, BootSource::Image(name) if name == image)
            && settings.images_dir(state_dir) == images
    })
}

fn reaches(pool: &PoolName, table: &toml::Table, address: SocketAddr) -> Option<String> {
    match Settings::read(pool, table).ok()?.network {
        Network::Open => {
            Some("`network = \"open\"` lets guests reach the runner host, also its loopback".to_owned())
        }
        Network::Proxy(proxy) if proxy == address.to_string() => Some("`proxy` is this address".to_owned()),
        Network::Internet(Internet { allow, .. }) => {
            let entry = allow.iter().find(|entry| entry.opens(address))?;
            Some(format!("`allow` has `{entry}`"))
        }
        Network::Isolated | Network::Proxy(_) => None,
    }
}

/// Refuses a network that needs rules where Greenroom cannot set them.
fn may_set_rules(pool: &PoolName, settings: &Settings, is_root: bool) -> Result<(), Problems> {
    if is_root || settings.network.internet().is_none() {
        return Ok(());
    }
    let place = Place::value_of(format!("pool.{pool}.provider.network"));
    Err(Problem::new(egress::NOT_ROOT).at(place, "here").into())
}

/// The list entry of a directory; `None`: it is not an instance.
fn entry(dir: &InstanceDir) -> io::Result<Option<Listed>> {
    let Some(launched) = dir.launched()? else { return Ok(None) };
    let Launched { instance: id, tags, created, .. } = launched;
    // RACE: a supervisor writes why its machine ended before it exits. Read in this order, an exiting supervisor is not
    // taken for a killed one.
    let life = dir.life()?;
    let detail = match dir.read::<Ended>("ended.json")? {
        Some(ended) => Some(ended.why),
        None if life == Life::Ended => silent_end(dir)?,
        None => dir.read::<Booted>("boot.json")?.map(|booted| booted.to_string() + older(dir, &booted)),
    };
    Ok(Some(Listed {
        id,
        tags: Some(tags),
        status: life.status(),
        created: Some(created),
        detail,
        by_job: false,
        refused: None,
        static_host: None,
        notice: None,
    }))
}

/// A remark on a machine's image store that a newer one has replaced; otherwise empty.
fn older(dir: &InstanceDir, booted: &Booted) -> &'static str {
    let current = booted.image_store.as_ref().and_then(|used| {
        let spec = dir.read::<Spec>("spec.json").ok()??;
        let stores = Stores::beside(&spec.settings.images_dir(&spec.state_dir));
        Some((used, stores.open(&used.name).ok()?))
    });
    let is_older = current.is_some_and(|(used, store)| store.manifest.digest != used.digest);
    if is_older { ", an older one than new instances get" } else { "" }
}

/// Returns how a machine ended whose supervisor recorded no reason; `None`: Greenroom terminated it.
fn silent_end(dir: &InstanceDir) -> io::Result<Option<String>> {
    let Some(served) = dir.served()?.filter(|_| !dir.has("terminating")) else { return Ok(None) };
    let with =
        if served.boot == boot_id()? { "together with its supervisor" } else { "when its host rebooted" };
    Ok(Some(format!("was killed {with}")))
}

#[async_trait(?Send)]
impl Provider for Qemu {
    async fn launch(&self, request: &LaunchRequest) -> Result<(), ProviderError> {
        self.supervised.launch(request, &Launch::new(self, request)).await
    }

    async fn terminate(&self, id: &InstanceId) -> Result<Termination, ProviderError> {
        self.supervised.terminate(id).await
    }

    async fn list(&self, pool: &PoolName) -> Result<Listing, ProviderError> {
        self.supervised.list(pool, entry)
    }

    async fn endpoint(&self, id: &InstanceId) -> Result<Endpoint, ProviderError> {
        self.supervised.endpoint(id)
    }

    async fn images(&self, id: &InstanceId) -> Result<Vec<FoundImage>, ProviderError> {
        let booted = self.supervised.dir(id)?.read::<Booted>("boot.json");
        let booted = booted.map_err(|error| ProviderError::new(ErrorClass::Transient, error.to_string()))?;
        Ok(booted.map(|booted| booted.images).unwrap_or_default())
    }

    async fn console(&self, id: &InstanceId) -> Result<String, ProviderError> {
        self.supervised.console(id)
    }

    fn capabilities(&self) -> Capabilities {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        Capabilities {
            boots_here: Some(u32::try_from(processors).unwrap_or(u32::MAX)),
            ..Capabilities::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::ids::{Generation, OwnerId};
    use greenroom_core::inventory::Tags;
    use greenroom_ports::provider::InstanceKeys;

    use super::*;

    #[test]
    fn only_root_has_a_pool_whose_network_needs_rules() {
        let pool = PoolName::new("linux");
        let refused = |network: &str, is_root| {
            let settings = Settings::read(&pool, &format!("network = {network:?}").parse().unwrap()).unwrap();
            may_set_rules(&pool, &settings, is_root).err().map(|problems| problems.to_string())
        };
        assert_eq!(refused("open", false), None);
        assert_eq!(refused("internet", true), None);
        let why = "`network = \"internet\"` requires that Greenroom runs as root: it sets rules of the runner host's firewall";
        assert_eq!(refused("internet", false).as_deref(), Some(why));
    }

    #[tokio::test]
    async fn a_disk_that_is_smaller_than_what_boots_is_an_invalid_launch_that_leaves_nothing() {
        let state = tempfile::tempdir().unwrap();
        let boots = state.path().join("debian.qcow2");
        process::qcow2::write_empty(&mut std::fs::File::create(&boots).unwrap(), 4 << 30).unwrap();
        let context = BuildContext { state_dir: state.path().to_owned(), ..doctor::tests::context() };
        let table = format!("image = {boots:?}\ndisk = \"1G\"").parse().unwrap();
        let generation = Generation::new("1a");
        let number = 1;
        let owner = OwnerId::new("o");
        let request = LaunchRequest {
            instance: InstanceId::new("linux-1a-1"),
            token: "linux-1a-1/1".to_owned(),
            tags: Tags { pool: context.pool.clone(), owner, generation, number },
            offering: None,
            keys: InstanceKeys {
                authorized_key: String::new(),
                host_key: String::new(),
                host_key_public: String::new(),
            },
            lifetime: None,
            order: None,
        };
        let provider = build(&context, &table).unwrap();
        let refused = provider.launch(&request).await.unwrap_err();
        assert_eq!(*refused.class(), ErrorClass::Invalid);
        assert!(refused.to_string().contains("has 4096 MiB: set `disk` to at least that"), "{refused}");
        assert_eq!(provider.list(&context.pool).await.unwrap().instances, []);
    }
}
