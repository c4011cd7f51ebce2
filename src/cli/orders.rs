//! `pool drain` and `pool resume`: operators' orders, dry or for real.

use std::time::Duration;

use super::args::GlobalOptions;
use super::context::Context;
use super::error::CliError;
use super::ui;
use crate::core::event::{Change, Event};
use crate::core::ids::InstanceId;
use crate::core::instance::Instance;
use crate::core::time::Pretty;
use crate::engine::operate::Target;
use crate::host::local::Role;
use crate::port::clock::Clock as _;

/// `pool drain --wait` gives up after a day: a job may well run that long.
const DRAIN_WAIT: Duration = Duration::from_hours(24);

/// No new jobs; instances go when their present jobs have ended.
pub(super) async fn drain(
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
            // A fixed host stays where it is: it is drained when its jobs have left.
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

/// Lets a drained pool work again, or brings back an instance that was set aside.
pub(super) async fn resume(
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
        ui::out(&format!("{would}{}\n", words(&event.change)));
    }
}

fn words(change: &Change) -> String {
    match change {
        Change::PoolDrained => "the pool takes no new jobs and launches nothing".to_owned(),
        Change::PoolResumed => "the pool works again".to_owned(),
        Change::DrainingBegun { instance, .. } => format!("{instance} drains"),
        Change::OutOfService { instance, .. } => {
            format!(
                "{instance} gets no new job; `greenroom pool resume --instance {instance}` brings it back"
            )
        }
        Change::ReturnedToService { instance } => format!("{instance} comes back, after a check"),
        other => format!("{other:?}"),
    }
}
