//! Counters of a pool, for metrics: what has happened since the pool began.
//!
//! `apply` counts each event, so the counters are part of the recorded state: they survive a restarted keeper and a killed
//! call, and count each event once. Nothing decides by them.

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

/// How many times of each length were seen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// Not cumulative; as many as needed for the longest time.
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

    /// How many times there are.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, bucket| sum.saturating_add(*bucket))
    }

    /// How many times were at most as long as each bound.
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
    /// From the launch to ready.
    #[serde(default, skip_serializing_if = "Histogram::is_empty")]
    pub ready: Histogram,
    /// Launched, but never ready.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed: u64,
    /// Refused by the provider: nothing was created.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused: u64,
}

/// What has happened in a pool since its counters began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// When the first event was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Stamp>,
    /// Grants, by how the job got its instance.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub started: BTreeMap<Start, u64>,
    /// From request to grant.
    #[serde(default, skip_serializing_if = "Histogram::is_empty")]
    pub waits: Histogram,
    /// Grants that the job returned, because it found the instance unusable.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rejected: u64,
    /// Requests that ended without an instance.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub withdrawn: u64,
    /// By offering; an empty name if the provider names none.
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

/// What an event adds.
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
    /// What an event adds that is about to be applied to `state`; `None`: it is not counted.
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
mod tests;
