//! Whole jobs in pods, while the API server fails, pods are taken away, and Greenroom's processes are killed.
//!
//! `GREENROOM_JOBS` sets the number of jobs. `GREENROOM_SEED` replays the faults, and with `GREENROOM_KILLS` the kills.

#![cfg(test)]

use std::ops::Deref;
use std::time::Duration;

use greenroom_harness::onslaught::Onslaught;
use greenroom_harness::place::Place;
use greenroom_harness::processes::{Kind, wait_for};
use greenroom_harness::setting::Setting;
use greenroom_testkit::dice::number;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::{JobResult, Outcome};
use greenroom_testkit::skipped::skipped;
use serde_json::json;

use crate::standin::{self, StandIn};

pub const PATIENCE: Duration = Duration::from_mins(2);

/// Fields are dropped in this order: the cluster outlives all processes of the place.
pub struct Site {
    place: Place,
    pub cluster: StandIn,
}

impl Deref for Site {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

impl Site {
    /// A pool of at most two pods. `None`: pods cannot be processes here, and the test is skipped.
    pub fn open(change: impl FnOnce(Setting) -> Setting) -> Option<Self> {
        if !standin::is_possible() {
            skipped(standin::IMPOSSIBLE);
            return None;
        }
        let cluster = StandIn::start();
        let home = std::path::Path::new(&cluster.kubeconfig).parent().unwrap();
        let path = |name: &str| home.join(name).display().to_string();
        let mut setting = Setting::new()
            .pool("max_instances", 2)
            .pool("builds_dir", path("builds"))
            .pool("cache_dir", path("cache"))
            .timing("launch_timeout", "30s")
            .timing("loss_reason_timeout", "10s")
            .timing("stockout_backoff", "500ms")
            .timing("stockout_backoff_max", "1s")
            .provider("kind", "kubernetes");
        let table: toml::Table = cluster.table("schedule_within = '2s'").parse().unwrap();
        for (key, value) in table {
            setting = setting.provider(&key, value);
        }
        setting.patience = PATIENCE;
        Some(Self { place: change(setting).open(), cluster })
    }

    /// Waits until no job holds or waits for a pod, and exactly this many pods are recorded, all idle.
    #[track_caller]
    fn wait_until_calm(&self, idle: usize) {
        wait_for("calm", PATIENCE, || {
            let state = self.state();
            let quiet = state.granted.is_empty() && state.waiting.is_empty();
            (quiet && state.instances.len() == idle && self.idle().len() == idle).then_some(())
        });
    }

    /// Checks that nothing was made twice, and that only idle pods are left.
    #[track_caller]
    pub fn expect_nothing_left(&self, idle: usize) {
        self.wait_until_calm(idle);
        wait_for("the end of all other pods", PATIENCE, || (self.cluster.pods().len() == idle).then_some(()));
        let twice: Vec<_> = self.cluster.made().into_iter().filter(|(_, count)| *count > 1).collect();
        assert_eq!(twice, [], "made twice");
    }

    /// The name of the pod whose job runs.
    #[track_caller]
    pub fn busy_pod(&self) -> String {
        self.cluster.living().pop_first().expect("a pod")
    }
}

/// The sentences of a call in the job log.
pub fn sentences(result: &JobResult, stage: &str) -> Vec<String> {
    let text = result.call(stage).stderr_text();
    text.lines().filter_map(|line| line.strip_prefix("greenroom: ")).map(str::to_owned).collect()
}

#[test]
fn a_job_runs_in_a_pod_of_its_own_that_is_then_gone() {
    for via in ["port-forward", "address"] {
        a_job_runs_in_a_pod_of_its_own(via);
    }
}

#[track_caller]
fn a_job_runs_in_a_pod_of_its_own(via: &str) {
    let Some(site) = Site::open(|setting| setting.provider("via", via)) else { return };
    let script = ["echo \"pod $HOSTNAME process $$ of $(id -un)\"", "test ! -e /run/greenroom/ssh/nothing"];
    let result = site.run(&Job::new(1).script(script));
    result.expect_outcome(&Outcome::Success);
    let failing = site.run(&Job::new(2).script(["exit 9"]));
    failing.expect_outcome(&Outcome::ScriptFailure { exit_code: 9 });
    site.expect_nothing_left(0);
    assert_eq!(site.cluster.made().len(), 2);
    let forwarded = site.cluster.requests().contains(&"get pods/portforward".to_owned());
    assert_eq!(forwarded, via == "port-forward");
}

#[test]
fn a_job_runs_in_an_image_without_an_ssh_server() {
    let Some(site) = Site::open(|setting| {
        setting.provider("image", "bare/image").provider("server_image", "greenroom-server/server:1")
    }) else {
        return;
    };
    let script = [
        "echo \"first process: $(tr '\\0' ' ' </proc/1/cmdline)\"",
        "! touch /run/greenroom/new 2>/dev/null || exit 1",
        "exit 9",
    ];
    let result = site.run(&Job::new(1).script(script));
    result.expect_outcome(&Outcome::ScriptFailure { exit_code: 9 });
    let log = result.log_text();
    assert!(log.contains("first process: /run/greenroom/greenroom-server"), "{log}");
    site.expect_nothing_left(0);
}

#[test]
fn a_job_on_a_warm_pod_waits_for_no_call() {
    let Some(site) = Site::open(|setting| setting.pool("idle_count", 1)) else { return };
    site.run(&Job::new(1)).expect_outcome(&Outcome::Success);
    site.wait_until_calm(1);
    // Nothing is answered any more.
    site.cluster.fault(&json!({ "request": "any", "how": "reset" }));
    site.run(&Job::new(2)).expect_outcome(&Outcome::Success);
    site.cluster.clear_faults();
    site.expect_nothing_left(1);
}

#[test]
fn a_pod_that_is_taken_away_is_named_with_its_reason() {
    for (how, begin, end) in [
        ("EvictionByEvictionAPI", "was reclaimed at ", ": its node was drained"),
        ("PreemptionByScheduler", "was preempted at ", ": a pod of a higher priority took its place"),
        ("node disk", "was evicted", ": its node ran out of ephemeral-storage"),
        ("by hand", "was deleted in the cluster", ", not by Greenroom"),
    ] {
        let Some(site) = Site::open(|setting| setting) else { return };
        let (pod, result) = disrupted(&site, how);
        result.expect_outcome(&Outcome::RunnerSystemFailure);
        let told = sentences(&result, "build_script");
        let [sentence] = told.as_slice() else { panic!("one sentence: {}", result.describe()) };
        let begin = format!("system failure: instance {pod} {begin}");
        assert!(sentence.starts_with(&begin) && sentence.contains(end), "{sentence}");
        let explained = String::from_utf8(site.greenroom(&["explain", &pod]).stdout).unwrap();
        let explained = explained.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(explained.contains(end), "{explained}");
        site.run(&Job::new(2)).expect_outcome(&Outcome::Success);
        site.expect_nothing_left(0);
    }
}

/// A job whose pod the cluster ends while its script runs: the pod's name, and the job's result.
fn disrupted(site: &Site, how: &str) -> (String, JobResult) {
    let waiting = Job::new(1).script(["for i in $(seq 1000); do echo tick; sleep 0.2; done"]);
    let handle = site.runner().start(&waiting);
    handle.wait_for_stage("build_script").wait_for_output("\ntick\n", PATIENCE);
    let pod = site.busy_pod();
    site.cluster.disrupt(&pod, how);
    (pod, handle.finish())
}

#[test]
fn a_job_that_uses_up_its_pod_fails_through_its_own_fault() {
    for (how, begin) in [
        ("oom", "ran out of its 64Mi of memory at "),
        ("disk", "exceeded its disk limit: Pod ephemeral local storage usage exceeds"),
    ] {
        let Some(site) = Site::open(|setting| setting.provider("memory", "64Mi")) else { return };
        let (pod, result) = disrupted(&site, how);
        result.expect_outcome(&Outcome::ScriptFailure { exit_code: 1 });
        let told = sentences(&result, "build_script");
        let [sentence] = told.as_slice() else { panic!("one sentence: {}", result.describe()) };
        assert!(sentence.starts_with(&format!("instance {pod} {begin}")), "{sentence}");
        let history = String::from_utf8(site.greenroom(&["history", "--json"]).stdout).unwrap();
        let history: serde_json::Value = serde_json::from_str(&history).unwrap();
        let job = &history["jobs"][0];
        assert_eq!((job["result"].as_str(), job["blame"].as_str()), (Some("failed"), Some("job")), "{job}");
        let explained = String::from_utf8(site.greenroom(&["explain", "1"]).stdout).unwrap();
        let explained = explained.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(explained.contains("failed, caused by the job"), "{explained}");
        site.run(&Job::new(2)).expect_outcome(&Outcome::Success);
        site.expect_nothing_left(0);
    }
}

#[test]
fn jobs_succeed_while_the_api_server_fails() {
    let Some(site) = Site::open(|setting| setting) else { return };
    let seed = number("GREENROOM_SEED", 1);
    eprintln!("replay the faults: GREENROOM_SEED={seed}");
    for (how, when, rate) in [
        (json!(500), "before", 0.05),
        (json!(429), "before", 0.03),
        (json!("reset"), "before", 0.03),
        (json!("reset"), "after", 0.05),
        (json!("slow"), "before", 0.1),
    ] {
        site.cluster
            .fault(&json!({ "request": "any", "how": how, "when": when, "rate": rate, "seed": seed }));
    }
    for id in 1..=number("GREENROOM_JOBS", 4) {
        site.run(&Job::new(id)).expect_outcome(&Outcome::Success);
    }
    site.expect_nothing_left(0);
}

#[test]
fn processes_that_are_killed_at_any_moment_leak_nothing_and_make_nothing_twice() {
    let Some(site) = Site::open(|setting| setting) else { return };
    site.cluster.fault(&json!({ "request": "POST pods", "how": "reset", "when": "after", "rate": 0.2 }));
    let onslaught = Onslaught {
        test: "--features kubernetes --test kubernetes killed",
        kills: 6,
        kinds: &[Kind::Keeper, Kind::Link],
        script: "for i in 1 2 3; do sleep 0.05; done",
        blows: 3,
        pause: 0..400,
        patience: Duration::from_secs(20),
    };
    let last = onslaught.on(&site);
    site.reap();
    site.run(&Job::new(last + 1)).expect_outcome(&Outcome::Success);
    site.expect_nothing_left(0);
}

#[test]
fn a_second_offering_serves_the_job_that_the_first_cannot() {
    let Some(site) = Site::open(|setting| {
        let offering = |name: &str, label: &str| {
            let selector = toml::Table::from_iter([("pool".to_owned(), label.into())]);
            toml::Table::from_iter([
                ("name".to_owned(), name.into()),
                ("node_selector".to_owned(), selector.into()),
            ])
        };
        let offerings =
            vec![toml::Value::from(offering("spot", "spot")), offering("steady", "steady").into()];
        setting.provider("schedule_within", "300ms").provider("offering", offerings)
    }) else {
        return;
    };
    let steady = json!({ "name": "node-1", "labels": { "pool": "steady" }, "taints": [], "pods": 10 });
    site.cluster.set(&json!({ "nodes": [steady] }));
    site.run(&Job::new(1)).expect_outcome(&Outcome::Success);
    let explained = String::from_utf8(site.greenroom(&["explain", "spot"]).stdout).unwrap();
    assert!(explained.contains("0/1 nodes are available"), "{explained}");
    site.wait_until_calm(0);
}
