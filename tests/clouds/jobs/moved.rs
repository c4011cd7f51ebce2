//! A pool that moves to a cloud while a keeper without the cloud's calls runs.

use greenroom_harness::place::SOON;
use greenroom_harness::processes::{Kind, wait_for};
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

use crate::cloud::{Buy, Cloud};
use crate::site::{Site, pool};

on_both_clouds![a_pool_that_moves_to_a_cloud_needs_no_new_keeper];

fn a_pool_that_moves_to_a_cloud_needs_no_new_keeper(cloud: Cloud) {
    let site = Site::open(cloud, pool(), Buy::OnDemand);
    let in_cloud = site.setting.text(&site.state_dir);
    site.write_config(&Setting::new().text(&site.state_dir));
    let mut service = site.keep();
    let keeps = || site.order(&["pool", "status"]).contains("keeper: running");
    wait_for("a keeper", SOON, || keeps().then_some(()));
    site.write_config(&in_cloud);
    let program = format!("/proc/{}/exe", site.of_kind(Kind::Keeper)[0].pid);
    let has_calls = || std::fs::read_link(&program).is_ok_and(|path| path.ends_with("greenroom-backends"));
    // A job during the exec would start a keeper of its own.
    wait_for("the other program", SOON, || (has_calls() && keeps()).then_some(()));
    site.run(&Job::new(1)).expect_outcome(&Outcome::Success);
    assert_eq!(site.calls(cloud.launch()), 1);
    assert!(service.ended().is_none(), "the same process");
    site.expect_nothing_left(0);
    service.kill();
}
