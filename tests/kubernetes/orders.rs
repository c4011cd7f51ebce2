//! Pods of a job's own: other images, services beside them, and what cannot be made.

#![cfg(test)]

use std::time::{Duration, Instant};

use greenroom_core::failure::ErrorClass;
use greenroom_core::inventory::Status;
use greenroom_core::order::{LaunchOrder, OrderService};
use greenroom_harness::processes::{Kind, wait_for};
use greenroom_harness::provider::{Fixture as _, gone, listed, request, running, until};
use greenroom_harness::setting::Setting;
use greenroom_ports::provider::LaunchRequest;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::{JobResult, Outcome};
use serde_json::{Value, json};

use crate::fixture::Pool;
use crate::jobs::{PATIENCE, Site, sentences};

const SERVER: &str = "server_image = 'greenroom-server/server:1'\nimage_from_job = true";
/// Answers each connection with one line.
const SERVICE: &str = "import os, socket\n\
    server = socket.create_server(('127.0.0.1', int(os.environ['HEALTHCHECK_TCP_PORT'])))\n\
    while True:\n\
    \u{20}   peer = server.accept()[0]\n\
    \u{20}   peer.sendall((os.environ['GREETING'] + '\\n').encode())\n\
    \u{20}   peer.close()\n";

/// A pool whose jobs may order pods.
fn open(change: impl FnOnce(Setting) -> Setting) -> Option<Site> {
    Site::open(|setting| {
        // A user of an image may have no access to the test's own directories.
        let setting = setting.pool("builds_dir", "/run/builds").pool("cache_dir", "/run/cache");
        let server = setting.provider("server_image", "greenroom-server/server:1");
        change(server.provider("image_from_job", true))
    })
}

fn variable(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": value, "public": true, "raw": true })
}

/// The living services of a pod.
fn services(site: &Site, pod: &str) -> Vec<String> {
    serde_json::from_value(site.cluster.seen()["services"][pod].clone()).unwrap_or_default()
}

/// The sentences of `prepare` that report a failure.
#[track_caller]
fn refusal(result: &JobResult) -> String {
    let told = sentences(result, "prepare");
    told.last().unwrap_or_else(|| panic!("a sentence: {}", result.describe())).clone()
}

fn explained(site: &Site, of: &str) -> String {
    let text = String::from_utf8(site.greenroom(&["explain", of]).stdout).unwrap();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_job_with_an_image_and_a_service_gets_a_pod_of_both() {
    let Some(site) = open(|setting| setting.provider("service_memory", "64Mi")) else { return };
    let port = site.cluster.ssh_port.to_string();
    let service = json!({
        "name": "tools/greeter:1", "alias": "greeter", "entrypoint": ["python3"], "command": ["-c", SERVICE],
        "variables": [variable("HEALTHCHECK_TCP_PORT", &port), variable("GREETING", "a $(PATH) $$ b")],
    });
    let script = [
        "echo \"I am $(id -u)\"".to_owned(),
        "grep -q ' greeter' /etc/hosts && grep -q ' tools-greeter' /etc/hosts".to_owned(),
        format!("exec 3<>/dev/tcp/greeter/{port}; read -r line <&3; echo \"it says $line\""),
        "for i in $(seq 1000); do echo tick; sleep 0.1; done".to_owned(),
    ];
    let mut handle = site.runner().start(&Job::new(1).image("user/ruby:3.3").service(service).script(script));
    handle.wait_for_stage("build_script").wait_for_output("\ntick\n", PATIENCE);
    let pod = site.busy_pod();
    assert_eq!(services(&site, &pod), ["svc-0"]);
    let seen = site.cluster.pods().remove(&pod).unwrap();
    let container = &seen["spec"]["containers"][0];
    assert_eq!(container["image"], "docker.io/user/ruby:3.3");
    assert_eq!(seen["spec"]["initContainers"][1]["resources"]["limits"]["memory"], "64Mi");
    handle.cancel();
    let log = handle.finish().log_text();
    assert!(log.contains("I am 1234") && log.contains("it says a $(PATH) $$ b"), "{log}");
    site.expect_nothing_left(0);
    assert_eq!(services(&site, &pod), Vec::<String>::new());
    // The order may have had secret values: none of them is left.
    let launches = site.state_dir.join("launches");
    let left = std::process::Command::new("grep").args(["-rl", "GREETING"]).arg(&launches).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&left.stdout), "");
}

#[test]
fn the_pools_own_image_is_that_of_a_job_with_services_only() {
    let Some(site) = open(|setting| setting) else { return };
    let result = site.run(&Job::new(1).service(json!({ "name": "tools/sleeper" })).script(["id -u"]));
    result.expect_outcome(&Outcome::Success);
    site.run(&Job::new(2).image("ci:12")).expect_outcome(&Outcome::Success);
    let of_pools = |change: &greenroom_core::event::Change| {
        matches!(change, greenroom_core::event::Change::LaunchIntended { ordered: None, .. })
    };
    assert_eq!(
        site.events().iter().filter(|event| of_pools(&event.change)).count(),
        1,
        "job 2 has one of the pool's"
    );
    site.expect_nothing_left(0);
}

#[test]
fn what_the_pool_does_not_allow_fails_the_job_and_makes_no_pod() {
    let Some(site) = open(|setting| {
        let setting = setting.provider("images", "user/*").provider("services", "tools/*");
        setting.provider("services_limit", 1).provider("allowed_pull_policies", "always")
    }) else {
        return;
    };
    let service = |name: &str| json!({ "name": name });
    for (job, expected) in [
        (
            Job::new(1).image("ruby:3.3"),
            "the image `ruby:3.3` is not allowed in this pool (allowed: `user/*`): use another one, or have the operator \
             extend `images`",
        ),
        (
            Job::new(2).service(service("redis")),
            "the service `redis` is not allowed in this pool (allowed: `tools/*`)",
        ),
        (
            Job::new(3).service(service("tools/a")).service(service("tools/b")),
            "the job has 2 services, but this pool allows 1: remove services, or have the operator raise `services_limit`",
        ),
        (
            Job::new(4).image("user/a:1").image_option("pull_policy", json!(["never"])),
            "pull_policy ([never]) is not one of the allowed_pull_policies ([always])",
        ),
        (Job::new(5).image("user/A"), "the name of the image `user/A` is not valid"),
        (
            Job::new(6).image("user/docker:27").service(service("docker:27-dind")),
            "service `docker:27-dind` needs a privileged container, and pool `pool` has none: a pool of virtual machines \
             that runs jobs in containers could run this job",
        ),
    ] {
        let result = site.run(&job);
        result.expect_outcome(&Outcome::ScriptFailure { exit_code: 1 });
        assert!(refusal(&result).contains(expected), "{}", result.describe());
    }
    assert!(site.cluster.made().is_empty());
}

#[test]
fn what_cannot_be_made_fails_its_job_within_seconds_and_no_other() {
    let Some(site) = open(|setting| setting.timing("launch_timeout", "10m")) else { return };
    let service =
        |name: &str, entrypoint: &str| json!({ "name": name, "entrypoint": [entrypoint], "alias": "db" });
    let keeper = site.keep();
    for (job, expected) in [
        (
            Job::new(1).image("missing/ruby:9"),
            "image `missing/ruby:9` does not exist in registry `docker.io`: correct its name or tag in .gitlab-ci.yml",
        ),
        (
            Job::new(2).image("denied/ruby:9").variable("DOCKER_AUTH_CONFIG", "{}"),
            "registry `docker.io` denies access to image `denied/ruby:9`: correct its name, or have the operator add \
             credentials to `image_pull_secrets`; those of a job, such as DOCKER_AUTH_CONFIG, do not count in pods",
        ),
        (Job::new(3).image("invalid/ruby:9"), "image `invalid/ruby:9` has an invalid name"),
        (Job::new(4).image("scratch/tool:1"), "image `scratch/tool:1` cannot run jobs: it has no /bin/sh"),
        (
            Job::new(5).service(service("missing/db:1", "sh")),
            "service `missing-db`: image `missing/db:1` does not exist in registry `docker.io`",
        ),
        (
            Job::new(6).image("user/ruby:1").service(service("tools/db:1", "no-such-program")),
            "service `tools-db`: image `tools/db:1` cannot be started",
        ),
    ] {
        let began = Instant::now();
        let result = site.run(&job);
        result.expect_outcome(&Outcome::ScriptFailure { exit_code: 1 });
        assert!(refusal(&result).contains(expected), "{expected}: {}", result.describe());
        // `launch_timeout` is far away.
        assert!(began.elapsed() < Duration::from_mins(3), "{:?}", began.elapsed());
    }
    site.run(&Job::new(7)).expect_outcome(&Outcome::Success);
    assert!(explained(&site, "7").contains("ended: passed"), "{}", explained(&site, "7"));
    site.expect_nothing_left(0);
    drop(keeper);
}

#[test]
fn a_cancelled_job_takes_its_booting_pod_with_it() {
    let Some(site) = open(|setting| setting) else { return };
    site.cluster.set(&json!({ "boot_ms": 3_600_000 }));
    let mut handle = site.runner().start(&Job::new(1).image("user/ruby:3.3"));
    wait_for("its pod", PATIENCE, || (site.cluster.pods().len() == 1).then_some(()));
    handle.abort();
    let result = handle.finish();
    assert!(!matches!(result.outcome, Outcome::Success), "{}", result.describe());
    site.expect_nothing_left(0);
}

#[test]
fn an_order_finds_room_among_idle_pods_and_other_jobs_do_not_wait_for_it() {
    let Some(site) = open(|setting| setting.pool("idle_count", 2)) else { return };
    let keeper = site.keep();
    site.run(&Job::new(1)).expect_outcome(&Outcome::Success);
    wait_for("two idle pods", PATIENCE, || (site.idle().len() == 2).then_some(()));
    // It boots until it is told to go on.
    site.cluster.set(&json!({ "boot_ms": 3_600_000 }));
    let order = site.runner().start(&Job::new(2).image("user/ruby:3.3").script(["id -u"]));
    wait_for("its pod", PATIENCE, || {
        let is_ordered = |pod: &Value| !pod["metadata"]["annotations"]["greenroom-order"].is_null();
        site.cluster.pods().values().any(is_ordered).then_some(())
    });
    site.run(&Job::new(3)).expect_outcome(&Outcome::Success);
    site.cluster.set(&json!({ "boot_ms": 0 }));
    order.finish().expect_outcome(&Outcome::Success);
    wait_for("two idle pods", PATIENCE, || (site.idle().len() == 2).then_some(()));
    site.expect_nothing_left(2);
    drop(keeper);
}

#[test]
fn a_keeper_that_is_killed_while_it_launches_an_order_leaves_one_pod() {
    let Some(site) = open(|setting| setting) else { return };
    site.cluster
        .fault(&json!({ "request": "POST pods", "how": "hang", "when": "after", "seconds": 3, "count": 1 }));
    let service = json!({ "name": "tools/sleeper" });
    let handle = site.runner().start(&Job::new(1).image("user/ruby:3.3").service(service).script(["id -u"]));
    wait_for("its pod", PATIENCE, || (site.cluster.pods().len() == 1).then_some(()));
    for keeper in site.of_kind(Kind::Keeper) {
        keeper.kill9();
    }
    handle.finish().expect_outcome(&Outcome::Success);
    assert_eq!(site.cluster.made().len(), 1, "{:?}", site.cluster.made());
    site.expect_nothing_left(0);
}

#[test]
fn a_pool_without_orders_says_what_would_run_services() {
    let Some(site) = Site::open(|setting| setting) else { return };
    let result = site.run(&Job::new(1).service(json!({ "name": "redis" })));
    result.expect_outcome(&Outcome::Success);
    let told = sentences(&result, "prepare");
    let expected = "the job's service is ignored, because pool `pool` runs no services: its operator can set \
                    `image_from_job` in `[pool.pool.provider]`";
    assert!(told.iter().any(|line| line == expected), "{told:?}");
}

fn ordered(pool: &Pool, number: u32, image: &str, command: &[&str]) -> LaunchRequest {
    let service = OrderService {
        name: "svc-0".to_owned(),
        image: "docker.io/tools/db:1".to_owned(),
        aliases: vec!["db".to_owned()],
        entrypoint: None,
        command: Some(command.iter().map(|word| (*word).to_owned()).collect()),
        variables: Vec::new(),
        pull_policy: None,
        port: None,
    };
    let order = LaunchOrder {
        image: image.to_owned(),
        of_offering: false,
        pull_policy: None,
        services: vec![service],
        dirs: Vec::new(),
    };
    LaunchRequest { order: Some(order), ..request(pool, number) }
}

#[tokio::test]
async fn docker_in_docker_is_made_only_if_the_operators_pod_is_privileged() {
    let Some(pool) = Pool::open(SERVER) else { return };
    let mut request = ordered(&pool, 1, "docker.io/user/docker:27", &["sleep", "1000"]);
    request.order.as_mut().unwrap().services[0].image = "docker.io/tools/docker:27-dind".to_owned();
    let refused = pool.build().launch(&request).await.unwrap_err();
    assert_eq!(refused.class(), &ErrorClass::Order { by_job: true });
    let expected =
        "image `tools/docker:27-dind` needs a privileged container, and the file of `pod` makes none";
    assert!(refused.to_string().contains(expected), "{refused}");
    assert!(pool.cluster.made().is_empty());
}

#[tokio::test]
async fn a_registry_that_is_down_is_waited_for() {
    let Some(pool) = Pool::open(SERVER) else { return };
    let provider = pool.build();
    let request = ordered(&pool, 1, "docker.io/down/ruby:1", &["sleep", "1000"]);
    provider.launch(&request).await.unwrap();
    until("the kubelet's message", Duration::from_secs(30), async || {
        let seen = listed(&*provider, &pool.pool()).await;
        assert_eq!(seen[0].status, Status::Starting);
        seen[0].detail.as_deref()?.contains("ErrImagePull").then_some(())
    })
    .await;
    let refused = provider.endpoint(&request.instance).await.unwrap_err();
    assert_eq!(refused.class(), &ErrorClass::Transient, "{refused}");
    gone(&pool, &*provider, &request.instance).await;
}

#[tokio::test]
async fn a_service_that_ends_is_started_again_and_the_list_says_so() {
    let Some(pool) = Pool::open(SERVER) else { return };
    let provider = pool.build();
    let request = ordered(&pool, 1, "docker.io/user/ruby:1", &["sleep", "0.5"]);
    provider.launch(&request).await.unwrap();
    running(&pool, &*provider, &request.instance).await;
    until("a restart", Duration::from_secs(30), async || {
        let seen = listed(&*provider, &pool.pool()).await;
        assert_eq!(seen[0].status, Status::Running, "the job goes on");
        seen[0].detail.as_deref()?.contains("service `db` was restarted").then_some(())
    })
    .await;
    gone(&pool, &*provider, &request.instance).await;
}

#[tokio::test]
async fn a_repeated_launch_of_an_order_makes_one_pod() {
    let Some(pool) = Pool::open(SERVER) else { return };
    pool.cluster.fault(&json!({ "request": "POST pods", "how": "reset", "when": "after", "count": 1 }));
    let request = ordered(&pool, 1, "docker.io/user/ruby:1", &["sleep", "1000"]);
    let lost = pool.build().launch(&request).await.unwrap_err();
    assert_eq!(lost.class(), &ErrorClass::Unknown);
    // Another keeper.
    let provider = pool.build();
    provider.launch(&request).await.unwrap();
    running(&pool, &*provider, &request.instance).await;
    assert_eq!(pool.cluster.made().into_iter().collect::<Vec<_>>(), [(request.instance.to_string(), 1)]);
    gone(&pool, &*provider, &request.instance).await;
}

#[tokio::test]
async fn a_pod_that_the_cluster_refuses_says_nothing_about_other_pods() {
    let Some(pool) = Pool::open(SERVER) else { return };
    pool.cluster.set(&json!({ "sidecars": false }));
    let provider = pool.build();
    let request = ordered(&pool, 1, "docker.io/user/ruby:1", &["sleep", "1000"]);
    let refused = provider.launch(&request).await.unwrap_err();
    assert_eq!(refused.class(), &ErrorClass::Order { by_job: false });
    assert!(
        refused.to_string().contains("unknown field \"spec.initContainers[1].restartPolicy\""),
        "{refused}"
    );
    pool.cluster.set(&json!({ "sidecars": true, "quota": { "pods": "0" } }));
    let refused = provider.launch(&request).await.unwrap_err();
    assert_eq!(refused.class(), &ErrorClass::Quota, "it may fit later");
    assert!(pool.cluster.pods().is_empty());
}
