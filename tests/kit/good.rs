//! Programs of `greenroom provider new` pass the kit as they are written.

use std::collections::BTreeSet;

use super::site::{GREENROOM, Site, can_go_offline, checks, report};

/// Checks of what these programs do not have.
const NOT_OFFERED: [&str; 7] = [
    "delete-unknown",
    "endpoint-unknown",
    "examine",
    "lifetime",
    "offering-unknown",
    "resources",
    "resources-of-unknown-pool",
];

fn passes(language: &str) {
    let Some(site) = Site::new(language) else { return };
    // The author's way: the script beside the program.
    let mut script = greenroom_testkit::program::command(site.path().join("test"), site.path());
    script
        .env("GREENROOM", GREENROOM)
        .env("GOCACHE", site.path().join(".cache"))
        .args(["--live", "--yes", "--json"]);
    let output = script.output().expect("the script runs");
    let report = report(&output);
    assert_eq!(checks(&report, "failed"), BTreeSet::new(), "{report:#}");
    assert_eq!(checks(&report, "warned"), BTreeSet::new(), "{report:#}");
    let mut skipped = checks(&report, "skipped");
    assert!(can_go_offline() || skipped.remove("list-offline"), "{report:#}");
    assert_eq!(skipped, BTreeSet::from(NOT_OFFERED), "{report:#}");
    assert_eq!(
        (output.status.code(), &report["conforms"], &report["live"]),
        (Some(0), &true.into(), &true.into())
    );
    assert_eq!(site.machines(), Vec::<std::path::PathBuf>::new());
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(log.contains("about 6 machines, at most 4 of them concurrently"), "{log}");
    assert!(
        log.contains("account: machines\n  price of a machine: nothing: a process on this host"),
        "{log}"
    );
}

#[test]
fn the_program_in_sh_keeps_every_promise() {
    passes("sh");
}

#[test]
fn the_program_in_python_keeps_every_promise() {
    passes("python");
}

#[test]
fn the_program_in_go_keeps_every_promise() {
    passes("go");
}

#[test]
fn without_live_nothing_is_made_and_the_report_says_so() {
    let Some(site) = Site::new("python") else { return };
    let output = site.kit("good", &[]).output().expect("the binary runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains("passed call-in-time, "), "{text}");
    assert!(text.contains("it needs machines: add `--live`"), "{text}");
    assert!(text.ends_with("the program conforms as far as it can be judged without machines.\n"), "{text}");
    assert!(!site.path().join("machines").exists(), "a machine was made");
}

#[test]
fn what_cannot_be_run_is_exit_status_2_with_what_to_do() {
    let Some(site) = Site::new("python") else { return };
    let error = |arguments: &[&str]| {
        let output = site.greenroom(arguments).output().expect("the binary runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        text
    };
    let missing = error(&["provider", "test", "./none"]);
    assert!(
        missing.contains("the program `./none` cannot be used") && missing.contains("help: "),
        "{missing}"
    );
    let text = error(&["provider", "test", "./settings.toml"]);
    assert!(text.contains("is not an executable file") && text.contains("chmod +x"), "{text}");
    let variable = error(&["provider", "test", "./good", "--env", "GREENROOM_TEST_NOT_SET"]);
    assert!(variable.contains("`GREENROOM_TEST_NOT_SET` is not set"), "{variable}");
    let settings = error(&["provider", "test", "./good", "--settings", "README.md"]);
    assert!(settings.contains("`README.md` is not valid TOML"), "{settings}");
    let question = error(&["provider", "test", "./good", "--live"]);
    assert!(
        question.contains("standard input is not a terminal") && question.contains("--yes"),
        "{question}"
    );
    assert_eq!(site.machines(), Vec::<std::path::PathBuf>::new());
}
