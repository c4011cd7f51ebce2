//! Pipelines of jobs in containers: images and services from registries, sources, cancellation, memory.

use std::time::{Duration, Instant};

use serde_json::json;

use super::registry::{ACCOUNT, Registries};
use super::sources::GitServer;
use super::{Machines, machines};
use crate::pace::Pace;
use crate::setting::Setting;
use crate::skipped::skipped;
use crate::support::handle::Handle;
use crate::support::job::Job;
use crate::support::record::{JobResult, Outcome};
use crate::support::repository::repository;

/// What all pipelines may take together, with the template of their machines.
const WITHIN: Duration = Duration::from_mins(4);
const IMAGES: &[&str] = &["ash:1", "bash:1", "hashicorp/terraform:1.9", "private:1", "app:1", "backend:1"];

/// A pool whose machines have an engine, and the registries that they reach. `memory`: the limit of each container.
fn setting(registries: &Registries, memory: Option<&str>) -> Setting {
    crate::images::containers();
    let mut containers = registries.keys();
    containers.extend(memory.map(|memory| ("memory".to_owned(), memory.into())));
    containers.insert("cpus".into(), 0.5.into());
    let mut setting = machines().provider("image", "containers").provider("network", "open");
    setting = setting.pool("containers", containers);
    // Two jobs at a time, and emulated machines.
    setting.patience *= 3;
    setting
}

/// A place with machines, registries, and a directory for both.
fn open(memory: Option<&str>) -> Option<(Machines, Registries, tempfile::TempDir)> {
    if let Some(why) = Registries::obstacle() {
        skipped(why);
        return None;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let registries = Registries::serve(dir.path(), IMAGES);
    let place = Machines::open(setting(&registries, memory));
    Some((place, registries, dir))
}

/// The outcome and lines of the job log.
#[track_caller]
pub(super) fn expect(result: &JobResult, outcome: &Outcome, lines: &[&str]) {
    result.expect_outcome(outcome);
    let log = result.log_text();
    for line in lines {
        assert!(log.lines().any(|said| said == *line), "`{line}` in {}", result.describe());
    }
}

fn auth_config(registry: &str) -> String {
    let pair = format!("{}:{}", ACCOUNT.0, ACCOUNT.1);
    let auth = <base64ct::Base64 as base64ct::Encoding>::encode_string(pair.as_bytes());
    json!({"auths": {registry: {"auth": auth}}}).to_string()
}

/// Prints how long each stage of a job took.
pub(super) fn report(name: &str, result: &JobResult) {
    let stages = result.calls.iter().map(|call| {
        format!("{} {:.1}", call.name(), call.took().map_or(f64::NAN, |took| took.as_secs_f64()))
    });
    eprintln!("{name}: {:.1} s ({})", result.took.as_secs_f64(), stages.collect::<Vec<_>>().join(", "));
}

#[test]
fn ordinary_pipelines_run_in_containers_of_emulated_machines() {
    let Some((place, registries, _dir)) = open(Some("64M")) else { return };
    let (begun, pace) = (Instant::now(), Pace::watch());
    let open = |image: &str| format!("{}/{image}", registries.open);
    let home = place.path().join("repositories");
    std::fs::create_dir(&home).expect("a folder");
    let server = GitServer::start(&home);
    let with_service = Job::new(1)
        .image(&open("bash:1"))
        .service(json!({"name": open("backend:1"), "alias": "store", "variables": [{"key": "NAME", "value": "$CI_PROJECT_NAME"}]}))
        .script([
            "echo \"bash ${BASH_VERSION:+reads this}\"",
            "nc -w 20 store 8080 </dev/null",
                "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/cpu.max",
        ]);
    let of_a_tool = Job::new(2)
        .image("hashicorp/terraform:1.9")
        .image_option("entrypoint", json!([""]))
        .script(["terraform version", "readlink /proc/$$/exe"]);
    let private = format!("{}/private:1", registries.with_password);
    let private = Job::new(3)
        .image(&private)
        .masked("DOCKER_AUTH_CONFIG", auth_config(&registries.with_password))
        .script(["echo the private image ran"]);
    let with_sources = Job::new(4)
        .image(&open("app:1"))
        .repository(&server.url(&repository(&home)))
        .script(["id -u", "git log --format=%s", "echo more >> README.md", "git diff --stat | tail -n 1"])
        .after_script(["tail -n 1 README.md"]);
    let greedy = Job::new(5)
        .image(&open("ash:1"))
        .script(["tail /dev/zero", "echo never"])
        .after_script(["echo \"after $CI_JOB_STATUS\""]);
    let cancelled = Job::new(6)
        .image(&open("ash:1"))
        .script(["echo left > /file; echo busy; while :; do sleep 0.2; done"])
        .after_script(["cat /file"]);
    let runner = place.runner();
    let [one, two, three, four, five] =
        [with_service, of_a_tool, private, with_sources, greedy].map(|job| runner.start(&job));
    let mut six = runner.start(&cancelled);
    six.wait_for_stage("build_script").wait_for_output("\nbusy\n", place.setting.patience);
    six.cancel();
    let results = [one, two, three, four, five, six].map(Handle::finish);
    let names = ["service", "entrypoint", "private", "sources", "memory", "cancelled"];
    for (name, result) in names.into_iter().zip(&results) {
        report(name, result);
    }
    let took = begun.elapsed();
    eprintln!("{} jobs in {:.0} s", results.len(), took.as_secs_f64());
    assert!(took <= pace.stretched(WITHIN), "{} jobs took {took:?}", results.len());
    let [one, two, three, four, five, six] = &results;
    expect(one, &Outcome::Success, &["bash reads this", "hello from demo", "67108864", "50000 100000"]);
    expect(two, &Outcome::Success, &["v1.9", "/bin/busybox"]);
    expect(three, &Outcome::Success, &["the private image ran"]);
    assert!(!three.log_text().contains(ACCOUNT.1), "{}", three.describe());
    expect(four, &Outcome::Success, &["1000", "one", " 1 file changed, 1 insertion(+)", "more"]);
    // GitLab's code for a script that the kernel has killed.
    expect(five, &Outcome::ScriptFailure { exit_code: 137 }, &["after failed"]);
    assert!(!five.log_text().contains("never\n"), "{}", five.describe());
    expect(six, &Outcome::JobCanceled, &["busy"]);
    assert!(six.call("after_script").stdout_text().ends_with("left\n"), "{}", six.describe());
    place.expect_nothing_left(0);
}

/// Without a limit for containers, the kernel of the machine chooses what it kills.
#[test]
#[ignore = "in `scripts/test --full`: one more machine to boot"]
fn a_script_that_takes_all_memory_of_its_machine_fails_and_its_machine_goes_on() {
    let Some((place, registries, _dir)) = open(None) else { return };
    let image = format!("{}/ash:1", registries.open);
    let greedy = Job::new(1)
        .image(&image)
        .script(["cat /sys/fs/cgroup/memory.max", "tail /dev/zero", "echo never"])
        .after_script(["echo \"after $CI_JOB_STATUS\""]);
    let result = place.runner().run(&greedy);
    report("all memory", &result);
    expect(&result, &Outcome::ScriptFailure { exit_code: 137 }, &["max", "after failed"]);
    assert!(!result.log_text().contains("never\n"), "{}", result.describe());
    place.expect_nothing_left(0);
}
