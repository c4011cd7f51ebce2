//! Runs the simulation's seeds and studies: see `scripts/sim`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for a terminal")]

use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use greenroom_core::policy::{IdlePolicy, Policy, Reuse};
use greenroom_sim::cover::Coverage;
use greenroom_sim::product::Greenroom;
use greenroom_sim::run::{SeedResult, run};
use greenroom_sim::study::{Load, Study};
use rustix::time::{ClockId, clock_gettime};

const USAGE: &str =
    "usage: scripts/sim [--seeds A..B [--coverage]] [--seed N [--story]] [--study EVENTS] [--planted]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flag = |name: &str| arguments.iter().any(|a| a == name);
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|i| arguments.get(i + 1));
    if let Some(seed) = value("--seed").and_then(|s| s.parse().ok()) {
        return one(seed, flag("--story"));
    }
    if let Some(events) = value("--study").and_then(|s| s.parse().ok()) {
        return study(events);
    }
    let range = value("--seeds").map_or("0..300", String::as_str);
    let bounds = range.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    let Some((from, to)) = bounds else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    many(from, to, flag("--coverage"), flag("--first"))
}

fn one(seed: u64, story: bool) -> ExitCode {
    let outcome = run(seed, Rc::new(Greenroom), story);
    if let Some(text) = &outcome.story {
        print!("{text}");
    }
    println!("{}", outcome.line());
    if outcome.problem().is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The CPU time of this thread.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The sum of the results of all seeds.
#[derive(Default)]
struct Totals {
    cover: Coverage,
    failed: Vec<(u64, String)>,
    cpu: Duration,
    longest: (Duration, u64),
    steps: u64,
}

impl Totals {
    fn add(&mut self, outcome: &SeedResult, took: Duration) {
        self.cover.merge(&outcome.cover);
        self.cpu += took;
        self.steps += outcome.steps;
        self.longest = self.longest.max((took, outcome.seed));
        if outcome.problem().is_some() {
            self.failed.push((outcome.seed, outcome.line()));
        }
    }
}

fn many(from: u64, to: u64, coverage: bool, first: bool) -> ExitCode {
    // A seed that does not reproduce is worthless: that comes first.
    let twice = || run(from, Rc::new(Greenroom), true);
    if twice().story != twice().story {
        println!("seed {from} tells two stories: the simulation is not deterministic");
        return ExitCode::FAILURE;
    }
    let next = AtomicU64::new(from);
    let totals = Mutex::new(Totals::default());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= to {
                        return;
                    }
                    let before = cpu();
                    let outcome = run(seed, Rc::new(Greenroom), false);
                    let took = cpu().saturating_sub(before);
                    let mut totals = totals.lock().expect("no thread panics while it holds the totals");
                    totals.add(&outcome, took);
                    if first && !totals.failed.is_empty() {
                        next.store(to, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let mut totals = totals.into_inner().expect("all threads have ended");
    totals.failed.sort();
    report(&totals, to - from, coverage, first)
}

fn report(totals: &Totals, seeds: u64, coverage: bool, first: bool) -> ExitCode {
    for (seed, line) in &totals.failed {
        println!("{line}\n  replay: scripts/sim --seed {seed} --story");
    }
    if coverage {
        print!("{}", totals.cover.table());
    }
    let missing = if first { Vec::new() } else { totals.cover.missing() };
    for name in &missing {
        println!("never hit: {name}");
    }
    let ran = u32::try_from(seeds).unwrap_or(u32::MAX).max(1);
    let mean = (totals.cpu / ran).as_secs_f64();
    let (longest, which) = totals.longest;
    println!(
        "{seeds} seeds, {} failed; {} steps, {mean:.3} s CPU a seed, at most {:.3} s (seed {which})",
        totals.failed.len(),
        totals.steps,
        longest.as_secs_f64(),
    );
    if totals.failed.is_empty() && missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Rig A: 50 instances under load.
fn study(events: u64) -> ExitCode {
    let idle = IdlePolicy { idle_count: 5, idle_time: Duration::from_mins(2), ..IdlePolicy::default() };
    let policy = Policy {
        max_instances: 50,
        max_launching: 50,
        launches_per_minute: 1_000,
        reuse: Reuse::Any,
        idle,
        ..Policy::default()
    };
    let mut study = Study::new(1, policy, Load { gap: 2_300, length: 60_000 });
    let began = cpu();
    match study.run(events) {
        Ok(findings) => {
            let rate = u128::from(events) * 1_000_000 / cpu().saturating_sub(began).as_micros().max(1);
            println!("{findings:?}: {rate} events/s of CPU time");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            println!("{problem}");
            ExitCode::FAILURE
        }
    }
}
