//! Metrics: what they are made of, the command `metrics`, and the endpoint of the keeper.
//!
//! Reading them calls no provider and no instance, and takes no lock that a keeper or a job needs.

mod http;
pub(super) mod server;

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::rc::Rc;

use greenroom_core::ids::PoolName;
use greenroom_core::metrics::{Exposition, Format, catalogue as m, pool};
use greenroom_manager::runner_host::{KeeperStarts, Role};
use greenroom_ports::clock::Clock as _;
use greenroom_ports::leadership::Leadership as _;
use greenroom_ports::reports::Reports as _;
use greenroom_ports::store::Stores;
use greenroom_ssh::link::HeldLocks;
use greenroom_system::replace::replace;

use super::args::GlobalOptions;
use super::context::{Context, PoolStore, links_dir};
use super::error::CliError;
use super::pool::leaks;
use super::ui;

/// The values of the labels of `greenroom_build_info`.
const BUILD: [&str; 3] =
    [env!("CARGO_PKG_VERSION"), env!("GREENROOM_BUILD_COMMIT"), env!("GREENROOM_BUILD_FEATURES")];

/// Metrics that are read repeatedly; each time only what has changed.
#[derive(Debug)]
pub(super) struct Source {
    place: GlobalOptions,
    context: Context,
    /// The configuration's file as it was read.
    read: Option<(u64, i64, i64)>,
    stores: Rc<dyn Stores>,
    pools: Vec<PoolStore>,
}

impl Source {
    pub(super) fn open(place: &GlobalOptions) -> Result<Self, CliError> {
        let context = Context::open(place, Role::Operator)?;
        let read = stamp(&context);
        let stores = context.stores()?;
        Ok(Self { place: place.clone(), context, read, stores, pools: Vec::new() })
    }

    /// All metrics now, and whether each pool's state could be read.
    pub(super) async fn read(&mut self) -> Result<(Exposition, bool), CliError> {
        if stamp(&self.context) != self.read {
            *self = Self::open(&self.place)?;
        }
        self.find_pools().await?;
        let mut out = Exposition::default();
        let (host, root) = (&self.context.host, &self.context.state_path);
        out.set(&m::BUILD, &BUILD, 1.0);
        out.flag(&m::KEEPER_UP, &[], host.keeper_lives().await.unwrap_or(false));
        let starts = KeeperStarts::read(root);
        out.count(&m::KEEPER_STARTS, &[], starts.starts);
        out.count(&m::KEEPER_CRASHES, &[], starts.crashes);
        let locks = HeldLocks::now();
        let mut is_sound = true;
        for (name, store) in &self.pools {
            let state = store.load().await;
            is_sound &= state.is_ok();
            let report = host.read_report(name).await.ok().flatten();
            let configured = self.context.config().ok().and_then(|config| config.pools.get(name));
            let facts = pool::PoolFacts {
                pool: name.as_str(),
                provider: configured.map(|pool| pool.provider.kind.as_str()),
                state: state.as_ref().ok(),
                report: report.as_ref(),
                links: locks.links(&links_dir(root, name)),
                reserve: store.has_reserve(),
                leaks: leaks::read_last(root, name),
                now: host.now(),
            };
            pool::add(&mut out, &facts);
        }
        Ok((out, is_sound))
    }

    /// The configured pools, and those that have state here. The stores of known pools stay: they read only what is new.
    async fn find_pools(&mut self) -> Result<(), CliError> {
        let mut names: BTreeSet<PoolName> = self.stores.pools().await?.into_iter().collect();
        if let Ok(config) = self.context.config() {
            names.extend(config.pools.keys().cloned());
        }
        if names.iter().eq(self.pools.iter().map(|(name, _)| name)) {
            return Ok(());
        }
        let mut known: Vec<PoolStore> = std::mem::take(&mut self.pools);
        for name in names {
            let there = known.iter().position(|(pool, _)| *pool == name).map(|at| known.swap_remove(at));
            let store = match there {
                Some((_, store)) => store,
                None => self.stores.store(&name)?,
            };
            self.pools.push((name, store));
        }
        Ok(())
    }
}

/// Changes with the configuration's file.
fn stamp(context: &Context) -> Option<(u64, i64, i64)> {
    let known = std::fs::metadata(context.config_path()).ok()?;
    Some((known.ino(), known.mtime(), known.mtime_nsec()))
}

/// The collector runs as another user.
const MODE: u32 = 0o644;

/// False if the state of a pool cannot be read.
pub(in crate::cli) async fn print(
    place: &GlobalOptions,
    output: Option<&Path>,
    openmetrics: bool,
) -> Result<bool, CliError> {
    let (metrics, is_sound) = Source::open(place)?.read().await?;
    let text = metrics.render(if openmetrics { Format::OpenMetrics } else { Format::Text });
    match output {
        None => ui::out(&text),
        Some(path) => replace(path, text.as_bytes(), MODE).map_err(|error| {
            CliError::system(error).help("name a file in a directory that this user can write")
        })?,
    }
    Ok(is_sound)
}
