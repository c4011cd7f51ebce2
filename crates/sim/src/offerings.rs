//! Compares the choice of offerings with the provider's actual answers.
//!
//! Keeps its own record of refusals: what Greenroom recorded does not count here.

use std::collections::BTreeMap;
use std::sync::Arc;

use greenroom_core::event::{Change, Event};
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, OfferingName, PoolName};
use greenroom_core::instance::Answer;
use greenroom_core::report::{Report, WaitingOn};
use greenroom_core::time::Stamp;

use crate::fault::Fault;
use crate::orders;
use crate::rng::Rng;
use crate::world::World;

/// The provider's answers to the launches of one pool.
#[derive(Debug, Default)]
pub struct OfferingAnswers {
    /// Present launches: offering, and time of the intent.
    intended: BTreeMap<InstanceId, (OfferingName, u64)>,
    /// Offerings that were refused and not accepted since, with the time.
    refused: BTreeMap<OfferingName, u64>,
    /// The moment when an operator last cleared the refusals.
    forgiven: u64,
}

/// A moment that a manager recorded, on the simulation's clock.
pub(super) fn ms(world: &World, at: Stamp) -> u64 {
    let recorder = world.partners(0).find(|(_, manager)| manager.place.id == at.manager);
    let age = world.stamp(recorder.map_or(0, |(number, _)| number)).since(at).as_millis();
    world.now.saturating_sub(u64::try_from(age).unwrap_or(u64::MAX))
}

/// An event was recorded.
pub(super) fn committed(world: &mut World, manager: usize, pool: &PoolName, event: &Event) {
    if world.is_copy(manager) {
        return; // a copy launches nothing
    }
    let at = ms(world, event.at);
    if let Change::LaunchIntended { instance, offering, .. } = &event.change {
        intended(world, pool, instance, offering.as_ref(), at);
    }
    let answers = world.truth.answers.entry(pool.clone()).or_default();
    match &event.change {
        // What becomes of an order proves nothing about other launches.
        Change::LaunchIntended { instance, ordered: Some(_), .. } => {
            answers.intended.remove(instance);
        }
        Change::LaunchIntended { instance, offering: Some(offering), .. } => {
            answers.intended.insert(instance.clone(), (offering.clone(), at));
        }
        Change::LaunchAnswered { instance, answer: Answer::Refused { failure, .. }, .. } => {
            let of_offering = matches!(
                failure.class,
                ErrorClass::NoCapacity { .. } | ErrorClass::Quota | ErrorClass::Denied | ErrorClass::Invalid
            );
            if let Some((offering, _)) = answers.intended.get(instance).filter(|_| of_offering) {
                answers.refused.insert(offering.clone(), at);
            }
        }
        Change::LaunchAnswered { instance, answer: Answer::Accepted { .. }, .. }
        | Change::Reached { instance, .. } => {
            // A launch that was requested before the refusal proves nothing about the time after it.
            if let Some((offering, intended_at)) = answers.intended.get(instance)
                && answers.refused.get(offering).is_some_and(|refused| intended_at > refused)
            {
                answers.refused.remove(offering);
            }
        }
        Change::PoolResumed => {
            answers.refused.clear();
            answers.forgiven = at;
        }
        _ => {}
    }
}

/// A launch does not use an offering that was just refused while there is another.
fn intended(world: &mut World, pool: &PoolName, id: &InstanceId, offering: Option<&OfferingName>, at: u64) {
    let plan = &world.config[pool];
    let named = plan.capabilities.offerings.clone();
    let timing = &plan.policy.timing;
    let shortest = timing.stockout_backoff.min(timing.quota_backoff).as_millis();
    let Some(offering) = offering else {
        if !named.is_empty() {
            world.broken(format!("offerings: {id} is launched without one"));
        }
        return;
    };
    if !named.contains(offering) {
        world.broken(format!("offerings: {id} is launched as {offering}, which there is not"));
    }
    let Some(answers) = world.truth.answers.get(pool) else { return };
    let Some(refused) = answers.refused.get(offering) else { return };
    let free = named.iter().find(|other| !answers.refused.contains_key(other)).cloned();
    if let Some(free) = free.filter(|_| u128::from(at.saturating_sub(*refused)) < shortest) {
        let ago = at.saturating_sub(*refused);
        world.broken(format!(
            "offerings: {id} is launched as {offering}, refused {ago} ms ago; {free} is free"
        ));
    }
}

/// A pass reported what it waits for: not for one offering while another was not refused.
pub(super) fn reported(world: &mut World, manager: usize, pool: &PoolName, report: &Report) {
    orders::reported(world, pool, report);
    let (false, Some(WaitingOn::NoOffering { .. })) = (world.is_copy(manager), &report.launches) else {
        return;
    };
    let Some(answers) = world.truth.answers.get(pool) else { return };
    let named = &world.config[pool].capabilities.offerings;
    let free = named.iter().find(|offering| !answers.refused.contains_key(offering)).cloned();
    if let Some(free) = free.filter(|_| ms(world, report.at) > answers.forgiven) {
        world.broken(format!("offerings: {pool} waits although {free} was not refused"));
    }
}

/// Records were lost in a power cut: the recorded refusals count now, even if they are older than the answers.
pub(super) fn records_lost(world: &mut World) {
    for (pool, answers) in &mut world.truth.answers {
        let Some(journal) = world.ledgers[0].journals.get(pool) else { continue };
        let availability = &journal.state().availability;
        answers.refused.retain(|offering, _| availability.refusal(offering).is_some());
        for offering in
            availability.offerings().iter().filter(|offering| availability.refusal(offering).is_some())
        {
            answers.refused.entry(offering.clone()).or_insert(0);
        }
    }
}

// The offerings of a simulated provider, and when each of them is unavailable.

/// A stretch of virtual time in which one offering is refused.
#[derive(Debug, Clone)]
struct Outage {
    offering: OfferingName,
    from: u64,
    to: u64,
    fault: Fault,
}

/// The offerings of a scenario; [`refuses`](Self::refuses) tells when one is unavailable.
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
