//! What is left on a host after a job: nothing.

use crate::machine::{Hosts, Make, possible};
use crate::support::job::Job;
use crate::support::record::Outcome;

#[test]
fn a_job_runs_on_a_host_and_leaves_neither_files_nor_processes_there() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[Make::named("linux-1")]);
    let place = hosts.setting().open();
    let job = Job::new(1).script([
        "echo \"user $(id -un), temporary $TMPDIR, in $PWD\"",
        "echo secret > secret; echo secret > \"$(mktemp)\"; mkdir -p locked/in; touch locked/in/it; chmod -R a-w locked",
        "sleep 1000 & setsid sleep 1001 & env -i sleep 1002 & (trap '' TERM; sleep 1003) &",
    ]);
    let result = place.run(&job);
    result.expect_outcome(&Outcome::Success);
    assert!(
        result.log_text().contains("user ci, temporary /home/ci/builds/custom-executor"),
        "{}",
        result.log_text()
    );
    place.wait_until_idle(1);
    let host = &hosts.machines[0];
    assert_eq!(
        host.sh("ls -A /home/ci/builds /tmp; ls -A /home/ci/.greenroom"),
        "/home/ci/builds:\n\n/tmp:\n"
    );
    assert_eq!(host.sh("pgrep -x sleep"), "");
    place.expect_sound();
}
