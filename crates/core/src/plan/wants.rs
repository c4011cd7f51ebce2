//! What is to be launched, in the order of the queue: neither kind of instance keeps the other waiting.

use std::sync::Arc;

use super::builder::PlanBuilder;
use super::own_gate::{self, OwnGate};
use super::upcoming::MissingOrder;
use super::{ScaleInput, counts};
use crate::instance::Instance;
use crate::order::Ordered;
use crate::reservation::Reservation;

/// What is to be launched.
pub(super) struct Wants {
    /// Instances of the pool's own kind.
    pub(super) shared: u32,
    /// Those that jobs have ordered.
    pub(super) orders: Vec<MissingOrder>,
}

/// One instance that is to be launched.
#[derive(Clone, Copy)]
pub(super) enum Want<'a> {
    /// Of the pool's own kind.
    Shared,
    /// What this job ordered.
    Order(&'a Reservation),
}

impl Wants {
    pub(super) fn of(draft: &PlanBuilder<'_>, input: &ScaleInput<'_>, shared: u32) -> Self {
        let all = &input.shortfall.orders;
        let is_due = |order: &&MissingOrder| is_due(draft, input, &order.job);
        let orders = all.iter().filter(is_due).cloned().collect();
        Self { shared, orders }
    }

    pub(super) fn count(&self) -> u32 {
        self.shared.saturating_add(u32::try_from(self.orders.len()).unwrap_or(u32::MAX))
    }

    /// True unless the job of this refused launch waits for the end of its own pause: then the launch is kept.
    pub(super) fn is_vain(&self, refused: &Instance, input: &ScaleInput<'_>) -> bool {
        let mut waits = input.shortfall.orders.iter().map(|order| &order.job);
        !waits.any(|job| is_of(refused, job)) || self.orders.iter().any(|order| is_of(refused, &order.job))
    }

    /// The first ones in the order of the queue. What no job waits for comes last.
    pub(super) fn first(&self, count: u32) -> impl Iterator<Item = Want<'_>> {
        let mut listed = 0;
        let queued = self.orders.iter().flat_map(move |order| {
            let before = order.before.saturating_sub(listed);
            listed += before;
            let shared = (0..before).map(|_| Want::Shared);
            shared.chain(std::iter::once(Want::Order(&order.job)))
        });
        let queued_shared = self.orders.last().map_or(0, |order| order.before);
        let rest = (queued_shared..self.shared).map(|_| Want::Shared);
        queued.chain(rest).take(usize::try_from(count).unwrap_or(usize::MAX))
    }
}

impl Want<'_> {
    /// True if this instance, whose launch was refused, is what is wanted.
    pub(super) fn is_met_by(self, refused: &Instance) -> bool {
        match self {
            Self::Shared => refused.ordered.is_none(),
            Self::Order(job) => is_of(refused, job),
        }
    }

    pub(super) fn ordered(self) -> Option<Arc<Ordered>> {
        let Self::Order(job) = self else { return None };
        let order = Arc::clone(job.job.order.as_ref()?);
        let (attempt, key, domain) = (job.attempt.clone(), job.job.key.clone(), job.domain.clone());
        Some(Arc::new(Ordered { attempt, job: key, domain, order }))
    }
}

fn is_of(instance: &Instance, job: &Reservation) -> bool {
    instance.ordered.as_ref().is_some_and(|ordered| ordered.attempt == job.attempt)
}

/// True unless an earlier launch for the job pauses after its refusal, or never became ready and is still being
/// terminated: its faults are not the pool's, so no other pause limits them.
fn is_due(draft: &PlanBuilder<'_>, input: &ScaleInput<'_>, job: &Reservation) -> bool {
    let mut own = draft.state().instances.values().filter(|i| is_of(i, job));
    if own.any(|i| i.failed_boot().is_some() || (i.is_refused() && !counts::is_repeatable(i, draft, input))) {
        return false;
    }
    match gate(draft, input, job) {
        OwnGate::Open(_) => true,
        OwnGate::Wait { until, .. } => {
            draft.wake_at(until);
            false
        }
    }
}

/// When the next launch of what the job ordered is due.
pub(super) fn gate(draft: &PlanBuilder<'_>, input: &ScaleInput<'_>, job: &Reservation) -> OwnGate {
    own_gate::gate(&job.own, &draft.state().availability, &input.policy.timing, draft.now)
}
