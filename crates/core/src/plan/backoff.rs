//! The launch back-off and the circuit breaker: when a launch may be tried again.
//!
//! After a failure, the error's class decides how long to wait. After
//! [`breaker_failures`](crate::policy::Timing::breaker_failures) in a row, the pool pauses, then tries a single launch.

use std::time::Duration;

use crate::availability::Availability;
use crate::failure::{ErrorClass, Failure};
use crate::ids::OfferingName;
use crate::job::OwnLaunches;
use crate::policy::Timing;
use crate::pool::LaunchHealth;
use crate::time::Stamp;

/// The gate for launches, as the recent ones leave it: the answer of [`judge`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LaunchGate {
    /// Launch without limits.
    Open,
    /// One try: the pool pauses, and its pause was over at `until`.
    Trial { until: Stamp, failures: u32, failure: Failure },
    /// No launch before `until`.
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
    let failures = health.failures;
    let failure = failure.clone();
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

/// Time at which a call that failed for the `failures`-th time in a row may be repeated.
pub fn retry_at(class: &ErrorClass, failures: u32, at: Stamp, timing: &Timing) -> Stamp {
    let doubled = exponential(failures, timing);
    match class {
        ErrorClass::Throttled { until: Some(until) } => {
            // A limit from an earlier boot has expired, whatever the wall clock did in between.
            let own = at.plus(doubled);
            let until = until.seen_from(at);
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

/// Time at which a job's own launch may be repeated after its `failures`-th pause began. The cause of its failure may be
/// the job's alone, or end with another job: no class pauses it for long.
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

// When the next launch of a job's own instance is due: by its own refusals, not by those of other launches.

/// The gate for the next launch of a job's own instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OwnGate {
    /// Now, with this offering; `None`: the provider names no offerings.
    Open(Option<OfferingName>),
    /// After a pause.
    Wait { until: Stamp, failure: Failure },
}

/// The gate of a job's own launches: each available offering once, in their order; then a pause, which doubles.
pub(super) fn own_gate(
    own: &OwnLaunches,
    availability: &Availability,
    timing: &Timing,
    now: Stamp,
) -> OwnGate {
    let mut free = availability.available(timing, now);
    let Some((at, failure)) = own.last() else { return OwnGate::Open(free.next()) };
    if let Some(next) = availability.available(timing, now).find(|offering| own.is_next(Some(offering))) {
        return OwnGate::Open(Some(next));
    }
    // A wall clock that was set back a day before a reboot must not turn this into a pause of a day.
    let at = at.seen_from(now);
    let until = own_retry_at(&failure.class, own.pauses().saturating_add(1), at, timing);
    if now.reached(until) {
        return OwnGate::Open(free.next());
    }
    OwnGate::Wait { until, failure: failure.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notation::NOW;

    fn offerings(names: &[&str]) -> Vec<OfferingName> {
        names.iter().copied().map(OfferingName::new).collect()
    }

    fn failure(class: ErrorClass) -> Failure {
        Failure { class, message: "no".to_owned() }
    }

    fn after(seconds: u64) -> Stamp {
        NOW.plus(Duration::from_secs(seconds))
    }

    #[test]
    fn each_offering_is_tried_once_before_a_pause_that_doubles() {
        let mut availability = Availability::default();
        availability.name(&offerings(&["spot", "on-demand"]));
        let timing = Timing::default();
        let mut own = OwnLaunches::default();
        let open = |name: &str| OwnGate::Open(Some(OfferingName::new(name)));
        for (round, pause) in [5, 10, 20].into_iter().enumerate() {
            for name in ["spot", "on-demand"] {
                assert_eq!(
                    own_gate(&own, &availability, &timing, NOW.plus(Duration::from_mins(9))),
                    open(name),
                    "{round}"
                );
                let offering = OfferingName::new(name);
                own.intended(Some(&offering));
                own.refused(Some(&offering), &failure(ErrorClass::Quota), NOW);
            }
            let until = after(pause);
            let waits = OwnGate::Wait { until, failure: failure(ErrorClass::Quota) };
            assert_eq!(own_gate(&own, &availability, &timing, after(pause - 1)), waits, "{round}");
            assert_eq!(own_gate(&own, &availability, &timing, until), open("spot"), "{round}");
        }
    }

    #[test]
    fn what_concerns_no_offering_pauses_the_job_whatever_is_left_to_try() {
        let mut availability = Availability::default();
        availability.name(&offerings(&["spot", "on-demand"]));
        let timing = Timing::default();
        let until = after(90);
        for (class, expected) in [
            (ErrorClass::Transient, after(5)),
            (ErrorClass::Throttled { until: Some(until) }, until),
            (ErrorClass::Throttled { until: None }, after(5)),
        ] {
            let mut own = OwnLaunches::default();
            own.intended(Some(&OfferingName::new("spot")));
            own.refused(Some(&OfferingName::new("spot")), &failure(class.clone()), NOW);
            let OwnGate::Wait { until, .. } = own_gate(&own, &availability, &timing, after(1)) else {
                panic!("{class}")
            };
            assert_eq!(until, expected, "{class}");
        }
        let mut none = OwnLaunches::default();
        assert_eq!(own_gate(&none, &Availability::default(), &timing, NOW), OwnGate::Open(None));
        none.refused(None, &failure(ErrorClass::Quota), NOW);
        let OwnGate::Wait { until, .. } = own_gate(&none, &Availability::default(), &timing, after(1)) else {
            panic!()
        };
        assert_eq!(until, after(5), "a provider without offerings");
    }

    #[test]
    fn an_offering_that_the_pool_skips_is_skipped_here_too() {
        let mut availability = Availability::default();
        let timing = Timing::default();
        availability.name(&offerings(&["spot", "on-demand"]));
        let none_left = failure(ErrorClass::NoCapacity { scope: "spot".to_owned() });
        availability.refuse(&OfferingName::new("spot"), NOW, &none_left, NOW);
        let own = OwnLaunches::default();
        let first = own_gate(&own, &availability, &timing, after(1));
        assert_eq!(first, OwnGate::Open(Some(OfferingName::new("on-demand"))));
    }
}
