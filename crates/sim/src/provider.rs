//! A simulated cloud with faults.

use std::fmt::Display;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::failure::ErrorClass;
use greenroom_core::ids::{InstanceId, Location, PoolName};
use greenroom_core::inventory::{Capabilities, Listing};
use greenroom_ports::provider::{LaunchRequest, Provider, ProviderError, Termination};

use super::check;
use super::cloud::{BootPlan, Due};
use super::fault::Fault;
use super::keeping;
use super::lists;
use super::orders;
use super::process::Proc;
use super::stopped;
use super::world::World;

/// Longer than any simulation.
const NEVER_MS: u64 = 1_000 * 3_600_000;

/// One pool's [`Provider`], as a process calls it. The instances are in the [`Cloud`](crate::cloud::Cloud).
#[derive(Debug, Clone)]
pub struct SimProvider {
    pub proc: Proc,
    pub pool: PoolName,
}

impl SimProvider {
    /// Sends the request; returns how long it is under way.
    async fn send(&self, call: &'static str) -> u64 {
        self.proc.step(call).await;
        let hangs = self.proc.world.borrow_mut().strikes(Fault::Hangs);
        if hangs {
            self.proc.log(format_args!("{call} is never answered"));
            self.proc.pause(NEVER_MS).await;
        }
        let mut world = self.proc.world.borrow_mut();
        keeping::acts(&mut world, self.proc.pid, call);
        world.streams.latency.within(20..800)
    }

    /// Receives the answer.
    async fn arrive(&self) {
        let back = self.proc.world.borrow_mut().streams.latency.within(20..400);
        self.proc.pause(back).await;
    }

    /// Faults that any call may meet.
    fn stumbles(&self) -> Option<ProviderError> {
        let mut world = self.proc.world.borrow_mut();
        if world.strikes(Fault::Throttles) {
            let until = world.stamp(self.proc.manager).plus(Duration::from_secs(15));
            let class = ErrorClass::Throttled { until: Some(until) };
            return Some(ProviderError::new(class, "too many requests"));
        }
        world.strikes(Fault::Stumbles).then(|| ProviderError::new(ErrorClass::Transient, "internal error"))
    }

    fn answer<T>(
        &self,
        call: &str,
        id: &dyn Display,
        answer: Result<T, ProviderError>,
    ) -> Result<T, ProviderError> {
        match &answer {
            Ok(_) => self.proc.log(format_args!("{call} {id}: ok")),
            Err(error) => self.proc.log(format_args!("{call} {id}: {error}")),
        }
        answer
    }

    /// True if the credentials are those of another account, or no call finds an instance.
    fn finds_nothing(&self) -> bool {
        let mut world = self.proc.world.borrow_mut();
        is_elsewhere(&mut world, &self.pool) || lists::loses_all(&mut world, &self.pool)
    }

    /// The moment since which an instance is suspended, or will be; an error, if the call does not reach it.
    fn may_move(&self, id: &InstanceId) -> Result<Option<u64>, ProviderError> {
        if let Some(error) = self.stumbles() {
            return Err(error);
        }
        let nothing = self.finds_nothing();
        let world = self.proc.world.borrow();
        let shown = !nothing && world.cloud.shows(id, world.now);
        let machine = world.cloud.machines.get(id).filter(|_| shown);
        machine.map(|m| m.asleep).ok_or_else(|| ProviderError::new(ErrorClass::NotFound, ""))
    }

    /// Decides the result of a launch, and sends it on its way.
    fn fate(&self, request: &LaunchRequest, under_way: u64) -> Result<(), ProviderError> {
        let mut world = self.proc.world.borrow_mut();
        check::launch_requested(&mut world, self.proc.manager, request);
        let refused = |class, message: &str| Err(ProviderError::new(class, message));
        if is_elsewhere(&mut world, &self.pool) {
            return refused(ErrorClass::Denied, "not in this account");
        }
        // The cloud looks at the token before it looks for capacity.
        let recognized =
            world.truth.in_flight.contains_key(&request.token) || world.cloud.recognizes(request);
        if !recognized {
            orders::check_launch(request)?;
            out_of_stock(&mut world, &self.pool, request)?;
        }
        if world.strikes(Fault::LaunchLost) {
            return refused(ErrorClass::Unknown, "timed out");
        }
        let lie = world.strikes(Fault::RefusedYetThere);
        if lie {
            world.truth.lies.insert(request.token.clone());
        }
        let lost = !lie && world.strikes(Fault::AnswerLost);
        let mut plan = boot_plan(&mut world);
        if orders::never_boots(request) {
            plan.takes = None;
        }
        let at = world.now + under_way;
        let in_flight = (request.instance.clone(), request.tags.pool.clone());
        world.truth.in_flight.insert(request.token.clone(), in_flight);
        world.cloud.later(at, Due::Launch { request: Box::new(request.clone()), plan, lie });
        match (lie, lost) {
            (true, _) => refused(ErrorClass::Transient, "internal error, nothing was made"),
            (_, true) => refused(ErrorClass::Unknown, "connection reset"),
            _ => Ok(()),
        }
    }
}

/// A refused suspension or resume, for good or for now.
fn refuses_move(world: &mut World) -> ProviderError {
    let class = if world.streams.faults.chance(500) {
        ErrorClass::NoCapacity { scope: "zone a".into() }
    } else {
        ErrorClass::Transient
    };
    ProviderError::new(class, "not now")
}

/// Fails a launch for which there is no capacity or no quota.
fn out_of_stock(world: &mut World, pool: &PoolName, request: &LaunchRequest) -> Result<(), ProviderError> {
    let refused = |class, message: &str| Err(ProviderError::new(class, message));
    let stock = &world.config[pool].stock;
    let refusal = request.offering.as_ref().and_then(|offering| stock.refuses(offering, world.now));
    if let Some((fault, class)) = refusal {
        world.cover.fault(fault);
        return refused(class, "not to be had");
    }
    if world.strikes(Fault::NoCapacity) {
        return refused(ErrorClass::NoCapacity { scope: "zone a".into() }, "none left");
    }
    if world.strikes(Fault::QuotaReached) {
        return refused(ErrorClass::Quota, "limit reached");
    }
    Ok(())
}

/// The location of a pool's cloud, and that of the other account.
pub(super) const HERE: &str = "cloud account 1";
const ELSEWHERE: &str = "cloud account 2";

/// True if calls for this pool go to the other account now. Static hosts need no account.
fn is_elsewhere(world: &mut World, pool: &PoolName) -> bool {
    world.config[pool].capabilities.launches && world.strikes(Fault::OtherAccount)
}

fn boot_plan(world: &mut World) -> BootPlan {
    let takes = if world.strikes(Fault::NeverBoots) {
        None
    } else if world.strikes(Fault::BootsLate) {
        Some(world.streams.boots.within(60_000..400_000))
    } else {
        Some(world.streams.boots.within(8_000..30_000))
    };
    let passes = !world.strikes(Fault::NotReady);
    let goes = world.streams.boots.within(1_000..20_000);
    let hidden = if world.strikes(Fault::Hidden) { world.streams.faults.within(1_000..20_000) } else { 0 };
    BootPlan { takes, passes, goes, hidden }
}

#[async_trait(?Send)]
impl Provider for SimProvider {
    async fn launch(&self, request: &LaunchRequest) -> Result<(), ProviderError> {
        let under_way = self.send("provider.launch").await;
        self.proc.log(format_args!("provider.launch {} ({})", request.instance, request.token));
        let answer = match self.stumbles() {
            Some(error) => Err(error),
            None => self.fate(request, under_way),
        };
        self.proc.pause(under_way).await;
        self.arrive().await;
        self.answer("provider.launch", &request.instance, answer)
    }

    async fn terminate(&self, id: &InstanceId) -> Result<Termination, ProviderError> {
        let under_way = self.send("provider.terminate").await;
        check::terminate_requested(&mut self.proc.world.borrow_mut(), self.proc.manager, id);
        let answer = if let Some(error) = self.stumbles() {
            Err(error)
        } else if self.finds_nothing() {
            Err(ProviderError::new(ErrorClass::NotFound, ""))
        } else {
            let mut world = self.proc.world.borrow_mut();
            if world.cloud.shows(id, world.now) {
                if !world.strikes(Fault::TerminateIgnored) {
                    let at = world.now + under_way;
                    world.cloud.later(at, Due::Terminate { id: id.clone() });
                }
                Ok(Termination::Requested)
            } else if world.cloud.knows_end(id) {
                Ok(Termination::Gone)
            } else {
                Err(ProviderError::new(ErrorClass::NotFound, ""))
            }
        };
        self.proc.pause(under_way).await;
        self.arrive().await;
        // *Not found* is the goal of a termination.
        let failed = answer.as_ref().is_err_and(|error| *error.class() != ErrorClass::NotFound);
        check::terminate_answered(&mut self.proc.world.borrow_mut(), &self.pool, id, failed);
        self.answer("provider.terminate", id, answer)
    }

    async fn suspend(&self, id: &InstanceId) -> Result<(), ProviderError> {
        let under_way = self.send("provider.suspend").await;
        stopped::suspend_requested(&mut self.proc.world.borrow_mut(), id);
        let answer = match self.may_move(id) {
            Err(error) => Err(error),
            Ok(Some(_)) => Ok(()),
            Ok(None) => {
                let mut world = self.proc.world.borrow_mut();
                let answers = world.cloud.machines.get(id).is_some_and(|m| m.answers(world.now));
                if world.strikes(Fault::SuspendFails) {
                    Err(refuses_move(&mut world))
                } else if !answers {
                    Err(ProviderError::new(ErrorClass::Transient, "it does not run"))
                } else {
                    if !world.strikes(Fault::SuspendLost) {
                        let stuck = world.strikes(Fault::SuspendStuck);
                        let takes = (!stuck).then(|| world.streams.boots.within(1_000..12_000));
                        let at = world.now + under_way;
                        world.cloud.later(at, Due::Suspend { id: id.clone(), takes });
                    }
                    Ok(())
                }
            }
        };
        self.proc.pause(under_way).await;
        self.arrive().await;
        self.answer("provider.suspend", id, answer)
    }

    async fn resume(&self, id: &InstanceId) -> Result<(), ProviderError> {
        let under_way = self.send("provider.resume").await;
        let answer = match self.may_move(id) {
            Err(error) => Err(error),
            Ok(None) => Ok(()),
            Ok(Some(since)) => {
                let mut world = self.proc.world.borrow_mut();
                if world.strikes(Fault::ResumeFails) {
                    Err(refuses_move(&mut world))
                } else if since > world.now {
                    Err(ProviderError::new(ErrorClass::Transient, "it is being suspended"))
                } else {
                    let hangs = world.strikes(Fault::ResumeHangs);
                    let takes = (!hangs).then(|| world.streams.boots.within(500..9_000));
                    let at = world.now + under_way;
                    world.cloud.later(at, Due::Resume { id: id.clone(), takes });
                    Ok(())
                }
            }
        };
        self.proc.pause(under_way).await;
        self.arrive().await;
        self.answer("provider.resume", id, answer)
    }

    async fn list(&self, pool: &PoolName) -> Result<Listing, ProviderError> {
        let begun = self.proc.now();
        let under_way = self.send("provider.list").await;
        self.proc.pause(under_way).await;
        let answer = match self.stumbles() {
            Some(error) => Err(error),
            None => listing(&mut self.proc.world.borrow_mut(), self.proc.manager, pool).map(|mut listing| {
                listing.begun = begun;
                listing
            }),
        };
        self.arrive().await;
        if let Ok(listing) = &answer {
            let names: Vec<&str> = listing.instances.iter().map(|l| l.id.as_str()).collect();
            let cut = if listing.complete { "" } else { " and more" };
            self.proc.log(format_args!("provider.list {pool}: {}{cut}", names.join(" ")));
            return answer;
        }
        self.answer("provider.list", pool, answer)
    }

    async fn endpoint(&self, id: &InstanceId) -> Result<Endpoint, ProviderError> {
        let under_way = self.send("provider.endpoint").await;
        self.proc.world.borrow_mut().truth.held_up.remove(id);
        self.proc.pause(under_way).await;
        let answer = if let Some(error) = self.stumbles() {
            Err(error)
        } else if self.finds_nothing() {
            Err(ProviderError::new(ErrorClass::NotFound, ""))
        } else {
            let world = self.proc.world.borrow();
            let shown = world.cloud.shows(id, world.now);
            match (world.cloud.endpoint(id).filter(|_| shown), world.cloud.machines.get(id)) {
                (Some(_), Some(m)) if m.tags.is_some() && world.now < m.made + 1_000 => {
                    Err(ProviderError::new(ErrorClass::Transient, "no address yet"))
                }
                (Some(endpoint), Some(m)) => orders::check_endpoint(m, world.now).map(|()| endpoint),
                (Some(endpoint), None) => Ok(endpoint),
                (None, _) => Err(ProviderError::new(ErrorClass::NotFound, "")),
            }
        };
        if answer.as_ref().is_err_and(|error| *error.class() == ErrorClass::NotFound) {
            self.proc.world.borrow_mut().truth.denied.insert(id.clone());
        }
        self.arrive().await;
        self.answer("provider.endpoint", id, answer)
    }

    async fn console(&self, id: &InstanceId) -> Result<String, ProviderError> {
        let under_way = self.send("provider.console").await;
        self.proc.pause(under_way).await;
        let known = self.proc.world.borrow().cloud.machines.contains_key(id);
        let missing = || ProviderError::new(ErrorClass::NotFound, "");
        let answer = known.then(|| "booting\n".to_owned()).ok_or_else(missing);
        self.answer("provider.console", id, answer)
    }

    fn capabilities(&self) -> Capabilities {
        let mut world = self.proc.world.borrow_mut();
        world.cover.call("provider.capabilities");
        world.scenario.pools[&self.pool].capabilities.clone()
    }
}

/// The content of the list, which may be wrong.
fn listing(world: &mut World, manager: usize, pool: &PoolName) -> Result<Listing, ProviderError> {
    if world.strikes(Fault::ListFails) {
        return Err(ProviderError::new(ErrorClass::Transient, "internal error"));
    }
    if is_elsewhere(world, pool) {
        // Nothing can be terminated there.
        world.truth.held_up.clear();
        world.truth.elsewhere.insert((manager, pool.clone()));
        return Ok(Listing::empty(world.stamp(manager), Some(Location::new(ELSEWHERE))));
    }
    world.truth.elsewhere.remove(&(manager, pool.clone()));
    if lists::loses_all(world, pool) {
        return Ok(Listing::empty(world.stamp(manager), Some(Location::new(HERE))));
    }
    let now = world.now;
    let was_lost = lists::was_lost(world, pool);
    let lag = if !was_lost && world.strikes(Fault::ListLags) {
        world.streams.faults.within(1_000..25_000)
    } else {
        0
    };
    let mut instances = world.cloud.listed(pool, now, lag);
    if !instances.is_empty() && !was_lost && world.strikes(Fault::ListOmits) {
        // The same instance for a while: otherwise the next list would show what this one omits.
        let chosen = world.streams.faults.index(instances.len());
        let omitted = world.truth.omitted.get(pool).filter(|(until, _)| now < *until);
        let id = omitted.map_or_else(|| instances[chosen].id.clone(), |(_, id)| id.clone());
        let until = omitted.map_or(now + 90_000, |(until, _)| *until);
        instances.retain(|listed| listed.id != id);
        world.truth.omitted.insert(pool.clone(), (until, id));
    }
    let complete = !world.strikes(Fault::ListIncomplete);
    if !complete {
        let kept = world.streams.faults.index(instances.len() + 1);
        instances.truncate(kept);
    }
    let location = Some(Location::new(HERE));
    Ok(Listing { begun: world.stamp(manager), complete, location, instances, copies: Vec::new() })
}
