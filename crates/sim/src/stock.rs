//! The offerings of a simulated provider, and when each of them is unavailable.

use std::sync::Arc;

use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::OfferingName;

use super::fault::Fault;
use super::rng::Rng;

/// A stretch of virtual time in which one offering is refused.
#[derive(Debug, Clone)]
struct Outage {
    offering: OfferingName,
    from: u64,
    to: u64,
    fault: Fault,
}

/// The offerings of a scenario.
#[derive(Debug, Clone, Default)]
pub struct Stock {
    /// The preferred one first; empty in two of five seeds.
    pub offerings: Arc<[OfferingName]>,
    outages: Vec<Outage>,
}

impl Stock {
    /// Draws offerings, and outages between the beginning and `calm`.
    pub fn draw(seed: u64, calm: u64) -> Self {
        let mut rng = Rng::new(seed, "stock");
        if rng.chance(400) {
            return Self::default();
        }
        let names = ["zone-a small spot", "zone-b small spot", "zone-a small", "zone-b large"];
        let count = rng.within(1..5);
        let offerings: Vec<OfferingName> =
            names.into_iter().zip(0..count).map(|(n, _)| OfferingName::new(n)).collect();
        let mut outages = Vec::new();
        for offering in &offerings {
            for _ in 0..rng.below(12) {
                let fault = rng.pick(&[
                    Fault::OfferingOut,
                    Fault::OfferingOut,
                    Fault::OfferingOut,
                    Fault::OfferingQuota,
                    Fault::OfferingInvalid,
                ]);
                let from = rng.below(calm * 9 / 10);
                let to = (from + rng.within(20_000..600_000)).min(calm);
                outages.push(Outage { offering: offering.clone(), from, to, fault });
            }
        }
        Self { offerings: offerings.into(), outages }
    }

    /// The refusal of a launch of this offering now, if it is unavailable.
    pub fn refuses(&self, offering: &OfferingName, now: u64) -> Option<(Fault, ErrorClass)> {
        let is_open = |o: &&Outage| o.offering == *offering && o.from <= now && now < o.to;
        let fault = self.outages.iter().find(is_open)?.fault;
        let class = match fault {
            Fault::OfferingQuota => ErrorClass::Quota,
            Fault::OfferingInvalid => ErrorClass::Invalid,
            _ => ErrorClass::NoCapacity { scope: offering.to_string() },
        };
        Some((fault, class))
    }
}
