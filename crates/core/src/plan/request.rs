//! The decisions of `prepare` and `cleanup`, as the [`Event`]s that they commit inside their own transactions.
//!
//! Each also assigns over all waiting requests: a slot that its job has not used reaches the next job without a pass. One
//! that was used waits for the check between jobs.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{PlanBuilder, assign};
use crate::event::{Change, Event};
use crate::ids::{AttemptName, InstanceId};
use crate::images::FoundImage;
use crate::instance::{DrainReason, Instance, Phase, Release, Unreachable};
use crate::job::JobFacts;
use crate::job_end::JobEnd;
use crate::order::RefusedOrder;
use crate::policy::Policy;
use crate::pool::PoolState;
use crate::time::Stamp;

/// A job's request for capacity.
#[derive(Debug, Clone)]
pub struct Ask {
    pub attempt: AttemptName,
    pub job: JobFacts,
    /// Recorded if the pool has no policy yet.
    pub policy: Arc<Policy>,
    /// Earlier attempts of the job, which the caller has closed, and how each leaves.
    pub superseded: Vec<(AttemptName, Release)>,
}

/// Requests capacity. For an attempt that already waits or holds, nothing changes; earlier attempts of the same job are
/// superseded.
///
/// RACE: an attempt of the job may have requested capacity after the caller read the attempts, and is not closed yet.
/// Then nothing is requested; the caller neither waits nor holds, closes that attempt and retries. So a job never holds
/// two slots.
pub fn acquire(state: &PoolState, ask: &Ask, now: Stamp) -> Vec<Event> {
    let mut draft = PlanBuilder::new(state, now);
    let policy = Arc::clone(state.policy.as_ref().unwrap_or(&ask.policy));
    if state.policy.is_none() {
        draft.emit(Change::PolicySet { policy: Arc::clone(&policy) });
    }
    for (other, leaving) in &ask.superseded {
        give_up(&mut draft, other, *leaving);
    }
    let known = state.granted.contains_key(&ask.attempt) || state.waiting_for(&ask.attempt).is_some();
    let alone = draft.state().other_attempts(&ask.job.key, &ask.attempt).next().is_none();
    if !known && alone {
        let attempt = ask.attempt.clone();
        let job = ask.job.clone();
        let domain = policy.domain_of(&job);
        let acquire_timeout = policy.timing.acquire_timeout;
        draft.emit(Change::Requested { attempt, job, domain, acquire_timeout });
    }
    assign::step(&mut draft, &policy, &BTreeSet::new());
    draft.into_events()
}

/// An instance passed its check, or responds again: the first waiting jobs get it immediately. A check proves nothing about
/// a host that has to be cleaned by now. A static host is cleaned before its first job: others may have run jobs there.
pub fn ready(state: &PoolState, instance: &InstanceId, now: Stamp) -> Vec<Event> {
    let mut draft = PlanBuilder::new(state, now);
    let instance = instance.clone();
    match state.instance(&instance).map(|i| &i.phase) {
        Some(Phase::Checking) if state.instance(&instance).is_some_and(Instance::is_new_host) => {
            draft.emit(Change::CleaningBegun { instance });
        }
        Some(Phase::Checking) => draft.emit(Change::BecameReady { instance }),
        Some(Phase::Ready) if state.instance(&instance).is_some_and(|i| i.unreachable.is_some()) => {
            draft.emit(Change::BecameReady { instance });
        }
        Some(Phase::Suspended { .. })
            if state.instance(&instance).is_some_and(|i| i.phase.is_resuming() && i.endpoint.is_some()) =>
        {
            draft.emit(Change::BecameReady { instance });
        }
        Some(
            Phase::Launching
            | Phase::Ready
            | Phase::Suspended { .. }
            | Phase::Cleaning
            | Phase::OutOfService { .. }
            | Phase::Draining { .. },
        )
        | None => return Vec::new(),
    }
    assign::give_out(draft)
}

/// A cleaning that began at `begun` succeeded, and left these images by name and digest. If the host has to be cleaned
/// once more by now, it stays as it is.
pub fn cleaned(
    state: &PoolState,
    instance: &InstanceId,
    begun: Stamp,
    left: &[(String, String)],
    now: Stamp,
) -> Vec<Event> {
    let is_due = |host: &&Instance| host.phase == Phase::Cleaning && host.since == begun;
    let Some(host) = state.instance(instance).filter(is_due) else { return Vec::new() };
    let is_left = |image: &FoundImage| {
        let digest = image.digest.as_deref();
        left.iter().any(|(name, left)| **name == *image.name && digest == Some(left))
    };
    let images = host.images.iter().map(|fact| &fact.image).filter(|image| is_left(image));
    let images = images.map(|image| Arc::clone(&image.name)).collect();
    let mut draft = PlanBuilder::new(state, now);
    draft.emit(Change::Cleaned { instance: instance.clone(), images });
    assign::give_out(draft)
}

/// Returns a slot, or a place in the queue ([`QueuePlace`](crate::job::QueuePlace)). Without either: no events.
pub fn release(state: &PoolState, attempt: &AttemptName, leaving: Release, now: Stamp) -> Vec<Event> {
    end(state, attempt, (leaving, None), now)
}

/// Does what [`release`] does, and records how the attempt's job ended, if that is known.
pub fn end(
    state: &PoolState,
    attempt: &AttemptName,
    (leaving, end): (Release, Option<&JobEnd>),
    now: Stamp,
) -> Vec<Event> {
    let mut draft = PlanBuilder::new(state, now);
    if let Some(end) =
        end.filter(|_| state.waiting_for(attempt).is_some() || state.granted.contains_key(attempt))
    {
        draft.emit(Change::JobEnded { attempt: attempt.clone(), end: end.clone() });
    }
    if !give_up(&mut draft, attempt, leaving) {
        return Vec::new();
    }
    assign::give_out(draft)
}

/// The job found its instance unusable before using it. The instance gets no job until it responds, and the keeper decides
/// whether to replace it. The request returns to its place in the queue and may be granted another instance immediately.
pub fn reject(state: &PoolState, attempt: &AttemptName, message: &str, now: Stamp) -> Vec<Event> {
    let mut draft = PlanBuilder::new(state, now);
    let Some(grant) = state.granted.get(attempt) else { return Vec::new() };
    let id = grant.instance.clone();
    draft.emit(Change::Rejected { attempt: attempt.clone(), message: message.to_owned() });
    let ready = |i: &Instance| i.phase == Phase::Ready && i.unreachable.is_none();
    if draft.state().instance(&id).is_some_and(ready) {
        draft.emit(Change::BecameUnreachable { instance: id, reason: Unreachable::by_job(message) });
    }
    assign::give_out(draft)
}

/// A ready instance is unreachable or denies the login. It gets no job until that has changed, and its present jobs
/// continue. On a launched instance that a job holds by now, that job's own connection decides.
pub fn doubt(state: &PoolState, instance: &InstanceId, why: &str, now: Stamp) -> Vec<Event> {
    let Some(known) = state.instance(instance).filter(|known| known.phase == Phase::Ready) else {
        return Vec::new();
    };
    if !known.is_static() && (!known.is_idle() || known.unreachable.is_some()) {
        return Vec::new();
    }
    vec![Change::BecameUnreachable { instance: known.id.clone(), reason: why.to_owned() }.at(now)]
}

/// The provider refuses to make what an attempt ordered. No events if the attempt no longer waits for it.
pub fn refuse_order(
    state: &PoolState,
    attempt: &AttemptName,
    refused: &RefusedOrder,
    now: Stamp,
) -> Vec<Event> {
    let open = state.waiting_for(attempt).filter(|job| job.job.order.is_some() && job.refused.is_none());
    let change =
        open.map(|job| Change::OrderRefused { attempt: job.attempt.clone(), refused: refused.clone() });
    change.map(|change| change.at(now)).into_iter().collect()
}

/// Drains an instance, or takes a static host out of service. Its present jobs continue.
pub fn withdraw(state: &PoolState, instance: &InstanceId, why: DrainReason, now: Stamp) -> Vec<Event> {
    let mut draft = PlanBuilder::new(state, now);
    put_out_of_service(&mut draft, instance, why);
    draft.into_events()
}

pub(super) fn put_out_of_service(draft: &mut PlanBuilder<'_>, id: &InstanceId, why: DrainReason) {
    let Some(known) = draft.state().instance(id) else { return };
    let instance = known.id.clone();
    match (&known.phase, known.is_static()) {
        (Phase::Draining { .. }, _)
        | (Phase::Launching | Phase::Suspended { .. } | Phase::OutOfService { .. }, true) => {}
        (Phase::Checking | Phase::Ready | Phase::Cleaning, true) => {
            draft.emit(Change::OutOfService { instance, reason: why.to_string() });
        }
        (
            Phase::Launching
            | Phase::Checking
            | Phase::Ready
            | Phase::Suspended { .. }
            | Phase::Cleaning
            | Phase::OutOfService { .. },
            false,
        ) => {
            draft.emit(Change::DrainingBegun { instance, reason: why });
        }
    }
}

fn give_up(draft: &mut PlanBuilder<'_>, attempt: &AttemptName, leaving: Release) -> bool {
    if draft.state().waiting_for(attempt).is_some() {
        draft.emit(Change::Withdrawn { attempt: attempt.clone(), how: leaving.how });
        return true;
    }
    let Some(grant) = draft.state().granted.get(attempt) else {
        return !leaving.closing && depart(draft, attempt);
    };
    let instance = grant.instance.clone();
    draft.emit(Change::Released { attempt: attempt.clone(), release: leaving });
    assign::settle(draft, &instance);
    true
}

/// Frees the slot of an attempt that a pass, between the mark `closed` and this `cleanup`, has already released. The pass
/// mistook the lease that `cleanup` holds for that of a `run`.
fn depart(draft: &mut PlanBuilder<'_>, attempt: &AttemptName) -> bool {
    let lingers = |i: &Instance| i.holders.get(attempt).is_some_and(|holder| holder.closing.is_some());
    let found = draft.state().instances.values().find(|i| lingers(i)).map(|i| i.id.clone());
    let Some(instance) = found else { return false };
    draft.emit(Change::SlotFreed { attempt: attempt.clone() });
    assign::settle(draft, &instance);
    true
}
