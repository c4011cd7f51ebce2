//! Injected faults, refusals and findings of provider `local`.

use std::path::Path;
use std::time::{Duration, Instant};

use greenroom::provider::find;
use greenroom_core::failure::ErrorClass;
use greenroom_core::inventory::Status;
use greenroom_harness::provider::{
    Fixture, class, gone, leave_nothing, listed, request, running, status, until,
};
use greenroom_ports::finding::Severity;

use super::{GREENROOM, LocalFixture};

#[tokio::test]
async fn an_instance_dies_after_its_time_and_stays_in_the_list() {
    let fixture = LocalFixture::new();
    let provider = fixture.build("die_after = \"700ms\"");
    let request = request(&fixture, 1);
    provider.launch(&request).await.unwrap();
    running(&fixture, &*provider, &request.instance).await;
    until("dead", Duration::from_secs(10), async || fixture.living().is_empty().then_some(())).await;
    assert_eq!(status(&*provider, &fixture.pool(), &request.instance).await, Some(Status::Stopping));
    assert_eq!(class(provider.endpoint(&request.instance).await), ErrorClass::Transient);
    let console = provider.console(&request.instance).await.unwrap();
    assert!(console.contains("`die_after` = 700 ms has passed"), "{console}");
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn a_lagging_list_shows_a_new_instance_later_though_it_answers() {
    let fixture = LocalFixture::new();
    let provider = fixture.build("list_lag = \"1s\"");
    let request = request(&fixture, 1);
    let begun = Instant::now();
    provider.launch(&request).await.unwrap();
    let seen = listed(&*provider, &fixture.pool()).await;
    assert!(seen.is_empty() || begun.elapsed() >= Duration::from_secs(1), "{seen:?}");
    running(&fixture, &*provider, &request.instance).await;
    assert!(begun.elapsed() >= Duration::from_millis(990), "listed after {:?}", begun.elapsed());
    // Its delay was set at the launch, and applies to every list.
    assert_eq!(listed(&*fixture.build(""), &fixture.pool()).await.len(), 1);
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn capacity_is_counted_across_providers_and_comes_back() {
    let fixture = LocalFixture::new();
    let table = "no_capacity = 2";
    for number in [1, 2] {
        fixture.build(table).launch(&request(&fixture, number)).await.unwrap();
    }
    let provider = fixture.build(table);
    let refused = provider.launch(&request(&fixture, 3)).await.unwrap_err();
    assert!(matches!(refused.class(), ErrorClass::NoCapacity { .. }));
    assert!(refused.to_string().contains("2 instances exist (no_capacity = 2)"), "{refused}");
    // Not a new one, so nothing is refused.
    provider.launch(&request(&fixture, 2)).await.unwrap();
    gone(&fixture, &*provider, &request(&fixture, 1).instance).await;
    provider.launch(&request(&fixture, 3)).await.unwrap();
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn failures_are_counted_across_providers() {
    let fixture = LocalFixture::new();
    let table = "fail_launch = { class = \"throttled\", first = 3 }";
    let request = request(&fixture, 1);
    for _ in 0..3 {
        let refused = class(fixture.build(table).launch(&request).await);
        assert_eq!(refused, ErrorClass::Throttled { until: None });
    }
    fixture.build(table).launch(&request).await.unwrap();
    leave_nothing(&fixture).await;
}

#[tokio::test]
async fn a_boot_that_fails_says_why_on_the_console() {
    let fixture = LocalFixture::new();
    let provider = fixture.build("server = \"openssh\"\nsshd = \"/no/such/sshd\"");
    let request = request(&fixture, 1);
    provider.launch(&request).await.unwrap();
    until("failed", Duration::from_secs(10), async || {
        let seen = status(&*provider, &fixture.pool(), &request.instance).await;
        (seen == Some(Status::Stopping)).then_some(())
    })
    .await;
    let console = provider.console(&request.instance).await.unwrap();
    assert!(console.contains("cannot boot: `server = \"openssh\"`, but sshd is not installed"), "{console}");
    leave_nothing(&fixture).await;
}

#[test]
fn root_has_to_say_that_it_means_it() {
    let fixture = LocalFixture::new();
    let built = (find("local").unwrap().build)(&fixture.context(Path::new(GREENROOM)), &toml::Table::new());
    let refused = built.err().map(|problems| problems.to_string());
    assert_eq!(refused.is_some(), rustix::process::geteuid().is_root());
    let names_the_key = |problem: &String| problem.starts_with("`allow_root` is not `true`");
    assert!(refused.iter().all(names_the_key), "{refused:?}");
}

#[test]
fn the_doctor_says_that_nothing_is_isolated_and_what_else_is_wrong() {
    let fixture = LocalFixture::new();
    let doctor = find("local").unwrap().doctor;
    let codes = |table: &str, program: &str| -> Vec<(&str, Severity)> {
        let found = doctor(&fixture.context(Path::new(program)), &table.parse().unwrap());
        found.iter().map(|one| (one.code, one.severity)).collect()
    };
    let plain = ("local-no-isolation", Severity::Warning);
    assert_eq!(codes("allow_root = true", GREENROOM), [plain]);
    let wrong = ("local-table", Severity::Error);
    assert_eq!(codes("allow_root = true\nallow_rot = true", GREENROOM), [wrong]);
    assert_eq!(codes("allow_root = true\nallow_rot = true\ndie_after = 5", GREENROOM), [wrong, wrong]);
    let gone = ("local-program", Severity::Error);
    assert_eq!(codes("allow_root = true", "/no/such/program"), [plain, gone]);
    let missing = "allow_root = true\nserver = \"openssh\"\nsshd = \"/no/such/sshd\"";
    assert_eq!(codes(missing, GREENROOM), [plain, ("local-sshd-missing", Severity::Error)]);
    let faulty = "allow_root = true\ndie_after = \"1h\"";
    assert_eq!(codes(faulty, GREENROOM), [plain, ("local-fault-injection", Severity::Warning)]);
}
