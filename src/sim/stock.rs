//! The candidates of a simulated provider, and when each of them is not to be had.

use std::sync::Arc;

use super::fault::Fault;
use super::rng::Rng;
use crate::core::failure::ErrorClass;
use crate::core::ids::Candidate;

/// A stretch of virtual time in which one candidate is refused.
#[derive(Debug, Clone)]
struct Outage {
    candidate: Candidate,
    from: u64,
    to: u64,
    fault: Fault,
}

/// What there is to be had.
#[derive(Debug, Clone, Default)]
pub struct Stock {
    /// The preferred one first; empty in every other world or so.
    pub candidates: Arc<[Candidate]>,
    outages: Vec<Outage>,
}

impl Stock {
    /// Draws candidates, and outages between the beginning and `calm`.
    pub fn draw(seed: u64, calm: u64) -> Self {
        let mut rng = Rng::new(seed, "stock");
        if rng.chance(400) {
            return Self::default();
        }
        let names = ["zone-a small spot", "zone-b small spot", "zone-a small", "zone-b large"];
        let count = rng.within(1..5);
        let candidates: Vec<Candidate> =
            names.into_iter().zip(0..count).map(|(n, _)| Candidate::new(n)).collect();
        let mut outages = Vec::new();
        for candidate in &candidates {
            for _ in 0..rng.below(12) {
                let fault = rng.pick(&[
                    Fault::CandidateOut,
                    Fault::CandidateOut,
                    Fault::CandidateOut,
                    Fault::CandidateQuota,
                    Fault::CandidateInvalid,
                ]);
                let from = rng.below(calm * 9 / 10);
                let to = (from + rng.within(20_000..600_000)).min(calm);
                outages.push(Outage { candidate: candidate.clone(), from, to, fault });
            }
        }
        Self { candidates: candidates.into(), outages }
    }

    /// What becomes of a launch of this candidate now, if it is not to be had.
    pub fn refuses(&self, candidate: &Candidate, now: u64) -> Option<(Fault, ErrorClass)> {
        let is_open = |o: &&Outage| o.candidate == *candidate && o.from <= now && now < o.to;
        let fault = self.outages.iter().find(is_open)?.fault;
        let class = match fault {
            Fault::CandidateQuota => ErrorClass::Quota,
            Fault::CandidateInvalid => ErrorClass::Invalid,
            _ => ErrorClass::NoCapacity { scope: candidate.to_string() },
        };
        Some((fault, class))
    }
}
