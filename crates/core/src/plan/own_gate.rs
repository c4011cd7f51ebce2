//! When the next launch of a job's own instance is due: by its own refusals, not by those of other launches.

use super::backoff;
use crate::availability::Availability;
use crate::failure::Failure;
use crate::ids::OfferingName;
use crate::own_launch::OwnLaunches;
use crate::policy::Timing;
use crate::time::Stamp;

/// When the next launch of a job's own instance is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OwnGate {
    /// Now, with this offering; `None`: the provider names no offerings.
    Open(Option<OfferingName>),
    /// After a pause.
    Wait { until: Stamp, failure: Failure },
}

/// Each available offering once, in their order; then a pause, which doubles.
pub(super) fn gate(own: &OwnLaunches, availability: &Availability, timing: &Timing, now: Stamp) -> OwnGate {
    let mut free = availability.available(timing, now);
    let Some((at, failure)) = own.last() else { return OwnGate::Open(free.next()) };
    if let Some(next) = availability.available(timing, now).find(|offering| own.is_next(Some(offering))) {
        return OwnGate::Open(Some(next));
    }
    // A wall clock that was set back a day before a reboot must not turn this into a pause of a day.
    let at = at.seen_from(now);
    let until = backoff::own_retry_at(&failure.class, own.pauses().saturating_add(1), at, timing);
    if now.reached(until) {
        return OwnGate::Open(free.next());
    }
    OwnGate::Wait { until, failure: failure.clone() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::failure::ErrorClass;
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
                    gate(&own, &availability, &timing, NOW.plus(Duration::from_mins(9))),
                    open(name),
                    "{round}"
                );
                let offering = OfferingName::new(name);
                own.intended(Some(&offering));
                own.refused(Some(&offering), &failure(ErrorClass::Quota), NOW);
            }
            let until = after(pause);
            let waits = OwnGate::Wait { until, failure: failure(ErrorClass::Quota) };
            assert_eq!(gate(&own, &availability, &timing, after(pause - 1)), waits, "{round}");
            assert_eq!(gate(&own, &availability, &timing, until), open("spot"), "{round}");
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
            let OwnGate::Wait { until, .. } = gate(&own, &availability, &timing, after(1)) else {
                panic!("{class}")
            };
            assert_eq!(until, expected, "{class}");
        }
        let mut none = OwnLaunches::default();
        assert_eq!(gate(&none, &Availability::default(), &timing, NOW), OwnGate::Open(None));
        none.refused(None, &failure(ErrorClass::Quota), NOW);
        let OwnGate::Wait { until, .. } = gate(&none, &Availability::default(), &timing, after(1)) else {
            panic!()
        };
        assert_eq!(until, after(5), "a provider without offerings");
    }

    #[test]
    fn an_offering_that_the_pool_skips_is_skipped_here_too() {
        let (mut availability, timing) = (Availability::default(), Timing::default());
        availability.name(&offerings(&["spot", "on-demand"]));
        let none_left = failure(ErrorClass::NoCapacity { scope: "spot".to_owned() });
        availability.refuse(&OfferingName::new("spot"), NOW, &none_left, NOW);
        let own = OwnLaunches::default();
        let first = gate(&own, &availability, &timing, after(1));
        assert_eq!(first, OwnGate::Open(Some(OfferingName::new("on-demand"))));
    }
}
