//! The directories of a pool's jobs.

use std::path::Path;

use super::error::CliError;
use crate::config::PoolConfig;
use crate::gitlab::config_json::FileSystem;
use crate::provider;

/// The build and cache directories of a pool's jobs, as the instance sees them, and whether jobs share them.
#[derive(Debug)]
pub(super) struct JobDirs {
    pub builds: String,
    pub cache: String,
    pub file_system: FileSystem,
}

impl JobDirs {
    pub(super) fn of(pool: &PoolConfig, state_dir: &Path) -> Result<Self, CliError> {
        let registration = provider::find(&pool.provider.kind)?;
        let dirs = registration.guest_dirs.map(|dirs| dirs(state_dir));
        let is_shared = dirs.is_some() || !registration.launches();
        let file_system = FileSystem::of(pool.policy.capacity_per_instance, is_shared);
        let (builds, cache) = match dirs {
            // Its instances see the runner host's files: the defaults for separate machines do not fit.
            Some(dirs) if !pool.dirs_given => (dirs.builds, dirs.cache),
            _ => (pool.builds_dir.clone(), pool.cache_dir.clone()),
        };
        Ok(Self { builds, cache, file_system })
    }
}
