//! The operator's view of jobs that have ended, and the last lines of a job log.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};

use greenroom_harness::place::{Place, SOON};
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::{JobResult, Outcome};
use greenroom_testkit::program;
use greenroom_testkit::skipped::skipped;
use serde_json::Value;

/// The rows of `history`, by job.
fn rows(place: &Place, arguments: &[&str]) -> Vec<Value> {
    let shown = place.order(&[&["history", "--json"], arguments].concat());
    let shown: Value = serde_json::from_str(&shown).expect("it is JSON");
    shown["jobs"].as_array().cloned().unwrap_or_default()
}

fn ends(place: &Place) -> Vec<(u64, String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let end = |row: &Value| {
        let reason = text(&row["reason"]);
        (row["job"].as_u64().unwrap_or_default(), text(&row["result"]), text(&row["blame"]), reason)
    };
    rows(place, &[]).iter().map(end).collect()
}

#[test]
fn each_job_is_in_the_history_with_its_end_and_who_caused_it() {
    let place = Setting::new().pool("max_instances", 1).pool("max_use_count", 9).open();
    assert!(place.order(&["history"]).starts_with("no jobs since "), "nothing has happened yet");
    place.run(&Job::new(1).script(["true"])).expect_outcome(&Outcome::Success);
    let failed = place.run(&Job::new(2).script(["exit 42"]).after_script(["exit 3"]));
    failed.expect_outcome(&Outcome::ScriptFailure { exit_code: 42 });
    let mut handle = place.runner().start(&Job::new(3).script(["echo tick; sleep 600"]));
    handle.wait_for_stage("build_script").wait_for_output("tick\n", SOON);
    let running = rows(&place, &["--job", "3"]);
    assert_eq!((&running[0]["phase"], &running[0]["start"]), (&"running".into(), &"warm".into()));
    handle.cancel();
    handle.finish().expect_outcome(&Outcome::JobCanceled);
    let end = |id, result: &str, blame: &str, reason: &str| {
        (id, result.to_owned(), blame.to_owned(), reason.to_owned())
    };
    let expected = [
        end(1, "passed", "-", "-"),
        end(2, "failed", "job", "`build_script` exited with status 42"),
        end(3, "canceled", "user", "GitLab Runner stopped `build_script`"),
    ];
    assert_eq!(ends(&place), expected);
    let all = rows(&place, &[]);
    assert_eq!((&all[0]["start"], &all[1]["start"]), (&"booted".into(), &"warm".into()));
    assert!(
        all.iter().all(|row| row["instance"].is_string() && row["lasted_ms"].as_u64() > Some(0)),
        "{all:?}"
    );
    let table = place.order(&["history", "--limit", "2"]);
    assert!(table.contains("    `build_script` exited with status 42\n"), "{table}");
    assert!(
        table.contains("\n2 jobs since ") && table.contains("`--limit` leaves out 1 earlier job"),
        "{table}"
    );
    assert_eq!(rows(&place, &["--project", "no/such"]).len(), 0);
    assert_eq!(rows(&place, &["--until", "1h"]).len(), 0);
    for wrong in [&["--since", "lastnight"][..], &["--job", "x"], &["--since", "now", "--until", "1h"]] {
        let refused = place.greenroom(&[&["history"], wrong].concat());
        assert_eq!(refused.status.code(), Some(2), "{wrong:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("help: "), "{wrong:?}");
    }
    let explained = place.order(&["explain", "2"]);
    assert!(explained.contains("job 2 ended: failed, caused by the job"), "{explained}");
    place.wait_until_quiet();
    place.expect_sound();
}

#[test]
fn a_job_that_gets_no_instance_is_in_the_history_as_the_systems_fault() {
    let place = Setting::new().pool("max_instances", 1).open();
    let holder = place.prepared(1);
    place.let_jobs_wait_a_second();
    let late = place.runner().attempt(&Job::new(2));
    assert_eq!(late.config().exit_code(), Some(0));
    assert_eq!(late.prepare().exit_code(), Some(2));
    assert_eq!(late.cleanup().exit_code(), Some(0));
    let (_, result, blame, reason) = ends(&place).pop().expect("the job");
    assert_eq!((result.as_str(), blame.as_str()), ("system-failed", "system"), "{reason}");
    assert!(reason.contains("`acquire_timeout`"), "{reason}");
    let explained = place.order(&["explain", "2"]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(explained.contains("`acquire_timeout` (1 s) is the longest wait"), "{explained}");
    assert_eq!(holder.cleanup().exit_code(), Some(0));
    holder.remove_tmpdir();
    late.remove_tmpdir();
    place.wait_until_quiet();
}

/// The summary in a job log, as its words.
fn summary(result: &JobResult) -> Option<Vec<String>> {
    let last = result.call("cleanup_file_variables").stderr_text();
    let (_, table) = last.split_once("greenroom: summary of this job\n")?;
    Some(table.lines().map(|line| line.split_whitespace().next().unwrap_or_default().to_owned()).collect())
}

#[test]
fn a_job_log_ends_with_a_summary_only_if_the_pool_wants_one() {
    // Longer than a waiting job's poll, which reports the reason.
    let setting = Setting::new().provider("boot_delay", "1s");
    let place = setting.pool("max_use_count", 9).pool("summary", true).open();
    let job = |id| Job::new(id).script(["true"]).after_script(["exit 3"]);
    let first = place.run(&job(1));
    first.expect_outcome(&Outcome::Success);
    let stages = ["prepare_script", "get_sources", "build_script", "after_script", "cleanup_file_variables"];
    assert_eq!(summary(&first).expect("a summary"), [&["waited", "booted"][..], &stages].concat());
    let text = first.log_text();
    assert!(text.contains("exit status 3") && text.contains("no idle instance"), "{text}");
    let second = place.run(&job(2));
    assert_eq!(summary(&second).expect("a summary"), [&["waited"][..], &stages].concat());
    assert!(second.log_text().contains("warm, idle for"), "{}", second.log_text());
    place.wait_until_quiet();
    let place = Setting::new().open();
    assert_eq!(summary(&place.run(&job(1))), None);
    place.wait_until_quiet();
}

#[test]
fn a_watch_on_a_terminal_gives_it_back_at_ctrl_c() {
    if Command::new("script").arg("--version").output().is_err() {
        return skipped("`script` is not installed");
    }
    let place = Setting::new().open();
    // Records the policy, and with it the slots.
    place.run(&Job::new(1).script(["true"])).expect_outcome(&Outcome::Success);
    let mut terminal = program::command("script", place.path());
    terminal.args([
        "-qec",
        &format!("exec {}", place.command_line(&["pool", "status", "--watch"])),
        "/dev/null",
    ]);
    terminal.env("TERM", "xterm").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut terminal = terminal.spawn().expect("script starts");
    let (mut keys, mut screen) =
        (terminal.stdin.take().expect("keys"), terminal.stdout.take().expect("a screen"));
    let mut seen = Vec::new();
    let mut piece = [0; 4096];
    // Two frames: it draws over the first one.
    while String::from_utf8_lossy(&seen).matches("job slots in use").count() < 2 {
        let count = screen.read(&mut piece).expect("output");
        assert!(count > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&piece[..count]);
    }
    keys.write_all(b"\x03").expect("Ctrl-C");
    screen.read_to_end(&mut seen).expect("the rest");
    assert!(terminal.wait().expect("its end").success());
    let seen = String::from_utf8_lossy(&seen);
    assert!(seen.starts_with("\x1b[?1049h"), "{seen:?}");
    assert!(seen.trim_end().ends_with("\x1b[?25h\x1b[?1049l"), "{seen:?}");
    assert_eq!((seen.matches("\x1b[?1049h").count(), seen.matches("\x1b[2J").count()), (1, 0), "{seen:?}");
    assert!(seen.contains("slots: ["), "{seen:?}");
    place.wait_until_quiet();
}
