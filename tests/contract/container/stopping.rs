//! The remains of a stage in a container after a stop.

use std::time::{Duration, Instant};

use greenroom_core::container::engine::ContainerEngine;
use greenroom_core::container::name::ContainerName;
use greenroom_ports::connector::{Stage, StageEnd};
use greenroom_testkit::skipped::skipped;

use super::world::{Guest, HeldStart, WAYS, Way, engine, engines, inside, is_inside, processes};
use crate::link::only_link;
use crate::linked::support::{after, eventually, kill, when};

/// A stage that is over before this did not end by itself.
const LONG: Duration = Duration::from_mins(1);

/// The sleeping processes of this container's scripts; other containers' sleep for other times.
fn time(name: &ContainerName) -> String {
    let number = name.as_str().rsplit('-').next().unwrap();
    format!("{}", 86_000 + number.parse::<u32>().unwrap())
}

fn runs(name: &ContainerName) -> impl Fn() -> bool + use<> {
    let sleeper = format!("sleep {}", time(name));
    move || !processes(&sleeper).is_empty()
}

fn expect_nothing_left(name: &ContainerName) {
    assert_eq!(processes(&format!("sleep {}", time(name))), Vec::<String>::new());
    // The engine's client, and the container's monitor.
    assert_eq!(engines(name), Vec::<String>::new());
}

/// Stops a script when it sleeps; returns how long that took.
async fn stopped(guest: &Guest, way: Way, name: &ContainerName, script: &str, grace: Duration) -> Duration {
    let script = script.replace("SLEEP", &format!("sleep {}", time(name)));
    let stage = Stage { stop_grace: grace, ..inside(name, script) };
    let begun = std::rc::Rc::new(std::cell::Cell::new(Instant::now()));
    let (noted, running) = (std::rc::Rc::clone(&begun), runs(name));
    let stop = Box::pin(async move {
        when(running).await;
        noted.set(Instant::now());
    });
    let (end, kept) = guest.run(way, stage, stop).await;
    assert_eq!(end.unwrap(), StageEnd::Stopped, "{way:?} {kept:?}");
    let took = begun.get().elapsed();
    expect_nothing_left(name);
    took
}

#[tokio::test]
#[ignore = "runs in namespaces"]
async fn nothing_runs_after_a_stop_and_the_files_stay() {
    if !is_inside() {
        return;
    }
    let guest = Guest::start().await;
    for image in ["ash", "bash", "dash"] {
        let name = Guest::create(image, &[]);
        for way in WAYS {
            let script = "trap 'exit 1' TERM; echo kept >/tmp/file; (SLEEP) & SLEEP\n";
            let took = stopped(&guest, way, &name, script, LONG).await;
            eprintln!("{way:?} {image}: stopped in {took:?}");
            assert!(took < LONG, "{way:?} {image}: {took:?}");
            let (end, kept) = guest.run_in(way, &name, "cat /tmp/file; exit 4\n").await;
            assert_eq!((end, kept.out().as_str()), (StageEnd::Exited(4), "kept\n"), "{way:?} {image}");
        }
    }
}

#[tokio::test]
#[ignore = "runs in namespaces"]
async fn what_ignores_term_is_killed_after_the_grace() {
    if !is_inside() {
        return;
    }
    let guest = Guest::start().await;
    let name = Guest::create("ash", &[]);
    let grace = Duration::from_secs(2);
    for way in WAYS {
        for script in [
            "trap '' TERM; SLEEP; SLEEP\n",
            "trap '' TERM; (while :; do SLEEP; done) & while :; do :; done\n",
        ] {
            let took = stopped(&guest, way, &name, script, grace).await;
            assert!(took >= grace && took < LONG, "{way:?} {script}: {took:?}");
            let (end, _) = guest.run_in(way, &name, "exit 5\n").await;
            assert_eq!(end, StageEnd::Exited(5), "{way:?}");
        }
    }
}

#[tokio::test]
#[ignore = "runs in namespaces"]
async fn a_trap_gets_one_term_and_the_grace_for_its_work() {
    if !is_inside() {
        return;
    }
    let guest = Guest::start().await;
    for image in ["ash", "bash"] {
        let name = Guest::create(image, &[]);
        for way in WAYS {
            // A second TERM would add a line.
            let script = "trap 'echo x >>/tmp/terms; n=0; while [ $((n+=1)) -lt 100000 ]; do :; done; echo done >>/tmp/terms; exit 1' TERM
                echo >/tmp/terms; SLEEP & while :; do :; done\n";
            let took = stopped(&guest, way, &name, script, LONG).await;
            assert!(took < LONG, "{way:?}: {took:?}");
            let (_, kept) = guest.run_in(way, &name, "cat /tmp/terms\n").await;
            assert_eq!(kept.out(), "\nx\ndone\n", "{way:?} {image}");
        }
    }
}

const MOMENTS: u64 = 15;

#[tokio::test]
#[ignore = "runs in namespaces"]
async fn a_stop_at_any_moment_of_the_start_leaves_nothing() {
    if !is_inside() {
        return;
    }
    let guest = Guest::start().await;
    let name = Guest::create("ash", &[]);
    let script = format!("trap 'exit 1' TERM; sleep {}\n", time(&name));
    for (way, ms) in WAYS.into_iter().flat_map(|way| (0..MOMENTS).map(move |n| (way, n * 20))) {
        let stage = Stage { stop_grace: Duration::from_millis(500), ..inside(&name, &script) };
        let (end, kept) = guest.run(way, stage, after(Duration::from_millis(ms))).await;
        assert_eq!(end.unwrap(), StageEnd::Stopped, "{way:?} after {ms} ms: {kept:?}");
        let (end, _) = guest.run_in(way, &name, "exit 6\n").await;
        assert_eq!(end, StageEnd::Exited(6), "{way:?} after {ms} ms");
        eventually("nothing is left", {
            let running = runs(&name);
            move || !running()
        })
        .await;
    }
}

/// Docker starts a container in two steps. A runtime that finds no first process in the second one may wait without end.
#[tokio::test]
#[ignore = "runs in namespaces"]
async fn a_stop_between_the_steps_of_a_start_waits_for_the_second_one() {
    if !is_inside() || engine() != ContainerEngine::Docker {
        return;
    }
    let guest = Guest::start().await;
    for way in WAYS {
        let name = Guest::create("ash", &[]);
        let held = HeldStart::begin(&name);
        let script = format!("trap 'exit 1' TERM; sleep {}\n", time(&name));
        let stage = Stage { stop_grace: Duration::from_millis(500), ..inside(&name, &script) };
        let stop = Box::pin(async {
            when(held.waits()).await;
            tokio::spawn(async move {
                // Long enough for a stop that does not wait.
                tokio::time::sleep(Duration::from_secs(1)).await;
                drop(held);
            });
        });
        let (end, kept) = guest.run(way, stage, stop).await;
        assert_eq!(end.unwrap(), StageEnd::Stopped, "{way:?}: {kept:?}");
        expect_nothing_left(&name);
        let (end, _) = guest.run_in(way, &name, "exit 6\n").await;
        assert_eq!(end, StageEnd::Exited(6), "{way:?}");
    }
}

/// The engine is root's.
#[tokio::test]
#[ignore = "runs in namespaces"]
async fn a_login_that_is_not_root_runs_and_stops_containers() {
    if !is_inside() {
        return;
    }
    if !std::fs::exists("/etc/sudoers").unwrap() {
        return skipped("sudo is missing");
    }
    let guest = Guest::start_as_user().await;
    let name = Guest::create("ash", &[]);
    for way in WAYS {
        let (end, kept) = guest.run_in(way, &name, "id -u; exit 3\n").await;
        assert_eq!((end, kept.out().as_str()), (StageEnd::Exited(3), "0\n"), "{way:?}: {kept:?}");
        let took = stopped(&guest, way, &name, "trap 'exit 1' TERM; SLEEP\n", LONG).await;
        assert!(took < LONG, "{way:?}: {took:?}");
        stopped(&guest, way, &name, "trap '' TERM; SLEEP; SLEEP\n", Duration::from_secs(1)).await;
    }
}

/// A killed call, as its link sees it.
#[tokio::test]
#[ignore = "runs in namespaces"]
async fn a_link_stops_the_stage_of_a_call_that_is_gone() {
    if !is_inside() {
        return;
    }
    let guest = Guest::start().await;
    let name = Guest::create("ash", &[]);
    let script = format!("trap '' TERM; sleep {}; sleep 600\n", time(&name));
    {
        let running = guest.run(Way::Link, inside(&name, &script), crate::linked::support::never());
        tokio::select! {
            _ = running => panic!("it sleeps"),
            () = when(runs(&name)) => {}
        }
    }
    let left = name.clone();
    eventually("nothing is left", move || engines(&left).is_empty()).await;
    expect_nothing_left(&name);
    let (end, _) = guest.run_in(Way::Link, &name, "exit 7\n").await;
    assert_eq!(end, StageEnd::Exited(7));
}

#[tokio::test]
#[ignore = "runs in namespaces"]
async fn the_next_link_stops_the_stage_of_a_dead_one() {
    if !is_inside() {
        return;
    }
    let guest = Guest::start().await;
    let name = Guest::create("bash", &[]);
    // Deaf to the end of the connection.
    let script = format!("trap '' TERM HUP PIPE; sleep {}; sleep 600\n", time(&name));
    let killing = async {
        when(runs(&name)).await;
        kill(only_link(&guest.sshd));
    };
    let (ended, ()) =
        tokio::join!(guest.run(Way::Link, inside(&name, &script), crate::linked::support::never()), killing);
    assert!(ended.0.is_err(), "{ended:?}");
    assert!(runs(&name)(), "nothing has stopped it yet");
    guest.sshd.connector().check(&guest.sshd.id, &guest.sshd.at, LONG).await.unwrap();
    expect_nothing_left(&name);
    let (end, _) = guest.run_in(Way::Link, &name, "exit 8\n").await;
    assert_eq!(end, StageEnd::Exited(8));
}
