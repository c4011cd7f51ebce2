//! Whatever ends the kit: its machines are ended, or the next run says which are left.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::site::Site;

const LONGEST: Duration = Duration::from_mins(2);

/// Starts the kit, and returns when its first machine exists.
fn started(site: &Site) -> Child {
    let mut kit: Command = site.kit("good", &["--live", "--yes"]);
    let kit = kit.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let begun = Instant::now();
    while site.machines().is_empty() {
        assert!(begun.elapsed() < LONGEST, "no machine was made");
        std::thread::sleep(Duration::from_millis(5));
    }
    kit
}

fn signal(kit: &Child, signal: Signal) {
    let pid = Pid::from_child(kit);
    kill_process(pid, signal).expect("it runs");
}

#[test]
fn ctrl_c_ends_every_machine() {
    let Some(site) = Site::new("python") else { return };
    let kit = started(&site);
    signal(&kit, Signal::INT);
    let output = kit.wait_with_output().expect("it ends");
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{log}");
    assert!(log.contains("interrupted; the machines are terminated"), "{log}");
    assert_eq!(site.machines(), Vec::<std::path::PathBuf>::new(), "{log}");
}

#[test]
fn a_killed_run_is_cleaned_up_by_the_next_one() {
    let Some(site) = Site::new("python") else { return };
    let mut kit = started(&site);
    signal(&kit, Signal::KILL);
    kit.wait().expect("it ends");
    let again = site.kit("good", &["--live", "--yes"]).output().expect("the binary runs");
    let refused = String::from_utf8_lossy(&again.stderr).into_owned();
    assert_eq!(again.status.code(), Some(2), "{refused}");
    assert!(refused.contains("an earlier run has left `m-") && refused.contains("--clean"), "{refused}");
    let clean = site.kit("good", &["--clean"]).output().expect("the binary runs");
    let text = String::from_utf8_lossy(&clean.stdout).into_owned();
    assert_eq!(clean.status.code(), Some(0), "{text}");
    assert!(text.contains(" terminated, 0 left"), "{text}");
    assert_eq!(site.machines(), Vec::<std::path::PathBuf>::new());
}
