//! The runner's service under a real systemd, stopped in the middle of a job.
//!
//! `greenroom try` plays the runner; like the real one, it continues its job after SIGQUIT.

use std::path::Path;
use std::time::{Duration, Instant};

use greenroom_testkit::pace::await_settled;
use greenroom_testkit::systemd::Systemd;

const GREENROOM: &str = env!("CARGO_BIN_EXE_greenroom");
/// Far more than a stop needs, also on a loaded machine that emulates virtual machines.
const SOON: Duration = Duration::from_mins(4);
/// The time after which systemd kills: the stop would end, but not with success.
const KILLED_AFTER: Duration = Duration::from_mins(3);

#[track_caller]
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < until, "not within {SOON:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn unit(home: &Path) -> String {
    let home = home.display();
    format!(
        "[Unit]\nDefaultDependencies=no\n[Service]\nKillSignal=SIGQUIT\nTimeoutStopSec={}\n\
         ExecStart=/bin/sh {home}/runner {GREENROOM} {home}\n",
        KILLED_AFTER.as_secs()
    )
}

const RUNNER: &str = r#"
trap "" QUIT
"$1" --config "$2/greenroom.toml" try "echo its beginning; sleep 6; echo its end" > "$2/job.log" 2>&1
"#;

const CONFIG: &str =
    "[pool.pool]\nmax_instances = 2\nidle_count = 2\nidle_time = '1h'\n[pool.pool.provider]\n";

/// Stops the service in the middle of a job on a pool of this provider, given as the lines of its table.
pub(crate) fn a_graceful_stop_waits_for_the_job_and_for_nothing_of_ours(provider: &str) {
    let home = tempfile::Builder::new().prefix("greenroom-service-").tempdir().expect("a directory");
    let at = |name: &str| home.path().join(name);
    std::fs::write(at("runner"), RUNNER).expect("a file");
    let config = format!("state_dir = '{}'\n{CONFIG}{provider}\n", at("state").display());
    std::fs::write(at("greenroom.toml"), config).expect("a file");
    let unit = unit(home.path());
    let Some(systemd) = Systemd::start(home.path(), &[("runner-of-a-test.service", &unit)], false) else {
        return;
    };
    let config = at("greenroom.toml").display().to_string();
    let call = |args: &[&str]| systemd.run(&[&[GREENROOM, "--config", &config], args].concat());
    // The job takes one of two idle instances, and its own calls start the keeper.
    assert!(call(&["try", "true"]).status.success());
    wait_for("two idle instances and no keeper", || {
        let status: serde_json::Value =
            serde_json::from_slice(&call(&["pool", "status", "--json"]).stdout).expect("it is JSON");
        let pool = &status["pools"][0];
        pool["idle"] == 2 && pool["keeper"]["runs"] == false
    });
    systemd.systemctl(&["start", "runner-of-a-test"]);
    let log = || std::fs::read_to_string(at("job.log")).unwrap_or_default();
    wait_for("the job's beginning", || log().contains("its beginning"));

    systemd.systemctl(&["stop", "--no-block", "runner-of-a-test"]);
    let state = || systemd.systemctl(&["show", "--property=ActiveState,Result", "runner-of-a-test"]);
    assert!(state().contains("ActiveState=deactivating") && !log().contains("its end"), "{}", log());
    wait_for("the stop's end", || state().contains("ActiveState=inactive"));
    assert!(state().contains("Result=success"), "{}", state());
    assert!(log().contains("its end") && log().contains("job succeeded"), "{}", log());

    // The warm instance lived on; the next call's keeper manages it.
    let next = call(&["try", "true"]);
    let stderr = String::from_utf8_lossy(&next.stderr).into_owned();
    assert!(next.status.success() && stderr.contains("(warm, idle for "), "{stderr}");
    drop(systemd);
    await_settled(home.path());
}
