//! The commands `pool drain` and `pool resume`.

use std::time::Duration;

use greenroom_core::event::{Change, Event};
use greenroom_core::ids::InstanceId;
use greenroom_core::instance::Instance;
use greenroom_core::time::Pretty;
use greenroom_engine::EngineError;
use greenroom_engine::operate::Target;
use greenroom_manager::runner_host::Role;
use greenroom_ports::clock::Clock as _;

use crate::cli::args::GlobalOptions;
use crate::cli::context::Context;
use crate::cli::error::CliError;
use crate::cli::{ui, when};

/// `pool drain --wait` times out after a day: a job can run that long.
const DRAIN_WAIT: Duration = Duration::from_hours(24);

/// No new jobs; instances are terminated when their running jobs have finished.
pub(in crate::cli) async fn drain(
    place: &GlobalOptions,
    pool: Option<&str>,
    instance: Option<&str>,
    wait: bool,
    dry: bool,
) -> Result<bool, CliError> {
    let context = Context::open(place, Role::Operator)?;
    let pool = context.the_pool(pool)?;
    let engine = context.engine(&pool)?;
    let target = target(instance);
    let events = engine.drain(&target, dry).await?;
    say(&events, dry, "nothing to drain");
    if !wait || dry {
        return Ok(true);
    }
    let began = context.host.now();
    let mut last = usize::MAX;
    let gone = engine
        .wait_until(DRAIN_WAIT, |state| {
            // A static host stays: it is drained when its jobs have finished.
            let holds = |i: &Instance| !i.is_static() || !i.holders.is_empty();
            let left = state.instances.values().filter(|i| is_meant(&target, i) && holds(i));
            let left = left.count();
            if left != last && left > 0 {
                ui::out(&format!("waiting for {}\n", ui::plural(left, "instance")));
            }
            last = left;
            left == 0
        })
        .await?;
    if gone {
        ui::out(&format!("drained in {}\n", Pretty(context.host.now().since(began))));
    }
    Ok(gone)
}

/// Resumes a drained pool, or returns an instance to service.
pub(in crate::cli) async fn resume(
    place: &GlobalOptions,
    pool: Option<&str>,
    instance: Option<&str>,
    dry: bool,
) -> Result<bool, CliError> {
    let context = Context::open(place, Role::Operator)?;
    let pool = context.the_pool(pool)?;
    let events = context.engine(&pool)?.resume(&target(instance), dry).await?;
    say(&events, dry, "nothing to resume");
    Ok(true)
}

/// Releases a static host from its trust domain.
pub(in crate::cli) async fn unbind(
    place: &GlobalOptions,
    pool: Option<&str>,
    host: &str,
    dry: bool,
) -> Result<bool, CliError> {
    let context = Context::open(place, Role::Operator)?;
    let pool = context.the_pool(pool)?;
    let events = context.engine(&pool)?.unbind(&InstanceId::new(host), dry).await?;
    say(&events, dry, "nothing to unbind");
    Ok(true)
}

/// Drops the records of instances in another account, region, project or kind.
pub(in crate::cli) async fn forget_elsewhere(
    place: &GlobalOptions,
    pool: Option<&str>,
    dry: bool,
) -> Result<bool, CliError> {
    let context = Context::open(place, Role::Operator)?;
    let pool = context.the_pool(pool)?;
    let engine = context.engine(&pool)?;
    let events = engine.forget_elsewhere(dry).await?;
    say(&events, dry, "nothing to forget: jobs still run on these instances");
    Ok(true)
}

/// Drops the records of instances whose provider no longer answers, and names what may still cost money.
pub(in crate::cli) async fn forget_unreachable(
    place: &GlobalOptions,
    pool: Option<&str>,
    dry: bool,
) -> Result<bool, CliError> {
    let context = Context::open(place, Role::Operator)?;
    let pool = context.the_pool(pool)?;
    let engine = context.engine(&pool)?;
    let before = engine.store.load().await.map_err(EngineError::from)?;
    let events = engine.forget_unreachable(dry).await?;
    say(&events, dry, "nothing to forget: the pool has no record of a launched instance");
    let dropped = events.iter().filter_map(|event| match &event.change {
        Change::RecordDropped { instance, .. } => before.instance(instance),
        _ => None,
    });
    let left: Vec<String> = dropped.filter_map(may_cost).collect();
    if !left.is_empty() {
        ui::out("These may still exist and cost money. Check the provider, and terminate what is left:\n");
        for line in left {
            ui::out(&format!("  {line}\n"));
        }
    }
    Ok(true)
}

/// An instance that may still exist, where, and since when. A refused launch created none.
fn may_cost(instance: &Instance) -> Option<String> {
    if instance.is_refused() {
        return None;
    }
    let place =
        instance.location.as_ref().map_or_else(|| "an unknown location".to_owned(), ToString::to_string);
    let offering = instance.launch.as_ref().and_then(|launch| launch.offering.as_ref());
    let offering = offering.map_or_else(String::new, |offering| format!(", {offering}"));
    Some(format!("{} in {place}{offering}, launched {}", instance.id, when::rfc3339(instance.created)))
}

fn is_meant(target: &Target, instance: &Instance) -> bool {
    match target {
        Target::Pool => true,
        Target::Instance(id) => instance.id == *id,
    }
}

fn target(instance: Option<&str>) -> Target {
    instance.map_or(Target::Pool, |id| Target::Instance(InstanceId::new(id)))
}

fn say(events: &[Event], dry: bool, nothing: &str) {
    if events.is_empty() {
        ui::out(&format!("{nothing}\n"));
    }
    let would = if dry { "would: " } else { "" };
    for event in events {
        ui::out(&format!("{would}{}\n", summary(&event.change)));
    }
}

fn summary(change: &Change) -> String {
    match change {
        Change::PoolDrained => "the pool accepts no new jobs and launches nothing".to_owned(),
        Change::PoolResumed => "the pool is resumed".to_owned(),
        Change::Forgotten { instance } => {
            format!("{instance} is forgotten; terminate it at the provider if it still exists")
        }
        Change::RecordDropped { instance, .. } => {
            format!("the record of {instance} is dropped: Greenroom no longer terminates it")
        }
        Change::DrainingBegun { instance, .. } => format!("{instance} is draining"),
        Change::OutOfService { instance, .. } => {
            format!(
                "{instance} is out of service; `greenroom pool resume --instance {instance}` returns it to service"
            )
        }
        Change::ReturnedToService { instance } => format!("{instance} returns to service after a check"),
        Change::Unbound { instance } => {
            format!(
                "{instance} belongs to no trust domain; it is cleaned, with its cache, before its next job"
            )
        }
        other => format!("{other:?}"),
    }
}
