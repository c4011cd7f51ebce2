//! The read model: what the state directory and the runner host record of pools and of their keeper.
//!
//! The commands that show pools read through it: `pool status`, `explain`, `history` and `metrics`, and doctor as far as a
//! directory may be damaged.

use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::ids::PoolName;
use greenroom_core::pool::PoolState;
use greenroom_core::report::Report;
use greenroom_manager::runner_host::LocalHost;
use greenroom_ports::host_error::HostError;
use greenroom_ports::leadership::Leadership as _;
use greenroom_ports::reports::Reports as _;
use greenroom_ports::store::{OperatorStore, StoreError, Stores};
use greenroom_ssh::link::Survey;

use super::context::{Context, PoolStore, links_dir};
use super::error::CliError;
use super::ui;

/// The time that a link may take to respond.
const LINKS_WITHIN: Duration = Duration::from_secs(1);

/// The result of the check for a running keeper.
#[derive(Debug, Clone)]
pub enum KeeperStatus {
    Runs,
    Absent,
    /// The answer could not be determined, and why.
    Unknown(HostError),
}

impl KeeperStatus {
    pub(super) async fn read(host: &LocalHost) -> Self {
        match host.keeper_lives().await {
            Ok(true) => Self::Runs,
            Ok(false) => Self::Absent,
            Err(error) => Self::Unknown(error),
        }
    }

    /// True if a keeper is known to run.
    pub(super) fn is_running(&self) -> bool {
        matches!(self, Self::Runs)
    }

    /// True if no keeper is known to run.
    pub(super) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}

/// Pools that are read repeatedly; each time only what has changed. [`read`](Self::read) returns a [`PoolRecord`] of each.
#[derive(Debug)]
pub(super) struct PoolReader {
    stores: Rc<dyn Stores>,
    /// The pools with their stores, sorted by name.
    pools: Vec<PoolStore>,
}

/// One pool, as it is recorded now.
#[derive(Debug)]
pub(super) struct PoolRecord<'a> {
    pub(super) pool: &'a PoolName,
    pub(super) store: &'a dyn OperatorStore,
    pub(super) state: Result<PoolState, StoreError>,
    /// The report of the last pass; `None`: there was no pass yet.
    pub(super) report: Result<Option<Report>, HostError>,
}

impl PoolRecord<'_> {
    /// The report of the last pass, if it can be read.
    pub(super) fn readable_report(&self) -> Option<&Report> {
        self.report.as_ref().ok().and_then(Option::as_ref)
    }
}

impl PoolReader {
    /// A reader without pools: [`refresh`](Self::refresh) finds them.
    pub(super) fn new(context: &Context) -> Result<Self, CliError> {
        Ok(Self { stores: context.stores()?, pools: Vec::new() })
    }

    /// Opens the named pool, or all.
    pub(super) async fn open(context: &Context, only: Option<&str>) -> Result<Self, CliError> {
        let mut reader = Self::new(context)?;
        let mut names = reader.names(context).await?;
        match context.config() {
            Ok(_) => {}
            // Recorded state is shown without a configuration, too, or with an invalid one.
            Err(error) if !names.is_empty() => ui::err(&error.for_operator()),
            Err(error) => return Err(error),
        }
        if let Some(only) = only {
            let known: Vec<PoolName> = names.iter().cloned().collect();
            names.retain(|name| name.as_str() == only);
            if names.is_empty() {
                return Err(CliError::no_such_pool(only, known.iter()));
            }
        }
        reader.open_all(names)?;
        Ok(reader)
    }

    /// Finds pools that were added, and drops those that are neither configured nor recorded any more.
    pub(super) async fn refresh(&mut self, context: &Context) -> Result<(), CliError> {
        let names = self.names(context).await?;
        Ok(self.open_all(names)?)
    }

    /// The configured pools, and those that have state here.
    async fn names(&self, context: &Context) -> Result<BTreeSet<PoolName>, StoreError> {
        let mut names: BTreeSet<PoolName> = self.stores.pools().await?.into_iter().collect();
        names.extend(context.config().into_iter().flat_map(|config| config.pools.keys().cloned()));
        Ok(names)
    }

    /// Opens the stores of these pools. Those of known pools stay: they read only what is new.
    fn open_all(&mut self, names: BTreeSet<PoolName>) -> Result<(), StoreError> {
        let mut known = std::mem::take(&mut self.pools);
        for name in names {
            let store = match known.iter().position(|(pool, _)| *pool == name) {
                Some(at) => known.swap_remove(at).1,
                None => self.stores.store(&name)?,
            };
            self.pools.push((name, store));
        }
        Ok(())
    }

    /// The stores of the pools, by name.
    pub(super) fn stores(&self) -> impl Iterator<Item = (&PoolName, &dyn OperatorStore)> {
        self.pools.iter().map(|(pool, store)| (pool, &**store))
    }

    /// Reads each pool. An error in one does not affect the others.
    pub(super) async fn read(&self, host: &LocalHost) -> Vec<PoolRecord<'_>> {
        let mut records = Vec::with_capacity(self.pools.len());
        for (pool, store) in self.stores() {
            let state = store.load().await;
            let report = host.read_report(pool).await;
            records.push(PoolRecord { pool, store, state, report });
        }
        records
    }
}

/// Queries the links of a pool's instances.
pub(super) async fn links(state_path: &Path, pool: &PoolName) -> Survey {
    Survey::query(&links_dir(state_path, pool), LINKS_WITHIN).await
}
