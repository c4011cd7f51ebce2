//! Kind: the operator has mended what a provider refused. What waits for it goes on at once, not when a pause ends.

#![cfg(test)]

use std::time::Duration;

use greenroom_harness::processes::wait_for;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;

use crate::jobs::Site;
use crate::platform::Platform;

/// A keeper whose plugin refuses its configuration, which a plugin is asked about again after ten minutes.
fn refused(run: impl FnOnce(&Site)) {
    let site = Site::made(Platform::new(), [0, 0], &[], &[], &[("launch_timeout", "10m")]);
    site.platform.fault("init-error", "unmarshaling config: json: cannot unmarshal the file of credentials");
    let keeper = site.keep();
    let running = site.runner().start(&Job::new(1).script(["true"]));
    wait_for("the refusal", Duration::from_mins(1), || {
        site.told(&["pool", "status"]).contains("it is started again in").then_some(())
    });
    site.repair("init-error");
    run(&site);
    running.finish().expect_outcome(&Outcome::Success);
    keeper.kill();
}

/// *"The credentials in the plugin's file were wrong. We corrected them, ran `pool resume`, and waited for ten minutes."*
#[test]
fn after_pool_resume_a_refused_plugin_is_started_at_once() {
    refused(|site| {
        site.order(&["pool", "resume"]);
    });
}

/// *"We changed a key of the pool's provider, which made the keeper read everything again, but not the plugin."*
#[test]
fn after_a_change_of_the_configuration_a_refused_plugin_is_started_at_once() {
    refused(|site| {
        let text = site.setting.text(&site.state_dir);
        let changed = text.replace("launch_timeout = \"10m\"", "launch_timeout = \"9m\"");
        assert_ne!(text, changed);
        site.write_config(&changed);
    });
}
