//! Many concurrent jobs on few instances.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use greenroom_core::report::Report;
use greenroom_harness::place::SOON;
use greenroom_harness::processes::wait_for;
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

/// The last of them waits for all the others, possibly on a busy machine.
const PATIENCE: Duration = Duration::from_mins(5);

/// A hundred concurrent jobs request twenty instances: all are served, never two on one, in the order of their
/// requests.
#[test]
fn a_hundred_jobs_share_twenty_instances_and_each_has_one_to_itself() {
    let mut setting = Setting::new().pool("max_instances", 20).pool("max_launching", 20);
    setting.patience = PATIENCE;
    let place = setting.open();
    let runner = place.runner();
    let handles: Vec<_> = (1..=100).map(|id| runner.start(&Job::new(id).script(["sleep 0.1"]))).collect();
    for handle in handles {
        handle.finish().expect_outcome(&Outcome::Success);
    }
    let mut served: BTreeMap<String, u32> = BTreeMap::new();
    // The replay checks every moment: never two on one instance, never more than twenty. This test checks: first come,
    // first served, and every job once.
    place.replay(|state, attempt| {
        let ticket = state.waiting_for(attempt).expect("it waits until it is granted").ticket;
        assert!(state.waiting.keys().all(|waiting| *waiting >= ticket), "{attempt} jumped the queue");
        *served.entry(attempt.to_string()).or_default() += 1;
    });
    assert_eq!(served.values().sum::<u32>(), 100);
    assert!(served.values().all(|grants| *grants == 1), "one grant for each job");
    place.wait_until_settled(0);
    place.expect_sound();
}

/// Twenty jobs wait for one instance: each of them looks once a second, and together they cause no more passes than one
/// would. A keeper that all of them wake has no processor left for others.
#[test]
fn twenty_waiting_jobs_cause_no_more_passes_than_one() {
    let setting = Setting::new().pool("max_instances", 1);
    let place = setting.timing("waiter_poll_interval", "1s").timing("pass_interval", "10s").open();
    let _keeper = place.keep();
    let held = place.prepared(1);
    let runner = place.runner();
    let waiting: Vec<_> = (2..22)
        .map(|id| {
            let attempt = runner.attempt(&Job::new(id));
            assert_eq!(attempt.config().exit_code(), Some(0));
            let call = attempt.start_prepare();
            (attempt, call)
        })
        .collect();
    let report = place.state_dir.join("pools/pool/report.json");
    wait_for("a report that names twenty waiting jobs", SOON, || {
        let text = std::fs::read(&report).ok()?;
        let report: Report = serde_json::from_slice(&text).ok()?;
        (report.waiting.len() == 20).then_some(())
    });
    let begun = Instant::now();
    let mut passes = BTreeSet::new();
    while begun.elapsed() < Duration::from_secs(5) {
        passes.extend(std::fs::metadata(&report).map(|found| (found.mtime(), found.mtime_nsec())));
        std::thread::sleep(Duration::from_millis(5));
    }
    // One call alone causes five or six.
    assert!(passes.len() <= 18, "{} passes in five seconds", passes.len());
    place.cancel(waiting, &held);
    place.expect_sound();
}
