//! Kind: what one job orders hurts no other job. A launch for a job's own pod that is refused, or never comes, is that job's alone.

#![cfg(test)]

use greenroom_harness::processes::wait_for;
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::{Value, json};

use crate::jobs::{PATIENCE, Site, sentences};

/// A pool whose jobs may order pods. No launch ends by itself in the time of a test.
fn open(change: impl FnOnce(Setting) -> Setting) -> Option<Site> {
    Site::open(|setting| {
        let setting = setting.pool("builds_dir", "/run/builds").pool("cache_dir", "/run/cache");
        let setting = setting.provider("server_image", "greenroom-server/server:1");
        let setting = setting.timing("launch_timeout", "10m").timing("quota_backoff", "15m");
        change(setting.provider("image_from_job", true).pool("max_instances", 12))
    })
}

fn with_services(id: u64, count: u32) -> Job {
    let services = (0..count).map(|number| json!({ "name": format!("tools/sleeper-{number}") }));
    services.fold(Job::new(id).image("user/ruby:1"), Job::service)
}

/// The pool's own launches know of no refusal.
#[track_caller]
fn expect_untouched(site: &Site) {
    let state = site.state();
    assert_eq!(state.launches.failures, 0, "{:?}", state.launches);
    assert!(!state.availability.has_refusals(), "{:?}", state.availability);
}

/// Job 1 waits for a refused launch of its own; job 2 runs, and its log quotes nothing of that.
#[track_caller]
fn expect_beside(site: &Site, order: &Job, refusal: &str) {
    let mut waiting = site.runner().start(order);
    wait_for("the refusal", PATIENCE, || {
        site.state().waiting.values().any(|job| job.own.last().is_some()).then_some(())
    });
    let honest = site.run(&Job::new(2));
    honest.expect_outcome(&Outcome::Success);
    assert!(!honest.log_text().contains(refusal), "{}", honest.describe());
    expect_untouched(site);
    waiting.wait_for_log(&format!("the launch of the job's own instance was refused ({refusal}"));
    waiting.abort();
    let result = waiting.finish();
    assert!(!matches!(result.outcome, Outcome::Success), "{}", result.describe());
    // A launch that found no node is repeated under its name.
    wait_for("the end of all pods", PATIENCE, || {
        (site.state().instances.is_empty() && site.cluster.pods().is_empty()).then_some(())
    });
}

/// An admission webhook denies the image of a job: that job fails as if its script had, and the next job runs.
#[test]
fn a_webhook_denies_the_image_of_one_job() {
    let Some(site) = open(|setting| setting) else { return };
    for (id, status) in [(11, 400), (12, 403)] {
        let message = "registry `evil` is not allowed: use registry.example.com";
        let webhook = json!({ "image": "evil/", "status": status, "message": message });
        site.cluster.set(&json!({ "webhook": webhook }));
        let denied = site.run(&Job::new(id).image("evil/ruby:1"));
        denied.expect_outcome(&Outcome::ScriptFailure { exit_code: 1 });
        let told = sentences(&denied, "prepare");
        let expected = format!("admission webhook \"images.example.com\" denied the request: {message}");
        assert!(told.last().is_some_and(|line| line.contains(&expected)), "{}", denied.describe());
        site.run(&Job::new(2)).expect_outcome(&Outcome::Success);
        expect_untouched(&site);
    }
    site.expect_nothing_left(0);
}

/// Eighteen services do not fit in the ResourceQuota: other projects' jobs get their pods.
#[test]
fn the_services_of_one_job_exceed_the_quota() {
    let Some(site) = open(|setting| setting.provider("service_memory", "64Mi")) else { return };
    site.cluster.set(&json!({ "quota": { "limits.memory": "512Mi" } }));
    expect_beside(&site, &with_services(1, 18), "quota reached");
}

/// No node has room for a job's services: other projects' jobs get their pods.
#[test]
fn the_services_of_one_job_fit_on_no_node() {
    let Some(site) = open(|setting| setting) else { return };
    let node = json!({ "name": "node-1", "labels": {}, "taints": [], "pods": 1000, "containers": 4 });
    site.cluster.set(&json!({ "nodes": [node] }));
    expect_beside(&site, &with_services(1, 5), "no capacity");
}

/// A job orders more pods than the quota of pods allows at the moment: it gets its pod when another one ends.
#[test]
fn a_job_gets_its_pod_as_soon_as_the_quota_has_room() {
    let Some(site) = open(|setting| setting) else { return };
    site.cluster.set(&json!({ "quota": { "pods": "0" } }));
    let order = site.runner().start(&Job::new(1).image("user/ruby:1"));
    wait_for("the refusal", PATIENCE, || {
        site.state().waiting.values().any(|job| job.own.last().is_some()).then_some(())
    });
    site.cluster.set(&json!({ "quota": {} }));
    order.finish().expect_outcome(&Outcome::Success);
    site.expect_nothing_left(0);
}

/// Ten jobs of one project name images whose registry does not answer. A job of another project gets a pod of the pool,
/// and one gets the pod that it orders.
#[test]
fn images_that_never_come_leave_launches_to_others() {
    let Some(site) = open(|setting| setting.pool("max_launching", 4).timing("acquire_timeout", "1m")) else {
        return;
    };
    let hostile = |id: u64| Job::new(id).project(7, "evil/a").image("down/ruby:1");
    let mut waiting: Vec<_> = (10..20).map(|id| site.runner().start(&hostile(id))).collect();
    wait_for("launches of one project", PATIENCE, || (site.state().waiting.len() == 10).then_some(()));
    wait_for("one of their pods", PATIENCE, || (!site.cluster.pods().is_empty()).then_some(()));
    site.run(&Job::new(1)).expect_outcome(&Outcome::Success);
    site.run(&Job::new(2).project(8, "group/b").image("user/ruby:1")).expect_outcome(&Outcome::Success);
    let is_ordered = |pod: &Value| !pod["metadata"]["annotations"]["greenroom-order"].is_null();
    let booting = site.cluster.pods().values().filter(|pod| is_ordered(pod)).count();
    assert!(booting <= 2, "{booting} of 4 launches are for what jobs ordered");
    expect_untouched(&site);
    for handle in &mut waiting {
        handle.abort();
    }
    for handle in waiting {
        drop(handle.finish());
    }
    site.expect_nothing_left(0);
}

/// The pool's own pods fit on no node: that is still the pool's trouble, which every job that waits is told.
#[test]
fn the_pools_own_pods_that_fit_nowhere_count_for_the_pool() {
    let Some(site) =
        open(|setting| setting.timing("stockout_backoff", "10m").timing("stockout_backoff_max", "10m"))
    else {
        return;
    };
    let node = json!({ "name": "node-1", "labels": {}, "taints": [{ "key": "no", "effect": "NoSchedule" }], "pods": 9 });
    site.cluster.set(&json!({ "nodes": [node] }));
    let mut waiting = site.runner().start(&Job::new(1));
    wait_for("the refusal", PATIENCE, || site.state().availability.has_refusals().then_some(()));
    waiting.abort();
    drop(waiting.finish());
}
