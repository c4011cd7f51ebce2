//! Orders: in some seeds, jobs order instances of their own, and some orders cannot be made.
//!
//! Everything is drawn from a stream of its own, so that the course of the other seeds does not depend on this file.

use std::sync::Arc;

use greenroom_core::event::Change;
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{AttemptName, InstanceId, PoolName};
use greenroom_core::instance::{Instance, Phase};
use greenroom_core::job::JobFacts;
use greenroom_core::order::{LaunchOrder, Order, OrderService, RefusedOrder};
use greenroom_core::pool::PoolState;
use greenroom_core::report::{Report, WaitingOn};
use greenroom_ports::provider::{LaunchRequest, ProviderError};

use super::cloud::Machine;
use super::rng::Rng;
use super::scenario::{JobPlan, PoolPlan};
use super::world::World;

/// Does not exist, which the launch, the endpoint or the list tells.
const UNKNOWN_AT_LAUNCH: &str = "unknown:launch";
const UNKNOWN_TO_ENDPOINT: &str = "unknown:endpoint";
const UNKNOWN_TO_LIST: &str = "unknown:list";
/// Exceeds what the provider makes, through no fault of the job.
const TOO_LARGE: &str = "too-large";
/// Fits in no quota, has room on no machine, or is not allowed: the refusal is of a class that also concerns offerings.
const OVER_QUOTA: &str = "too-many";
const NO_ROOM: &str = "fits-nowhere";
const DENIED: &str = "not-allowed";
/// An image that never comes, and no call tells why.
const HANGS: &str = "never-comes";
/// The words in the refusals of orders; no reason of another launch may quote them.
const OF_ORDER: &str = "of this order alone";
/// The time after a machine's launch at which its order turns out to be impossible.
const SHOWS_AFTER_MS: u64 = 2_000;

/// Gives orders to a part of the jobs of some seeds.
pub(super) fn draw(seed: u64, pool: &mut PoolPlan, jobs: &mut [JobPlan]) {
    let mut rng = Rng::new(seed, "orders");
    if !rng.chance(400) {
        return;
    }
    pool.capabilities.orders = true;
    let share = rng.pick(&[100, 300, 600]);
    for job in jobs.iter_mut().filter(|job| job.pool == pool.name && job.facts.images.is_empty()) {
        if rng.chance(share) {
            let image = rng.pick(&[
                "ruby:3.3",
                "ruby:3.3",
                "ruby:3.4",
                "go:1.25",
                "go:1.25",
                "go:1.25",
                UNKNOWN_AT_LAUNCH,
                UNKNOWN_TO_ENDPOINT,
                UNKNOWN_TO_LIST,
                TOO_LARGE,
                OVER_QUOTA,
                NO_ROOM,
                DENIED,
                HANGS,
            ]);
            let services = (0..rng.within(0..3)).map(|_| Arc::from("postgres:17")).collect();
            job.facts.order = Some(Arc::new(Order { image: image.into(), services, more_services: 0 }));
        }
    }
}

/// A job's order with everything that a launch needs: no two jobs' are equal.
pub(super) fn complete(facts: &JobFacts) -> Option<LaunchOrder> {
    let order = facts.order.as_ref()?;
    let job = OrderService {
        name: "svc-0".to_owned(),
        image: "redis:8".to_owned(),
        aliases: Vec::new(),
        entrypoint: None,
        command: None,
        variables: vec![("JOB".to_owned(), facts.key.id.to_string())],
        pull_policy: None,
        port: None,
    };
    Some(LaunchOrder {
        image: order.image.to_string(),
        of_offering: false,
        pull_policy: None,
        services: vec![job],
        dirs: Vec::new(),
    })
}

/// True if the job ordered what does not exist.
pub(super) fn is_impossible(facts: &JobFacts) -> bool {
    facts.order.as_ref().is_some_and(|order| order.image.starts_with("unknown"))
}

/// True if the provider cannot make what the job ordered, and the job is not to blame.
pub(super) fn is_too_large(facts: &JobFacts) -> bool {
    facts.order.as_ref().is_some_and(|order| *order.image == *TOO_LARGE)
}

fn refused(reason: &str, by_job: bool) -> ProviderError {
    ProviderError::new(ErrorClass::Order { by_job }, reason)
}

/// The provider looks at an order before it makes anything.
pub(super) fn check_launch(request: &LaunchRequest) -> Result<(), ProviderError> {
    match request.order.as_ref().map(|order| order.image.as_str()) {
        Some(UNKNOWN_AT_LAUNCH) => Err(refused("the image does not exist", true)),
        Some(TOO_LARGE) => Err(refused("it is too large", false)),
        Some(OVER_QUOTA) => Err(ProviderError::new(ErrorClass::Quota, OF_ORDER)),
        Some(NO_ROOM) => {
            Err(ProviderError::new(ErrorClass::NoCapacity { scope: "every zone".to_owned() }, OF_ORDER))
        }
        Some(DENIED) => Err(ProviderError::new(ErrorClass::Denied, OF_ORDER)),
        _ => Ok(()),
    }
}

/// True if a machine of this order never boots.
pub(super) fn never_boots(request: &LaunchRequest) -> bool {
    let image = request.order.as_ref().map(|order| order.image.as_str());
    matches!(image, Some(UNKNOWN_TO_ENDPOINT | UNKNOWN_TO_LIST | HANGS))
}

/// One job hurts no other: launches that jobs ordered take at most half of those in progress.
pub(super) fn committed(world: &mut World, pool: &PoolName, state: &PoolState, change: &Change) {
    let Change::LaunchIntended { instance, ordered: Some(_), .. } = change else { return };
    let boots = |i: &Instance| matches!(i.phase, Phase::Launching | Phase::Checking) && !i.is_refused();
    let count = state.instances.values().filter(|i| i.ordered.is_some() && boots(i)).count();
    let limit = world.config[pool].policy.max_launching;
    if u32::try_from(count).unwrap_or(u32::MAX) > (limit / 2).max(1) {
        world
            .broken(format!("orders: {instance} is the launch number {count} that jobs ordered, of {limit}"));
    }
}

/// A pass reported what its launches wait for: never for what a job ordered.
pub(super) fn reported(world: &mut World, pool: &PoolName, report: &Report) {
    let Some(
        WaitingOn::Backoff { failure, .. }
        | WaitingOn::Paused { failure, .. }
        | WaitingOn::NoOffering { failure, .. },
    ) = &report.launches
    else {
        return;
    };
    if failure.message == OF_ORDER {
        world.broken(format!("orders: {pool} launches nothing because of what a job ordered"));
    }
}

fn shows(machine: &Machine, image: &str, now: u64) -> bool {
    machine.order.as_ref().is_some_and(|order| order.image == image) && now >= machine.made + SHOWS_AFTER_MS
}

/// Checks the order of a machine when its endpoint is requested: an impossible one is refused instead.
pub(super) fn check_endpoint(machine: &Machine, now: u64) -> Result<(), ProviderError> {
    if shows(machine, UNKNOWN_TO_ENDPOINT, now) {
        return Err(refused("the image does not exist", true));
    }
    Ok(())
}

/// The refusal that a list shows for the order of a machine, if any.
pub(super) fn listed(machine: &Machine, now: u64) -> Option<RefusedOrder> {
    let refused = RefusedOrder { reason: "the image does not exist".to_owned(), by_job: true };
    shows(machine, UNKNOWN_TO_LIST, now).then_some(refused)
}

/// Promise 1, when a session of a job begins: the machine is what that job ordered.
pub(super) fn session_begun(world: &mut World, id: &InstanceId, attempt: &AttemptName) {
    let Some((_, facts)) = world.truth.attempts.get(attempt) else { return };
    let wanted = complete(facts);
    let key = facts.key.clone();
    let Some(machine) = world.cloud.machines.get(id) else { return };
    if machine.order != wanted {
        world.broken(format!("promise 1: {id} is not what job {key} ordered"));
    }
}
