//! Watches a keeper's configuration: a change takes effect immediately, not at the next wake-up.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use super::context::Context;
use super::error::CliError;
use super::program;
use super::setup;
use crate::config::Config;
use crate::core::ids::PoolName;
use crate::engine::keeper::Pool;
use crate::port::wakeups::WakeUps as _;

/// Wakes the pools when the file has changed. Resolves when the new configuration needs another process: for a new pool,
/// or for calls that only `greenroom-backends` can make.
pub(super) async fn until_outgrown(context: &Context, pools: &[Pool], every: Duration) {
    let path = context.config_path();
    let mut last = fingerprint(&path);
    loop {
        context.host.pause(every).await;
        let now = fingerprint(&path);
        if now == last {
            continue;
        }
        last = now;
        // Each pool reports an unreadable file.
        if let Ok((config, _)) = Config::read(&path)
            && is_outgrown(&config, pools)
        {
            match objection(context, &config) {
                None => return,
                // Until all of it can be applied, the present pools stay as they are.
                Some(why) => tracing::error!("the new configuration cannot be applied completely: {why}"),
            }
        }
        for pool in pools {
            context.host.wake_keeper(&pool.engine.pool).await;
        }
    }
}

fn is_outgrown(config: &Config, pools: &[Pool]) -> bool {
    let kept = |name: &PoolName| pools.iter().any(|pool| pool.engine.pool == *name);
    !config.pools.keys().all(kept) || !matches!(program::other(config), Ok(None))
}

/// Why a keeper of this configuration could not start.
fn objection(context: &Context, config: &Config) -> Option<String> {
    let tried = || -> Result<(), CliError> {
        program::other(config)?;
        let around = context.surroundings()?;
        config.pools.values().try_for_each(|pool| setup::build(config, pool, &around).map(drop))
    };
    tried().err().map(|error| error.in_a_line())
}

/// Changes with the file, also if it is replaced by one of the same length.
fn fingerprint(path: &Path) -> Option<(u64, i64, i64, u64)> {
    let known = std::fs::metadata(path).ok()?;
    Some((known.ino(), known.mtime(), known.mtime_nsec(), known.len()))
}
