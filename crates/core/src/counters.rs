//! Counters of a pool, for metrics: what has happened since the pool began.
//!
//! [`PoolState::apply`] counts each event, so the counters are part of the recorded state: they survive a restarted keeper and
//! a killed call, and count each event once. Nothing decides by them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::event::{Change, Event};
use super::failure::ErrorClass;
use super::instance::{Answer, DrainReason, Instance, Phase};
use super::pool::PoolState;
use super::start::Start;
use super::time::Stamp;

/// The upper bounds of the buckets of waits and boots, in milliseconds. Recorded histograms have as many buckets, and one
/// more for all longer times.
pub const BOUNDS_MS: [u64; 15] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000,
    3_600_000,
];

/// Offerings with counters of their own; further ones share the last.
const MOST_OFFERINGS: usize = 64;
/// The name of the offerings beyond that.
pub const OTHER_OFFERINGS: &str = "other";

/// A histogram of durations: the number seen of each length.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// The counts of each bucket: not cumulative, and as many as the longest time needs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<u64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sum_ms: u64,
}

impl Histogram {
    fn observe(&mut self, time: Duration) {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_MS.iter().position(|bound| ms <= *bound).unwrap_or(BOUNDS_MS.len());
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] = self.buckets[bucket].saturating_add(1);
        self.sum_ms = self.sum_ms.saturating_add(ms);
    }

    fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, bucket| sum.saturating_add(*bucket))
    }

    /// Each bound with the number of durations that were at most as long.
    pub fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        BOUNDS_MS.iter().enumerate().scan(0_u64, |below, (at, bound)| {
            *below = below.saturating_add(self.buckets.get(at).copied().unwrap_or(0));
            Some((*bound, *below))
        })
    }
}

/// Boots of one offering.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boots {
    /// Times from the launch to ready.
    #[serde(default, skip_serializing_if = "Histogram::is_empty")]
    pub ready: Histogram,
    /// Launched, but never ready.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed: u64,
    /// Refused by the provider: nothing was created.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused: u64,
}

/// The counts of what has happened in a pool since its counters began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Time of the first counted event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Stamp>,
    /// Grants, by how the job got its instance.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub started: BTreeMap<Start, u64>,
    /// Times from request to grant.
    #[serde(default, skip_serializing_if = "Histogram::is_empty")]
    pub waits: Histogram,
    /// Grants that the job returned, because it found the instance unusable.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rejected: u64,
    /// Requests that ended without an instance.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub withdrawn: u64,
    /// Boots by offering; an empty name if the provider names none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub boots: BTreeMap<String, Boots>,
    /// Refused launches, by the class of the failure.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub launch_failures: BTreeMap<String, u64>,
    /// Drained instances, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub drained: BTreeMap<String, u64>,
    /// Static hosts that went out of service.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub out_of_service: u64,
}

/// The addition of an event to the counters.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Count {
    Start(Start, Duration),
    Rejected,
    Withdrawn,
    Ready(String, Duration),
    Failed(Option<String>, &'static str),
    Refused(String, &'static str),
    OutOfService,
}

impl Count {
    /// The addition of an event that is about to be applied to `state`; `None`: it is not counted.
    pub(super) fn of(state: &PoolState, event: &Event) -> Option<Self> {
        match &event.change {
            Change::Granted { attempt, instance } => {
                let request = state.waiting_for(attempt)?;
                let start = Start::on(state.instance(instance)?, request.requested_at, event.at);
                Some(Self::Start(start, event.at.since(request.requested_at)))
            }
            Change::Rejected { .. } => Some(Self::Rejected),
            Change::Withdrawn { .. } => Some(Self::Withdrawn),
            Change::BecameReady { instance } => {
                let booted = state.instance(instance).filter(|i| i.phase == Phase::Checking)?;
                let launched = booted.launch.as_ref()?.requested_at;
                Some(Self::Ready(offering(booted), event.at.since(launched)))
            }
            Change::DrainingBegun { instance, reason } => {
                let drained = state.instance(instance)?;
                let failed =
                    drained.ready.is_none() && drained.launch.is_some() && reason.is_launch_failure();
                Some(Self::Failed(failed.then(|| offering(drained)), drain_word(reason)))
            }
            Change::LaunchAnswered { instance, answer: Answer::Refused { failure, .. }, .. } => {
                Some(Self::Refused(offering(state.instance(instance)?), class_word(&failure.class)))
            }
            Change::OutOfService { .. } => Some(Self::OutOfService),
            Change::PolicySet { .. }
            | Change::GenerationBegun { .. }
            | Change::OfferingsChanged { .. }
            | Change::LaunchIntended { .. }
            | Change::LaunchAnswered { .. }
            | Change::Reached { .. }
            | Change::SuspendIntended { .. }
            | Change::Suspended { .. }
            | Change::ResumeIntended { .. }
            | Change::Adopted { .. }
            | Change::Resized { .. }
            | Change::Readdressed { .. }
            | Change::BecameUnreachable { .. }
            | Change::Requested { .. }
            | Change::StageNotBegun { .. }
            | Change::StageBegun { .. }
            | Change::Rechecked { .. }
            | Change::FailedEarly { .. }
            | Change::OrderRefused { .. }
            | Change::Released { .. }
            | Change::SlotFreed { .. }
            | Change::ImagesFound { .. }
            | Change::ImagesRemoved { .. }
            | Change::JobEnded { .. }
            | Change::CleaningBegun { .. }
            | Change::Cleaned { .. }
            | Change::ReturnedToService { .. }
            | Change::Unbound { .. }
            | Change::MissingFromList { .. }
            | Change::Located { .. }
            | Change::ListedAgain { .. }
            | Change::Forgotten { .. }
            | Change::RecordDropped { .. }
            | Change::PoolDrained
            | Change::PoolResumed => None,
        }
    }
}

impl Counters {
    pub fn is_empty(&self) -> bool {
        self.since.is_none()
    }

    pub(super) fn add(&mut self, count: Count, at: Stamp) {
        self.since.get_or_insert(at);
        match count {
            Count::Start(start, wait) => {
                increment(self.started.entry(start).or_default());
                self.waits.observe(wait);
            }
            Count::Rejected => increment(&mut self.rejected),
            Count::Withdrawn => increment(&mut self.withdrawn),
            Count::Ready(offering, took) => self.boots_of(offering).ready.observe(took),
            Count::Failed(offering, reason) => {
                if let Some(offering) = offering {
                    increment(&mut self.boots_of(offering).failed);
                }
                increment(self.drained.entry(reason.to_owned()).or_default());
            }
            Count::Refused(offering, class) => {
                increment(&mut self.boots_of(offering).refused);
                increment(self.launch_failures.entry(class.to_owned()).or_default());
            }
            Count::OutOfService => increment(&mut self.out_of_service),
        }
    }

    /// An operator may change the offerings as often as he likes: the number of names stays bounded.
    fn boots_of(&mut self, offering: String) -> &mut Boots {
        let is_full = self.boots.len() >= MOST_OFFERINGS && !self.boots.contains_key(&offering);
        self.boots.entry(if is_full { OTHER_OFFERINGS.to_owned() } else { offering }).or_default()
    }
}

fn offering(instance: &Instance) -> String {
    instance.offering().map_or_else(String::new, ToString::to_string)
}

fn increment(count: &mut u64) {
    *count = count.saturating_add(1);
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The value of the label `class`.
pub fn class_word(class: &ErrorClass) -> &'static str {
    match class {
        ErrorClass::NotFound => "not-found",
        ErrorClass::NoCapacity { .. } => "no-capacity",
        ErrorClass::Quota => "quota",
        ErrorClass::Denied => "denied",
        ErrorClass::Invalid | ErrorClass::Order { .. } => "invalid",
        ErrorClass::Throttled { .. } => "throttled",
        ErrorClass::Transient => "transient",
        ErrorClass::Unknown => "unknown",
    }
}

/// The value of the label `reason`: the name in the journal.
pub fn drain_word(reason: &DrainReason) -> &'static str {
    match reason {
        DrainReason::UsedUp => "used-up",
        DrainReason::Surplus => "surplus",
        DrainReason::Expired => "expired",
        DrainReason::MadeRoom => "made-room",
        DrainReason::ByOperator => "by-operator",
        DrainReason::NeverReady => "never-ready",
        DrainReason::NotReady { .. } => "not-ready",
        DrainReason::Stopped => "stopped",
        DrainReason::Vanished => "vanished",
        DrainReason::Broken { .. } => "broken",
        DrainReason::Unresponsive { .. } => "unresponsive",
        DrainReason::Rebooted => "rebooted",
        DrainReason::Unaccounted => "unaccounted",
        DrainReason::LaunchedAfterRefusal => "launched-after-refusal",
        DrainReason::Announced { .. } => "announced",
        DrainReason::BeginsNoStage { .. } => "begins-no-stage",
        DrainReason::FailedCheck { .. } => "failed-check",
        DrainReason::Unfit { .. } => "unfit",
        DrainReason::FailsEarly { .. } => "fails-early",
        DrainReason::Abandoned => "abandoned",
        DrainReason::NotSuspended { .. } => "not-suspended",
        DrainReason::NotResumed { .. } => "not-resumed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::End;
    use crate::ids::{AttemptName, OfferingName};
    use crate::instance::Release;
    use crate::notation::{NOW, World, attempt, instance, world};

    const SECOND: Duration = Duration::from_secs(1);

    /// The counters after a change `after` now.
    fn after(world: &mut World, after: Duration, change: Change) -> Counters {
        world.state.apply(&change.at(NOW.plus(after))).expect("it fits");
        Counters::clone(&world.state.counters)
    }

    fn granted(job: u64, short: &str) -> Change {
        Change::Granted { attempt: attempt(job), instance: instance(short) }
    }

    fn started(line: &str, short: &str) -> Vec<(Start, u64)> {
        let mut world = world(line);
        let before = world.state.counters.started.clone();
        let counters = after(&mut world, SECOND, granted(8, short));
        let new = |(start, n): (&Start, &u64)| (*start, n - before.get(start).copied().unwrap_or(0));
        counters.started.iter().map(new).filter(|(_, n)| *n > 0).collect()
    }

    #[test]
    fn a_job_starts_warm_after_a_boot_or_after_another_job() {
        assert_eq!(started("idle 5m; waits 8", "i1"), [(Start::Warm, 1)]);
        let mut booted = world("checking 5s; waits 8");
        after(&mut booted, SECOND, Change::BecameReady { instance: instance("i1") });
        let counters = after(&mut booted, SECOND * 2, granted(8, "i1"));
        assert_eq!(counters.started.get(&Start::Booted), Some(&1), "{counters:?}");
        let mut shared = world("held 5m by 7; waits 8");
        let release = Release { how: End::CleanedUp, used: true, closing: false };
        after(&mut shared, SECOND, Change::Released { attempt: attempt(7), release });
        let counters = after(&mut shared, SECOND * 2, granted(8, "i1"));
        assert_eq!(counters.started.get(&Start::Freed), Some(&1), "{counters:?}");
    }

    #[test]
    fn a_wait_is_counted_from_request_to_grant() {
        let mut world = world("idle 5m; waits 8");
        let requested = world.state.waiting_for(&attempt(8)).expect("it waits").requested_at;
        let waited = NOW.plus(SECOND).since(requested);
        let counters = after(&mut world, SECOND, granted(8, "i1"));
        assert_eq!(counters.waits.count(), 1);
        assert_eq!(u128::from(counters.waits.sum_ms), waited.as_millis());
    }

    #[test]
    fn boots_are_counted_by_offering_and_result() {
        let mut one = world("offerings 2 | checking 5s as c2");
        let counters = after(&mut one, SECOND, Change::BecameReady { instance: instance("i1") });
        let boots = counters.boots.get("c2").expect("its offering");
        assert_eq!((boots.ready.count(), boots.failed, boots.refused), (1, 0, 0));
        let drained = Change::DrainingBegun { instance: instance("i1"), reason: DrainReason::Surplus };
        let counters = after(&mut one, SECOND, drained);
        assert_eq!(counters.boots["c2"].failed, 0, "it was ready");
        assert_eq!(counters.drained.get("surplus"), Some(&1));

        let mut other = world("booting 5m");
        let drained = Change::DrainingBegun { instance: instance("i1"), reason: DrainReason::NeverReady };
        let counters = after(&mut other, SECOND, drained);
        assert_eq!((counters.boots[""].failed, counters.drained["never-ready"]), (1, 1));

        for (line, reason, why) in [
            ("booting 5m", DrainReason::ByOperator, "it was no longer wanted"),
            ("idle 5m", DrainReason::Stopped, "it had been ready"),
        ] {
            let mut one = world(line);
            let before = one.state.counters.boots.clone();
            let counters =
                after(&mut one, SECOND, Change::DrainingBegun { instance: instance("i1"), reason });
            assert_eq!(counters.boots, before, "{why}");
        }

        let refused = world("offerings 2 | refused 5s as c2").state.counters;
        assert_eq!(refused.boots["c2"].refused, 1);
        assert_eq!(refused.launch_failures.get("no-capacity"), Some(&1));
    }

    #[test]
    fn an_event_that_does_not_fit_counts_nothing() {
        let mut world = world("idle 5m; waits 8");
        let before = world.state.counters.clone();
        for change in [
            granted(9, "i1"),
            granted(8, "i9"),
            Change::Rejected { attempt: AttemptName::new("a9"), message: String::new() },
            Change::Withdrawn { attempt: AttemptName::new("a9"), how: End::Unused },
        ] {
            world.state.apply(&change.at(NOW)).expect_err("it does not fit");
            assert_eq!(world.state.counters, before);
        }
    }

    #[test]
    fn an_instance_that_responds_again_has_not_booted_again() {
        let mut world = world("idle 5m");
        let before = world.state.counters.clone();
        let reason = String::new();
        after(&mut world, SECOND, Change::BecameUnreachable { instance: instance("i1"), reason });
        let counters = after(&mut world, SECOND, Change::BecameReady { instance: instance("i1") });
        assert_eq!(counters, *before);
    }

    #[test]
    fn the_number_of_offerings_is_bounded() {
        let mut counters = Counters::default();
        for number in 0..200 {
            let name = OfferingName::new(format!("c{number}")).to_string();
            counters.add(Count::Ready(name, SECOND), NOW);
        }
        assert_eq!(counters.boots.len(), MOST_OFFERINGS + 1);
        let all: u64 = counters.boots.values().map(|boots| boots.ready.count()).sum();
        assert_eq!(all, 200);
    }

    #[test]
    fn a_histogram_has_each_time_in_one_bucket() {
        let mut histogram = Histogram::default();
        for ms in [0, 50, 51, 3_600_000, 3_600_001, u64::MAX] {
            histogram.observe(Duration::from_millis(ms));
        }
        let cumulative: Vec<(u64, u64)> = histogram.cumulative().collect();
        assert_eq!(cumulative.first(), Some(&(50, 2)));
        assert_eq!(cumulative.get(1), Some(&(100, 3)));
        assert_eq!(cumulative.last(), Some(&(3_600_000, 4)));
        assert_eq!(histogram.count(), 6);
        assert_eq!(histogram.sum_ms, u64::MAX, "it saturates");
    }
}
