//! How launches change the state: intents, answers, failures, and refused orders.

use std::sync::Arc;
use std::time::Duration;

use super::{InapplicableEvent, NOT_WAITING, STATIC, fresh};
use crate::core::event::Change;
use crate::core::failure::{ErrorClass, Failure};
use crate::core::ids::{AttemptName, InstanceId, OfferingName};
use crate::core::instance::{Answer, Instance, LaunchRecord};
use crate::core::order::RefusedOrder;
use crate::core::pool::PoolState;
use crate::core::time::Stamp;

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
        self.launches.recent.retain(|then| at.since(*then) < Duration::from_mins(1));
        self.launches.recent.push(at);
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
        let (location, ordered) = (location.clone(), ordered.clone());
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
        let (offering, requested_at) = (launch.offering.clone(), launch.requested_at);
        let ordered = instance.ordered.is_some();
        if matches!(answer, Answer::Refused { .. }) {
            // It is nowhere, unless a list shows it after all.
            instance.location = None;
        } else {
            // A list from before the call proves nothing about what the call created.
            instance.missing = None;
        }
        match answer {
            // It says something about the order, and nothing about other launches.
            Answer::Refused { failure, .. }
                if ordered && matches!(failure.class, ErrorClass::Order { .. }) => {}
            Answer::Refused { failure, .. } => self.refused(offering.as_ref(), requested_at, failure, at),
            Answer::Accepted { .. } => self.accepted(offering.as_ref(), requested_at),
            Answer::Pending | Answer::Unknown { .. } => {}
        }
        Ok(())
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

    /// Each one counts, because each instance was paid for.
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
