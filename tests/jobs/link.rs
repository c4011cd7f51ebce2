//! Links under whole jobs: what is stopped, killed or cancelled, and what is left.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use greenroom_core::ids::InstanceId;
use greenroom_harness::driver;
use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::{is_gone, wait_for};
use greenroom_harness::setting::Setting;
use greenroom_ssh::link::{Figures, FoundLink, LinkStatus, Survey};
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::process::LiveCall;
use greenroom_testkit::gitlab_runner::record::{CallRecord, Outcome};
use greenroom_testkit::pace::Pace;
use greenroom_testkit::skipped::skipped;
use rustix::process::{Pid, Signal, kill_process};

/// Prints its number and continues until it is stopped, with a child in the background.
const BUSY: &str = "echo shell $$\n(while :; do sleep 0.1; done) &\nwhile :; do sleep 0.1; done\n";

/// The status of an instance's links.
fn links(place: &Place, instance: &InstanceId) -> Vec<Figures> {
    let dir = place.state_dir.join("links").join("pool");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let seen = runtime.block_on(Survey::query(&dir, Duration::from_secs(10)));
    let figures = |found: &FoundLink| match &found.answer {
        LinkStatus::Figures(figures) => Some(figures.clone()),
        LinkStatus::Closing | LinkStatus::Unresponsive => None,
    };
    seen.of(instance).iter().filter_map(figures).collect()
}

/// The number of the only link of an instance.
#[track_caller]
fn link(place: &Place, instance: &InstanceId) -> u32 {
    let found = links(place, instance);
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].pid
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process has a number");
    kill_process(pid, signal).expect("the link lives");
}

/// The shell of a script that has printed its number.
#[track_caller]
fn shell(run: &LiveCall) -> u32 {
    run.wait_for_output("shell ", SOON);
    wait_for("the shell's number", SOON, || {
        let text = run.record().stdout_text();
        let line = text.lines().find_map(|line| line.strip_prefix("shell "))?.to_owned();
        text.ends_with('\n').then(|| line.parse().expect("a number"))
    })
}

/// Checks that nothing of links is left of terminated instances.
#[track_caller]
fn expect_no_links(place: &Place) {
    place.wait_until_settled(0);
    let dir = place.state_dir.join("links").join("pool");
    wait_for("the end of the links' directories", SOON, || {
        let left = std::fs::read_dir(&dir).into_iter().flatten().flatten().count();
        (left == 0).then_some(())
    });
}

#[test]
fn all_stages_of_a_job_go_through_one_link_which_goes_with_its_instance() {
    let place = Setting::new().open();
    let attempt = place.prepared(1);
    let instance = place.instance_of(&attempt);
    let first = link(&place, &instance);
    for n in 0..5 {
        let run = attempt.run("build_script", &format!("exit {n}\n"));
        assert_eq!(run.exit_code(), Some(i32::from(n > 0)), "{}", run.stderr_text());
    }
    let found = links(&place, &instance);
    assert_eq!((found.len(), found[0].pid, found[0].stages), (1, first, 5));
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    expect_no_links(&place);
    wait_for("the link's end", SOON, || is_gone(first).then_some(()));
    place.expect_sound();
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn a_run_that_is_killed_frees_the_runner_and_ends_its_processes_in_the_guest() {
    let place = Setting::new().open();
    let attempt = place.prepared(1);
    let instance = place.instance_of(&attempt);
    let first = link(&place, &instance);
    let (mut freed, mut ended, pace) = (Vec::new(), Vec::new(), Pace::watch());
    for _ in 0..7 {
        let run = attempt.start_run("build_script", BUSY);
        let shell = shell(&run);
        let killed = Instant::now();
        run.kill9();
        run.wait(SOON);
        freed.push(killed.elapsed());
        while !is_gone(shell) {
            assert!(killed.elapsed() < SOON, "the guest's shell goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
        ended.push(killed.elapsed());
        wait_for("the stage's end", SOON, || {
            links(&place, &instance).iter().all(|link| !link.busy).then_some(())
        });
    }
    let (freed, ended) = (median(freed), median(ended));
    eprintln!("killed `run`: the runner is free after {freed:?}, the guest's shell gone after {ended:?}");
    assert!(freed < pace.stretched(Duration::from_millis(500)), "{freed:?}");
    assert!(ended < pace.stretched(Duration::from_secs(1)), "{ended:?}");
    let after = attempt.run("after_script", "echo still here\n");
    assert_eq!((after.exit_code(), after.stdout_text().as_str()), (Some(0), "still here\n"));
    assert_eq!(link(&place, &instance), first, "the same link served them all");
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
}

/// The next stage of this attempt runs, and finds nothing of the previous one.
#[track_caller]
fn expect_swept(attempt: &greenroom_testkit::gitlab_runner::attempt::Attempt, shell: u32) {
    assert!(!is_gone(shell), "nobody could stop it yet");
    let stat = format!("$(cat /proc/{shell}/stat 2>/dev/null)");
    let look = format!("case \"{stat}\" in ''|*') Z '*) echo gone;; *) echo still there;; esac\n");
    let after = attempt.run("after_script", &look);
    assert_eq!((after.exit_code(), after.stdout_text().as_str()), (Some(0), "gone\n"), "{after:?}");
}

#[test]
fn a_stage_whose_link_is_stopped_ends_within_its_grace_and_the_next_one_cleans_up() {
    let place = Setting::new().timing("stop_grace", "1s").open();
    let attempt = place.prepared(1);
    let instance = place.instance_of(&attempt);
    let run = attempt.start_run("build_script", BUSY);
    let shell = shell(&run);
    let stopped = link(&place, &instance);
    signal(stopped, Signal::STOP);
    let (stopped_at, pace) = (Instant::now(), Pace::watch());
    run.signal_group(Signal::TERM);
    let record = run.wait(SOON);
    let took = stopped_at.elapsed();
    eprintln!("past a link that is stopped, `run` ended {took:?} after its TERM; its grace is 1 s");
    assert_eq!(record.exit_code(), Some(2), "{}", record.stderr_text());
    assert!(took < Duration::from_secs(1) + pace.stretched(Duration::from_secs(1)), "{took:?}");
    assert!(is_gone(stopped));
    expect_swept(&attempt, shell);
    assert_ne!(link(&place, &instance), stopped);
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    expect_no_links(&place);
}

#[test]
fn a_link_killed_in_mid_stage_is_a_system_failure_with_one_sentence() {
    let place = Setting::new().open();
    let attempt = place.prepared(1);
    let instance = place.instance_of(&attempt);
    let run = attempt.start_run("build_script", BUSY);
    let shell = shell(&run);
    signal(link(&place, &instance), Signal::KILL);
    let record = run.wait(SOON);
    assert_eq!(record.exit_code(), Some(2), "{record:?}");
    let stderr = record.stderr_text();
    eprintln!("{stderr}");
    assert!(
        stderr.contains("system failure") && stderr.contains("the link, which held the connection"),
        "{stderr}"
    );
    expect_swept(&attempt, shell);
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    expect_no_links(&place);
    place.expect_sound();
}

#[test]
fn a_job_that_is_cancelled_while_its_link_is_stopped_runs_its_after_script() {
    let place = Setting::new().open();
    let job = Job::new(1).script([BUSY]).after_script(["echo after"]);
    let mut handle = place.runner().start(&job);
    let run = handle.wait_for_stage("build_script");
    run.wait_for_output("\nshell ", SOON);
    let instance = place.state().instances.keys().next().expect("it runs on one").clone();
    let busy = links(&place, &instance).into_iter().find(|link| link.busy).expect("a link has the stage");
    signal(busy.pid, Signal::STOP);
    handle.cancel();
    let result = handle.finish();
    result.expect_outcome(&Outcome::JobCanceled);
    assert_eq!(result.call("build_script").exit_code(), Some(2), "{}", result.describe());
    assert!(result.call("after_script").stdout_text().contains("after\n"), "{}", result.describe());
    assert_eq!(result.calls.last().and_then(CallRecord::exit_code), Some(0), "{}", result.describe());
    expect_no_links(&place);
    place.expect_sound();
}

#[test]
fn two_jobs_at_once_on_an_instance_have_a_link_each() {
    let setting = Setting::new().pool("capacity_per_instance", 2).pool("max_use_count", 2);
    let place = setting.pool("max_instances", 1).open();
    let attempts = [place.prepared(1), place.prepared(2)];
    let instance = place.instance_of(&attempts[0]);
    assert_eq!(place.instance_of(&attempts[1]), instance);
    // More than pipes, windows and buffers hold; the harness reads it all.
    let flood = attempts[0].start_run("build_script", "echo shell $$\nhead -c 20000000 /dev/zero\nsleep 1\n");
    flood.wait_for_output("shell ", SOON);
    for _ in 0..3 {
        let run = attempts[1].run("build_script", "echo quick\n");
        assert_eq!((run.exit_code(), run.stdout_text().as_str()), (Some(0), "quick\n"));
    }
    assert_eq!(flood.wait(SOON).exit_code(), Some(0));
    assert_eq!(links(&place, &instance).len(), 2);
    for attempt in &attempts {
        assert_eq!(attempt.cleanup().exit_code(), Some(0));
        attempt.remove_tmpdir();
    }
    expect_no_links(&place);
}

/// The open descriptors of a process; root may read those of a link.
fn open_files(pid: &str) -> Vec<PathBuf> {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it can be looked into").flatten();
    open.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect()
}

/// A script around the driver that leaves descriptors open, as a runner's wrapper may.
#[test]
fn a_link_has_no_descriptor_and_no_word_of_the_call_that_started_it() {
    let place = Setting::new().open();
    let wrapper = place.path().join("driver");
    let left_open = place.path().join("left-open");
    let text = format!("#!/bin/sh\nexec 5>{0} 9>{0}\nexec {1} \"$@\"\n", left_open.display(), driver());
    std::fs::write(&wrapper, text).expect("the wrapper can be written");
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).expect("and be made one");
    let runner = place.runner_with(&wrapper);
    let attempt = runner.attempt(&Job::new(1).masked("SECRET", "in-the-dark"));
    assert_eq!(attempt.config().exit_code(), Some(0));
    assert_eq!(attempt.prepare().exit_code(), Some(0));
    let instance = place.instance_of(&attempt);
    // One that a `run` starts.
    signal(link(&place, &instance), Signal::KILL);
    assert_eq!(attempt.run("build_script", "true\n").exit_code(), Some(0));
    let link = link(&place, &instance);
    if rustix::process::getuid().is_root() {
        let environment = std::fs::read(format!("/proc/{link}/environ")).expect("root reads it");
        // The shell that closes the open descriptors names its directory.
        assert_eq!(String::from_utf8_lossy(&environment), "PWD=/\0");
        let open = open_files(&link.to_string());
        assert!(!open.contains(&left_open), "{open:?}");
        // The descriptors that this test was started with have numbers that no script uses.
        let own = open_files("self");
        let is_pipe = |file: &&PathBuf| file.to_string_lossy().starts_with("pipe:");
        let pipes: Vec<&PathBuf> = open.iter().filter(is_pipe).filter(|pipe| !own.contains(pipe)).collect();
        assert!(pipes.is_empty(), "{open:?}");
    } else {
        assert!(std::fs::read(format!("/proc/{link}/environ")).is_err(), "it cannot be looked into");
        skipped("only root can look into a link");
    }
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
}

/// The server of an instance allows a hundred sessions at a time, and any number one after another.
#[test]
fn a_connection_serves_any_number_of_stages_one_after_another() {
    let place = Setting::new().pool("max_use_count", 0).open();
    let _keeper = place.keep();
    let attempt = place.prepared(1);
    let instance = place.instance_of(&attempt);
    let first = link(&place, &instance);
    for number in 0..120 {
        let run = attempt.run("build_script", "true\n");
        assert_eq!(run.exit_code(), Some(0), "stage {number}: {}", run.stderr_text());
    }
    assert_eq!(link(&place, &instance), first, "all of them on one connection");
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    place.expect_sound();
}
