//! A complete list that lacks every instance at once, although they still answer.
//!
//! A wrong filter, a replica that starts empty, or a program that lost its file reads as if all instances were gone. Replacing
//! them would double the pool. So before such a list proves an absence, the idle instances are probed: it does not count as
//! long as they answer. One that does not answer is absent as always.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::health::HOLD;
use super::observed::Observed;
use super::reconcile::{act, is_ready_since};
use super::table::Unrecorded;
use super::{Effect, PlanBuilder};
use crate::attempt::AttemptSeen;
use crate::ids::{AttemptName, Generation, InstanceId, Location, OwnerId};
use crate::instance::{Instance, Phase};
use crate::inventory::{Listing, Tags};
use crate::policy::Policy;
use crate::pool::PoolState;
use crate::report::{Note, WaitingOn};
use crate::time::Stamp;

/// The time that an absence waits for a probe that tells nothing, as during a fault on the runner host.
const WAIT: Duration = HOLD;

/// A list that lacks every instance which was ready.
#[derive(Debug, Default)]
pub(super) struct Implausible {
    /// Number of missing instances.
    missing: usize,
    /// Missing instances that have answered since.
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

    /// The note for operators about an implausible list.
    pub(super) fn note(&self) -> Option<Note> {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let missing = count(self.missing);
        let answering = count(self.answering.len());
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

// Whether a list covers an instance's location.
//
// Credentials, a profile or a region can change. Then the provider answers with complete lists of another location,
// and lacks every instance that was launched before. Those instances still exist, and cost money.

/// The relation of a list's location to that of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coverage {
    Covered,
    /// The list was taken in another location.
    Elsewhere,
    /// The location of the list is unknown.
    Unknown,
}

pub(super) fn coverage(instance: &Instance, listing: &Listing) -> Coverage {
    match &listing.location {
        None => Coverage::Unknown,
        Some(here) if instance.is_outside(here) => Coverage::Elsewhere,
        Some(_) => Coverage::Covered,
    }
}

/// True if the provider now answers for another location than the instance's: no call of its concerns the instance.
pub(super) fn is_elsewhere(instance: &Instance, observed: &Observed) -> bool {
    observed.listing.as_ref().is_ok_and(|listing| coverage(instance, listing) == Coverage::Elsewhere)
}

/// The pool's instances in another location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Elsewhere {
    instances: u32,
    /// The location of the first of them.
    location: Location,
    /// The location of the list; without one, that of the last list or launch.
    here: Location,
}

impl Elsewhere {
    pub(super) fn find(state: &PoolState, observed: &Observed) -> Option<Self> {
        let listed = observed.listing.as_ref().ok().and_then(|listing| listing.location.as_ref());
        let here = listed.or(state.location.as_ref())?;
        let mut outside = state.instances.values().filter(|instance| instance.is_outside(here));
        let location = outside.next()?.location.clone()?;
        let instances = u32::try_from(outside.count()).unwrap_or(u32::MAX).saturating_add(1);
        Some(Self { instances, location, here: here.clone() })
    }

    /// The reason why launches wait.
    pub(super) fn waiting_on(&self) -> WaitingOn {
        let Self { instances, location, here } = self.clone();
        WaitingOn::Elsewhere { instances, location, here }
    }

    /// The note for operators about the list's location.
    pub(super) fn note(&self) -> Note {
        let Self { instances, location, here } = self.clone();
        Note::Elsewhere { instances, location, here }
    }
}

/// The note for operators about a list whose location is unknown.
pub(super) fn unknown(state: &PoolState, observed: &Observed) -> Option<Note> {
    let listing = observed.listing.as_ref().ok().filter(|listing| listing.location.is_none())?;
    let listed = |id: &InstanceId| listing.instances.binary_search_by(|l| l.id.cmp(id)).is_ok();
    let missing = state.instances.keys().filter(|id| !listed(id)).count();
    let instances = u32::try_from(missing).unwrap_or(u32::MAX);
    (instances > 0).then_some(Note::LocationUnknown { instances })
}

// Classifies listed instances without a record by their owner.

/// The launches that this state directory has recorded, by which [`Unrecorded`] instances are
/// classified.
#[derive(Debug, Clone, Copy)]
pub struct KnownLaunches<'a> {
    pub recorded: &'a PoolState,
    pub owner: &'a OwnerId,
    /// Generations that began in this directory.
    pub generations: &'a BTreeSet<Generation>,
    pub attempts: &'a BTreeMap<AttemptName, AttemptSeen>,
}

impl<'a> KnownLaunches<'a> {
    pub(super) fn seen_by(recorded: &'a PoolState, observed: &'a Observed) -> Self {
        let Observed { owner, generations, attempts, .. } = observed;
        Self { recorded, owner, generations, attempts }
    }

    /// Classifies an instance without a record by its [`Tags`].
    pub fn classify(&self, id: &InstanceId, tags: Option<&Tags>) -> Unrecorded {
        let Some(tags) = tags else { return Unrecorded::Static };
        if tags.owner != *self.owner {
            return Unrecorded::Foreign;
        }
        let highest = match self.recorded.generations.get(&tags.generation) {
            Some(highest) => *highest,
            // Begun here, but not yet in this pool's journal: no number was issued.
            None if self.generations.contains(&tags.generation) => 0,
            None => return Unrecorded::Stranger,
        };
        if tags.number > highest {
            return Unrecorded::Stranger;
        }
        if self.is_named(id) { Unrecorded::OursHeld } else { Unrecorded::Ours }
    }

    /// True if an open attempt's directory names it. Then it is in use, whatever the journal contains.
    fn is_named(&self, id: &InstanceId) -> bool {
        self.attempts.values().any(|a| a.closed.is_none() && a.instance.as_ref() == Some(id))
    }
}
