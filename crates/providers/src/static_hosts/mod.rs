//! Static hosts of the operator's: adopted, monitored, cleaned between jobs; never launched, never terminated.
//!
//! All state is in the configuration and the pinned keys: this adapter stores nothing.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;

use async_trait::async_trait;
use futures_util::future::join_all;
use greenroom_core::endpoint::{Endpoint, Jump};
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, Location, PoolName};
use greenroom_core::inventory::{Capabilities, Listed, Listing, StaticHost, Status};
use greenroom_keys::KeyTable;
use greenroom_keys::problem::Problems;
use greenroom_ports::provider::{LaunchRequest, Provider, ProviderError, Termination};

use crate::registration::{BuildContext, Built, Calls, NamedHost, Registration, StaticHostCalls};

mod clean;
mod doctor;
mod first_pool;
mod keys;
mod pins;
mod probe;
mod settings;
mod ssh_config;

use settings::{Host, JUMP, Server, Settings};

pub const REGISTRATION: Registration = Registration {
    kind: "static",
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
    static_hosts: Some(StaticHostCalls { named, most_slots, clean: clean::cleaning }),
    doctor: doctor::doctor,
    first_pool: first_pool::FIRST_POOL,
};

/// For docs/configuration.md.
pub const KEYS: &[KeyTable] = keys::TABLES;

/// The hosts of one pool.
#[derive(Debug)]
struct StaticHosts {
    context: BuildContext,
    settings: Settings,
    /// Hosts that have answered. Further probes are logins: servers penalize connections without one.
    answered: RefCell<BTreeSet<String>>,
}

fn build(context: &BuildContext, table: &toml::Table) -> Built {
    Ok(Rc::new(StaticHosts::read(context, table)?))
}

fn named(context: &BuildContext, table: &toml::Table) -> Result<Vec<NamedHost>, Problems> {
    let hosts = StaticHosts::read(context, table)?;
    let jump = hosts.settings.jump.as_ref().map(|jump| NamedHost {
        name: InstanceId::new(JUMP),
        endpoint: Endpoint { host_key: hosts.host_key(jump, JUMP).unwrap_or_default(), ..without_key(jump) },
        capacity: None,
        is_jump: true,
        pin: hosts.pin_of(jump, JUMP),
        blocked: None,
    });
    let of_host = |host: &Host| NamedHost {
        name: InstanceId::new(&host.name),
        endpoint: Endpoint {
            host_key: hosts.host_key(&host.server, &host.name).unwrap_or_default(),
            jump: hosts.jump().ok().flatten().map(Box::new),
            ..without_key(&host.server)
        },
        capacity: host.capacity,
        is_jump: false,
        pin: hosts.pin_of(&host.server, &host.name),
        blocked: hosts.jump().err(),
    };
    Ok(jump.into_iter().chain(hosts.settings.hosts.iter().map(of_host)).collect())
}

fn reaches(pool: &PoolName, table: &toml::Table, _: SocketAddr) -> Option<String> {
    let hosts = Settings::read(pool, table).ok()?.hosts;
    let host = hosts.into_iter().map(|host| host.server.address).find(|address| is_here(address))?;
    Some(format!("their host `{host}` is the runner host"))
}

fn is_here(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Reads no more of the table than this: each `config` call needs it.
fn most_slots(table: &toml::Table) -> Option<u32> {
    let hosts = table.get("host")?.as_array()?.iter();
    let capacities = hosts.filter_map(|host| u32::try_from(host.get("capacity")?.as_integer()?).ok());
    capacities.max()
}

fn without_key(server: &Server) -> Endpoint {
    Endpoint {
        address: server.address.clone(),
        port: server.port,
        user: server.user.clone(),
        host_key: String::new(),
        key: Some(server.key.clone()),
        jump: None,
        forward: None,
        metadata: None,
    }
}

impl StaticHosts {
    fn read(context: &BuildContext, table: &toml::Table) -> Result<Self, Problems> {
        let settings = Settings::read(&context.pool, table)?;
        if let Some(problem) = settings.no_containers(&context.pool).filter(|_| context.containers) {
            return Err(problem.into());
        }
        Ok(Self { context: context.clone(), settings, answered: RefCell::default() })
    }

    fn pin_path(&self, name: &str) -> PathBuf {
        pins::path(&self.context.state_dir, &self.context.pool, name)
    }

    /// Path of its pinned key; `None`: the table states the key.
    fn pin_of(&self, server: &Server, name: &str) -> Option<PathBuf> {
        server.host_key.is_none().then(|| self.pin_path(name))
    }

    /// The host key of a server; the error says how to set it.
    fn host_key(&self, server: &Server, name: &str) -> Result<String, String> {
        let known = pins::host_key(server, &self.pin_path(name)).map_err(|error| error.to_string())?;
        known.ok_or_else(|| {
            let pool = &self.context.pool;
            format!(
                "its host key is unknown: pin it with `greenroom doctor --pin {name} --pool {pool}`, or set \
                 `host_key`"
            )
        })
    }

    fn jump(&self) -> Result<Option<Jump>, String> {
        let Some(jump) = &self.settings.jump else { return Ok(None) };
        let host_key = self.host_key(jump, JUMP).map_err(|problem| format!("the jump host: {problem}"))?;
        let Server { address, port, user, key, .. } = jump.clone();
        Ok(Some(Jump { address, port, user, host_key, key }))
    }

    fn endpoint_of(&self, host: &Host) -> Result<Endpoint, String> {
        let host_key = self.host_key(&host.server, &host.name)?;
        let jump = self.jump()?.map(Box::new);
        Ok(Endpoint { host_key, jump, ..without_key(&host.server) })
    }

    /// Why a host cannot be used, as far as the runner host can see without a login. A jump host is never probed: its
    /// server would penalize the runner host, and with it all hosts of the pool.
    async fn problem(&self, host: &Host) -> Option<String> {
        if let Err(problem) = self.endpoint_of(host) {
            return Some(problem);
        }
        if self.settings.jump.is_some() || self.answered.borrow().contains(&host.name) {
            return None;
        }
        match probe::probe(&host.server).await {
            Ok(()) => {
                self.answered.borrow_mut().insert(host.name.clone());
                None
            }
            Err(problem) => Some(format!("the host does not respond: {problem}")),
        }
    }
}

#[async_trait(?Send)]
impl Provider for StaticHosts {
    async fn launch(&self, _request: &LaunchRequest) -> Result<(), ProviderError> {
        Err(ProviderError::new(
            ErrorClass::Invalid,
            "the provider `static` cannot launch hosts: it uses those in its table",
        ))
    }

    async fn terminate(&self, id: &InstanceId) -> Result<Termination, ProviderError> {
        Err(ProviderError::new(
            ErrorClass::Invalid,
            format!("`{id}` is a static host: Greenroom never terminates it"),
        ))
    }

    /// A host that does not answer is *starting*: it gets no job until it answers again.
    async fn list(&self, pool: &PoolName) -> Result<Listing, ProviderError> {
        let begun = self.context.clock.now();
        let mut listing = Listing::empty(begun, Some(Location::new(REGISTRATION.kind)));
        if *pool != self.context.pool {
            return Ok(listing);
        }
        let probes = self.settings.hosts.iter().map(async |host| {
            let problem = self.problem(host).await;
            let status = if problem.is_some() { Status::Starting } else { Status::Running };
            let static_host = Some(StaticHost { capacity: host.capacity, problem });
            Listed {
                id: InstanceId::new(&host.name),
                tags: None,
                status,
                created: None,
                detail: None,
                by_job: false,
                refused: None,
                static_host,
                notice: None,
            }
        });
        listing.instances = join_all(probes).await;
        listing.instances.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(listing)
    }

    async fn endpoint(&self, id: &InstanceId) -> Result<Endpoint, ProviderError> {
        let Some(host) = self.settings.host(id.as_str()) else {
            return Err(ProviderError::new(
                ErrorClass::NotFound,
                format!("no host `{id}` in the configuration"),
            ));
        };
        let endpoint = self.endpoint_of(host);
        endpoint.map_err(|problem| ProviderError::new(ErrorClass::Transient, format!("`{id}`: {problem}")))
    }

    async fn console(&self, id: &InstanceId) -> Result<String, ProviderError> {
        Err(ProviderError::new(ErrorClass::NotFound, format!("static host `{id}` has no console")))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { launches: false, idempotent_launch: false, ..Capabilities::default() }
    }
}
