//! Kind: no part of a script reaches anything but the stage's shell. Profiles on static hosts, with whole jobs.

use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::wait_for;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

use crate::machine::{Hosts, Make, possible};

const READS: &str = "echo Welcome\nfor i in 1 2 3 4 5 6; do read -r line; done\n";
const HANDS_OVER: &str = "echo Welcome; exec busybox sh\n";

/// The output of `doctor`, without its line breaks.
fn doctor(place: &Place) -> String {
    let output = place.greenroom(&["doctor"]);
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The administrator's `~/.bashrc` greets and reads: the failed job was green. `doctor` names the profile, and the host
/// serves jobs again when it has been corrected.
#[test]
fn a_failed_job_is_never_green_because_a_profile_reads_its_script() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[Make::named("a")]);
    let host = &hosts.machines[0];
    let place = hosts.setting().timing("connect_timeout", "3s").open();
    place.run(&Job::new(9)).expect_outcome(&Outcome::Success);
    place.wait_until_idle(1);
    for (id, profile) in (1..).zip([READS, HANDS_OVER]) {
        let attempt = place.prepared_as(&Job::new(id));
        host.sh(&format!("cat >/home/ci/.bashrc <<'END'\n{profile}END"));
        // The shell that waits has started before the change.
        attempt.run("prepare_script", "true\n");
        let run =
            attempt.run("build_script", "set -eo pipefail\n: 2\n: 3\n: 4\n: 5\n: 6\nfalse\necho CONTINUED\n");
        let said = doctor(&place);
        host.sh("rm /home/ci/.bashrc");
        assert_eq!(run.exit_code(), Some(2), "{}", run.stderr_text());
        let text = run.stderr_text();
        assert!(
            text.contains("the login shell printed `Welcome` instead: a login profile that reads"),
            "{text}"
        );
        assert!(!run.stdout_text().contains("CONTINUED"), "{}", run.stdout_text());
        let finding = "[host-login-shell]: host `a` of pool `pool`: ";
        let named = ["printed `Welcome` instead", "does not run `/bin/sh`: Welcome"];
        assert!(said.contains(finding) && named.iter().any(|named| said.contains(named)), "{said}");
        assert_eq!(attempt.cleanup().exit_code(), Some(0));
        attempt.remove_tmpdir();
        place.wait_until_idle(1);
    }
    assert!(!doctor(&place).contains("[host-login-shell]"));
    place.run(&Job::new(3)).expect_outcome(&Outcome::Success);
}

/// `~/.profile`, which only login shells read, waits for an agent. Jobs of one project meet that, and so does the keeper's
/// check: the host does not fail one job after the other.
#[test]
fn a_host_whose_login_profile_waits_leaves_service_and_doctor_says_why() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[Make::named("a")]);
    let host = &hosts.machines[0];
    let place = hosts.setting().timing("connect_timeout", "3s").open();
    let _keeper = place.keep();
    place.run(&Job::new(1)).expect_outcome(&Outcome::Success);
    place.wait_until_idle(1);
    host.sh("echo 'sleep 600' >/home/ci/.profile");
    let named = "a profile of the account, such as `~/.profile`, waits, exits or starts";
    for id in [2, 3] {
        let result = place.run(&Job::new(id));
        result.expect_outcome(&Outcome::RunnerSystemFailure);
        assert!(result.log_text().contains(named), "{}", result.log_text());
    }
    let status = || place.order(&["pool", "status"]).split_whitespace().collect::<Vec<_>>().join(" ");
    let out = || Some(status()).filter(|text| text.contains("out of service"));
    let said = wait_for("the host to leave service", SOON, out);
    assert!(said.contains(named), "{said}");
    assert!(doctor(&place).contains("[host-login-shell]"));
    host.sh("rm /home/ci/.profile");
    place.order(&["pool", "resume", "--instance", "a"]);
    place.wait_until_idle(1);
    place.run(&Job::new(4)).expect_outcome(&Outcome::Success);
    place.expect_sound();
}

/// The profile waits with what the cleaning of the host would send it, and the host waits for its correction.
#[test]
fn a_host_is_not_cleaned_by_what_a_profile_starts() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[Make::named("a")]);
    let host = &hosts.machines[0];
    let place = hosts.setting().timing("connect_timeout", "3s").open();
    let attempt = place.prepared(1);
    assert_eq!(attempt.run("build_script", "touch /home/ci/builds/left\n").exit_code(), Some(0));
    host.sh(&format!("cat >/home/ci/.bashrc <<'END'\n{HANDS_OVER}END"));
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    let status = || place.order(&["pool", "status"]).split_whitespace().collect::<Vec<_>>().join(" ");
    wait_for("the reason", SOON, || status().contains("printed `Welcome` instead").then_some(()));
    host.sh("rm /home/ci/.bashrc");
    place.wait_until_idle(1);
    place.expect_sound();
}
