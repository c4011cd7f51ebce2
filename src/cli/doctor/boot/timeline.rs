//! The timeline of a boot, from its journal: a row for each stage.

use greenroom_core::availability::Choice;
use greenroom_core::event::{Change, Event};
use greenroom_core::ids::InstanceId;
use greenroom_core::instance::{Answer, DrainReason};
use greenroom_core::policy::Timing;
use greenroom_core::pool::PoolState;
use greenroom_core::time::{Pretty, Stamp};

/// The header of the rows.
pub(super) const HEADER: &str = "    AFTER       TOOK  STAGE\n";

/// The state of a boot.
#[derive(Debug, Default)]
pub(super) struct BootTimeline {
    /// The number of events taken.
    pub(super) taken: usize,
    /// The launched instance, once the launch is accepted.
    pub(super) accepted: Option<InstanceId>,
    /// Why it will not become ready.
    given_up: Option<DrainReason>,
    /// The name of the step at whose end the instance is ready.
    pub(super) ready_step: &'static str,
    begun: Option<Stamp>,
    last: Option<Stamp>,
}

impl BootTimeline {
    /// The row of an event; `None`: it is not a stage.
    pub(super) fn take(&mut self, event: &Event) -> Option<String> {
        self.taken += 1;
        let stage = match &event.change {
            Change::LaunchIntended { instance, offering, .. } => {
                let how = offering.as_ref().map(|offering| format!(" ({offering})"));
                format!("launch of {instance} requested{}", how.unwrap_or_default())
            }
            Change::LaunchAnswered { instance, answer, .. } => match answer {
                Answer::Accepted { .. } => {
                    self.accepted = Some(instance.clone());
                    "launch accepted".to_owned()
                }
                Answer::Refused { failure, .. } => format!("launch refused: {failure}"),
                Answer::Unknown { .. } => "no answer to the launch: it is repeated".to_owned(),
                Answer::Pending => return None,
            },
            Change::Reached { .. } => "reachable by SSH".to_owned(),
            Change::BecameReady { .. } => self.ready_step.to_owned(),
            Change::DrainingBegun { reason: DrainReason::ByOperator, .. } => {
                "termination requested".to_owned()
            }
            Change::DrainingBegun { reason: why, .. } => {
                self.given_up = Some(why.clone());
                format!("given up: {why}")
            }
            Change::Forgotten { .. } => "gone".to_owned(),
            _ => return None,
        };
        Some(self.row(event.at, &stage))
    }

    /// Why the boot failed; `None`: it has not. `state` is not newer than the last event.
    pub(super) fn failure(&self, state: &PoolState, timing: &Timing, now: Stamp) -> Option<String> {
        if let Some(why) = &self.given_up {
            return Some(why.to_string());
        }
        if let Some((_, failure)) = state.launches.last.as_ref().filter(|_| state.launches.failures > 0) {
            return Some(format!("the launch was refused: {failure}"));
        }
        let is_refused = state.instances.values().all(|instance| instance.is_refused());
        match state.availability.choice(timing, now) {
            Choice::Wait { first, .. } if is_refused => {
                Some(format!("all offerings are unavailable; {}: {}", first.offering, first.refusal.failure))
            }
            Choice::Wait { .. } | Choice::Only | Choice::Take(_) => None,
        }
    }

    /// A row for a stage that the journal does not record.
    pub(super) fn row(&mut self, at: Stamp, stage: &str) -> String {
        let begun = *self.begun.get_or_insert(at);
        let last = self.last.replace(at).unwrap_or(at);
        let (after, took) = (Pretty(at.since(begun)).to_string(), Pretty(at.since(last)).to_string());
        format!("{after:>9}  {took:>9}  {stage}\n")
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::failure::{ErrorClass, Failure};
    use greenroom_core::policy::Policy;

    use super::*;
    use crate::cli::fixture::{EventFixture, at, id};

    fn rows(story: &EventFixture, ready_step: &'static str) -> String {
        let mut course = BootTimeline { ready_step, ..BootTimeline::default() };
        story.events.iter().filter_map(|event| course.take(event)).collect()
    }

    #[test]
    fn each_stage_has_a_row_with_its_time() {
        let mut story = EventFixture::of(Policy::default());
        story.ready(1, 0.0);
        story.then(30.0, Change::PoolDrained);
        story.then(30.0, Change::DrainingBegun { instance: id(1), reason: DrainReason::ByOperator });
        story.then(92.0, Change::Forgotten { instance: id(1) });
        let expected = "     0 ms       0 ms  launch of linux-7f3a-1 requested
    1.4 s      1.4 s  launch accepted
   23.9 s     22.5 s  reachable by SSH
   24.7 s     800 ms  ready command passed
     30 s      5.3 s  termination requested
   1m 32s      1m 2s  gone
";
        assert_eq!(rows(&story, "ready command passed"), expected);
        assert!(rows(&story, "ready").contains("  ready\n"));
    }

    #[test]
    fn a_refusal_and_what_follows_are_told() {
        let mut story = EventFixture::of(Policy::default());
        story.offerings(&["a spot", "b"]);
        let none =
            Failure { class: ErrorClass::NoCapacity { scope: "a".into() }, message: "none left".into() };
        story.refused(1, 1, none, 0.0).intended(1, 2, 1.0);
        let why = DrainReason::NeverReady;
        story.then(601.0, Change::DrainingBegun { instance: id(1), reason: why });
        let rows = rows(&story, "ready");
        assert!(rows.contains("launch of linux-7f3a-1 requested (a spot)\n"), "{rows}");
        assert!(rows.contains("launch refused: no capacity (a): none left\n"), "{rows}");
        assert!(rows.contains("launch of linux-7f3a-1 requested (b)\n"), "{rows}");
        assert!(rows.ends_with("given up: not ready within `launch_timeout`\n"), "{rows}");
    }

    #[test]
    fn what_was_measured_beside_the_journal_stands_between_its_rows() {
        let mut course = BootTimeline::default();
        course.row(at(0.0), "asked");
        assert_eq!(course.row(at(2.5), "has an address"), "    2.5 s      2.5 s  has an address\n");
    }
}
