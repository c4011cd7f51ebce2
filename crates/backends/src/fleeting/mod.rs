//! The provider `fleeting`: a plugin of GitLab's autoscaler creates the machines.

use std::rc::Rc;

use greenroom_core::ids::PoolName;
use greenroom_keys::KeyTable;
use greenroom_keys::problem::Problems;
use greenroom_providers::first_pool::{FirstPool, Nothing};
use greenroom_providers::registration::{BuildContext, Built, Calls, Registration};

use crate::cloud::delegated::DelegatedCloud;
use crate::cloud::settings::LIFETIME;

pub mod artifact;
pub mod book;
mod doctor;
#[cfg(feature = "fleeting")]
mod findings;
pub mod group;
#[cfg(feature = "fleeting")]
pub mod kit;
pub mod locate;
#[cfg(feature = "fleeting")]
pub mod login;
#[cfg(feature = "fleeting")]
mod own_keys;
#[cfg(feature = "fleeting")]
pub mod plugin;
pub mod plugin_guard;
#[cfg(feature = "fleeting")]
mod provider;
#[cfg(feature = "fleeting")]
pub mod queue;
#[cfg(feature = "fleeting")]
mod reach;
#[cfg(feature = "fleeting")]
pub mod record;
pub mod reference;
mod settings;
#[cfg(feature = "fleeting")]
pub mod wire;

use settings::Settings;

#[cfg(feature = "fleeting")]
use std::path::PathBuf;

#[cfg(feature = "fleeting")]
use locate::PluginPlaces;

/// Checks tables, without the calls.
pub const REGISTRATION: Registration = Registration {
    kind: "fleeting",
    example: include_str!("example.toml"),
    calls: Calls::Delegated,
    environment: &[locate::VARIABLE],
    build: build_without_calls,
    guest_dirs: None,
    lifetime: Some(LIFETIME),
    suspends: true,
    engines: true,
    cloud_init: true,
    orders: None,
    reaches: None,
    static_hosts: None,
    doctor: doctor::without_calls,
    first_pool: FirstPool {
        name: "machines",
        about: "machines by a plugin of GitLab's autoscaler",
        comments: &[],
        look: |_| Box::new(Nothing),
    },
};

/// For docs/configuration.md.
pub const KEYS: &[KeyTable] = settings::TABLES;

/// The registration of a program that makes the calls.
#[cfg(feature = "fleeting")]
pub const WITH_CALLS: Registration =
    Registration { calls: Calls::Here, build, doctor: doctor::of_table, ..REGISTRATION };
#[cfg(not(feature = "fleeting"))]
pub const WITH_CALLS: Registration = REGISTRATION;

fn build_without_calls(context: &BuildContext, table: &toml::Table) -> Built {
    Settings::read(&context.pool, table)?;
    Ok(Rc::new(DelegatedCloud::new(&[])))
}

/// The plugin that a pool's table names, or everything that is wrong with the table.
pub fn plugin_of(pool: &PoolName, table: &toml::Table) -> Result<locate::PluginSource, Problems> {
    Ok(Settings::read(pool, table)?.plugin)
}

#[cfg(feature = "fleeting")]
fn build(context: &BuildContext, table: &toml::Table) -> Built {
    let settings = Settings::read(&context.pool, table)?;
    let pool = context.pool.clone();
    let guard = context.program.clone();
    let sockets = context.state_dir.join("plugins");
    let group: GroupOf = Rc::new(move |settings, logins| {
        let own = provider::Fleeting::own_login(settings, logins)?;
        let maker = own_keys::OwnKeys::new(logins.dir()).maker(&settings.plugin);
        let is_static = own_keys::is_static(settings, maker.as_ref());
        let around = PluginSite {
            pool: pool.clone(),
            guard: guard.clone(),
            sockets: sockets.clone(),
            places: PluginPlaces::of_process(),
        };
        Ok(Rc::new(plugin::Plugin::new(plugin_settings(settings, &own, is_static, around))))
    });
    Ok(Rc::new(over(context, settings, group)))
}

/// The place where a plugin runs.
#[cfg(feature = "fleeting")]
struct PluginSite {
    pool: PoolName,
    guard: PathBuf,
    sockets: PathBuf,
    places: PluginPlaces,
}

/// Settings with which a table's plugin is started.
#[cfg(feature = "fleeting")]
fn plugin_settings(
    settings: &Settings,
    own: &login::OwnLogin,
    is_static: bool,
    around: PluginSite,
) -> plugin::PluginSettings {
    let source = settings.plugin.clone();
    let places = around.places;
    plugin::PluginSettings {
        pool: around.pool,
        guard: around.guard,
        program: Rc::new(move || {
            let located = locate::locate(&source, &places);
            located.map(|found| found.program)
        }),
        config: settings.config.clone(),
        connector: settings.connector(own, is_static),
        static_optional: settings.static_credentials.is_none(),
        environment: settings.environment.clone(),
        sockets: around.sockets,
        deadlines: plugin::Deadlines::default(),
        pauses: plugin::Pauses::default(),
    }
}

/// Makes a pool's plugin when it is first needed.
#[cfg(feature = "fleeting")]
type GroupOf = Rc<
    dyn Fn(
        &Settings,
        &login::Logins,
    ) -> Result<Rc<dyn group::InstanceGroup>, greenroom_ports::provider::ProviderError>,
>;

/// A provider over a plugin.
#[cfg(feature = "fleeting")]
fn over(context: &BuildContext, settings: Settings, group: GroupOf) -> provider::Fleeting {
    let record = record::PoolRecord::new(&context.state_dir, &context.pool);
    let logins = login::Logins::new(record.dir());
    let own_keys = own_keys::OwnKeys::new(record.dir());
    let maker = own_keys.maker(&settings.plugin);
    let trust = reach::Trust {
        ways: settings.host_keys.clone(),
        reader: Rc::clone(&context.host_keys),
        guard: context.program.clone(),
        environment: settings.environment.clone(),
    };
    let rules = queue::QueueRules { appears_within: settings.appears_within, adopt: settings.adopt };
    let text = format!("{settings:?}");
    let of = settings.clone();
    let keys = logins.clone();
    let make = Rc::new(move || group(&of, &keys));
    let queue = queue::PluginQueue::of(record, &context.pool, Rc::clone(&context.clock), rules, text, make);
    provider::Fleeting {
        pool: context.pool.clone(),
        settings,
        queue,
        logins,
        trust,
        known: std::cell::RefCell::default(),
        own_keys,
        maker: std::cell::RefCell::new(maker),
        denials: std::cell::RefCell::default(),
    }
}
