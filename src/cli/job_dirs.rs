//! The directories of a pool's jobs.

use std::path::Path;

use greenroom_core::ids::AttemptName;
use greenroom_manager::gitlab::config_json::{BuildsLayout, RunnerSlot};
use greenroom_manager::gitlab::env::JobEnv;
use greenroom_manager::gitlab::response::JobResponse;

use super::error::CliError;
use crate::config::PoolConfig;
use crate::provider;

/// The directories of one job, as its instance sees them.
#[derive(Debug)]
pub(super) struct JobDirs {
    /// Directory of its sources.
    pub builds: String,
    pub cache: String,
}

/// The directory on the instance below which the sources of all jobs are.
pub(super) fn builds_root(pool: &PoolConfig, state_dir: &Path) -> Result<String, CliError> {
    let registration = provider::find(&pool.provider.kind)?;
    let shared = registration.guest_dirs.map(|dirs| dirs(state_dir)).filter(|_| !pool.dirs_given);
    Ok(shared.map_or_else(|| pool.builds_dir.clone(), |dirs| dirs.builds))
}

impl JobDirs {
    pub(super) fn of(
        pool: &PoolConfig,
        state_dir: &Path,
        env: &JobEnv,
        response: &JobResponse,
    ) -> Result<Self, CliError> {
        let attempt = env.attempt()?;
        let number = env.concurrent_number();
        let slot = response.runner.zip(number).map(|(runner, number)| RunnerSlot { runner, number });
        Self::with(pool, state_dir, &attempt, slot)
    }

    fn with(
        pool: &PoolConfig,
        state_dir: &Path,
        attempt: &AttemptName,
        slot: Option<RunnerSlot>,
    ) -> Result<Self, CliError> {
        let registration = provider::find(&pool.provider.kind)?;
        let shared = registration.guest_dirs.map(|dirs| dirs(state_dir));
        let slots = registration.static_hosts.and_then(|hosts| (hosts.most_slots)(&pool.provider.table));
        let slots = slots.unwrap_or(0).max(pool.policy.capacity_per_instance);
        let layout = match shared {
            Some(_) => BuildsLayout::Attempts,
            None => BuildsLayout::of(slots, !registration.launches()),
        };
        let (builds, cache) = match shared {
            // Its instances see the runner host's files: the defaults for separate machines do not fit.
            Some(dirs) if !pool.dirs_given => (dirs.builds, dirs.cache),
            _ => (pool.builds_dir.clone(), pool.cache_dir.clone()),
        };
        Ok(Self { builds: layout.builds_dir(&builds, attempt, slot), cache })
    }
}
