//! The conformance kit on the tests' plugin: as it should be, and with one fault each, which the kit has to name; and on
//! GitLab's dummy plugin.

#![cfg(test)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use greenroom_testkit::skipped::skipped;
use serde_json::{Value, json};

use crate::dummy::dummy;
use crate::fixture::{GREENROOM, TEST_PLUGIN};
use crate::platform::Platform;

/// Long enough for every machine on a busy host.
const AMPLE: &str = "60";

/// A plugin's group, with real machines or without.
struct Site {
    platform: Platform,
    /// Homes of the runs.
    home: tempfile::TempDir,
}

impl Site {
    /// A platform and a home for the kit. `None`: this host has no SSH server.
    fn new() -> Option<Self> {
        if !std::path::Path::new("/usr/sbin/sshd").exists() {
            skipped("`sshd` is missing");
            return None;
        }
        Some(Self { platform: Platform::new(), home: tempfile::tempdir().unwrap() })
    }

    /// A run with machines that nothing starts: they count as running immediately.
    fn without_machines(self) -> (Self, Value) {
        (self, json!(false))
    }

    fn kit(&self, machines: &Value, arguments: &[&str]) -> Command {
        let account = Command::new("id").arg("-un").output().unwrap().stdout;
        let config = json!({ "dir": self.platform.dir.path(), "platform": machines, "suspends": true });
        let mut table = config_table(&config);
        table.insert("user".to_owned(), String::from_utf8(account).unwrap().trim().into());
        let where_file = self.home.path().join("where");
        fs::write(&where_file, self.platform.dir.path().to_str().unwrap()).unwrap();
        let secrets =
            toml::Table::from_iter([("TEST_PLUGIN_DIR".to_owned(), where_file.to_str().unwrap().into())]);
        table.insert("secrets".to_owned(), secrets.into());
        kit(self.home.path(), Path::new(TEST_PLUGIN), &table, arguments)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.kit(&json!(true), arguments).output().unwrap()
    }

    /// The ids of instances that were not removed.
    fn instances(&self) -> Vec<String> {
        let entries = fs::read_dir(self.platform.dir.path().join("machines")).unwrap().flatten();
        let living = entries.filter(|entry| !entry.path().join("end").exists());
        let names = living.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("i-")).collect()
    }
}

fn config_table(config: &Value) -> toml::Table {
    toml::Table::from_iter([("plugin_config".to_owned(), toml::Value::try_from(config).unwrap())])
}

/// The kit on a plugin with this table.
fn kit(home: &Path, plugin: &Path, table: &toml::Table, arguments: &[&str]) -> Command {
    let file = home.join("pool.toml");
    fs::write(&file, table.to_string()).unwrap();
    let mut command = greenroom_testkit::program::command(GREENROOM, home);
    command.args(["plugin", "test"]).arg(plugin).args(["--json", "--table"]).arg(file).args(arguments);
    // A killed run leaves its directory.
    command.current_dir(home).env("TMPDIR", home);
    command
}

/// The kit on GitLab's dummy plugin, without its SSH server; `None`: it cannot be built here.
fn kit_on_dummy(arguments: &[&str]) -> Option<Output> {
    let (program, home) = (dummy()?, tempfile::tempdir().unwrap());
    let table = config_table(&json!({ "MaxSize": 5, "Suspendable": true }));
    Some(kit(home.path(), &program, &table, arguments).output().unwrap())
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| {
        panic!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    })
}

fn checks<'a>(report: &'a Value, result: &str) -> BTreeSet<&'a str> {
    let all = report["checks"].as_array().unwrap().iter();
    all.filter(|check| check["result"] == result).filter_map(|check| check["name"].as_str()).collect()
}

/// Runs the kit on a plugin with faults: exactly these checks have to fail.
fn names(faults: &[(&str, &str)], boot: &str, end: &str, expected: &[&str]) {
    let Some(site) = Site::new() else { return };
    for (fault, content) in faults {
        site.platform.fault(fault, content);
    }
    judge(&site.run(&["--live", "--yes", "--boot-timeout", boot, "--end-timeout", end]), expected);
}

/// Runs the kit without machines, where no login is needed to find the fault. A login fails there in any case.
fn names_without_machines(faults: &[(&str, &str)], expected: &[&str]) {
    let Some((site, machines)) = Site::new().map(Site::without_machines) else { return };
    for (fault, content) in faults {
        site.platform.fault(fault, content);
    }
    let output =
        site.kit(&machines, &["--live", "--yes", "--boot-timeout", "2", "--end-timeout", "2"]).output();
    judge(&output.unwrap(), expected);
}

fn judge(output: &Output, expected: &[&str]) {
    let report = report(output);
    assert_eq!(checks(&report, "failed"), expected.iter().copied().collect::<BTreeSet<_>>(), "{report:#}");
    assert_eq!(output.status.code(), Some(1));
    for check in report["checks"].as_array().unwrap().iter().filter(|check| check["result"] == "failed") {
        let is_told = |field: &str| check[field].as_str().is_some_and(|text| !text.is_empty());
        assert!(is_told("expected") && is_told("actual") && is_told("help"), "{check:#}");
    }
}

#[test]
fn a_plugin_without_faults_passes_and_leaves_nothing() {
    let Some(site) = Site::new() else { return };
    let output = site.run(&["--live", "--yes", "--boot-timeout", AMPLE, "--end-timeout", AMPLE]);
    let report = report(&output);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    let all = report["checks"].as_array().unwrap().len();
    assert_eq!(checks(&report, "passed").len(), all, "each check was made and passed: {report:#}");
    assert_eq!((site.instances(), &report["remaining"]), (Vec::new(), &json!([])));
    let asked = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(asked.contains("The kit creates 3 instances in the group `test "), "{asked}");
}

#[test]
fn without_instances_only_the_start_the_list_and_the_end_are_checked() {
    let Some(site) = Site::new() else { return };
    let output = site.run(&[]);
    let report = report(&output);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    let expected = ["call-answers", "end", "group-named", "list", "list-states", "start", "start-again"];
    assert_eq!(checks(&report, "passed"), BTreeSet::from(expected));
    assert_eq!(site.instances(), Vec::<String>::new());
}

#[test]
fn a_plugin_that_refuses_its_configuration() {
    names(&[("init-error", "no such project")], AMPLE, AMPLE, &["start"]);
}

#[test]
fn a_plugin_that_cannot_list() {
    names(&[("update-error", "forbidden")], AMPLE, AMPLE, &["list"]);
}

#[test]
fn a_plugin_that_exits_in_a_call() {
    names(&[("done-increase-crash.once", "")], AMPLE, AMPLE, &["call-answers"]);
}

#[test]
fn a_plugin_that_has_to_be_killed_is_warned_of() {
    let Some(site) = Site::new() else { return };
    site.platform.fault("ignore-shutdown", "");
    site.platform.fault("ignore-sigterm", "");
    let report = report(&site.run(&[]));
    assert_eq!(checks(&report, "warned"), BTreeSet::from(["end"]), "{report:#}");
}

#[test]
fn a_plugin_that_makes_nothing() {
    names(&[("increase-error", "no quota")], AMPLE, AMPLE, &["increase"]);
    names(&[("increase-answer", "0")], AMPLE, AMPLE, &["increase"]);
}

#[test]
fn a_plugin_that_hides_its_instances() {
    names(&[("update-hides", "")], "2", "2", &["increase-listed"]);
}

#[test]
fn a_plugin_with_a_state_of_its_own() {
    names_without_machines(&[("update-state", "99")], &["list-states", "running"]);
}

#[test]
fn a_plugin_whose_instances_are_never_ready() {
    names_without_machines(&[("update-state", "0")], &["running"]);
}

#[test]
fn a_plugin_that_does_not_say_how_an_instance_is_reached() {
    names_without_machines(&[("connect-info-error", "no address")], &["connect-info"]);
}

#[test]
fn an_instance_without_an_ssh_server() {
    let Some((site, machines)) = Site::new().map(Site::without_machines) else { return };
    // Port 1 of loopback: nothing listens there.
    site.platform.fault("address", "127.0.0.1 1");
    let output =
        site.kit(&machines, &["--live", "--yes", "--boot-timeout", "2", "--end-timeout", AMPLE]).output();
    judge(&output.unwrap(), &["endpoint-answers"]);
}

#[test]
fn a_plugin_that_calls_its_instances_sick() {
    names(&[("heartbeat-error", "sick")], AMPLE, AMPLE, &["heartbeat"]);
}

#[test]
fn a_plugin_that_counts_wrongly() {
    names(&[("increase-answer", "1")], AMPLE, AMPLE, &["increase-count"]);
}

#[test]
fn a_plugin_with_a_key_of_each_process() {
    let Some(site) = Site::new() else { return };
    site.platform.fault("init-own-key", "");
    let output = site.run(&["--live", "--yes", "--boot-timeout", "15", "--end-timeout", AMPLE]);
    judge(&output, &["restart-login"]);
    let report = report(&output);
    assert_eq!(checks(&report, "warned"), BTreeSet::from(["given-key"]), "{report:#}");
    let all = report["checks"].as_array().unwrap();
    let check = all.iter().find(|check| check["name"] == "given-key").unwrap();
    let text = check.to_string();
    assert!(text.matches("SHA256:").count() == 2 && text.contains("static_credentials = true"), "{check:#}");
}

/// The checks that depend on instances that a plugin has forgotten.
const OF_LISTED: [&str; 7] = [
    "restart-login",
    "suspend",
    "resume",
    "decrease",
    "decrease-ends",
    "decrease-spares-others",
    "decrease-gone",
];

#[track_caller]
fn expect_skipped_after_restart(report: &Value) {
    for name in OF_LISTED {
        let checks = report["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["name"] == name).unwrap();
        let why = check["reason"].as_str().unwrap_or_default();
        assert!(check["result"] == "skipped" && why.contains("see `restart-listed`"), "{check:#}");
    }
}

#[test]
fn a_plugin_that_forgets_its_instances() {
    let Some(site) = Site::new() else { return };
    site.platform.fault("update-forgets", "");
    let output = site.run(&["--live", "--yes", "--boot-timeout", AMPLE, "--end-timeout", AMPLE]);
    judge(&output, &["restart-listed"]);
    let report = report(&output);
    expect_skipped_after_restart(&report);
    // It removes them all the same: it still knows their ids.
    assert_eq!((site.instances(), &report["remaining"]), (Vec::new(), &json!([])));
}

#[test]
fn forgotten_instances_that_cannot_be_removed_are_named() {
    let Some(site) = Site::new() else { return };
    site.platform.fault("update-forgets", "");
    site.platform.fault("decrease-error", "no such instance");
    let output = site.run(&["--live", "--yes", "--boot-timeout", AMPLE, "--end-timeout", AMPLE]);
    judge(&output, &["restart-listed"]);
    let report = report(&output);
    assert_eq!(checks(&report, "warned"), BTreeSet::from(["nothing-left"]), "{report:#}");
    let mut left: Vec<String> = serde_json::from_value(report["remaining"].clone()).unwrap();
    left.sort();
    let mut instances = site.instances();
    instances.sort();
    assert_eq!((left.len(), left), (3, instances));
}

#[test]
fn gitlabs_dummy_passes_all_checks_without_instances() {
    let Some(output) = kit_on_dummy(&[]) else { return };
    let report = report(&output);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    let expected = ["call-answers", "end", "group-named", "list", "list-states", "start", "start-again"];
    assert_eq!(checks(&report, "passed"), BTreeSet::from(expected), "{report:#}");
}

#[test]
fn gitlabs_dummy_has_no_addresses_and_forgets_its_instances() {
    let arguments = ["--live", "--yes", "--boot-timeout", "3", "--end-timeout", AMPLE];
    let Some(output) = kit_on_dummy(&arguments) else { return };
    judge(&output, &["connect-info", "restart-listed"]);
    let report = report(&output);
    expect_skipped_after_restart(&report);
    let all = report["checks"].as_array().unwrap();
    let actual = |name: &str| {
        all.iter().find(|check| check["name"] == name).unwrap()["actual"].as_str().unwrap_or_default()
    };
    assert!(actual("connect-info").contains("has no address"), "{report:#}");
    assert!(actual("restart-listed").contains("the list of the new process lacks"), "{report:#}");
    assert!(actual("nothing-left").contains("has forgotten its instances"), "{report:#}");
    assert_eq!(report["remaining"].as_array().unwrap().len(), 3, "{report:#}");
}

#[test]
fn a_plugin_that_cannot_suspend_what_it_says_it_can() {
    names(&[("suspend-error", "not permitted")], AMPLE, AMPLE, &["suspend"]);
    names(&[("resume-error", "not permitted")], AMPLE, AMPLE, &["resume"]);
}

#[test]
fn a_plugin_that_does_not_remove() {
    names(&[("decrease-error", "protected")], AMPLE, "2", &["decrease", "nothing-left"]);
    names(&[("decrease-ignores", "")], AMPLE, "2", &["decrease-ends", "nothing-left"]);
}

#[test]
fn a_plugin_that_removes_others_too() {
    names(&[("decrease-all", "")], AMPLE, AMPLE, &["decrease-spares-others"]);
}

#[test]
fn a_plugin_that_exits_if_a_removal_is_repeated() {
    names(&[("decrease-gone-crash", "")], AMPLE, AMPLE, &["call-answers"]);
}

#[test]
fn a_group_that_is_not_empty_is_left_alone() {
    let Some(site) = Site::new() else { return };
    site.platform.fault("update-adds", "i-of-others");
    let output = site.run(&["--live", "--yes"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("is not empty: i-of-others") && said.contains("`--clean`"), "{said}");
    assert_eq!((output.status.code(), site.instances()), (Some(2), Vec::new()));
}

#[test]
fn a_question_without_a_terminal_names_the_option() {
    let Some(site) = Site::new() else { return };
    let mut kit = site.kit(&json!(true), &["--live"]);
    let output = kit.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("add `--yes`"), "{said}");
    assert_eq!((output.status.code(), site.instances()), (Some(2), Vec::new()));
}

#[test]
fn bad_tables_are_explained() {
    let Some(site) = Site::new() else { return };
    let file = site.home.path().join("bad.toml");
    for (text, expected) in [
        ("plugin_config = ", "is not valid TOML"),
        ("host_keys = \"never\"", "host_keys"),
        ("colour = 1", "colour"),
        ("host_keys = \"ca\"", "`host_key_ca` is missing"),
    ] {
        fs::write(&file, text).unwrap();
        let mut command = greenroom_testkit::program::command(GREENROOM, site.home.path());
        let output = command.args(["plugin", "test", TEST_PLUGIN, "--table"]).arg(&file).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(expected), "{text}: {said}");
        assert_eq!(output.status.code(), Some(2), "{said}");
    }
}

/// Waits until the run has made an instance.
fn made(site: &Site, run: &mut Child) {
    let begun = Instant::now();
    while site.instances().is_empty() {
        assert!(begun.elapsed() < Duration::from_mins(1), "no instance was made");
        assert_eq!(run.try_wait().unwrap(), None, "the kit has ended");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_interrupted_run_removes_its_instances() {
    let Some(site) = Site::new() else { return };
    site.platform.fault("connect-info-error", "not yet");
    let mut kit = site.kit(&json!(true), &["--live", "--yes", "--end-timeout", AMPLE]);
    let mut run = kit.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    made(&site, &mut run);
    let pid = rustix::process::Pid::from_child(&run);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = run.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("interrupted; the instances are removed"), "{said}");
    assert_eq!((output.status.code(), site.instances()), (Some(2), Vec::new()));
}

#[test]
fn what_a_killed_run_has_left_is_cleaned() {
    let Some(site) = Site::new() else { return };
    site.platform.fault("connect-info-error", "not yet");
    let mut kit = site.kit(&json!(true), &["--live", "--yes"]);
    let mut run = kit.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    made(&site, &mut run);
    run.kill().unwrap();
    run.wait().unwrap();
    assert_ne!(site.instances(), Vec::<String>::new());
    let output = site.run(&["--clean", "--yes", "--end-timeout", AMPLE]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("1 instance removed, 0 left"), "{said}");
    assert_eq!((output.status.code(), site.instances()), (Some(0), Vec::new()));
}
