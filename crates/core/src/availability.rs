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

/// The record of a pool's offerings, with the last [`Refusal`] of each. Empty if the provider has only one way to launch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Availability {
    /// The offerings as the provider names them, the preferred one first.
    offerings: Vec<OfferingName>,
    /// The last refusal of each offering that has not been accepted since.
    refusals: BTreeMap<OfferingName, Refusal>,
}

/// The last refusal of an offering, and the number of refusals in a row.
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

/// The meaning of a refusal for its offering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blame {
    /// The offering has no capacity, which changes over time.
    Stock,
    /// The offering stays unavailable until a limit, a permission or a name is changed.
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
    /// The time for which the refused offering is unavailable.
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
        let offering = offering.clone();
        let refusal = refusal.clone();
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
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::notation::{NOW, ago, failure, world};

    fn at(seconds: u64) -> Stamp {
        NOW.plus(Duration::from_secs(seconds))
    }

    fn named(count: u32) -> Availability {
        world(&format!("offerings {count} |")).state.availability
    }

    fn offering(number: u32) -> OfferingName {
        OfferingName::new(format!("c{number}"))
    }

    fn stock_out() -> Failure {
        failure(ErrorClass::NoCapacity { scope: "zone b".into() })
    }

    /// Number of seconds for which an offering is unavailable that was refused like this now, for the `times`-th time.
    fn lasts(class: &ErrorClass, times: u32) -> Option<u64> {
        let mut availability = named(1);
        for time in 1..=u64::from(times) {
            let moment = at(time);
            // Requested a moment before the answer, and after the refusal before.
            let requested_at = Stamp { uptime_ms: moment.uptime_ms - 500, ..moment };
            availability.refuse(&offering(1), requested_at, &failure(class.clone()), moment);
        }
        let now = at(u64::from(times));
        let passed = availability.unavailable(&Timing::default(), now).next();
        passed.map(|passed| now.until(passed.until).as_secs())
    }

    #[test]
    fn the_class_of_a_refusal_says_for_how_long_its_offering_is_passed_over() {
        let scope = "zone b".to_owned();
        for (class, waits) in [
            // After the first refusal in a row, the second, … the fortieth.
            (ErrorClass::NoCapacity { scope }, [120, 240, 480, 960, 1800, 1800].map(Some)),
            (ErrorClass::Quota, [Some(900); 6]),
            (ErrorClass::Denied, [Some(900); 6]),
            (ErrorClass::Invalid, [Some(900); 6]),
            (ErrorClass::NotFound, [Some(900); 6]),
            (ErrorClass::Throttled { until: None }, [None; 6]),
            (ErrorClass::Transient, [None; 6]),
            (ErrorClass::Unknown, [None; 6]),
        ] {
            for (times, wait) in [1, 2, 3, 4, 5, 40].into_iter().zip(waits) {
                assert_eq!(lasts(&class, times), wait, "{class:?} for the {times}th time");
            }
        }
    }

    #[test]
    fn refusals_of_launches_that_were_under_way_together_count_once() {
        let mut availability = named(1);
        for answered in [2, 3, 4] {
            assert!(availability.refuse(&offering(1), at(0), &stock_out(), at(answered)));
        }
        let refusal = availability.refusal(&offering(1)).unwrap();
        assert_eq!((refusal.times, refusal.at), (1, at(4)), "the pause counts from the last of them");
        availability.refuse(&offering(1), at(200), &stock_out(), at(201));
        assert_eq!(availability.refusal(&offering(1)).unwrap().times, 2);
    }

    #[test]
    fn a_success_ends_the_row_unless_it_was_asked_for_before_the_refusal() {
        let mut availability = named(2);
        availability.refuse(&offering(1), at(0), &stock_out(), at(2));
        availability.accept(&offering(1), at(0));
        availability.accept(&offering(1), at(2));
        availability.accept(&offering(2), at(3));
        assert_eq!(availability.refusal(&offering(1)).map(|r| r.times), Some(1));
        availability.accept(&offering(1), at(3));
        assert_eq!(availability.refusal(&offering(1)), None);
    }

    #[test]
    fn the_first_that_is_not_passed_over_is_taken_and_else_the_shortest_wait() {
        let chosen = |text: &str| match world(text).state.availability.choice(&Timing::default(), NOW) {
            Choice::Only => "the only way".to_owned(),
            Choice::Take(offering) => offering.to_string(),
            Choice::Wait { first, count } => format!("{first}, {:?} of {count}", NOW.until(first.until)),
        };
        for (text, choice) in [
            ("", "the only way"),
            ("offerings 3 |", "c1"),
            ("offerings 3, out c1 119s |", "c2"),
            ("offerings 3, out c1 120s |", "c1"),
            ("offerings 3, out c1 3m 2 |", "c2"),
            ("offerings 3, out c2 1s |", "c1"),
            ("offerings 3, out c1 1s, quota c2 14m |", "c3"),
            ("offerings 3, out c1 1s, quota c2 14m, out c3 0s |", "c2: quota reached, 60s of 3"),
            ("offerings 2, out c1 100s, out c2 100s |", "c1: no capacity, 20s of 2"),
            ("offerings 1, out c9 1s |", "c1"),
        ] {
            assert_eq!(chosen(text), choice, "`{text}`");
        }
    }

    #[test]
    fn a_launch_would_have_preferred_the_unavailable_ones_before_its_own() {
        for (text, taken, expected) in [
            ("offerings 3, out c1 1s, quota c2 1s |", 3, "c1 c2"),
            ("offerings 3, out c1 1s, out c3 1s |", 2, "c1"),
            ("offerings 3, out c1 3m, out c2 1s |", 3, "c2"),
            ("offerings 3, out c2 1s |", 1, ""),
        ] {
            let availability = world(text).state.availability;
            let taken = offering(taken);
            let timing = Timing::default();
            let preferred = availability.preferred_to(&taken, &timing, NOW);
            let names: Vec<_> = preferred.map(|passed| passed.offering.to_string()).collect();
            assert_eq!(names.join(" "), expected, "`{text}`, taken: {taken}");
        }
    }

    #[test]
    fn what_the_provider_names_no_more_is_forgotten() {
        let mut availability = world("offerings 3, out c1 1s, out c3 1s |").state.availability;
        availability.name(&[offering(3), offering(4)]);
        assert_eq!(availability.refusal(&offering(1)), None);
        assert!(availability.refusal(&offering(3)).is_some());
        assert!(
            !availability.refuse(&offering(1), NOW, &stock_out(), NOW),
            "a late answer brings nothing back"
        );
        assert!(availability.has_refusals());
        availability.forgive();
        assert!(!availability.has_refusals() && !availability.is_empty());
        availability.name(&[]);
        assert!(availability.is_empty());
    }

    #[test]
    fn a_clock_that_was_set_back_before_a_reboot_makes_no_pause_of_a_day() {
        let availability = world("offerings 1, out c1 1s |").state.availability;
        let rebooted = Stamp {
            wall_ms: NOW.wall_ms - 86_400_000,
            boot: crate::time::BootId(8),
            uptime_ms: 90_000,
            ..NOW
        };
        let passed = availability.unavailable(&Timing::default(), rebooted).next().unwrap();
        assert_eq!(rebooted.until(passed.until), Duration::from_secs(30));
        assert_eq!(availability.unavailable(&Timing::default(), at(120)).next(), None);
        let mut accepted = availability;
        accepted.accept(&offering(1), rebooted);
        assert_eq!(accepted.refusal(&offering(1)), None);
    }

    #[test]
    fn no_number_of_refusals_overflows() {
        let timing = Timing {
            stockout_backoff: Duration::MAX,
            stockout_backoff_max: Duration::MAX,
            ..Timing::default()
        };
        for times in [0, 1, 32, u32::MAX] {
            let refusal = Refusal { at: ago(Duration::ZERO), times, failure: stock_out() };
            assert_eq!(refusal.lasts(&timing), Duration::MAX);
        }
    }

    #[test]
    fn availability_survives_the_snapshot_and_leaves_no_trace_without_offerings() {
        let state = world("offerings 2, out c1 1s | booting 5s as c2").state;
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<crate::pool::PoolState>(&text).unwrap(), state);
        let without = serde_json::to_string(&world("booting 5s").state).unwrap();
        assert!(!without.contains("availability") && !without.contains("offering"), "{without}");
    }
}
