//! Instances that jobs have ordered: each is for one attempt, and ends as soon as that attempt does not need it.
//!
//! This comes before the step reconcile, so that what an abandoned instance would have needed is no longer done.

use std::collections::BTreeMap;

use super::attempts::UngrantedAttempts;
use super::builder::PlanBuilder;
use super::observed::Observed;
use crate::event::Change;
use crate::ids::{AttemptName, InstanceId};
use crate::instance::{DrainReason, Instance, Phase};
use crate::order::RefusedOrder;
use crate::pool::PoolState;
use crate::reservation::Reservation;

pub(super) fn step(draft: &mut PlanBuilder<'_>, observed: &Observed, ungranted: &UngrantedAttempts) {
    for (attempt, refused) in refusals(draft.state(), observed) {
        draft.emit(Change::OrderRefused { attempt, refused });
    }
    for (instance, reason) in abandoned(draft.state(), ungranted) {
        draft.emit(Change::DrainingBegun { instance, reason });
    }
}

/// The orders of waiting jobs that turn out not to be possible: the list says so, or the provider no longer makes any.
fn refusals(state: &PoolState, observed: &Observed) -> Vec<(AttemptName, RefusedOrder)> {
    let mut orders = orders(state);
    if orders.is_empty() {
        return Vec::new();
    }
    if !observed.capabilities.orders {
        let reason = "the pool no longer launches instances with the images of jobs".to_owned();
        let refused = RefusedOrder { reason, by_job: false };
        return orders.into_keys().map(|attempt| (attempt.clone(), refused.clone())).collect();
    }
    let listed = observed.listing.iter().flat_map(|listing| &listing.instances);
    let told = listed.filter_map(|listed| {
        let refused = listed.refused.as_ref()?;
        let ordered = state.instance(&listed.id)?.ordered.as_ref()?;
        // Once for each attempt.
        let (attempt, _) = orders.remove_entry(&ordered.attempt)?;
        Some((attempt.clone(), refused.clone()))
    });
    told.collect()
}

/// Waiting jobs with an order that is not refused.
fn orders(state: &PoolState) -> BTreeMap<&AttemptName, &Reservation> {
    let open = |job: &&Reservation| job.job.order.is_some() && job.refused.is_none();
    state.waiting.values().map(AsRef::as_ref).filter(open).map(|job| (&job.attempt, job)).collect()
}

/// Instances whose attempt does not need them.
fn abandoned(state: &PoolState, ungranted: &UngrantedAttempts) -> Vec<(InstanceId, DrainReason)> {
    let ordered = || state.instances.values().filter(|i| i.ordered.is_some());
    if ordered().next().is_none() {
        return Vec::new();
    }
    let orders = orders(state);
    let going = ordered().filter(|i| !ungranted.names(&i.id)).filter_map(|i| {
        let is_needed = orders.contains_key(&i.ordered.as_ref()?.attempt);
        Some((i.id.clone(), vain(i, is_needed)?))
    });
    going.collect()
}

/// Why an instance ends that a job ordered; `None`: it does not. Only its own job could have found it unusable.
fn vain(instance: &Instance, is_needed: bool) -> Option<DrainReason> {
    if matches!(instance.phase, Phase::Draining { .. }) || !instance.holders.is_empty() {
        return None;
    }
    if !is_needed {
        return Some(DrainReason::Abandoned);
    }
    let why = instance.unreachable.as_ref().filter(|_| instance.phase == Phase::Ready)?;
    Some(DrainReason::Broken { message: why.job_words().to_owned() })
}
