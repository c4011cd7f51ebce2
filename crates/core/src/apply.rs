//! The change that each [`Event`] makes to the [`PoolState`].
//!
//! Total: an event that does not fit the state changes nothing and is reported. The engine decides under the store's
//! lock, so an inapplicable event is a bug, and fails the simulator and the tests.

use std::sync::Arc;
use std::time::Duration;

use super::counters::Count;
use super::endpoint::Endpoint;
use super::event::{Change, Event};
use super::failure::{ErrorClass, Failure};
use super::ids::{AttemptName, InstanceId, TrustDomain};
use super::images::{FoundImage, Images};
use super::instance::{Answer, DrainReason, Holder, Instance, Phase, Release, Unreachable};
use super::job::JobFacts;
use super::job_end::{JobEnd, JobResult};
use super::pool::{Grant, PoolState};
use super::time::Stamp;
use super::unbegun::{CheckKind, Unbegun};
use crate::job::{OwnLaunches, QueuePlace, Reservation, Ticket};
use crate::unbegun::EarlyFailures;

/// An event that does not fit the state it was applied to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the event does not fit the state: {0}")]
pub struct InapplicableEvent(pub &'static str);

const NO_INSTANCE: InapplicableEvent = InapplicableEvent("no such instance");
const WRONG_PHASE: InapplicableEvent = InapplicableEvent("the instance is in another phase");
const NO_GRANT: InapplicableEvent = InapplicableEvent("the attempt has no grant");
const NOT_WAITING: InapplicableEvent = InapplicableEvent("the attempt is not waiting");
const STATIC: InapplicableEvent = InapplicableEvent("a static host is not launched");
const HELD: InapplicableEvent = InapplicableEvent("a job holds the instance");

/// Number of boot times that are remembered for "usually 26 s".
const BOOTS_KEPT: usize = 9;

impl PoolState {
    /// Applies one event; an inapplicable one changes only the revision.
    pub fn apply(&mut self, event: &Event) -> Result<(), InapplicableEvent> {
        let count = Count::of(self, event);
        self.revision += 1;
        self.change_by(event)?;
        if let Some(count) = count {
            Arc::make_mut(&mut self.counters).add(count, event.at);
        }
        Ok(())
    }

    fn change_by(&mut self, event: &Event) -> Result<(), InapplicableEvent> {
        let at = event.at;
        match &event.change {
            Change::PolicySet { policy } => self.policy = Some(Arc::clone(policy)),
            Change::GenerationBegun { generation } => {
                self.generations.entry(generation.clone()).or_insert(0);
            }
            Change::OfferingsChanged { offerings } => self.availability.name(offerings),
            Change::LaunchIntended { .. } => return self.intend(&event.change, at),
            Change::LaunchAnswered { instance, attempt, answer } => {
                return self.answered(instance, *attempt, answer, at);
            }
            Change::Reached { instance, endpoint } => return self.reached(instance, endpoint, at),
            Change::BecameReady { instance } => return self.became_ready(instance, at),
            Change::SuspendIntended { instance } => return self.suspend(instance, at),
            Change::Suspended { instance } => return self.suspended(instance, at),
            Change::ResumeIntended { instance } => return self.resume(instance, at),
            Change::Adopted { instance, endpoint, capacity, uses_left } => {
                return self.adopted(instance, endpoint, *capacity, *uses_left, at);
            }
            Change::Resized { instance, capacity } => self.static_host(instance)?.capacity = *capacity,
            Change::Readdressed { instance, endpoint } => {
                self.static_host(instance)?.endpoint = Some(endpoint.clone());
            }
            Change::BecameUnreachable { instance, reason } => {
                return self.became_unreachable(instance, reason, at);
            }
            Change::Requested { attempt, job, domain, acquire_timeout } => {
                return self.requested(attempt, job, domain, *acquire_timeout, at);
            }
            Change::Granted { attempt, instance } => return self.grant(attempt, instance, at),
            Change::Withdrawn { attempt, .. } => {
                let ticket = self.waiting_for(attempt).ok_or(NOT_WAITING)?.ticket;
                if let Some(gone) = self.waiting.remove(&ticket) {
                    self.keep_place(&gone, at);
                }
            }
            Change::OrderRefused { attempt, refused } => return self.order_refused(attempt, refused),
            Change::Rejected { attempt, .. } => {
                let grant = self.granted.remove(attempt).ok_or(NO_GRANT)?;
                self.leave(&grant.instance, attempt, false, at);
                self.waiting.insert(grant.reservation.ticket, grant.reservation);
            }
            Change::StageNotBegun { attempt, reason, kind } => {
                return self.stage_not_begun(attempt, (*kind, reason));
            }
            Change::StageBegun { instance, kind } => return self.stage_begun(instance, *kind),
            Change::Rechecked { instance } => return self.rechecked(instance),
            Change::FailedEarly { attempt, reason } => return self.failed_early(attempt, reason),
            Change::JobEnded { attempt, end } => self.job_ended(attempt, end),
            Change::Released { attempt, release: leaving } => return self.released(attempt, *leaving, at),
            Change::SlotFreed { attempt } => return self.departed(attempt, at),
            Change::ImagesFound { instance, images, .. } => return self.images_found(instance, images, at),
            Change::ImagesRemoved { instance, images } => {
                self.change(instance)?.images.retain(|fact| !images.contains(&fact.image.name));
            }
            Change::CleaningBegun { instance } => become_(self.empty(instance)?, Phase::Cleaning, at)?,
            Change::Cleaned { instance, images } => return self.cleaned(instance, images, at),
            Change::OutOfService { instance, reason: why } => {
                become_(self.change(instance)?, Phase::OutOfService { reason: why.clone() }, at)?;
            }
            Change::ReturnedToService { instance } => return self.returned_to_service(instance, at),
            Change::Unbound { instance } => return self.unbound(instance, at),
            Change::DrainingBegun { instance, reason: why } => return self.drain(instance, why, at),
            Change::MissingFromList { instance, begun } => self.change(instance)?.missing = Some(*begun),
            Change::Located { instance, location } => {
                self.change(instance)?.location = Some(location.clone());
                self.location = Some(location.clone());
            }
            Change::ListedAgain { instance } => self.change(instance)?.missing = None,
            Change::Forgotten { instance } => {
                let gone = self.instance(instance).ok_or(NO_INSTANCE)?;
                if gone.holders.values().any(|h| h.closing.is_none()) {
                    return Err(HELD);
                }
                if !matches!(gone.phase, Phase::Draining { .. }) && !gone.is_refused() && !gone.is_static() {
                    return Err(WRONG_PHASE);
                }
                if let Some(gone) = self.instances.remove(instance) {
                    self.remember(&gone);
                }
            }
            Change::RecordDropped { instance, .. } => {
                let dropped = self.empty(instance)?;
                if !matches!(dropped.phase, Phase::Draining { .. }) && !dropped.is_refused() {
                    return Err(WRONG_PHASE);
                }
                self.instances.remove(instance);
            }
            Change::PoolDrained => self.drained = Some(at),
            Change::PoolResumed => {
                self.drained = None;
                self.resumed = Some(at);
                self.launches.failures = 0;
                self.suspensions.failures = 0;
                self.availability.forgive();
            }
        }
        Ok(())
    }

    fn change(&mut self, id: &InstanceId) -> Result<&mut Instance, InapplicableEvent> {
        self.instances.get_mut(id).map(Arc::make_mut).ok_or(NO_INSTANCE)
    }

    /// The static host with this id, to be changed.
    fn static_host(&mut self, id: &InstanceId) -> Result<&mut Instance, InapplicableEvent> {
        let instance = self.change(id)?;
        if instance.is_static() {
            Ok(instance)
        } else {
            Err(InapplicableEvent("the instance is not a static host"))
        }
    }

    /// The instance with this id, to be changed, if it has no jobs.
    fn empty(&mut self, id: &InstanceId) -> Result<&mut Instance, InapplicableEvent> {
        let instance = self.change(id)?;
        if instance.holders.is_empty() { Ok(instance) } else { Err(HELD) }
    }

    fn adopted(
        &mut self,
        id: &InstanceId,
        endpoint: &Endpoint,
        capacity: u32,
        uses_left: Option<u32>,
        at: Stamp,
    ) -> Result<(), InapplicableEvent> {
        if self.instances.contains_key(id) {
            return Err(InapplicableEvent("the instance is already recorded"));
        }
        let mut adopted = fresh(id, capacity, uses_left, at);
        adopted.phase = Phase::Checking;
        adopted.endpoint = Some(endpoint.clone());
        if let Some(former) = self.take_former(id, endpoint) {
            former.restore(&mut adopted);
        }
        self.instances.insert(id.clone(), Arc::new(adopted));
        Ok(())
    }

    fn reached(&mut self, id: &InstanceId, endpoint: &Endpoint, at: Stamp) -> Result<(), InapplicableEvent> {
        let reached = self.change(id)?;
        if reached.phase.is_resuming() {
            reached.endpoint = Some(endpoint.clone());
            return Ok(());
        }
        if reached.phase != Phase::Launching || reached.is_refused() {
            return Err(WRONG_PHASE);
        }
        become_(reached, Phase::Checking, at)?;
        reached.endpoint = Some(endpoint.clone());
        let Some(launch) = &mut reached.launch else { return Ok(()) };
        if matches!(launch.answer, Answer::Pending | Answer::Unknown { .. }) {
            launch.answer = Answer::Accepted { at };
            let offering = launch.offering.clone();
            let requested_at = launch.requested_at;
            if reached.ordered.is_none() {
                self.accepted(offering.as_ref(), requested_at);
            }
        }
        Ok(())
    }

    fn became_ready(&mut self, id: &InstanceId, at: Stamp) -> Result<(), InapplicableEvent> {
        let instance = self.change(id)?;
        if instance.phase == Phase::Ready && instance.unreachable.take().is_some() {
            return Ok(());
        }
        // Reached since it was resumed.
        let resumed = instance.phase.is_resuming() && instance.endpoint.is_some();
        if instance.phase != Phase::Checking && !resumed {
            return Err(WRONG_PHASE);
        }
        become_(instance, Phase::Ready, at)?;
        instance.ready = Some(at);
        if resumed {
            self.suspensions.failures = 0;
            return Ok(());
        }
        // What a job ordered tells nothing about the pool's own launches, nor how long they take.
        if let Some(launch) = instance.launch.as_ref().filter(|_| instance.ordered.is_none()) {
            let took = u64::try_from(at.since(launch.requested_at).as_millis()).unwrap_or(u64::MAX);
            let health = &mut self.launches;
            health.failures = 0;
            health.boot_ms.push(took);
            let surplus = health.boot_ms.len().saturating_sub(BOOTS_KEPT);
            health.boot_ms.drain(..surplus);
        }
        Ok(())
    }

    fn became_unreachable(
        &mut self,
        id: &InstanceId,
        reason: &str,
        at: Stamp,
    ) -> Result<(), InapplicableEvent> {
        let instance = self.change(id)?;
        if instance.phase != Phase::Ready || instance.unreachable.is_some() {
            return Err(WRONG_PHASE);
        }
        if instance.is_static() {
            return become_(instance, Phase::Checking, at);
        }
        instance.unreachable = Some(Unreachable { since: at, reason: reason.to_owned() });
        Ok(())
    }

    fn requested(
        &mut self,
        attempt: &AttemptName,
        job: &JobFacts,
        domain: &TrustDomain,
        acquire_timeout: Duration,
        at: Stamp,
    ) -> Result<(), InapplicableEvent> {
        if self.granted.contains_key(attempt) || self.waiting_for(attempt).is_some() {
            return Err(InapplicableEvent("the attempt already has a reservation"));
        }
        if self.other_attempts(&job.key, attempt).next().is_some() {
            return Err(InapplicableEvent("another attempt of the job has a reservation or a grant"));
        }
        let place_retention =
            self.policy.as_ref().map_or(Duration::from_mins(5), |p| p.timing.place_retention);
        self.places.retain(|_, place| at.since(place.ended_at) < place_retention);
        let kept = self.places.remove(&job.key);
        let (ticket, patience) = match kept {
            Some(place) => (place.ticket, place.remaining_timeout.min(acquire_timeout)),
            None => (self.next_ticket, acquire_timeout),
        };
        if ticket == self.next_ticket {
            self.next_ticket = Ticket(ticket.0 + 1);
        }
        if self.policy.as_ref().is_some_and(|policy| policy.warm.learn.is_some()) {
            self.recent_images.count(&job.images);
        }
        let attempt = attempt.clone();
        let job = job.clone();
        let domain = domain.clone();
        let reservation = Reservation {
            ticket,
            attempt,
            job,
            domain,
            requested_at: at,
            remaining_timeout: patience,
            refused: None,
            own: OwnLaunches::default(),
        };
        self.waiting.insert(ticket, Arc::new(reservation));
        Ok(())
    }

    fn images_found(
        &mut self,
        id: &InstanceId,
        images: &[FoundImage],
        at: Stamp,
    ) -> Result<(), InapplicableEvent> {
        let known = self.change(id)?;
        for found in images {
            known.images.note(found, at);
        }
        for found in images {
            self.recent_images.measure(found);
        }
        Ok(())
    }

    fn keep_place(&mut self, gone: &Reservation, at: Stamp) {
        let patience = gone.remaining_timeout.saturating_sub(at.since(gone.requested_at));
        let place = QueuePlace { ticket: gone.ticket, ended_at: at, remaining_timeout: patience };
        self.places.insert(gone.job.key.clone(), place);
    }

    fn grant(&mut self, attempt: &AttemptName, id: &InstanceId, at: Stamp) -> Result<(), InapplicableEvent> {
        let ticket = self.waiting_for(attempt).ok_or(NOT_WAITING)?.ticket;
        let instance = self.instance(id).ok_or(NO_INSTANCE)?;
        if instance.usable_unchecked() == 0 {
            return Err(InapplicableEvent("the instance has no free slot"));
        }
        if !self.waiting.get(&ticket).is_some_and(|r| instance.admits(&r.domain)) {
            return Err(InapplicableEvent("the instance belongs to another trust domain"));
        }
        let Some(reservation) = self.waiting.remove(&ticket) else { return Err(NOT_WAITING) };
        let holder = Holder {
            job: reservation.job.key.clone(),
            manager: reservation.manager(),
            granted: at,
            closing: None,
        };
        let instance = self.change(id)?;
        instance.uses_left = instance.uses_left.map(|left| left.saturating_sub(1));
        instance.domain = Some(reservation.domain.clone());
        instance.holders.insert(attempt.clone(), holder);
        self.granted.insert(attempt.clone(), Grant { instance: id.clone(), reservation });
        Ok(())
    }

    fn stage_not_begun(
        &mut self,
        attempt: &AttemptName,
        met: (CheckKind, &str),
    ) -> Result<(), InapplicableEvent> {
        let grant = self.granted.get(attempt).ok_or(NO_GRANT)?;
        let id = grant.instance.clone();
        let domain = grant.reservation.domain.clone();
        let instance = self.change(&id)?;
        let row = Unbegun::with(instance.unbegun.as_ref(), attempt, &domain, met);
        instance.unbegun = Some(row.ok_or(InapplicableEvent("the job has been counted"))?);
        Ok(())
    }

    fn stage_begun(&mut self, id: &InstanceId, kind: CheckKind) -> Result<(), InapplicableEvent> {
        let known = self.change(id)?;
        if !known.unbegun.as_ref().is_some_and(|row| row.has(kind)) {
            return Err(InapplicableEvent("stages begin there anyway"));
        }
        known.unbegun = known.unbegun.take().and_then(|row| row.without(kind));
        Ok(())
    }

    fn failed_early(&mut self, attempt: &AttemptName, reason: &str) -> Result<(), InapplicableEvent> {
        let grant = self.granted.get(attempt).ok_or(NO_GRANT)?;
        let id = grant.instance.clone();
        let project = grant.reservation.job.project_url();
        let instance = self.change(&id)?;
        let row = EarlyFailures::with(instance.early.as_ref(), attempt, &project, reason);
        instance.early = Some(row.ok_or(InapplicableEvent("the job has been counted"))?);
        Ok(())
    }

    /// A job that passed acquits its instance, and shows that the early failures of other ones are their own.
    fn job_ended(&mut self, attempt: &AttemptName, end: &JobEnd) {
        let Some(grant) = self.granted.get(attempt).filter(|_| end.result == JobResult::Passed) else {
            return;
        };
        let id = grant.instance.clone();
        let counts = |i: &Instance| i.early.as_ref().is_some_and(|row| i.id == id || !row.pass_elsewhere);
        for instance in self.instances.values_mut().filter(|i| counts(i)) {
            let instance = Arc::make_mut(instance);
            instance.early = instance.early.take().filter(|_| instance.id != id);
            if let Some(row) = &mut instance.early {
                row.pass_elsewhere = true;
            }
        }
    }

    fn rechecked(&mut self, id: &InstanceId) -> Result<(), InapplicableEvent> {
        let instance = self.change(id)?;
        if instance.phase != Phase::Ready {
            return Err(WRONG_PHASE);
        }
        instance.unchecked = false;
        Ok(())
    }

    fn returned_to_service(&mut self, id: &InstanceId, at: Stamp) -> Result<(), InapplicableEvent> {
        let restored = self.empty(id)?;
        if !matches!(restored.phase, Phase::OutOfService { .. }) {
            return Err(WRONG_PHASE);
        }
        let next = if restored.uses > 0 { Phase::Cleaning } else { Phase::Checking };
        become_(restored, next, at)?;
        restored.unbegun = None;
        restored.early = None;
        Ok(())
    }

    fn released(
        &mut self,
        attempt: &AttemptName,
        leaving: Release,
        at: Stamp,
    ) -> Result<(), InapplicableEvent> {
        let grant = self.granted.remove(attempt).ok_or(NO_GRANT)?;
        if !leaving.used {
            self.keep_place(&grant.reservation, at);
        }
        // A call that still runs may yet start to use the instance: a closing attempt costs its use.
        if leaving.closing
            && let Ok(instance) = self.change(&grant.instance)
            && let Some(holder) = instance.holders.get_mut(attempt)
        {
            holder.closing = Some(at);
            instance.uses = instance.uses.saturating_add(1);
            instance.released = Some(at);
            instance.unchecked = true;
            return Ok(());
        }
        self.leave(&grant.instance, attempt, leaving.used, at);
        Ok(())
    }

    /// Removes an attempt from its instance. An unused grant costs no use and binds the instance to no domain.
    fn leave(&mut self, id: &InstanceId, attempt: &AttemptName, used: bool, at: Stamp) {
        let Ok(instance) = self.change(id) else { return };
        if instance.holders.remove(attempt).is_none() {
            return;
        }
        if used {
            instance.uses = instance.uses.saturating_add(1);
            instance.released = Some(at);
            instance.unchecked = true;
        } else {
            instance.uses_left = instance.uses_left.map(|left| left.saturating_add(1));
            if instance.released.is_none() && instance.holders.is_empty() && instance.ordered.is_none() {
                instance.domain = None;
            }
        }
    }

    fn departed(&mut self, attempt: &AttemptName, at: Stamp) -> Result<(), InapplicableEvent> {
        let lingers = |i: &Instance| i.holders.get(attempt).is_some_and(|h| h.closing.is_some());
        let id = self.instances.values().find(|i| lingers(i)).map(|i| i.id.clone());
        let instance = self.change(&id.ok_or(InapplicableEvent("no closing attempt has that name"))?)?;
        instance.holders.remove(attempt);
        // The call may have changed it since the attempt was closed.
        instance.released = Some(at);
        instance.unchecked = true;
        Ok(())
    }

    fn cleaned(&mut self, id: &InstanceId, images: &[Arc<str>], at: Stamp) -> Result<(), InapplicableEvent> {
        let policy = self.policy.clone();
        let instance = self.change(id)?;
        if instance.phase != Phase::Cleaning {
            return Err(WRONG_PHASE);
        }
        become_(instance, Phase::Ready, at)?;
        instance.ready = Some(at);
        instance.unchecked = false;
        instance.images.retain(|fact| images.contains(&fact.image.name));
        if instance.is_static() && instance.uses_left.is_some() {
            // Cleaning restores a static host's uses; a host that cannot be replaced is never used up.
            instance.uses_left = policy.as_ref().and_then(|p| p.max_use_count);
        }
        if policy.is_none_or(|p| p.clean_unbinds) {
            instance.domain = None;
            instance.released = None;
        }
        Ok(())
    }

    /// A cleaning that is under way began for the host's own domain: another one follows.
    fn unbound(&mut self, id: &InstanceId, at: Stamp) -> Result<(), InapplicableEvent> {
        self.static_host(id)?;
        let host = self.empty(id)?;
        if host.domain.is_none() {
            return Err(InapplicableEvent("the host is bound to no trust domain"));
        }
        match host.phase {
            Phase::Cleaning => host.since = at,
            // It is cleaned when the operator returns it to service.
            Phase::OutOfService { .. } => {}
            Phase::Launching
            | Phase::Checking
            | Phase::Ready
            | Phase::Suspended { .. }
            | Phase::Draining { .. } => {
                become_(host, Phase::Cleaning, at)?;
            }
        }
        host.domain = None;
        host.released = None;
        Ok(())
    }

    fn drain(&mut self, id: &InstanceId, why: &DrainReason, at: Stamp) -> Result<(), InapplicableEvent> {
        let instance = self.change(id)?;
        if instance.is_static() {
            return Err(InapplicableEvent("a static host cannot be terminated"));
        }
        let was = instance.phase.clone();
        let ordered = instance.ordered.is_some();
        become_(instance, Phase::Draining { reason: why.clone() }, at)?;
        let failure = Failure { class: ErrorClass::Transient, message: format!("{id}: {why}") };
        // What a job ordered may be why it never became ready: other jobs do not wait for that.
        if matches!(was, Phase::Launching | Phase::Checking) && why.is_launch_failure() && !ordered {
            self.launch_failed(failure, at);
        } else if why.is_suspension_failure() {
            self.suspension_failed(&was, failure, at);
        }
        Ok(())
    }
}

fn fresh(id: &InstanceId, capacity: u32, uses_left: Option<u32>, at: Stamp) -> Instance {
    Instance {
        id: id.clone(),
        launch: None,
        phase: Phase::Launching,
        since: at,
        created: at,
        ready: None,
        resumed: None,
        released: None,
        capacity,
        uses_left,
        uses: 0,
        holders: std::collections::BTreeMap::new(),
        domain: None,
        endpoint: None,
        location: None,
        missing: None,
        unreachable: None,
        unbegun: None,
        early: None,
        unchecked: false,
        images: Images::default(),
        ordered: None,
    }
}

fn become_(instance: &mut Instance, next: Phase, at: Stamp) -> Result<(), InapplicableEvent> {
    if !instance.phase.may_become(&next) {
        return Err(WRONG_PHASE);
    }
    instance.phase = next;
    instance.since = at;
    Ok(())
}

mod launches;
#[cfg(test)]
mod tests;
