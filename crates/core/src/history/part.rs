//! Gathers the facts of a part of a journal.

use std::collections::{BTreeMap, BTreeSet};

use super::{AttemptFacts, InstanceFacts, Part};
use crate::attempt::End;
use crate::event::{Change, Event};
use crate::ids::{AttemptName, InstanceId, OfferingName};
use crate::images::WantedImages;
use crate::job::JobFacts;
use crate::time::Stamp;

/// Takes the events of a part in their order.
#[derive(Debug, Default)]
pub struct PartBuilder {
    begins: Option<Stamp>,
    attempts: BTreeMap<AttemptName, AttemptFacts>,
    instances: BTreeMap<InstanceId, InstanceFacts>,
    gone: BTreeSet<InstanceId>,
}

impl PartBuilder {
    pub fn take(&mut self, event: &Event) {
        let at = event.at;
        self.begins.get_or_insert(at);
        match &event.change {
            Change::LaunchIntended { instance, offering, .. } => self.launched(instance, offering.as_ref()),
            Change::BecameReady { instance } => {
                self.instance(instance, false).ready.get_or_insert(at);
            }
            Change::ResumeIntended { instance } => {
                let known = self.instance(instance, false);
                (known.ready, known.resumed) = (None, true);
            }
            Change::Forgotten { instance } | Change::RecordDropped { instance, .. } => {
                let launched_here = self.instances.remove(instance).is_some_and(|known| known.launched);
                if !launched_here {
                    self.gone.insert(instance.clone());
                }
            }
            Change::Requested { attempt, job, .. } => {
                // Of a name that is used again, the later attempt counts.
                let fresh = AttemptFacts {
                    job: Some(JobFacts { images: WantedImages::default(), ..job.clone() }),
                    requested: Some(at),
                    ..AttemptFacts::new(attempt.clone())
                };
                self.attempts.insert(attempt.clone(), fresh);
            }
            Change::Granted { attempt, instance } => self.granted(attempt, instance, at),
            Change::Rejected { attempt, .. } => {
                let known = self.attempt(attempt);
                known.granted = None;
                (known.ready, known.freed, known.offering, known.rejected) = (None, None, None, true);
                known.resumed = false;
            }
            Change::Cleaned { instance, .. } | Change::ReturnedToService { instance } => {
                self.instance(instance, false).freed = Some(at);
            }
            Change::JobEnded { attempt, end } => self.attempt(attempt).end = Some(end.clone()),
            Change::Withdrawn { attempt, how } => self.left(attempt, at, *how),
            Change::Released { attempt, release } => {
                self.left(attempt, at, release.how);
                let held = self.attempts.get(attempt).and_then(|facts| facts.granted.clone());
                self.freed(held, at);
            }
            Change::PolicySet { .. }
            | Change::GenerationBegun { .. }
            | Change::OfferingsChanged { .. }
            | Change::LaunchAnswered { .. }
            | Change::Reached { .. }
            | Change::SuspendIntended { .. }
            | Change::Suspended { .. }
            | Change::Adopted { .. }
            | Change::Resized { .. }
            | Change::Readdressed { .. }
            | Change::BecameUnreachable { .. }
            | Change::OrderRefused { .. }
            | Change::StageNotBegun { .. }
            | Change::StageBegun { .. }
            | Change::Rechecked { .. }
            | Change::FailedEarly { .. }
            | Change::SlotFreed { .. }
            | Change::ImagesFound { .. }
            | Change::ImagesRemoved { .. }
            | Change::CleaningBegun { .. }
            | Change::OutOfService { .. }
            | Change::Unbound { .. }
            | Change::DrainingBegun { .. }
            | Change::MissingFromList { .. }
            | Change::Located { .. }
            | Change::ListedAgain { .. }
            | Change::PoolDrained
            | Change::PoolResumed => {}
        }
    }

    pub fn finish(self) -> Part {
        Part {
            begins: self.begins,
            attempts: self.attempts.into_values().collect(),
            instances: self.instances.into_values().collect(),
            gone: self.gone.into_iter().collect(),
        }
    }

    fn attempt(&mut self, name: &AttemptName) -> &mut AttemptFacts {
        self.attempts.entry(name.clone()).or_insert_with(|| AttemptFacts::new(name.clone()))
    }

    fn instance(&mut self, id: &InstanceId, launched: bool) -> &mut InstanceFacts {
        let new = || InstanceFacts {
            instance: id.clone(),
            launched,
            offering: None,
            ready: None,
            freed: None,
            resumed: false,
        };
        self.instances.entry(id.clone()).or_insert_with(new)
    }

    fn launched(&mut self, id: &InstanceId, offering: Option<&OfferingName>) {
        self.gone.remove(id);
        self.instance(id, true).offering = offering.cloned();
    }

    fn granted(&mut self, attempt: &AttemptName, instance: &InstanceId, at: Stamp) {
        let known = self.instance(instance, false);
        let (freed, resumed) = (known.freed, known.resumed);
        let launched = Some(known.clone()).filter(|known| known.launched);
        let (ready, offering) = launched.map_or((None, None), |known| (known.ready, known.offering));
        let facts = self.attempt(attempt);
        facts.granted = Some((at, instance.clone()));
        (facts.ready, facts.freed, facts.offering, facts.resumed) = (ready, freed, offering, resumed);
    }

    /// The instance of a grant has room again.
    fn freed(&mut self, held: Option<(Stamp, InstanceId)>, at: Stamp) {
        if let Some((_, instance)) = held {
            self.instance(&instance, false).freed = Some(at);
        }
    }

    fn left(&mut self, attempt: &AttemptName, at: Stamp, how: End) {
        self.attempt(attempt).left.get_or_insert((at, how));
    }
}
