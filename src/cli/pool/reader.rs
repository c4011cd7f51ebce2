//! Reads the recorded state of pools, for commands that show it.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use greenroom_core::ids::{AttemptName, PoolName};
use greenroom_core::pool::PoolState;
use greenroom_core::report::Report;
use greenroom_ports::leadership::Leadership as _;
use greenroom_ports::reports::Reports as _;
use greenroom_ports::store::{OperatorStore, StoreError};
use greenroom_providers::qemu::store_use;
use greenroom_ssh::link::Survey;

use super::status::{ContainerUse, KeeperStatus};
use crate::cli::context::{Context, PoolStore, links_dir};
use crate::cli::error::CliError;
use crate::cli::ui;

/// How long a link may take to respond.
pub(in crate::cli) const LINKS_WITHIN: Duration = Duration::from_secs(1);

/// Pools that are read repeatedly; each time only what has changed.
#[derive(Debug)]
pub(in crate::cli) struct PoolReader<'a> {
    context: &'a Context,
    stores: Vec<PoolStore>,
}

/// One pool, as it is recorded now.
#[derive(Debug)]
pub(in crate::cli) struct PoolRecord<'a> {
    pub(in crate::cli) pool: &'a PoolName,
    pub(in crate::cli) store: &'a dyn OperatorStore,
    pub(in crate::cli) state: Result<PoolState, StoreError>,
    /// The report of the last pass, or why it cannot be read.
    pub(in crate::cli) report: Result<Option<Report>, String>,
    /// The status of its links, if they were queried.
    pub(in crate::cli) links: Option<Survey>,
    pub(in crate::cli) containers: ContainerUse,
}

impl<'a> PoolReader<'a> {
    /// Opens the named pool, or all: those that are configured and those that have state here.
    pub(in crate::cli) async fn open(context: &'a Context, only: Option<&str>) -> Result<Self, CliError> {
        let stores = context.stores()?;
        let mut names: BTreeSet<PoolName> = stores.pools().await?.into_iter().collect();
        match context.config() {
            Ok(config) => names.extend(config.pools.keys().cloned()),
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
        let open = |name: PoolName| stores.store(&name).map(|store| (name, store));
        let stores = names.into_iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { context, stores })
    }

    /// The stores of the pools, by name.
    pub(in crate::cli) fn stores(&self) -> impl Iterator<Item = (&PoolName, &dyn OperatorStore)> {
        self.stores.iter().map(|(pool, store)| (pool, &**store))
    }

    /// Reads each pool. An error in one does not affect the others.
    pub(in crate::cli) async fn read(&self) -> (KeeperStatus, Vec<PoolRecord<'_>>) {
        let host = &self.context.host;
        let keeper = match host.keeper_lives().await {
            Ok(true) => KeeperStatus::Runs,
            Ok(false) => KeeperStatus::Absent,
            Err(error) => KeeperStatus::Unknown(error.to_string()),
        };
        let mut records = Vec::with_capacity(self.stores.len());
        for (pool, store) in &self.stores {
            let (state, store) = (store.load().await, &**store);
            let report = host.read_report(pool).await.map_err(|error| error.to_string());
            let containers = self.containers(pool, state.as_ref().ok());
            records.push(PoolRecord { pool, store, state, report, links: None, containers });
        }
        (keeper, records)
    }

    /// How a pool uses containers now.
    fn containers(&self, pool: &PoolName, state: Option<&PoolState>) -> ContainerUse {
        let configured = self.context.config().ok().and_then(|config| config.pools.get(pool));
        let settings = configured.and_then(|pool| pool.containers.as_ref());
        let mode = settings.map(|settings| settings.mode);
        let engine = settings.map(|settings| settings.engine).unwrap_or_default();
        let instances = state.into_iter().flat_map(|state| state.instances.values());
        let attempts = instances.flat_map(|instance| instance.holders.keys());
        let image = |attempt: &AttemptName| {
            let account = self.context.host.containers_of(attempt)?;
            Some((attempt.clone(), account.image.name))
        };
        let provider = configured.map(|settings| &settings.provider);
        let store = provider.and_then(|provider| {
            store_use::PoolStore::of(pool, &provider.kind, &provider.table, &self.context.state_path)
        });
        let image_store = store.map(|store| store.status(jiff::Timestamp::now()));
        ContainerUse { mode, engine, images: attempts.filter_map(image).collect(), image_store }
    }

    /// Queries the links of all pools concurrently.
    pub(in crate::cli) async fn query_links(&self, records: &mut [PoolRecord<'_>]) {
        let queries = records.iter_mut().map(async |pool| {
            let dir = links_dir(&self.context.state_path, pool.pool);
            pool.links = Some(Survey::query(&dir, LINKS_WITHIN).await);
        });
        join_all(queries).await;
    }
}
