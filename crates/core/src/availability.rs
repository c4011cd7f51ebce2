//! Offering availability: the ways in which a provider can launch, and the last refusal of each.
//!
//! Launches of a pool whose provider names offerings try them in their order. After a refusal all launches skip the
//! offering for some time. Errors that concern no offering (throttling, transient errors, no answer) delay all launches.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::failure::{ErrorClass, Failure};
use super::ids::OfferingName;
use super::policy::Timing;
use super::time::Stamp;

/// What is recorded of a pool's offerings. Empty if the provider has only one way to launch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Availability {
    /// As the provider names them, the preferred one first.
    offerings: Vec<OfferingName>,
    /// The last refusal of each offering that has not been accepted since.
    refusals: BTreeMap<OfferingName, Refusal>,
}

/// Why an offering was refused, and how often in a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The last time.
    pub at: Stamp,
    /// Launches that were under way together count once.
    pub times: u32,
    pub failure: Failure,
}

/// An offering that launches skip, until when, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable {
    pub offering: OfferingName,
    pub refusal: Refusal,
    pub until: Stamp,
}

/// The offering for the next launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// The provider names no offerings.
    Only,
    /// The first one that is available.
    Take(OfferingName),
    /// All `count` are unavailable; this one for the shortest time.
    Wait { first: Unavailable, count: u32 },
}

/// What a refusal means for its offering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blame {
    /// It has no capacity, which changes over time.
    Stock,
    /// It stays unavailable until a limit, a permission or a name is changed.
    Terms,
    /// Nothing: any other offering would be refused as well.
    None,
}

/// The one place where the class of a refusal decides whether its offering becomes unavailable.
///
/// Limits, permissions and even a wrong name often concern one offering only (a limit of one family of machines, a
/// type that one zone does not have), so the others are tried. If it does concern all of them, each is requested once and
/// then the pool waits.
fn blame(class: &ErrorClass) -> Blame {
    match class {
        ErrorClass::NoCapacity { .. } => Blame::Stock,
        ErrorClass::Quota | ErrorClass::Denied | ErrorClass::Invalid | ErrorClass::NotFound => Blame::Terms,
        ErrorClass::Order { .. }
        | ErrorClass::Throttled { .. }
        | ErrorClass::Transient
        | ErrorClass::Unknown => Blame::None,
    }
}

/// True if another offering may be accepted after a refusal of this class.
pub(super) fn concerns_offering(class: &ErrorClass) -> bool {
    blame(class) != Blame::None
}

impl Refusal {
    /// How long its offering is unavailable.
    fn lasts(&self, timing: &Timing) -> Duration {
        match blame(&self.failure.class) {
            Blame::Stock => {
                let factor = 1_u32 << self.times.saturating_sub(1).min(20);
                timing.stockout_backoff.saturating_mul(factor).min(timing.stockout_backoff_max)
            }
            Blame::Terms => timing.quota_backoff,
            Blame::None => Duration::ZERO,
        }
    }
}

impl Availability {
    pub fn is_empty(&self) -> bool {
        self.offerings.is_empty() && self.refusals.is_empty()
    }

    /// True if one was refused and has not been accepted since.
    pub fn has_refusals(&self) -> bool {
        !self.refusals.is_empty()
    }

    /// The preferred one first.
    pub fn offerings(&self) -> &[OfferingName] {
        &self.offerings
    }

    /// The last refusal of the offering, unless it has been accepted since.
    pub fn refusal(&self, offering: &OfferingName) -> Option<&Refusal> {
        self.refusals.get(offering)
    }

    /// The offerings that are unavailable now, in their order.
    pub fn unavailable(&self, timing: &Timing, now: Stamp) -> impl Iterator<Item = Unavailable> {
        self.offerings.iter().filter_map(move |offering| self.unavailable_now(offering, timing, now))
    }

    /// The unavailable offerings that a launch would have preferred to the one that it took.
    pub fn preferred_to(
        &self,
        taken: &OfferingName,
        timing: &Timing,
        now: Stamp,
    ) -> impl Iterator<Item = Unavailable> {
        let preferred = self.offerings.iter().take_while(move |offering| *offering != taken);
        preferred.filter_map(move |offering| self.unavailable_now(offering, timing, now))
    }

    /// The offerings that are available now, in their order.
    pub fn available(&self, timing: &Timing, now: Stamp) -> impl Iterator<Item = OfferingName> {
        let is_free = move |offering: &&OfferingName| self.unavailable_now(offering, timing, now).is_none();
        self.offerings.iter().filter(is_free).cloned()
    }

    fn unavailable_now(&self, offering: &OfferingName, timing: &Timing, now: Stamp) -> Option<Unavailable> {
        let refusal = self.refusals.get(offering)?;
        // A wall clock that was set back a day before a reboot must not turn this into a pause of a day.
        let until = refusal.at.seen_from(now).plus(refusal.lasts(timing));
        let (offering, refusal) = (offering.clone(), refusal.clone());
        (!now.reached(until)).then_some(Unavailable { offering, refusal, until })
    }

    /// The offering for the next launch.
    pub fn choice(&self, timing: &Timing, now: Stamp) -> Choice {
        if self.offerings.is_empty() {
            return Choice::Only;
        }
        let passed: Vec<Unavailable> = self.unavailable(timing, now).collect();
        // Both are in the same order.
        let mut others = passed.iter().map(|p| &p.offering).peekable();
        let free = self.offerings.iter().find(|offering| others.next_if_eq(offering).is_none());
        if let Some(free) = free {
            return Choice::Take(free.clone());
        }
        let count = u32::try_from(passed.len()).unwrap_or(u32::MAX);
        let first = passed.into_iter().min_by_key(|p| now.until(p.until));
        first.map_or(Choice::Only, |first| Choice::Wait { first, count })
    }

    /// Replaces the offerings; refusals of others are forgotten.
    pub(super) fn name(&mut self, named: &[OfferingName]) {
        self.offerings = named.to_vec();
        self.refusals.retain(|offering, _| named.contains(offering));
    }

    /// Makes all available immediately.
    pub(super) fn forgive(&mut self) {
        self.refusals.clear();
    }

    /// A launch of the offering was refused. False if the refusal does not concern the offering.
    pub(super) fn refuse(
        &mut self,
        offering: &OfferingName,
        requested_at: Stamp,
        failure: &Failure,
        at: Stamp,
    ) -> bool {
        if !self.offerings.contains(offering) || blame(&failure.class) == Blame::None {
            return false;
        }
        let times = match self.refusals.get(offering) {
            Some(before) if is_news(before, requested_at) => before.times.saturating_add(1),
            Some(before) => before.times,
            None => 1,
        };
        self.refusals.insert(offering.clone(), Refusal { at, times, failure: failure.clone() });
        true
    }

    /// A launch of the offering was accepted.
    pub(super) fn accept(&mut self, offering: &OfferingName, requested_at: Stamp) {
        if self.refusals.get(offering).is_some_and(|before| is_news(before, requested_at)) {
            self.refusals.remove(offering);
        }
    }
}

/// True if the launch was requested after the refusal. One that was in progress by then adds no information.
fn is_news(before: &Refusal, requested_at: Stamp) -> bool {
    requested_at.is_after(before.at)
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.offering, summary(&self.refusal.failure))
    }
}

/// A refusal as people read it: without the provider's message if there is no capacity.
pub fn summary(failure: &Failure) -> String {
    match failure.class {
        ErrorClass::NoCapacity { .. } => "no capacity".to_owned(),
        ErrorClass::NotFound
        | ErrorClass::Quota
        | ErrorClass::Denied
        | ErrorClass::Invalid
        | ErrorClass::Order { .. }
        | ErrorClass::Throttled { .. }
        | ErrorClass::Transient
        | ErrorClass::Unknown => failure.to_string(),
    }
}

#[cfg(test)]
mod tests;
