//! Metrics: what they are made of, the command `metrics`, and the endpoint of the keeper.
//!
//! Reading them calls no provider and no instance, and takes no lock that a keeper or a job needs.

mod http;
pub(super) mod server;

use std::path::Path;

use greenroom_core::metrics::{Exposition, Format, catalogue as m, pool};
use greenroom_manager::runner_host::{KeeperStarts, Role};
use greenroom_ports::clock::Clock as _;
use greenroom_ssh::link::HeldLocks;
use greenroom_system::replace::replace;

use super::args::GlobalOptions;
use super::context::{Context, FileMark, links_dir};
use super::error::CliError;
use super::pool::leaks;
use super::read_model::{KeeperStatus, PoolReader};
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
    read: Option<FileMark>,
    reader: PoolReader,
}

impl Source {
    pub(super) fn open(place: &GlobalOptions) -> Result<Self, CliError> {
        let context = Context::open(place, Role::Operator)?;
        let read = FileMark::of(&context.config_path());
        let reader = PoolReader::new(&context)?;
        Ok(Self { place: place.clone(), context, read, reader })
    }

    /// All metrics now, and whether each pool's state could be read.
    pub(super) async fn read(&mut self) -> Result<(Exposition, bool), CliError> {
        if FileMark::of(&self.context.config_path()) != self.read {
            *self = Self::open(&self.place)?;
        }
        self.reader.refresh(&self.context).await?;
        let mut out = Exposition::default();
        let host = &self.context.host;
        let root = &self.context.state_path;
        out.set(&m::BUILD, &BUILD, 1.0);
        out.flag(&m::KEEPER_UP, &[], KeeperStatus::read(host).await.is_running());
        let starts = KeeperStarts::read(root);
        out.count(&m::KEEPER_STARTS, &[], starts.starts);
        out.count(&m::KEEPER_CRASHES, &[], starts.crashes);
        let locks = HeldLocks::now();
        let mut is_sound = true;
        for record in self.reader.read(host).await {
            is_sound &= record.state.is_ok();
            let configured = self.context.config().ok().and_then(|config| config.pools.get(record.pool));
            let facts = pool::PoolFacts {
                pool: record.pool.as_str(),
                provider: configured.map(|pool| pool.provider.kind.as_str()),
                state: record.state.as_ref().ok(),
                report: record.readable_report(),
                links: locks.links(&links_dir(root, record.pool)),
                reserve: record.store.has_reserve(),
                leaks: leaks::read_last(root, record.pool),
                now: host.now(),
            };
            pool::add(&mut out, &facts);
        }
        Ok((out, is_sound))
    }
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
