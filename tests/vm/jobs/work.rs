//! The behaviour of jobs on machines: they write a lot, are stopped, and leave nothing for the next one.

use greenroom_harness::place::SOON;
use greenroom_testkit::gitlab_runner::handle::Handle;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::{CallRecord, Outcome};

use super::{Machines, machines};

/// Busy until it is stopped, with a child in the background; sleeps in short pieces.
const BUSY: &str = "(exec -a left-behind sleep 1000) & while :; do echo tick; sleep 0.2; done";

/// A script that prints the number of children of the script above that still run, and the ID of the machine's boot.
const LOOK: &str = "ps -eo args | grep -c '^left-behind' || true; cat /proc/sys/kernel/random/boot_id";

fn busy(id: u64) -> Job {
    let before = "cat /proc/sys/kernel/random/boot_id";
    Job::new(id).script([before, BUSY]).after_script([LOOK, "echo \"status $CI_JOB_STATUS\""])
}

fn in_script(handle: &Handle) {
    handle.wait_for_stage("build_script").wait_for_output("\ntick\n", super::PATIENCE);
}

/// The lines of a stage that are not echoed commands.
fn said(call: &CallRecord) -> Vec<String> {
    let text = call.stdout_text();
    text.lines().filter(|line| !line.starts_with('\u{1b}')).map(str::to_owned).collect()
}

#[test]
fn thirty_megabytes_of_log_arrive_byte_by_byte() {
    let place = Machines::open(machines());
    let attempt = place.prepared(1);
    let line = "0123456789 abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ 0123456789 abcdefghi\n";
    let (size, count) = (30_000_000, 30_000_000_usize.div_ceil(line.len()));
    let script = format!("yes '{}' | head -n {count}\n", line.trim_end());
    let run = attempt.start_run("build_script", &script).wait(super::PATIENCE);
    assert_eq!(run.exit_code(), Some(0), "{}", run.stderr_text());
    assert!(run.stdout.len() >= size, "{} bytes", run.stdout.len());
    assert!(run.stdout.chunks(line.len()).all(|chunk| chunk == line.as_bytes()), "the log is damaged");
    eprintln!("{} bytes of log in {:?}", run.stdout.len(), run.took());
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    place.expect_nothing_left(0);
}

#[test]
fn a_stopped_job_leaves_nothing_running_and_its_machine_serves_the_after_script() {
    let place = Machines::open(machines());
    let mut cancelled = place.runner().start(&busy(1));
    let mut late = place.runner().start(&busy(2));
    in_script(&cancelled);
    in_script(&late);
    cancelled.cancel();
    late.script_timeout();
    for (handle, status) in [(cancelled, "canceled"), (late, "timedout")] {
        let result = handle.finish();
        let (script, after) = (result.call("build_script"), result.call("after_script"));
        assert_eq!(script.exit_code(), Some(2), "{}", result.describe());
        let told = super::told(script);
        assert_eq!(
            told,
            ["the stage was stopped; the job keeps its instance for the remaining stages"],
            "{told:?}"
        );
        let (boot, after) = (said(script)[0].clone(), said(after));
        assert_eq!(after[1..], ["0".to_owned(), boot, format!("status {status}")], "{}", result.describe());
    }
    let mut overdue = place.runner().start(&busy(3));
    in_script(&overdue);
    overdue.job_timeout();
    let result = overdue.finish();
    result.expect_outcome(&Outcome::JobExecutionTimeout);
    assert_eq!(result.call("cleanup").exit_code(), Some(0), "{}", result.describe());
    place.expect_nothing_left(0);
}

#[test]
fn every_job_finds_a_machine_that_no_job_has_touched() {
    let place = Machines::open(machines().pool("idle_count", 1));
    let leave = "echo mine > ~/left; echo mine > /left; (exec -a left-behind sleep 1000) &";
    let look = [
        "cat /etc/machine-id; hostname; head -c 16 /dev/urandom | base64",
        "ls -d ~/left /left 2>/dev/null || true",
        "ps -eo args | grep '^left-behind' || true",
        leave,
    ];
    let first = place.run(&Job::new(1).script(look));
    let second = place.run(&Job::new(2).script(look));
    let all = [&first, &second].map(|result| {
        result.expect_outcome(&Outcome::Success);
        said(result.call("build_script"))
    });
    for (one, other) in all[0].iter().zip(&all[1]) {
        assert_ne!(one, other, "they share an identity");
    }
    assert!(all.iter().all(|lines| lines.len() == 3), "somebody left something: {all:?}");
    let warm = super::told(second.call("prepare"));
    assert!(warm.len() == 1 && warm[0].contains("(warm, idle for "), "{warm:?}");
    eprintln!("warm prepare: {:?}", second.call("prepare").took());
    place.wait_until_idle(1);
    place.expect_nothing_left(1);
}

#[test]
fn a_job_cancelled_while_its_machine_boots_leaves_nothing_behind() {
    let place = Machines::open(machines().pool("idle_time", "1s"));
    let mut handle = place.runner().start(&Job::new(1));
    handle.wait_for_log("booting");
    handle.cancel();
    let result = handle.finish();
    result.expect_outcome(&Outcome::JobCanceled);
    assert_eq!(result.call("prepare").exit_code(), Some(2), "{}", result.describe());
    assert!(result.call("prepare").took().is_some_and(|took| took < SOON), "{}", result.describe());
    place.expect_nothing_left(0);
}
