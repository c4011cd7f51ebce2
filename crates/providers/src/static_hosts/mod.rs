//! Static hosts of the operator's: adopted, monitored, cleaned between jobs; never launched, never terminated.
//!
//! All state is in the configuration and the pinned keys: this adapter stores nothing.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::rc::Rc;

use async_trait::async_trait;
use futures_util::future::join_all;
use greenroom_core::endpoint::{Endpoint, LoginKey};
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, Location, PoolName};
use greenroom_core::inventory::{Capabilities, Listed, Listing, StaticHost, Status};
use greenroom_keys::KeyTable;
use greenroom_keys::problem::Problems;
use greenroom_ports::finding::{Finding, Severity};
use greenroom_ports::provider::{LaunchRequest, Provider, ProviderError, Termination};

use crate::mistakes::{self, finding};
use crate::registration::{BuildContext, Built, Calls, NamedHost, Registration, StaticHostCalls};

mod availability;
mod clean;
mod first_pool;
mod settings;

use availability::without_key;
use settings::{Host, JUMP, Settings};

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
    doctor,
    first_pool: first_pool::FIRST_POOL,
};

/// The keys of the provider's tables, for docs/configuration.md.
pub const KEYS: &[KeyTable] = settings::TABLES;

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
        blocked: hosts.jump().err().map(|error| error.to_string()),
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

/// The largest `capacity` of a host. Reads nothing else of the table: each `config` call needs it.
fn most_slots(table: &toml::Table) -> Option<u32> {
    let hosts = table.get("host")?.as_array()?.iter();
    let capacities = hosts.filter_map(|host| u32::try_from(host.get("capacity")?.as_integer()?).ok());
    capacities.max()
}

impl StaticHosts {
    fn read(context: &BuildContext, table: &toml::Table) -> Result<Self, Problems> {
        let settings = Settings::read(&context.pool, table)?;
        if let Some(problem) = settings.no_containers(&context.pool).filter(|_| context.containers) {
            return Err(problem.into());
        }
        Ok(Self { context: context.clone(), settings, answered: RefCell::default() })
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
            let problem = self.check(host).await.err().map(|error| error.to_string());
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

pub(super) fn doctor(context: &BuildContext, table: &toml::Table) -> Vec<Finding> {
    let hosts = match StaticHosts::read(context, table) {
        Ok(hosts) => hosts,
        Err(problems) => return mistakes::findings("static-table", &problems),
    };
    let settings = &hosts.settings;
    let servers = settings.hosts.iter().map(|host| (host.name.as_str(), &host.server));
    let servers = settings.jump.iter().map(|jump| (JUMP, jump)).chain(servers);
    let mut found = Vec::new();
    let mut files = Vec::new();
    for (name, server) in servers {
        if let Err(problem) = hosts.host_key(server, name) {
            let what = format!("host `{name}` of pool `{}` gets no jobs: {problem}", context.pool);
            let remedy = format!("greenroom doctor --pin {name} --pool {}", context.pool);
            found.push(finding("static-unpinned", Severity::Error, what, remedy));
        }
        match &server.key {
            LoginKey::File(path) if !files.contains(&path) => files.push(path),
            LoginKey::File(_) | LoginKey::Password(_) | LoginKey::Agent { .. } => {}
        }
    }
    found.extend(files.into_iter().filter_map(|path| key_file(path)));
    if !settings.clean {
        let what = format!(
            "hosts of pool `{}` are not cleaned between jobs (`clean = false`): a job finds what the last \
             one left, including its token",
            context.pool
        );
        let remedy = "remove `clean = false`, or clean the hosts with `clean_command`".to_owned();
        found.push(finding("static-not-cleaned", Severity::Warning, what, remedy));
    }
    found
}

fn key_file(path: &Path) -> Option<Finding> {
    let path_shown = path.display();
    match std::fs::metadata(path) {
        Err(error) => {
            let what = format!("cannot read the key `{path_shown}`: {error}");
            let remedy = format!("ssh-keygen -t ed25519 -N '' -f {path_shown}");
            Some(finding("static-key-unreadable", Severity::Error, what, remedy))
        }
        Ok(meta) if meta.mode() & 0o077 != 0 => {
            let what =
                format!("other users can read the key `{path_shown}` (mode {:04o})", meta.mode() & 0o7777);
            Some(finding("static-key-mode", Severity::Warning, what, format!("chmod 600 {path_shown}")))
        }
        Ok(_) => None,
    }
}
