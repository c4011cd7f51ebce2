//! The whole output for operators.

use std::time::Duration;

use greenroom_core::attempt::End;
use greenroom_core::container::account::{
    FailureAccount, ImageAccount, ImageSource, ServiceAccount, ServiceStart,
};
use greenroom_core::event::Change;
use greenroom_core::failure::{ErrorClass, Failure};
use greenroom_core::ids::JobKey;
use greenroom_core::instance::{Answer, DrainReason};
use greenroom_core::obstacle;
use greenroom_core::order::RefusedOrder;
use greenroom_core::policy::{IdlePolicy, Policy};
use greenroom_core::report::{Note, WaitingOn};

use super::*;
use crate::cli::fixture::{EventFixture, at, attempt, endpoint, id, ordering, pool, report, when};

fn policy() -> Policy {
    Policy {
        max_instances: 4,
        idle: IdlePolicy { idle_count: 1, ..IdlePolicy::default() },
        ..Policy::default()
    }
}

/// A warm start, a start on demand, a broken instance, a job that waits.
fn day() -> EventFixture {
    let mut story = EventFixture::of(policy());
    story.ready(1, 10.0);
    story.asks("warm", 4711, "acme/shop", 227.0).gets("warm", 1, 227.014);
    story.asks("cold", 4712, "acme/blog", 240.0);
    story.ready(2, 240.0);
    story.gets("cold", 2, 264.7);
    story.then(265.0, Change::Rejected { attempt: attempt("cold"), message: "no answer within 10 s".into() });
    story.then(
        265.0,
        Change::DrainingBegun {
            instance: id(2),
            reason: DrainReason::Broken { message: "no answer within 10 s".into() },
        },
    );
    story.launched(3, 266.0);
    story.leaves("warm", End::CleanedUp, 400.0);
    story.then(400.0, Change::DrainingBegun { instance: id(1), reason: DrainReason::UsedUp });
    story.then(403.0, Change::Forgotten { instance: id(2) });
    story.then(431.5, Change::Forgotten { instance: id(1) });
    story
}

fn chapter<'a>(
    name: &'a PoolName,
    story: &'a EventFixture,
    report: Option<&'a Report>,
    keeper: &'a KeeperStatus,
) -> Chapter<'a> {
    let history = Box::new(story.events.iter().cloned().map(Ok));
    Chapter { pool: name, state: &story.state, report, keeper, containers: &[], notices: Vec::new(), history }
}

fn explained(what: &str, story: &EventFixture, report: Option<&Report>, seconds: f64) -> String {
    let name = pool();
    let when = when(seconds);
    let chapters = vec![chapter(&name, story, report, &KeeperStatus::Runs)];
    explain(what, chapters, &when).unwrap().text(&when, 80)
}

#[test]
fn a_warm_job_is_told_from_request_to_the_end_of_its_instance() {
    let text = explained("4711", &day(), None, 440.0);
    let expected = "\
job 4711 of acme/shop on https://gitlab.example.com, pool linux
  14:03:47  3m 33s ago  job 4711 of acme/shop requested an instance; 1 slot
                        idle, 1 of 4 instances
  14:03:47  3m 32s ago  job 4711 got linux-7f3a-1 after 14 ms (warm, idle for 3m
                        12s)
  14:06:40    40 s ago  job 4711 left linux-7f3a-1 after 2m 52s: cleaned up
  14:06:40    40 s ago  linux-7f3a-1 draining: it has served its last job
  14:07:11     8 s ago  linux-7f3a-1 gone after 7m 1s
  now: neither waiting nor running
";
    assert_eq!(text, expected, "{text}");
}

#[test]
fn a_job_that_waits_again_is_told_why() {
    let mut report = report(266.0);
    report.waiting = vec![(attempt("cold"), WaitingOn::Boot { instance: id(3) })];
    let text = explained("#4712", &day(), Some(&report), 440.0);
    let expected = "\
job 4712 of acme/blog on https://gitlab.example.com, pool linux
  14:04:00  3m 20s ago  job 4712 of acme/blog requested an instance; 0 slots
                        idle, 1 of 4 instances
  14:04:24  2m 55s ago  job 4712 got linux-7f3a-2 after 24.7 s (booted on
                        demand)
  14:04:25  2m 55s ago  job 4712 found linux-7f3a-2 unusable and waits again: no
                        answer within 10 s
  14:04:25  2m 55s ago  linux-7f3a-2 draining: a job found it unusable: no
                        answer within 10 s
  14:06:43    37 s ago  linux-7f3a-2 gone after 2m 43s
  waited: 24.7 s for a boot; `idle_count` (1) keeps slots ready
  now: waiting for 3m 20s at place 1, times out in 26m 40s: linux-7f3a-3 is
    booting, usually 24.7 s
  change: `idle_count` (1) keeps slots ready
";
    assert_eq!(text, expected, "{text}");
}

#[test]
fn a_waiting_job_and_its_instance_are_explained_by_each_cause() {
    let unwrapped = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for (obstacle, sentence) in obstacle::samples::each() {
        let mut report = report(266.0);
        report.obstacles = vec![(id(3), obstacle.clone())];
        report.waiting = vec![(attempt("cold"), WaitingOn::Obstructed { instance: id(3), obstacle })];
        let sentence = sentence.replacen("h1", id(3).as_str(), 1);
        for what in ["4712", id(3).as_str()] {
            let text = unwrapped(explained(what, &day(), Some(&report), 440.0));
            assert!(text.contains(&sentence), "{what}: {sentence}: {text}");
        }
    }
    let mut report = report(266.0);
    let hosts = obstacle::samples::hosts();
    let sentence = hosts.to_string();
    report.waiting = vec![(attempt("cold"), WaitingOn::NoHost { unusable: Some(hosts) })];
    let text = unwrapped(explained("4712", &day(), Some(&report), 440.0));
    assert!(text.contains(&sentence), "{text}");
    assert!(text.contains("change: `greenroom pool resume linux --instance HOST`"), "{text}");
}

#[test]
fn an_instance_has_a_life_line() {
    let text = explained("linux-7f3a-1", &day(), None, 440.0);
    let expected = "\
instance linux-7f3a-1, pool linux
  14:00:10  7m 10s ago  launch of linux-7f3a-1 requested
  14:00:11   7m 8s ago  launch of linux-7f3a-1 accepted after 1.4 s
  14:00:33  6m 46s ago  linux-7f3a-1 reachable at 10.0.0.5:22 after 23.9 s
  14:00:34  6m 45s ago  linux-7f3a-1 ready after 24.7 s
  14:03:47  3m 32s ago  job 4711 got linux-7f3a-1 after 14 ms (warm, idle for 3m
                        12s)
  14:06:40    40 s ago  job 4711 left linux-7f3a-1 after 2m 52s: cleaned up
  14:06:40    40 s ago  linux-7f3a-1 draining: it has served its last job
  14:07:11     8 s ago  linux-7f3a-1 gone after 7m 1s
  now: gone
  change: `max_use_count` sets how many jobs it serves
";
    assert_eq!(text, expected, "{text}");
}

#[test]
fn an_instance_in_trouble_shows_the_keepers_verdict_and_its_remedy() {
    let mut story = day();
    story.then(290.0, Change::Reached { instance: id(3), endpoint: endpoint() });
    story.then(
        291.0,
        Change::OutOfService { instance: id(3), reason: "the ready command ended with 1".into() },
    );
    let mut report = report(435.0);
    report.rows = vec![(id(3), 20)];
    let failure = Failure { class: ErrorClass::Transient, message: "503".into() };
    report.notes = vec![Note::CallsFailing { instance: id(3), failure, until: at(445.0) }];
    let text = explained("linux-7f3a-3", &story, Some(&report), 440.0);
    let expected = "\
instance linux-7f3a-3, pool linux
  14:04:26  2m 54s ago  launch of linux-7f3a-3 requested
  14:04:27  2m 52s ago  launch of linux-7f3a-3 accepted after 1.4 s
  14:04:50  2m 30s ago  linux-7f3a-3 reachable at 10.0.0.5:22 after 24 s
  14:04:51  2m 29s ago  linux-7f3a-3 out of service: the ready command ended
                        with 1
  now: out of service for 2m 29s; 0 jobs served, 1 use left
  now: the ready command ended with 1
  now: return it to service with
    `greenroom pool resume linux --instance linux-7f3a-3`
  now: the keeper's verdict 5 s ago: out of service: keep
  now: calls about linux-7f3a-3 fail repeatedly (transient error: 503)
";
    assert_eq!(text, expected, "{text}");
}

#[test]
fn a_pool_shows_what_is_notable_and_what_is_in_its_way() {
    let mut story = day();
    let failure = Failure { class: ErrorClass::Quota, message: "20 vCPU".into() };
    story.then(
        441.0,
        Change::LaunchIntended {
            instance: id(4),
            generation: greenroom_core::ids::Generation::new("7f3a"),
            number: 4,
            attempt: 1,
            capacity: 1,
            uses_left: Some(1),
            offering: None,
            location: None,
            lifetime: None,
            ordered: None,
        },
    );
    let answer = Answer::Refused { at: at(442.0), failure };
    story.then(442.0, Change::LaunchAnswered { instance: id(4), attempt: 1, answer });
    let changed = Policy { max_instances: 9, ..policy() };
    story.then(443.0, Change::PolicySet { policy: std::sync::Arc::new(changed) });
    let mut report = report(444.0);
    report.notes = vec![Note::ListIncomplete];
    let text = explained("linux", &story, Some(&report), 445.0);
    let expected = "\
pool linux, the last 6 notable events
  14:00:00  7m 25s ago  policy set: `max_instances = 4`,
                        `capacity_per_instance = 1`, `max_use_count = 1`,
                        `idle_count = 1`, `idle_time = 20m`, `scale_factor = 0`
  14:00:00  7m 25s ago  a keeper began generation 7f3a of launches
  14:04:25      3m ago  job 4712 found linux-7f3a-2 unusable and waits again: no
                        answer within 10 s
  14:04:25      3m ago  linux-7f3a-2 draining: a job found it unusable: no
                        answer within 10 s
  14:07:22     3 s ago  launch of linux-7f3a-4 refused after 1 s: quota reached:
                        20 vCPU
  14:07:23     2 s ago  policy changed: `max_instances = 9` (was 4)
  since 14:00:00: 2 jobs (1 served), 4 launches (1 refused, 2 ready)
  now: 2 instances, 0 job slots in use, 1 job waiting
  now: no launch until 14:12:22 (in 4m 57s), the last one failed (quota reached:
    20 vCPU)
  now: the provider's list was incomplete: missing instances are not replaced
";
    assert_eq!(text, expected, "{text}");
}

#[test]
fn at_most_twenty_notable_events_of_a_pool_are_shown() {
    let mut story = EventFixture::of(policy());
    for n in 0..30 {
        story.then(f64::from(n), Change::PoolResumed);
    }
    let text = explained("linux", &story, None, 60.0);
    assert!(text.starts_with("pool linux, the last 20 notable events\n"), "{text}");
    assert!(text.contains("now: nothing blocks jobs or launches\n"), "{text}");
    assert_eq!(text.matches("was resumed").count(), 20);
}

#[test]
fn an_unknown_name_gets_the_nearest_and_an_example_of_each_kind() {
    let story = day();
    let name = pool();
    let when = when(440.0);
    for (what, near) in [("linus", "linux"), ("linux-7f3a-9", "linux-7f3a-1"), ("4719", "4711")] {
        let error =
            explain(what, vec![chapter(&name, &story, None, &KeeperStatus::Runs)], &when).unwrap_err();
        assert_eq!(error.to_string(), format!("no job, instance, offering or pool `{what}` found"));
        let expected = format!(
            "did you mean `{near}`? name a job (`4712`), an instance (`linux-7f3a-3`) or a pool (`linux`); \
             events are kept since 14:00:00"
        );
        assert_eq!(error.help, expected);
    }
    let error = explain("x", Vec::new(), &when).unwrap_err();
    let expected = "name a job, an instance or a pool; no events are kept yet";
    assert_eq!(error.help, expected);
}

#[test]
fn the_containers_of_a_job_are_told_with_their_images_services_and_failure() {
    let story = day();
    let name = pool();
    let keeper = KeeperStatus::Runs;
    let when = when(440.0);
    let image = |name: &str, source| ImageAccount { name: name.to_owned(), digest: None, source };
    let pulled = ImageSource::Pulled { after: Duration::from_millis(9_200), bytes: Some(480 << 20) };
    let account = |job, of: &PoolName| ContainerAccount {
        job: JobKey::new("https://gitlab.example.com", job),
        pool: of.clone(),
        at: at(227.0),
        image: image("ruby:3.3", Some(pulled)),
        services: vec![ServiceAccount {
            name: "postgres".to_owned(),
            image: image("postgres:16", Some(ImageSource::Present)),
            start: Some(ServiceStart::Answered { after: Duration::from_secs(2) }),
        }],
        removed: vec!["ruby:2.7".to_owned()],
        failure: Some(FailureAccount {
            class: FailureClass::Job,
            message: "the image has no shell".to_owned(),
        }),
    };
    let accounts = [account(4711, &name), account(4712, &name), account(4711, &PoolName::new("other"))];
    let chapter = || Chapter { containers: &accounts, ..chapter(&name, &story, None, &keeper) };
    let text = explain("4711", vec![chapter()], &when).unwrap().text(&when, 80);
    let expected = "\
  containers at 14:03:47: image `ruby:3.3` pulled 480 MiB in 9.2 s
  containers: service `postgres` answered after 2 s; the instance had image
    `postgres:16`
  containers: image `ruby:2.7` was removed to make room
  containers: failed by its own fault: the image has no shell
  now: neither waiting nor running
";
    assert!(text.ends_with(expected) && text.matches("ruby:3.3").count() == 1, "{text}");
    let json = explain("4711", vec![chapter()], &when).unwrap().json(&when);
    let containers = &json["explained"][0]["containers"][0];
    assert_eq!((&containers["image"], &containers["failure"]), (&json!("ruby:3.3"), &json!("job")), "{json}");
}

#[test]
fn a_history_that_begins_in_the_middle_or_has_holes_is_told_as_far_as_it_goes() {
    let story = day();
    let name = pool();
    let when = when(440.0);
    // Everything before the grant of the warm job is no longer kept.
    let kept =
        story.events.iter().skip_while(|e| !matches!(e.change, Change::Granted { .. })).cloned().map(Ok);
    let damage = StoreError::Io { what: "journal.jsonl:7: the checksum does not match".to_owned() };
    let hole = std::iter::once(Err(Unreadable::Store(damage)));
    let history = Box::new(hole.chain(kept));
    let keeper = KeeperStatus::Runs;
    let chapter = Chapter {
        pool: &name,
        state: &story.state,
        report: None,
        keeper: &keeper,
        containers: &[],
        notices: Vec::new(),
        history,
    };
    let text = explain("linux-7f3a-1", vec![chapter], &when).unwrap().text(&when, 80);
    let expected = "\
instance linux-7f3a-1, pool linux
  14:03:47  3m 32s ago  attempt warm got linux-7f3a-1
  14:06:40    40 s ago  linux-7f3a-1 draining: it has served its last job
  14:07:11     8 s ago  linux-7f3a-1 gone
  now: gone
  change: `max_use_count` sets how many jobs it serves
  unreadable: journal.jsonl:7: the checksum does not match
";
    assert_eq!(text, expected, "{text}");
}

#[test]
fn a_job_number_of_two_servers_is_told_twice_and_a_pool_named_like_a_job_too() {
    let mut story = day();
    let key = JobKey::new("https://other.example.com", 4711);
    let job = JobFacts::new(key, "their/thing", Duration::from_mins(1));
    let domain = greenroom_core::ids::TrustDomain::new("any");
    let acquire_timeout = Duration::from_mins(1);
    story.then(432.0, Change::Requested { attempt: attempt("other"), job, domain, acquire_timeout });
    let name = PoolName::new("4711");
    let when = when(440.0);
    let answer = explain("4711", vec![chapter(&name, &story, None, &KeeperStatus::Runs)], &when).unwrap();
    let titles: Vec<&str> = answer.parts.iter().map(|p| p.title.as_str()).collect();
    assert_eq!(titles.len(), 3, "{titles:?}");
    assert!(titles[0].contains("acme/shop") && titles[1].contains("other.example.com"), "{titles:?}");
}

/// A job as a full GitLab response names it.
fn named(job: u64) -> JobFacts {
    let key = JobKey::new("https://gitlab.example.com", job);
    JobFacts {
        pipeline: Some(99),
        stage: JobFacts::text("test"),
        name: JobFacts::text("rspec 1/5"),
        git_ref: JobFacts::text("main"),
        ..JobFacts::new(key, "acme/shop", Duration::from_hours(1))
    }
}

#[test]
fn a_job_says_its_name_stage_pipeline_and_ref_as_far_as_they_are_known() {
    let mut story = EventFixture::of(policy());
    story.asks_as("open", named(1), 10.0);
    story.asks_as("protected", JobFacts { protected: true, ..named(2) }, 10.0);
    story.asks_as("some", JobFacts { name: None, git_ref: None, ..named(3) }, 10.0);
    story.asks("bare", 4, "acme/shop", 10.0);
    let second = |what: &str| explained(what, &story, None, 12.0).lines().nth(1).map(str::to_owned);
    let whole = "  job name `rspec 1/5`, stage `test`, pipeline 99, ref `main`";
    assert_eq!(second("1"), Some(format!("{whole} (not protected)")));
    assert_eq!(second("2"), Some(format!("{whole} (protected)")));
    assert_eq!(second("3").as_deref(), Some("  stage `test`, pipeline 99"));
    assert!(second("4").is_some_and(|line| line.contains("job 4 of acme/shop requested")));
    // The event is no longer kept, but the state still has it.
    let events = std::mem::take(&mut story.events);
    assert!(!events.is_empty());
    assert_eq!(
        explained("1", &story, None, 12.0).lines().nth(1),
        Some(format!("{whole} (not protected)").as_str())
    );
    let name = pool();
    let when = when(12.0);
    let json = |what: &str| {
        let answer = explain(what, vec![chapter(&name, &story, None, &KeeperStatus::Runs)], &when).unwrap();
        answer.json(&when)["explained"][0]["about"].clone()
    };
    assert_eq!(json("1"), format!("{} (not protected)", whole.trim_start()));
    assert_eq!(json("4"), serde_json::Value::Null);
}

#[test]
fn json_carries_the_same_sentences_under_stable_names_and_no_key() {
    let story = day();
    let name = pool();
    let when = when(440.0);
    let answer = explain("4711", vec![chapter(&name, &story, None, &KeeperStatus::Runs)], &when).unwrap();
    let value = answer.json(&when);
    let part = &value["explained"][0];
    assert_eq!(part["kind"], "job");
    assert_eq!(part["history_begins"], "2026-11-20T13:00:00Z");
    assert_eq!(part["events"][1]["event"], "granted");
    assert_eq!(part["events"][1]["instance"], "linux-7f3a-1");
    assert_eq!(part["events"][1]["at"], "2026-11-20T13:03:47Z");
    assert_eq!(part["events"][1]["age_s"], 212);
    assert_eq!(part["now"][0], "neither waiting nor running");
    for what in ["4711", "linux-7f3a-1", "linux"] {
        let answer = explain(what, vec![chapter(&name, &story, None, &KeeperStatus::Runs)], &when).unwrap();
        assert!(!answer.json(&when).to_string().contains("SECRET"));
    }
}

#[test]
fn an_instance_says_which_offering_it_took_and_why_none_before() {
    let mut story = EventFixture::of(policy());
    let refused = |class, message: &str| Failure { class, message: message.to_owned() };
    let none_left = refused(ErrorClass::NoCapacity { scope: "zone-a".into() }, "exhausted");
    story.offerings(&["zone-a small spot", "zone-b small spot", "zone-b small"]);
    story.refused(1, 1, none_left, 10.0).refused(1, 2, refused(ErrorClass::Quota, "8 vCPU"), 11.0);
    story.intended(1, 3, 12.5).launched(2, 500.0);
    let name = pool();
    let when = when(13.0);
    let explained = |what: &str| {
        let chapter = chapter(&name, &story, None, &KeeperStatus::Runs);
        explain(what, vec![chapter], &when).unwrap().text(&when, 400)
    };
    let text = explained("linux-7f3a-1");
    for line in [
        "launch of linux-7f3a-1 requested, as zone-a small spot\n",
        "launch of linux-7f3a-1 refused after 1 s: no capacity (zone-a): exhausted\n",
        "launch of linux-7f3a-1 requested (attempt 2), as zone-b small spot instead of zone-a small spot: no capacity, \
         refused 0 ms earlier\n",
        "(attempt 3), as zone-b small instead of zone-a small spot: no capacity, refused 1 s earlier; zone-b small spot: \
         quota reached: 8 vCPU, refused 500 ms earlier\n",
        "now: launched as zone-b small\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
    let later = explained("linux-7f3a-2");
    assert!(later.contains("launch of linux-7f3a-2 requested, as zone-a small spot\n"), "{later}");
    let text = explained("linux");
    let named = "offerings in order of preference: zone-a small spot; zone-b small spot; zone-b small";
    assert!(text.contains(named), "{text}");
    assert!(text.contains("now: zone-b small spot: quota reached: 8 vCPU, next try in 14m 59s\n"), "{text}");
}

/// Two offerings: the first refused two launches, the second one took them.
fn scarce() -> EventFixture {
    let mut story = EventFixture::of(policy());
    story.offerings(&["us-east1-b spot", "us-east1-c spot"]);
    let failure = Failure { class: ErrorClass::Quota, message: "CPUS".into() };
    story.refused(1, 1, failure, 10.0);
    story.ready(2, 20.0);
    story
}

#[test]
fn an_offering_is_told_with_its_launches_and_until_when_it_is_not_available() {
    let text = explained("us-east1-b spot", &scarce(), None, 60.0);
    let expected = "\
offering us-east1-b spot, pool linux
  14:00:10  50 s ago  launch of linux-7f3a-1 requested, as us-east1-b spot
  14:00:11  49 s ago  launch of linux-7f3a-1 refused after 1 s: quota reached:
                      CPUS
  since 14:00:00: 1 launch (1 refused, 0 ready)
  now: us-east1-b spot: quota reached: CPUS, next try in 14m 11s
  now: number 1 of 2 in the order of preference
  now: 1 instance with 0 jobs
  change: `quota_backoff` sets the pause after a refusal;
    `greenroom pool resume linux` ends it now
";
    assert_eq!(text, expected, "{text}");
    let other = explained("us-east1-c spot", &scarce(), None, 60.0);
    assert!(other.contains("1 launch (0 refused, 1 ready)\n  now: available\n"), "{other}");
    assert!(!other.contains("change:"), "{other}");
    let name = pool();
    let unknown =
        explain("us-east1-d spot", vec![chapter(&name, &scarce(), None, &KeeperStatus::Runs)], &when(60.0));
    let help = unknown.unwrap_err().help;
    assert!(
        help.contains("did you mean `us-east1-") && help.contains("an offering (`us-east1-c spot`)"),
        "{help}"
    );
}

#[test]
fn a_job_that_waited_is_told_why_and_which_key_shortens_that() {
    let mut story = EventFixture::of(Policy { max_instances: 1, max_use_count: None, ..policy() });
    story.ready(1, 0.0);
    story.asks("a", 1, "acme/shop", 100.0).gets("a", 1, 100.0);
    story.asks("b", 2, "acme/shop", 110.0);
    story.leaves("a", End::CleanedUp, 360.0).gets("b", 1, 360.0);
    story.asks("c", 3, "acme/shop", 370.0);
    story.then(2170.0, Change::Withdrawn { attempt: attempt("c"), how: End::GivenBack });
    let waited = |job: &str| {
        let text = explained(job, &story, None, 2200.0);
        text.lines().find_map(|line| line.strip_prefix("  waited: ").map(str::to_owned))
    };
    assert_eq!(waited("1"), None, "it was warm");
    assert_eq!(
        waited("2").as_deref(),
        Some("4m 10s with the pool at its limit; `max_instances` (1) sets it")
    );
    assert_eq!(
        waited("3").as_deref(),
        Some("30m without getting an instance; `acquire_timeout` (30m) is the")
    );
}

#[test]
fn a_job_on_a_resumed_instance_and_the_instance_itself_are_told() {
    let mut story = EventFixture::of(Policy { idle_stopped: 1, ..policy() });
    story.ready(1, 10.0).stopped(1, 40.0);
    story.asks("cold", 4712, "acme/blog", 100.0).resumed(1, 100.0).gets("cold", 1, 104.0);
    let words = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let job = words(explained("4712", &story, None, 110.0));
    assert!(job.contains("(resumed a stopped instance in 4 s)"), "{job}");
    assert!(job.contains("4 s for a stopped instance to be resumed; `idle_count`"), "{job}");
    let instance = words(explained("linux-7f3a-1", &story, None, 110.0));
    for sentence in [
        "suspension of linux-7f3a-1 requested, for the tier of `idle_stopped`",
        "linux-7f3a-1 suspended after 6 s",
        "resumption of linux-7f3a-1 requested, after 54 s",
        "linux-7f3a-1 reachable again at 10.0.0.5:22 after 3 s",
        "linux-7f3a-1 resumed and ready after 4 s",
    ] {
        assert!(instance.contains(sentence), "{sentence}: {instance}");
    }
}

#[test]
fn a_job_with_an_instance_of_its_own_is_told_what_it_ordered_and_what_is_faster() {
    let mut story = EventFixture::of(policy());
    story.asks_as("own", ordering(4711, "acme/shop", "ruby:3.3"), 60.0).launched_for(1, "own", 61.0);
    let words = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut seen = report(62.0);
    seen.waiting = vec![(attempt("own"), WaitingOn::Boot { instance: id(1) })];
    let text = words(explained("4711", &story, Some(&seen), 70.0));
    for sentence in [
        "job 4711 of acme/shop requested an instance of its own (image `ruby:3.3`, 2 services); 0 slots idle",
        "an instance of its own (image `ruby:3.3`, 2 services): linux-7f3a-1 is booting",
        "change: a job with `services:` gets an instance of its own; one without may find a slot ready",
    ] {
        assert!(text.contains(sentence), "{sentence}: {text}");
    }
    assert!(!text.contains("idle_count"), "{text}");
    let instance = words(explained("linux-7f3a-1", &story, None, 70.0));
    for sentence in [
        "launch of linux-7f3a-1 requested for job 4711: image `ruby:3.3`, 2 services",
        "launched for job 4711: image `ruby:3.3`, 2 services",
    ] {
        assert!(instance.contains(sentence), "{sentence}: {instance}");
    }
    story.then(80.0, Change::Reached { instance: id(1), endpoint: endpoint() });
    story.then(81.0, Change::BecameReady { instance: id(1) });
    story.gets("own", 1, 81.0);
    let waited = words(explained("4711", &story, None, 90.0));
    assert!(waited.contains("waited: 21 s for an instance of its own to boot"), "{waited}");
    let mut refused = EventFixture::of(policy());
    refused.asks_as("own", ordering(4711, "acme/shop", "ruby:3.3"), 60.0).launched_for(1, "own", 61.0);
    let order = RefusedOrder { reason: "image `ruby:3.3` does not exist".to_owned(), by_job: true };
    refused.then(63.0, Change::OrderRefused { attempt: attempt("own"), refused: order });
    refused.then(64.0, Change::DrainingBegun { instance: id(1), reason: DrainReason::Abandoned });
    let job = words(explained("4711", &refused, None, 70.0));
    assert!(
        job.contains("the provider refused what job 4711 ordered: image `ruby:3.3` does not exist"),
        "{job}"
    );
    let instance = words(explained("linux-7f3a-1", &refused, None, 70.0));
    assert!(instance.contains("the job that it was launched for needs it no longer"), "{instance}");
}
