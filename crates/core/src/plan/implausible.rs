//! A complete list that lacks every instance at once, although they still answer.
//!
//! A wrong filter, a replica that starts empty, or a program that lost its file reads as if all instances were gone. Replacing
//! them would double the pool. So before such a list proves an absence, the idle instances are probed: it does not count as
//! long as they answer. One that does not answer is absent as always.

use std::time::Duration;

use super::Effect;
use super::builder::PlanBuilder;
use super::health::HOLD;
use super::observed::Observed;
use super::reconcile::{act, is_ready_since};
use super::whereabouts::{Coverage, coverage};
use crate::ids::InstanceId;
use crate::instance::{Instance, Phase};
use crate::inventory::Listing;
use crate::policy::Policy;
use crate::pool::PoolState;
use crate::report::Note;
use crate::time::Stamp;

/// How long an absence waits for a probe that tells nothing, as during a fault on the runner host.
const WAIT: Duration = HOLD;

/// A list that lacks every instance which was ready.
#[derive(Debug, Default)]
pub(super) struct Implausible {
    /// How many are missing.
    missing: usize,
    /// Those that have answered since they are missing.
    answering: Vec<InstanceId>,
    /// Idle ones that have not been probed since, or not lately.
    unprobed: Vec<InstanceId>,
    /// True if a job holds one of them, or if this is the first list that lacks it.
    open: bool,
}

impl Implausible {
    /// `None`: the list proves what it proves.
    pub(super) fn of(state: &PoolState, observed: &Observed, policy: &Policy, now: Stamp) -> Option<Self> {
        let listing = observed.listing.as_ref().ok().filter(|listing| listing.complete)?;
        let was_there = |i: &&Instance| !i.is_static() && i.phase == Phase::Ready && is_covered(i, listing);
        let instances = || state.instances.values().map(AsRef::as_ref);
        let listed = |id: &InstanceId| listing.instances.binary_search_by(|l| l.id.cmp(id)).is_ok();
        // One that became ready after the list was begun may not be in it yet.
        let is_lacked = |i: &&Instance| i.missing.is_some() || !is_ready_since(i, listing);
        let missing = instances().filter(was_there).filter(is_lacked).count();
        if missing == 0 || instances().any(|i| listed(&i.id)) {
            return None;
        }
        let is_first = |i: &Instance| i.missing.is_none() && !is_ready_since(i, listing);
        let open = instances().filter(was_there).any(|i| !i.holders.is_empty() || is_first(i));
        let mut found = Self { missing, open, ..Self::default() };
        for instance in instances().filter(was_there).filter(|i| i.is_idle()) {
            let Some(since) = instance.missing.map(|first| first.seen_from(now)) else { continue };
            let answered = observed.healthy.get(&instance.id).filter(|at| at.reached(since));
            let silent = observed.unhealthy.get(&instance.id).filter(|at| at.reached(since));
            match (answered, silent) {
                // The last probe counts.
                (Some(at), silent) if silent.is_none_or(|silent| at.reached(*silent)) => {
                    found.answering.push(instance.id.clone());
                    if now.since(*at) >= policy.timing.absence_interval {
                        found.unprobed.push(instance.id.clone());
                    }
                }
                (None, None) if now.since(since) < WAIT || is_untried(instance, observed) => {
                    found.unprobed.push(instance.id.clone());
                }
                _ => {}
            }
        }
        Some(found)
    }

    /// True if the list does not prove that this instance is absent: it answers, or is about to be probed. What cannot be
    /// probed counts with those that can. What boots or is to end counts also with those that jobs hold, or that were
    /// listed until now: a job on an instance that is gone ends soon.
    pub(super) fn protects(&self, instance: &Instance) -> bool {
        let is_ready = instance.phase == Phase::Ready;
        if is_ready && instance.is_idle() {
            return self.answering.contains(&instance.id) || self.unprobed.contains(&instance.id);
        }
        !self.answering.is_empty() || !self.unprobed.is_empty() || (self.open && !is_ready)
    }

    /// What operators read about it.
    pub(super) fn note(&self) -> Option<Note> {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (missing, answering) = (count(self.missing), count(self.answering.len()));
        (answering > 0).then_some(Note::ListImplausible { missing, answering })
    }

    /// Probes those of which nothing is known, and those that answered, as long as the list lacks them.
    pub(super) fn probe(&self, draft: &mut PlanBuilder<'_>, observed: &Observed, policy: &Policy) {
        let waits = !self.unprobed.is_empty() || !self.answering.is_empty();
        if waits {
            draft.wake_at(draft.now.plus(policy.timing.pass_interval));
        }
        for instance in self.unprobed.clone() {
            let effect = Effect::CheckHealth { instance };
            let is_idle = |i: &Instance| i.is_idle() && i.unreachable.is_none();
            let known = effect.instance().and_then(|id| draft.state().instance(id)).is_some_and(is_idle);
            if known && !draft.has(&effect) {
                act(draft, observed, effect);
            }
        }
    }
}

/// True if this process has no result of a probe yet, as a new keeper or `reap`.
fn is_untried(instance: &Instance, observed: &Observed) -> bool {
    instance.unreachable.is_none() && !observed.failing_calls.contains_key(&instance.id)
}

/// True if the list is of the instance's location, and was begun after its launch.
fn is_covered(instance: &Instance, listing: &Listing) -> bool {
    coverage(instance, listing) == Coverage::Covered
}
