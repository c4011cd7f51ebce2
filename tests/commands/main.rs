//! The outputs and exit statuses of commands, without a job.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use greenroom_testkit::pace::await_settled;
use greenroom_testkit::program;
use tempfile::TempDir;

mod external_kit;
mod getting_started;
mod jobs_pages;
mod operations;
mod pages;
mod vocabulary;

/// A configuration with a `local` pool, its state beside it. Dropping it ends what runs there.
struct Place {
    home: TempDir,
}

impl Place {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        let root = home.path().display();
        let text = format!(
            "state_dir = \"{root}/state\"\n[pool.linux]\nmax_instances = 3\nidle_count = 1\n\
             [pool.linux.provider]\nkind = \"local\"\nallow_root = true\n"
        );
        std::fs::write(home.path().join("greenroom.toml"), text).expect("a configuration");
        Self { home }
    }

    fn path(&self) -> &Path {
        self.home.path()
    }

    fn command(&self, args: &[&str]) -> Command {
        let config = self.path().join("greenroom.toml");
        let mut command = program::command(env!("CARGO_BIN_EXE_greenroom"), self.path());
        command.arg("--config").arg(config).args(args);
        command
    }

    fn call(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the binary runs")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.call(&["pool", "drain", "--wait"]);
        await_settled(self.path());
    }
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn help_names_every_command_and_the_exit_statuses() {
    let place = Place::new();
    let help = out(&place.call(&["--help"]));
    for word in [
        "prepare",
        "cleanup",
        "init",
        "keep",
        "reap",
        "pool",
        "explain",
        "doctor",
        "try",
        "image",
        "provider",
        "plugin",
        "schema",
        "Exit status",
    ] {
        assert!(help.contains(word), "{word}: {help}");
    }
    assert!(!help.contains("instance serve"), "hidden: {help}");
}

#[test]
fn an_unknown_command_is_refused_with_a_near_miss() {
    let output = Place::new().call(&["prepar"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("prepare"), "{}", err(&output));
}

#[test]
fn a_misspelt_key_is_shown_with_its_line_and_what_was_meant() {
    let place = Place::new();
    let text = "[pool.linux]\nmax_instances = 1\nidle_cuont = 2\n[pool.linux.provider]\nkind = \"local\"\n";
    std::fs::write(place.path().join("greenroom.toml"), text).expect("written");
    let output = place.call(&["pool", "status"]);
    assert_eq!(output.status.code(), Some(2));
    let said = err(&output);
    assert!(
        said.contains("idle_cuont") && said.contains("idle_count") && said.contains("greenroom.toml:3"),
        "{said}"
    );
    std::fs::write(place.path().join("greenroom.toml"), "").expect("written");
}

#[test]
fn all_mistakes_of_a_providers_table_are_shown_together_with_their_lines() {
    let place = Place::new();
    let file = place.path().join("greenroom.toml");
    let state = place.path().join("state");
    let text = format!(
        r#"state_dir = {state:?}
[pool.linux]
max_instances = 1
[pool.linux.provider]
kind = "local"
allow_root = true
boot_dealy = "5s"
die_after = 30
sshd = "bin/sshd"
[pool.linux.provider.fail_launch]
class = "quta"
"#
    );
    std::fs::write(&file, text).expect("written");
    let output = place.call(&["reap"]);
    assert_eq!(output.status.code(), Some(2));
    let said = err(&output).replace(&file.display().to_string(), "FILE");
    let expected = r#"error: `boot_dealy` is not a key of `[pool.linux.provider]`
 --> FILE:7:1
  |
7 | boot_dealy = "5s"
  | ^^^^^^^^^^ unknown key
  |
  = help: did you mean `boot_delay`?

error: `die_after` in `[pool.linux.provider]` must be a duration like "30s", "20m" or "1h 30m"
 --> FILE:8:13
  |
8 | die_after = 30
  |             ^^ a number needs its unit: "30s", "30m" or "30h"

error: `sshd` in `[pool.linux.provider]` must be an absolute path
 --> FILE:9:8
  |
9 | sshd = "bin/sshd"
  |        ^^^^^^^^^^ a relative path: GitLab Runner starts each call in a new directory

error: `first` is missing in `[pool.linux.provider.fail_launch]`
  --> FILE:10:1
   |
10 | [pool.linux.provider.fail_launch]
   | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ in this table
   |
   = help: set it to the number of launches that fail

error: `class` in `[pool.linux.provider.fail_launch]` must be one of "no-capacity", "quota", "denied", "invalid", "throttled", "transient", "unknown"
  --> FILE:11:9
   |
11 | class = "quta"
   |         ^^^^^^ found "quta"
   |
   = help: did you mean "quota"?
"#;
    assert!(said.contains(expected), "{said}");
    std::fs::write(&file, "").expect("written");
}

#[test]
fn a_dry_run_prints_the_plan_and_changes_nothing() {
    let place = Place::new();
    assert!(place.call(&["try", "true"]).status.success());
    let before = out(&place.call(&["pool", "status", "--json"]));
    let dry = out(&place.call(&["pool", "drain", "--dry-run"]));
    assert!(dry.starts_with("would: the pool accepts no new jobs"), "{dry}");
    let after = out(&place.call(&["pool", "status", "--json"]));
    assert!(!after.contains("\"drained\":true"), "{before}\n{after}");
}

#[test]
fn a_drained_pool_is_empty_and_resume_brings_it_back() {
    let place = Place::new();
    assert!(place.call(&["try", "true"]).status.success());
    let drained = out(&place.call(&["pool", "drain", "--wait"]));
    assert!(drained.contains("drained in "), "{drained}");
    assert!(out(&place.call(&["pool", "status"])).contains("0 of 3 instances"));
    assert_eq!(out(&place.call(&["pool", "resume"])), "the pool is resumed\n");
    assert!(place.call(&["try", "true"]).status.success());
}

#[test]
fn a_job_of_try_ends_as_its_script_does() {
    let place = Place::new();
    let failed = place.call(&["try", "echo on its way; exit 3"]);
    assert_eq!(failed.status.code(), Some(1));
    assert!(out(&failed).contains("on its way") && out(&failed).contains("job failed"), "{}", out(&failed));
}

#[test]
fn completions_are_printed_for_the_usual_shells() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let output = place.call(&["completions", shell]);
        assert!(output.status.success() && out(&output).contains("greenroom"), "{shell}");
    }
}

#[test]
fn the_version_names_the_commit_and_the_features() {
    let place = Place::new();
    let short = out(&place.call(&["-V"]));
    let (number, long) = (env!("CARGO_PKG_VERSION"), out(&place.call(&["--version"])));
    assert_eq!(short, format!("greenroom {number}\n"));
    let lines: Vec<&str> = long.lines().collect();
    assert_eq!(lines[0], short.trim_end());
    assert!(lines[1].starts_with("commit: ") && lines[2].starts_with("features: "), "{long}");
}

#[test]
fn man_prints_a_page_and_writes_all_of_them_the_same_each_time() {
    let place = Place::new();
    let page = out(&place.call(&["man", "pool", "status"]));
    assert!(page.contains(".TH greenroom-pool-status 1") && page.contains("EXIT STATUS"), "{page}");
    let dirs = ["one", "two"].map(|name| place.path().join(name));
    let written = dirs.map(|dir| {
        let output = place.call(&["man", "--dir", &dir.display().to_string()]);
        assert!(output.status.success() && out(&output).is_empty(), "{}", err(&output));
        let entries = std::fs::read_dir(dir).expect("it was created").map(|entry| entry.expect("a page"));
        let mut pages: Vec<_> = entries
            .map(|page| (page.file_name(), std::fs::read_to_string(page.path()).expect("a page")))
            .collect();
        pages.sort();
        pages
    });
    assert!(written[0].len() > 20 && written[0] == written[1], "{}", written[0].len());
    assert!(written[0].iter().any(|(name, text)| name == "greenroom-pool-status.1" && *text == page));

    let missing = place.call(&["man", "pool", "statsu"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(err(&missing).contains("did you mean `status`?"), "{}", err(&missing));
}

#[test]
fn the_schema_is_json_with_the_keys_of_all_providers() {
    let text = out(&Place::new().call(&["schema"]));
    let schema: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(schema["$schema"], "http://json-schema.org/draft-07/schema#");
    for key in [
        "max_instances",
        "machine_types",
        "security_groups",
        "dedicated_user",
        "fail_launch",
        "memory_budget",
    ] {
        assert!(text.contains(&format!("\"{key}\": {{")), "{key}");
    }
}

#[test]
fn reap_says_what_it_did_for_each_pool() {
    let place = Place::new();
    assert!(place.call(&["try", "true"]).status.success());
    let dry = out(&place.call(&["reap", "--dry-run"]));
    assert!(dry.starts_with("linux: "), "{dry}");
    let done = out(&place.call(&["reap"]));
    assert!(done.starts_with("linux: "), "{done}");
}

#[test]
fn reap_shows_its_own_report_where_none_can_be_written() {
    let place = Place::new();
    let config = place.path().join("greenroom.toml");
    let text = std::fs::read_to_string(&config).expect("the configuration");
    // Without idle instances, no keeper is needed.
    std::fs::write(&config, text.replace("idle_count = 1", "idle_count = 0")).expect("another one");
    assert!(place.call(&["reap"]).status.success());
    let report = place.path().join("state/pools/linux/report.json");
    std::fs::remove_file(&report).expect("the first pass wrote it");
    std::fs::create_dir(&report).expect("a folder in its place");
    let output = place.call(&["reap", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let shown: serde_json::Value = serde_json::from_str(&out(&output)).expect("JSON");
    assert!(shown["linux"]["report"]["at"].is_array(), "{shown:#}");
}

#[test]
fn colours_stay_away_from_pipes_and_from_those_who_do_not_want_them() {
    let place = Place::new();
    for args in [&["doctor"][..], &["pool", "status"], &["try", "true"]] {
        let output = place.call(args);
        assert!(!out(&output).contains('\x1b') && !err(&output).contains('\x1b'), "{args:?}");
    }
}

#[test]
fn a_keepers_log_has_no_colours_where_it_is_no_terminal() {
    let place = Place::new();
    // In the background it has a file of its own.
    assert!(place.call(&["try", "true"]).status.success());
    let log = std::fs::read_to_string(place.path().join("state/keeper.log")).expect("a log");
    assert!(log.contains("the keeper is running pools=\"linux\"") && !log.contains('\x1b'), "{log:?}");
    let service = Place::new();
    // A terminal that could show colours, if there were one.
    let mut keep = service.command(&["keep"]);
    keep.env("TERM", "xterm-256color").stderr(Stdio::piped());
    let mut keeper = keep.spawn().expect("the keeper starts");
    let mut line = String::new();
    BufReader::new(keeper.stderr.take().expect("its log")).read_line(&mut line).expect("a line");
    keeper.kill().expect("it lives");
    keeper.wait().expect("its end");
    assert!(line.contains("the keeper is running pools=\"linux\"") && !line.contains('\x1b'), "{line:?}");
}

/// The program for driver calls, alone: it says what it lacks, and does what it can without that.
#[test]
fn a_pool_in_a_cloud_names_the_program_that_is_missing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let alone = dir.path().join("greenroom");
    std::fs::copy(env!("CARGO_BIN_EXE_greenroom"), &alone).expect("a copy");
    let config = dir.path().join("greenroom.toml");
    let provider = "kind = \"aws-ec2\"\nimage = \"ami-0a000000000000001\"\ninstance_types = \"m7i.large\"\nzones = \"a\"\nsecurity_groups = \"sg-0a1b2c3d\"\n";
    let state = dir.path().join("state");
    let text =
        format!("state_dir = {state:?}\n[pool.linux]\nmax_instances = 1\n[pool.linux.provider]\n{provider}");
    std::fs::write(&config, text).expect("a configuration");
    let call = |arguments: &[&str]| {
        Command::new(&alone)
            .args(arguments)
            .arg("--config")
            .arg(&config)
            .env_clear()
            .output()
            .expect("it runs")
    };
    for arguments in [&["keep"][..], &["reap"], &["pool", "leaks"], &["doctor", "--boot", "linux"]] {
        let refused = call(arguments);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
        assert!(err(&refused).contains("`greenroom-backends`, which is not in"), "{}", err(&refused));
    }
    assert!(out(&call(&["doctor"])).contains("error [aws-ec2-program]"));
    assert!(call(&["pool", "status"]).status.success());
}
