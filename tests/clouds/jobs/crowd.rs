//! Many jobs or launches: they share lists, and one throttled call counts once.

use std::time::{Duration, Instant};

use greenroom_core::event::{Change, Event};
use greenroom_core::instance::Answer;
use greenroom_harness::processes::wait_for;
use greenroom_testkit::dice::number;
use greenroom_testkit::gitlab_runner::attempt::Attempt;
use greenroom_testkit::gitlab_runner::job::Job;
use rustix::process::Signal;
use serde_json::json;

use crate::cloud::{Buy, Cloud};
use crate::site::{PATIENCE, Site, pool};
use crate::truth::Request;

on_both_clouds![
    two_hundred_waiting_jobs_cause_one_list_per_interval,
    a_crowd_that_is_asked_to_wait_is_one_failure,
];

/// The pool's `list_interval`.
const INTERVAL: Duration = Duration::from_secs(1);
/// The time for which lists are counted.
const COUNTED: Duration = Duration::from_secs(10);

/// Attempts of jobs that will wait for the one instance, which another job has.
fn waiting(site: &Site, jobs: u64) -> Vec<Attempt> {
    let runner = site.runner();
    let attempts: Vec<_> = (1..=jobs).map(|id| runner.attempt(&Job::new(id))).collect();
    std::thread::scope(|scope| {
        for some in attempts.chunks(attempts.len().div_ceil(4)) {
            scope.spawn(move || some.iter().for_each(|attempt| drop(attempt.config())));
        }
    });
    attempts
}

fn two_hundred_waiting_jobs_cause_one_list_per_interval(cloud: Cloud) {
    let jobs = number("GREENROOM_CLOUD_CROWD", 200);
    let setting = pool().pool("max_instances", 1).pool("idle_time", "1s");
    let setting = setting.timing("list_interval", "1s").timing("waiter_poll_interval", "5s");
    let site = Site::open(cloud, setting, Buy::OnDemand);
    let first = site.prepared(1_000_000);
    let attempts = waiting(&site, jobs);
    let prepares: Vec<_> = attempts.iter().map(Attempt::start_prepare).collect();
    wait_for("all of them waiting", PATIENCE, || (site.state().waiting.len() as u64 == jobs).then_some(()));
    let lists = || site.lab.requests().into_iter().filter(|request| request.operation == cloud.list());
    let (before, begun) = (lists().count(), Instant::now());
    wait_for("some intervals", COUNTED * 2, || (begun.elapsed() >= COUNTED).then_some(()));
    let (took, counted): (_, Vec<_>) = (begun.elapsed(), lists().skip(before).collect());
    eprintln!("{}: {} lists in {took:?} while {jobs} jobs wait", cloud.name(), counted.len());
    assert!(!counted.is_empty(), "nobody looks any more");
    // By the emulator's clock, which a busy machine lets look late: one list a few hundredths too early, no further one.
    let span = |from: &Request, to: &Request| (to.at - from.at) / INTERVAL.as_secs_f64();
    for pair in counted.windows(2) {
        assert!(span(&pair[0], &pair[1]) >= 0.5, "at the same moment: {pair:#?}");
    }
    #[expect(clippy::cast_precision_loss, reason = "a handful of lists")]
    let intervals = (counted.len() - 1) as f64;
    let all = span(&counted[0], &counted[counted.len() - 1]);
    assert!(all >= intervals - 0.5, "{} lists within {all} intervals: {counted:#?}", counted.len());
    assert_eq!(site.calls(cloud.launch()), 1);
    for prepare in &prepares {
        prepare.signal_group(Signal::TERM);
    }
    for prepare in prepares {
        prepare.wait(PATIENCE);
    }
    assert_eq!(first.cleanup().exit_code(), Some(0));
    first.remove_tmpdir();
    attempts.iter().for_each(Attempt::remove_tmpdir);
    site.expect_nothing_left(0);
}

/// The default of `breaker_failures`, and a number above it.
const BREAKER: usize = 5;
const MANY: u8 = 8;

fn a_crowd_that_is_asked_to_wait_is_one_failure(cloud: Cloud) {
    let setting =
        pool().pool("idle_count", MANY).pool("max_instances", MANY).timing("launch_backoff_max", "1h");
    let site = Site::open(cloud, setting, Buy::OnDemand);
    // The keeper's first call; its planned launches are held back, too.
    site.lab.fault(&json!({ "operation": cloud.list(), "mode": "throttled" }));
    let service = site.keep();
    site.expect_nothing_left(MANY.into());
    assert_eq!(site.calls(cloud.launch()), usize::from(MANY));
    let history = site.events();
    let refused = |event: &&Event| {
        matches!(&event.change, Change::LaunchAnswered { answer: Answer::Refused { .. }, .. })
    };
    // All of them, unless this machine is so slow that the back-off has ended.
    let held = history.iter().filter(refused).count();
    eprintln!("{}: {held} of {MANY} launches were held back", cloud.name());
    assert!(held >= BREAKER, "fewer prove nothing");
    service.kill();
}
