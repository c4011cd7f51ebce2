//! A host that returns, or gets another name, stays with its trust domain and is cleaned first. So is a new one.

use greenroom_core::instance::Phase;
use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::wait_for;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

use crate::machine::{Hosts, Make, possible};

/// A job of a project.
fn of(project: &str, id: u64) -> Job {
    Job::new(id).project(project.bytes().map(u64::from).sum(), project)
}

/// Waits until the pool's only host is this one, and idle.
fn wait_for_host(place: &Place, name: &str) {
    wait_for("the only host", SOON, || {
        place.order(&["reap"]);
        let state = place.state();
        let is_ready = state.instances.values().any(|i| i.id.as_str() == name && i.phase == Phase::Ready);
        (state.instances.len() == 1 && is_ready).then_some(())
    });
}

/// A job of the first domain has left something: another domain's is refused, and its own finds the host cleaned.
fn expect_bound(place: &Place, name: &str, ids: [u64; 2]) {
    let refused = place.run(&of("g/blue", ids[0]));
    refused.expect_outcome(&Outcome::RunnerSystemFailure);
    let sentence = format!("{name}, the pool's only host, is bound to another trust domain");
    assert!(refused.log_text().contains(&sentence), "{}", refused.describe());
    wait_for_host(place, name);
    let own = place.run(&of("g/red", ids[1]).script(["[ ! -e /tmp/late ]", "cat /home/ci/cache/of-red"]));
    own.expect_outcome(&Outcome::Success);
    wait_for_host(place, name);
}

#[test]
fn a_host_under_another_name_or_back_in_the_configuration_is_no_new_host() {
    if !possible() {
        return;
    }
    let mut hosts = Hosts::boot(&[Make::named("a"), Make::named("b")]);
    let config = |hosts: &Hosts, host: usize| {
        let only = vec![hosts.machines[host].table().into()];
        hosts.setting_of(only).pool("clean_unbinds", false).provider("dedicated_user", true)
    };
    let place = config(&hosts, 0).open();
    let leave = "mkdir -p /home/ci/cache; touch /home/ci/cache/of-red";
    place.run(&of("g/red", 1).script([leave])).expect_outcome(&Outcome::Success);
    wait_for_host(&place, "a");
    // What somebody has left since then goes, too, before the next job.
    hosts.machines[0].sh("su ci -s /bin/sh -c 'touch /tmp/late'");
    hosts.machines[0].name = "z".to_owned();
    place.write_config(&config(&hosts, 0).text(&place.state_dir));
    wait_for_host(&place, "z");
    expect_bound(&place, "z", [2, 3]);
    // Another host takes its place, and serves whom the first one refused.
    place.write_config(&config(&hosts, 1).text(&place.state_dir));
    wait_for_host(&place, "b");
    place.run(&of("g/blue", 4)).expect_outcome(&Outcome::Success);
    hosts.machines[0].sh("su ci -s /bin/sh -c 'touch /tmp/late'");
    place.write_config(&config(&hosts, 0).text(&place.state_dir));
    wait_for_host(&place, "z");
    expect_bound(&place, "z", [5, 6]);
    place.expect_sound();
}

#[test]
fn a_new_state_directory_cleans_a_host_before_its_first_job() {
    if !possible() {
        return;
    }
    let hosts = Hosts::boot(&[Make::named("a")]);
    // As a job of another state directory leaves it whose keeper cleans no more.
    let left = "mkdir /home/ci/cache; touch /home/ci/cache/left /tmp/left; setsid sleep 900 >/dev/null 2>&1 </dev/null &";
    hosts.machines[0].sh(&format!("su ci -s /bin/sh -c '{left}'"));
    assert_eq!(hosts.machines[0].sh("pgrep -x sleep | wc -l").trim(), "1");
    let place = hosts.setting().pool("clean_unbinds", false).provider("dedicated_user", true).open();
    let finds_nothing = ["[ ! -e /tmp/left ]", "[ ! -e /home/ci/cache/left ]", "! pgrep -x sleep"];
    place.run(&of("g/red", 1).script(finds_nothing)).expect_outcome(&Outcome::Success);
    let explained = place.order(&["explain", "a"]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(explained.contains("a adopted, a static host at"), "{explained}");
    place.expect_sound();
}
