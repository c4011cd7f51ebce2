//! Pipelines of jobs in containers: images and services from registries, sources, cancellation, memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use greenroom_core::instance::Instance;
use greenroom_harness::processes::wait_for;
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::handle::Handle;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::{JobResult, Outcome};
use greenroom_testkit::gitlab_runner::repository::repository;
use greenroom_testkit::pace::Pace;
use greenroom_testkit::skipped::skipped;
use serde_json::json;

use super::registry::{ACCOUNT, Registries};
use super::sources::GitServer;
use super::{Machines, machines};

/// The time that all pipelines may take together, with the template of their machines.
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

/// One pool, whose images need a password and none.
#[test]
#[ignore = "in `scripts/test --full`: a template with images, and three more pulls"]
fn an_image_with_a_password_comes_to_idle_machines_and_never_into_their_template() {
    if let Some(why) = Registries::obstacle() {
        return skipped(why);
    }
    let dir = tempfile::tempdir().expect("a directory");
    let registries = Registries::serve(dir.path(), &["ash:1", "private:1"]);
    let (ash, private) =
        (format!("{}/ash:1", registries.open), format!("{}/private:1", registries.with_password));
    let auth = dir.path().join("auth.json");
    std::fs::write(&auth, auth_config(&registries.with_password)).expect("credentials");
    let mut containers = registries.keys();
    containers.insert("images_warm".into(), vec![private.clone(), ash.clone()].into());
    containers.insert("registry_auth".into(), auth.display().to_string().into());
    // The job asks no registry: what the log gains is the keeper's.
    containers.insert("pull_policy".into(), vec!["if-not-present"].into());
    let mut setting = setting(&registries, None).pool("containers", containers);
    setting = setting.pool("idle_count", 1).pool("max_instances", 1).provider("template_retention", "5s");
    setting.patience *= 2;
    let place = Machines::with_own_images(setting);
    let folder = place.state_dir.join("images");
    let image = crate::images::containers().dir.canonicalize().expect("an image");
    std::os::unix::fs::symlink(image, folder.join("containers")).expect("a link to the test image");
    place.warm_up(1);
    let patience = place.setting.patience;
    // An idle machine that has both.
    let warm = || {
        let state = place.state();
        let has = |machine: &&Arc<Instance>| {
            machine.is_idle() && [&ash, &private].iter().all(|name| machine.images.get(name).is_some())
        };
        state.instances.values().find(has).cloned()
    };
    let first = wait_for("both images on the idle machine", patience, warm);
    let template = wait_for("a template with one of them", patience, || {
        let template = std::fs::read_dir(folder.join(".templates")).ok()?.flatten().next()?.path();
        let done = std::fs::read_to_string(template.join("template.json")).ok()?;
        (done.contains(&ash) && !done.contains(&private)).then_some(template)
    });
    let blobs = || {
        let log = std::fs::read_to_string(dir.path().join("open.log")).expect("a log");
        log.lines()
            .filter(|line| line.contains("/blobs/sha256:") && line.contains("response completed"))
            .count()
    };
    let before = blobs();
    let result = place.runner().run(&Job::new(1).image(&ash).script(["echo ran"]));
    expect(&result, &Outcome::Success, &["ran"]);
    let next = || warm().filter(|machine| machine.id != first.id);
    let second = wait_for("both images on the next machine", patience, next);
    assert_eq!(blobs(), before, "a clone has pulled what its template has");
    let digest = |machine: &Arc<Instance>| {
        machine.images.get(&ash).and_then(|fact| fact.image.digest.clone()).expect("a digest")
    };
    assert_eq!(digest(&first), digest(&second));
    let pair = format!("{}:{}", ACCOUNT.0, ACCOUNT.1);
    let coded = <base64ct::Base64 as base64ct::Encoding>::encode_string(pair.as_bytes());
    let has = |file: &str, text: &str| {
        let mut grep = std::process::Command::new("grep");
        grep.args(["-q", "-a", "-F", "-e", text]).arg(template.join(file));
        grep.status().expect("grep").success()
    };
    assert!(has("ram.img", "Linux version"), "the memory is not read: the test judges nothing");
    for file in ["ram.img", "disk.qcow2", "state", "recipe.json", "template.json", "console.log"] {
        for secret in [ACCOUNT.1, &coded] {
            assert!(!has(file, secret), "a password in {file}");
        }
    }
    place.wait_until_settled(1);
}
