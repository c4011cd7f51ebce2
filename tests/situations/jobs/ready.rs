//! Kind: an instance is ready when it is set up, not when its SSH server answers; and no launch loop is endless.

use std::path::Path;

use greenroom_core::event::Change;
use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::wait_for;
use greenroom_harness::setting::Setting;
use greenroom_ports::setup::CLOUD_INIT;
use greenroom_testkit::gitlab_runner::job::Job;

/// A directory of programs for instances, with this script as their cloud-init.
fn programs(cloud_init: Option<&str>) -> tempfile::TempDir {
    let home = tempfile::tempdir().expect("a directory");
    if let Some(script) = cloud_init {
        let program = home.path().join("cloud-init");
        let text = format!("#!/bin/sh\n[ \"$1\" = status ] || exit 64\n{script}\n");
        std::fs::write(&program, text).expect("a file");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).expect("its mode can be set");
    }
    home
}

/// The clouds' default of `ready_command`, with only these programs.
fn waiting_for(programs: &Path) -> Setting {
    let at = programs.display();
    let setting = Setting::new().pool("max_instances", 1);
    setting.pool("ready_command", format!("PATH={at}\n{CLOUD_INIT}"))
}

fn failed_boots(place: &Place) -> Vec<String> {
    let events = place.events().into_iter();
    let why = events.filter_map(|event| match event.change {
        Change::DrainingBegun { reason, .. } if reason.is_launch_failure() => Some(reason.to_string()),
        _ => None,
    });
    why.collect()
}

/// An image without cloud-init, one where it is done, and one where it recovered from errors (status 2).
#[test]
fn an_instance_without_cloud_init_or_with_one_that_is_done_is_ready() {
    for script in [None, Some("echo status: done"), Some("echo status: degraded done; exit 2")] {
        let programs = programs(script);
        let place = waiting_for(programs.path()).open();
        let attempt = place.prepared(1);
        assert_eq!(failed_boots(&place), [""; 0], "{script:?}");
        assert_eq!(attempt.cleanup().exit_code(), Some(0));
        attempt.remove_tmpdir();
    }
}

/// The SSH server answers while cloud-init still installs packages: the job does not begin before that is over.
#[test]
fn a_job_waits_for_a_slow_cloud_init() {
    let gate = tempfile::tempdir().expect("a directory");
    let at = gate.path().display();
    let script = format!(
        "PATH=/usr/bin:/bin\n[ \"$2\" = --wait ] || exit 64\ntouch {at}/asked\nwhile [ ! -e {at}/done ]; do sleep 0.02; done"
    );
    let programs = programs(Some(&script));
    let place = waiting_for(programs.path()).open();
    let attempt = place.runner().attempt(&Job::new(1));
    assert_eq!(attempt.config().exit_code(), Some(0));
    let prepare = attempt.start_prepare();
    wait_for("the wait for cloud-init", SOON, || gate.path().join("asked").exists().then_some(()));
    prepare.wait_for_output("reachable", SOON);
    assert!(place.grants().is_empty(), "not set up yet");
    std::fs::write(gate.path().join("done"), "").expect("a file");
    assert_eq!(prepare.wait(SOON).exit_code(), Some(0));
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
}

/// cloud-init fails on each new instance. Launches pause after some of them, and the job's log and `pool status` say why.
#[test]
fn a_ready_command_that_always_fails_opens_the_circuit_breaker() {
    let programs = programs(Some("echo 'status: error: no such package'; exit 1"));
    let setting = waiting_for(programs.path()).timing("breaker_failures", 3);
    let place = setting.timing("launch_backoff_max", "1h").timing("launch_backoff", "10ms").open();
    let attempt = place.runner().attempt(&Job::new(1));
    assert_eq!(attempt.config().exit_code(), Some(0));
    let prepare = attempt.start_prepare();
    let paused = "the pool is paused after 3 failed launches in a row (last: ";
    prepare.wait_for_output(paused, SOON);
    let boots = failed_boots(&place);
    assert_eq!(boots.len(), 3, "{boots:#?}");
    let why = "its ready command failed: exit status 1: status: error: no such package";
    assert!(boots.iter().all(|boot| boot == why), "{boots:#?}");
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let status = words(&place.order(&["pool", "status"]));
    assert!(status.contains(paused) && status.contains(why), "{status}");
    prepare.signal_group(rustix::process::Signal::TERM);
    let prepare = prepare.wait(SOON);
    assert!(prepare.stderr_text().contains(why), "{}", prepare.stderr_text());
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    place.wait_until_settled(0);
    place.expect_sound();
}
