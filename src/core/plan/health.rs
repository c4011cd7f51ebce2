//! Probes idle instances, so that failures are found before a job gets the instance.

use std::time::Duration;

use super::Effect;
use super::builder::PlanBuilder;
use super::observed::Observed;
use super::reconcile::{Reconciled, act};
use crate::core::ids::InstanceId;
use crate::core::instance::Instance;
use crate::core::policy::Policy;

/// Last step: probe idle instances not heard from for `health_interval`. Schedules no wake-up.
pub(super) fn check(
    draft: &mut PlanBuilder<'_>,
    observed: &Observed,
    policy: &Policy,
    reconciled: &Reconciled,
) {
    let now = draft.now;
    let is_due = |instance: &&Instance| {
        let heard = observed.healthy.get(&instance.id).map_or(Duration::MAX, |at| now.since(*at));
        now.since(instance.idle_since()).min(heard) >= policy.timing.health_interval
    };
    let instances = draft.state().instances.values().map(AsRef::as_ref);
    let idle = instances.filter(|i| i.is_idle() && !reconciled.held_back.contains(&i.id));
    let due: Vec<InstanceId> = idle.filter(is_due).map(|instance| instance.id.clone()).collect();
    for instance in due {
        act(draft, observed, Effect::CheckHealth { instance });
    }
}
