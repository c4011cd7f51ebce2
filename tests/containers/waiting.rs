//! The words of the job log while a job waits for its containers.

use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::Outcome;
use serde_json::json;

use crate::pool::{containers, job, plain, setting};
use crate::proxy::{Fault, Proxy};
use crate::site::site;

#[test]
fn a_pull_without_data_is_shown_while_it_waits() {
    let Some(site) = site() else { return };
    let setting = containers(site, |table| {
        table.insert("pull_timeout".into(), "25s".into());
    });
    let place = setting.open();
    let limited = Proxy::new(site, Fault::Status("429 Too Many Requests", u32::MAX));
    let image = format!("{}/ash:1", limited.registry);
    let attempt = place.runner().attempt(&Job::new(1).image(&image));
    attempt.config();
    let prepare = attempt.prepare();
    assert_eq!(prepare.exit_code(), Some(2), "{}", prepare.stderr_text());
    let said = prepare.stderr_text();
    let waits = said.lines().filter(|line| line.contains(&format!("pulling image `{image}`: no data after")));
    assert!((1..=2).contains(&waits.count()), "{said}");
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
}

#[test]
fn a_service_that_is_waited_for_is_shown() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let sleeper = json!({"name": plain("ash:1"), "command": ["sleep", "1000"],
        "variables": [{"key": "HEALTHCHECK_TCP_PORT", "value": "81"}]});
    let result = place.run(&job(1, "ash:1").service(sleeper));
    result.expect_outcome(&Outcome::Success);
    let log = result.log_text();
    assert_eq!(log.matches("service `registry.test__ash` does not answer yet after ").count(), 2, "{log}");
    assert!(log.contains("no port of service `registry.test__ash` answers after "), "{log}");
    place.expect_sound();
}
