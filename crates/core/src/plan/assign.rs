//! Assigns waiting requests to free slots, first come first served.
//!
//! An instance on which jobs failed early comes last. Fullest instance first, then the one with most of the job's images,
//! then the most recently used, then by id, so that surplus instances age out. Pure over the state alone, because
//! `prepare` and `cleanup` run it inside their transactions too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::PlanBuilder;
use super::attempts::UngrantedAttempts;
use super::observed::Observed;
use crate::event::{Change, Event};
use crate::ids::{AttemptName, InstanceId};
use crate::images::Marks;
use crate::instance::{DrainReason, Instance, Phase};
use crate::job::{Reservation, Ticket};
use crate::order::RefusedOrder;
use crate::policy::Policy;
use crate::pool::PoolState;
use crate::time::Stamp;

pub(super) fn step(draft: &mut PlanBuilder<'_>, policy: &Policy, held_back: &BTreeSet<InstanceId>) {
    if draft.state().drained.is_some() || draft.state().waiting.is_empty() {
        return;
    }
    let now = draft.now;
    let offered = |i: &&Arc<Instance>| is_offered(i, draft.state(), now) && !held_back.contains(&i.id);
    let offered = draft.state().instances.values().filter(offered);
    let mut candidates: Vec<Candidate> = offered.map(|i| Candidate::new(Arc::clone(i), now)).collect();
    if candidates.is_empty() {
        return;
    }
    // Of all of them together; that some leave meanwhile is no matter.
    let marks = candidates.iter().fold(Marks::default(), |all, candidate| all.with(candidate.marks));
    let mut turn = Ticket(0);
    while let Some(reservation) = draft.state().waiting.range(turn..).next().map(|(_, r)| Arc::clone(r)) {
        turn = Ticket(reservation.ticket.0 + 1);
        let Some(index) = best(&candidates, marks, &reservation, policy, now) else { continue };
        let instance = candidates[index].instance.id.clone();
        draft.emit(Change::Granted { attempt: reservation.attempt.clone(), instance: instance.clone() });
        match draft.state().instances.get(&instance) {
            Some(taken) if taken.usable() > 0 => candidates[index] = Candidate::new(Arc::clone(taken), now),
            _ => drop(candidates.swap_remove(index)),
        }
        if candidates.is_empty() {
            return;
        }
    }
}

/// The first waiting jobs get what has become free.
pub(super) fn give_out(mut draft: PlanBuilder<'_>) -> Vec<Event> {
    if let Some(policy) = draft.state().policy.clone() {
        step(&mut draft, &policy, &BTreeSet::new());
    }
    draft.into_events()
}

/// True if an instance is ready and has room. One that was recorded as idle before a reboot may have been granted.
pub(super) fn is_offered(instance: &Instance, state: &PoolState, now: Stamp) -> bool {
    instance.usable() > 0 && instance.ready.is_some_and(|ready| !state.may_have_forgotten(ready, now))
}

/// True if this job may run there: it is of the kind that the job asks for, the trust domain fits, and it lives long enough.
pub(super) fn suits(instance: &Instance, job: &Reservation, policy: &Policy, now: Stamp) -> bool {
    let lived = now.since(instance.lives_since());
    let has_time =
        instance.lifetime(policy).is_none_or(|limit| lived.saturating_add(job.job.timeout) <= limit);
    is_made_for(instance, job) && instance.admits(&job.domain) && has_time
}

/// True if an instance is of the kind that a job asks for: its own one, or one of the pool's.
fn is_made_for(instance: &Instance, job: &Reservation) -> bool {
    match (&instance.ordered, &job.job.order) {
        (None, None) => true,
        (Some(ordered), Some(_)) => ordered.attempt == job.attempt,
        (None, Some(_)) | (Some(_), None) => false,
    }
}

/// An instance with room, and what decides between it and others.
struct Candidate {
    is_suspect: bool,
    free: u32,
    idle_for: Duration,
    marks: Marks,
    instance: Arc<Instance>,
}

impl Candidate {
    fn new(instance: Arc<Instance>, now: Stamp) -> Self {
        let free = instance.free_slots();
        let marks = instance.images.marks();
        let is_suspect = instance.suspicion().is_some();
        Self { is_suspect, free, idle_for: now.since(instance.idle_since()), marks, instance }
    }

    /// The order of preference: sound ones before suspect ones, then the fullest one, then the most recently used one. So
    /// jobs gather on few instances, and the others become idle long enough to be terminated.
    fn rank(&self) -> (bool, u32, Duration, &InstanceId) {
        (self.is_suspect, self.free, self.idle_for, &self.instance.id)
    }

    /// True if only images, or the time since its last job, decide between the two.
    fn is_level_with(&self, other: &Self) -> bool {
        (self.is_suspect, self.free) == (other.is_suspect, other.free)
    }
}

/// The best candidate for a job. Among those with as many free slots, it is the one that has most of the job's images.
/// `marks`: those of all candidates.
fn best(
    candidates: &[Candidate],
    marks: Marks,
    job: &Reservation,
    policy: &Policy,
    now: Stamp,
) -> Option<usize> {
    let suitable = || {
        let all = candidates.iter().enumerate();
        all.filter(|(_, candidate)| suits(&candidate.instance, job, policy, now))
    };
    let (first, leader) = suitable().min_by(|(_, a), (_, b)| a.rank().cmp(&b.rank()))?;
    let wanted = &job.job.images;
    let count = leader.instance.images.count(wanted);
    if count == wanted.count() || marks.at_most(wanted) <= count {
        return Some(first);
    }
    let mut best = (first, leader, count);
    for (index, candidate) in candidates.iter().enumerate().filter(|(_, other)| other.is_level_with(leader)) {
        // Most candidates are dismissed without a look at their instance: each needs more images than the leader, and as many as
        // the best one, or one more if its rank is worse.
        let worse = u32::from(candidate.rank() >= best.1.rank());
        if !candidate.marks.may_have(wanted, (best.2 + worse).max(count + 1)) {
            continue;
        }
        if !suits(&candidate.instance, job, policy, now) {
            continue;
        }
        let count = candidate.instance.images.count(wanted);
        if count > best.2 || (count == best.2 && candidate.rank() < best.1.rank()) {
            best = (index, candidate, count);
        }
    }
    Some(best.0)
}

/// Settles instances without jobs: cleans static hosts that were used, and drains launched instances that are used up.
pub(super) fn settle_all(draft: &mut PlanBuilder<'_>) {
    let changes: Vec<Change> = draft.state().instances.values().filter_map(|i| settled(i)).collect();
    for change in changes {
        draft.emit(change);
    }
}

/// Settles one instance.
pub(super) fn settle(draft: &mut PlanBuilder<'_>, id: &InstanceId) {
    if let Some(change) = draft.state().instance(id).and_then(settled) {
        draft.emit(change);
    }
}

fn settled(instance: &Instance) -> Option<Change> {
    if !instance.holders.is_empty() {
        return None;
    }
    let id = || instance.id.clone();
    if instance.is_static() {
        // Includes a host that became unreachable while it had jobs: it still has to be cleaned.
        let used = instance.unchecked || instance.has_served();
        let unclean = used && matches!(instance.phase, Phase::Ready | Phase::Checking);
        return unclean.then(|| Change::CleaningBegun { instance: id() });
    }
    if instance.phase != Phase::Ready {
        return None;
    }
    instance.is_used_up().then(|| Change::DrainingBegun { instance: id(), reason: DrainReason::UsedUp })
}

// Instances that jobs have ordered: each is for one attempt, and ends as soon as that attempt does not need it.
//
// This comes before the settle_orders reconcile, so that what an abandoned instance would have needed is no longer done.

pub(super) fn settle_orders(draft: &mut PlanBuilder<'_>, observed: &Observed, ungranted: &UngrantedAttempts) {
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

/// The reason why an instance that a job ordered ends; `None`: it does not. Only its own job could have found it unusable.
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
