//! The launches of a job's own instance: what was refused, and when the next one is due.
//!
//! They concern no other launch. A refusal makes no offering unavailable, and neither starts nor ends a back-off of the
//! pool: a job can order what no cluster would make.

use serde::{Deserialize, Serialize};

use super::availability::concerns_offering;
use super::failure::Failure;
use super::ids::OfferingName;
use super::time::Stamp;

/// The refused launches of a job's own instance. Empty before the first refusal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnLaunches {
    /// How often a launch has followed a pause.
    pauses: u32,
    /// The offerings that have refused it since the last pause.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tried: Vec<OfferingName>,
    last: Option<(Stamp, Failure)>,
}

impl OwnLaunches {
    pub fn is_unused(&self) -> bool {
        *self == Self::default()
    }

    /// A launch was intended. One that is not for the next offering ends the pause.
    pub(super) fn intended(&mut self, offering: Option<&OfferingName>) {
        if self.last.is_some() && !self.is_next(offering) {
            self.pauses = self.pauses.saturating_add(1);
            self.tried.clear();
        }
    }

    /// A launch was refused.
    pub(super) fn refused(&mut self, offering: Option<&OfferingName>, failure: &Failure, at: Stamp) {
        self.tried.extend(offering.filter(|offering| !self.tried.contains(offering)).cloned());
        self.last = Some((at, failure.clone()));
    }

    /// True if the offering follows one that was refused, without a pause.
    pub fn is_next(&self, offering: Option<&OfferingName>) -> bool {
        let of_offering = self.last.as_ref().is_some_and(|(_, failure)| concerns_offering(&failure.class));
        of_offering && offering.is_some_and(|offering| !self.tried.contains(offering))
    }

    /// How often a launch has followed a pause.
    pub fn pauses(&self) -> u32 {
        self.pauses
    }

    /// The last refusal.
    pub fn last(&self) -> Option<&(Stamp, Failure)> {
        self.last.as_ref()
    }
}
