//! The units of the package: start, reload, hang, stop.

use std::time::Instant;

use crate::package_units::{FOLDER, Host, WATCHDOG};

const LOCAL: &str = "kind = 'local'\nallow_root = true";
const UNTIL_GO: &str = "until [ -e $2/go ]; do sleep 0.1; done";

#[test]
fn the_keepers_unit_reloads_survives_a_hang_and_stops_without_the_jobs() {
    let Some(host) = Host::start(LOCAL, UNTIL_GO, None) else { return };
    host.systemctl(&["start", "greenroom"]);
    assert_eq!(host.property("ActiveState"), "active");
    let (started, pid) = (Instant::now(), host.property("MainPID"));
    assert_eq!(host.property("StatusText"), "reconciling 1 pool: pool");
    has_read_the_program(&host);
    host.await_idle(1);

    host.configure("idle_count = 2");
    host.systemctl(&["reload", "greenroom"]);
    host.await_idle(2);
    host.configure("idle_cuont = 3");
    host.systemctl(&["reload", "greenroom"]);
    let is_refused = |text: String| text.contains("remains active: ") && text.contains("idle_cuont");
    host.wait_for("the refusal", || is_refused(host.property("StatusText")));
    assert!(is_refused(host.read("keeper.log")), "{}", host.read("keeper.log"));
    host.configure("idle_count = 2");
    host.systemctl(&["reload", "greenroom"]);
    host.wait_for("the end of the refusal", || host.property("StatusText") == "reconciling 1 pool: pool");
    assert_eq!(host.property("ActiveState"), "active");
    // For longer than the watchdog's period: the keeper has pinged.
    host.wait_for("two periods", || started.elapsed() > 2 * WATCHDOG);
    assert_eq!((host.property("NRestarts").as_str(), host.property("MainPID")), ("0", pid));

    host.serves_a_job_through_a_hang_and_a_stop();
}

/// The unit goes on if it cannot read the program, so that only this shows a failure.
fn has_read_the_program(host: &Host) {
    let read = host.property("ExecStartPre");
    assert!(read.contains("/bin/cp") && read.contains("status=0"), "{read}");
}

/// A pool of the provider `local` stands in for those of clouds: it needs no more of the host.
#[test]
fn a_keeper_in_the_sandbox_has_instances_and_serves_jobs() {
    let sandbox = std::fs::read_to_string(format!("{FOLDER}/sandbox.conf")).expect("the drop-in");
    let (_, options) = sandbox.split_once("[Service]\n").expect("its section");
    let Some(host) = Host::start(LOCAL, UNTIL_GO, Some(options)) else { return };
    host.systemctl(&["start", "greenroom"]);
    has_read_the_program(&host);
    host.await_idle(1);
    host.start_job();
    host.configure("idle_count = 2");
    host.systemctl(&["reload", "greenroom"]);
    host.await_idle(2);
    host.finish_job();
    assert_eq!(host.property("NRestarts"), "0");
}

#[test]
fn the_timers_unit_makes_a_pass_and_ends() {
    let Some(host) = Host::start(LOCAL, UNTIL_GO, None) else { return };
    host.systemctl(&["start", "greenroom-reap.timer"]);
    host.systemctl(&["start", "greenroom-reap.service"]);
    let shown = host.systemctl(&["show", "--property=Result,ActiveState", "greenroom-reap.service"]);
    assert!(shown.contains("Result=success") && shown.contains("ActiveState=inactive"), "{shown}");
    // Its background keeper outlives the unit, and makes the instance that the pool lacks.
    host.await_idle(1);
}
