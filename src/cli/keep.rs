//! The commands `keep` and `reap`: the keeper's process, which follows its configuration, and one manual pass.

use std::time::Duration;

use greenroom_core::ids::PoolName;
use greenroom_core::report::Report;
use greenroom_engine::keeper::{self, KeeperExit, KeeperMode, Pool};
use greenroom_engine::reap::{self, Reaped};
use greenroom_manager::runner_host::{Role, StateDir};
use greenroom_ports::host::Host;
use greenroom_ports::wakeups::WakeUps as _;

use super::args::GlobalOptions;
use super::context::{Context, FileMark};
use super::error::CliError;
use super::metrics::server::Server;
use super::notify::Notifier;
use super::service::{self, Reloads};
use super::ui::{self, plural};
use super::{program, setup};
use crate::config::{Config, MetricsAddress};

/// The time that `reap` waits for a running keeper's next pass.
const KEEPERS_PASS: Duration = Duration::from_secs(10);

/// Runs the keeper of all pools, and serves metrics if that is configured.
pub(super) async fn keep(
    place: &GlobalOptions,
    background: bool,
    metrics: Option<MetricsAddress>,
) -> Result<bool, CliError> {
    if background && !place.state_dir.as_deref().is_some_and(StateDir::is_made) {
        // RACE: the directory was removed after a call had started this keeper. In a new one the keeper would launch
        // instances that no other process has on record.
        return Ok(true);
    }
    let context = Context::open(place, Role::Keeper)?;
    service::start_log(&context.state_path, background)?;
    context.config()?;
    context.note_config();
    let pools = pools(&context)?;
    let keeping = if background { KeeperMode::UntilSettled } else { KeeperMode::AsService };
    let host = Host::of(&context.host);
    let take_over = context.config()?.host_timing.keeper_start_timeout;
    let names: Vec<String> = pools.iter().map(|pool| pool.engine.pool.to_string()).collect();
    tracing::info!(pools = names.join(","), "the keeper is running");
    let reloads = if background {
        Reloads::none()
    } else {
        // Before readiness: then the service manager may send SIGHUP.
        let reloads = Reloads::install()?;
        service::ready(&service_status(&pools));
        reloads
    };
    let interval = context.config()?.host_timing.self_check_interval;
    let metrics = metrics.or_else(|| context.config().ok()?.metrics.clone());
    let server = metrics.map(|address| Server::start(context.place(), &context.state_path, address));
    let notify = context.config()?.notify.clone();
    let notifier = notify.map(|notify| Notifier::start(&context.state_path, notify, context.host.clock()));
    if let Some(notifier) = &notifier {
        context.host.on_report(notifier.on_report());
    }
    let kept = tokio::select! {
        kept = keeper::keep(&host, &pools, keeping, take_over) => kept,
        never = service::ping(), if !background => match never {},
        () = until_outgrown(&context, &pools, interval, reloads) => {
            // The re-executed process recovers as after any crash, with all pools. RACE: a job that takes the lock first
            // starts a keeper in the background; a service then exits, and its supervisor restarts it.
            tracing::info!("the new configuration needs a restart of the keeper: re-executing");
            drop((server, notifier));
            return Err(program::begin_anew());
        }
    };
    drop((server, notifier));
    if !background {
        service::stopping();
    }
    match &kept {
        Ok(KeeperExit::Elsewhere) if !background => {
            return Err(CliError::say("another keeper already works with this state directory")
                .help("run `greenroom pool status` to see what it does"));
        }
        Ok(KeeperExit::HandedOver) => {
            tracing::info!("the executable was replaced: the new one takes over");
        }
        Ok(KeeperExit::Evicted) => tracing::error!(
            "the state directory `{}` was removed or replaced: the keeper exits",
            context.state_path.display()
        ),
        Ok(end) => tracing::info!("the keeper exits: {end:?}"),
        Err(error) => tracing::error!("the keeper failed: {error}"),
    }
    kept?;
    Ok(true)
}

/// Logs why no keeper could be started, where the call that started it reads it.
pub(super) fn complain(place: &GlobalOptions, error: &CliError) {
    if let Some(state) = &place.state_dir
        && service::start_log(state, true).is_ok()
    {
        tracing::error!("cannot start a keeper: {}", error.in_a_line());
    }
}

/// One pass over each pool.
pub(super) async fn reap(
    place: &GlobalOptions,
    only: Option<&str>,
    dry_run: bool,
    json: bool,
) -> Result<bool, CliError> {
    let context = Context::open(place, Role::Operator)?;
    context.config()?;
    let only = only.map(|name| context.the_pool(Some(name))).transpose()?;
    let mut all = serde_json::Map::new();
    let pools = pools(&context)?;
    for pool in pools.iter().filter(|pool| only.as_ref().is_none_or(|only| pool.engine.pool == *only)) {
        let name = pool.engine.pool.clone();
        if dry_run {
            let plan = reap::preview(pool).await?;
            ui::out(&preview(&name, &plan));
            continue;
        }
        let (what, report) = match reap::reap(pool, KEEPERS_PASS).await? {
            Reaped::Here(passes) => (did_text(&passes.did), passes.report),
            Reaped::Keeper(report) => {
                ("a keeper is running; this is its next reconcile pass".to_owned(), Some(*report))
            }
            Reaped::NoPass => {
                ("a keeper is running, but completed no reconcile pass within 10 s".to_owned(), None)
            }
        };
        if json {
            all.insert(name.to_string(), serde_json::json!({ "did": what, "report": report }));
        } else {
            ui::out(&format!("{name}: {what}\n{}", report.as_ref().map(notes).unwrap_or_default()));
        }
    }
    if !dry_run {
        reap::hand_on(&pools).await?;
    }
    if json {
        ui::out(&format!("{}\n", serde_json::Value::Object(all)));
    }
    Ok(true)
}

fn did_text(did: &[String]) -> String {
    if did.is_empty() { "nothing to do".to_owned() } else { did.join("; ") }
}

fn preview(pool: &PoolName, plan: &greenroom_core::plan::Plan) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    let effects = plan.effects.iter().map(ToString::to_string);
    let lines: Vec<String> = effects.collect();
    if lines.is_empty() {
        // Writing to a string cannot fail.
        writeln!(text, "{pool}: nothing to do").ok();
    }
    for line in lines {
        writeln!(text, "{pool}: would {line}").ok();
    }
    text
}

fn notes(report: &Report) -> String {
    report.notes.iter().fold(String::new(), |text, note| text + "  " + &note.to_string() + "\n")
}

fn pools(context: &Context) -> Result<Vec<Pool>, CliError> {
    context.config()?.pools.values().map(|pool| context.pool(pool)).collect()
}

/// Wakes the pools when the file has changed, or at a request. Resolves when the new configuration needs another process: for
/// a new pool, or for calls that only `greenroom-backends` can make. [`keep`] then re-executes.
async fn until_outgrown(context: &Context, pools: &[Pool], every: Duration, mut reloads: Reloads) {
    let path = context.config_path();
    let mut last = FileMark::of(&path);
    loop {
        let requested = tokio::select! {
            () = context.host.pause(every) => false,
            () = reloads.requested() => true,
        };
        let now = FileMark::of(&path);
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
        let status = refusal.unwrap_or_else(|| service_status(pools));
        if requested { service::ready(&status) } else { service::status(&status) }
    }
}

/// The line of `systemctl status` while all is well.
fn service_status(pools: &[Pool]) -> String {
    let names: Vec<&str> = pools.iter().map(|pool| pool.engine.pool.as_str()).collect();
    format!("reconciling {}: {}", plural(pools.len(), "pool"), names.join(", "))
}

fn is_outgrown(config: &Config, pools: &[Pool]) -> bool {
    let kept = |name: &PoolName| pools.iter().any(|pool| pool.engine.pool == *name);
    !config.pools.keys().all(kept) || !matches!(program::other(config), Ok(None))
}

/// The reason for which a keeper of this configuration could not start; `None`: it could.
fn objection(context: &Context, config: &Config) -> Option<String> {
    let tried = || -> Result<(), CliError> {
        program::other(config)?;
        let around = context.surroundings()?;
        config.pools.values().try_for_each(|pool| setup::build(config, pool, &around).map(drop))
    };
    tried().err().map(|error| error.in_a_line())
}
