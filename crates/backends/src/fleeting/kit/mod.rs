//! The conformance kit of plugins: whether a plugin keeps what Greenroom relies on.
//!
//! The promises that any provider makes are those of [`conformance`], which judges the group through its plain port; the kit adds
//! those of the plugins' protocol.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use greenroom_core::ids::PoolName;
use greenroom_keys::problem::Problems;
use greenroom_ports::connector::Connector;
use greenroom_ports::host_keys::HostKeys;
use greenroom_ports::provider::{Provider as _, ProviderError};
use greenroom_providers::conformance::report::Outcomes;
use greenroom_providers::conformance::verdict::{CheckVerdict, Judged, failed, skipped};
use greenroom_providers::conformance::{self, Subject, SubjectKind, Watch};

use super::group::{GroupInfo, InstanceGroup as _};
use super::locate::PluginPlaces;
use super::login::{Logins, OwnLogin};
use super::plugin::Plugin;
use super::provider::Fleeting;
use super::reach::Trust;
use super::settings::Settings;

pub mod checks;
mod guest;
mod machines;
mod port;

use checks::CHECKS;
use machines::ENDS;
use port::GroupPort;

/// Instances that one run makes, if the group allows as many.
pub const MACHINES: u32 = 3;
/// The pool that messages of the plugin's log name.
const POOL: &str = "greenroom-kit";

/// Why nothing more is checked of instances that the plugin has forgotten.
const NOT_LISTED: &str = "the plugin does not list its instances after its next start, see `restart-listed`";

/// Where a run has its place.
pub struct KitSite {
    /// Greenroom's own program, which holds the plugin.
    pub guard: PathBuf,
    pub places: PluginPlaces,
    /// For keys and sockets.
    pub dir: PathBuf,
    pub reader: Rc<dyn HostKeys>,
    /// Checks logins.
    pub connector: Rc<dyn Connector>,
}

impl std::fmt::Debug for KitSite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KitSite").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// How long instances may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// From a request to a login.
    pub boot: Duration,
    /// From the request of a removal to its end.
    pub end: Duration,
}

/// Why a run cannot begin.
#[derive(Debug)]
pub enum KitError {
    Table(Problems),
    Key(ProviderError),
}

/// One run.
pub struct Kit {
    settings: Settings,
    port: GroupPort,
    logins: Logins,
    own: OwnLogin,
    trust: Trust,
    connector: Rc<dyn Connector>,
    limits: Limits,
    pub outcomes: Rc<Outcomes>,
    /// The instances that lists have to show, and those whose removal the kit has requested.
    watch: Watch,
    /// The host keys of instances whose login has worked, by ID.
    host_keys: RefCell<BTreeMap<String, String>>,
    /// How many instances `Increase` has accepted.
    accepted: Cell<u32>,
    /// The IDs that the plugin's lists lack since it has started again.
    forgotten: RefCell<Vec<String>>,
    /// No login works since the plugin has started again.
    is_locked_out: Cell<bool>,
}

impl std::fmt::Debug for Kit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kit").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Kit {
    /// For a pool's table. Starts nothing.
    pub fn new(site: &KitSite, table: &toml::Table, limits: Limits) -> Result<Self, KitError> {
        let pool = PoolName::new(POOL);
        let settings = Settings::read(&pool, table).map_err(KitError::Table)?;
        let logins = Logins::new(&site.dir);
        let own = Fleeting::own_login(&settings, &logins).map_err(KitError::Key)?;
        let how = super::plugin_settings(
            &settings,
            &own,
            // As the table says: the kit judges the plugin, not what Greenroom makes of it.
            settings.static_credentials.unwrap_or(false),
            super::PluginSite {
                pool,
                guard: site.guard.clone(),
                sockets: site.dir.join("plugins"),
                places: site.places.clone(),
            },
        );
        let outcomes = Rc::new(Outcomes::new(CHECKS));
        let port = GroupPort::new(Box::new(move || Plugin::new(how.clone())), Rc::clone(&outcomes));
        let trust = Trust {
            ways: settings.host_keys.clone(),
            reader: Rc::clone(&site.reader),
            guard: site.guard.clone(),
            environment: settings.environment.clone(),
        };
        Ok(Self {
            settings,
            port,
            logins,
            own,
            trust,
            connector: Rc::clone(&site.connector),
            limits,
            outcomes,
            watch: Watch::default(),
            host_keys: RefCell::default(),
            accepted: Cell::default(),
            forgotten: RefCell::default(),
            is_locked_out: Cell::default(),
        })
    }

    /// The number of calls so far.
    pub fn calls(&self) -> u32 {
        self.port.calls()
    }

    /// What the conformance suite judges.
    fn subject(&self) -> Subject<'_> {
        let Limits { boot, end } = self.limits;
        Subject {
            provider: &self.port,
            kind: SubjectKind::Group(&self.outcomes),
            limits: conformance::Limits { appears: boot, boot, end },
            watch: &self.watch,
        }
    }

    /// Ends the plugin's process.
    pub async fn close(&self) {
        self.port.plugin().close().await;
    }

    /// Makes all checks with instances. Whatever it makes is ended by `clean_up`, which the caller calls in any case.
    pub async fn check_live(&self, group: &GroupInfo) {
        let Some(first) = self.check_launch().await else { return };
        if self.check_guest(&first).await {
            self.outcomes.check("heartbeat", self.heartbeat(&first)).await;
        }
        let others = self.check_count(group).await;
        let is_listed = self.check_restart(&first).await;
        self.check_tier(&first, group, is_listed).await;
        if is_listed {
            self.check_ends(&first, others.first()).await;
        } else {
            self.skip(ENDS, NOT_LISTED);
        }
    }

    fn skip(&self, checks: &[&str], why: &str) {
        for check in checks {
            self.outcomes.record(check, skipped(why), Instant::now());
        }
    }

    /// The IDs of the group's instances. Nothing is judged by what lists had before.
    async fn list(&self) -> Judged<Vec<String>> {
        let list = self.subject().answer(self.port.list(&PoolName::new(POOL)).await)?;
        Ok(list.instances.iter().map(|listed| listed.id.to_string()).collect())
    }

    /// The IDs of instances that exist before a run.
    pub async fn existing(&self) -> Judged<Vec<String>> {
        self.list().await
    }
}

impl Kit {
    /// The group, if the plugin starts and lists it. Otherwise why nothing else can be checked.
    pub async fn check_cheap(&self) -> Judged<GroupInfo> {
        let begun = Instant::now();
        let group = self.port.answer("Init", self.port.plugin().info().await);
        self.outcomes.record("start", group.as_ref().map(drop).map_err(Clone::clone), begun);
        let group =
            group.map_err(|_| CheckVerdict::Skipped("the plugin does not start, see `start`".to_owned()))?;
        self.outcomes.record("group-named", named(&group), Instant::now());
        let is_listed = self.outcomes.check("list", async { self.list().await.map(drop) }).await;
        self.outcomes.check("end", self.end()).await;
        self.outcomes.check("start-again", self.started_again(&group)).await;
        if is_listed {
            Ok(group)
        } else {
            Err(CheckVerdict::Skipped("the plugin does not list its group, see `list`".to_owned()))
        }
    }

    async fn end(&self) -> Judged {
        if self.port.plugin().close().await {
            return Ok(());
        }
        Err(CheckVerdict::Warned("it was killed".to_owned()))
    }

    async fn started_again(&self, first: &GroupInfo) -> Judged {
        let second = self.port.answer("Init", self.port.plugin().info().await)?;
        if second.id == first.id {
            return Ok(());
        }
        failed(format!("the group was `{}` first, and `{}` then", first.id, second.id))
    }
}

fn named(group: &GroupInfo) -> Judged {
    if group.id.is_empty() {
        return Err(CheckVerdict::Warned("the group's ID is empty".to_owned()));
    }
    Ok(())
}
