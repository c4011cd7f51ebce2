//! The operator's work with hosts: pins their keys, has them examined, takes one out for maintenance.

use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::wait_for;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use rustix::process::Signal;
use toml::Value;

use crate::machine::{Hosts, Machine, Make, possible};

/// The output of `doctor`, without its line breaks; whatever its exit status.
fn doctor(place: &Place, arguments: &[&str]) -> String {
    let output = place.greenroom(&[&["doctor"], arguments].concat());
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).split_whitespace().collect::<Vec<_>>().join(" ")
}

fn unpinned(hosts: &Hosts) -> Vec<Value> {
    let without_key = |machine: &Machine| {
        let mut table = machine.table();
        table.remove("host_key");
        Value::Table(table)
    };
    hosts.machines.iter().map(without_key).collect()
}

#[test]
fn a_host_gets_jobs_once_its_key_is_pinned_and_another_key_is_not_pinned_by_the_way() {
    if !possible() {
        return;
    }
    let mut hosts = Hosts::boot(&[Make::named("a")]);
    let place = hosts.setting_of(unpinned(&hosts)).open();
    let handle = place.runner().start(&Job::new(1));
    let status = || place.order(&["pool", "status"]).split_whitespace().collect::<Vec<_>>().join(" ");
    let asks = "its host key is unknown: pin it with `greenroom doctor --pin a --pool pool`";
    wait_for("the command that helps", SOON, || status().contains(asks).then_some(()));
    assert!(doctor(&place, &[]).contains("[static-unpinned]"));
    let said = doctor(&place, &["--pin", "a"]);
    assert!(said.contains("SHA256:") && said.contains("cannot ask for confirmation"), "{said}");
    let said = doctor(&place, &["--pin", "a", "--yes"]);
    let compare = "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub";
    assert!(said.contains(compare) && said.contains("Pinned: `a` is used"), "{said}");
    handle.finish().expect_outcome(&Outcome::Success);
    hosts.machines[0].change_host_key();
    let said = doctor(&place, &["--pin", "a"]);
    assert!(said.contains("A different key is pinned: SHA256:") && said.contains("--yes"), "{said}");
    assert!(doctor(&place, &[]).contains("[host-key-changed]"));
    let said = doctor(&place, &["--pin", "a", "--yes"]);
    assert!(said.contains("Pinned: `a` is used"), "{said}");
    place.run(&Job::new(2)).expect_outcome(&Outcome::Success);
    let said = doctor(&place, &["--pin", "b"]);
    assert_eq!(said, "error: no pool has a host `b` help: name one of `a`");
    place.expect_sound();
}

#[test]
fn doctor_finds_what_each_host_lacks() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[
        Make { profile: "sleep 2\n", ..Make::named("slow") },
        Make { config: "MaxSessions 1", ..Make::named("narrow") },
        Make { config: "ForceCommand /usr/sbin/nologin", ..Make::named("closed") },
        Make::named("bare"),
        Make { disk: 64, ..Make::named("small") },
        Make::named("gone"),
    ]);
    for machine in &hosts.machines {
        match machine.name.as_str() {
            "gone" => machine.unplug(),
            // Neither way to find the processes of a stage; one file has both names.
            "bare" => drop(machine.sh("mount --bind /dev/null /usr/bin/pgrep; mount -t tmpfs none /proc")),
            _ => {}
        }
    }
    let place = hosts.setting().open();
    let said = doctor(&place, &[]);
    for finding in [
        "[host-shell-slow]: host `slow` of pool `pool` takes 2",
        "note [host-sessions]: host `narrow` of pool `pool` allows 1 session",
        "[host-login-shell]: host `closed` of pool `pool`: the login shell of `ci` does not run `/bin/sh`: \
         This account is currently not available.",
        "[host-processes]: host `bare` of pool `pool` has neither `/proc` nor a `pkill`",
        "[host-space]: host `small` of pool `pool` has 6",
        "[host-unreachable]: host `gone` of pool `pool`: ",
        "[host-runner-missing]: host `small` of pool `pool` has no `gitlab-runner`",
    ] {
        assert!(said.contains(finding), "{finding}:\n{said}");
    }
    assert_eq!(said.matches("[host-processes]").count(), 1, "{said}");
    assert!(!said.contains("[host-builds-dir]") && !said.contains("[host-shell-missing]"), "{said}");
}

#[test]
fn a_host_that_is_drained_finishes_its_job_and_stays_out_until_it_is_resumed() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[Make::named("a")]);
    let place = hosts.setting().open();
    let job = Job::new(1).script(["while [ ! -e /tmp/go ]; do sleep 0.05; done"]);
    let handle = place.runner().start(&job);
    handle.wait_for_stage("build_script");
    let said = place.order(&["pool", "drain", "--instance", "a"]);
    assert!(said.contains("`greenroom pool resume --instance a` returns it to service"), "{said}");
    let next = place.runner().start(&Job::new(2));
    hosts.machines[0].sh("touch /tmp/go");
    handle.finish().expect_outcome(&Outcome::Success);
    place.order(&["pool", "drain", "--instance", "a", "--wait"]);
    wait_for("the second job", SOON, || (place.state().waiting.len() == 1).then_some(()));
    place.reap();
    let state = place.state();
    assert!(state.instances.values().all(|i| i.phase.word() == "out of service"), "{state:#?}");
    assert_eq!(state.waiting.len(), 1, "nobody gets it");
    place.order(&["pool", "resume", "--instance", "a"]);
    next.finish().expect_outcome(&Outcome::Success);
    place.expect_sound();
}

#[test]
fn a_host_with_one_session_in_a_connection_serves_whole_jobs_and_stops_their_stages() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[Make { config: "MaxSessions 1", ..Make::named("narrow") }]);
    let place = hosts.setting().open();
    for id in 1..=3 {
        place.run(&Job::new(id)).expect_outcome(&Outcome::Success);
    }
    let attempt = place.prepared(4);
    let stage = attempt.start_run("build_script", "echo begun; sleep 600 & sleep 600\n");
    stage.wait_for_output("begun", SOON);
    stage.signal_group(Signal::TERM);
    stage.wait(SOON);
    let left = hosts.machines[0].sh("pgrep -x sleep -u 4711");
    assert_eq!(left, "", "the stage is stopped, all of it");
    assert_eq!(attempt.run("after_script", "true\n").exit_code(), Some(0));
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    place.expect_sound();
}
