//! Kind: a waiting job, `pool status` and `explain` name the true reason of the wait, in the same words.

use std::time::Duration;

use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::wait_for;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use greenroom_testkit::pace::Pace;

use crate::machine::{Hosts, Make, possible};

/// The output of a command on a terminal, without its line breaks.
fn shown(place: &Place, arguments: &[&str]) -> String {
    place.order(arguments).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A job waits for this reason, and each place has it within 15 s. Then what is wrong is mended, and the job runs.
fn each_place_says(place: &Place, sentence: &str, mend: impl FnOnce()) {
    let job = place.runner().start(&Job::new(1));
    let (begun, pace) = (std::time::Instant::now(), Pace::watch());
    job.wait_for_log(sentence);
    let status = || shown(place, &["pool", "status"]).matches(sentence).count();
    // For the job and, unless it is out of service, for the host.
    wait_for("the reason in `pool status`", SOON, || (status() >= 1).then_some(()));
    wait_for("the reason in `explain`", SOON, || {
        shown(place, &["explain", "1"]).contains(sentence).then_some(())
    });
    let (took, limit) = (begun.elapsed(), pace.stretched(Duration::from_secs(15)));
    assert!(took < limit, "{took:?}, limit {limit:?}");
    mend();
    job.finish().expect_outcome(&Outcome::Success);
    place.wait_until_idle(1);
}

/// The account's `authorized_keys` has another key: the host is up, and denies the login.
#[test]
fn a_denied_login_is_no_boot() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[Make::named("a")]);
    let host = &hosts.machines[0];
    let place = hosts.setting().open();
    host.sh("cp /mnt/authorized_keys /mnt/right; echo > /mnt/authorized_keys");
    let sentence = format!("a at {}:22 denies the login: it does not accept the key", host.address);
    each_place_says(&place, &sentence, || drop(host.sh("cp /mnt/right /mnt/authorized_keys")));
}

/// The account's profile takes 20 s, such as on a dead network file system: the login works, and no command runs.
#[test]
fn a_slow_shell_is_no_boot() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[Make { profile: "[ -e /mnt/fast ] || sleep 20\n", ..Make::named("a") }]);
    let host = &hosts.machines[0];
    let place = hosts.setting().timing("connect_timeout", "2s").open();
    let sentence = format!("a at {}:22 accepts the login, but runs no command within 2 s", host.address);
    each_place_says(&place, &sentence, || drop(host.sh("touch /mnt/fast")));
}

/// The server asks a dead directory service for keys: a login takes 20 s.
#[test]
fn a_slow_login_is_no_boot() {
    if !possible() {
        return;
    }
    let config = "AuthorizedKeysCommandUser root\nAuthorizedKeysCommand /usr/bin/sleep 20";
    let hosts = Hosts::boot(&[Make { config, ..Make::named("a") }]);
    let host = &hosts.machines[0];
    let place = hosts.setting().timing("connect_timeout", "2s").open();
    host.sh("cp /mnt/authorized_keys /mnt/right; echo > /mnt/authorized_keys");
    let sentence = format!("a at {}:22 does not complete the login within 2 s", host.address);
    each_place_says(&place, &sentence, || drop(host.sh("cp /mnt/right /mnt/authorized_keys")));
}

/// The host is switched off.
#[test]
fn a_host_that_is_gone_is_not_busy() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[Make::named("a")]);
    let host = &hosts.machines[0];
    let place = hosts.setting().timing("connect_timeout", "1s").open();
    place.run(&Job::new(7)).expect_outcome(&Outcome::Success);
    place.wait_until_idle(1);
    host.unplug();
    let sentence = format!("a does not respond at {}:22: no answer within 1 s", host.address);
    each_place_says(&place, &sentence, || host.plug_in());
}

/// A job does not wait half an hour for hosts that only an operator returns to service.
#[test]
fn a_job_without_any_host_fails_soon() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[Make::named("a")]);
    let place = hosts.setting().timing("no_host_timeout", "1s").open();
    place.run(&Job::new(7)).expect_outcome(&Outcome::Success);
    place.wait_until_idle(1);
    place.order(&["pool", "drain", "pool", "--instance", "a", "--wait"]);
    let result = place.run(&Job::new(8));
    result.expect_outcome(&Outcome::RunnerSystemFailure);
    let log = result.log_text();
    assert!(log.contains("the pool's only host is unusable: a is out of service"), "{log}");
    assert!(log.contains("the job waited for 1 s (`no_host_timeout`)"), "{log}");
    place.order(&["pool", "resume", "pool", "--instance", "a"]);
    place.run(&Job::new(9)).expect_outcome(&Outcome::Success);
    place.wait_until_idle(1);
    place.expect_sound();
}

/// Both hosts are out of service: one for maintenance, one because cleaning failed.
#[test]
fn hosts_that_are_out_of_service_are_not_busy() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[Make::named("a"), Make::named("b")]);
    let place = hosts.setting().open();
    place.run(&Job::new(7)).expect_outcome(&Outcome::Success);
    place.wait_until_idle(2);
    for host in ["a", "b"] {
        place.order(&["pool", "drain", "pool", "--instance", host, "--wait"]);
    }
    let sentence = "all 2 hosts of the pool are out of service: a is out of service: drained by the operator";
    each_place_says(&place, sentence, || drop(place.order(&["pool", "resume", "pool", "--instance", "a"])));
}
