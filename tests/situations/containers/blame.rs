//! Kind: blame comes from what Greenroom measured, never from what a job, an image or a registry wrote. On machines that serve
//! several jobs.

use greenroom_harness::place::Place;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::json;

use crate::engine::on_docker;
use crate::pool::{job, setting};
use crate::proxy::{Fault, Proxy};
use crate::site::{Site, site};

/// One machine, which would serve any number of jobs.
fn one_machine(site: &Site) -> Place {
    setting(site).pool("max_use_count", 0).pool("max_instances", 1).pool("idle_time", "1h").open()
}

/// All jobs so far ran on one machine, which runs another one now.
#[track_caller]
fn serves_on(place: &Place, id: u64) {
    let result = place.run(&job(id, "ash:1").script(["echo the script ran"]));
    result.expect_outcome(&Outcome::Success);
    let mut used: Vec<_> = place.grants().into_iter().map(|(_, instance)| instance).collect();
    used.dedup();
    assert_eq!(used.len(), 1, "{used:?}");
}

#[track_caller]
fn its_own_failure(place: &Place, job: &Job, said: &str) {
    let result = place.run(job);
    assert!(matches!(result.outcome, Outcome::ScriptFailure { .. }), "{}", result.describe());
    assert!(result.log_text().contains(said), "{}", result.log_text());
}

/// Entrypoints print what `sudo`, the engine or Greenroom would print, and exit.
#[test]
fn an_entrypoint_that_speaks_like_the_machine_drains_none() {
    let Some(site) = site() else { return };
    let place = one_machine(site);
    for (id, text, status) in [
        (1, "sudo: bad", 5),
        (2, "the container engine did not start the container within 60 s", 5),
        (3, "Error response from daemon: no such device", 1),
        (4, "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", 1),
        (5, "Error: no container with name or ID found: no such container", 125),
    ] {
        let says = json!(["/bin/sh", "-c", format!("echo '{text}' >&2; exit {status}")]);
        its_own_failure(
            &place,
            &job(id, "ash:1").image_option("entrypoint", says),
            "before a shell read the script",
        );
    }
    serves_on(&place, 6);
    place.expect_sound();
}

/// An entrypoint in a container of Docker that speaks like the machine.
#[test]
fn an_entrypoint_that_speaks_like_docker_drains_no_machine() {
    on_docker(an_entrypoint_that_speaks_like_the_machine_drains_none);
}

/// A service with a typo in its entrypoint: the job goes on with a warning, as with GitLab's Docker executor.
#[test]
fn a_service_with_a_typo_is_a_warning() {
    let Some(site) = site() else { return };
    let place = one_machine(site);
    let typo = json!({"name": crate::pool::plain("ash:1"), "alias": "db", "entrypoint": ["/opt/database"]});
    let result = place.run(&job(1, "ash:1").service(typo).script(["echo the script ran"]));
    result.expect_outcome(&Outcome::Success);
    assert!(result.log_text().contains("/opt/database"), "{}", result.log_text());
    serves_on(&place, 2);
    place.expect_sound();
}

/// A service in a container of Docker with a typo in its entrypoint: a warning there, too.
#[test]
fn a_service_with_a_typo_is_a_warning_with_docker() {
    on_docker(a_service_with_a_typo_is_a_warning);
}

/// A registry answers 403, and its message is that of a full disk, or of a registry that would be of use later.
#[test]
fn a_registry_that_denies_with_other_words_drains_no_machine_and_fails_its_job() {
    let Some(site) = site() else { return };
    let place = one_machine(site);
    for (id, status) in [(1, "403 no space left on device"), (2, "403 toomanyrequests")] {
        let proxy = Proxy::new(site, Fault::Status(status, u32::MAX));
        let denied = Job::new(id).image(&format!("{}/database-overlay-netavark:1", proxy.registry));
        its_own_failure(&place, &denied, "denies access");
    }
    serves_on(&place, 3);
    place.expect_sound();
}

/// An engine breaks under a machine that serves on: the keeper's check replaces the machine.
#[test]
fn a_machine_whose_engine_is_broken_is_replaced_after_the_keepers_check() {
    use greenroom_core::event::Change;
    use greenroom_core::instance::DrainReason;
    let Some(site) = site() else { return };
    let place = one_machine(site);
    let attempt = place.prepared_as(&job(1, "ash:1"));
    let broken = crate::inside::Inside::of(&place, &attempt)
        .sh("printf '#!/bin/sh\\nexit 9\\n' >/usr/local/bin/crun; chmod 755 /usr/local/bin/crun; mount --bind /usr/local/bin/crun \
             \"$(PATH=/usr/bin:/usr/sbin command -v crun)\"; echo done");
    assert!(broken.contains("done"), "{broken}");
    let run = attempt.run_stage("build_script");
    assert_eq!(run.exit_code(), Some(2), "{}", run.stderr_text());
    assert!(
        run.stderr_text().contains("until the keeper has started a container there"),
        "{}",
        run.stderr_text()
    );
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
    greenroom_harness::processes::wait_for("the machine to be replaced", place.setting.patience, || {
        let drained = |event: &greenroom_core::event::Event| {
            matches!(
                &event.change,
                Change::DrainingBegun { reason: DrainReason::FailedCheck { message }, .. }
                    if message.contains("`podman run` failed")
            )
        };
        place.events().iter().any(drained).then_some(())
    });
    place.run(&job(2, "ash:1")).expect_outcome(&Outcome::Success);
    place.expect_sound();
}
