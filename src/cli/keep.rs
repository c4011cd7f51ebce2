//! The commands `keep` and `reap`: the keeper's process, and one manual pass.

use std::time::Duration;

use greenroom_core::ids::PoolName;
use greenroom_core::report::Report;
use greenroom_engine::keeper::{self, KeeperExit, KeeperMode, Pool};
use greenroom_engine::reap::{self, Reaped};
use greenroom_manager::runner_host::{Role, StateDir};
use greenroom_ports::host::Host;

use super::args::GlobalOptions;
use super::context::Context;
use super::error::CliError;
use super::metrics::server::Server;
use super::notify::Notifier;
use super::service::{self, Reloads};
use super::{log, program, ui, watch};
use crate::config::MetricsAddress;

/// How long `reap` waits for a running keeper's next pass.
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
    log::start(&context.state_path, background)?;
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
        service::ready(&watch::status(&pools));
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
        () = watch::until_outgrown(&context, &pools, interval, reloads) => {
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
        && log::start(state, true).is_ok()
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
