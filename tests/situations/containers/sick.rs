//! Kind: a sick machine does not attract all jobs. Jobs of two projects get no image there, while others pass elsewhere.

use greenroom_core::event::Change;
use greenroom_core::instance::DrainReason;
use greenroom_harness::place::SOON;
use greenroom_harness::processes::wait_for;
use greenroom_testkit::gitlab_runner::record::Outcome;

use crate::inside::Inside;
use crate::pool::{job, setting};
use crate::site::site;

/// A machine has lost its name service, and the keeper's check finds nothing: the next jobs go elsewhere.
#[test]
fn a_machine_that_reaches_no_registry_is_used_last_and_then_replaced() {
    let Some(site) = site() else { return };
    let several = setting(site).pool("max_use_count", 0).pool("max_instances", 2).pool("idle_count", 2);
    let place = several.pool("reuse", "any").open();
    place.warm_up(2);
    let attempt = place.prepared_as(&job(1, "ash:1").project(1, "g/one"));
    let sick = place.instance_of(&attempt);
    let lost = Inside::of(&place, &attempt).sh("mount --bind /dev/null /etc/hosts && echo done");
    assert!(lost.contains("done"), "{lost}");
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    for (id, project) in [(2, "g/two"), (3, "g/three")] {
        wait_for("the check between jobs", SOON, || place.idle().contains(&sick).then_some(()));
        let result = place.run(&job(id, "bash:1").project(id, project));
        assert!(matches!(result.outcome, Outcome::RunnerSystemFailure), "{}", result.describe());
        assert!(result.log_text().contains("cannot reach registry"), "{}", result.log_text());
        let is_second = result.log_text().contains("failed at their start on instance");
        assert_eq!(is_second, id == 3, "{}", result.log_text());
    }
    place.run(&job(4, "ash:1").project(4, "g/four")).expect_outcome(&Outcome::Success);
    let served = place.grants().into_iter().rfind(|(job, _)| *job == 4).expect("job 4 had a machine").1;
    assert_ne!(served, sick, "an idle machine without such failures comes first");
    wait_for("the machine to be replaced", place.setting.patience, || {
        place.events().into_iter().any(|event| {
            matches!(event.change, Change::DrainingBegun { instance, reason: DrainReason::FailsEarly { message } }
                if instance == sick && message.contains("cannot reach registry"))
        }).then_some(())
    });
    place.wait_until_settled(2);
    place.expect_sound();
}
