//! The places where the secrets of a job in a container must not be seen.

use greenroom_harness::place::SOON;
use greenroom_testkit::gitlab_runner::job::Job;
use serde_json::json;

use crate::engine::engine;
use crate::inside::Inside;
use crate::pool::{plain, setting};
use crate::site::{ACCOUNT, PASSWORD, site};

const TOKEN: &str = "hush-4f1d9c";

#[test]
pub fn a_password_is_gone_before_the_first_step_and_a_token_is_not_in_services() {
    let Some(site) = site() else { return };
    let place = setting(site).open();
    let (account, password) = ACCOUNT;
    let job = Job::new(1)
        .image(&format!("{PASSWORD}/private:1"))
        .credential(PASSWORD, account, password)
        .masked("TOKEN", TOKEN)
        .variable("OPEN", "for services")
        .service(json!({"name": plain("backend:1"), "alias": "first"}))
        .service(json!({"name": plain("backend:1"), "alias": "second", "variables": [{"key": "PASS", "value": "$TOKEN"}]}));
    let attempt = place.prepared_as(&job);
    let inside = Inside::of(&place, &attempt);
    let encoded =
        <base64ct::Base64 as base64ct::Encoding>::encode_string(format!("{account}:{password}").as_bytes());
    for secret in [password, &encoded] {
        let quoted = format!(
            "grep -rlsF '{secret}' /run /dev/shm /tmp /var/tmp /var/lib/containers /var/lib/docker /etc/containers /etc/docker \
             /root"
        );
        // The lab itself logs in to push its images.
        let found = inside.sh(&quoted);
        let found: Vec<&str> =
            found.lines().filter(|file| !file.starts_with("/tmp/greenroom-site-")).collect();
        assert!(found.is_empty(), "{secret}: {found:?}");
        assert!(inside.running(secret).is_empty(), "{secret}");
    }
    assert!(inside.running(TOKEN).is_empty());
    let engine = engine().program();
    let inspected = format!("for c in $({engine} ps --quiet --all); do {engine} inspect $c; done");
    let environment = |word: &str| inside.sh(&format!("{inspected} | grep -c -F '{word}' || :"));
    // The job's container and the service that asked for it.
    assert_eq!(environment(TOKEN).trim(), "2", "{}", inside.sh(&format!("{engine} ps --all")));
    let run = attempt.start_run("build_script", "echo up; while :; do sleep 0.1; done\n");
    run.wait_for_output("up", SOON);
    assert!(inside.running(TOKEN).is_empty());
    for secret in [TOKEN, password, &encoded] {
        let found = std::process::Command::new("grep")
            .args(["-rlsF", "--exclude-dir=instances", secret])
            .arg(&place.state_dir)
            .output()
            .expect("grep starts");
        assert_eq!(String::from_utf8_lossy(&found.stdout), "", "{secret}");
    }
    for process in place.processes() {
        let arguments = process.arguments_text();
        assert!(!arguments.contains(TOKEN) && !arguments.contains(password), "{process:?}");
    }
    run.signal_group(rustix::process::Signal::TERM);
    run.wait(SOON);
    assert_eq!(attempt.cleanup().exit_code(), Some(0));
}
