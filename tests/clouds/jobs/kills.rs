//! Kill -9 of the keeper, at seeded moments.

use std::time::Duration;

use greenroom_harness::onslaught::Onslaught;
use greenroom_harness::processes::Kind;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

use crate::cloud::{Buy, Cloud};
use crate::site::{Site, pool};

on_both_clouds![a_keeper_killed_at_any_moment_leaks_nothing_and_loses_no_job];

fn a_keeper_killed_at_any_moment_leaks_nothing_and_loses_no_job(cloud: Cloud) {
    let site = Site::open(cloud, pool().pool("max_instances", 3).pool("idle_count", 1), Buy::OnDemand);
    let onslaught = Onslaught {
        test: "--features all-backends --test clouds kills",
        kills: 12,
        kinds: &[Kind::Keeper],
        script: "for i in 1 2 3; do sleep 0.05; done",
        blows: 3,
        pause: 0..400,
        patience: Duration::from_secs(10),
    };
    let last = onslaught.on(&site);
    site.reap();
    site.run(&Job::new(last + 1).script(["true"])).expect_outcome(&Outcome::Success);
    site.expect_nothing_left(1);
}
