//! Kind: blame comes from what Greenroom measured, never from what a job, an image or a registry wrote. In the history.

use greenroom_core::event::Change;
use greenroom_core::job_end::JobResult;
use greenroom_harness::place::Place;
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;

/// The recorded ends of the jobs, in their order.
fn ends(place: &Place) -> Vec<(JobResult, Option<String>)> {
    let end = |event: greenroom_core::event::Event| match event.change {
        Change::JobEnded { end, .. } => Some((end.result, end.reason.map(|reason| reason.to_string()))),
        _ => None,
    };
    place.events().into_iter().filter_map(end).collect()
}

/// A job claims `success` by a variable, and its instance is lost: the history shows what Greenroom saw.
#[test]
fn a_job_cannot_claim_its_result() {
    let place = Setting::new().open();
    for (id, claim) in (1..).zip(["success", "canceled", "running"]) {
        let attempt = place.prepared_as(&Job::new(id).variable("CI_JOB_STATUS", claim));
        let server = place.server(&place.instance_of(&attempt)).expect("the instance runs");
        assert_eq!(attempt.run("get_sources", "true\n").exit_code(), Some(0));
        server.kill9();
        let run = attempt.run("build_script", "true\n");
        assert_eq!(run.exit_code(), Some(2), "{}", run.stderr_text());
        assert_eq!(attempt.cleanup().exit_code(), Some(0));
        attempt.remove_tmpdir();
        let (result, reason) = ends(&place).pop().expect("the job has ended");
        assert_eq!(result, JobResult::SystemFailed, "{claim}");
        assert!(reason.is_some_and(|reason| reason.contains("instance ")), "{claim}");
    }
    let history = place.order(&["history"]);
    assert!(!history.contains("passed"), "{history}");
    place.expect_sound();
}

/// GitLab Runner repeats a stage of its own, which then succeeds: that is no failure.
#[test]
fn a_stage_that_is_repeated_and_succeeds_leaves_no_failure() {
    let place = Setting::new().open();
    // The status that the runner reports after a whole job.
    let attempt = place.prepared_as(&Job::new(1).variable("CI_JOB_STATUS", "success"));
    assert_eq!(attempt.run("get_sources", "exit 3\n").exit_code(), Some(1));
    assert_eq!(attempt.run("get_sources", "true\n").exit_code(), Some(0));
    assert_eq!(attempt.run("build_script", "true\n").exit_code(), Some(0));
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    assert_eq!(ends(&place), [(JobResult::Passed, None)]);
    place.expect_sound();
}
