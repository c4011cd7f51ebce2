//! Jobs without faults: on demand, and on an idle instance.

use std::collections::BTreeMap;

use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

use crate::cloud::{Buy, Cloud};
use crate::site::{Site, messages, pool};

on_both_clouds![
    a_job_boots_an_instance_and_leaves_nothing,
    an_instance_costs_two_calls_of_its_own,
    a_warm_job_needs_no_call,
];

fn a_job_boots_an_instance_and_leaves_nothing(cloud: Cloud) {
    let site = Site::open(cloud, pool(), Buy::OnDemand);
    let job = Job::new(1)
        .script(["echo produced > out.txt"])
        .after_script(["cat out.txt", "echo \"status $CI_JOB_STATUS\""]);
    let result = site.run(&job);
    result.expect_outcome(&Outcome::Success);
    let after = result.call("after_script").stdout_text();
    assert!(after.contains("produced\n") && after.contains("status success"), "{}", result.describe());
    let prepare = messages(result.call("prepare"));
    assert!(prepare.last().is_some_and(|line| line.contains("booted on demand")), "{prepare:#?}");
    site.expect_nothing_left(0);
    assert_eq!(site.calls(cloud.launch()), 1);
}

fn an_instance_costs_two_calls_of_its_own(cloud: Cloud) {
    const COUNT: u8 = 4;
    let site =
        Site::open(cloud, pool().pool("idle_count", COUNT).pool("max_instances", COUNT), Buy::OnDemand);
    site.warm_up_to(COUNT.into());
    site.order(&["pool", "drain", "--wait"]);
    let operations = site.lab.requests().into_iter().map(|request| request.operation);
    let own: Vec<_> = operations.filter(|operation| !cloud.shared().contains(&operation.as_str())).collect();
    let made = site.calls(cloud.launch());
    assert!(made >= COUNT.into() && own.len() <= 2 * made, "{made} instances: {own:#?}");
}

/// The tags by which Greenroom finds its resources.
fn own_tags(tags: &BTreeMap<String, String>) -> [Option<&String>; 4] {
    ["pool", "owner", "generation", "number"].map(|name| tags.get(&format!("greenroom-{name}")))
}

fn a_warm_job_needs_no_call(cloud: Cloud) {
    let site = Site::open(cloud, pool().pool("idle_count", 1), Buy::OnDemand);
    site.warm_up_to(1);
    let (instance, before) = (site.idle().remove(0), site.lab.requests().len());
    let (machine, truth) = (site.machine(&instance), site.lab.truth());
    assert!(machine.runs() && !machine.spot, "{machine:?}");
    assert!(own_tags(&machine.tags).iter().all(Option::is_some), "{machine:?}");
    assert!(!truth.volumes.is_empty());
    for volume in &truth.volumes {
        assert_eq!(own_tags(&volume.tags), own_tags(&machine.tags), "{volume:?}");
    }
    let attempt = site.prepared(1);
    assert_eq!(site.instance_of(&attempt), instance);
    // The keeper's calls meanwhile are for the next instance.
    let requests = site.lab.requests().split_off(before);
    let of_this = requests.iter().filter(|request| request.parameters.to_string().contains(&machine.id));
    assert_eq!(of_this.count(), 0, "{requests:#?}");
    assert_eq!(attempt.run("build_script", "true\n").exit_code(), Some(0));
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    site.expect_nothing_left(1);
}
