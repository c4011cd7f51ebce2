//! Launches whose pods have no node yet, or are being given up.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::time::Stamp;
use greenroom_ports::clock::Clock;
use greenroom_ports::provider::ProviderError;

use super::lost::ScaleUp;

/// How often the events of a waiting pod are read, for the word of an autoscaler.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Longer than any launch call takes.
const RETENTION: Duration = Duration::from_mins(30);

/// By the token of the launch, as pods show it.
pub(super) struct Launches {
    clock: Rc<dyn Clock>,
    all: RefCell<BTreeMap<String, Launch>>,
}

#[derive(Debug, Clone)]
struct Launch {
    begun: Stamp,
    /// Since when it has been seen without a node.
    waits_since: Option<Stamp>,
    checked: Option<Stamp>,
    /// Why it is given up; the pod is being deleted.
    refused: Option<ProviderError>,
}

impl std::fmt::Debug for Launches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Launches").field("all", &self.all).finish_non_exhaustive()
    }
}

impl Launches {
    pub(super) fn new(clock: Rc<dyn Clock>) -> Self {
        Self { clock, all: RefCell::default() }
    }

    /// Records a launch that the API server has accepted. A repeat continues it.
    pub(super) fn begin(&self, token: &str) {
        let now = self.clock.now();
        let mut all = self.all.borrow_mut();
        all.retain(|_, launch| now.since(launch.begun) < RETENTION);
        let fresh = Launch { begun: now, waits_since: None, checked: None, refused: None };
        all.entry(token.to_owned()).or_insert(fresh).begun = now;
    }

    /// Records that a list shows its pod without a node.
    pub(super) fn note_waiting(&self, token: &str) {
        let now = self.clock.now();
        if let Some(launch) = self.all.borrow_mut().get_mut(token) {
            launch.waits_since.get_or_insert(now);
        }
    }

    /// True if it is being given up.
    pub(super) fn is_refused(&self, token: &str) -> bool {
        self.all.borrow().get(token).is_some_and(|launch| launch.refused.is_some())
    }

    /// True if it is time to read the pod and its events.
    pub(super) fn is_due(&self, token: &str, within: Duration) -> bool {
        let now = self.clock.now();
        self.all.borrow().get(token).is_some_and(|launch| {
            let waited = launch.waits_since.map(|since| now.since(since)).unwrap_or_default();
            let checked = launch.checked.is_none_or(|at| now.since(at) >= CHECK_INTERVAL.min(within));
            launch.refused.is_some() || (checked && waited >= CHECK_INTERVAL.min(within))
        })
    }

    /// Records that the pod and its events were read; true if the launch is to be given up.
    pub(super) fn judge(&self, token: &str, said: ScaleUp, within: Duration) -> bool {
        let now = self.clock.now();
        let mut all = self.all.borrow_mut();
        let Some(launch) = all.get_mut(token) else { return false };
        launch.checked = Some(now);
        match said {
            ScaleUp::Impossible => true,
            ScaleUp::Triggered => false,
            ScaleUp::Unknown => launch.waits_since.is_some_and(|since| now.since(since) >= within),
        }
    }

    /// Records why it is given up.
    pub(super) fn refuse(&self, token: &str, error: ProviderError) {
        if let Some(launch) = self.all.borrow_mut().get_mut(token) {
            launch.refused = Some(error);
        }
    }

    /// Ends a launch whose pod is gone; why, if it was given up.
    pub(super) fn end(&self, token: &str) -> Option<ProviderError> {
        self.all.borrow_mut().remove(token)?.refused
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::failure::ErrorClass;
    use greenroom_testkit::clock::ManualClock;

    use super::*;

    const WITHIN: Duration = Duration::from_secs(20);

    #[test]
    fn a_pod_without_a_node_is_given_up_in_time_unless_a_node_is_on_its_way() {
        let clock = Rc::new(ManualClock::default());
        let launches = Launches::new(Rc::clone(&clock) as Rc<dyn Clock>);
        launches.begin("a");
        assert!(!launches.is_due("a", WITHIN), "it has not been seen waiting");
        launches.note_waiting("a");
        clock.pass(CHECK_INTERVAL);
        launches.note_waiting("a");
        assert!(launches.is_due("a", WITHIN) && !launches.judge("a", ScaleUp::Unknown, WITHIN));
        assert!(!launches.is_due("a", WITHIN), "it was checked");
        clock.pass(CHECK_INTERVAL);
        assert!(launches.judge("a", ScaleUp::Impossible, WITHIN), "no autoscaler helps");
        clock.pass(WITHIN);
        assert!(!launches.judge("a", ScaleUp::Triggered, WITHIN), "a node is being added");
        assert!(launches.judge("a", ScaleUp::Unknown, WITHIN));
        launches.refuse("a", ProviderError::new(ErrorClass::Quota, "x"));
        assert!(launches.is_refused("a") && launches.is_due("a", WITHIN));
        assert_eq!(launches.end("a").unwrap().class(), &ErrorClass::Quota);
        assert!(launches.end("a").is_none() && !launches.is_due("a", WITHIN));
    }

    #[test]
    fn a_repeat_continues_a_launch() {
        let clock = Rc::new(ManualClock::default());
        let launches = Launches::new(Rc::clone(&clock) as Rc<dyn Clock>);
        launches.begin("a");
        launches.note_waiting("a");
        clock.pass(WITHIN);
        launches.begin("a");
        assert!(launches.judge("a", ScaleUp::Unknown, WITHIN));
    }
}
