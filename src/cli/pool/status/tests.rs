//! The whole output for operators.

use std::time::Duration;

use greenroom_core::attempt::End;
use greenroom_core::event::Change;
use greenroom_core::failure::{ErrorClass, Failure};
use greenroom_core::ids::{InstanceId, Location, PoolName};
use greenroom_core::instance::{Answer, DrainReason, Release};
use greenroom_core::job::JobFacts;
use greenroom_core::obstacle;
use greenroom_core::order::RefusedOrder;
use greenroom_core::policy::{IdlePolicy, Policy, ScheduledIdle};
use greenroom_core::pool::PoolState;
use greenroom_core::report::{Note, Report, WaitingOn};
use greenroom_core::schedule::{Schedule, ScheduleText};
use greenroom_ports::host_error::HostError;

use super::*;
use crate::cli::fixture::{EventFixture, at, attempt, endpoint, facts, id, ordering, pool, report, when};

fn shown(story: &EventFixture, report: Option<&Report>, keeper: &KeeperStatus, seconds: f64) -> String {
    let input =
        StatusInput { pool: &pool(), state: &story.state, report, keeper, links: None, containers: None };
    render(input, &when(seconds), 80)
}

/// The status of a pool while a keeper runs.
fn of<'a>(pool: &'a PoolName, story: &'a EventFixture, report: Option<&'a Report>) -> StatusInput<'a> {
    StatusInput {
        pool,
        state: &story.state,
        report,
        keeper: &KeeperStatus::Runs,
        links: None,
        containers: None,
    }
}

fn office_hours() -> Policy {
    let text = ScheduleText { periods: vec!["* 9-17 * * mon-fri".into()], timezone: "Europe/Berlin".into() };
    let idle = IdlePolicy { idle_count: 2, scale_factor: 0.5, ..IdlePolicy::default() };
    Policy {
        max_instances: 8,
        max_use_count: Some(2),
        schedules: vec![ScheduledIdle { when: Schedule::parse(text).unwrap(), idle }],
        ..Policy::default()
    }
}

/// One instance in each phase, two jobs waiting.
fn busy() -> EventFixture {
    let mut story = EventFixture::of(office_hours());
    for number in 1..=5 {
        story.ready(number, f64::from(number));
    }
    let protected = JobFacts { protected: true, ..facts(4711, "acme/shop") };
    story.asks_as("a", protected, 60.0).gets("a", 1, 60.2);
    story.asks("b", 4712, "acme/shop", 61.0).gets("b", 2, 61.2);
    story.leaves("b", End::CleanedUp, 100.0);
    story.then(100.0, Change::Rechecked { instance: id(2) });
    let broken = "the clean command ended with 1".to_owned();
    story.then(110.0, Change::OutOfService { instance: id(3), reason: broken });
    story.then(111.0, Change::DrainingBegun { instance: id(4), reason: DrainReason::Expired });
    story.then(112.0, Change::CleaningBegun { instance: id(5) });
    story.launched(6, 170.0);
    story.asks("c", 4713, "acme/a-very-long-group/with-a-long-project", 180.0);
    story.asks("d", 4714, "acme/shop", 185.0);
    story
}

#[test]
fn a_busy_pool_fits_into_80_columns() {
    let story = busy();
    let mut report = report(189.0);
    report.next = Some(at(196.0));
    report.waiting = vec![
        (attempt("c"), WaitingOn::Boot { instance: id(6) }),
        (attempt("d"), WaitingOn::Limit { in_use: 8, max_instances: 8, ahead: 1 }),
    ];
    report.launches = Some(WaitingOn::Rate { until: at(200.0) });
    let failure = Failure { class: ErrorClass::Transient, message: "503".into() };
    report.notes = vec![Note::CallsFailing { instance: id(4), failure, until: at(195.0) }];
    report.details = vec![(id(1), "resumed from a snapshot in 0.8 s".to_owned())];
    let text = shown(&story, Some(&report), &KeeperStatus::Runs, 192.0);
    let expected = "\
pool linux: 6 of 8 instances, 1 of 8 job slots in use, 2 jobs waiting
  policy: entry 1 (`* 9-17 * * mon-fri` Europe/Berlin) until 18:00:
    `idle_count = 2`, `idle_time = 20m`, `scale_factor = 0.5`
  idle: 1 of 2 wanted slots
  phases: 2 ready, 1 launching, 1 cleaning, 1 out of service, 1 draining
  keeper: running, last pass 3 s ago, next pass in 4 s
  launches: `launches_per_minute` is reached, until 14:03:20 (in 8 s)
  note: calls about linux-7f3a-4 fail repeatedly (transient error: 503), next
    try in 3 s

INSTANCE      PHASE           FOR     JOBS  SERVED  USES LEFT  BOUND TO
linux-7f3a-1  ready           2m 46s  4711  0       1          acme/shop
    bound to jobs of protected refs
    resumed from a snapshot in 0.8 s
linux-7f3a-2  ready           2m 45s  -     1       1          acme/shop
    idle for 1m 32s
linux-7f3a-6  launching       22 s    -     0       2          -
    booting, usually 24.7 s
linux-7f3a-5  cleaning        1m 20s  -     0       2          -
    being cleaned between jobs
linux-7f3a-3  out of service  1m 22s  -     0       2          -
    the clean command ended with 1
    return it to service with
    `greenroom pool resume linux --instance linux-7f3a-3`
linux-7f3a-4  draining        1m 21s  -     0       2          -
    older than `max_lifetime`

WAITING  JOB   PROJECT                   FOR   TIMES OUT
1        4713  …oup/with-a-long-project  12 s  in 29m 48s
    linux-7f3a-6 is booting, usually 24.7 s
2        4714  acme/shop                 7 s   in 29m 53s
    all 8 instances in use, limit 8 (`max_instances`), 1 job ahead
";
    assert_eq!(text, expected, "{text}");
}

/// Output without the line breaks of a terminal.
fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn an_instance_and_its_waiting_job_show_each_cause() {
    let mut story = EventFixture::of(office_hours());
    story.launched(1, 60.0);
    story.asks("a", 4711, "acme/shop", 61.0);
    for (obstacle, sentence) in obstacle::samples::each() {
        let mut report = report(70.0);
        report.obstacles = vec![(id(1), obstacle.clone())];
        report.waiting = vec![(attempt("a"), WaitingOn::Obstructed { instance: id(1), obstacle })];
        let text = unwrapped(&shown(&story, Some(&report), &KeeperStatus::Runs, 72.0));
        let sentence = sentence.replacen("h1", id(1).as_str(), 1);
        assert_eq!(text.matches(&sentence).count(), 2, "{sentence}: {text}");
        assert!(!text.contains("booting"), "{text}");
    }
    let mut report = report(70.0);
    let hosts = obstacle::samples::hosts();
    let sentence = hosts.to_string();
    report.waiting = vec![(attempt("a"), WaitingOn::NoHost { unusable: Some(hosts) })];
    let text = unwrapped(&shown(&story, Some(&report), &KeeperStatus::Runs, 72.0));
    assert!(text.contains(&sentence), "{text}");
}

#[test]
fn an_empty_pool_says_what_it_would_do() {
    let story = EventFixture::of(Policy { max_instances: 4, ..Policy::default() });
    let text = shown(&story, None, &KeeperStatus::Absent, 5.0);
    let expected = "\
pool linux: 0 of 4 instances, 0 of 4 job slots in use, 0 jobs waiting
  policy: the default: `idle_count = 0`, `idle_time = 20m`
  idle: 0 of 0 wanted slots
  keeper: not running, no pass yet; the next job or `greenroom reap` starts one
";
    assert_eq!(text, expected, "{text}");
}

#[test]
fn a_pool_that_no_keeper_has_seen_has_no_policy() {
    let keeper = KeeperStatus::Unknown(HostError::Io { what: "cannot open `keeper.lock`".into() });
    let pool = pool();
    let state = PoolState::default();
    let input = StatusInput {
        pool: &pool,
        state: &state,
        report: None,
        keeper: &keeper,
        links: None,
        containers: None,
    };
    let text = render(input, &when(0.0), 80);
    let expected = "\
pool linux: 0 of 0 instances, 0 of 0 job slots in use, 0 jobs waiting
  policy: none, no keeper has read the configuration yet
  idle: 0 of 0 wanted slots
  keeper: cannot be determined: cannot open `keeper.lock`
";
    assert_eq!(text, expected, "{text}");
}

fn failing(times: u32) -> EventFixture {
    let mut story = EventFixture::of(Policy { max_instances: 4, ..Policy::default() });
    story.launched(1, 1.0);
    story.then(2.5, Change::DrainingBegun { instance: id(1), reason: DrainReason::NeverReady });
    for number in 2..=times {
        story.launched(number, f64::from(number));
        let why = DrainReason::NotReady { message: "exit 1".into() };
        story.then(
            f64::from(number) + 2.0,
            Change::Reached { instance: id(number), endpoint: crate::cli::fixture::endpoint() },
        );
        story.then(f64::from(number) + 2.0, Change::DrainingBegun { instance: id(number), reason: why });
        story.then(f64::from(number) + 3.0, Change::Forgotten { instance: id(number) });
    }
    story.then(f64::from(times) + 9.0, Change::Forgotten { instance: id(1) });
    story
}

#[test]
fn a_drained_and_paused_pool_names_the_command_that_ends_it() {
    let mut story = failing(5);
    story.then(20.0, Change::PoolDrained);
    let text = shown(&story, Some(&report(19.0)), &KeeperStatus::Runs, 30.0);
    let expected = "\
pool linux: 0 of 4 instances, 0 of 4 job slots in use, 0 jobs waiting
  DRAINED: by the operator since 14:00:20 (10 s ago), no grants and no launches;
    resume with `greenroom pool resume linux`
  PAUSED: until 14:05:07 (in 4m 37s) after 5 failed launches in a row (last:
    transient error: linux-7f3a-5: its ready command failed: exit 1); resume now
    with `greenroom pool resume linux`
  policy: the default: `idle_count = 0`, `idle_time = 20m`
  idle: 0 of 0 wanted slots
  keeper: running, last pass 11 s ago
";
    assert_eq!(text, expected, "{text}");
}

#[test]
fn one_failed_launch_delays_the_next() {
    let text = shown(&failing(1), None, &KeeperStatus::Runs, 3.0);
    let line = "  launches: none until 14:00:07 (in 4 s), the last one failed (transient error:";
    assert!(text.lines().any(|l| l == line), "{text}");
}

/// The sentence beneath the only instance.
fn why(story: &EventFixture, seconds: f64) -> String {
    let text = shown(story, None, &KeeperStatus::Runs, seconds);
    let lines: Vec<&str> = text.lines().filter(|l| l.starts_with("    ")).map(str::trim).collect();
    lines.join(" ")
}

#[test]
fn each_state_of_a_launch_has_its_sentence() {
    let policy = || Policy { max_instances: 2, ..Policy::default() };
    let mut story = EventFixture::of(policy());
    story.launched(1, 1.0);
    assert_eq!(why(&story, 2.0), "booting");
    let answers = [
        (Answer::Pending, "launch requested, the provider has not answered yet"),
        (Answer::Unknown { at: at(2.0) }, "the launch got no answer: the instance may or may not exist"),
    ];
    for (answer, expected) in answers {
        let mut story = story.clone();
        story.then(3.0, Change::LaunchAnswered { instance: id(1), attempt: 1, answer });
        assert_eq!(why(&story, 4.0), expected);
    }
    let failure = Failure { class: ErrorClass::Quota, message: "20 vCPU".into() };
    let answer = Answer::Refused { at: at(3.0), failure };
    story.then(3.0, Change::LaunchAnswered { instance: id(1), attempt: 1, answer });
    assert!(why(&story, 4.0).ends_with("launch 1 refused: quota reached: 20 vCPU"), "{}", why(&story, 4.0));
}

#[test]
fn an_instance_in_doubt_says_so() {
    let mut story = EventFixture::of(Policy { max_instances: 2, max_use_count: None, ..Policy::default() });
    story.ready(1, 1.0);
    story.then(60.0, Change::MissingFromList { instance: id(1), begun: at(60.0) });
    assert_eq!(why(&story, 72.0), "missing from the provider's list for 12 s");
    story.then(73.0, Change::ListedAgain { instance: id(1) });
    story.asks("a", 7, "p/q", 80.0).gets("a", 1, 80.0);
    let leaving = Release { how: End::CleanedUp, used: true, closing: true };
    story.then(90.0, Change::Released { attempt: attempt("a"), release: leaving });
    assert_eq!(why(&story, 91.0), "closing, the last call is still running: job 7");
    let mut left = EventFixture::of(Policy { max_use_count: None, ..Policy::default() });
    left.ready(1, 1.0).asks("a", 7, "p/q", 80.0).gets("a", 1, 80.0).leaves("a", End::CleanedUp, 90.0);
    assert_eq!(why(&left, 91.0), "checked before it gets the next job");
    story.then(92.0, Change::DrainingBegun { instance: id(1), reason: DrainReason::UsedUp });
    assert_eq!(why(&story, 93.0), "it has served its last job; waiting for its jobs to finish");
}

#[test]
fn many_jobs_of_an_instance_are_counted() {
    let mut story =
        EventFixture::of(Policy { capacity_per_instance: 9, max_use_count: Some(50), ..Policy::default() });
    story.ready(1, 1.0);
    for job in 1..=5 {
        let name = format!("a{job}");
        story.asks(&name, 4710 + job, "p/q", 30.0).gets(&name, 1, 30.0);
    }
    let text = shown(&story, None, &KeeperStatus::Runs, 31.0);
    assert!(text.contains("4711 4712 4713 +2  0       45         p/q\n"), "{text}");
}

#[test]
fn json_says_the_same_under_stable_names() {
    let story = busy();
    let mut report = report(189.0);
    report.waiting = vec![(attempt("c"), WaitingOn::Boot { instance: id(6) })];
    report.notes = vec![Note::ListIncomplete];
    let value = as_json(of(&pool(), &story, Some(&report)), &when(192.0));
    assert_eq!(value["policy"]["until"], "2026-11-20T17:00:00Z");
    assert_eq!(value["keeper"]["runs"], true);
    assert_eq!(value["instances"][0]["jobs"][0]["job"], 4711);
    assert_eq!(value["instances"][4]["phase"], "out-of-service");
    assert_eq!(value["instances"][4]["remedy"], "greenroom pool resume linux --instance linux-7f3a-3");
    assert_eq!(value["waiting"][0]["waiting_for"]["kind"], "boot");
    assert_eq!(value["waiting"][0]["waiting_for"]["instance"], "linux-7f3a-6");
    assert_eq!(value["waiting"][1]["waiting_for"]["kind"], "next-pass");
    assert_eq!(value["notes"][0]["kind"], "list-incomplete");
    assert!(value["hosts"].is_null(), "no instance is a static host");
    let fields: Vec<&String> = value.as_object().unwrap().keys().collect();
    let expected = [
        "at",
        "container_engine",
        "containers",
        "drained_since",
        "hosts",
        "idle",
        "idle_target",
        "instance_count",
        "instances",
        "keeper",
        "launch_backoff",
        "launch_blocked_by",
        "notes",
        "offerings",
        "policy",
        "pool",
        "slots",
        "slots_in_use",
        "waiting",
    ];
    assert_eq!(fields, expected);
}

#[test]
fn neither_form_shows_a_key() {
    let mut story = busy();
    story.then(190.0, Change::Reached { instance: id(6), endpoint: crate::cli::fixture::endpoint() });
    let text = shown(&story, None, &KeeperStatus::Runs, 192.0);
    let value = as_json(of(&pool(), &story, None), &when(192.0)).to_string();
    for shown in [text, value] {
        assert!(!shown.contains("SECRET"), "{shown}");
    }
}

#[test]
fn a_glance_is_quick_even_if_the_policy_never_changes() {
    let text = ScheduleText { periods: vec!["* * * * *".into()], timezone: "Europe/Berlin".into() };
    let entry = ScheduledIdle { when: Schedule::parse(text).unwrap(), idle: IdlePolicy::default() };
    let story = EventFixture::of(Policy { schedules: vec![entry], ..Policy::default() });
    let begun = std::time::Instant::now();
    let shown = shown(&story, None, &KeeperStatus::Runs, 1.0);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(shown.contains("Europe/Berlin): `idle_count = 0`"), "{shown}");
}

fn none_left() -> Failure {
    Failure { class: ErrorClass::NoCapacity { scope: "us-east1-b".into() }, message: "pool exhausted".into() }
}

#[test]
fn a_pool_says_which_offerings_are_unavailable_and_until_when() {
    let spot = "us-east1-b n2d-standard-4 spot";
    let other = "us-east1-c n2d-standard-4";
    let mut story = EventFixture::of(Policy { max_instances: 4, ..Policy::default() });
    story.offerings(&[spot, other]).refused(1, 1, none_left(), 10.0);
    story.asks("a", 4711, "acme/shop", 9.0);
    let text = shown(&story, None, &KeeperStatus::Runs, 12.0);
    assert!(
        text.contains("\n  offering: us-east1-b n2d-standard-4 spot: no capacity, next try in 1m 59s\n"),
        "{text}"
    );
    story.intended(1, 2, 12.0);
    let name = pool();
    let keeper = KeeperStatus::Runs;
    let input = StatusInput {
        pool: &name,
        state: &story.state,
        report: None,
        keeper: &keeper,
        links: None,
        containers: None,
    };
    let text = render(input, &when(13.0), 80);
    assert!(text.contains("\n    launched as us-east1-c n2d-standard-4\n"), "{text}");
    let value = as_json(input, &when(13.0));
    let passed = &value["offerings"][0]["unavailable"];
    assert_eq!(value["offerings"][0]["offering"], spot);
    assert_eq!(passed["text"], format!("{spot}: no capacity"));
    assert_eq!(passed["failure"], "no capacity (us-east1-b): pool exhausted");
    assert_eq!((&passed["refused"], &passed["times"]), (&"2026-11-20T13:00:11Z".into(), &1.into()));
    assert_eq!(passed["until"], "2026-11-20T13:02:11Z");
    assert_eq!(value["offerings"][1]["unavailable"], serde_json::Value::Null);
    assert_eq!(value["instances"][0]["offering"], other);
    let mut report = report(12.0);
    let offering = story.state.availability.offerings()[0].clone();
    let failure = none_left();
    let until = at(131.0);
    report.waiting = vec![(attempt("a"), WaitingOn::NoOffering { until, offering, failure, count: 2 })];
    let value = as_json(StatusInput { report: Some(&report), ..input }, &when(13.0));
    let on = &value["waiting"][0]["waiting_for"];
    assert_eq!((&on["kind"], &on["until"]), (&"no-offering".into(), &"2026-11-20T13:02:11Z".into()));
    assert_eq!(
        on["text"],
        format!("all 2 offerings are unavailable; {spot}: no capacity, next try in 1m 58s")
    );
}

#[test]
fn an_instance_in_another_location_says_where_it_is() {
    let story = busy();
    let mut report = report(189.0);
    assert!(!shown(&story, Some(&report), &KeeperStatus::Runs, 192.0).contains("does not list now"));
    let location = Location::new("here");
    let here = Location::new("gce project test");
    report.notes = vec![Note::Elsewhere { instances: 5, location, here }];
    let text = shown(&story, Some(&report), &KeeperStatus::Runs, 192.0);
    assert!(text.contains("in here, which the provider does not list now"), "{text}");
}

#[test]
fn a_pool_of_static_hosts_says_which_domains_they_serve() {
    let policy =
        |clean_unbinds| Policy { max_use_count: None, max_instances: 2, clean_unbinds, ..Policy::default() };
    let hosts = |clean_unbinds| {
        let mut story = EventFixture::of(policy(clean_unbinds));
        for (host, seconds) in [("metal-1", 1.0), ("metal-2", 2.0)] {
            let instance = InstanceId::new(host);
            let endpoint = endpoint();
            story.then(seconds, Change::Adopted { instance, endpoint, capacity: 1, uses_left: None });
            story.then(seconds + 1.0, Change::BecameReady { instance: InstanceId::new(host) });
        }
        story.asks_as("a", JobFacts { protected: true, ..facts(4711, "acme/shop") }, 10.0);
        story.then(11.0, Change::Granted { attempt: attempt("a"), instance: InstanceId::new("metal-1") });
        story.leaves("a", End::CleanedUp, 20.0);
        story
    };
    let text = shown(&hosts(false), None, &KeeperStatus::Runs, 30.0);
    for line in [
        "hosts: each stays with the trust domain of its first job, 1 of 2 are bound",
        "stays with protected refs of acme/shop;",
        "`greenroom pool resume linux --instance metal-1 --unbind` releases it",
    ] {
        assert!(text.contains(line), "{line}:\n{text}");
    }
    for (clean_unbinds, kind) in [(false, "first-domain"), (true, "any-domain")] {
        let value = as_json(of(&pool(), &hosts(clean_unbinds), None), &when(30.0));
        assert_eq!(value["hosts"]["kind"], kind);
        assert_eq!((&value["hosts"]["count"], &value["hosts"]["bound"]), (&2.into(), &1.into()));
    }
    let text = shown(&hosts(true), None, &KeeperStatus::Runs, 30.0);
    assert!(text.contains("hosts: each serves any trust domain after it was cleaned"), "{text}");
    assert!(text.contains("bound to jobs of protected refs") && !text.contains("--unbind"), "{text}");
}

#[test]
fn an_instance_that_a_job_ordered_says_so_and_the_job_says_what_it_waits_for() {
    let mut story = EventFixture::of(Policy { max_instances: 2, ..Policy::default() });
    story.ready(1, 1.0);
    story.asks_as("own", ordering(4711, "acme/shop", "ruby:3.3"), 60.0).launched_for(2, "own", 61.0);
    let mut seen = report(62.0);
    seen.waiting = vec![(attempt("own"), WaitingOn::Boot { instance: id(2) })];
    let words = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = words(shown(&story, Some(&seen), &KeeperStatus::Runs, 70.0));
    for line in [
        "booting launched for job 4711: image `ruby:3.3`, 2 services",
        "an instance of its own (image `ruby:3.3`, 2 services): linux-7f3a-2 is booting",
    ] {
        assert!(text.contains(line), "{line}:\n{text}");
    }
    let value = as_json(of(&pool(), &story, Some(&seen)), &when(70.0));
    let ordered = &value["instances"][1]["ordered"];
    let order = &value["waiting"][0]["order"];
    assert_eq!((&ordered["job"], &ordered["image"]), (&4711.into(), &"ruby:3.3".into()), "{value}");
    assert_eq!(order["services"], serde_json::json!(["postgres:17", "redis:8"]), "{value}");
    assert!(value["instances"][0].get("ordered").is_none(), "{value}");
    let refused = RefusedOrder { reason: "image `ruby:3.3` does not exist".to_owned(), by_job: true };
    story.then(71.0, Change::OrderRefused { attempt: attempt("own"), refused });
    let text = words(shown(&story, Some(&seen), &KeeperStatus::Runs, 72.0));
    assert!(text.contains("what it ordered cannot be made: image `ruby:3.3` does not exist"), "{text}");
}

/// 500 instances: half of them with jobs, one out of service, one unreachable, one draining, eight launching; jobs wait.
fn crowd() -> EventFixture {
    let idle = IdlePolicy { idle_count: 20, ..IdlePolicy::default() };
    let mut story =
        EventFixture::of(Policy { max_instances: 600, max_use_count: None, idle, ..Policy::default() });
    for number in 1..=492 {
        story.ready(number, 0.0);
    }
    for number in 493..=500 {
        story.launched(number, 50.0);
    }
    for number in 1..=250 {
        let name = format!("a{number}");
        story.asks(&name, 4000 + u64::from(number), "acme/shop", 60.0).gets(&name, number, 60.0);
    }
    story.then(70.0, Change::OutOfService { instance: id(300), reason: "the clean command failed".into() });
    story.then(71.0, Change::BecameUnreachable { instance: id(301), reason: "no route".into() });
    story.then(72.0, Change::DrainingBegun { instance: id(302), reason: DrainReason::Expired });
    for job in 1..=30 {
        story.asks(&format!("w{job}"), 9000 + job, "acme/other", 80.0);
    }
    story
}

fn on_screen(story: &EventFixture, lines: Option<usize>, bar: bool) -> String {
    let pool = pool();
    let input = StatusInput {
        pool: &pool,
        state: &story.state,
        report: None,
        keeper: &KeeperStatus::Runs,
        links: None,
        containers: None,
    };
    render_on(input, &when(100.0), (100, lines), bar)
}

#[test]
fn hundreds_of_instances_fit_on_a_screen_that_says_what_it_leaves_out() {
    let story = crowd();
    for lines in [24, 40, 60] {
        let text = on_screen(&story, Some(lines), true);
        assert!(text.lines().count() <= lines, "{lines}: {}\n{text}", text.lines().count());
        assert!(text.contains("greenroom pool status linux --wide"), "{text}");
        assert!(text.contains("more waiting jobs"), "{text}");
    }
    let text = on_screen(&story, Some(40), true);
    for needing_attention in ["linux-7f3a-300", "linux-7f3a-301", "linux-7f3a-302", "no route"] {
        assert!(text.contains(needing_attention), "{needing_attention}: {text}");
    }
    let shown = text.lines().filter(|line| line.starts_with("linux-7f3a-")).count();
    let left_out = format!("… {} more instances (", 500 - shown);
    assert!(text.contains(&left_out) && text.contains("250 ready with jobs"), "{left_out}: {text}");
}

#[test]
fn a_wide_status_has_a_row_for_each_instance_and_job() {
    let text = on_screen(&crowd(), None, false);
    assert_eq!(text.lines().filter(|line| line.starts_with("linux-7f3a-")).count(), 500);
    assert!(!text.contains("more"), "{text}");
}

#[test]
fn few_instances_are_shown_whole_on_the_smallest_screen() {
    let mut story = EventFixture::of(Policy { max_instances: 2, ..Policy::default() });
    story.ready(1, 1.0);
    let text = on_screen(&story, Some(1), false);
    let wide = on_screen(&story, None, false);
    assert_eq!(text, wide);
}

#[test]
fn the_bar_has_a_sign_for_whatever_there_is() {
    let text = on_screen(&crowd(), Some(40), true);
    let bar: Vec<&str> = text.lines().skip(1).take(2).collect();
    let signs = bar[0].strip_prefix("  slots: [").and_then(|rest| rest.strip_suffix(']')).unwrap();
    assert_eq!(signs.len(), 60, "{bar:?}");
    assert_eq!(signs.matches('#').count(), 25, "{bar:?}");
    let mut kinds: Vec<char> = signs.chars().collect();
    kinds.dedup();
    assert_eq!(kinds, ['#', '=', '~', 'x', '.'], "{bar:?}");
    assert_eq!(bar[1], "  # 250 in use, = 239 idle, ~ 8 on their way, x 3 out of use, . 100 not launched");
    let mut few = EventFixture::of(Policy { max_instances: 3, ..Policy::default() });
    few.ready(1, 1.0);
    assert!(on_screen(&few, Some(40), true).contains("  slots: [=..]\n"));
    few.stopped(1, 30.0);
    assert!(on_screen(&few, Some(40), true).contains("  slots: [z..]\n  z 1 stopped, . 2 not launched\n"));
    few.then(40.0, Change::ResumeIntended { instance: id(1) });
    assert!(on_screen(&few, Some(40), true).contains("  slots: [~..]\n"));
}
