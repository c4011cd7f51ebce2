//! Containers that a link starts before their stage.

use std::fs;
use std::time::Duration;

use greenroom_core::execution::Shell;
use greenroom_ports::connector::{ConnectError, Stage, StageEnd};

use super::world::{Guest, Way, at_engine, engines, first_process, has_started, inside, is_inside};
use crate::link::{only_link, until_ready};
use crate::linked::support::{eventually, kill, lives, never, stage};

#[tokio::test]
#[ignore = "runs in namespaces"]
async fn a_container_starts_while_a_stage_runs_on_the_guest_and_then_reads_the_script() {
    if !is_inside() {
        return;
    }
    let guest = Guest::start().await;
    let name = Guest::create("bash", &[]);
    // The stage ends when the container has started.
    guest.beside(&name, &format!("until {}; do sleep 0.02; done\n", has_started(&name))).await;
    let waiting = first_process(&name).unwrap();
    guest.beside(&name, "true\n").await;
    assert!(lives(waiting), "it waits on");
    // What follows the container's own stage waits after it.
    let stage = Stage { ahead: Some(at_engine(&name)), ..inside(&name, "echo in; exit 3\n") };
    let (end, kept) = guest.run(Way::Link, stage, never()).await;
    assert_eq!((end.unwrap(), kept.out().as_str()), (StageEnd::Exited(3), "in\n"));
    let file = name.clone();
    eventually("it waits again", move || {
        first_process(&file).is_some_and(|pid| pid != waiting && lives(pid))
    })
    .await;
    assert!(!lives(waiting), "the stage ran in the container that waited");
    until_ready(&guest.sshd).await;
    let second = first_process(&name).unwrap();
    let (end, _) = guest.run_in(Way::Link, &name, "exit 4\n").await;
    assert_eq!(end, StageEnd::Exited(4));
    // Docker forgets it.
    assert!(first_process(&name).is_none_or(|pid| pid == second), "no other one was started");
}

#[tokio::test]
#[ignore = "runs in namespaces"]
async fn a_stage_on_the_guest_runs_while_a_container_still_starts() {
    if !is_inside() {
        return;
    }
    let guest = Guest::start().await;
    let name = Guest::create("ash", &[]);
    let path = format!("/run/greenroom/{name}.lock");
    fs::create_dir_all("/run/greenroom").unwrap();
    let lock = fs::File::create(&path).unwrap();
    lock.lock().unwrap();
    let starts = format!("grep -qs {path} /proc/[0-9]*/cmdline");
    guest.beside(&name, &format!("until {starts}; do sleep 0.02; done\n")).await;
    let (end, kept) = guest.run(Way::Link, stage(Shell::Bash, format!("{starts}\n")), never()).await;
    assert_eq!(end.unwrap(), StageEnd::Exited(0), "it starts no more: {kept:?}");
    drop(lock);
    let (end, _) = guest.run_in(Way::Link, &name, "exit 3\n").await;
    assert_eq!(end, StageEnd::Exited(3));
}

#[tokio::test]
#[ignore = "runs in namespaces"]
async fn a_container_that_does_not_wait_is_not_started_again_and_again() {
    if !is_inside() {
        return;
    }
    let guest = Guest::start().await;
    let count = guest.sshd.path("count");
    fs::create_dir(&count).unwrap();
    let volume = format!("--volume={}:/count", count.display());
    let name = Guest::create("ash", &["--entrypoint=counts", &volume]);
    guest.beside(&name, "sleep 3\n").await;
    assert_eq!(fs::read_to_string(count.join("times")).unwrap(), "once\n");
    let (end, kept) = guest.run(Way::Link, inside(&name, "true\n"), never()).await;
    assert!(matches!(end, Err(ConnectError::NoContainer { .. })), "{end:?} {kept:?}");
    assert_eq!(fs::read_to_string(count.join("times")).unwrap(), "once\nonce\n");
}

#[tokio::test]
#[ignore = "runs in namespaces"]
async fn a_waiting_container_that_is_killed_costs_only_its_start() {
    if !is_inside() {
        return;
    }
    let guest = Guest::start().await;
    let name = Guest::create("ash", &[]);
    guest.beside(&name, "sleep 1\n").await;
    kill(first_process(&name).unwrap());
    let killed = name.clone();
    eventually("it has ended", move || engines(&killed).is_empty()).await;
    // The link learns of it.
    tokio::time::sleep(Duration::from_millis(500)).await;
    for code in [3, 4] {
        let (end, _) = guest.run_in(Way::Link, &name, &format!("exit {code}\n")).await;
        assert_eq!(end, StageEnd::Exited(code));
    }
}

/// A stage ends with its shell, and the engine cleans up after it.
#[tokio::test]
#[ignore = "runs in namespaces"]
async fn stages_follow_each_other_before_the_engine_has_cleaned_up() {
    if !is_inside() {
        return;
    }
    let guest = Guest::start().await;
    let name = Guest::create("bash", &[]);
    for n in 0..24 {
        let way = if n % 4 == 3 { Way::Connection } else { Way::Link };
        // The next stage takes the container that waits.
        let ahead = (n % 4 == 0).then(|| at_engine(&name));
        let stage = Stage { ahead, ..inside(&name, format!("echo {n}; (sleep 600) & exit {n}\n")) };
        let (end, kept) = guest.run(way, stage, never()).await;
        let said = format!("{n}\n");
        assert_eq!(
            (end.unwrap(), kept.out(), kept.err()),
            (StageEnd::Exited(n), said, String::new()),
            "{way:?}"
        );
    }
}

/// A dead link's container may still be ending.
#[tokio::test]
#[ignore = "runs in namespaces"]
async fn a_container_that_waits_for_a_dead_link_is_not_taken_for_the_next_one() {
    if !is_inside() {
        return;
    }
    let guest = Guest::start().await;
    let name = Guest::create("bash", &[]);
    for (way, code) in [(Way::Link, 3), (Way::Connection, 4), (Way::Link, 5)] {
        guest.beside(&name, "sleep 0.5\n").await;
        kill(only_link(&guest.sshd));
        let (end, kept) = guest.run_in(way, &name, &format!("echo in; exit {code}\n")).await;
        assert_eq!((end, kept.out().as_str()), (StageEnd::Exited(code), "in\n"), "{way:?}");
    }
    eventually("none waits", move || engines(&name).is_empty()).await;
}
