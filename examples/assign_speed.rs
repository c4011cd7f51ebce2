//! The cost of the preference for instances with a job's images, in an assignment among 1,000 idle instances:
//! `cargo run --release --example assign_speed`.
//!
//! Each case takes turns with the same assignment for a job without images, and the best of many rounds counts. Fails if a
//! case takes more than 1.05 times as long.

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greenroom_core::endpoint::Endpoint;
use greenroom_core::event::Change;
use greenroom_core::ids::{AttemptName, Generation, InstanceId, JobKey, PoolName};
use greenroom_core::images::{FoundImage, WantedImages};
use greenroom_core::job::JobFacts;
use greenroom_core::plan::request::{self, Ask};
use greenroom_core::policy::Policy;
use greenroom_core::pool::PoolState;
use greenroom_core::time::{BootId, ManagerId, Stamp};

const INSTANCES: u32 = 1_000;
const ROUNDS: usize = 400;
const MOST: f64 = 1.05;

/// Some time after all is ready.
fn at(ms: u64) -> Stamp {
    let wall_ms = 1_781_524_800_000 + i64::try_from(ms).unwrap_or(0);
    Stamp { wall_ms, manager: ManagerId(1), boot: BootId(7), uptime_ms: 864_000_000 + ms }
}

fn name(number: u32) -> Arc<str> {
    format!("registry.example.com/group/project/image-{number}:1.{number}").into()
}

/// A thousand idle instances, with the images that `has` gives each of them.
fn state(policy: &Arc<Policy>, has: impl Fn(u32) -> Vec<u32>) -> PoolState {
    let mut state = PoolState::default();
    let mut tell = |ms, change: Change| state.apply(&change.at(at(ms))).expect("it fits");
    tell(0, Change::PolicySet { policy: Arc::clone(policy) });
    let generation = Generation::new("3f9a");
    tell(0, Change::GenerationBegun { generation: generation.clone() });
    for number in 1..=INSTANCES {
        let instance = InstanceId::launched(&PoolName::new("linux"), &generation, number);
        let ms = u64::from(number * 7919 % INSTANCES) * 10;
        let generation = generation.clone();
        let (offering, location, uses_left) = (None, None, Some(1));
        let (attempt, capacity) = (1, 1);
        tell(
            ms,
            Change::LaunchIntended {
                instance: instance.clone(),
                generation,
                number,
                attempt,
                capacity,
                uses_left,
                offering,
                location,
                lifetime: None,
                ordered: None,
            },
        );
        let endpoint = Endpoint {
            address: "192.0.2.1".into(),
            port: 22,
            user: "root".into(),
            host_key: "ssh-ed25519 AAAA".into(),
            key: None,
            jump: None,
            forward: None,
            metadata: None,
        };
        tell(ms, Change::Reached { instance: instance.clone(), endpoint });
        tell(ms, Change::BecameReady { instance: instance.clone() });
        let images: Vec<FoundImage> = has(number)
            .into_iter()
            .map(|image| FoundImage { name: name(image), digest: Some("sha256:0a".into()), bytes: 1 << 28 })
            .collect();
        if !images.is_empty() {
            tell(ms, Change::ImagesFound { instance, images, attempt: None });
        }
    }
    state
}

fn ask(policy: &Arc<Policy>, images: &[u32]) -> Ask {
    let key = JobKey::new("https://gitlab.example.org", 4711);
    let job = JobFacts::new(key, "group/project", Duration::from_hours(1));
    let job = JobFacts { images: WantedImages::new(images.iter().map(|image| name(*image))), ..job };
    let attempt = AttemptName::new("custom-executor4711");
    Ask { attempt, job, policy: Arc::clone(policy), superseded: Vec::new() }
}

/// The time of one assignment: the mean of a few.
fn once(state: &PoolState, ask: &Ask) -> Duration {
    const TIMES: u32 = 5;
    let now = at(1_000_000);
    let begun = Instant::now();
    for _ in 0..TIMES {
        assert_eq!(black_box(request::acquire(black_box(state), ask, now)).len(), 2, "requested and granted");
    }
    begun.elapsed() / TIMES
}

#[expect(clippy::print_stdout, reason = "its purpose")]
fn main() -> ExitCode {
    let policy = Arc::new(Policy { max_instances: INSTANCES, ..Policy::default() });
    let all = state(&policy, |_| vec![1, 2, 3, 4, 5]);
    let none = state(&policy, |_| Vec::new());
    let others = state(&policy, |_| vec![6, 7, 8, 9, 10]);
    let mixed = state(&policy, |number| (1..=5).filter(|image| number % (image + 1) == 0).collect());
    let (with, without) = (ask(&policy, &[1, 2, 3]), ask(&policy, &[]));
    let mut worst: f64 = 0.0;
    for (what, state) in [
        ("all have all images of the job", &all),
        ("no instance has any image", &none),
        ("all have five other images", &others),
        ("some have some of them", &mixed),
    ] {
        let (mut best, mut base) = (Duration::MAX, Duration::MAX);
        for _ in 0..ROUNDS {
            base = base.min(once(state, &without));
            best = best.min(once(state, &with));
        }
        let ratio = best.as_secs_f64() / base.as_secs_f64();
        worst = worst.max(ratio);
        println!("{what:<34} {:>8.1} µs, without images {:>8.1} µs: {ratio:.3}", micros(best), micros(base));
    }
    if worst <= MOST { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
