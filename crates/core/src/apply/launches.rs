//! The changes that launches, suspensions and resumes make to the state: intents, answers, failures, and refused orders.

use std::sync::Arc;

use super::{HELD, InapplicableEvent, NOT_WAITING, STATIC, become_, fresh};
use crate::availability::concerns_offering;
use crate::event::Change;
use crate::failure::{ErrorClass, Failure};
use crate::ids::{AttemptName, InstanceId, OfferingName};
use crate::instance::{Answer, Instance, LaunchRecord, Phase, Suspension};
use crate::job::OwnLaunches;
use crate::order::RefusedOrder;
use crate::pool::PoolState;
use crate::time::Stamp;

impl PoolState {
    pub(super) fn intend(&mut self, intent: &Change, at: Stamp) -> Result<(), InapplicableEvent> {
        let Change::LaunchIntended {
            instance,
            generation,
            number,
            attempt,
            capacity,
            uses_left,
            offering,
            location,
            lifetime,
            ordered,
        } = intent
        else {
            return Err(STATIC);
        };
        if let Some(known) = self.instance(instance) {
            let before = known.launch.as_ref().map_or(0, |l| l.attempt);
            if !known.is_refused() || *attempt <= before {
                return Err(InapplicableEvent("only a refused launch is repeated, as the next attempt"));
            }
        }
        let highest = self.generations.entry(generation.clone()).or_insert(0);
        *highest = (*number).max(*highest);
        self.launches.count_intent(ordered.is_some(), at);
        if let Some(ordered) = ordered {
            self.change_own(&ordered.attempt, |own| own.intended(offering.as_ref()));
        }
        self.location = location.clone().or(self.location.take());
        let launch = LaunchRecord {
            generation: generation.clone(),
            number: *number,
            attempt: *attempt,
            offering: offering.clone(),
            lifetime: *lifetime,
            answer: Answer::Pending,
            requested_at: at,
        };
        // A refused launch created nothing: the next one starts from the beginning.
        let fresh = fresh(instance, *capacity, *uses_left, at);
        let domain = ordered.as_ref().map(|ordered| ordered.domain.clone());
        let location = location.clone();
        let ordered = ordered.clone();
        let intended = Instance { launch: Some(launch), location, domain, ordered, ..fresh };
        self.instances.insert(instance.clone(), Arc::new(intended));
        Ok(())
    }

    pub(super) fn answered(
        &mut self,
        id: &InstanceId,
        attempt: u32,
        answer: &Answer,
        at: Stamp,
    ) -> Result<(), InapplicableEvent> {
        let instance = self.change(id)?;
        let launch = instance.launch.as_mut().ok_or(STATIC)?;
        if launch.attempt != attempt {
            return Err(InapplicableEvent("the answer is to another attempt to launch"));
        }
        launch.answer = answer.clone();
        let offering = launch.offering.clone();
        let requested_at = launch.requested_at;
        let ordered = instance.ordered.clone();
        if matches!(answer, Answer::Refused { .. }) {
            // It is nowhere, unless a list shows it after all.
            instance.location = None;
        } else {
            // A list from before the call proves nothing about what the call created.
            instance.missing = None;
        }
        match (answer, ordered) {
            // It tells something about what the job ordered, and nothing about other launches.
            (Answer::Refused { failure, .. }, Some(ordered)) => {
                self.order_launch_refused(&ordered.attempt, offering.as_ref(), requested_at, failure, at);
            }
            (Answer::Refused { failure, .. }, None) => {
                self.refused(offering.as_ref(), requested_at, failure, at);
            }
            (Answer::Accepted { .. } | Answer::Pending | Answer::Unknown { .. }, Some(_))
            | (Answer::Pending | Answer::Unknown { .. }, None) => {}
            (Answer::Accepted { .. }, None) => self.accepted(offering.as_ref(), requested_at),
        }
        Ok(())
    }

    /// The launch of a job's own instance was refused: the job alone waits for the next one.
    fn order_launch_refused(
        &mut self,
        attempt: &AttemptName,
        offering: Option<&OfferingName>,
        requested_at: Stamp,
        failure: &Failure,
        at: Stamp,
    ) {
        if concerns_offering(&failure.class) {
            self.launches.recent_ordered.retain(|then| *then != requested_at);
        }
        // Nothing is launched any more for an order that is refused.
        if !matches!(failure.class, ErrorClass::Order { .. }) {
            self.change_own(attempt, |own| own.refused(offering, failure, at));
        }
    }

    fn change_own(&mut self, attempt: &AttemptName, change: impl FnOnce(&mut OwnLaunches)) {
        let ticket = self.waiting_for(attempt).map(|waits| waits.ticket);
        if let Some(waits) = ticket.and_then(|ticket| self.waiting.get_mut(&ticket)) {
            change(&mut Arc::make_mut(waits).own);
        }
    }

    /// A refused launch created nothing, and the other offerings are unaffected: the next one is tried immediately.
    pub(super) fn refused(
        &mut self,
        offering: Option<&OfferingName>,
        requested_at: Stamp,
        failure: &Failure,
        at: Stamp,
    ) {
        let of_offering = offering.is_some_and(|c| self.availability.refuse(c, requested_at, failure, at));
        if !of_offering {
            self.launch_refused(requested_at, failure.clone(), at);
        } else if let Some(place) = self.launches.recent.iter().position(|then| *then == requested_at) {
            self.launches.recent.remove(place);
        }
    }

    pub(super) fn accepted(&mut self, offering: Option<&OfferingName>, requested_at: Stamp) {
        if let Some(offering) = offering {
            self.availability.accept(offering, requested_at);
        }
    }

    /// A launch that was under way when another one failed adds no failure: an outage counts once, however many
    /// launches it affects. They created nothing, so ignoring them is safe.
    pub(super) fn launch_refused(&mut self, requested_at: Stamp, failure: Failure, at: Stamp) {
        let before = self.launches.last.as_ref().filter(|_| self.launches.failures > 0);
        if before.is_none_or(|(before, _)| requested_at.is_after(*before)) {
            return self.launch_failed(failure, at);
        }
        self.launches.last = Some((at, failure));
    }

    /// Counts a failed launch. Each one counts, because each instance was paid for.
    pub(super) fn launch_failed(&mut self, failure: Failure, at: Stamp) {
        self.launches.failures = self.launches.failures.saturating_add(1);
        self.launches.last = Some((at, failure));
    }

    pub(super) fn order_refused(
        &mut self,
        attempt: &AttemptName,
        refused: &RefusedOrder,
    ) -> Result<(), InapplicableEvent> {
        let ticket = self.waiting_for(attempt).ok_or(NOT_WAITING)?.ticket;
        let waiting = self.waiting.get_mut(&ticket).map(Arc::make_mut).ok_or(NOT_WAITING)?;
        if waiting.job.order.is_none() || waiting.refused.is_some() {
            return Err(InapplicableEvent("the attempt has no order to refuse"));
        }
        waiting.refused = Some(refused.clone());
        Ok(())
    }
}

impl PoolState {
    /// Begins the suspension of an instance. A resumed one may have another address, so it has none until then.
    pub(super) fn suspend(&mut self, id: &InstanceId, at: Stamp) -> Result<(), InapplicableEvent> {
        let instance = self.change(id)?;
        if !instance.holders.is_empty() {
            return Err(HELD);
        }
        if instance.is_static() {
            return Err(STATIC);
        }
        become_(instance, Phase::Suspended { step: Suspension::Suspending }, at)?;
        instance.endpoint = None;
        instance.unreachable = None;
        Ok(())
    }

    pub(super) fn suspended(&mut self, id: &InstanceId, at: Stamp) -> Result<(), InapplicableEvent> {
        become_(self.change(id)?, Phase::Suspended { step: Suspension::Stopped }, at)
    }

    pub(super) fn resume(&mut self, id: &InstanceId, at: Stamp) -> Result<(), InapplicableEvent> {
        let instance = self.change(id)?;
        become_(instance, Phase::Suspended { step: Suspension::Resuming }, at)?;
        instance.resumed = Some(at);
        Ok(())
    }

    /// An instance is drained: it counts if it was suspending or resuming.
    pub(super) fn suspension_failed(&mut self, was: &Phase, failure: Failure, at: Stamp) {
        if !matches!(was, Phase::Suspended { .. }) || was.is_stopped() {
            return;
        }
        self.suspensions.failures = self.suspensions.failures.saturating_add(1);
        self.suspensions.last = Some((at, failure));
    }
}
