//! The stop of a stage, and the processes that it must not leave.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use greenroom_core::execution::Shell;
use greenroom_ports::connector::{ConnectError, Stage, StageEnd, Stop};
use greenroom_ssh::STOP_MARGIN;

use super::sshd::{Set, Sshd};
use super::support::{Stuck, after, eventually, kill, lives, living_of, stage, when};

const GRACE: Duration = Duration::from_secs(3);
/// A stage that is over before this did not end by itself, however busy the machine is.
const LONG: Duration = Duration::from_secs(30);

/// Runs a script that writes its pid to `$1` when all its processes exist; then stops it.
async fn stopped(sshd: &Sshd, shell: Shell, script: &str, grace: Duration) -> Duration {
    let pid_file = sshd.path("pid");
    let _none = std::fs::remove_file(&pid_file);
    let script = script.replace("READY", &format!("echo $$ >{0}.new; mv {0}.new {0}", pid_file.display()));
    let mut stage = stage(shell, script);
    stage.stop_grace = grace;
    let (file, stopping) = (pid_file.clone(), Rc::new(std::cell::Cell::new(None)));
    let seen = Rc::clone(&stopping);
    let stop = when(move || {
        let ready = file.exists();
        if ready {
            seen.set(Some(Instant::now()));
        }
        ready
    });
    let (end, kept) = sshd.run(stage, stop).await;
    assert_eq!(end.unwrap(), StageEnd::Stopped, "{kept:?}");
    let session = std::fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
    assert_eq!(living_of(session), Vec::<u32>::new(), "nothing of the session is left");
    stopping.get().unwrap().elapsed()
}

#[tokio::test]
async fn a_sleeping_script_and_its_children_go_at_once() {
    for login in [None, Some("busybox ash")] {
        let sshd = Sshd::with(Set { login, ..Set::default() }).await;
        for (shell, script) in [
            (Shell::Bash, "sleep 600 & sleep 600 & READY; sleep 600\n"),
            (Shell::Sh, "(sleep 600; echo no) & READY; (sleep 600)\n"),
            (Shell::Bash, "set -m; sleep 600 & (sleep 600; true) & READY; sleep 600\n"),
            (Shell::Bash, "trap 'exit 1' TERM; (trap 'exit 1' TERM; READY; sleep 600) </dev/null\n"),
        ] {
            let took = stopped(&sshd, shell, script, GRACE).await;
            // bash loses a TERM that lands while it starts a child: then the KILL after the grace ends it.
            assert!(took < GRACE + STOP_MARGIN, "{script}: {took:?}");
        }
    }
}

#[tokio::test]
async fn what_ignores_term_is_killed_after_the_grace() {
    let sshd = Sshd::start().await;
    for script in [
        "trap '' TERM; sleep 600 & READY; wait; sleep 600\n",
        "set -m; (trap '' TERM; while :; do sleep 1; done) & READY; wait\n",
        "trap '' TERM; READY; yes\n",
    ] {
        let took = stopped(&sshd, Shell::Bash, script, GRACE).await;
        assert!(took >= GRACE && took < GRACE + STOP_MARGIN, "{script}: {took:?}");
    }
}

#[tokio::test]
async fn a_trap_has_the_grace_for_its_work() {
    for login in [None, Some("busybox ash")] {
        let sshd = Sshd::with(Set { login, ..Set::default() }).await;
        for (shell, interpreter) in [(Shell::Bash, ""), (Shell::Sh, ""), (Shell::Sh, "exec busybox ash -c ")]
        {
            let done = sshd.path("done");
            let body = format!(
                "trap \"sleep 0.3; echo done >{}; exit 1\" TERM; READY; while :; do sleep 0.05; done",
                done.display()
            );
            let script =
                if interpreter.is_empty() { body + "\n" } else { format!("{interpreter}'{body}'\n") };
            let took = stopped(&sshd, shell, &script, LONG).await;
            assert!(took < LONG, "{login:?} {script}: {took:?}");
            assert_eq!(std::fs::read_to_string(&done).unwrap(), "done\n", "{login:?} {script}");
            std::fs::remove_file(done).unwrap();
        }
    }
}

#[tokio::test]
async fn what_a_script_left_behind_with_its_output_goes_too() {
    for login in [None, Some("busybox ash")] {
        let sshd = Sshd::with(Set { login, linger: Duration::from_mins(1), ..Set::default() }).await;
        for (shell, script) in [
            // Their output belongs to the stage, which lasts until they have been silent for 3 s.
            (Shell::Bash, "sleep 600 & READY; exit 0\n"),
            (Shell::Sh, "(trap '' TERM; sleep 600) & READY; exit 3\n"),
            (Shell::Sh, "exec busybox ash -c 'sleep 600 & READY; exit 0'\n"),
            (Shell::Sh, "exec busybox ash -c \"trap '' TERM; READY; sleep 600; sleep 600\"\n"),
        ] {
            let took = stopped(&sshd, shell, script, GRACE).await;
            assert!(took < GRACE + STOP_MARGIN, "{login:?} {script}: {took:?}");
        }
    }
}

#[tokio::test]
async fn a_flood_does_not_keep_the_stop_out() {
    let sshd = Sshd::start().await;
    let took = stopped(&sshd, Shell::Bash, "READY; yes & yes >&2 & wait\n", LONG).await;
    assert!(took < LONG, "{took:?}");
}

#[tokio::test]
async fn output_that_nobody_takes_does_not_keep_the_stop_out() {
    let sshd = Sshd::start().await;
    let pid_file = sshd.path("pid");
    let script = format!("echo $$ >{}; yes\n", pid_file.display());
    let file = pid_file.clone();
    // The output is blocked from its first bytes on.
    let stop = when(move || std::fs::read_to_string(&file).is_ok_and(|pid| pid.ends_with('\n')));
    let stage = Stage { stop_grace: LONG, ..stage(Shell::Bash, script) };
    let begun = Instant::now();
    let end = sshd.connector().run(&sshd.id, &sshd.at, stage, &mut Stuck, stop).await;
    assert_eq!(end.unwrap(), StageEnd::Stopped);
    assert!(begun.elapsed() < LONG);
    let session = std::fs::read_to_string(pid_file).unwrap().trim().parse().unwrap();
    assert_eq!(living_of(session), Vec::<u32>::new());
}

#[tokio::test]
async fn a_script_that_is_still_being_sent_can_be_stopped() {
    let sshd = Sshd::start().await;
    let pid_file = sshd.path("pid");
    let script = format!(
        "echo $$ >{0}.new; mv {0}.new {0}; sleep 600\n{1}",
        pid_file.display(),
        "#\n".repeat(10_000_000)
    );
    let file = pid_file.clone();
    let (end, _) = sshd.run(stage(Shell::Bash, script), when(move || file.exists())).await;
    assert_eq!(end.unwrap(), StageEnd::Stopped);
    let session = std::fs::read_to_string(pid_file).unwrap().trim().parse().unwrap();
    assert_eq!(living_of(session), Vec::<u32>::new());
}

#[tokio::test]
async fn a_stop_that_comes_at_any_moment_of_the_start_leaves_nothing() {
    let sshd = Sshd::start().await;
    let marker = format!("{}", 86_400 + std::process::id());
    for ms in [0, 2, 5, 10, 20, 40, 60, 80, 100, 150] {
        let (end, _) =
            sshd.run(stage(Shell::Bash, format!("sleep {marker}\n")), after(Duration::from_millis(ms))).await;
        assert_eq!(end.unwrap(), StageEnd::Stopped, "after {ms} ms");
    }
    let sleepers =
        std::process::Command::new("pgrep").args(["-f", &format!("^sleep {marker}$")]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&sleepers.stdout), "");
}

#[tokio::test]
async fn a_process_that_left_the_session_is_not_followed() {
    let sshd = Sshd::start().await;
    let file = sshd.path("daemon");
    let script = format!(
        "setsid sh -c 'echo $$ >{0}.new; mv {0}.new {0}; exec sleep 600 >/dev/null 2>&1' & sleep 600\n",
        file.display()
    );
    let seen = file.clone();
    let (end, _) = sshd.run(stage(Shell::Bash, script), when(move || seen.exists())).await;
    assert_eq!(end.unwrap(), StageEnd::Stopped);
    let daemon = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    assert!(lives(daemon));
    kill(daemon);
}

#[tokio::test]
async fn without_a_second_channel_the_stop_takes_a_second_connection() {
    let sshd = Sshd::with(Set { config: "MaxSessions 1", ..Set::default() }).await;
    let took = stopped(&sshd, Shell::Bash, "sleep 600 & READY; sleep 600\n", LONG).await;
    assert!(took < LONG, "{took:?}");
}

#[tokio::test]
async fn a_connection_that_is_cut_is_lost_and_says_whether_the_script_was_sent() {
    let sshd = Sshd::start().await;
    let pid_file = sshd.path("pid");
    let file = pid_file.clone();
    let script = format!("echo hello; echo $$ >{0}.new; mv {0}.new {0}; sleep 600\n", pid_file.display());
    let cutting = async {
        eventually("the script runs", || file.exists()).await;
        sshd.cut();
    };
    let ((end, kept), ()) =
        tokio::join!(sshd.run(stage(Shell::Bash, script), super::support::never()), cutting);
    let Err(ConnectError::Lost { problem, sent, .. }) = end else { panic!("{end:?}") };
    assert!(sent);
    assert!(problem.contains("closed the connection") || problem.contains("reset"), "{problem}");
    assert_eq!(kept.out(), "hello\n");
    for left in living_of(std::fs::read_to_string(pid_file).unwrap().trim().parse().unwrap()) {
        kill(left);
    }
}

#[tokio::test]
async fn a_stop_on_a_connection_that_was_cut_takes_another_one() {
    let sshd = Rc::new(Sshd::start().await);
    let (stage, stop, pid_file) = cut_while_running(&sshd, super::sshd::Sshd::cut);
    let (end, _) = sshd.run(stage, stop).await;
    assert_eq!(end.unwrap(), StageEnd::Stopped);
    let session = std::fs::read_to_string(pid_file).unwrap().trim().parse().unwrap();
    assert_eq!(living_of(session), Vec::<u32>::new());
}

#[tokio::test]
async fn a_stop_on_a_guest_that_is_gone_does_not_wait() {
    let sshd = Rc::new(Sshd::start().await);
    let (stage, stop, pid_file) = cut_while_running(&sshd, super::sshd::Sshd::end);
    let begun = Instant::now();
    let (end, _) = sshd.run(Stage { stop_grace: LONG, ..stage }, stop).await;
    assert!(matches!(end, Err(ConnectError::Lost { sent: true, .. })), "{end:?}");
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    for left in living_of(std::fs::read_to_string(pid_file).unwrap().trim().parse().unwrap()) {
        kill(left);
    }
}

/// A stage that is stopped while it runs, whose connection is lost at the same moment; and the path of its pid.
fn cut_while_running(sshd: &Rc<Sshd>, cut: fn(&Sshd)) -> (Stage, Stop<'static>, PathBuf) {
    let pid_file = sshd.path("pid");
    let script = format!("echo $$ >{0}.new; mv {0}.new {0}; sleep 600\n", pid_file.display());
    let (file, cutter) = (pid_file.clone(), Rc::clone(sshd));
    let stop = Box::pin(async move {
        eventually("the script runs", || file.exists()).await;
        cut(&cutter);
    });
    (stage(Shell::Bash, script), stop, pid_file)
}
