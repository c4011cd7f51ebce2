//! Figures of docs/benchmarks.md, all in one run on one cluster: `cargo test --features kubernetes --test kubernetes figures --
//! --ignored --nocapture`. What is compared alternates.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use greenroom_harness::processes::{Kind, wait_for};
use greenroom_harness::setting::Setting;
use greenroom_testkit::dice::number;
use greenroom_testkit::gitlab_runner::job::Job;
use serde_json::{Value, json};

use super::site::{PATIENCE, Site};
use super::{IMAGE, Namespace, kubectl, kubectl_command};

const STAGES: [&str; 4] = ["prepare_script", "get_sources", "build_script", "cleanup_file_variables"];
const SCRIPT: &str = "echo one; echo two";
/// The settings that Greenroom has by default.
const DEFAULTS: [(&str, &str); 5] = [
    ("pass_interval", "10s"),
    ("list_interval", "5s"),
    ("absence_interval", "30s"),
    ("probe_interval", "1s"),
    ("waiter_poll_interval", "1s"),
];

pub(super) fn by_default(setting: Setting) -> Setting {
    let setting = DEFAULTS.iter().fold(setting, |setting, (key, value)| setting.timing(key, *value));
    setting.provider("cpu", "10m").provider("memory", "48Mi")
}

pub(super) fn show(what: &str, mut all: Vec<Duration>) {
    all.sort();
    let at = |part: usize| all[(all.len() - 1) * part / 100].as_millis();
    println!("figure: {what}: median {} ms ({}–{}, {} rounds)", at(50), at(0), at(100), all.len());
}

pub(super) fn load() -> String {
    std::fs::read_to_string("/proc/loadavg")
        .expect("the load")
        .split(' ')
        .next()
        .unwrap_or_default()
        .to_owned()
}

fn counted(all: &[String]) -> String {
    let mut counts = std::collections::BTreeMap::<&str, u32>::new();
    for call in all {
        *counts.entry(call.as_str()).or_default() += 1;
    }
    format!("{} ({counts:?})", all.len())
}

/// A whole job by hand: how long it waits, and how long all its calls take.
fn job(site: &Site, id: u64) -> (Duration, Duration) {
    let attempt = site.runner().attempt(&Job::new(id));
    let began = Instant::now();
    assert_eq!(attempt.config().exit_code(), Some(0));
    let prepare = attempt.prepare();
    assert_eq!(prepare.exit_code(), Some(0), "{}", prepare.stderr_text());
    for stage in STAGES {
        assert_eq!(attempt.run(stage, SCRIPT).exit_code(), Some(0));
    }
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    let took = began.elapsed();
    attempt.remove_tmpdir();
    (prepare.took().expect("it ended"), took)
}

/// A pod that waits, with a shell that can be attached to.
fn shell(namespace: &Namespace) -> Child {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "shell" },
        "spec": { "terminationGracePeriodSeconds": 1, "containers": [{
            "name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": ["bash"], "stdin": true,
        }] },
    });
    namespace.apply(&pod);
    let path = format!("/api/v1/namespaces/{}/pods/shell", namespace.name);
    namespace.cluster.pod(&path, "ready", crate::api::is_ready);
    let mut attach = kubectl_command();
    attach.args(["-n", &namespace.name, "attach", "-i", "shell"]);
    attach.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("kubectl starts")
}

fn bare_exec(namespace: &Namespace) -> Duration {
    let began = Instant::now();
    for _ in STAGES {
        let printed = namespace.kubectl(&["exec", "shell", "--", "bash", "-c", SCRIPT]);
        assert_eq!(printed, "one\ntwo\n");
    }
    began.elapsed()
}

/// The time of the stages as GitLab's executor runs them: the script by one exec, a line to the attached shell, and the
/// output from a file by another.
fn attached(namespace: &Namespace, shell: &mut Child) -> Duration {
    let began = Instant::now();
    let line = shell.stdin.as_mut().expect("a pipe");
    for stage in STAGES {
        let write = format!("printf '%s' '{SCRIPT}' >/tmp/{stage}; rm -f /tmp/{stage}.log");
        namespace.kubectl(&["exec", "shell", "--", "sh", "-c", &write]);
        let run =
            format!("{{ bash /tmp/{stage}; echo \"{{\\\"status\\\":$?}}\"; }} 2>&1 | tee /tmp/{stage}.log\n");
        line.write_all(run.as_bytes()).expect("it is attached");
        let mut tail = kubectl_command();
        let follow = format!("tail -n +1 -F /tmp/{stage}.log 2>/dev/null");
        tail.args(["-n", &namespace.name, "exec", "shell", "--", "sh", "-c", &follow]).stdout(Stdio::piped());
        let mut tail = tail.spawn().expect("kubectl starts");
        let output = BufReader::new(tail.stdout.take().expect("a pipe"));
        let ends = |line: &String| line == "{\"status\":0}";
        output.lines().map_while(Result::ok).find(ends).expect("its status");
        tail.kill().and_then(|()| tail.wait()).expect("it ends");
    }
    began.elapsed()
}

fn waits_and_jobs(warm: &Site, cold: &Site) {
    let mut shell = shell(&cold.namespace);
    let (mut waits, mut cold_waits, mut jobs) = (Vec::new(), Vec::new(), Vec::new());
    let (mut execs, mut attaches, mut starts) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..number("GREENROOM_ROUNDS", 10) {
        wait_for("an idle pod", PATIENCE, || (warm.idle().len() == 1).then_some(()));
        let (wait, took) = job(warm, 100 + round);
        waits.push(wait);
        jobs.push(took);
        cold_waits.push(job(cold, 200 + round).0);
        if round > 0 {
            execs.push(bare_exec(&cold.namespace));
            attaches.push(attached(&cold.namespace, &mut shell));
            let began = Instant::now();
            kubectl(&["version", "--client"], None);
            starts.push(began.elapsed());
        }
    }
    show("wait of a job, warm pod", waits);
    show("wait of a job, cold pod, image there", cold_waits);
    show("job of four stages, warm pod, config to cleanup", jobs);
    show("four stages by kubectl exec", execs);
    show("four stages as attach does it, by kubectl", attaches);
    show("a kubectl that calls nothing", starts);
    shell.kill().and_then(|()| shell.wait()).expect("it ends");
    cold.namespace.kubectl(&["delete", "pod", "shell"]);
}

fn api_calls(warm: &Site, cold: &Site) {
    for (name, site) in [("warm", warm), ("cold", cold)] {
        let idle = usize::from(name == "warm");
        site.wait_until_calm(idle);
        let before = site.namespace.calls().len();
        job(site, 300);
        site.wait_until_calm(idle);
        std::thread::sleep(Duration::from_secs(2));
        println!(
            "figure: API calls of a job on a {name} pod, with all that follows: {}",
            counted(&site.namespace.calls()[before..])
        );
    }
    let (before, minutes) = (warm.namespace.calls().len(), number("GREENROOM_IDLE_MINUTES", 3));
    std::thread::sleep(Duration::from_mins(minutes));
    println!(
        "figure: API calls of a pool with one idle pod in {minutes} minutes: {}",
        counted(&warm.namespace.calls()[before..])
    );
}

fn fifty_at_once(site: &Site) {
    let began = Instant::now();
    site.reap();
    let keeper = site.keep();
    for part in [1, 25, 50] {
        wait_for("idle pods", PATIENCE * 2, || (site.idle().len() >= part).then_some(()));
        println!("figure: 50 pods at once: {part} ready after {} ms", began.elapsed().as_millis());
    }
    let before = site.namespace.calls().len();
    println!("figure: 50 pods at once: API calls {}", counted(&site.namespace.calls()[..before]));
    keeper.kill();
    site.order(&["pool", "drain", "--wait"]);
    println!("figure: 50 pods at once: gone after {} ms", began.elapsed().as_millis());
}

/// Pods of another owner that no node takes: they count for lists.
fn a_thousand_listed(site: &Site) {
    let memory = |site: &Site| {
        let keeper = site.of_kind(Kind::Keeper).first().expect("a keeper").pid;
        let status = std::fs::read_to_string(format!("/proc/{keeper}/status")).expect("its status");
        let of = |key: &str| status.lines().find(|line| line.starts_with(key)).unwrap_or_default().to_owned();
        format!("{} {}", of("VmRSS"), of("VmHWM"))
    };
    let listed = || {
        let path = format!("/api/v1/namespaces/{}/pods?labelSelector=greenroom-pool", site.namespace.name);
        let began = Instant::now();
        let answer = site.namespace.cluster.get(&path);
        (answer.body["items"].as_array().map_or(0, Vec::len), answer.text.len(), began.elapsed())
    };
    site.run(&Job::new(1));
    let keeper = memory(site);
    println!("figure: a list of {} pods: keeper {keeper}", listed().0);
    let pods: Vec<Value> = (0..1000)
        .map(|number| {
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": format!("other-{number}"), "labels": {
                    "greenroom-pool": "pool", "greenroom-owner": "another", "greenroom-generation": "0", "greenroom-number": "1",
                } },
                "spec": { "nodeSelector": { "no": "where" }, "containers": [{ "name": "job", "image": IMAGE, "command": ["true"] }] },
            })
        })
        .collect();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": pods });
    kubectl(&["-n", &site.namespace.name, "create", "-f", "-"], Some(&list));
    site.run(&Job::new(2));
    let mut times = Vec::new();
    let mut reaps = Vec::new();
    let (mut count, mut bytes) = (0, 0);
    for _ in 0..10 {
        let (items, length, took) = listed();
        (count, bytes) = (items, length);
        times.push(took);
        let began = Instant::now();
        site.order(&["pool", "leaks"]);
        reaps.push(began.elapsed());
    }
    show(&format!("a list of {count} pods in one page, {bytes} bytes, by curl"), times);
    show(&format!("greenroom pool leaks with {count} pods"), reaps);
    println!("figure: a list of {count} pods: keeper {}", memory(site));
}

/// A site in a namespace of its own; `None`: the test is skipped.
fn open(change: fn(Setting) -> Setting) -> Option<Site> {
    let namespace = Namespace::open()?;
    Some(Site::open(namespace, &json!({}), change))
}

#[test]
#[ignore = "figures"]
fn figures() {
    println!("figure: load before: {}", load());
    let Some(warm) = open(|setting| by_default(setting.pool("idle_count", 1))) else { return };
    let Some(cold) = open(by_default) else { return };
    // Both keepers run on, so that no round pays for the start of one.
    let keepers = [warm.keep(), cold.keep()];
    waits_and_jobs(&warm, &cold);
    api_calls(&warm, &cold);
    println!("figure: load: {}", load());
    drop(keepers);
    warm.expect_nothing_left();
    let fifty = open(|setting| {
        by_default(setting).pool("idle_count", 50).pool("max_instances", 60).pool("max_launching", 50)
    });
    fifty_at_once(&fifty.expect("a cluster"));
    println!("figure: load after: {}", load());
}

#[test]
#[ignore = "figures"]
fn figures_of_a_thousand_pods() {
    let Some(many) = open(|setting| by_default(setting).pool("idle_count", 1)) else { return };
    a_thousand_listed(&many);
    println!("figure: load after: {}", load());
}
