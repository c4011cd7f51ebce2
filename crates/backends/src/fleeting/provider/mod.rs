//! A provider that drives a plugin.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, Location, PoolName};
use greenroom_core::inventory::{
    Capabilities, Listed, Listing, Resource, ResourceKind, Resources, Status, Suspends,
};
use greenroom_core::report::ApiCalls;
use greenroom_core::time::Stamp;
use greenroom_ports::finding::Finding;
use greenroom_ports::provider::{Demand, LaunchRequest, Provider, ProviderError, Termination};

use super::book::entry::{BookMachine, LaunchProgress, console_of, state_label};
use super::book::{Book, BookEntry};
use super::findings;
use super::group::{ConnectInfo, InstanceState, call_failure};
use super::login::{Logins, OwnLogin, OwnLoginError};
use super::own_keys::{Denials, KeyMaker, Offered, OwnKeys};
use super::queue::PluginQueue;
use super::reach::{self, ReachError, Trust};
use super::settings::Settings;
use greenroom_core::text::with_causes;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod key_tests;
#[cfg(test)]
mod tests;

/// The time for which a list waits for a slow call of the plugin. Then it is the last update, with its time.
const BUSY: Duration = Duration::from_secs(30);
/// The maximum age of an update for the address of an instance that runs, and of one that does not run yet.
const ADDRESS_AGE: Duration = Duration::from_secs(10);
const WAIT_AGE: Duration = Duration::from_secs(2);
/// The time for which an address and a login are used before the plugin is asked for them once more.
const CONNECT_AGE: Duration = Duration::from_mins(5);
/// The time before their end at which credentials are refreshed.
const REFRESH: Duration = Duration::from_mins(15);

/// One pool's instances in a plugin's group.
pub(super) struct Fleeting {
    pub(super) pool: PoolName,
    pub(super) settings: Settings,
    pub(super) queue: Rc<PluginQueue>,
    pub(super) logins: Logins,
    pub(super) trust: Trust,
    /// The addresses and logins of instances.
    pub(super) known: RefCell<BTreeMap<InstanceId, KnownConnection>>,
    pub(super) own_keys: OwnKeys,
    /// The maker of keys, if the plugin makes keys of its own.
    pub(super) maker: RefCell<Option<KeyMaker>>,
    pub(super) denials: RefCell<BTreeMap<InstanceId, Denials>>,
}

/// Address and login of an instance, as the plugin gave them last.
#[derive(Debug, Clone)]
pub(super) struct KnownConnection {
    id: String,
    /// The endpoint without a host key.
    endpoint: Endpoint,
    since: Stamp,
    /// The time when the credentials end, in seconds since 1970.
    expires: Option<i64>,
    pub(super) offered: Offered,
}

impl std::fmt::Debug for Fleeting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleeting").field("pool", &self.pool).finish_non_exhaustive()
    }
}

impl Fleeting {
    /// The key or password that the plugin gets, and that logs in unless the plugin gives another one.
    pub(super) fn own_login(settings: &Settings, logins: &Logins) -> Result<OwnLogin, ProviderError> {
        let own = match (&settings.key_file, &settings.password_file) {
            (Some(path), _) => OwnLogin::key_file(path).map_err(OwnLoginError::Io),
            (None, Some(path)) => OwnLogin::password_file(path),
            (None, None) => logins.pool_key().map_err(OwnLoginError::Io),
        };
        own.map_err(|error| {
            let why = format!("the key or the password of logins cannot be read: {error}");
            ProviderError::new(ErrorClass::Transient, why)
        })
    }

    fn location(&self) -> Option<Location> {
        self.queue.info().map(|info| Location::new(format!("fleeting group {}", info.id)))
    }

    /// The running machine of an instance.
    async fn machine(&self, id: &InstanceId) -> Result<BookMachine, ProviderError> {
        let transient = |why: &str| Err(ProviderError::new(ErrorClass::Transient, why));
        let runs = || {
            let is_running =
                |machine: &BookMachine| machine.state == InstanceState::Running && machine.missed == 0;
            self.queue.read(|book| book.machines().get(id).is_some_and(is_running))
        };
        self.queue.update(ADDRESS_AGE).await?;
        if !runs() {
            self.queue.update(WAIT_AGE).await?;
        }
        let now = self.queue.now();
        let within = self.queue.rules().appears_within;
        let found = self.queue.read(|book| match book.entry(id) {
            Some(BookEntry::Machine(machine)) => Ok(machine.clone()),
            // A launch that was given up may have a machine.
            Some(BookEntry::Intent(intent)) => {
                Err(intent.progress.is_open() || now.since(intent.at.seen_from(now)) < within)
            }
            Some(BookEntry::Former(_)) | None => Err(false),
        });
        match found {
            Ok(machine) if machine.status() == Status::Running => Ok(machine),
            Ok(_) => transient("the instance is not running yet"),
            Err(true) => transient("the plugin does not show the instance yet"),
            Err(false) => Err(self.not_found(id)),
        }
    }

    fn not_found(&self, id: &InstanceId) -> ProviderError {
        if let Some(group) = self.queue.other_group_of(id) {
            let why = format!("`{id}` is in group {group}, which `plugin_config` no longer names");
            return ProviderError::new(ErrorClass::Transient, why);
        }
        ProviderError::new(ErrorClass::NotFound, format!("no machine of the plugin belongs to `{id}`"))
    }

    /// Address and login, from the plugin's last answer if that is recent.
    async fn connect(&self, id: &InstanceId, machine: &BookMachine) -> Result<Endpoint, ProviderError> {
        let now = self.queue.now();
        let lasts = |known: &KnownConnection| {
            let left = known.expires.is_none_or(|at| at - now.wall_seconds() > seconds(REFRESH));
            left && now.since(known.since) < CONNECT_AGE && known.id == machine.id
        };
        if let Some(known) = self.known.borrow().get(id).filter(|known| lasts(known)) {
            return Ok(known.endpoint.clone());
        }
        // Some plugins exit if they are asked about an instance that their last update lacks.
        let group = self.queue.group()?;
        // A start that comes in between does not answer: it has listed nothing yet.
        let start = group.info().await.map(|info| info.start);
        let info = group.connect_info(&machine.id).await;
        let info = info.map_err(|error| call_failure("say how an instance is reached", &error))?;
        if info.expires.is_some_and(|at| at <= now.wall_seconds()) {
            let why = "the credentials that the plugin gives have expired";
            return Err(ProviderError::new(ErrorClass::Transient, why));
        }
        let own = Self::own_login(&self.settings, &self.logins)?;
        let (info, offered) = self.choose_login(id, machine, &info, start.unwrap_or_default(), &own)?;
        let endpoint = self.endpoint_of(id, &info, &own)?;
        let expires = info.expires;
        let known = KnownConnection {
            id: machine.id.clone(),
            endpoint: endpoint.clone(),
            since: now,
            expires,
            offered,
        };
        let mut all = self.known.borrow_mut();
        all.retain(|instance, _| self.queue.read(|book| book.machines().contains_key(instance)));
        all.insert(id.clone(), known);
        Ok(endpoint)
    }

    fn endpoint_of(
        &self,
        id: &InstanceId,
        info: &ConnectInfo,
        own: &OwnLogin,
    ) -> Result<Endpoint, ProviderError> {
        let endpoint = reach::endpoint(&self.settings, info).map_err(|error| {
            let class = match error {
                ReachError::NoAddress => ErrorClass::Transient,
                ReachError::Protocol(_) | ReachError::NoUser => ErrorClass::Invalid,
            };
            ProviderError::new(class, error.to_string())
        })?;
        let key = self.logins.of(id, info, own);
        let key = key.map_err(|error| ProviderError::new(ErrorClass::Invalid, with_causes(&error)))?;
        Ok(Endpoint { key: Some(key), ..endpoint })
    }

    /// The host key that an instance must present; established with its first address.
    async fn host_key(
        &self,
        id: &InstanceId,
        machine: &BookMachine,
        at: &Endpoint,
    ) -> Result<String, ProviderError> {
        if let Some(certified) = self.trust.certified(&machine.id, &at.address) {
            return Ok(certified);
        }
        if let Some(known) = &machine.host_key {
            return Ok(known.clone());
        }
        let key = self.trust.establish(&machine.id, at).await?;
        let kept = self.queue.change(|book| {
            let machine = book.machine_mut(id).filter(|now| now.id == machine.id)?;
            Some(machine.host_key.get_or_insert_with(|| key.clone()).clone())
        });
        // CRASH: the key counts once it is on disk: a later process must not accept another one.
        self.queue.store().await?;
        tracing::info!(pool = %self.pool, instance = %id, "its host key from now on: {key}");
        kept.ok_or_else(|| self.not_found(id))
    }

    /// Removes the login of an instance that is gone.
    fn forget(&self, id: &InstanceId) {
        self.logins.discard(id);
        self.known.borrow_mut().remove(id);
        self.denials.borrow_mut().remove(id);
    }
}

#[async_trait(?Send)]
impl Provider for Fleeting {
    async fn launch(&self, request: &LaunchRequest) -> Result<(), ProviderError> {
        self.queue.launch(&request.instance, &request.token, &request.tags).await
    }

    async fn terminate(&self, id: &InstanceId) -> Result<Termination, ProviderError> {
        if self.queue.other_group_of(id).is_some() && self.queue.read(|book| book.entry(id).is_none()) {
            return Err(self.not_found(id));
        }
        self.note_end(id);
        let ended = self.queue.terminate(id).await;
        match &ended {
            Ok(Termination::Gone) => self.forget(id),
            Err(error) if *error.class() == ErrorClass::NotFound => self.forget(id),
            _ => {}
        }
        ended
    }

    async fn suspend(&self, id: &InstanceId) -> Result<(), ProviderError> {
        self.known.borrow_mut().remove(id);
        self.queue.suspend(id).await
    }

    async fn resume(&self, id: &InstanceId) -> Result<(), ProviderError> {
        // Address and login may be others from now on.
        self.known.borrow_mut().remove(id);
        self.queue.resume(id).await
    }

    fn forget_failures(&self) {
        self.queue.forget_failures();
    }

    async fn heartbeat(&self, id: &InstanceId) -> Result<Option<String>, ProviderError> {
        self.queue.heartbeat(id).await
    }

    async fn list(&self, pool: &PoolName) -> Result<Listing, ProviderError> {
        if *pool != self.pool {
            return Ok(Listing::empty(self.queue.now(), None));
        }
        let begun = match tokio::time::timeout(BUSY, self.queue.update(Duration::ZERO)).await {
            Ok(updated) => updated?,
            Err(_) => self.queue.last_good().ok_or_else(|| {
                let why = "the plugin has not answered yet: it may still be starting";
                ProviderError::new(ErrorClass::Transient, why)
            })?,
        };
        let (mut instances, copies) = self.queue.read(|book| (listed(book), foreign(book)));
        self.logins.sweep(|id| self.queue.read(|book| book.machines().contains_key(id)));
        self.sweep_keys();
        for listed in &mut instances {
            if let Some(why) = self.lost(&listed.id) {
                (listed.status, listed.detail) = (Status::Stopping, Some(why));
            }
        }
        Ok(Listing { begun, complete: true, location: self.location(), instances, copies })
    }

    async fn endpoint(&self, id: &InstanceId) -> Result<Endpoint, ProviderError> {
        let machine = self.machine(id).await?;
        let endpoint = self.connect(id, &machine).await?;
        let host_key = self.host_key(id, &machine, &endpoint).await?;
        Ok(Endpoint { host_key, ..endpoint })
    }

    fn login_tried(&self, id: &InstanceId, denied: bool) -> Option<String> {
        self.note_login(id, denied)
    }

    async fn console(&self, id: &InstanceId) -> Result<String, ProviderError> {
        self.queue.read(|book| console_of(book, id)).ok_or_else(|| self.not_found(id))
    }

    async fn resources(&self, pool: &PoolName) -> Result<Resources, ProviderError> {
        let listing = self.list(pool).await?;
        let mut resources = Resources::from(listing);
        // The plugin's ids, which its console shows.
        self.queue.read(|book| {
            for resource in &mut resources.found {
                let machine = resource.instance.as_ref().and_then(|id| book.machines().get(id));
                if let Some(machine) = machine {
                    resource.name.clone_from(&machine.id);
                }
            }
        });
        Ok(resources)
    }

    async fn examine(&self, demand: &Demand) -> Vec<Finding> {
        let updated = self.queue.update(Duration::ZERO).await;
        let foreign = self.queue.read(|book| book.foreign().len());
        self.examine_key().await;
        let mut found = findings::of_group(
            &self.pool,
            &self.settings,
            updated.err().as_ref(),
            self.queue.info().as_ref(),
            foreign,
            demand,
        );
        found.extend(findings::of_keys(&self.pool, self.own_key().as_ref(), self.maker.borrow().as_ref()));
        found
    }

    fn capabilities(&self) -> Capabilities {
        let suspends = match self.queue.info() {
            None => Suspends::Unknown,
            Some(info) if info.suspends => Suspends::Yes,
            Some(_) => Suspends::No,
        };
        Capabilities { suspends, own_key: self.own_key(), ..Capabilities::default() }
    }

    fn api_calls(&self) -> Option<ApiCalls> {
        Some(self.queue.api_calls())
    }
}

/// The machines of launches, and accepted launches whose machine is expected.
fn listed(book: &Book) -> Vec<Listed> {
    let entry = |id: &InstanceId, tags, status, created, detail| Listed {
        id: id.clone(),
        tags: Some(tags),
        status,
        created,
        detail,
        by_job: false,
        refused: None,
        static_host: None,
        notice: None,
    };
    let machines = book.machines().iter().map(|(id, machine)| {
        let requested = machine.history.first().map(|(at, _)| *at);
        entry(id, machine.tags.clone(), machine.status(), requested, Some(machine.id.clone()))
    });
    let expected = book.intents().iter().filter(|intent| intent.progress == LaunchProgress::Accepted);
    let expected = expected.map(|intent| {
        let detail = Some("the plugin does not show it yet".to_owned());
        entry(&intent.instance, intent.tags.clone(), Status::Starting, None, detail)
    });
    let mut all: Vec<Listed> = machines.chain(expected).collect();
    all.sort_by(|a, b| a.id.cmp(&b.id));
    all
}

/// The machines that no launch requested.
fn foreign(book: &Book) -> Vec<Resource> {
    let resource = |(id, foreign): (&String, &super::book::ForeignMachine)| Resource {
        kind: ResourceKind::Instance,
        name: id.clone(),
        instance: None,
        tags: None,
        created: None,
        detail: Some(format!("{}, requested by no launch", state_label(foreign.state))),
    };
    book.foreign().iter().map(resource).collect()
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}
