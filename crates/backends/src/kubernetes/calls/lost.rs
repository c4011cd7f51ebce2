//! The reasons why pods ended that Greenroom did not delete.
//!
//! The reason goes with the pod: an evicted one is gone within two seconds. So Greenroom requests the changes since
//! the last list, which include each deleted pod as it last was. Its reason is kept for a while, because its job may need it
//! late.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use greenroom_core::time::Stamp;
use greenroom_ports::clock::Clock;
use k8s_openapi::api::core::v1::{Event, Pod};
use serde::Deserialize;
use serde_json::Value;

use super::machines::PodId;
use super::pod_state::{self, PodEnd};
use crate::cloud::machine::{Machine, MachineState};

/// The time for which a pod that is gone is listed with its reason.
const RETENTION: Duration = Duration::from_mins(10);
/// The reason if nothing shows one.
const UNEXPLAINED: &str = "was deleted in the cluster, not by Greenroom";

/// The pods that were listed, by uid.
pub(super) struct LostPods {
    clock: Rc<dyn Clock>,
    seen: RefCell<BTreeMap<String, ListedPod>>,
    /// The version of the last list.
    version: RefCell<Option<String>>,
}

#[derive(Debug)]
struct ListedPod {
    /// The pod as last listed.
    machine: Machine<PodId>,
    /// True if Greenroom requested its deletion.
    requested: bool,
    /// The time since which lists lack it.
    gone: Option<Stamp>,
}

/// A change of a watched list.
#[derive(Debug, Deserialize)]
struct WatchChange {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

impl std::fmt::Debug for LostPods {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LostPods").field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl LostPods {
    pub(super) fn new(clock: Rc<dyn Clock>) -> Self {
        Self { clock, seen: RefCell::default(), version: RefCell::default() }
    }

    /// Records that Greenroom requests the deletion.
    pub(super) fn expect_end(&self, uid: &str) {
        if let Some(seen) = self.seen.borrow_mut().get_mut(uid) {
            seen.requested = true;
        }
    }

    pub(super) fn is_requested(&self, uid: &str) -> bool {
        self.seen.borrow().get(uid).is_some_and(|seen| seen.requested)
    }

    /// Records a list. Returns the version of the one before it and the names, by uid, of the pods that it lacks without a
    /// known reason.
    pub(super) fn update(
        &self,
        machines: &[Machine<PodId>],
        complete: bool,
        version: Option<String>,
    ) -> (Option<String>, BTreeMap<String, String>) {
        let now = self.clock.now();
        let before = self.version.replace(version);
        let mut all = self.seen.borrow_mut();
        for machine in machines {
            let uid = machine.handle.uid.clone();
            let seen = all.entry(uid).or_insert_with(|| ListedPod {
                machine: machine.clone(),
                requested: false,
                gone: None,
            });
            let (why, by_job) = match &machine.why {
                Some(why) => (Some(why.clone()), machine.by_job),
                None => (seen.machine.why.take(), seen.machine.by_job),
            };
            seen.machine = Machine { why, by_job, ..machine.clone() };
            seen.gone = None;
        }
        let mut open = BTreeMap::new();
        if complete {
            let listed: BTreeSet<&str> = machines.iter().map(|machine| machine.handle.uid.as_str()).collect();
            for (uid, seen) in all.iter_mut().filter(|(uid, _)| !listed.contains(uid.as_str())) {
                if seen.gone.is_none() {
                    seen.gone = Some(now);
                    if !seen.requested && seen.machine.why.is_none() {
                        open.insert(uid.clone(), seen.machine.handle.name.clone());
                    }
                }
            }
        }
        let kept = |seen: &ListedPod| seen.gone.is_none_or(|gone| now.since(gone) < RETENTION);
        all.retain(|_, seen| kept(seen));
        (before, open)
    }

    /// Records why a pod ended; `None`: nothing shows it.
    pub(super) fn explain(&self, uid: &str, end: Option<PodEnd>) {
        if let Some(seen) = self.seen.borrow_mut().get_mut(uid) {
            let PodEnd { why, by_job } = end.unwrap_or_else(|| UNEXPLAINED.to_owned().into());
            (seen.machine.why, seen.machine.by_job) = (Some(why), by_job);
        }
    }

    /// Adds the pods that are gone: for a reason, or on request. A complete list without them proves it.
    pub(super) fn add_gone(&self, machines: &mut Vec<Machine<PodId>>) {
        let all = self.seen.borrow();
        let gone =
            all.values().filter(|seen| seen.gone.is_some() && (seen.requested || seen.machine.why.is_some()));
        machines.extend(gone.map(|seen| Machine { state: MachineState::Gone, ..seen.machine.clone() }));
    }
}

/// The pods that were deleted, in a stream of changes: their uids, and why they ended. A stream may end in the middle of a
/// line.
pub(super) fn deleted(stream: &[u8]) -> Vec<(String, Option<PodEnd>)> {
    let lines = stream
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice::<WatchChange>(line).ok());
    let deleted = lines.filter(|change| change.kind == "DELETED");
    let pods = deleted.filter_map(|change| serde_json::from_value::<Pod>(change.object).ok());
    pods.filter_map(|pod| Some((pod.metadata.uid.clone()?, pod_state::of(&pod).end()))).collect()
}

/// The reason of a pod's end, by its events.
pub(super) fn by_events(events: &[Event]) -> Option<PodEnd> {
    let reason = |event: &Event| {
        let message = event.message.as_deref().unwrap_or_default();
        let why = match event.reason.as_deref()? {
            "Preempted" => "was preempted: a pod of a higher priority took its place",
            "Evicted" => return Some(pod_state::evicted(message)),
            "TaintManagerEviction" | "NodeNotReady" | "NodeShutdown" => "was reclaimed: its node went away",
            _ => return None,
        };
        Some(why.to_owned().into())
    };
    events.iter().rev().find_map(reason)
}

/// The scheduler's and the autoscaler's word on a pod without a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScaleUp {
    /// No autoscaler has said anything.
    Unknown,
    /// A node is being added.
    Triggered,
    /// No autoscaler can add a node for it.
    Impossible,
}

/// The last word of an autoscaler.
pub(super) fn scale_up(events: &[Event]) -> ScaleUp {
    let at = |event: &Event| {
        let last = event.last_timestamp.as_ref().or(event.first_timestamp.as_ref()).map(|at| at.0);
        last.or(event.event_time.as_ref().map(|at| at.0))
    };
    let said = events.iter().filter_map(|event| match event.reason.as_deref()? {
        // Karpenter nominates a pod for the node that it makes.
        "TriggeredScaleUp" | "Nominated" => Some((at(event), ScaleUp::Triggered)),
        "NotTriggerScaleUp" => Some((at(event), ScaleUp::Impossible)),
        _ => None,
    });
    said.max_by_key(|(at, _)| *at).map_or(ScaleUp::Unknown, |(_, said)| said)
}

#[cfg(test)]
mod tests {
    use greenroom_testkit::clock::ManualClock;
    use serde_json::json;

    use super::*;
    use crate::cloud::machine::Addresses;
    use crate::cloud::tags;

    fn machine(uid: &str) -> Machine<PodId> {
        let value = |name: &str| Some(if name == "greenroom-number" { "7" } else { "linux" });
        let (instance, tags) = tags::read(value).unwrap();
        Machine {
            handle: PodId { name: "linux-linux-7".to_owned(), uid: uid.to_owned() },
            instance,
            tags,
            token: None,
            disks: Vec::new(),
            state: MachineState::Running,
            created_ms: None,
            addresses: Addresses::default(),
            what: String::new(),
            refused: None,
            why: None,
            by_job: false,
            notice: None,
            metadata: None,
        }
    }

    fn version(number: u32) -> String {
        number.to_string()
    }

    #[test]
    fn a_pod_that_a_list_lacks_is_asked_for_once_and_told_for_a_while() {
        let clock = Rc::new(ManualClock::default());
        let lost = LostPods::new(Rc::clone(&clock) as Rc<dyn Clock>);
        assert_eq!(
            lost.update(&[machine("a"), machine("b"), machine("c")], true, Some(version(1))),
            (None, BTreeMap::new())
        );
        lost.expect_end("b");
        assert_eq!(
            lost.update(&[machine("a")], false, Some(version(2))).1.len(),
            0,
            "an incomplete list proves nothing"
        );
        let (before, open) = lost.update(&[machine("a")], true, Some(version(3)));
        assert_eq!((before, open.into_keys().collect::<Vec<_>>()), (Some(version(2)), vec!["c".to_owned()]));
        lost.explain("c", Some("was preempted".to_owned().into()));
        assert_eq!(lost.update(&[machine("a")], true, Some(version(4))), (Some(version(3)), BTreeMap::new()));
        let mut all = vec![machine("a")];
        lost.add_gone(&mut all);
        let gone: Vec<_> =
            all[1..].iter().map(|one| (one.handle.uid.as_str(), one.state, one.why.as_deref())).collect();
        assert_eq!(gone, [("b", MachineState::Gone, None), ("c", MachineState::Gone, Some("was preempted"))]);
        clock.pass(RETENTION);
        lost.update(&[machine("a")], true, Some(version(5)));
        let mut later = Vec::new();
        lost.add_gone(&mut later);
        assert_eq!(later, []);
    }

    #[test]
    fn a_reason_that_a_list_has_shown_stays() {
        let lost = LostPods::new(Rc::new(ManualClock::default()));
        let ending =
            Machine { why: Some("exceeded its disk limit".to_owned()), by_job: true, ..machine("a") };
        lost.update(&[ending], true, Some(version(1)));
        lost.update(&[machine("a")], true, Some(version(2)));
        assert_eq!(lost.update(&[], true, Some(version(3))).1.len(), 0);
        let mut all = Vec::new();
        lost.add_gone(&mut all);
        assert_eq!((all[0].why.as_deref(), all[0].by_job), (Some("exceeded its disk limit"), true));
    }

    #[test]
    fn a_stream_shows_each_deleted_pod_as_it_last_was() {
        let target =
            json!([{ "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI" }]);
        let line = |kind: &str, uid: &str, conditions: &Value| {
            json!({ "type": kind, "object": { "metadata": { "uid": uid }, "status": { "phase": "Running", "conditions": conditions } } }).to_string()
        };
        let none = json!([]);
        let stream = [
            line("MODIFIED", "a", &target),
            line("DELETED", "a", &target),
            line("DELETED", "b", &none),
            "{\"ty".to_owned(),
        ];
        let stream = stream.join("\n").into_bytes();
        let drained = Some("was reclaimed: its node was drained".to_owned().into());
        assert_eq!(deleted(&stream), [("a".to_owned(), drained), ("b".to_owned(), None)]);
    }

    #[test]
    fn events_tell_of_ends_and_of_autoscalers() {
        let events = |all: &[(&str, &str)]| -> Vec<Event> {
            let event = |(at, (reason, message)): (usize, &(&str, &str))| {
                let at = format!("2026-11-26T14:03:{at:02}Z");
                serde_json::from_value(json!({ "metadata": {}, "involvedObject": {}, "reason": reason, "message": message, "lastTimestamp": at })).unwrap()
            };
            all.iter().enumerate().map(event).collect()
        };
        for (all, expected) in [
            (
                &[("Scheduled", ""), ("Preempted", "by x"), ("Killing", "")][..],
                Some("was preempted: a pod of a higher priority took its place"),
            ),
            (
                &[("Evicted", "Pod ephemeral local storage usage exceeds")],
                Some("exceeded its disk limit: Pod ephemeral local storage usage exceeds by the job"),
            ),
            (&[("TaintManagerEviction", "")], Some("was reclaimed: its node went away")),
            (&[("Killing", "Stopping container job")], None),
        ] {
            let told = by_events(&events(all))
                .map(|end| if end.by_job { format!("{} by the job", end.why) } else { end.why });
            assert_eq!(told.as_deref(), expected);
        }
        for (all, expected) in [
            (&[("FailedScheduling", "")][..], ScaleUp::Unknown),
            (&[("NotTriggerScaleUp", ""), ("TriggeredScaleUp", "")], ScaleUp::Triggered),
            (&[("TriggeredScaleUp", ""), ("NotTriggerScaleUp", "")], ScaleUp::Impossible),
            (&[("Nominated", "")], ScaleUp::Triggered),
        ] {
            assert_eq!(scale_up(&events(all)), expected);
        }
    }
}
