//! One count over all instances.

use super::builder::PlanBuilder;
use super::{ScaleInput, assign};
use crate::core::instance::{Instance, Phase};
use crate::core::policy::Policy;

/// How many instances, and slots, are where.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct InstanceCounts {
    /// Idle slots that any domain may use.
    pub(super) spare: u32,
    /// Launches that may still become ready.
    pub(super) under_way: u32,
    /// Launches that were refused and may be tried anew now.
    pub(super) refused: u32,
    /// On their way out, with no job left.
    pub(super) leaving: u32,
}

impl InstanceCounts {
    pub(super) fn of(draft: &PlanBuilder<'_>, aim: &ScaleInput<'_>) -> Self {
        let mut census = Self::default();
        for instance in draft.state().instances.values() {
            match instance.phase {
                Phase::Launching if instance.is_refused() => {
                    census.refused += u32::from(is_repeatable(instance, draft, aim));
                }
                Phase::Launching | Phase::Checking => census.under_way += 1,
                Phase::Ready => {
                    if is_spare(instance, aim.policy) && assign::is_offered(instance, draft.now) {
                        census.spare = census.spare.saturating_add(instance.usable());
                    }
                }
                Phase::Draining { .. } => census.leaving += u32::from(is_leaving(instance, aim)),
                Phase::Cleaning | Phase::OutOfService { .. } => {}
            }
        }
        census
    }
}

/// True if its launch was refused and may be repeated now.
pub(super) fn is_repeatable(instance: &Instance, draft: &PlanBuilder<'_>, aim: &ScaleInput<'_>) -> bool {
    instance.is_refused() && !aim.strays.name(&instance.id) && aim.observed.is_free(&instance.id, draft.now)
}

/// True if all domains may use its free slots. A bound instance is capacity for its own domain only.
pub(super) fn is_spare(instance: &Instance, policy: &Policy) -> bool {
    instance.domain.as_ref().is_none_or(|bound_to| policy.reuse.is_open(bound_to))
}

/// Draining, and no longer in use.
pub(super) fn is_leaving(instance: &Instance, aim: &ScaleInput<'_>) -> bool {
    matches!(instance.phase, Phase::Draining { .. }) && is_left(instance) && !aim.strays.name(&instance.id)
}

/// True if no job is on it; closing attempts do not count.
pub(super) fn is_left(instance: &Instance) -> bool {
    instance.holders.values().all(|h| h.closing.is_some())
}
