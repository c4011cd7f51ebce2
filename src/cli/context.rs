//! Finds and opens what a command needs, on first use: configuration, state directory, host, stores, connector.

use std::cell::OnceCell;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use greenroom_core::ids::PoolName;
use greenroom_engine::Engine;
use greenroom_engine::keeper::Pool;
use greenroom_keys::near::name_one_of;
pub(super) use greenroom_manager::file_store::Options as StoreOptions;
use greenroom_manager::runner_host::{
    KeeperCommand, LocalHost, Role, Signals, StateDir, Times, detached_command, replace_told,
};
use greenroom_ports::host::Host;
use greenroom_ports::store::{OperatorStore, StoreError, Stores};
use greenroom_ssh::link::{LinkSettings, Linked};
use greenroom_ssh::{Ssh, SshSettings};

use super::args::{DEFAULT_CONFIG, GlobalOptions};
use super::error::CliError;
use super::program;
use super::setup::{FileSetup, ProviderContext};
use crate::config::{Config, PoolConfig, default_state_dir};
use crate::provider;

/// The configuration, the state directory and the host of a command.
#[derive(Debug)]
pub(super) struct Context {
    place: GlobalOptions,
    config: OnceCell<Config>,
    pub(super) state_path: PathBuf,
    pub(super) host: Rc<LocalHost>,
}

impl Context {
    /// Opens the state directory that the command line, the job's environment or the configuration names.
    pub(super) fn open(place: &GlobalOptions, role: Role) -> Result<Self, CliError> {
        Self::opened(place, role, true)
    }

    /// [`open`](Self::open) for a call that works without the configuration. If its state directory is named, it reads
    /// none, and uses the defaults of `[timing]`.
    pub(super) fn open_bare(place: &GlobalOptions, role: Role) -> Result<Self, CliError> {
        Self::opened(place, role, false)
    }

    fn opened(place: &GlobalOptions, role: Role, reads: bool) -> Result<Self, CliError> {
        let (state_path, read) = locate(place)?;
        let state = StateDir::open(&state_path)?;
        let place =
            GlobalOptions { config: config_path(place, &state_path), state_dir: Some(state_path.clone()) };
        // The command that needs the configuration reports a mistake in it (`config`).
        let read = read.or_else(|| reads.then(|| read_config(&place).ok().flatten()).flatten());
        let config = read.map_or_else(OnceCell::new, OnceCell::from);
        let command =
            KeeperCommand::new(program::driver()?, keeper_args(&place), || std::env::vars_os().collect())
                .passing(provider::needs_variable);
        // Ctrl-C stops an operator's command. Driver calls and keepers handle signals themselves.
        let signals = if role == Role::Operator { Signals::default_actions() } else { Signals::install()? };
        let mut host = LocalHost::open(state, role, command, signals)?;
        if let Some(config) = config.get() {
            host = host.with_times(times(config));
        }
        let context = Self { place, config, state_path, host: Rc::new(host) };
        Ok(context)
    }

    /// The configuration's and the state directory's place, for what opens them again.
    pub(super) fn place(&self) -> &GlobalOptions {
        &self.place
    }

    /// The configuration; an error if there is none.
    pub(super) fn config(&self) -> Result<&Config, CliError> {
        if let Some(config) = self.config.get() {
            return Ok(config);
        }
        let Some(config) = read_config(&self.place)? else {
            let path = self.config_path().display().to_string();
            return Err(CliError::say(format!("the configuration `{path}` does not exist"))
                .help("run `greenroom init`, which writes one, or name another one with `--config FILE`"));
        };
        Ok(self.config.get_or_init(|| config))
    }

    pub(super) fn config_path(&self) -> PathBuf {
        self.place.config.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_CONFIG))
    }

    /// Remembers the configuration for calls without `--config` (the `cleanup` of a job whose `config` failed).
    /// [`config_path`] finds it again.
    pub(super) fn note_config(&self) {
        let path = self.config_path();
        let note = self.state_path.join(CONFIG_NOTE);
        let same = std::fs::read(&note).is_ok_and(|old| old == path.as_os_str().as_encoded_bytes());
        if !same {
            replace_told(&self.state_path, CONFIG_NOTE, path.as_os_str().as_encoded_bytes()).ok();
        }
    }

    /// The stores of all pools.
    pub(super) fn stores(&self) -> Result<Rc<dyn Stores>, CliError> {
        let mut options = StoreOptions::default();
        if let Some(config) = self.config.get() {
            options.history_days = config.history_days;
            options.lock_timeout = config.host_timing.lock_timeout;
        }
        Ok(open_stores(&self.state_path, options)?)
    }

    /// The engine over a pool's state and the instances' SSH servers.
    pub(super) fn engine(&self, pool: &PoolName) -> Result<Engine, CliError> {
        Ok(Engine {
            pool: pool.clone(),
            store: self.stores()?.store(pool)?,
            host: Host::of(&self.host),
            connector: Rc::new(self.linked(pool)),
            clock: Rc::clone(&self.host) as Rc<dyn greenroom_ports::clock::Clock>,
        })
    }

    /// The connector of a pool's instances, through their links.
    fn linked(&self, pool: &PoolName) -> Linked {
        let host = Rc::clone(&self.host);
        let settings = LinkSettings {
            dir: links_dir(&self.state_path, pool),
            program: Box::new(|| detached_command(&program::driver()?)),
            runner: Box::new(move || host.runner_pidfd()),
            mailbox: self.host.mailbox(pool),
        };
        Linked::new(ssh(&self.state_path), settings)
    }

    /// A configured pool with its provider, for a keeper. Its [`FileSetup`] reads the file again when it has changed.
    pub(super) fn pool(&self, pool: &PoolConfig) -> Result<Pool, CliError> {
        let config = self.config()?;
        let setup = FileSetup::new(&self.config_path(), config, pool, self.surroundings()?)?;
        Ok(Pool::new(self.engine(&pool.name)?, Rc::new(setup)))
    }

    /// The context that [`build`](super::setup::build) makes providers from.
    pub(super) fn surroundings(&self) -> Result<ProviderContext, CliError> {
        Ok(ProviderContext {
            state_dir: self.state_path.clone(),
            program: program::driver()?,
            clock: Rc::clone(&self.host) as Rc<dyn greenroom_ports::clock::Clock>,
        })
    }

    /// The pool that a command applies to: the named one, or the only one.
    pub(super) fn the_pool(&self, name: Option<&str>) -> Result<PoolName, CliError> {
        let name = name.map(PoolName::parse).transpose()?;
        let pools = &self.config()?.pools;
        match (name, pools.keys().next(), pools.len()) {
            (Some(name), _, _) if pools.contains_key(&name) => Ok(name),
            (Some(name), _, _) => Err(CliError::no_such_pool(name.as_str(), pools.keys())),
            (None, Some(only), 1) => Ok(only.clone()),
            (None, _, _) => Err(CliError::say("several pools are configured, but none is named")
                .help(name_one_of(pools.keys().map(PoolName::as_str)))),
        }
    }
}

/// The directory of the links of a pool's instances.
pub(super) fn links_dir(state_path: &Path, pool: &PoolName) -> PathBuf {
    state_path.join("links").join(pool.as_str())
}

/// The connector of instances, with the keys that the state directory keeps for them.
pub(super) fn ssh(state_path: &Path) -> Ssh {
    let settings = SshSettings::new(state_path.join("keys"));
    Ssh::new(SshSettings { forwarder: program::forwarder(), ..settings })
}

fn keeper_args(place: &GlobalOptions) -> Vec<OsString> {
    let mut args = vec![OsString::from("keep"), OsString::from("--background")];
    let named = [("--config", &place.config), ("--state-dir", &place.state_dir)];
    for (flag, path) in named {
        if let Some(path) = path {
            args.extend([OsString::from(flag), path.clone().into_os_string()]);
        }
    }
    args
}

/// The timing of processes on the runner host, as configured.
fn times(config: &Config) -> Times {
    let timing = &config.host_timing;
    Times {
        lease_lock_timeout: timing.lease_lock_timeout,
        lease_renew_interval: timing.lease_renew_interval,
        self_check_interval: timing.self_check_interval,
        keeper_start_timeout: timing.keeper_start_timeout,
        half_made_retention: timing.half_made_retention,
        unprepared_retention: timing.unprepared_retention,
    }
}

/// Names the configuration that this state directory was last used with, for calls without `--config`.
const CONFIG_NOTE: &str = "config-path";

/// The state directory, which need not exist.
pub(super) fn state_path(place: &GlobalOptions) -> Result<PathBuf, CliError> {
    Ok(locate(place)?.0)
}

/// The named state directory, and the configuration if it had to be read.
pub(super) fn locate(place: &GlobalOptions) -> Result<(PathBuf, Option<Config>), CliError> {
    if let Some(given) = &place.state_dir {
        return Ok((std::path::absolute(given)?, None));
    }
    let read = read_config(place)?;
    let path =
        read.as_ref().map_or_else(|| default_state_dir().to_owned(), |config| config.state_dir.clone());
    Ok((path, read))
}

/// The named configuration, or the one that this state directory was last used with ([`Context::note_config`]), or the
/// default one.
pub(super) fn config_path(place: &GlobalOptions, state: &Path) -> Option<PathBuf> {
    if let Some(given) = &place.config {
        return std::path::absolute(given).ok();
    }
    let noted = std::fs::read(state.join(CONFIG_NOTE)).ok()?;
    let noted: OsString = std::os::unix::ffi::OsStringExt::from_vec(noted);
    Some(PathBuf::from(noted))
}

/// The configuration of a command that opens no state: the named one, the one of the named state directory, or the
/// default one.
pub(super) fn config_file(place: &GlobalOptions) -> std::io::Result<PathBuf> {
    let noted = place.state_dir.as_deref().and_then(|state| config_path(place, state));
    noted.map_or_else(|| place.config_file(), Ok)
}

pub(super) fn read_config(place: &GlobalOptions) -> Result<Option<Config>, CliError> {
    let path = place.config.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_CONFIG));
    if place.config.is_none() && !path.exists() {
        return Ok(None);
    }
    let path = std::path::absolute(path)?;
    Ok(Some(Config::read(&path).map_err(CliError::config)?.0))
}

/// A pool and its store.
pub(super) type PoolStore = (PoolName, Rc<dyn OperatorStore>);

/// The stores of a state directory, which is created if it is missing.
pub(super) fn open_stores(state_path: &Path, options: StoreOptions) -> Result<Rc<dyn Stores>, StoreError> {
    Ok(Rc::new(greenroom_manager::file_store::FileStores::open(state_path, options)?))
}

/// Tells a file from a later one at the same path: inode, size, and time of the last change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileMark {
    inode: u64,
    size: u64,
    changed_s: i64,
    changed_ns: i64,
}

impl FileMark {
    /// The mark of the present file; `None`: there is none.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let found = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
        Some(Self {
            inode: found.ino(),
            size: found.size(),
            changed_s: found.ctime(),
            changed_ns: found.ctime_nsec(),
        })
    }
}
