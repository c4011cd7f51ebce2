//! Kind: everything whose size a job chooses has a limit, which is applied before anything is copied.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use greenroom_core::container::request;
use greenroom_harness::driver;
use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::{Kind, wait_for};
use greenroom_harness::setting::Setting;
use greenroom_testkit::dice::number;
use greenroom_testkit::gitlab_runner::attempt::Attempt;
use greenroom_testkit::gitlab_runner::job::Job;
use rustix::process::Pid;
use serde_json::{Value, json};
use toml::Table;

/// The memory that a call may use, in KiB.
const MEMORY: u64 = 60 << 10;

/// A part of the sentence, and what the job's author writes.
type Case<'a> = (&'a str, &'a dyn Fn(&mut Value));

/// A pool that runs jobs in containers. Nothing is pulled.
fn setting() -> Setting {
    let containers: Table = "pull_policy = \"never\"\n".parse().expect("a table");
    Setting::new().pool("containers", containers).pool("max_instances", 1)
}

/// A driver that the kernel gives no more memory.
fn limited(place: &Place) -> PathBuf {
    let path = place.path().join("limited");
    std::fs::write(&path, format!("#!/bin/sh\nulimit -d {MEMORY} || exit 9\nexec {} \"$@\"\n", driver()))
        .expect("a file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
    path
}

/// An attempt with another response than a job of the test has.
fn attempt(place: &Place, driver: &Path, id: u64, change: impl FnOnce(&mut Value)) -> Attempt {
    let attempt = place.runner_with(driver).attempt(&Job::new(id));
    let file = attempt.tmpdir.join("response.json");
    let mut response = serde_json::from_slice(&std::fs::read(&file).expect("a response")).expect("JSON");
    change(&mut response);
    std::fs::write(&file, response.to_string()).expect("a response");
    attempt
}

fn variable(key: &str, value: &str) -> Value {
    json!({"key": key, "value": value, "public": true})
}

fn add_variables(response: &mut Value, all: impl IntoIterator<Item = Value>) {
    response["image"] = json!({"name": "ruby:3.3"});
    response["variables"].as_array_mut().expect("a list").extend(all);
}

/// The largest job that is accepted.
fn largest(response: &mut Value) {
    let name = |number: usize| format!("registry.example.com:5005/{}/{number}", "path/".repeat(40) + "end");
    let text = |bytes: usize| "x".repeat(bytes);
    let public = (0..2).map(|number| variable(&format!("PUBLIC_{number}"), &text(60_000)));
    let private = (0..15).map(|number| {
        json!({"key": format!("PRIVATE_{number}"), "value": text(request::VARIABLE_VALUE - 4000), "public": false})
    });
    add_variables(response, public.chain(private));
    let service = |number: usize| {
        json!({
            "name": name(number), "alias": format!("a-{number},b-{number},c-{number}"),
            "command": [text(5000), text(4000)], "entrypoint": ["sh", "-c"],
            "variables": [variable("OWN", &text(20_000))],
        })
    };
    response["image"] = json!({"name": name(1000)});
    response["services"] = (0..request::SERVICES).map(service).collect();
}

/// A job's author writes the pipeline of a stress test: each thing that may have any size in GitLab fails with a sentence,
/// and takes no memory. `GREENROOM_HOSTILE` repeats all of them.
#[test]
fn a_job_beyond_a_limit_fails_with_its_name_and_takes_no_memory() {
    let place = setting().open();
    let _keeper = place.keep();
    let driver = limited(&place);
    let services = |count: usize| -> Value {
        (0..count).map(|n| json!({"name": "redis", "alias": format!("a{n}")})).collect()
    };
    let mebibyte = "x".repeat(1 << 20);
    let cases: [Case<'_>; 16] = [
        ("more than 100 services", &|job| job["services"] = services(10_000)),
        ("more than 100 services", &|job| {
            add_variables(job, (0..3).map(|n| variable(&format!("A{n}"), &mebibyte[..100_000])));
            job["services"] = services(30_000);
        }),
        ("public variables, together more than 16 MiB", &|job| {
            add_variables(job, (0..3).map(|n| variable(&format!("A{n}"), &mebibyte[..100_000])));
            job["services"] = services(100);
        }),
        ("more than 500 host names or 32 KiB", &|job| {
            let aliases: Vec<String> = (0..100_000).map(|n| format!("a{n}")).collect();
            job["services"] = json!([{"name": "redis", "alias": aliases.join(",")}]);
        }),
        ("the name of a variable is longer than 1 KiB", &|job| {
            add_variables(job, [variable(&mebibyte, "x")]);
        }),
        ("larger than 128 KiB", &|job| add_variables(job, [variable("A", &mebibyte.repeat(50))])),
        ("larger than 128 KiB, references resolved", &|job| {
            add_variables(job, [variable("A", &mebibyte[..100_000]), variable("B", &"$A".repeat(50_000))]);
        }),
        ("larger than 2 MiB", &|job| {
            add_variables(job, (0..500).map(|n| variable(&format!("A{n}"), &mebibyte[..100_000])));
        }),
        ("more than 10000 variables", &|job| {
            add_variables(job, (0..200_000).map(|n| variable(&format!("A{n}"), "")));
        }),
        ("more than 10000 words or 1 MiB", &|job| {
            job["services"] = json!([{"name": "redis", "command": vec!["x"; 1_000_000]}]);
        }),
        ("more than 10000 words or 1 MiB", &|job| job["image"]["entrypoint"] = json!([mebibyte, mebibyte])),
        ("the name of an image is longer than 1 KiB", &|job| job["image"]["name"] = json!(mebibyte)),
        ("longer than 256 bytes", &|job| {
            add_variables(job, [variable("A", &mebibyte[..1000])]);
            job["image"]["executor_opts"] = json!({"docker": {"user": "$A"}});
        }),
        ("more than 16 entries", &|job| job["image"]["pull_policy"] = json!(vec!["never"; 100_000])),
        ("credentials for more than 200 registries", &|job| {
            let one =
                json!({"type": "registry", "url": "r", "username": "u", "password": mebibyte[..10_000]});
            job["credentials"] = json!(vec![one; 3000]);
        }),
        ("more than 500 host names", &|job| {
            let aliases = |n: usize| (0..90).map(|a| format!("a{n}-{a}")).collect::<Vec<_>>().join(" ");
            job["services"] =
                (0..9).map(|n| json!({"name": format!("redis{n}"), "alias": aliases(n)})).collect();
        }),
    ];
    let rounds = number("GREENROOM_HOSTILE", 1);
    let all = (0..rounds).flat_map(|_| cases);
    for (id, (sentence, change)) in (1..).zip(all) {
        let attempt = attempt(&place, &driver, id, |job| {
            job["image"] = json!({"name": "ruby:3.3"});
            change(job);
        });
        assert_eq!(attempt.config().exit_code(), Some(0), "{sentence}");
        let prepare = attempt.prepare();
        let said = prepare.stderr_text();
        assert!(said.contains(sentence), "{sentence}: {:?} {said}", prepare.exit);
        assert!(!said.contains("system failure"), "{said}");
        attempt.cleanup();
        attempt.remove_tmpdir();
    }
    place.expect_sound();
}

/// A merge request from a branch with a name of 20 kB: the job fails, because rules compare the whole name.
#[test]
fn names_that_decide_are_never_cut() {
    let place = setting().open();
    let driver = limited(&place);
    let long = "x".repeat(20_000);
    let cases: [Case<'_>; 3] = [
        ("`name` is longer than 8 KiB", &|job| job["job_info"]["name"] = json!(long)),
        ("`ref` is longer than 8 KiB", &|job| job["git_info"]["ref"] = json!(long)),
        ("`project_full_path` is longer than 8 KiB", &|job| {
            job["job_info"]["project_full_path"] = json!(long);
        }),
    ];
    for (id, (sentence, change)) in (1..).zip(cases) {
        let config = attempt(&place, &driver, id, change).config();
        let said = config.stderr_text();
        assert!(said.contains(sentence) && !said.contains("system failure"), "{sentence}: {said}");
    }
}

/// GitLab sends scripts of any size. One of 50 MB runs, and neither call nor link keeps it in memory.
#[test]
fn a_script_of_fifty_megabytes_runs() {
    let place = Setting::new().open();
    let _keeper = place.keep();
    let driver = limited(&place);
    let line = format!(": {}\n", "x".repeat(998));
    let script = line.repeat(50_000);
    let attempt = attempt(&place, &driver, 1, |job| job["steps"][0]["script"] = json!([script]));
    assert_eq!(attempt.config().exit_code(), Some(0));
    let prepare = attempt.prepare();
    assert_eq!(prepare.exit_code(), Some(0), "{}", prepare.stderr_text());
    let run = attempt.run("build_script", &(script + "echo its end\n"));
    assert!(run.exit_code() == Some(0) && run.stdout_text().contains("its end"), "{}", run.stderr_text());
    let links = place.of_kind(Kind::Link);
    assert!(!links.is_empty(), "the stage had no link: its memory is not judged");
    for link in links {
        let memory = peak(Pid::from_raw(link.pid).expect("a process"));
        assert!(memory <= MEMORY, "{memory} KiB in the link");
    }
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    place.wait_until_quiet();
    place.expect_sound();
}

/// The runner's file is not what GitLab sends: a sentence, without the memory that the file would take.
#[test]
fn a_broken_response_of_any_size_is_an_error_and_takes_no_memory() {
    let place = setting().open();
    let driver = limited(&place);
    let deep = |open: &str| format!("{{\"id\": 1, \"x\": {}", open.repeat(20_000_000)).into_bytes();
    let invalid = b"{\"id\": 1, \"image\": {\"name\": \"\xff\xfe\"}}".to_vec();
    let responses = [
        (deep("["), "nested too deeply"),
        (deep("{\"a\":"), "nested too deeply"),
        (invalid, "not valid JSON"),
        (vec![b' '; 30_000_000], "unexpected end"),
    ];
    for (id, (bytes, sentence)) in (1..).zip(responses) {
        let attempt = attempt(&place, &driver, id, |_| {});
        std::fs::write(attempt.tmpdir.join("response.json"), bytes).expect("a response");
        let config = attempt.config();
        assert!(config.stderr_text().contains(sentence), "{sentence}: {}", config.stderr_text());
    }
}

/// The largest job that is accepted, up to the script for its containers.
#[test]
fn the_largest_job_is_prepared_in_little_memory() {
    let place = setting().open();
    let _keeper = place.keep();
    let attempt = attempt(&place, &limited(&place), 1, largest);
    assert_eq!(attempt.config().exit_code(), Some(0));
    let prepare = attempt.prepare();
    let said = prepare.stderr_text();
    // The instance has a grant and no such image, or no engine: the script was sent.
    assert!(said.contains("ready in"), "{:?} {said}", prepare.exit);
    assert!(!said.contains("no pool accepts") && !said.contains("memory allocation"), "{said}");
    attempt.cleanup();
    place.expect_sound();
}

/// Ten of the largest jobs wait: their calls are small, and so is what the state has of them.
#[test]
fn the_largest_jobs_wait_in_little_memory_and_little_state() {
    let place = setting().open();
    let _keeper = place.keep();
    let held = place.prepared(1);
    let plain = state_size(&place);
    let waiting: Vec<_> = (2..12).map(|id| wait_with(&place, id, largest)).collect();
    wait_for("ten waiting jobs", SOON, || (place.state().waiting.len() == 10).then_some(()));
    for (_, call) in &waiting {
        let memory = peak(call.pid());
        assert!(memory <= MEMORY, "{memory} KiB");
    }
    let each = (state_size(&place) - plain) / 10;
    assert!(each < 16 << 10, "{each} bytes for each waiting job");
    let begun = Instant::now();
    assert!(place.order(&["pool", "status"]).contains("10 "));
    let status = begun.elapsed();
    assert!(status < Duration::from_secs(3), "{status:?}");
    place.cancel(waiting, &held);
    place.expect_sound();
}

/// The figures for docs/benchmarks.md: a warm `prepare` beside fifty of the largest jobs that wait, in turn with and without.
#[test]
#[ignore = "figures; needs 2 GB of memory and a quiet machine"]
fn what_the_largest_jobs_cost_others() {
    let mut place = setting().open();
    place.setting.patience = Duration::from_mins(2);
    let text = place.setting.text(&place.state_dir);
    let mut config: Table = text.parse().expect("the configuration");
    let pools = config["pool"].as_table_mut().expect("pools");
    let mut honest = pools["pool"].as_table().expect("a pool").clone();
    honest.extend([("idle_count".to_owned(), 2.into()), ("max_instances".to_owned(), 4.into())]);
    pools.insert("honest".to_owned(), honest.into());
    config.insert("default_pool".to_owned(), "pool".into());
    let rule: Table = "project = \"honest/**\"\npool = \"honest\"".parse().expect("a rule");
    config.insert("rule".to_owned(), vec![toml::Value::from(rule)].into());
    place.write_config(&toml::to_string(&config).expect("a text"));
    let _keeper = place.keep();
    let held = place.prepared(1);
    let mut id = 1000;
    let mut measure = |all: &mut Vec<Duration>, status: &mut Vec<Duration>| {
        for _ in 0..10 {
            id += 1;
            // Two idle instances are there again.
            std::thread::sleep(Duration::from_secs(1));
            let attempt = place.runner().attempt(&Job::new(id).project(7, "honest/one"));
            assert_eq!(attempt.config().exit_code(), Some(0));
            let begun = Instant::now();
            let prepare = attempt.prepare();
            all.push(begun.elapsed());
            assert!(prepare.stderr_text().contains("(warm"), "{}", prepare.stderr_text());
            attempt.cleanup();
            attempt.remove_tmpdir();
            let begun = Instant::now();
            place.order(&["pool", "status"]);
            status.push(begun.elapsed());
        }
    };
    let (mut alone, mut beside, mut status_alone, mut status_beside) = (vec![], vec![], vec![], vec![]);
    let mut memory = 0;
    for round in 0..3 {
        measure(&mut alone, &mut status_alone);
        let waiting: Vec<_> = (0..50).map(|n| wait_with(&place, 100 * (round + 1) + n, largest)).collect();
        wait_for("fifty waiting jobs", SOON, || (place.state().waiting.len() == 50).then_some(()));
        memory = memory.max(waiting.iter().map(|(_, call)| peak(call.pid())).max().unwrap_or(0));
        measure(&mut beside, &mut status_beside);
        for (attempt, call) in waiting {
            attempt.cleanup();
            call.wait(SOON);
            attempt.remove_tmpdir();
        }
    }
    held.cleanup();
    let median = |all: &mut Vec<Duration>| {
        all.sort();
        all[all.len() / 2]
    };
    let [alone, beside, status, status_beside] =
        [&mut alone, &mut beside, &mut status_alone, &mut status_beside].map(median);
    eprintln!("peak memory of a waiting `prepare` | {} MiB", memory >> 10);
    eprintln!("warm prepare | {alone:?} | {beside:?} | {:.2} ×", beside.as_secs_f64() / alone.as_secs_f64());
    eprintln!("pool status | {status:?} | {status_beside:?}");
}

fn wait_with(
    place: &Place,
    id: u64,
    change: impl FnOnce(&mut Value),
) -> (Attempt, greenroom_testkit::gitlab_runner::process::LiveCall) {
    let attempt = attempt(place, Path::new(driver()), id, change);
    assert_eq!(attempt.config().exit_code(), Some(0));
    let call = attempt.start_prepare();
    (attempt, call)
}

/// The number of bytes in the files of the pool's state.
fn state_size(place: &Place) -> u64 {
    let files = std::fs::read_dir(place.state_dir.join("pools/pool")).expect("the pool's state");
    let files = files.map(|file| file.expect("a file"));
    let is_text = |file: &std::fs::DirEntry| !file.file_name().to_string_lossy().starts_with("reserve");
    files.filter(is_text).map(|file| file.metadata().map_or(0, |file| file.len())).sum()
}

/// The most memory that a process has had, in KiB.
fn peak(pid: Pid) -> u64 {
    let path = format!("/proc/{}/status", pid.as_raw_nonzero());
    let status = std::fs::read_to_string(path).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    line.trim().trim_end_matches(" kB").trim().parse().expect("a number")
}
