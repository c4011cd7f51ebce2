//! Registries that refuse, lack, limit, stall, or are down.

use std::time::Duration;

use greenroom_harness::place::Place;
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::{JobResult, Outcome};
use serde_json::json;

use crate::pool::{containers, job, plain, setting};
use crate::proxy::{Fault, Proxy};
use crate::site::{ACCOUNT, PASSWORD, STOPPED, TLS, site};

const FAILED: Outcome = Outcome::ScriptFailure { exit_code: 1 };

fn auth_config(password: &str) -> String {
    let pair = format!("{}:{password}", ACCOUNT.0);
    let auth = <base64ct::Base64 as base64ct::Encoding>::encode_string(pair.as_bytes());
    json!({"auths": {PASSWORD: {"auth": auth}}}).to_string()
}

/// The job failed in its first `prepare`, with these words, and took at most this many machines.
#[track_caller]
fn expect_refused(place: &Place, result: &JobResult, machines: usize, said: &[&str]) {
    result.expect_outcome(&FAILED);
    assert_eq!(result.call_names(), ["config", "prepare", "cleanup"], "{}", result.describe());
    for said in said {
        assert!(result.log_text().contains(said), "{said}: {}", result.describe());
    }
    assert_eq!(place.grants().len(), machines, "{}", result.describe());
    place.expect_sound();
}

#[test]
pub fn a_private_image_is_pulled_with_each_source_of_credentials() {
    let Some(site) = site() else { return };
    let (account, password) = ACCOUNT;
    let auth = site.dir.join("auth.json");
    std::fs::write(&auth, auth_config(password)).expect("the operator's file");
    std::fs::set_permissions(&auth, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("its mode");
    let image = format!("{PASSWORD}/private:1");
    let named = |id| Job::new(id).image(&image).script(["echo the script ran"]);
    let own = setting(site).open();
    let of_operator = containers(site, |table| {
        table.insert("registry_auth".into(), auth.display().to_string().into());
    });
    let of_operator = of_operator.open();
    for (place, job) in [
        (&own, named(1).masked("DOCKER_AUTH_CONFIG", auth_config(password))),
        (&own, named(2).credential(PASSWORD, account, password)),
        (&of_operator, named(3)),
        // The job's own comes first.
        (&of_operator, named(4).masked("DOCKER_AUTH_CONFIG", auth_config(password))),
    ] {
        let result = place.run(&job);
        result.expect_outcome(&Outcome::Success);
        assert!(!result.log_text().contains(password), "{}", result.describe());
    }
}

#[test]
pub fn without_the_right_password_the_job_fails_and_takes_one_machine() {
    let Some(site) = site() else { return };
    let image = format!("{PASSWORD}/private:1");
    for job in [
        Job::new(1).image(&image),
        Job::new(1).image(&image).masked("DOCKER_AUTH_CONFIG", auth_config("a wrong one")),
    ] {
        let place = setting(site).open();
        let result = place.run(&job);
        expect_refused(&place, &result, 1, &["private:1", "denies access"]);
        assert!(!result.log_text().contains("a wrong one"), "{}", result.describe());
    }
}

#[test]
pub fn an_image_or_tag_that_does_not_exist_fails_the_job_and_takes_one_machine() {
    let Some(site) = site() else { return };
    for image in ["missing:1", "ash:2"] {
        let place = setting(site).open();
        let result = place.run(&job(1, image));
        expect_refused(&place, &result, 1, &[image, "does not exist"]);
    }
}

#[test]
fn what_the_pool_does_not_allow_takes_no_machine() {
    let Some(site) = site() else { return };
    let setting = containers(site, |table| {
        table.insert("images".into(), vec!["registry.test:5000/ash*"].into());
        table.insert("services".into(), vec!["postgres:*"].into());
        table.insert("services_limit".into(), 1.into());
        table.insert("pull_policy".into(), vec!["always"].into());
        table.insert("allowed_users".into(), vec!["1000"].into());
    });
    let user = json!({"docker": {"platform": "", "user": "0"}, "kubernetes": {"user": ""}});
    let service = |name: &str| json!({"name": name});
    let cases = [
        (job(1, "bash:1"), "`images`"),
        (Job::new(2).image("not a name"), "not valid"),
        (job(3, "ash:1").service(service(&plain("backend:1"))), "`services`"),
        (job(4, "ash:1").service(service("postgres:1")).service(service("postgres:2")), "`services_limit`"),
        (job(5, "ash:1").image_option("pull_policy", json!(["never"])), "never"),
        (job(6, "ash:1").image_option("executor_opts", user), "`allowed_users`"),
    ];
    let place = setting.open();
    for (job, said) in cases {
        expect_refused(&place, &place.run(&job), 0, &[said]);
    }
}

#[test]
fn a_registry_that_is_down_is_no_fault_of_the_job_and_the_repeats_answer_quickly() {
    let Some(site) = site() else { return };
    // All three tries may take longer than the test waits.
    let setting = containers(site, |table| {
        table.insert("pull_timeout".into(), "12s".into());
    });
    let place = setting.open();
    let result = place.run(&Job::new(1).image(&format!("{STOPPED}/ash:1")));
    result.expect_outcome(&Outcome::RunnerSystemFailure);
    let prepares: Vec<_> = result.calls.iter().filter(|call| call.name() == "prepare").collect();
    assert_eq!(prepares.len(), 3, "{}", result.describe());
    assert!(prepares.iter().all(|call| call.exit_code() == Some(2)), "{}", result.describe());
    assert!(prepares[0].stderr_text().contains(STOPPED), "{}", result.describe());
    for repeat in &prepares[1..] {
        assert!(repeat.took().is_some_and(|took| took < Duration::from_secs(3)), "{}", result.describe());
        assert!(repeat.stderr_text().contains(STOPPED), "{}", result.describe());
    }
    assert_eq!(place.grants().len(), 1, "{}", result.describe());
    place.expect_sound();
}

#[test]
pub fn a_registry_with_a_certificate_of_its_own_is_trusted_if_the_pool_says_so() {
    let Some(site) = site() else { return };
    let image = format!("{TLS}/ash:1");
    let trusting = containers(site, |table| {
        table.insert("ca".into(), site.dir.join("ca.pem").display().to_string().into());
    });
    trusting.open().run(&Job::new(1).image(&image)).expect_outcome(&Outcome::Success);
    let place = setting(site).open();
    let attempt = place.runner().attempt(&Job::new(1).image(&image));
    attempt.config();
    let prepare = attempt.prepare();
    assert_eq!(prepare.exit_code(), Some(2), "{}", prepare.stderr_text());
    for said in [TLS, "certificate", "`ca`"] {
        assert!(prepare.stderr_text().contains(said), "{said}: {}", prepare.stderr_text());
    }
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
}

#[test]
pub fn an_instance_whose_disk_is_full_is_replaced() {
    let Some(site) = site() else { return };
    let place = setting(site).provider("sshd", site.sshd(true)).open();
    let result = place.run(&job(1, "big:1"));
    result.expect_outcome(&Outcome::RunnerSystemFailure);
    assert!(
        result.log_text().contains("the instance cannot run containers: the disk is full: "),
        "{}",
        result.describe()
    );
    let mut instances: Vec<_> = place.grants().into_iter().map(|(_, instance)| instance).collect();
    let grants = instances.len();
    instances.dedup();
    assert_eq!((instances.len(), grants), (3, 3), "{}", result.describe());
    place.run(&job(2, "ash:1")).expect_outcome(&Outcome::Success);
    place.expect_sound();
}

#[test]
fn a_rate_limit_is_named_and_no_fault_of_the_job() {
    let Some(site) = site() else { return };
    let mut setting = setting(site);
    // Podman itself repeats its requests for a minute.
    setting.patience *= 5;
    let place = setting.open();
    let proxy = Proxy::new(site, Fault::Status("429 Too Many Requests", u32::MAX));
    let attempt = place.runner().attempt(&Job::new(1).image(&format!("{}/ash:1", proxy.registry)));
    attempt.config();
    let prepare = attempt.prepare();
    assert_eq!(prepare.exit_code(), Some(2), "{}", prepare.stderr_text());
    assert!(prepare.stderr_text().contains("limits the rate"), "{}", prepare.stderr_text());
    assert!(proxy.seen() >= 3, "{} requests", proxy.seen());
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
}

#[test]
pub fn a_registry_that_recovers_within_three_tries_serves_the_job() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let proxy = Proxy::new(site, Fault::Status("503 Service Unavailable", 2));
    let result = place.run(&Job::new(1).image(&format!("{}/ash:1", proxy.registry)));
    result.expect_outcome(&Outcome::Success);
}

#[test]
pub fn a_registry_that_stalls_is_given_up_after_pull_timeout() {
    let Some(site) = site() else { return };
    let setting = containers(site, |table| {
        table.insert("pull_timeout".into(), "3s".into());
    });
    let place = setting.open();
    let stalled = Proxy::new(site, Fault::Stall);
    let attempt = place.runner().attempt(&Job::new(1).image(&format!("{}/ash:1", stalled.registry)));
    attempt.config();
    let prepare = attempt.prepare();
    assert_eq!(prepare.exit_code(), Some(2), "{}", prepare.stderr_text());
    assert!(prepare.stderr_text().contains("`pull_timeout`"), "{}", prepare.stderr_text());
    assert!(prepare.took().is_some_and(|took| took < Duration::from_secs(15)), "{:?}", prepare.took());
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
}

#[test]
pub fn a_job_and_its_services_in_the_same_image_pull_it_once() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let proxy = Proxy::new(site, Fault::None);
    let image = format!("{}/ash:1", proxy.registry);
    let service = |alias: &str| json!({"name": image, "alias": alias, "command": ["sleep", "60"]});
    let job = Job::new(1).image(&image).service(service("one")).service(service("two"));
    let result = place.run(&job.script(["grep -c -w -e one -e two /etc/hosts"]));
    result.expect_outcome(&Outcome::Success);
    let log = result.log_text();
    assert!(log.contains("\n2\n"), "both services have their names: {log}");
    assert_eq!(log.matches("pulling image").count(), 1, "{log}");
    assert_eq!(proxy.fetched("manifests").len(), 1, "{:?}", proxy.fetched("manifests"));
    let mut blobs = proxy.fetched("blobs");
    let count = blobs.len();
    blobs.sort();
    blobs.dedup();
    assert!(count > 0 && blobs.len() == count, "{blobs:?}");
    let explained = place.order(&["explain", "1"]).split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(explained.matches(") pulled ").count(), 3, "{explained}");
    place.expect_sound();
}
