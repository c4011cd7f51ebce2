//! Links that are stopped or killed.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use greenroom_core::execution::Shell;
use greenroom_ports::connector::{ConnectError, Stage, StageEnd, Stop};
use greenroom_testkit::pace::Pace;
use rustix::process::Signal;

use super::{links, memory_of, only_link, place, runs, said, saying, session, signal, until_ready};
use crate::linked::sshd::{Set, Sshd};
use crate::linked::support::{after, eventually, kill, lives, living_of, never, stage};

/// A link that is silent for longer counts as unresponsive.
const FIRST_ANSWER: Duration = Duration::from_secs(3);
/// The time to start a link and a process or two.
const SLACK: Duration = Duration::from_secs(5);

/// The note of the first slot: the handle of its stage, the boot, and the time since then in milliseconds.
fn note(sshd: &Sshd) -> [u64; 3] {
    let line = std::fs::read_to_string(place(sshd).join("0.lock")).unwrap();
    let numbers: Vec<u64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

/// True if a new stage finds the old one's session gone, from its first line on.
async fn expect_swept(sshd: &Sshd, old: u32) {
    // Without a process that reaps orphans, a zombie remains.
    let stat = format!("$(cat /proc/{old}/stat 2>/dev/null)");
    let look = format!("case \"{stat}\" in ''|*') Z '*) ;; *) echo still there;; esac; echo looked\n");
    assert_eq!(said(sshd, &look).await, "looked\n");
    assert_eq!(living_of(old), Vec::<u32>::new());
}

#[tokio::test]
async fn a_link_stopped_in_mid_stage_is_killed_by_the_cancel_and_the_next_one_stops_the_stage() {
    let sshd = Sshd::start().await;
    said(&sshd, "true\n").await;
    let link = only_link(&sshd);
    let (grace, pace) = (Duration::from_secs(1), Pace::watch());
    let script = saying(&sshd, "trap '' TERM; (trap '' TERM; sleep 600) & while :; do sleep 1; done");
    let running = runs(&sshd);
    let told = Rc::new(Cell::new(None));
    let seen = Rc::clone(&told);
    let stop: Stop<'static> = Box::pin(async move {
        running.await;
        signal(link, Signal::STOP);
        seen.set(Some(Instant::now()));
    });
    let (end, _) = sshd.run(Stage { stop_grace: grace, ..stage(Shell::Bash, script) }, stop).await;
    let took = told.get().unwrap().elapsed();
    let bound = grace + pace.stretched(Duration::from_secs(1));
    assert_eq!(end.unwrap(), StageEnd::Stopped);
    eprintln!("from the cancel to the end, grace {grace:?}: {took:?}");
    assert!(took < bound, "{took:?}, at most {bound:?}");
    assert!(!lives(link), "the unresponsive link was killed");
    let old = session(&sshd);
    assert!(lives(old), "nobody could stop it yet");
    expect_swept(&sshd, old).await;
    assert_ne!(only_link(&sshd), link);
}

#[tokio::test]
async fn a_link_stopped_while_idle_is_replaced_by_whoever_comes_next() {
    let sshd = Sshd::start().await;
    for check in [false, true] {
        said(&sshd, "true\n").await;
        until_ready(&sshd).await;
        let link = only_link(&sshd);
        signal(link, Signal::STOP);
        let (begun, pace) = (Instant::now(), Pace::watch());
        if check {
            sshd.connector().check(&sshd.id, &sshd.at, Duration::from_secs(10)).await.unwrap();
        } else {
            said(&sshd, "true\n").await;
        }
        let took = begun.elapsed();
        eprintln!("past a link that is stopped, check {check}: {took:?}");
        assert!(took < FIRST_ANSWER + pace.stretched(SLACK), "{took:?}");
        assert!(!lives(link));
        assert_ne!(only_link(&sshd), link);
    }
}

/// Runs a script and kills its link in the middle; returns the script's session, which was not stopped.
async fn bereaved(sshd: &Sshd) -> u32 {
    let script = saying(sshd, "trap '' TERM; (trap '' TERM; sleep 600) & while :; do sleep 1; done");
    let killing = async {
        runs(sshd).await;
        kill(only_link(sshd));
    };
    let ((end, _), ()) = tokio::join!(sshd.run(stage(Shell::Bash, script), never()), killing);
    let error = end.unwrap_err();
    assert!(matches!(error, ConnectError::Lost { sent: true, .. }), "{error:?}");
    let text = error.to_string();
    eprintln!("{text}");
    assert!(text.contains("the link, which held the connection, has exited"), "{text}");
    assert!(!text.contains('\n'), "{text}");
    let old = session(sshd);
    assert!(lives(old), "it goes on");
    old
}

#[tokio::test]
async fn a_link_killed_in_mid_stage_is_a_loss_and_the_next_one_stops_the_stage() {
    let sshd = Sshd::start().await;
    for age in [Duration::ZERO, Duration::from_hours(24)] {
        let old = bereaved(&sshd).await;
        // Whatever the wall clock says.
        let lock = std::fs::File::options().write(true).open(place(&sshd).join("0.lock")).unwrap();
        lock.set_modified(SystemTime::now() - age).unwrap();
        expect_swept(&sshd, old).await;
    }
}

#[tokio::test]
async fn what_a_dead_link_left_is_stopped_though_others_came_in_vain_before() {
    let sshd = Sshd::start().await;
    let old = bereaved(&sshd).await;
    // A link that does not connect in time.
    let at = Duration::from_millis(1);
    let checked = sshd.connector().check(&sshd.id, &sshd.at, at).await;
    eprintln!("a check within {at:?}: {checked:?}");
    // Stages that are stopped before their link has connected, or while it cleans up after the previous one.
    for ms in [0, 10, 30] {
        let (end, _) = sshd.run(stage(Shell::Bash, "true\n"), after(Duration::from_millis(ms))).await;
        assert!(end.is_ok(), "{end:?}");
    }
    expect_swept(&sshd, old).await;
}

#[tokio::test]
async fn what_a_dead_link_left_is_stopped_however_long_its_stage_had_run() {
    let sshd = Sshd::with(Set { keepalive: Duration::from_secs(1), ..Set::default() }).await;
    let script = saying(&sshd, "while :; do sleep 0.2; done");
    let aging = async {
        runs(&sshd).await;
        let [_, _, begun] = note(&sshd);
        let young = || note(&sshd)[2] > begun;
        eventually("the note is kept young", young).await;
        kill(only_link(&sshd));
    };
    let ((end, _), ()) = tokio::join!(sshd.run(stage(Shell::Bash, script), never()), aging);
    assert!(matches!(end, Err(ConnectError::Lost { .. })), "{end:?}");
    expect_swept(&sshd, session(&sshd)).await;
}

#[tokio::test]
async fn a_session_noted_before_a_reboot_is_nobodys() {
    let sshd = Sshd::start().await;
    let old = bereaved(&sshd).await;
    let [handle, boot, uptime] = note(&sshd);
    let line = format!("{handle} {} {uptime}\n", boot ^ 1);
    std::fs::write(place(&sshd).join("0.lock"), line).unwrap();
    said(&sshd, "true\n").await;
    let left = living_of(old);
    assert!(left.contains(&old), "its number may be somebody else's");
    left.into_iter().for_each(kill);
}

#[tokio::test]
async fn a_call_that_is_killed_ends_its_stage_and_frees_the_link() {
    let sshd = Sshd::start().await;
    said(&sshd, "true\n").await;
    let link = only_link(&sshd);
    for _ in 0..12 {
        let script = saying(&sshd, "trap '' TERM; (trap '' TERM; sleep 600) & while :; do sleep 1; done");
        let caller = super::caller::Caller::start(&sshd, "killed", super::caller::Task::Run(script), |_| {});
        runs(&sshd).await;
        let old = session(&sshd);
        kill(caller.pid());
        let (begun, pace) = (Instant::now(), Pace::watch());
        eventually("its session is gone", || living_of(old).is_empty()).await;
        let took = begun.elapsed();
        eprintln!("a killed call's session was gone after {took:?} (looked every 10 ms)");
        assert!(took < pace.stretched(SLACK), "{took:?}");
        caller.reap();
        until_ready(&sshd).await;
    }
    said(&sshd, "true\n").await;
    assert_eq!(links(sshd.dir.path()), [link], "though the server has ten sessions");
    eprintln!("the link's memory afterwards: {} kB", memory_of(link, "VmRSS") >> 10);
}
