//! Kind: a plugin that makes a key of its own at each start is killed. Jobs get a machine soon, and operators read the keys.

#![cfg(test)]

use std::time::Duration;

use greenroom_harness::processes::{Kind, wait_for};
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use greenroom_testkit::skipped::skipped;
use toml::Value;

use crate::jobs::Site;
use crate::platform::Platform;

/// A plugin that makes its own keys. A machine that denies every login would be replaced after ten minutes only.
fn site(keys: &[(&str, Value)]) -> Option<Site> {
    if !std::path::Path::new("/usr/sbin/sshd").exists() {
        skipped("`sshd` is missing");
        return None;
    }
    let platform = Platform::new();
    platform.fault("init-own-key", "");
    Some(Site::made(platform, [0, 0], keys, &[], &[("launch_timeout", "10m")]))
}

/// Runs a job, and kills the plugin after the machine was made and before any call has shown its key. Returns the job log.
fn job_through_a_kill(site: &Site, id: u64) -> String {
    site.platform.fault("connect-info-error", "no address yet");
    let before = site.platform.made().len();
    let running = site.runner().start(&Job::new(id).script(["true"]));
    wait_for("the machine of the job", Duration::from_mins(1), || {
        (site.platform.made().len() > before).then_some(())
    });
    for plugin in site.of_kind(Kind::Plugin) {
        plugin.kill9();
    }
    site.repair("connect-info-error");
    let result = running.finish();
    result.expect_outcome(&Outcome::Success);
    result.call("prepare").stderr_text() + &result.call("prepare").stdout_text()
}

/// The pool is new, so nothing is known of its plugin: the key of the first start is lost with it.
#[test]
fn a_machine_whose_key_is_lost_is_replaced_soon_and_the_job_log_names_the_key() {
    let Some(site) = site(&[]) else { return };
    let log = job_through_a_kill(&site, 1);
    assert!(log.contains("denies the login: it does not accept the key SHA256:"), "{log}");
    assert!(log.contains("no longer has that key since it started again"), "{log}");
    assert_eq!(site.platform.made().len(), 2, "one machine in the place of the other");
    // From now on, the plugin has the pool's key.
    job_through_a_kill(&site, 2);
    assert_eq!(site.platform.made().len(), 3);
}

/// The plugin has shown a key of its own before: it has the pool's key since, without a word of the operator's.
#[test]
fn a_pool_starts_such_a_plugin_with_the_pools_key_by_default() {
    let Some(site) = site(&[]) else { return };
    site.expect_a_job();
    let log = job_through_a_kill(&site, 2);
    assert!(!log.contains("denies the login"), "{log}");
    assert_eq!(site.platform.made().len(), 2, "no machine was replaced");
    let told = site.told(&["pool", "status"]);
    assert!(!told.contains("for logins instead of the pool's"), "{told}");
    let found = site.told(&["doctor"]);
    assert!(
        found.contains("note [fleeting-own-key]") && found.contains("has given the key SHA256:"),
        "{found}"
    );
}

/// `static_credentials = false`: the operator's word counts, and both keys are named.
#[test]
fn an_operator_who_forbids_static_credentials_reads_both_keys() {
    let Some(site) = site(&[("static_credentials", false.into())]) else { return };
    site.run(&Job::new(1).script(["true"])).expect_outcome(&Outcome::Success);
    for (command, more) in
        [(["pool", "status"].as_slice(), "allows that"), (&["doctor"], "warning [fleeting-own-key]")]
    {
        let told = site.told(command);
        let keys = told.matches("SHA256:").count();
        assert!(told.contains("for logins instead of the pool's, SHA256:") && keys >= 2, "{told}");
        assert!(told.contains(more), "{told}");
    }
    let json = site.told(&["pool", "status", "--json"]);
    assert!(json.contains("own-key"), "{json}");
}

/// The plugin refuses static credentials: jobs run nevertheless, and the reason is the plugin's own.
#[test]
fn a_plugin_that_refuses_static_credentials_starts_without_them() {
    let Some(site) = site(&[]) else { return };
    site.platform.fault("init-no-static", "static credentials are not supported");
    for id in [1, 2] {
        site.run(&Job::new(id).script(["true"])).expect_outcome(&Outcome::Success);
    }
    wait_for("the plugin's refusal", Duration::from_mins(1), || {
        site.reap();
        let told = site.told(&["pool", "status"]);
        let is_told = told.contains("did not start with `static_credentials = true`")
            && told.contains("static credentials are not supported");
        is_told.then_some(())
    });
}
