//! Sixty jobs while one call in twenty fails, with every fault of the emulator.

use std::collections::BTreeSet;

use greenroom_testkit::dice::number;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::{JobResult, Outcome};
use serde_json::{Value, json};

use crate::cloud::{Buy, Cloud};
use crate::site::{PATIENCE, Site, messages, pool};

on_both_clouds![sixty_jobs_end_right_though_one_call_in_twenty_goes_wrong];

/// The probability of each: a failed request, an unavailable offering, an instance that never runs, a reclaimed one.
const OFTEN: f64 = 0.05;

/// One rule for each mode; the modes of one kind share its probability.
fn faults(cloud: Cloud) -> Value {
    let (internal, launch) = match cloud {
        Cloud::Ec2 => ("InternalError", cloud.launch()),
        Cloud::Gce => ("backendError", cloud.launch()),
    };
    let requests = [
        json!({ "mode": "rejected", "code": internal }),
        json!({ "mode": "throttled" }),
        json!({ "mode": "denied" }),
        json!({ "mode": "lost" }),
        json!({ "mode": "hang", "seconds": 2 }),
        json!({ "mode": "hang", "seconds": 2, "applied": true }),
        json!({ "mode": "slow", "seconds": 1 }),
    ];
    let offerings = [json!({ "mode": "capacity" }), json!({ "mode": "quota" })];
    let ends = [json!({ "mode": "ends-in-error" })];
    let reclaims = [json!({ "mode": "spot-reclaim", "seconds": 1.5 })];
    let mut all = Vec::new();
    let rules = [("*", &requests[..]), (launch, &offerings), (launch, &ends), (launch, &reclaims)];
    for (operation, modes) in rules {
        for mode in modes {
            let mut rule = mode.clone();
            rule["operation"] = operation.into();
            rule["count"] = Value::Null;
            #[expect(clippy::cast_precision_loss, reason = "a handful of modes")]
            let share = OFTEN / modes.len() as f64;
            rule["probability"] = share.into();
            all.push(rule);
        }
    }
    json!({ "faults": all })
}

/// Expects success, or a message that the spot instance was reclaimed; true for the latter.
#[track_caller]
fn judge(result: &JobResult) -> bool {
    if result.outcome == Outcome::Success {
        return false;
    }
    result.expect_outcome(&Outcome::RunnerSystemFailure);
    let lines: Vec<String> = result.calls.iter().flat_map(messages).collect();
    assert!(lines.iter().any(|line| line.contains("was reclaimed by")), "{}", result.describe());
    true
}

fn sixty_jobs_end_right_though_one_call_in_twenty_goes_wrong(cloud: Cloud) {
    let jobs = number("GREENROOM_CLOUD_JOBS", 60);
    let setting = pool().pool("max_instances", 8).pool("max_launching", 8).pool("idle_time", "1s");
    let setting = setting.timing("relaunch_after", "200ms");
    let site = Site::open(cloud, setting, Buy::Spot);
    eprintln!("replay: GREENROOM_SEED={} cargo test --test clouds sixty", number("GREENROOM_SEED", 1));
    // Lists lack new instances long enough that a launch without an answer is repeated.
    site.lab.set(&json!({ "visible": 1.5 }));
    site.lab.fault(&faults(cloud));
    let mut runner = site.runner();
    runner.patience = PATIENCE * 2;
    let handles: Vec<_> = (1..=jobs).map(|id| runner.start(&Job::new(id).script(["sleep 1"]))).collect();
    let reclaimed = handles.into_iter().map(|handle| judge(&handle.finish())).filter(|lost| *lost);
    let reclaimed = reclaimed.count();
    let requests = site.lab.requests();
    let faulty = requests.iter().filter(|request| request.fault.is_some()).count();
    let launches = site.launches();
    let different: BTreeSet<_> = launches.iter().map(|launch| &launch.token).collect();
    eprintln!(
        "{}: {jobs} jobs, {} requests, {faulty} of them went wrong, {} launches were repeated, {reclaimed} jobs lost \
         their instance",
        cloud.name(),
        requests.len(),
        launches.len() - different.len(),
    );
    assert!(faulty > 0, "nothing went wrong: {} requests", requests.len());
    site.expect_nothing_left(0);
}
