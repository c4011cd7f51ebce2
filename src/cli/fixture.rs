//! Histories for tests: events at readable times, and the state after them.

use std::sync::Arc;
use std::time::Duration;

use greenroom_core::attempt::End;
use greenroom_core::availability::Choice;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::event::{Change, Event};
use greenroom_core::failure::Failure;
use greenroom_core::ids::{AttemptName, Generation, InstanceId, JobKey, Location, OfferingName, PoolName};
use greenroom_core::instance::{Answer, Release};
use greenroom_core::job::JobFacts;
use greenroom_core::order::{Order, Ordered};
use greenroom_core::policy::Policy;
use greenroom_core::pool::PoolState;
use greenroom_core::report::Report;
use greenroom_core::time::{BootId, ManagerId, Stamp};
use jiff::tz::TimeZone;

use crate::cli::when::When;

/// Friday, 2026-11-20, 14:00:00 in Berlin, after `seconds`.
pub(crate) fn at(seconds: f64) -> Stamp {
    let begin: jiff::Timestamp = "2026-11-20T13:00:00Z".parse().unwrap();
    let stamp = Stamp {
        wall_ms: begin.as_millisecond(),
        manager: ManagerId(1),
        boot: BootId(1),
        uptime_ms: 5_000_000,
    };
    stamp.plus(Duration::from_secs_f64(seconds))
}

pub(crate) fn when(seconds: f64) -> When {
    When::in_zone(at(seconds), TimeZone::get("Europe/Berlin").unwrap())
}

pub(crate) fn pool() -> PoolName {
    PoolName::new("linux")
}

/// `linux-7f3a-NUMBER`.
pub(crate) fn id(number: u32) -> InstanceId {
    InstanceId::launched(&pool(), &Generation::new("7f3a"), number)
}

pub(crate) fn attempt(name: &str) -> AttemptName {
    AttemptName::new(name)
}

/// The events of a pool, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct EventFixture {
    pub(crate) events: Vec<Event>,
    pub(crate) state: PoolState,
}

impl EventFixture {
    pub(crate) fn of(policy: Policy) -> Self {
        let mut story = Self::default();
        story.then(0.0, Change::PolicySet { policy: Arc::new(policy) });
        story.then(0.0, Change::GenerationBegun { generation: Generation::new("7f3a") });
        story
    }

    pub(crate) fn then(&mut self, seconds: f64, change: Change) -> &mut Self {
        let event = change.at(at(seconds));
        self.state.apply(&event).unwrap();
        self.events.push(event);
        self
    }

    /// Adds the event that sets the pool's offerings, the preferred one first.
    pub(crate) fn offerings(&mut self, offerings: &[&str]) -> &mut Self {
        let offerings = offerings.iter().map(OfferingName::new).collect();
        self.then(0.0, Change::OfferingsChanged { offerings })
    }

    /// Launch requested, answered after a second, not reached yet.
    pub(crate) fn launched(&mut self, number: u32, seconds: f64) -> &mut Self {
        self.intended(number, 1, seconds);
        let answer = Answer::Accepted { at: at(seconds + 1.4) };
        self.then(seconds + 1.4, Change::LaunchAnswered { instance: id(number), attempt: 1, answer })
    }

    /// Launch requested from the next offering, refused after a second.
    pub(crate) fn refused(&mut self, number: u32, attempt: u32, failure: Failure, seconds: f64) -> &mut Self {
        self.intended(number, attempt, seconds);
        let answer = Answer::Refused { at: at(seconds + 1.0), failure };
        self.then(seconds + 1.0, Change::LaunchAnswered { instance: id(number), attempt, answer })
    }

    /// Launch requested from the next offering.
    pub(crate) fn intended(&mut self, number: u32, attempt: u32, seconds: f64) -> &mut Self {
        let uses_left = self.state.policy.as_ref().and_then(|p| p.max_use_count);
        let capacity = self.state.policy.as_ref().map_or(1, |p| p.capacity_per_instance);
        let timing = self.state.policy.as_ref().map(|p| p.timing.clone()).unwrap_or_default();
        let offering = match self.state.availability.choice(&timing, at(seconds)) {
            Choice::Take(offering) => Some(offering),
            Choice::Only | Choice::Wait { .. } => None,
        };
        let instance = id(number);
        let generation = Generation::new("7f3a");
        let intended = Change::LaunchIntended {
            instance,
            generation,
            number,
            attempt,
            capacity,
            uses_left,
            offering,
            location: Some(Location::new("here")),
            lifetime: None,
            ordered: None,
        };
        self.then(seconds, intended)
    }

    /// A launch for the waiting attempt of this name, accepted after a second.
    pub(crate) fn launched_for(&mut self, number: u32, name: &str, seconds: f64) -> &mut Self {
        let request = self.state.waiting_for(&attempt(name)).unwrap();
        let job = request.job.key.clone();
        let domain = request.domain.clone();
        let order = Arc::clone(request.job.order.as_ref().unwrap());
        let ordered = Ordered { attempt: attempt(name), job, domain, order };
        let intended = Change::LaunchIntended {
            instance: id(number),
            generation: Generation::new("7f3a"),
            number,
            attempt: 1,
            capacity: 1,
            uses_left: Some(1),
            offering: None,
            location: Some(Location::new("here")),
            lifetime: None,
            ordered: Some(Arc::new(ordered)),
        };
        self.then(seconds, intended);
        let answer = Answer::Accepted { at: at(seconds + 1.4) };
        self.then(seconds + 1.4, Change::LaunchAnswered { instance: id(number), attempt: 1, answer })
    }

    /// Launched, reached after 23.9 s, ready after 24.7 s.
    pub(crate) fn ready(&mut self, number: u32, seconds: f64) -> &mut Self {
        self.launched(number, seconds);
        self.then(seconds + 23.9, Change::Reached { instance: id(number), endpoint: endpoint() });
        self.then(seconds + 24.7, Change::BecameReady { instance: id(number) })
    }

    /// Suspension requested, over after 6 s.
    pub(crate) fn stopped(&mut self, number: u32, seconds: f64) -> &mut Self {
        self.then(seconds, Change::SuspendIntended { instance: id(number) });
        self.then(seconds + 6.0, Change::Suspended { instance: id(number) })
    }

    /// Resume requested, ready after 4 s.
    pub(crate) fn resumed(&mut self, number: u32, seconds: f64) -> &mut Self {
        self.then(seconds, Change::ResumeIntended { instance: id(number) });
        self.then(seconds + 3.0, Change::Reached { instance: id(number), endpoint: endpoint() });
        self.then(seconds + 4.0, Change::BecameReady { instance: id(number) })
    }

    pub(crate) fn asks(&mut self, name: &str, job: u64, project: &str, seconds: f64) -> &mut Self {
        self.asks_as(name, facts(job, project), seconds)
    }

    pub(crate) fn asks_as(&mut self, name: &str, job: JobFacts, seconds: f64) -> &mut Self {
        let domain = self.state.policy.as_ref().unwrap().domain_of(&job);
        let acquire_timeout = Duration::from_mins(30);
        self.then(seconds, Change::Requested { attempt: attempt(name), job, domain, acquire_timeout })
    }

    pub(crate) fn gets(&mut self, name: &str, number: u32, seconds: f64) -> &mut Self {
        self.then(seconds, Change::Granted { attempt: attempt(name), instance: id(number) })
    }

    pub(crate) fn leaves(&mut self, name: &str, how: End, seconds: f64) -> &mut Self {
        let leaving = Release { how, used: true, closing: false };
        self.then(seconds, Change::Released { attempt: attempt(name), release: leaving })
    }
}

pub(crate) fn facts(job: u64, project: &str) -> JobFacts {
    JobFacts::new(JobKey::new("https://gitlab.example.com", job), project, Duration::from_hours(1))
}

/// A job that orders this image and two services.
pub(crate) fn ordering(job: u64, project: &str, image: &str) -> JobFacts {
    let services = vec!["postgres:17".into(), "redis:8".into()];
    let order = Order { image: image.into(), services, more_services: 0 };
    JobFacts { order: Some(Arc::new(order)), ..facts(job, project) }
}

pub(crate) fn endpoint() -> Endpoint {
    Endpoint {
        address: "10.0.0.5".into(),
        port: 22,
        user: "ci".into(),
        host_key: "ssh-ed25519 SECRET-LOOKING".into(),
        key: None,
        jump: None,
        forward: None,
        metadata: None,
    }
}

pub(crate) fn report(seconds: f64) -> Report {
    Report::new(at(seconds), 1)
}
