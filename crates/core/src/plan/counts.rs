//! One count over all instances.

use super::builder::PlanBuilder;
use super::{ScaleInput, assign};
use crate::instance::{Instance, Phase};
use crate::policy::Policy;

/// Numbers of instances and slots by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct InstanceCounts {
    /// Idle slots that any domain may use.
    pub(super) spare: u32,
    /// Launches of the pool's own kind that may still become ready.
    pub(super) under_way: u32,
    /// Those that jobs ordered.
    pub(super) ordered: u32,
    /// Refused launches that may be repeated now.
    pub(super) refused: u32,
    /// Draining, without jobs.
    pub(super) leaving: u32,
}

impl InstanceCounts {
    pub(super) fn of(draft: &PlanBuilder<'_>, input: &ScaleInput<'_>) -> Self {
        let mut counts = Self::default();
        for instance in draft.state().instances.values() {
            match instance.phase {
                Phase::Launching if instance.is_refused() => {
                    counts.refused += u32::from(is_repeatable(instance, draft, input));
                }
                Phase::Launching | Phase::Checking if instance.ordered.is_some() => counts.ordered += 1,
                Phase::Launching | Phase::Checking => counts.under_way += 1,
                Phase::Ready => {
                    if is_spare(instance, input.policy)
                        && assign::is_offered(instance, draft.state(), draft.now)
                    {
                        counts.spare = counts.spare.saturating_add(instance.usable());
                    }
                }
                Phase::Draining { .. } => counts.leaving += u32::from(is_leaving(instance, input)),
                Phase::Suspended { .. } | Phase::Cleaning | Phase::OutOfService { .. } => {}
            }
        }
        counts
    }
}

/// True if its launch was refused and may be repeated now.
pub(super) fn is_repeatable(instance: &Instance, draft: &PlanBuilder<'_>, input: &ScaleInput<'_>) -> bool {
    instance.is_refused()
        && !input.ungranted.names(&instance.id)
        && input.observed.is_free(&instance.id, draft.now)
}

/// True if all domains may use its free slots. A bound instance is capacity for its own domain only, one that a job
/// ordered for that job.
pub(super) fn is_spare(instance: &Instance, policy: &Policy) -> bool {
    instance.ordered.is_none()
        && instance.domain.as_ref().is_none_or(|bound_to| policy.reuse.is_open(bound_to))
}

/// Draining, and no longer in use.
pub(super) fn is_leaving(instance: &Instance, input: &ScaleInput<'_>) -> bool {
    matches!(instance.phase, Phase::Draining { .. })
        && is_left(instance)
        && !input.ungranted.names(&instance.id)
}

/// True if no job is on it; closing attempts do not count.
pub(super) fn is_left(instance: &Instance) -> bool {
    instance.holders.values().all(|h| h.closing.is_some())
}
