//! Instances that end during a job, and some that never boot: the reported cause.

use std::collections::BTreeSet;
use std::time::Duration;

use greenroom_core::instance::{Answer, Instance};
use greenroom_harness::processes::{Process, wait_for};
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::json;

use crate::cloud::{Buy, Cloud};
use crate::site::{PATIENCE, Site, messages, pool};

on_both_clouds![
    a_reclaimed_spot_instance_is_named_as_such_and_replaced,
    an_instance_that_its_cloud_loses_is_the_clouds_fault,
    a_failed_boot_shows_its_console,
    an_instance_whose_manager_is_gone_for_good_ends_by_itself,
    a_drain_waits_for_an_instance_that_the_cloud_does_not_show_yet,
];

/// Ends the instance of a job during its script; returns the instance and the message in the job log.
fn lost(site: &Site, id: u64, why: Option<&str>) -> (String, String) {
    let waiting = Job::new(id).script(["for i in $(seq 1000); do echo tick; sleep 0.2; done"]);
    let handle = site.runner().start(&waiting);
    handle.wait_for_stage("build_script").wait_for_output("\ntick\n", PATIENCE);
    let instance = site.grants().pop().expect("it was granted one").1;
    site.lab.interrupt(&site.machine(&instance).id, why);
    let result = handle.finish();
    result.expect_outcome(&Outcome::RunnerSystemFailure);
    let lines = messages(result.call("build_script"));
    assert_eq!(lines.len(), 1, "one sentence: {}", result.describe());
    (instance.to_string(), lines[0].clone())
}

fn a_reclaimed_spot_instance_is_named_as_such_and_replaced(cloud: Cloud) {
    let site = Site::open(cloud, pool().pool("max_instances", 1), Buy::Spot);
    let (instance, message) = lost(&site, 1, None);
    let begin = format!("system failure: instance {instance} was reclaimed by {} at ", cloud.name());
    let help = "(spot). The job did not cause it; `retry: when: runner_system_failure` retries the job.";
    assert!(message.starts_with(&begin) && message.ends_with(help), "{message}");
    site.run(&Job::new(2)).expect_outcome(&Outcome::Success);
    site.expect_nothing_left(0);
}

fn an_instance_that_its_cloud_loses_is_the_clouds_fault(cloud: Cloud) {
    let site = Site::open(cloud, pool().pool("max_instances", 1), Buy::OnDemand);
    let (instance, message) = lost(&site, 1, Some(cloud.host_failure()));
    assert!(message.starts_with(&format!("system failure: instance {instance} ")), "{message}");
    assert!(message.contains(cloud.name()), "whose fault it is: {message}");
    site.run(&Job::new(2)).expect_outcome(&Outcome::Success);
    site.expect_nothing_left(0);
}

fn a_failed_boot_shows_its_console(cloud: Cloud) {
    let setting = pool().pool("ready_command", "echo no such tool >&2; exit 3");
    let site = Site::open(cloud, setting.pool("acquire_timeout", "10s"), Buy::OnDemand);
    let attempt = site.runner().attempt(&Job::new(1));
    attempt.config();
    let prepare = attempt.start_prepare().wait(PATIENCE);
    assert_eq!(prepare.exit_code(), Some(2), "{}", prepare.stderr_text());
    let lines = messages(&prepare);
    let failed = lines.iter().position(|line| line.ends_with("; the last lines of its console:"));
    let failed = failed.unwrap_or_else(|| panic!("{lines:#?}"));
    assert!(lines[failed].contains("exit status 3: no such tool"), "{lines:#?}");
    let text = prepare.stderr_text();
    assert!(text.contains("BEGIN SSH HOST KEY KEYS"), "what cloud-init prints is quoted: {text}");
    assert!(!text.contains("PRIVATE"), "no secret is: {text}");
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    site.expect_nothing_left(0);
}

/// EC2 denies the ID of a machine that is seconds old, and no list has it.
fn a_drain_waits_for_an_instance_that_the_cloud_does_not_show_yet(cloud: Cloud) {
    let site = Site::open(cloud, pool(), Buy::OnDemand);
    site.lab.set(&json!({ "visible": 4.0 }));
    let mut handle = site.runner().start(&Job::new(1));
    let is_accepted = |instance: &Instance| {
        instance.launch.as_ref().is_some_and(|launch| matches!(launch.answer, Answer::Accepted { .. }))
    };
    wait_for("an accepted launch", PATIENCE, || {
        site.state().instances.values().any(|instance| is_accepted(instance)).then_some(())
    });
    assert_eq!(site.recorded().len(), 1, "it is not ready yet");
    let said = site.order(&["pool", "drain", "--wait"]);
    assert!(said.contains("drained in "), "{said}");
    assert_eq!((site.living(), site.recorded()), (Vec::new(), BTreeSet::new()), "{said}");
    handle.abort();
    handle.finish();
    site.expect_nothing_left(0);
}

/// The sum of an instance's lifetime and launch time: Compute Engine's minimum is half a minute.
const LIFETIME: Duration = Duration::from_secs(26 + 5);

fn an_instance_whose_manager_is_gone_for_good_ends_by_itself(cloud: Cloud) {
    let setting = pool().pool("max_lifetime", "26s").timing("launch_timeout", "5s");
    let setting = setting.timing("connect_timeout", "5s").timing("ready_timeout", "5s");
    let site = Site::open(cloud, setting, Buy::OnDemand);
    // For the cloud that limits the run duration itself.
    site.lab.set(&json!({ "run_duration_scale": 0.1 }));
    let _attempt = site.prepared_as(&Job::new(1).timeout(Duration::from_secs(5)));
    assert_eq!(site.living().len(), 1);
    let processes = site.processes();
    assert!(processes.iter().all(Process::kill9), "{processes:?}");
    wait_for("nothing that is paid for", LIFETIME + PATIENCE, || {
        let truth = site.lab.truth();
        (truth.live().next().is_none() && truth.volumes.is_empty()).then_some(())
    });
}
