//! Ends of plugins: in order, and by kill -9 of either side at any moment. Nothing may keep running.

#![cfg(test)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use greenroom_backends::fleeting::group::{CallErrorKind, InstanceGroup as _};
use greenroom_backends::fleeting::plugin::Plugin;
use greenroom_testkit::dice::{Dice, number};
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{GREENROOM, Place, TEST_PLUGIN, failed, settings, until};

/// Names the directory of the place for the process that is killed.
const PLACE: &str = "FLEETING_PLACE";

fn kill(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    // It may have exited just now.
    let _gone = kill_process(pid, Signal::KILL);
}

#[tokio::test]
async fn a_plugin_that_is_closed_exits_and_starts_again_at_the_next_call() {
    let place = Place::new();
    let plugin = place.plugin();
    plugin.info().await.unwrap();
    let begun = Instant::now();
    plugin.close().await;
    assert!(begun.elapsed() < Duration::from_secs(2), "it exits when it is asked to");
    place.is_empty().await;
    plugin.close().await;
    assert_eq!(plugin.update().await, Ok(Vec::new()));
}

#[tokio::test]
async fn a_plugin_that_refuses_to_exit_is_killed_with_its_children() {
    let place = Place::new();
    for fault in ["ignore-sigterm", "ignore-shutdown"] {
        place.fault(fault, "");
    }
    place.fault("start-child", "sleep 98771");
    let plugin = place.plugin();
    plugin.info().await.unwrap();
    until(|| place.processes().len() == 3, || format!("{:?}", place.processes())).await;
    plugin.close().await;
    place.is_empty().await;
}

#[tokio::test]
async fn a_killed_holder_takes_the_plugin_with_it() {
    let place = Place::new();
    let plugin = place.plugin();
    plugin.info().await.unwrap();
    place.fault("update-hang.once", "");
    let killed = async {
        until(|| !place.path().join("faults/update-hang.once").exists(), || "no call".to_owned()).await;
        kill(place.process(GREENROOM));
    };
    let (answer, ()) = tokio::join!(plugin.update(), killed);
    let error = failed(answer, "was killed with the process that holds it");
    assert_eq!(error.kind, CallErrorKind::Unknown);
    place.is_empty().await;
    assert_eq!(plugin.update().await, Ok(Vec::new()), "it starts again");
}

#[tokio::test]
async fn a_plugin_killed_at_any_moment_is_started_again() {
    let place = Place::new();
    place.fault("update-delay", "20");
    let mut settings = place.settings();
    settings.pauses.first = Duration::from_millis(1);
    settings.pauses.longest = Duration::from_millis(1);
    let plugin = Plugin::new(settings);
    let seed = number("GREENROOM_SEED", 1);
    let mut dice = Dice::new(seed);
    let (mut answered, mut lost) = (0, 0);
    for _ in 0..number("GREENROOM_KILLS", 12) {
        let pause = Duration::from_millis(dice.below(60));
        let victim = if dice.below(3) == 0 { GREENROOM } else { TEST_PLUGIN };
        let killed = async {
            tokio::time::sleep(pause).await;
            let all = place.processes();
            all.iter().filter(|(_, line)| line.starts_with(victim)).for_each(|(pid, _)| kill(*pid));
        };
        let (answer, ()) = tokio::join!(plugin.update(), killed);
        match answer {
            Ok(_) => answered += 1,
            Err(error) => {
                let kinds = [CallErrorKind::Unknown, CallErrorKind::NotStarted];
                assert!(kinds.contains(&error.kind), "seed {seed}: {error:?}");
                lost += 1;
            }
        }
    }
    assert!(lost > 0, "seed {seed}: {answered} answered");
    until_answered(&plugin).await;
    drop(plugin);
    place.is_empty().await;
}

async fn until_answered(plugin: &Plugin) {
    let begun = Instant::now();
    while let Err(error) = plugin.update().await {
        assert!(begun.elapsed() < Duration::from_secs(30), "{error:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The process that `a_killed_greenroom…` kills.
#[tokio::test]
#[ignore = "runs in a process of its own"]
async fn calls_without_end() {
    let Some(place) = std::env::var_os(PLACE).map(PathBuf::from) else { return };
    let plugin = Plugin::new(settings(&place));
    loop {
        plugin.update().await.unwrap();
    }
}

fn greenrooms_side(place: &Path) -> std::process::Child {
    let mut side = Command::new(std::env::current_exe().unwrap());
    side.args(["--exact", "ends::calls_without_end", "--ignored"]).env(PLACE, place);
    side.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    side.spawn().unwrap()
}

#[tokio::test]
async fn a_killed_greenroom_leaves_nothing_running() {
    let place = Place::new();
    place.fault("start-child", "sleep 98772");
    let seed = number("GREENROOM_SEED", 1);
    let mut dice = Dice::new(seed);
    for _ in 0..number("GREENROOM_KILLS", 8) {
        let mut side = greenrooms_side(place.path());
        // From before the start to the calls.
        let stage = dice.below(3);
        until(|| stage == 0 || !place.processes().is_empty(), || "nothing has started".to_owned()).await;
        tokio::time::sleep(Duration::from_millis(if stage == 2 {
            100 + dice.below(400)
        } else {
            dice.below(40)
        }))
        .await;
        side.kill().unwrap();
        side.wait().unwrap();
        until(|| place.processes().is_empty(), || format!("seed {seed}: {:?}", place.processes())).await;
    }
}

#[tokio::test]
async fn what_outlived_both_sides_is_ended_by_the_next_start() {
    let place = Place::new();
    let mut side = greenrooms_side(place.path());
    let both = || {
        place.processes().len() == 2 && place.sockets().iter().any(|dir| dir.join("process.json").exists())
    };
    until(both, || format!("{:?}", place.processes())).await;
    // The holder must not see the end of its keeper.
    let holder = place.process(GREENROOM);
    let stopped = Pid::from_raw(i32::try_from(side.id()).unwrap()).unwrap();
    kill_process(stopped, Signal::STOP).unwrap();
    kill(holder);
    side.kill().unwrap();
    side.wait().unwrap();
    assert_eq!(place.processes().len(), 1, "the plugin has outlived both: {:?}", place.processes());
    let plugin = place.plugin();
    plugin.info().await.unwrap();
    assert_eq!((place.processes().len(), place.sockets().len()), (2, 1), "{:?}", place.processes());
}
