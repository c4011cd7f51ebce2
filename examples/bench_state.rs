//! State for `scripts/bench`: large warm pools.
//!
//! `bench_state fill STATE POOL COUNT KEY HOST USER PORT…` makes a pool of COUNT idle instances in the directory STATE.
//! All are reached on loopback at the PORTs (elsewhere at ADDRESS:PORT), in turn, as USER, with the private key in the
//! file KEY; the file HOST holds the servers' public key.
//! `bench_state acquire ROUNDS COUNT…` prints, for each COUNT, what one acquire costs a process that has read nothing
//! yet: load, decide, commit. One line of microseconds per COUNT, the counts taken in turn.
//! `bench_state history STATE POOL JOBS DAYS` makes the journals of JOBS jobs in the last DAYS days, each on an instance of its
//! own.

#[path = "parts/booted.rs"]
mod booted;

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use booted::booted;
use greenroom_core::attempt::End;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::event::{Change, Event};
use greenroom_core::ids::{AttemptName, Generation, InstanceId, JobKey, OfferingName, PoolName, TrustDomain};
use greenroom_core::instance::{Answer, DrainReason, Release};
use greenroom_core::job::JobFacts;
use greenroom_core::job_end::{JobEnd, JobResult};
use greenroom_core::plan::request::{self, Ask};
use greenroom_core::policy::{IdlePolicy, Policy, Reuse};
use greenroom_core::time::{ManagerId, Stamp};
use greenroom_manager::file_store::{self, FileStore, Options};
use greenroom_manager::runner_host::{StateDir, SystemClock};
use greenroom_ports::clock::Clock;
use greenroom_ports::store::Store;

type Outcome<T> = Result<T, Box<dyn Error>>;

const USAGE: &str = "usage: bench_state fill STATE POOL COUNT KEY HOST USER PORT… | bench_state acquire ROUNDS COUNT… | bench_state history \
     STATE POOL JOBS DAYS";

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match arguments.as_slice() {
        ["fill", state, pool, count, key, host, user, ports @ ..] if !ports.is_empty() => {
            let host_key = std::fs::read_to_string(host)?.trim_end().to_owned();
            let mut endpoints = Vec::new();
            for place in ports {
                let (address, port) = place.rsplit_once(':').unwrap_or(("127.0.0.1", place));
                let (address, user, host_key) = (address.to_owned(), (*user).to_owned(), host_key.clone());
                let port = port.parse()?;
                endpoints.push(Endpoint {
                    address,
                    port,
                    user,
                    host_key,
                    key: None,
                    jump: None,
                    forward: None,
                    metadata: None,
                });
            }
            let (state, pool) = (Path::new(state), PoolName::parse(pool)?);
            runtime.block_on(fill(state, &pool, count.parse()?, Path::new(key), &endpoints))
        }
        ["acquire", rounds, counts @ ..] => {
            let counts: Result<Vec<u32>, _> = counts.iter().map(|count| count.parse()).collect();
            runtime.block_on(acquire(rounds.parse()?, &counts?))
        }
        ["history", state, pool, jobs, days] => {
            let (pool, period) = (PoolName::parse(pool)?, Duration::from_hours(24) * days.parse::<u32>()?);
            runtime.block_on(history(Path::new(state), &pool, jobs.parse()?, period))
        }
        _ => Err(USAGE.into()),
    }
}

/// Folds the journal whenever it is asked to.
fn eager() -> Options {
    Options { compact_at: 0, ..Options::default() }
}

fn store(state: &Path, pool: &PoolName) -> Outcome<FileStore> {
    Ok(file_store::open_dir(state)?.pool(pool, eager())?)
}

async fn fill(state: &Path, pool: &PoolName, count: u32, key: &Path, endpoints: &[Endpoint]) -> Outcome<()> {
    StateDir::open(state)?;
    let made = warm(&store(state, pool)?, count, endpoints, SystemClock::new(ManagerId(1))?.now()).await?;
    for id in &made {
        let folder = state.join("keys").join(id.as_str());
        std::fs::create_dir_all(&folder)?;
        std::fs::hard_link(key, folder.join("client_key"))?;
    }
    Ok(())
}

/// Records `count` idle instances that may be used by anybody, any number of times, and folds them into a snapshot.
async fn warm(store: &FileStore, count: u32, endpoints: &[Endpoint], now: Stamp) -> Outcome<Vec<InstanceId>> {
    let generation = Generation::new("beacb0a7");
    let policy = Policy {
        max_instances: count,
        max_use_count: None,
        reuse: Reuse::Any,
        idle: IdlePolicy { idle_count: count, idle_time: Duration::from_hours(24), ..IdlePolicy::default() },
        ..Policy::default()
    };
    let mut events = vec![
        Change::PolicySet { policy: policy.into() }.at(now),
        Change::GenerationBegun { generation: generation.clone() }.at(now),
    ];
    let mut made = Vec::new();
    for (number, endpoint) in (1..=count).zip(endpoints.iter().cycle()) {
        let instance = InstanceId::new(format!("linux-{generation}-{number}"));
        events.extend(booted(&instance, (&generation, number), endpoint.clone(), now));
        made.push(instance);
    }
    store.transact(&mut |_| events.clone()).await?;
    store.compact().await?;
    let idle = store.load().await?.instances.values().filter(|instance| instance.is_idle()).count();
    if idle != made.len() {
        return Err(format!("{idle} instances are idle, expected {}", made.len()).into());
    }
    Ok(made)
}

#[expect(clippy::print_stdout, reason = "the figures are for the script that asked")]
async fn acquire(rounds: u64, counts: &[u32]) -> Outcome<()> {
    let pool = PoolName::new("bench");
    let now = SystemClock::new(ManagerId(1))?.now();
    let home = std::env::temp_dir().join(format!("greenroom-bench-{}", std::process::id()));
    let mut pools = Vec::new();
    for count in counts {
        let dir = home.join(count.to_string());
        let endpoints: Vec<Endpoint> = (0..250).map(somewhere).collect();
        warm(&store(&dir, &pool)?, *count, &endpoints, now).await?;
        pools.push((dir, Vec::new()));
    }
    for round in 0..rounds {
        for (dir, costs) in &mut pools {
            costs.push(acquire_once(dir, &pool, round, now).await?);
        }
    }
    for (count, (_, costs)) in counts.iter().zip(&pools) {
        let costs: Vec<String> = costs.iter().map(|cost| cost.as_micros().to_string()).collect();
        println!("{count} {}", costs.join(" "));
    }
    std::fs::remove_dir_all(&home)?;
    Ok(())
}

/// One acquire by a store that knows nothing, as `prepare` makes it; given back and folded, unmeasured.
async fn acquire_once(dir: &Path, pool: &PoolName, round: u64, now: Stamp) -> Outcome<Duration> {
    let attempt = AttemptName::new(format!("a{round}"));
    let key = JobKey::new("http://greenroom.invalid", round);
    let job = JobFacts::new(key, "bench/bench", Duration::from_hours(1));
    let begun = Instant::now();
    let fresh = store(dir, pool)?;
    let policy = fresh.load().await?.policy.ok_or("the pool has no policy")?;
    let ask = Ask { attempt: attempt.clone(), job, policy, superseded: Vec::new() };
    let committed = fresh.transact(&mut |state| request::acquire(state, &ask, now)).await?;
    let cost = begun.elapsed();
    if !committed.state.granted.contains_key(&attempt) {
        return Err("the request was not granted".into());
    }
    let released = Release { how: End::GivenBack, used: false, closing: false };
    fresh
        .transact(&mut |state: &_| -> Vec<Event> { request::release(state, &attempt, released, now) })
        .await?;
    fresh.compact().await?;
    Ok(cost)
}

/// Records jobs at regular intervals. Every third one waits for its boot, every tenth one fails.
async fn history(state: &Path, pool: &PoolName, jobs: u32, period: Duration) -> Outcome<()> {
    const AT_ONCE: u32 = 25;
    StateDir::open(state)?;
    let store = file_store::open_dir(state)?.pool(pool, Options::default())?;
    let now = SystemClock::new(ManagerId(1))?.now();
    let every = period / jobs.max(1);
    let begin = now.wall_ms - i64::try_from(period.as_millis())?;
    let at = |job: u32, seconds: u64| {
        let since = every * job + Duration::from_secs(seconds);
        let ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        Stamp { wall_ms: begin.saturating_add_unsigned(ms), uptime_ms: ms, ..now }
    };
    let policy = Policy { max_instances: 500, ..Policy::default() };
    store.transact(&mut |_| vec![Change::PolicySet { policy: policy.clone().into() }.at(at(0, 0))]).await?;
    let mut next = 0;
    while next < jobs {
        let batch = next..jobs.min(next + AT_ONCE);
        next = batch.end;
        let events: Vec<Event> = batch.flat_map(|job| life(pool, job, &|seconds| at(job, seconds))).collect();
        store.transact(&mut |_| events.clone()).await?;
        store.compact().await?;
    }
    Ok(())
}

/// The events of one job and its instance.
fn life(pool: &PoolName, job: u32, at: &dyn Fn(u64) -> Stamp) -> Vec<Event> {
    let (generation, number) = (Generation::new("beacb0a7"), job + 1);
    let instance = InstanceId::new(format!("{pool}-{generation}-{number}"));
    let attempt = AttemptName::new(format!("custom-executor{:09}", u64::from(job) * 7919 % 1_000_000_007));
    let key = JobKey::new("https://gitlab.example.com", 1_000_000 + u64::from(job));
    let facts = JobFacts {
        pipeline: Some(u64::from(job) / 12),
        stage: JobFacts::text("test"),
        name: JobFacts::text("rspec 1/5"),
        git_ref: JobFacts::text("main"),
        ..JobFacts::new(key, format!("acme/shop-{}", job % 40), Duration::from_hours(1))
    };
    let asked = if job.is_multiple_of(3) { 0 } else { 60 };
    let end = if job.is_multiple_of(10) {
        JobEnd::new(JobResult::Failed, "`build_script` exited with status 1")
    } else {
        JobEnd::new(JobResult::Passed, "")
    };
    let mut events = vec![
        Change::LaunchIntended {
            instance: instance.clone(),
            generation,
            number,
            attempt: 1,
            capacity: 1,
            uses_left: Some(1),
            offering: Some(OfferingName::new("us-east1-b n2d-standard-4 spot")),
            location: None,
            lifetime: None,
            ordered: None,
        }
        .at(at(0)),
        Change::LaunchAnswered {
            instance: instance.clone(),
            attempt: 1,
            answer: Answer::Accepted { at: at(1) },
        }
        .at(at(1)),
        Change::Reached { instance: instance.clone(), endpoint: somewhere(job % 250) }.at(at(20)),
        Change::BecameReady { instance: instance.clone() }.at(at(21)),
    ];
    let requested = Change::Requested {
        attempt: attempt.clone(),
        job: facts,
        domain: TrustDomain::new("acme/shop"),
        acquire_timeout: Duration::from_mins(30),
    };
    events.insert(if asked == 0 { 0 } else { events.len() }, requested.at(at(asked)));
    let granted = asked.max(21);
    let release = Release { how: End::CleanedUp, used: true, closing: false };
    events.extend([
        Change::Granted { attempt: attempt.clone(), instance: instance.clone() }.at(at(granted)),
        Change::JobEnded { attempt: attempt.clone(), end }.at(at(granted + 300)),
        Change::Released { attempt, release }.at(at(granted + 300)),
        Change::DrainingBegun { instance: instance.clone(), reason: DrainReason::UsedUp }
            .at(at(granted + 300)),
        Change::Forgotten { instance }.at(at(granted + 310)),
    ]);
    events
}

fn somewhere(number: u32) -> Endpoint {
    Endpoint {
        address: format!("10.0.0.{number}"),
        port: 22,
        user: "ubuntu".to_owned(),
        host_key: format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{number:043}"),
        key: None,
        jump: None,
        forward: None,
        metadata: None,
    }
}
