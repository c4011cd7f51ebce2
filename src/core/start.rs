//! How a job got its instance: one rule, for metrics and for history.

use serde::{Deserialize, Serialize};

use super::instance::Instance;
use super::time::Stamp;

/// How a job got its instance. Serialized as the names in a recorded state of format 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// The instance was idle when the job came.
    Warm,
    /// The job waited for the instance's boot.
    #[serde(rename = "boot")]
    Booted,
    /// The job waited until another job left the instance, or its cleaning ended.
    #[serde(rename = "queue")]
    Freed,
}

impl Start {
    pub const ALL: [Self; 3] = [Self::Warm, Self::Booted, Self::Freed];

    /// The word in tables, in JSON and in metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Booted => "booted",
            Self::Freed => "freed",
        }
    }

    /// The rule. `ready`: when a launched instance became ready. `freed`: when a job or a cleaning last left room on it.
    /// If neither is known, a job that waited got what another one left.
    pub fn of(requested: Stamp, granted: Stamp, ready: Option<Stamp>, freed: Option<Stamp>) -> Self {
        // An idle slot is granted in the transaction of the request.
        if requested.reached(granted) {
            return Self::Warm;
        }
        let waited_for = |at: Option<Stamp>| at.is_some_and(|at| at.is_after(requested));
        match (waited_for(freed), waited_for(ready)) {
            (false, true) => Self::Booted,
            (false, false) if ready.or(freed).is_some() => Self::Warm,
            (true, _) | (false, false) => Self::Freed,
        }
    }

    /// Serializes the word instead of the recorded name.
    pub fn serialize_word<S: serde::Serializer>(start: &Option<Self>, to: S) -> Result<S::Ok, S::Error> {
        start.map(Self::word).serialize(to)
    }

    /// How a job gets this instance.
    pub(super) fn on(instance: &Instance, requested: Stamp, granted: Stamp) -> Self {
        let is_launched = instance.launch.is_some();
        // A static host returns from cleaning to service after its job has left.
        let (idle, since) = (instance.idle_since(), instance.since);
        let free = if since.is_after(idle) { since } else { idle };
        let freed = (instance.has_served() || !is_launched).then_some(free);
        Self::of(requested, granted, instance.ready.filter(|_| is_launched), freed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::core::notation::NOW;

    #[test]
    fn what_a_job_waited_for_decides() {
        let at = |seconds: u64| NOW.plus(Duration::from_secs(seconds));
        for (granted, ready, freed, expected) in [
            (10, Some(5), None, Start::Warm),
            (10, Some(5), Some(8), Start::Warm),
            (10, None, None, Start::Warm),
            (11, Some(5), None, Start::Warm),
            (20, Some(15), None, Start::Booted),
            (20, Some(5), Some(19), Start::Freed),
            (20, Some(12), Some(19), Start::Freed),
            (20, None, None, Start::Freed),
        ] {
            let start = Start::of(at(10), at(granted), ready.map(at), freed.map(at));
            assert_eq!(start, expected, "{granted} {ready:?} {freed:?}");
        }
    }
}
