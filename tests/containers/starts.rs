//! Containers that do not start: the engine is at fault, or only slow is what the author wrote.

use std::time::Duration;

use greenroom_testkit::gitlab_runner::record::Outcome;

use crate::engine::engine;
use crate::inside::Inside;
use crate::pool::{job, setting};
use crate::site::site;

/// Replaces the engine of a machine by one that hangs, with a process of its own that holds its output.
const HUNG: &str = "printf '#!/bin/sh\\nsleep 1000 &\\nwait\\n' >/usr/local/bin/ENGINE; chmod 755 /usr/local/bin/ENGINE; \
                    ls /usr/local/bin";

#[test]
pub fn an_engine_that_hangs_is_a_system_failure_within_its_limit() {
    let Some(site) = site() else { return };
    // The second image's container starts ahead, while the runner's own stages run.
    for image in ["exec:1", "bash:1"] {
        // Without the fault, the instance would serve another job.
        let setting = setting(site).pool("max_use_count", 5).pool("idle_time", "1h");
        let place = setting.timing("container_start_timeout", "3s").open();
        let attempt = place.prepared_as(&job(1, image));
        let engine = engine().program();
        assert!(Inside::of(&place, &attempt).sh(&HUNG.replace("ENGINE", engine)).contains(engine));
        assert_eq!(attempt.run_stage("get_sources").exit_code(), Some(0));
        let run = attempt.run_stage("build_script");
        let said = run.stderr_text();
        assert_eq!(run.exit_code(), Some(2), "{image}: {said}");
        assert!(
            said.contains("; it gets no more jobs until the keeper has started a container there"),
            "{said}"
        );
        assert!(run.took().is_some_and(|took| took < Duration::from_secs(30)), "{:?}", run.took());
        assert_eq!(attempt.cleanup().exit_code(), Some(0));
        place.wait_until_settled(0);
    }
}

#[test]
pub fn an_entrypoint_that_takes_longer_than_the_limit_is_waited_for() {
    let Some(site) = site() else { return };
    let place = setting(site).timing("container_start_timeout", "2s").open();
    let slow = serde_json::json!(["/bin/sh", "-c", "sleep 6; exec \"$@\"", "entry"]);
    let result = place.run(&job(1, "ash:1").image_option("entrypoint", slow).script(["echo the script ran"]));
    result.expect_outcome(&Outcome::Success);
    assert!(result.log_text().contains("\nthe script ran\n"), "{}", result.describe());
    place.expect_sound();
}
