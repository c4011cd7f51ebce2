//! Kind: the engine of a static host finds no state but Greenroom's own, whatever logins of the account leave or end.

use greenroom_harness::place::SOON;
use greenroom_harness::processes::wait_for;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::json;

use crate::cleaned::cleaned;
use crate::engine::{IMAGE, hosts, setting};
use crate::machine::{Machine, Make};

fn with_service(id: u64) -> Job {
    let serves = json!({"name": IMAGE, "alias": "store", "command":
        ["sh", "-c", "while :; do echo hello | nc -l -p 8080; done"],
        "variables": [{"key": "HEALTHCHECK_TCP_PORT", "value": "8080"}]});
    Job::new(id).image(IMAGE).service(serves)
}

/// Uses the engine as the account, in a session with a directory of its own, which goes with it.
fn log_in_and_use_podman(host: &Machine) {
    let said = host.sh(
        "mkdir -p /run/user/4711; chown 4711:4711 /run/user/4711; chmod 700 /run/user/4711; cd /\n\
         setpriv --reuid=4711 --regid=4711 --clear-groups env -i HOME=/home/ci PATH=$PATH:/usr/sbin \
         XDG_RUNTIME_DIR=/run/user/4711 sh -c 'for i in network\\ create\\ mine \"tag localhost/tool:1 localhost/mine:1\"; do \
         podman --cgroup-manager=cgroupfs $i || exit; done; echo used' 2>&1\n\
         pkill -KILL -u 4711; rm -rf /run/user/4711",
    );
    assert!(said.ends_with("used\n"), "{said}");
}

/// An operator pulls images as the account of jobs over SSH, on a host that is idle, and logs out.
#[test]
fn a_job_with_services_runs_although_a_login_has_used_the_engine() {
    let Some(hosts) = hosts(&[Make::named("a")]) else { return };
    let host = &hosts.machines[0];
    let place = setting(&hosts, |_| {}).open();
    place.run(&Job::new(1)).expect_outcome(&Outcome::Success);
    assert_eq!(cleaned(&place), None);
    log_in_and_use_podman(host);
    let job = with_service(2).script(["sleep 0.2; nc -w 5 store 8080 </dev/null"]);
    let result = place.run(&job);
    result.expect_outcome(&Outcome::Success);
    assert!(result.log_text().contains("\nhello\n"), "{}", result.describe());
    assert_eq!(cleaned(&place), None);
    // What it pulled is of use to jobs, until the host is cleaned.
    log_in_and_use_podman(host);
    let mine = Job::new(3).image("localhost/mine:1").script(["cat /content"]);
    place.run(&mine).expect_outcome(&Outcome::Success);
    assert_eq!(cleaned(&place), None);
    place.expect_sound();
}

/// `KillUserProcesses=yes`: the link is cut, and the host's session manager ends all that the session has started.
#[test]
fn a_session_that_takes_the_engines_processes_with_it_takes_no_host_out_of_service() {
    let Some(hosts) = hosts(&[Make::named("a")]) else { return };
    let host = &hosts.machines[0];
    let place = setting(&hosts, |_| {}).open();
    let busy = with_service(1)
        .script(["echo left >/tmp/file; echo busy; while :; do sleep 47.12; done"])
        .after_script(["cat /tmp/file"]);
    let handle = place.runner().start(&busy);
    handle.wait_for_log("busy");
    wait_for("the job's process", SOON, || host.sh("pgrep -f '[s]leep 47.12'").contains('\n').then_some(()));
    host.sh("pkill -KILL -u 4711");
    let result = handle.finish();
    // What the script was doing is lost. Its container is there.
    assert!(result.log_text().contains("\nleft\n"), "{}", result.describe());
    assert_eq!(cleaned(&place), None, "{}", result.describe());
    let next = place.run(&with_service(2).script(["nc -w 5 store 8080 </dev/null"]));
    next.expect_outcome(&Outcome::Success);
    assert_eq!(cleaned(&place), None);
    place.expect_sound();
}
