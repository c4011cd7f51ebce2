//! Watches a keeper's configuration: a change takes effect within seconds, and immediately after SIGHUP.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use greenroom_core::ids::PoolName;
use greenroom_engine::keeper::Pool;
use greenroom_ports::wakeups::WakeUps as _;

use super::context::Context;
use super::error::CliError;
use super::program;
use super::service::{self, Reloads};
use super::setup;
use super::ui::plural;
use crate::config::Config;

/// Wakes the pools when the file has changed, or at a request. Resolves when the new configuration needs another process:
/// for a new pool, or for calls that only `greenroom-backends` can make.
pub(super) async fn until_outgrown(context: &Context, pools: &[Pool], every: Duration, mut reloads: Reloads) {
    let path = context.config_path();
    let mut last = fingerprint(&path);
    loop {
        let requested = tokio::select! {
            () = context.host.pause(every) => false,
            () = reloads.requested() => true,
        };
        let now = fingerprint(&path);
        if now == last && !requested {
            continue;
        }
        last = now;
        if requested {
            tracing::info!("reading the configuration again: SIGHUP");
            service::reloading();
        }
        let refusal = match Config::read(&path) {
            Ok((config, _)) => {
                let refusal = objection(context, &config);
                if refusal.is_none() && is_outgrown(&config, pools) {
                    return;
                }
                // Until all of it can be applied, the present pools stay as they are.
                refusal.map(|why| format!("the new configuration cannot be applied completely: {why}"))
            }
            Err(error) => {
                let why = CliError::config(error).in_a_line();
                Some(format!("the new configuration is invalid, and the previous one remains active: {why}"))
            }
        };
        for pool in pools {
            context.host.wake_keeper(&pool.engine.pool).await;
        }
        if let Some(refusal) = &refusal {
            tracing::error!("{refusal}");
        }
        let status = refusal.unwrap_or_else(|| status(pools));
        if requested { service::ready(&status) } else { service::status(&status) }
    }
}

/// What `systemctl status` shows while all is well.
pub(super) fn status(pools: &[Pool]) -> String {
    let names: Vec<&str> = pools.iter().map(|pool| pool.engine.pool.as_str()).collect();
    format!("reconciling {}: {}", plural(pools.len(), "pool"), names.join(", "))
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
