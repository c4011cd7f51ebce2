//! Worlds as one line of text.
//!
//! `max 4, target 1 | idle 5m; held 3m by 7; waits 8` is a pool with its policy, an idle instance, one that job 7
//! holds, and a waiting job 8. Before the bar stand settings, separated by commas; after it instances and jobs,
//! separated by semicolons, each with its age. Launched instances are called `i1`, `i2`, … in their order, static hosts
//! `h1`, …, unrecorded ones `u1`, …; the attempt of job 7 is `a7`.
//!
//! Instances: `requested`, `unknown`, `refused`, `booting`, `checking`, `idle`, `held`, `suspending`, `stopped`,
//! `resuming`, `cleaning`, `out-of-service`, `draining`; with `static` a static host. Then, in any order: an age, `by 7,8` (jobs on it), `closing 9`, `of b` (a
//! job of project b has used it; `of b protected`: on a protected ref), `cap 2`, `uses 3` (left), `missing 40s`, `old`
//! (from an earlier boot), its status in the list (`starting`, `running`, `suspended`, `stopping`, `gone`, and `denied`: the
//! endpoint is unknown, too; `denied-since`: after the list), `unheard` (not probed), `silent` (did not answer a probe), `named 9` (an open attempt names it), `user 9` (the same,
//! and it has run a stage), `busy`, `failing 5s`, `awaited 5s`, launched `as c2` (an offering; `refused as c2`: no capacity),
//! `unbegun` (it began no stage of its past job; `unbegun twice`: nor of one before it), `suspect` (nor its container),
//! `disconnected` (nor its container's network), `unchecked` (not checked since its
//! past job), `in there` (its location; the
//! list's is `here`, with `nowhere` unknown), `ends 2h` or `ends now` (the provider's notice), `announced`
//! (its metadata service's).
//! Settings of the tier *stopped*: `tier 2` (`idle_stopped`, and the provider can suspend), `tier 2 unknown`, `tier 2 no`,
//! `unsuspended 5 10s` (five failures in a row, the last one ten seconds ago).
//! Settings of offerings: `offerings 3` (`c1` to `c3`), `out c1 30s` (refused then for lack of capacity, `out c1 30s 4`
//! for the fourth time in a row), `quota c2 1m`.
//! Settings of orders: `orders` (the provider makes them). `waits 8 orders ruby` has an order; `booting 5s for 8` was launched
//! for it, and `impossible` there is in the list.
//! Unrecorded: `orphan`, `stranger`, `foreign`, `host`. Jobs: `waits 8`, with `of b`, `protected`, `timeout 2h`, `dead`.

#![expect(clippy::panic, clippy::unwrap_used, reason = "tests fail by panicking, in helpers too")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::attempt::{AttemptSeen, Closed, End, Presence};
use super::endpoint::Endpoint;
use super::event::{Change, Event};
use super::failure::{ErrorClass, Failure};
use super::ids::{AttemptName, Generation, InstanceId, JobKey, Location, OfferingName, OwnerId, PoolName};
use super::instance::{Answer, DrainReason, Release};
use super::inventory::{Capabilities, Listed, Listing, Notice, Status, Suspends, Tags};
use super::job::JobFacts;
use super::order::{Order, Ordered, RefusedOrder};
use super::plan::{FailingCall, Fresh, Observed, Plan, View, plan};
use super::policy::{Lifetime, Policy, Reuse};
use super::pool::PoolState;
use super::time::{BootId, ManagerId, Stamp};
use super::unbegun::CheckKind;

mod images;
mod rendered;

pub use rendered::{does, notes, notes_of, render, render_events, waits, waits_in};

/// Noon on a Monday, ten days after boot.
pub const NOW: Stamp =
    Stamp { wall_ms: 1_781_524_800_000, manager: ManagerId(1), boot: BootId(7), uptime_ms: 864_000_000 };

/// Everything that `plan` sees.
#[derive(Debug, Clone)]
pub struct World {
    pub state: PoolState,
    pub observed: Observed,
    pub policy: Policy,
    pub now: Stamp,
    listed: Vec<Listed>,
    launched: u32,
    others: u32,
}

/// The world of one line.
pub fn world(text: &str) -> World {
    let (settings, items) = text.split_once('|').unwrap_or(("", text));
    let mut world = World::empty();
    let settings: Vec<&str> = settings.split(',').map(str::trim).filter(|s| !s.is_empty()).collect();
    for setting in &settings {
        world.set(setting);
    }
    let policy = Arc::new(world.policy.clone());
    world.tell(NOW, Change::PolicySet { policy });
    world.tell(NOW, Change::GenerationBegun { generation: generation() });
    let offerings = world.observed.capabilities.offerings.to_vec();
    if !offerings.is_empty() {
        world.tell(NOW, Change::OfferingsChanged { offerings });
    }
    for item in items.split(';').map(str::trim).filter(|i| !i.is_empty()) {
        world.add(item);
    }
    world.state.launches.recent.clear();
    for setting in settings {
        world.set_late(setting);
    }
    world.listed.sort_by(|a, b| a.id.cmp(&b.id));
    if let Ok(listing) = &mut world.observed.listing {
        listing.instances.clone_from(&world.listed);
    }
    world
}

/// Compares `(given, expected)` pairs and reports the one that differs.
#[track_caller]
pub fn table(answer: impl Fn(&str) -> String, rows: &[(&str, &str)]) {
    for (given, expected) in rows {
        assert_eq!(answer(given), *expected, "given `{given}`");
    }
}

pub fn generation() -> Generation {
    Generation::new("g")
}

pub fn attempt(job: u64) -> AttemptName {
    AttemptName::new(format!("a{job}"))
}

/// The mark that a `cleanup` set.
pub fn cleaned(at: Stamp) -> Closed {
    Closed::new(at, End::CleanedUp)
}

/// `i3`, `h1` or `u2`.
pub fn instance(short: &str) -> InstanceId {
    match short.strip_prefix('i') {
        Some(number) => InstanceId::new(format!("p-g-{number}")),
        None => InstanceId::new(short),
    }
}

pub fn facts(job: u64, project: &str, timeout: Duration) -> JobFacts {
    JobFacts::new(JobKey::new("gl", job), format!("group/{project}"), timeout)
}

pub fn endpoint() -> Endpoint {
    Endpoint {
        address: "192.0.2.1".into(),
        port: 22,
        user: "root".into(),
        host_key: "key".into(),
        key: None,
        jump: None,
        forward: None,
        metadata: None,
    }
}

pub fn failure(class: ErrorClass) -> Failure {
    Failure { class, message: String::new() }
}

/// `90s`, `5m`, `2h`, `250ms`.
pub fn span(text: &str) -> Duration {
    let digits = text.trim_end_matches(|c: char| c.is_alphabetic());
    let count: u64 = digits.parse().unwrap_or_else(|_| panic!("`{text}` is no duration"));
    match &text[digits.len()..] {
        "ms" => Duration::from_millis(count),
        "s" => Duration::from_secs(count),
        "m" => Duration::from_mins(count),
        "h" => Duration::from_hours(count),
        other => panic!("`{other}` is no unit"),
    }
}

/// The moment `age` before `NOW`.
pub fn ago(age: Duration) -> Stamp {
    NOW.minus(age)
}

impl World {
    fn empty() -> Self {
        let policy =
            Policy { max_instances: 4, max_use_count: None, clean_unbinds: true, ..Policy::default() };
        let observed = Observed {
            announced: BTreeMap::new(),
            healthy: BTreeMap::new(),
            unhealthy: BTreeMap::new(),
            obstacles: BTreeMap::new(),
            listing: Ok(Listing {
                begun: ago(Duration::from_secs(1)),
                complete: true,
                location: Some(Location::new("here")),
                instances: Vec::new(),
                copies: Vec::new(),
            }),
            denied: BTreeMap::new(),
            first_seen: BTreeMap::new(),
            manager: NOW.manager,
            attempts: BTreeMap::new(),
            attempts_at: NOW,
            orphaned_builds: BTreeSet::new(),
            capabilities: Capabilities::default(),
            owner: OwnerId::new("us"),
            moved: None,
            generations: BTreeSet::from([generation()]),
            launching: Some(Fresh { pool: PoolName::new("p"), generation: generation() }),
            unrecordable: None,
            failing_calls: BTreeMap::new(),
            awaited: BTreeMap::new(),
            busy: BTreeSet::new(),
            pulls: Some(crate::plan::Pulls::default()),
        };
        let state = PoolState::default();
        Self { state, observed, policy, now: NOW, listed: Vec::new(), launched: 0, others: 0 }
    }

    pub fn plan(&self) -> Plan {
        plan(View { recorded: &self.state, observed: &self.observed }, &self.policy, self.now)
    }

    /// The state after these events; an inapplicable one is a bug.
    #[track_caller]
    pub fn carry(&mut self, events: &[Event]) {
        for event in events {
            self.state.apply(event).unwrap_or_else(|misfit| panic!("{event:?}: {misfit}"));
        }
    }

    #[track_caller]
    pub fn tell(&mut self, at: Stamp, change: Change) {
        self.carry(&[change.at(at)]);
    }

    pub fn listing(&mut self) -> &mut Listing {
        self.observed.listing.as_mut().expect("the world has a list")
    }

    pub fn seen(&mut self, job: u64) -> &mut AttemptSeen {
        self.observed.attempts.get_mut(&attempt(job)).expect("the attempt has a directory")
    }

    fn set(&mut self, setting: &str) {
        let words: Vec<&str> = setting.split_whitespace().collect();
        let count = || words[1].parse::<u32>().unwrap_or_else(|_| panic!("`{setting}`"));
        let policy = &mut self.policy;
        match words[0] {
            "max" => policy.max_instances = count(),
            "cap" => policy.capacity_per_instance = count(),
            "uses" => policy.max_use_count = Some(count()),
            "target" => policy.idle.idle_count = count(),
            "idle_time" => policy.idle.idle_time = span(words[1]),
            "factor" => policy.idle.scale_factor = words[1].parse().unwrap(),
            "launching" => policy.max_launching = count(),
            "rate" => policy.launches_per_minute = count(),
            "lifetime" => policy.max_lifetime = Some(Lifetime(span(words[1]))),
            "default_lifetime" => {
                policy.max_lifetime = Some(Lifetime(span(words[1])));
                policy.extends_lifetime = true;
            }
            "breaker" => policy.timing.breaker_failures = count(),
            "any" => policy.reuse = Reuse::Any,
            "namespace" => policy.reuse = Reuse::Namespace,
            "bound" => policy.clean_unbinds = false,
            "tier" => {
                policy.idle_stopped = count();
                self.observed.capabilities.suspends = match words.get(2) {
                    Some(&"no") => Suspends::No,
                    Some(&"unknown") => Suspends::Unknown,
                    _ => Suspends::Yes,
                };
            }
            "hosts" => self.observed.capabilities.launches = false,
            "orders" => self.observed.capabilities.orders = true,
            "repeats" => self.observed.capabilities.idempotent_launch = false,
            "notices" => self.observed.capabilities.notice_interval = Some(span(words[1])),
            "here" => self.observed.capabilities.boots_here = Some(count()),
            "offerings" => {
                let offering = |number| OfferingName::new(format!("c{number}"));
                self.observed.capabilities.offerings = (1..=count()).map(offering).collect();
            }
            "reap" => self.observed.launching = None,
            "learn" => policy.warm.learn = Some(count().into()),
            "warm" => policy.warm.images = images::names(&words),
            "full" => {
                self.observed.launching = None;
                self.observed.unrecordable = Some("disk full".into());
            }
            "durable" => self.state.survives_reboot = true,
            "moved" => self.observed.moved = Some("moved".into()),
            "partial" => self.listing().complete = false,
            "nowhere" => self.listing().location = None,
            "drained" | "failures" | "unsuspended" | "forgotten" | "recent" | "unlisted" | "list" | "out"
            | "quota" => {}
            other => panic!("`{other}` is no setting"),
        }
    }

    /// Settings that come after the instances.
    fn set_late(&mut self, setting: &str) {
        let words: Vec<&str> = setting.split_whitespace().collect();
        match words[0] {
            "drained" => self.tell(ago(Duration::from_mins(1)), Change::PoolDrained),
            // `failures 5 10s`: five, the last one ten seconds ago.
            "failures" => {
                self.state.launches.failures = words[1].parse().unwrap();
                self.state.launches.last = Some((ago(span(words[2])), failure(ErrorClass::Transient)));
            }
            "unsuspended" => {
                self.state.suspensions.failures = words[1].parse().unwrap();
                self.state.suspensions.last = Some((ago(span(words[2])), failure(ErrorClass::Transient)));
            }
            "recent" => {
                let count: usize = words[1].parse().unwrap();
                self.state.launches.recent = vec![ago(span(words[2])); count];
            }
            "out" => {
                let class = ErrorClass::NoCapacity { scope: "zone".into() };
                self.refuse(
                    words[1],
                    class,
                    words[2],
                    words.get(3).map_or(1, |times| times.parse().unwrap()),
                );
            }
            "quota" => self.refuse(words[1], ErrorClass::Quota, words[2], 1),
            "forgotten" => {
                let hosts = self.state.instances.values().filter(|i| i.is_static());
                let ids: Vec<_> = hosts.map(|host| host.id.clone()).collect();
                for instance in ids {
                    self.tell(NOW, Change::Forgotten { instance });
                }
            }
            "unlisted" => self.observed.listing = Err(failure(ErrorClass::Transient)),
            // `list 3s`: its age.
            "list" => self.listing().begun = ago(span(words[1])),
            _ => {}
        }
    }

    fn refuse(&mut self, offering: &str, class: ErrorClass, age: &str, times: u32) {
        let at = ago(span(age));
        let failure = failure(class);
        for earlier in (0..times).rev() {
            let at = Stamp { uptime_ms: at.uptime_ms - u64::from(earlier), ..at };
            self.state.availability.refuse(&OfferingName::new(offering), at, &failure, at);
        }
    }

    fn add(&mut self, item: &str) {
        let words: Vec<&str> = item.split_whitespace().collect();
        match words[0] {
            "waits" => self.add_waiting(&words),
            "orphan" | "stranger" | "foreign" | "host" => self.add_unrecorded(&words),
            "static" => self.add_instance(&words[1..], true),
            _ => self.add_instance(&words, false),
        }
    }

    fn add_waiting(&mut self, words: &[&str]) {
        let job: u64 = words[1].parse().unwrap_or_else(|_| panic!("`{}` is no job", words[1]));
        let requested_at = ago(age(words).unwrap_or(Duration::from_secs(10)));
        let project = after(words, "of").unwrap_or("a");
        let timeout = after(words, "timeout").map_or(Duration::from_hours(1), span);
        let images = images::wanted(words);
        let order = after(words, "orders").map(order);
        let facts =
            JobFacts { protected: is_protected(words), images, order, ..facts(job, project, timeout) };
        self.request(facts, requested_at);
        self.attend(job, requested_at, None);
        let alive = !words.contains(&"dead");
        let seen = self.seen(job);
        seen.lease_held = alive;
        seen.used = false;
    }

    fn request(&mut self, job: JobFacts, requested_at: Stamp) {
        let domain = self.policy.domain_of(&job);
        let acquire_timeout = self.policy.timing.acquire_timeout;
        let change = Change::Requested { attempt: attempt(job.key.id), job, domain, acquire_timeout };
        self.tell(requested_at, change);
    }

    /// An open attempt with a living runner, between two stages.
    fn attend(&mut self, job: u64, begun: Stamp, instance: Option<InstanceId>) {
        let seen = AttemptSeen {
            job: Some(facts(job, "a", Duration::from_hours(1))),
            instance,
            unreadable: None,
            begun,
            closed: None,
            used: true,
            lease_held: false,
            lease_at: begun,
            runner: Presence::There,
            tmpdir: Presence::There,
            boot: NOW.boot,
        };
        self.observed.attempts.insert(attempt(job), seen);
    }

    fn add_unrecorded(&mut self, words: &[&str]) {
        self.others += 1;
        let id = InstanceId::new(format!("u{}", self.others));
        let made = ago(age(words).unwrap_or_default());
        let (owner, number) = match words[0] {
            "orphan" => ("us", 1),
            "stranger" => ("us", 1_000),
            _ => ("them", 1),
        };
        let generation = generation();
        if words[0] == "orphan" {
            self.state.generations.entry(generation.clone()).and_modify(|n| *n = (*n).max(1)).or_insert(1);
        }
        let tags = Tags { pool: PoolName::new("p"), owner: OwnerId::new(owner), generation, number };
        let tags = (words[0] != "host").then_some(tags);
        let status = status(words).unwrap_or(Status::Running);
        self.listed.push(listed(&id, tags, status, Some(made)));
        self.claim(words, &id);
    }

    fn claim(&mut self, words: &[&str], id: &InstanceId) {
        for (word, used) in [("named", false), ("user", true)] {
            if let Some(job) = after(words, word) {
                let job: u64 = job.parse().unwrap();
                self.attend(job, ago(Duration::from_mins(2)), Some(id.clone()));
                self.seen(job).used = used;
            }
        }
    }

    fn add_instance(&mut self, words: &[&str], is_static: bool) {
        let id = if is_static {
            self.others += 1;
            InstanceId::new(format!("h{}", self.others))
        } else {
            self.launched += 1;
            InstanceId::new(format!("p-g-{}", self.launched))
        };
        let old = words.contains(&"old");
        let age = age(words).unwrap_or(Duration::from_mins(1));
        let at = move |age: Duration| if old { earlier_boot(age) } else { ago(age) };
        self.begin(&id, words, is_static, &at, age);
        self.jobs(&id, words, &at, age);
        self.end_up(&id, words, at(age));
        self.images(&id, words, at(age));
        self.witness(&id, words, is_static);
    }

    /// From the intent to ready, as far as the phase requires.
    fn begin(
        &mut self,
        id: &InstanceId,
        words: &[&str],
        is_static: bool,
        at: &dyn Fn(Duration) -> Stamp,
        age: Duration,
    ) {
        let minute = Duration::from_mins(1);
        let past = after(words, "of").is_some() || words[0] == "held" || is_of_tier(words);
        let boots = matches!(words[0], "requested" | "unknown" | "refused" | "booting");
        let created = match (boots, past) {
            (true, _) => age,
            (false, false) => age + Duration::from_secs(30),
            (false, true) => age + Duration::from_secs(30) + minute,
        };
        let own = after(words, "for").map(|_| 1);
        let usual = own.unwrap_or(self.policy.capacity_per_instance);
        let capacity = after(words, "cap").map_or(usual, |n| n.parse().unwrap());
        let past_jobs = if words.contains(&"twice") { 2 } else { usize::from(after(words, "of").is_some()) };
        let used = jobs_of(words).len() + past_jobs;
        let uses = after(words, "uses").map(|n| n.parse::<u32>().unwrap()).or(self.policy.max_use_count);
        let uses_left = own.or(uses.map(|left| left + u32::try_from(used).unwrap()));
        let instance = id.clone();
        if is_static {
            let endpoint = endpoint();
            let location = Location::new(after(words, "in").unwrap_or("here"));
            let located = Change::Located { instance: id.clone(), location };
            self.tell(at(created), Change::Adopted { instance, endpoint, capacity, uses_left });
            self.tell(at(created), located);
        } else {
            let generation = generation();
            let number = self.launched;
            let offering = after(words, "as").map(OfferingName::new);
            let none_left = ErrorClass::NoCapacity { scope: "zone".into() };
            let no = if offering.is_some() { none_left } else { ErrorClass::Transient };
            let intent = Change::LaunchIntended {
                instance,
                generation,
                number,
                attempt: 1,
                capacity,
                uses_left,
                offering,
                location: Some(Location::new(after(words, "in").unwrap_or("here"))),
                lifetime: after(words, "lives").map(|most| Lifetime(span(most))),
                ordered: after(words, "for").map(|job| self.ordered(job, words)),
            };
            self.tell(at(created), intent);
            let when = at(created.saturating_sub(Duration::from_secs(1)));
            let answer = match words[0] {
                "requested" => None,
                "unknown" => Some(Answer::Unknown { at: when }),
                "refused" => Some(Answer::Refused { at: when, failure: failure(no) }),
                _ => Some(Answer::Accepted { at: when }),
            };
            if let Some(answer) = answer {
                self.tell(when, Change::LaunchAnswered { instance: id.clone(), attempt: 1, answer });
            }
            if boots {
                return;
            }
            let reached = Change::Reached { instance: id.clone(), endpoint: endpoint() };
            self.tell(at(if words[0] == "checking" { age } else { created }), reached);
        }
        if words[0] != "checking" {
            let ready = if past { age + minute } else { age };
            self.tell(at(ready), Change::BecameReady { instance: id.clone() });
        }
    }

    fn ordered(&self, job: &str, words: &[&str]) -> Arc<Ordered> {
        let job: u64 = job.parse().unwrap_or_else(|_| panic!("`{job}` is no job"));
        let project = after(words, "of").unwrap_or("a");
        let facts = facts(job, project, Duration::from_hours(1));
        let domain = self.policy.domain_of(&facts);
        Arc::new(Ordered { attempt: attempt(job), job: facts.key, domain, order: order("ruby") })
    }

    /// Past and present jobs.
    fn jobs(&mut self, id: &InstanceId, words: &[&str], at: &dyn Fn(Duration) -> Stamp, age: Duration) {
        let project = after(words, "of").unwrap_or("a");
        let facts = |job| {
            let facts = facts(job, project, Duration::from_hours(1));
            let own = after(words, "for").filter(|own| own.parse() == Ok(job));
            JobFacts { protected: is_protected(words), order: own.map(|_| order("ruby")), ..facts }
        };
        let before = if words.contains(&"twice") { [0, 500].iter() } else { [0].iter() };
        for earlier in before.filter(|_| after(words, "of").is_some()) {
            let job = 1_000 + earlier + u64::from(self.launched + self.others);
            self.request(facts(job), at(age + Duration::from_secs(50)));
            let begun = at(age + Duration::from_secs(40));
            self.tell(begun, Change::Granted { attempt: attempt(job), instance: id.clone() });
            for (word, kind) in [
                ("unbegun", CheckKind::Stages),
                ("suspect", CheckKind::Engine),
                ("disconnected", CheckKind::Network),
            ] {
                if words.contains(&word) {
                    let reason = "exit status 97".to_owned();
                    self.tell(begun, Change::StageNotBegun { attempt: attempt(job), reason, kind });
                }
            }
            let leaving = Release { how: End::CleanedUp, used: true, closing: false };
            self.tell(at(age), Change::Released { attempt: attempt(job), release: leaving });
            if !words.contains(&"unchecked") {
                self.tell(at(age), Change::Rechecked { instance: id.clone() });
            }
        }
        for (job, closing) in jobs_of(words) {
            self.request(facts(job), at(age));
            self.tell(at(age), Change::Granted { attempt: attempt(job), instance: id.clone() });
            self.attend(job, at(age), Some(id.clone()));
            if closing {
                let leaving = Release { how: End::CleanedUp, used: true, closing: true };
                self.tell(at(age), Change::Released { attempt: attempt(job), release: leaving });
                let seen = self.seen(job);
                seen.closed = Some(cleaned(at(age)));
                seen.lease_held = true;
            }
        }
    }

    fn end_up(&mut self, id: &InstanceId, words: &[&str], at: Stamp) {
        let instance = id.clone();
        match words[0] {
            "cleaning" => self.tell(at, Change::CleaningBegun { instance }),
            "out-of-service" => self.tell(at, Change::OutOfService { instance, reason: "broken".into() }),
            "draining" => self.tell(at, Change::DrainingBegun { instance, reason: DrainReason::ByOperator }),
            "suspending" | "stopped" | "resuming" => self.suspend(words[0], instance, at),
            "requested" | "unknown" | "refused" | "booting" | "checking" | "idle" | "held" => {}
            other => panic!("`{other}` is no phase"),
        }
        if let Some(missing) = after(words, "missing") {
            let instance = id.clone();
            let begun = ago(span(missing));
            self.tell(begun, Change::MissingFromList { instance, begun });
        }
    }

    fn suspend(&mut self, step: &str, instance: InstanceId, at: Stamp) {
        let suspend = Change::SuspendIntended { instance: instance.clone() };
        let stop = Change::Suspended { instance: instance.clone() };
        let resume = Change::ResumeIntended { instance };
        let changes = match step {
            "suspending" => vec![suspend],
            "stopped" => vec![suspend, stop],
            _ => vec![suspend, stop, resume],
        };
        let count = u32::try_from(changes.len()).unwrap();
        for (change, before) in changes.into_iter().zip((0..count).rev()) {
            self.tell(at.minus(Duration::from_secs(10) * before), change);
        }
    }

    /// Adds what is observed of an instance.
    fn witness(&mut self, id: &InstanceId, words: &[&str], is_static: bool) {
        let denials = [("denied", ago(Duration::from_mins(1))), ("denied-since", NOW)];
        let denied = denials.iter().find(|(word, _)| words.contains(word)).map(|(_, at)| *at);
        let hidden = denied.is_some() || ["gone", "missing"].iter().any(|w| words.contains(w));
        let unborn = matches!(words[0], "requested" | "unknown" | "refused");
        let usual = if words[0] == "stopped" { Status::Suspended } else { Status::Running };
        let status = status(words).or((!hidden && !unborn).then_some(usual));
        if let Some(at) = denied {
            self.observed.denied.insert(id.clone(), at);
        }
        if words.contains(&"silent") {
            self.observed.unhealthy.insert(id.clone(), NOW);
        } else if !words.contains(&"unheard") {
            self.observed.healthy.insert(id.clone(), NOW);
        }
        if let Some(status) = status {
            let owner = OwnerId::new("us");
            let generation = generation();
            let tags = Tags { pool: PoolName::new("p"), owner, generation, number: self.launched };
            let tags = (!is_static).then_some(tags);
            let mut listed = listed(id, tags, status, None);
            let text = "will end".to_owned();
            listed.notice = match after(words, "ends") {
                Some("now") => Some(Notice { text, at: None }),
                Some(left) => Some(Notice { text, at: Some(NOW.plus(span(left))) }),
                None => None,
            };
            if words.contains(&"impossible") {
                listed.refused = Some(RefusedOrder { reason: "no such image".to_owned(), by_job: true });
            }
            self.listed.push(listed);
        }
        if words.contains(&"announced") {
            let notice = Notice { text: "may end".to_owned(), at: None };
            self.observed.announced.insert(id.clone(), notice);
        }
        self.claim(words, id);
        if words.contains(&"busy") {
            self.observed.busy.insert(id.clone());
        }
        if let Some(left) = after(words, "failing") {
            let failure = failure(ErrorClass::Transient);
            let failing = FailingCall { failures: 1, failure, until: NOW.plus(span(left)) };
            self.observed.failing_calls.insert(id.clone(), failing);
        }
        if let Some(left) = after(words, "awaited") {
            self.observed.awaited.insert(id.clone(), NOW.plus(span(left)));
        }
    }
}

fn is_of_tier(words: &[&str]) -> bool {
    matches!(words[0], "suspending" | "stopped" | "resuming")
}

/// True if its jobs are those of protected refs.
fn is_protected(words: &[&str]) -> bool {
    words.contains(&"protected")
}

/// A moment of this age, in the boot before the present one.
fn earlier_boot(age: Duration) -> Stamp {
    Stamp { boot: BootId(6), uptime_ms: 500_000_000, ..ago(age + Duration::from_mins(10)) }
}

/// The order of a job: an image of this name.
fn order(image: &str) -> Arc<Order> {
    Arc::new(Order { image: image.into(), services: Vec::new(), more_services: 0 })
}

fn after<'a>(words: &[&'a str], word: &str) -> Option<&'a str> {
    words.iter().position(|w| *w == word).map(|at| words[at + 1])
}

/// The second word, or the third, if it reads like a duration.
fn age(words: &[&str]) -> Option<Duration> {
    let is_span = |w: &&&str| w.starts_with(|c: char| c.is_ascii_digit()) && w.ends_with(['s', 'm', 'h']);
    words.iter().skip(1).take(2).find(is_span).map(|w| span(w))
}

/// Jobs on it, and whether they are closing.
fn jobs_of(words: &[&str]) -> Vec<(u64, bool)> {
    let mut jobs = Vec::new();
    for (word, closing) in [("by", false), ("closing", true)] {
        let list = after(words, word).unwrap_or_default();
        jobs.extend(list.split(',').filter(|j| !j.is_empty()).map(|j| (j.parse().unwrap(), closing)));
    }
    jobs
}

fn status(words: &[&str]) -> Option<Status> {
    words.iter().find_map(|word| match *word {
        "starting" => Some(Status::Starting),
        "running" => Some(Status::Running),
        "suspended" => Some(Status::Suspended),
        "stopping" => Some(Status::Stopping),
        _ => None,
    })
}

fn listed(id: &InstanceId, tags: Option<Tags>, status: Status, created: Option<Stamp>) -> Listed {
    Listed {
        id: id.clone(),
        tags,
        status,
        created,
        detail: None,
        by_job: false,
        refused: None,
        static_host: None,
        notice: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_text_is_a_world() {
        let world =
            world("max 9, target 2 | idle 5m; held 3m by 7 cap 2; refused 10s; waits 8 of b; orphan 6m");
        assert_eq!(world.policy.max_instances, 9);
        assert_eq!(world.policy.idle.idle_count, 2);
        let states: Vec<_> = world.state.instances.values().map(|i| (i.phase.word(), i.capacity)).collect();
        assert_eq!(states, [("ready", 1), ("ready", 2), ("launching", 1)]);
        assert!(world.state.granted.contains_key(&attempt(7)));
        assert!(world.state.waiting_for(&attempt(8)).is_some());
        let idle = world.state.instance(&instance("i1")).unwrap();
        assert_eq!(NOW.since(idle.idle_since()), Duration::from_mins(5));
        let listed: Vec<_> = world.observed.listing.unwrap().instances.into_iter().map(|l| l.id).collect();
        assert_eq!(listed, [instance("i1"), instance("i2"), instance("u1")]);
    }
}
