//! The launch back-off and the circuit breaker: when a launch may be tried again.
//!
//! After a failure, the error's class decides how long to wait. After `breaker_failures` in a row, the pool pauses,
//! then tries a single launch.

use std::time::Duration;

use crate::failure::{ErrorClass, Failure};
use crate::policy::Timing;
use crate::pool::LaunchHealth;
use crate::time::Stamp;

/// What the recent launches allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaunchGate {
    /// Launch without limits.
    Open,
    /// One try: the pool pauses, and its pause was over at `until`.
    Trial { until: Stamp, failures: u32, failure: Failure },
    /// Not before `until`.
    Backoff { until: Stamp, failure: Failure },
    /// Too many failures in a row: not before `until`, then one try.
    Paused { until: Stamp, failures: u32, failure: Failure },
}

/// Judges the health of a pool's launches.
pub fn judge(health: &LaunchHealth, timing: &Timing, now: Stamp) -> LaunchGate {
    let Some((at, failure)) = health.last.as_ref().filter(|_| health.failures > 0) else {
        return LaunchGate::Open;
    };
    // A wall clock that was set back a day before a reboot must not turn this into a pause of a day.
    let at = at.seen_from(now);
    let (failures, failure) = (health.failures, failure.clone());
    let retry = retry_at(&failure.class, failures, at, timing);
    if failures >= timing.breaker_failures.max(1) {
        let pause = at.plus(timing.launch_backoff_max);
        let until = if retry.reached(pause) { retry } else { pause };
        return if now.reached(until) {
            LaunchGate::Trial { until, failures, failure }
        } else {
            LaunchGate::Paused { until, failures, failure }
        };
    }
    if now.reached(retry) { LaunchGate::Open } else { LaunchGate::Backoff { until: retry, failure } }
}

/// When a call that failed for the `failures`-th time in a row may be repeated.
pub fn retry_at(class: &ErrorClass, failures: u32, at: Stamp, timing: &Timing) -> Stamp {
    let doubled = exponential(failures, timing);
    match class {
        ErrorClass::Throttled { until: Some(until) } => {
            // A limit from an earlier boot has expired, whatever the wall clock did in between.
            let (own, until) = (at.plus(doubled), until.seen_from(at));
            if own.reached(until) { own } else { until }
        }
        ErrorClass::Throttled { until: None }
        | ErrorClass::Transient
        | ErrorClass::Unknown
        | ErrorClass::Order { .. } => at.plus(doubled),
        ErrorClass::NoCapacity { .. } => at.plus(doubled.saturating_mul(2).min(timing.launch_backoff_max)),
        // Repeating cannot help until the cause is removed.
        ErrorClass::Quota | ErrorClass::Denied | ErrorClass::Invalid | ErrorClass::NotFound => {
            at.plus(timing.launch_backoff_max)
        }
    }
}

/// When a job's own launch may be repeated after its `failures`-th pause began. Its cause may be the job's alone, or end
/// with another job: no class pauses it for long.
pub fn own_retry_at(class: &ErrorClass, failures: u32, at: Stamp, timing: &Timing) -> Stamp {
    match class {
        ErrorClass::Throttled { .. } => retry_at(class, failures, at, timing),
        ErrorClass::NotFound
        | ErrorClass::NoCapacity { .. }
        | ErrorClass::Quota
        | ErrorClass::Denied
        | ErrorClass::Invalid
        | ErrorClass::Order { .. }
        | ErrorClass::Transient
        | ErrorClass::Unknown => at.plus(exponential(failures, timing)),
    }
}

fn exponential(failures: u32, timing: &Timing) -> Duration {
    let factor = 1_u32 << failures.saturating_sub(1).min(20);
    timing.launch_backoff.saturating_mul(factor).min(timing.launch_backoff_max)
}
