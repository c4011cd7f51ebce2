//! A configuration that changes under a running keeper.

use greenroom_harness::place::{Place, SOON, Service};
use greenroom_harness::processes::{Kind, Process, wait_for};
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

/// The configuration with a second pool, whose provider's table contains this.
pub(super) fn with_another(place: &Place, more: &str) {
    let text = place.setting.text(&place.state_dir);
    let is_root = rustix::process::getuid().is_root();
    let table = format!("kind = \"local\"\nallow_root = {is_root}\n{more}");
    let more = format!("\n[pool.other]\nmax_instances = 1\nidle_count = 1\n[pool.other.provider]\n{table}\n");
    place.write_config(&format!("default_pool = \"pool\"\n{text}{more}"));
}

/// A pool with its idle instance and the running keeper.
fn kept() -> (Place, Service, Vec<Process>) {
    let place = Setting::new().pool("idle_count", 1).open();
    let service = place.keep();
    place.wait_until_idle(1);
    let keeper = place.of_kind(Kind::Keeper);
    (place, service, keeper)
}

#[test]
fn a_pool_that_is_new_is_kept_by_the_keeper_that_runs() {
    let (place, _service, keeper) = kept();
    with_another(&place, "");
    wait_for("an instance of the new pool", SOON, || {
        place.order(&["pool", "status", "other"]).contains("phases: 1 ready").then_some(())
    });
    assert_eq!(place.of_kind(Kind::Keeper), keeper, "the same process");
    place.run(&Job::new(1)).expect_outcome(&Outcome::Success);
}

#[test]
fn a_new_pool_with_a_mistake_leaves_the_others_alone() {
    let (place, _service, keeper) = kept();
    with_another(&place, "boot_dealy = \"1s\"");
    let another = place.setting.clone().pool("idle_count", 2);
    place.run(&Job::new(1)).expect_outcome(&Outcome::Success);
    place.write_config(&another.text(&place.state_dir));
    place.wait_until_idle(2);
    assert_eq!(place.of_kind(Kind::Keeper), keeper);
}

/// No job and no call comes: the keeper itself notices.
#[test]
fn what_changes_takes_effect_while_nothing_happens() {
    let place = Setting::new().pool("max_instances", 3).open();
    let _service = place.keep();
    wait_for("the first pass", SOON, || {
        place.order(&["pool", "status"]).contains("policy: the default").then_some(())
    });
    place.write_config(&place.setting.clone().pool("idle_count", 2).text(&place.state_dir));
    place.wait_until_idle(2);
}
