//! Kind: a sick machine does not attract all jobs. Jobs of two projects fail on it before their own scripts begin, while
//! others pass elsewhere, and the keeper finds nothing wrong.

use greenroom_core::event::Change;
use greenroom_core::ids::InstanceId;
use greenroom_core::instance::DrainReason;
use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::wait_for;
use greenroom_harness::setting::Setting;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

/// Two idle machines, which any project may use any number of times.
fn place() -> Place {
    Setting::new()
        .pool("reuse", "any")
        .pool("max_use_count", 0)
        .pool("max_instances", 2)
        .pool("idle_count", 2)
        .open()
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Fetching the sources of a job fails at once. Returns its machine, and what the job log has besides.
#[track_caller]
fn fails_early(place: &Place, id: u64, project: &str) -> (InstanceId, String) {
    let attempt = place.prepared_as(&Job::new(id).project(id, project));
    let instance = place.instance_of(&attempt);
    let run = attempt.run("get_sources", "echo 'fatal: unable to access' >&2; exit 128\n");
    assert_eq!(run.exit_code(), Some(1), "it stays the job's own failure: {}", run.stderr_text());
    let log = words(&format!("{} {}", run.stdout_text(), run.stderr_text()));
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    attempt.remove_tmpdir();
    let is_free = || place.idle().contains(&instance).then_some(());
    wait_for("the check between jobs", SOON, is_free);
    (instance, log)
}

#[test]
fn a_machine_on_which_jobs_of_two_projects_fail_early_is_used_last_and_then_replaced() {
    let place = place();
    place.warm_up(2);
    let (sick, log) = fails_early(&place, 1, "g/one");
    assert!(!log.contains("two projects"), "{log}");
    assert_eq!(fails_early(&place, 2, "g/one").0, sick, "it was used last, so it comes first");
    let (again, log) = fails_early(&place, 3, "g/two");
    assert_eq!(again, sick);
    let line =
        format!("jobs of two projects failed at their start on instance {sick}: other jobs get it last");
    assert!(log.contains(&line), "{log}");
    let status = words(&place.order(&["pool", "status"]));
    let why =
        "used last, because jobs of two projects failed on it at their start: `get_sources` failed after";
    assert!(status.contains(why), "{status}");
    assert_eq!(drained(&place, &sick), None, "no job has passed elsewhere: the cause may be GitLab's server");

    let passes = Job::new(4).project(4, "g/three").script(["true"]);
    place.run(&passes).expect_outcome(&Outcome::Success);
    let served = place.grants().into_iter().rfind(|(job, _)| *job == 4).expect("job 4 had a machine").1;
    assert_ne!(served, sick, "an idle machine without such failures comes first");
    let reason = wait_for("the machine to be replaced", SOON, || drained(&place, &sick));
    assert!(
        reason.starts_with("`get_sources` failed after") && reason.ends_with("exit status 128"),
        "{reason}"
    );
    let said = "jobs of two projects failed on it at their start, and others pass elsewhere";
    let explained = words(&place.order(&["explain", sick.as_str()]));
    assert!(explained.contains(said), "{explained}");
    place.wait_until_settled(2);
    place.expect_sound();
}

fn drained(place: &Place, id: &InstanceId) -> Option<String> {
    place.events().into_iter().find_map(|event| match event.change {
        Change::DrainingBegun { instance, reason: DrainReason::FailsEarly { message } }
            if instance == *id =>
        {
            Some(message)
        }
        _ => None,
    })
}

/// A job that passes acquits the machine; one project alone never convicts it.
#[test]
fn a_job_that_passes_ends_the_row() {
    let place = place();
    place.warm_up(2);
    let (first, _) = fails_early(&place, 1, "g/one");
    let passes = Job::new(2).project(2, "g/two").script(["true"]);
    place.run(&passes).expect_outcome(&Outcome::Success);
    wait_for("the check between jobs", SOON, || (place.idle().len() == 2).then_some(()));
    let (again, log) = fails_early(&place, 3, "g/three");
    assert_eq!(again, first);
    assert!(!log.contains("two projects"), "{log}");
    assert_eq!(drained(&place, &first), None);
    place.expect_sound();
}
