//! Instances that end under a job, and some that never come up: who is blamed, and in which words.

use std::time::Duration;

use serde_json::json;

use crate::cloud::{Buy, Cloud};
use crate::processes::{Process, wait_for};
use crate::site::{PATIENCE, Site, pool, told};
use crate::support::job::Job;
use crate::support::record::Outcome;

on_both_clouds![
    a_reclaimed_spot_instance_is_named_as_such_and_replaced,
    an_instance_that_its_cloud_loses_is_the_clouds_fault,
    a_failed_boot_shows_its_console,
    an_instance_whose_manager_is_gone_for_good_ends_by_itself,
];

/// Ends the instance of a job in its script; what the job's author reads.
fn lost(site: &Site, id: u64, why: Option<&str>) -> (String, String) {
    let waiting = Job::new(id).script(["for i in $(seq 1000); do echo tick; sleep 0.2; done"]);
    let handle = site.runner().start(&waiting);
    handle.wait_for_stage("build_script").wait_for_output("\ntick\n", PATIENCE);
    let instance = site.grants().pop().expect("it was granted one").1;
    site.lab.interrupt(&site.machine(&instance).id, why);
    let result = handle.finish();
    result.expect_outcome(&Outcome::RunnerSystemFailure);
    let said = told(result.call("build_script"));
    assert_eq!(said.len(), 1, "one sentence: {}", result.describe());
    (instance.to_string(), said[0].clone())
}

fn a_reclaimed_spot_instance_is_named_as_such_and_replaced(cloud: Cloud) {
    let site = Site::open(cloud, pool().pool("max_instances", 1), Buy::Spot);
    let (instance, said) = lost(&site, 1, None);
    let begin = format!("system failure: instance {instance} was reclaimed by {} at ", cloud.name());
    let help = "(spot). The job did not cause it; `retry: when: runner_system_failure` retries the job.";
    assert!(said.starts_with(&begin) && said.ends_with(help), "{said}");
    site.run(&Job::new(2)).expect_outcome(&Outcome::Success);
    site.expect_nothing_left(0);
}

fn an_instance_that_its_cloud_loses_is_the_clouds_fault(cloud: Cloud) {
    let site = Site::open(cloud, pool().pool("max_instances", 1), Buy::OnDemand);
    let (instance, said) = lost(&site, 1, Some(cloud.host_failure()));
    assert!(said.starts_with(&format!("system failure: instance {instance} ")), "{said}");
    assert!(said.contains(cloud.name()), "whose fault it is: {said}");
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
    let said = told(&prepare);
    let failed = said.iter().position(|line| line.ends_with("; the last lines of its console:"));
    let failed = failed.unwrap_or_else(|| panic!("{said:#?}"));
    assert!(said[failed].contains("exit status 3: no such tool"), "{said:#?}");
    let text = prepare.stderr_text();
    assert!(text.contains("BEGIN SSH HOST KEY KEYS"), "what cloud-init prints is quoted: {text}");
    assert!(!text.contains("PRIVATE"), "no secret is: {text}");
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    site.expect_nothing_left(0);
}

/// Its lifetime and the time for its launch: Compute Engine takes no less than half a minute.
const LIFETIME: Duration = Duration::from_secs(26 + 5);

fn an_instance_whose_manager_is_gone_for_good_ends_by_itself(cloud: Cloud) {
    let setting = pool().pool("max_lifetime", "26s").timing("launch_timeout", "5s");
    let setting = setting.timing("connect_timeout", "5s").timing("ready_timeout", "5s");
    let site = Site::open(cloud, setting, Buy::OnDemand);
    // Where the cloud itself sees to it.
    site.lab.set(&json!({ "run_duration_scale": 0.1 }));
    let _attempt = site.prepared_as(&Job::new(1).timeout(Duration::from_secs(5)));
    assert_eq!(site.living().len(), 1);
    let ours = site.processes();
    assert!(ours.iter().all(Process::kill9), "{ours:?}");
    wait_for("nothing that is paid for", LIFETIME + PATIENCE, || {
        let truth = site.lab.truth();
        (truth.live().next().is_none() && truth.volumes.is_empty()).then_some(())
    });
}
