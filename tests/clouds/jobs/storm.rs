//! Faults of disk, network, cloud and clock, and kills, all together; then an audit of what is left.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use greenroom_harness::place::Service;
use greenroom_harness::processes::{Kind, wait_for};
use greenroom_testkit::dice::{Dice, number};
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use greenroom_testkit::skipped::skipped;
use rustix::process::Signal;
use serde_json::json;

use crate::cloud::{Buy, Cloud};
use crate::site::{PATIENCE, Site, pool};

/// The variable that is set in the process that has a mount namespace of its own.
const INSIDE: &str = "GREENROOM_STORM_INSIDE";
/// Length of the storm in seconds, in which everything happens at least once; `scripts/test --full` has half an hour.
const SECONDS: &str = "GREENROOM_STORM";

on_both_clouds![nothing_is_left_after_a_storm];

/// Runs the test once more, in a mount namespace: its state directory is a small file system that it can fill.
fn nothing_is_left_after_a_storm(cloud: Cloud) {
    if std::env::var_os(INSIDE).is_some() {
        return storm(cloud);
    }
    if !Command::new("unshare").args(["-m", "true"]).output().is_ok_and(|output| output.status.success()) {
        return skipped("a mount namespace cannot be made (`unshare -m`)");
    }
    let name = std::thread::current().name().expect("a test's thread has its name").to_owned();
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private"]).arg(std::env::current_exe().expect("a program"));
    command.args(["--exact", &name, "--nocapture"]).env(INSIDE, "1");
    let output = command.output().expect("unshare starts");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    eprintln!("{text}");
    assert!(output.status.success() && text.contains("1 passed"), "in the namespace");
}

fn storm(cloud: Cloud) {
    let setting = pool().pool("max_instances", 3).pool("idle_count", 1).timing("absence_interval", "500ms");
    let site = Site::open(cloud, setting, Buy::Spot);
    small_disk(&site.state_dir);
    // In half an hour, hundreds of machines end. If the emulator listed all of them, it would take longer with each list.
    site.lab.set(&json!({ "visible": 0.5, "remembered": 60.0 }));
    let mut service = site.keep();
    site.warm_up_to(1);
    let before = Held::by(&site);
    let (seed, seconds) = (number("GREENROOM_SEED", 1), number(SECONDS, 20));
    eprintln!(
        "replay: GREENROOM_SEED={seed} {SECONDS}={seconds} cargo test --features all-backends --test clouds storm"
    );
    let mut dice = Dice::new(seed);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut happened = BTreeMap::<&str, u32>::new();
    let (mut job, mut blow) = (0, 0);
    while Instant::now() < until || blow < BLOWS.len() {
        let jobs = [job + 1, job + 2].map(|id| site.runner().start(&Job::new(id).script(["sleep 0.3"])));
        job += 2;
        for _ in 0..3 {
            // Each once, in their order; then at random.
            let (name, strike) =
                *BLOWS.get(blow).unwrap_or_else(|| dice.pick(BLOWS).expect("there are some"));
            blow += 1;
            strike(&site, cloud, &mut dice);
            *happened.entry(name).or_default() += 1;
            std::thread::sleep(Duration::from_millis(dice.below(500)));
            revive(&mut service, &site);
        }
        for job in jobs {
            let result = job.finish();
            let blamed = matches!(result.outcome, Outcome::ScriptFailure { .. });
            assert!(!blamed, "a fault is never the script's: {}\n{}", result.describe(), site.log());
        }
    }
    eprintln!("{}: {job} jobs, {happened:?}", cloud.name());
    audit(&site, job, &before);
    service.kill();
}

/// Checks the site after the storm: a job runs, the pool is as before, and a drained pool holds nothing.
fn audit(site: &Site, jobs: u64, before: &Held) {
    site.lab.set(&json!({ "visible": 0.0, "clock_ahead": 0.0 }));
    wait_for("a keeper that works", PATIENCE, || site.greenroom(&["reap"]).status.success().then_some(()));
    site.run(&Job::new(jobs + 1)).expect_outcome(&Outcome::Success);
    site.expect_nothing_left(1);
    wait_for("no more than before", PATIENCE, || {
        let now = Held::by(site);
        (now.is_within(before)).then_some(()).or_else(|| {
            eprintln!("{now:?}, before: {before:?}");
            None
        })
    });
    site.order(&["pool", "drain", "--wait"]);
    site.expect_nothing_left(0);
    for dir in ["launches/pool", "keys", "links/pool"] {
        let left = || {
            let entries = fs::read_dir(site.state_dir.join(dir)).into_iter().flatten().flatten();
            entries.filter(|entry| entry.path().extension().is_none_or(|kind| kind != "gone")).count()
        };
        wait_for(dir, PATIENCE, || (left() == 0).then_some(()));
    }
    // Beside the service, a keeper that a call has started while the service was dead.
    wait_for("the end of all but the keepers", PATIENCE, || {
        site.processes().iter().all(|process| process.kind == Kind::Keeper).then_some(())
    });
}

/// The resources that the keeper holds with one idle instance, and the processes around it.
#[derive(Debug)]
struct Held {
    descriptors: usize,
    threads: usize,
    locks: usize,
    processes: usize,
}

impl Held {
    fn by(site: &Site) -> Self {
        let keeper = site.of_kind(Kind::Keeper).first().map_or(0, |keeper| keeper.pid);
        let count =
            |what: &str| fs::read_dir(format!("/proc/{keeper}/{what}")).map_or(usize::MAX, Iterator::count);
        let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
        let of_keeper = |line: &&str| line.split_whitespace().any(|word| word == keeper.to_string());
        Self {
            descriptors: count("fd"),
            threads: count("task"),
            locks: locks.lines().filter(of_keeper).count(),
            processes: site.processes().len(),
        }
    }

    /// Threads and connections that are only kept for a while may be more by a few.
    fn is_within(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors + 4
            && self.threads <= before.threads + 4
            && self.locks <= before.locks
            && self.processes <= before.processes
    }
}

/// Starts a keeper that has ended again, as a service manager does.
fn revive(service: &mut Service, site: &Site) {
    if service.ended().is_some() {
        *service = site.keep();
    }
}

type Blow = fn(&Site, Cloud, &mut Dice);

const BLOWS: &[(&str, Blow)] = &[
    ("full disk", |site, _, dice| {
        let ballast = site.state_dir.join("ballast");
        fill(&ballast);
        std::thread::sleep(Duration::from_millis(dice.below(1_500)));
        fs::remove_file(ballast).expect("the ballast is there");
    }),
    ("killed keeper", |site, _, dice| kill(site, Kind::Keeper, dice)),
    ("killed link", |site, _, dice| kill(site, Kind::Link, dice)),
    ("killed call", |site, _, dice| kill(site, Kind::Call, dice)),
    ("stopped keeper", |site, _, dice| {
        for keeper in site.of_kind(Kind::Keeper) {
            keeper.signal(Signal::STOP);
            std::thread::sleep(Duration::from_millis(dice.below(1_000)));
            keeper.signal(Signal::CONT);
        }
    }),
    ("lost machine", |site, cloud, dice| {
        let living: Vec<_> = site.lab.truth().live().cloned().collect();
        if let Some(machine) = dice.pick(&living) {
            site.lab.interrupt_if_alive(&machine.id, Some(cloud.host_failure()));
        }
    }),
    ("lists throttled", |site, cloud, _| fault(site, cloud.list(), "throttled", 3)),
    ("lists denied", |site, cloud, _| fault(site, cloud.list(), "denied", 3)),
    ("launch answers lost", |site, cloud, _| fault(site, cloud.launch(), "lost", 2)),
    ("no capacity", |site, cloud, _| fault(site, cloud.launch(), "capacity", 2)),
    ("no network", |site, _, _| fault(site, "*", "lost", 5)),
    ("no answers", |site, _, _| {
        site.lab.fault(&json!({ "operation": "*", "mode": "hang", "seconds": 2, "count": 2 }));
    }),
    ("cloud's clock", |site, _, dice| {
        site.lab.set(&json!({ "clock_ahead": 600.0 * f64::from(u32::try_from(dice.below(3)).unwrap_or(0)) }));
    }),
    ("other account", |site, cloud, dice| {
        let here = site.setting.text(&site.state_dir);
        site.write_config(&super::elsewhere::leading_away(site, cloud));
        std::thread::sleep(Duration::from_millis(dice.below(1_500)));
        site.write_config(&here);
    }),
];

fn fault(site: &Site, operation: &str, mode: &str, count: u32) {
    site.lab.fault(&json!({ "operation": operation, "mode": mode, "count": count }));
}

fn kill(site: &Site, kind: Kind, dice: &mut Dice) {
    if let Some(process) = dice.pick(&site.of_kind(kind)) {
        process.kill9();
    }
}

/// A file system of some MiB in this test's mount namespace.
fn small_disk(dir: &Path) {
    fs::create_dir_all(dir).expect("a directory");
    let mount =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m,mode=700", "none"]).arg(dir).status();
    assert!(mount.is_ok_and(|status| status.success()), "a tmpfs can be mounted");
}

fn fill(ballast: &Path) {
    let mut file = File::create(ballast).expect("the file can be made");
    while file.write(&[0; 4096]).is_ok_and(|written| written == 4096) {}
}
