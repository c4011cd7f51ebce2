//! A job is recorded as GitLab states it, whatever the pipeline's own variables contain.

use greenroom_core::event::Change;
use greenroom_core::job::JobFacts;
use greenroom_harness::place::Place;
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use serde_json::Value;

/// A job whose pipeline overrides everything that is recorded.
fn job(id: u64, protected: Option<bool>) -> Job {
    let mut job = Job::new(id);
    (job.name, job.stage, job.git_ref) = ("rspec 1/5".into(), "test".into(), "feature/x".into());
    job.protected = protected;
    job.variable("CI_PIPELINE_ID", "1")
        .variable("CI_JOB_NAME", "deploy")
        .variable("CI_JOB_STAGE", "production")
        .variable("CI_COMMIT_REF_NAME", "main")
        .variable("CI_COMMIT_REF_PROTECTED", "true")
}

/// The facts of a job in the journal's request.
#[track_caller]
fn recorded(place: &Place, id: u64) -> JobFacts {
    let events = place.events();
    let facts = events.iter().find_map(|event| match &event.change {
        Change::Requested { job, .. } if job.key.id == id => Some(job.clone()),
        _ => None,
    });
    facts.expect("its request")
}

#[test]
fn name_stage_pipeline_and_ref_are_recorded_and_explained() {
    let place = Setting::new().pool("max_instances", 2).open();
    for (id, protected, says) in [(1, None, "not protected"), (2, Some(true), "protected")] {
        let attempt = place.prepared_as(&job(id, protected));
        let facts = recorded(&place, id);
        assert_eq!((facts.name.as_deref(), facts.stage.as_deref()), (Some("rspec 1/5"), Some("test")));
        assert_eq!((facts.pipeline, facts.git_ref.as_deref()), (Some(id), Some("feature/x")));
        assert_eq!(facts.protected, protected == Some(true));
        let state = place.state();
        let granted: Vec<&JobFacts> = state.granted.values().map(|grant| &grant.reservation.job).collect();
        assert_eq!(granted, [&facts]);
        let name = attempt.tmpdir.file_name().expect("a name");
        let file = place.state_dir.join("attempts").join(name).join("job");
        let file: Value = serde_json::from_slice(&std::fs::read(file).expect("its file")).expect("JSON");
        assert_eq!(file["record"]["job"], serde_json::to_value(&facts).expect("JSON"));
        let explained = place.order(&["explain", &id.to_string()]);
        let line = format!("job name `rspec 1/5`, stage `test`, pipeline {id}, ref `feature/x` ({says})");
        let flat = explained.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(&line), "{explained}");
        assert_eq!(attempt.run("build_script", "true\n").exit_code(), Some(0));
        assert_eq!(attempt.cleanup().exit_code(), Some(0));
        attempt.remove_tmpdir();
    }
    place.wait_until_settled(0);
    place.expect_sound();
}
