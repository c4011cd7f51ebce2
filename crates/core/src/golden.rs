//! Holds persisted types to recorded lines.
//!
//! `tests/fixtures/format-2/` of each package has lines that earlier versions of this program wrote in format 2. Every later
//! version must read them, and write back what it read. A renamed field or variant, or a new field without a default, fails here.
//! Lines are only ever appended: a test prints those that are missing.

#![expect(clippy::panic, reason = "tests fail by panicking, in helpers too")]

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::attempt::End;
use super::ids::JobKey;
use super::instance::DrainReason;
use super::job::JobFacts;

/// The recorded lines of a file in `tests/fixtures/format-2/` of the package that names it.
#[macro_export]
macro_rules! recorded {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/format-2/", $name))
    };
}
pub use crate::recorded;

/// Reads each recorded line and compares what it writes back; then expects a line for each sample.
pub fn hold<T: Serialize + DeserializeOwned>(recorded: &str, samples: &[T]) {
    let mut known: Vec<Value> = Vec::new();
    for line in recorded.lines() {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let read: T = serde_json::from_str(line)
            .unwrap_or_else(|error| panic!("format 2 is not read: {error}: {line}"));
        let written = serde_json::to_value(&read).expect("what was read can be written");
        assert_eq!(written, value, "format 2 is read, but not written back");
        known.push(value);
    }
    let missing: Vec<String> = samples
        .iter()
        .filter(|sample| !known.contains(&serde_json::to_value(sample).expect("a sample can be written")))
        .map(|sample| serde_json::to_string(sample).expect("a sample can be written"))
        .collect();
    assert!(missing.is_empty(), "append these lines to the file:\n{}", missing.join("\n"));
}

/// Expects every variant of an enum among the recorded lines. `unknown` is JSON of the enum with an unknown variant:
/// the resulting error lists the others.
pub fn covers<T: DeserializeOwned>(recorded: &str, unknown: &str) {
    let Err(error) = serde_json::from_str::<T>(unknown) else { panic!("{unknown} is a variant") };
    let error = error.to_string();
    let variants: Vec<&str> = error.split('`').skip(3).step_by(2).collect();
    assert!(!variants.is_empty(), "no variants in: {error}");
    for variant in variants {
        assert!(recorded.contains(&format!("\"{variant}\"")), "no recorded line has `{variant}`");
    }
}

/// One of each.
pub fn drain_reasons() -> Vec<DrainReason> {
    let message = || "exit status 3".to_owned();
    vec![
        DrainReason::UsedUp,
        DrainReason::Surplus,
        DrainReason::Expired,
        DrainReason::MadeRoom,
        DrainReason::ByOperator,
        DrainReason::NeverReady,
        DrainReason::NotReady { message: message() },
        DrainReason::Stopped,
        DrainReason::Vanished,
        DrainReason::Announced { notice: "will be reclaimed by EC2 (spot)".to_owned() },
        DrainReason::Broken { message: message() },
        DrainReason::Unresponsive { message: message() },
        DrainReason::Rebooted,
        DrainReason::Unaccounted,
        DrainReason::LaunchedAfterRefusal,
        DrainReason::BeginsNoStage { message: message() },
        DrainReason::FailedCheck { message: message() },
        DrainReason::NotSuspended { message: message() },
        DrainReason::NotResumed { message: message() },
        DrainReason::Abandoned,
        DrainReason::Unfit { message: message() },
        DrainReason::FailsEarly { message: message() },
    ]
}

pub fn ends() -> [End; 8] {
    [
        End::CleanedUp,
        End::Superseded,
        End::GivenBack,
        End::Rebooted,
        End::RunnerGone,
        End::TmpdirGone,
        End::Unused,
        End::Overrun,
    ]
}

/// A job with a value in each field.
pub fn job() -> JobFacts {
    let key = JobKey::new("https://gitlab.example.com", 4711);
    JobFacts {
        pipeline: Some(99),
        stage: JobFacts::text("test"),
        name: JobFacts::text("rspec 1/5"),
        git_ref: JobFacts::text("main"),
        protected: true,
        ..JobFacts::new(key, "acme/shop", Duration::from_hours(1))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::endpoint::{Endpoint, Forward, Jump, LoginKey};
    use crate::event::{Change, Event};
    use crate::failure::{ErrorClass, Failure};
    use crate::ids::{AttemptName, Generation, InstanceId, Location, OfferingName, TrustDomain};
    use crate::images::{FoundImage, WarmPolicy};
    use crate::instance::{Answer, Release};
    use crate::job_end::{JobEnd, JobResult};
    use crate::metadata::MetadataService;
    use crate::notation::{self, NOW, world};
    use crate::obstacle::{Cause, Obstacle, UnusableHosts};
    use crate::order::{Order, Ordered, RefusedOrder};
    use crate::own_key;
    use crate::policy::{IdlePolicy, Lifetime, Policy, Reuse, ScheduledIdle, Timing};
    use crate::pool::PoolState;
    use crate::report::{ApiCalls, FailedBoot, Note, Report, WaitingOn};
    use crate::schedule::{Schedule, ScheduleText};
    use crate::time::Stamp;
    use crate::unbegun::CheckKind;

    const EVENTS: &str = recorded!("events.jsonl");
    const STATES: &str = recorded!("states.jsonl");
    const REPORTS: &str = recorded!("reports.jsonl");

    fn instance() -> InstanceId {
        InstanceId::new("linux-7f3a09c1-12")
    }

    fn attempt() -> AttemptName {
        AttemptName::new("custom-executor4711")
    }

    fn offering() -> OfferingName {
        OfferingName::new("us-east1-b n2d-standard-4 spot")
    }

    fn failure(class: ErrorClass) -> Failure {
        Failure { class, message: "the provider's words".to_owned() }
    }

    /// One of each class.
    fn failures() -> Vec<Failure> {
        [
            ErrorClass::NotFound,
            ErrorClass::NoCapacity { scope: "us-east1-b".to_owned() },
            ErrorClass::Quota,
            ErrorClass::Denied,
            ErrorClass::Invalid,
            ErrorClass::Throttled { until: Some(NOW) },
            ErrorClass::Transient,
            ErrorClass::Unknown,
        ]
        .map(failure)
        .into()
    }

    fn endpoints() -> [Endpoint; 6] {
        let plain = Endpoint {
            address: "192.0.2.7".to_owned(),
            port: 22,
            user: "ci".to_owned(),
            host_key: "ssh-ed25519 AAAA".to_owned(),
            key: None,
            jump: None,
            forward: None,
            metadata: None,
        };
        let agent = LoginKey::Agent { socket: "/run/agent".into(), key: Some("ssh-rsa AAAA".to_owned()) };
        let jump = Jump {
            address: "jump.example".to_owned(),
            port: 2222,
            user: "hop".to_owned(),
            host_key: "ssh-ed25519 BBBB".to_owned(),
            key: LoginKey::File("/etc/greenroom/jump_key".into()),
        };
        let forward = Forward {
            kubeconfig: vec!["/etc/greenroom/kubeconfig".into()],
            context: Some("ci".to_owned()),
            namespace: "ci-jobs".to_owned(),
            pod: "linux-c0ffee-7".to_owned(),
            uid: "0f7c".to_owned(),
        };
        [
            Endpoint { key: Some(LoginKey::File("/etc/greenroom/key".into())), ..plain.clone() },
            Endpoint { key: Some(agent), jump: Some(Box::new(jump)), ..plain.clone() },
            Endpoint { metadata: Some(MetadataService::AwsEc2), ..plain.clone() },
            Endpoint { forward: Some(Box::new(forward)), ..plain.clone() },
            Endpoint { key: Some(LoginKey::Password("/etc/greenroom/password".into())), ..plain.clone() },
            plain,
        ]
    }

    fn policy() -> Policy {
        let idle = IdlePolicy {
            idle_count: 2,
            idle_time: Duration::from_mins(20),
            scale_factor: 0.5,
            scale_factor_limit: 3,
        };
        let text = ScheduleText {
            periods: vec!["* 8-17 * * mon-fri".to_owned()],
            timezone: "Europe/Berlin".to_owned(),
        };
        let schedule = Schedule::parse(text).expect("it is valid");
        Policy {
            max_lifetime: Some(Lifetime(Duration::from_hours(8))),
            extends_lifetime: true,
            max_use_count: Some(3),
            reuse: Reuse::Namespace,
            clean_unbinds: true,
            idle,
            schedules: vec![ScheduledIdle { when: schedule, idle }],
            ..Policy::default()
        }
    }

    fn warm_policy() -> Policy {
        let images = vec!["docker.io/library/ruby:3.3".into()];
        let timing = Timing { image_check_interval: Duration::from_mins(1), ..Timing::default() };
        Policy { warm: WarmPolicy { images, ..WarmPolicy::default() }, timing, ..Policy::default() }
    }

    fn tier_policy() -> Policy {
        let suspend_timeout = Duration::from_mins(1);
        let resume_timeout = Duration::from_secs(40);
        let timing = Timing { suspend_timeout, resume_timeout, ..Timing::default() };
        Policy { idle_stopped: 2, timing, ..Policy::default() }
    }

    fn learning() -> WarmPolicy {
        WarmPolicy { learn: Some(10 << 30), ..WarmPolicy::default() }
    }

    fn launches() -> Vec<Change> {
        let intended = |offering: Option<OfferingName>| Change::LaunchIntended {
            instance: instance(),
            generation: Generation::new("7f3a09c1"),
            number: 12,
            attempt: 1,
            capacity: 2,
            uses_left: Some(1),
            location: offering.is_some().then(|| Location::new("gce project shop")),
            lifetime: offering.is_some().then_some(Lifetime(Duration::from_hours(24))),
            ordered: None,
            offering,
        };
        let refused = failures().into_iter().map(|failure| Answer::Refused { at: NOW, failure });
        let answers = [Answer::Pending, Answer::Accepted { at: NOW }, Answer::Unknown { at: NOW }];
        let answered = |answer| Change::LaunchAnswered { instance: instance(), attempt: 1, answer };
        let mut all = vec![intended(None), intended(Some(offering()))];
        all.extend(answers.into_iter().chain(refused).map(answered));
        all
    }

    fn not_begun(kind: CheckKind) -> Change {
        Change::StageNotBegun { attempt: attempt(), reason: "exit status 97".to_owned(), kind }
    }

    fn jobs() -> Vec<Change> {
        let requested = Change::Requested {
            attempt: attempt(),
            job: job(),
            domain: TrustDomain::new("acme/shop"),
            acquire_timeout: Duration::from_mins(30),
        };
        let released = |how, used| Change::Released {
            attempt: attempt(),
            release: Release { how, used, closing: used },
        };
        let mut all = vec![
            requested,
            Change::Granted { attempt: attempt(), instance: instance() },
            Change::Rejected { attempt: attempt(), message: "no answer".to_owned() },
            not_begun(CheckKind::Stages),
            Change::StageBegun { instance: instance(), kind: CheckKind::Stages },
            not_begun(CheckKind::Engine),
            Change::StageBegun { instance: instance(), kind: CheckKind::Network },
            Change::Rechecked { instance: instance() },
            Change::FailedEarly {
                attempt: attempt(),
                reason: "`get_sources` failed after 0.3 s with exit status 128".to_owned(),
            },
            Change::ImagesFound { instance: instance(), images: found_images(), attempt: None },
            Change::ImagesFound { instance: instance(), images: Vec::new(), attempt: Some(attempt()) },
            Change::ImagesRemoved { instance: instance(), images: vec!["docker.io/library/ruby:3.3".into()] },
            released(End::CleanedUp, true),
            Change::SlotFreed { attempt: attempt() },
            Change::JobEnded { attempt: attempt(), end: JobEnd::new(JobResult::Passed, "") },
            Change::JobEnded { attempt: attempt(), end: JobEnd::new(JobResult::SystemFailed, "no answer") },
        ];
        all.extend(ends().map(|how| Change::Withdrawn { attempt: attempt(), how }));
        all.extend(ends().map(|how| released(how, false)));
        all
    }

    fn found_images() -> Vec<FoundImage> {
        let name = || "docker.io/library/ruby:3.3".into();
        let digest = Some("sha256:0a".into());
        vec![
            FoundImage { name: name(), digest, bytes: 480 << 20 },
            FoundImage { name: name(), digest: None, bytes: 0 },
        ]
    }

    fn events() -> Vec<Event> {
        let mut all = vec![
            Change::PolicySet { policy: Arc::new(policy()) },
            Change::PolicySet { policy: Arc::new(warm_policy()) },
            Change::PolicySet { policy: Arc::new(Policy { warm: learning(), ..Policy::default() }) },
            Change::PolicySet { policy: Arc::new(Policy { clean_unbinds: true, ..Policy::default() }) },
            Change::GenerationBegun { generation: Generation::new("7f3a09c1") },
            Change::OfferingsChanged { offerings: vec![offering()] },
            Change::BecameReady { instance: instance() },
            Change::SuspendIntended { instance: instance() },
            Change::Suspended { instance: instance() },
            Change::ResumeIntended { instance: instance() },
            Change::PolicySet { policy: Arc::new(tier_policy()) },
            Change::Resized { instance: instance(), capacity: 3 },
            Change::Readdressed { instance: instance(), endpoint: endpoints()[0].clone() },
            Change::BecameUnreachable { instance: instance(), reason: "no route".to_owned() },
            Change::CleaningBegun { instance: instance() },
            Change::Cleaned { instance: instance(), images: Vec::new() },
            Change::Cleaned { instance: instance(), images: vec!["docker.io/library/ruby:3.3".into()] },
            Change::OutOfService { instance: instance(), reason: "exit status 1".to_owned() },
            Change::ReturnedToService { instance: instance() },
            Change::Unbound { instance: instance() },
            Change::MissingFromList { instance: instance(), begun: NOW },
            Change::Located { instance: instance(), location: Location::new("gce project shop") },
            Change::ListedAgain { instance: instance() },
            Change::Forgotten { instance: instance() },
            Change::RecordDropped { instance: instance(), problem: "no answer".to_owned() },
            Change::PoolDrained,
            Change::PoolResumed,
        ];
        all.extend(endpoints().map(|endpoint| Change::Reached { instance: instance(), endpoint }));
        all.extend([None, Some(5)].map(|uses_left| Change::Adopted {
            instance: instance(),
            endpoint: endpoints()[1].clone(),
            capacity: 1,
            uses_left,
        }));
        all.extend(launches());
        all.extend(jobs());
        let drained = |reason| Change::DrainingBegun { instance: instance(), reason };
        all.extend(drain_reasons().into_iter().map(drained));
        all.extend(orders());
        all.into_iter().map(|change| change.at(NOW)).collect()
    }

    fn orders() -> [Change; 5] {
        let order = |services: &[&str]| {
            let services = services.iter().map(|service| Arc::from(*service)).collect();
            Arc::new(Order { image: "ruby:3.3".into(), services, more_services: 0 })
        };
        let job = job();
        let domain = TrustDomain::new("acme/shop");
        let job_key = job.key.clone();
        let order_of_two = order(&["postgres:17"]);
        let ordered =
            Ordered { attempt: attempt(), job: job_key, domain: domain.clone(), order: order_of_two };
        let refused = |reason: &str, by_job| Change::OrderRefused {
            attempt: attempt(),
            refused: RefusedOrder { reason: reason.to_owned(), by_job },
        };
        let failure = failure(ErrorClass::Order { by_job: true });
        [
            Change::LaunchIntended {
                instance: instance(),
                generation: Generation::new("7f3a09c1"),
                number: 12,
                attempt: 1,
                capacity: 1,
                uses_left: Some(1),
                offering: None,
                location: None,
                lifetime: None,
                ordered: Some(Arc::new(ordered)),
            },
            Change::LaunchAnswered {
                instance: instance(),
                attempt: 1,
                answer: Answer::Refused { at: NOW, failure },
            },
            refused("image `ruby:3.3` does not exist", true),
            refused("larger than a LimitRange allows", false),
            Change::Requested {
                attempt: attempt(),
                job: JobFacts { order: Some(order(&[])), ..job },
                domain,
                acquire_timeout: Duration::from_mins(30),
            },
        ]
    }

    /// States with a value in each of their fields.
    fn states() -> Vec<PoolState> {
        [
            "",
            "max 9, cap 2 | requested 5s; booting 20s; checking 30s; idle 5m; held 3m by 7,8 of b unchecked; held 1m closing 9; \
             cleaning 5s; out-of-service 1h; draining 9s; static idle 2m; idle 4m missing 40s; refused 9s; waits 10",
            "offerings 3, out c1 30s 4, quota c2 1m | refused 5s as c3; booting 10s as c1; waits 11 of b timeout 2h",
            "drained | held 5m by 7; waits 8 dead",
            "max 9 | idle 5m of b unbegun unchecked; static idle 5m of b unbegun twice unchecked",
            "warm ruby | idle 5m has ruby,go checked 1m; held 5m by 7 has ruby; waits 8 wants ruby,go",
            "learn 2000000 | idle 5m; waits 8 wants ruby; waits 9 wants ruby; idle 5m has ruby",
            "bound, forgotten | static idle 5m of b unchecked; static out-of-service 1h",
            "uses 3 | idle 5m of b",
            "tier 3, unsuspended 2 10s | suspending 5s; stopped 5m; resuming 5s; waits 8",
        ]
        .map(|text| world(text).state)
        .into_iter()
        .chain([suspect()])
        .collect()
    }

    /// Jobs of one project have failed early on an instance, and others passed elsewhere.
    fn suspect() -> PoolState {
        let mut world = world("max 2 | held 5m by 7; held 5m by 8");
        world.tell(
            NOW,
            Change::FailedEarly { attempt: notation::attempt(7), reason: "exit status 128".to_owned() },
        );
        let end = JobEnd::new(JobResult::Passed, "");
        world.tell(NOW, Change::JobEnded { attempt: notation::attempt(8), end });
        world.state
    }

    #[test]
    fn events_of_format_2_are_read() {
        hold(EVENTS, &events());
        covers::<Change>(EVENTS, r#"{"event":"?"}"#);
        covers::<DrainReason>(EVENTS, r#""?""#);
        covers::<Answer>(EVENTS, r#""?""#);
        covers::<ErrorClass>(EVENTS, r#"{"class":"?"}"#);
        covers::<End>(EVENTS, r#""?""#);
        covers::<LoginKey>(EVENTS, r#""?""#);
    }

    #[test]
    fn states_of_format_2_are_read() {
        hold(STATES, &states());
        covers::<crate::instance::Phase>(STATES, r#""?""#);
    }

    fn stage_check(kind: CheckKind) -> WaitingOn {
        WaitingOn::StageCheck { instance: instance(), kind }
    }

    /// Reports about checks of instances, and about instances that jobs order.
    fn of_checks_and_orders(until: Stamp) -> [Report; 4] {
        let unfit = Note::Unfit { instance: instance(), reason: "disk full".to_owned() };
        let waiting = vec![(attempt(), WaitingOn::Recheck { instance: instance() })];
        let rechecked = Report { waiting, notes: vec![unfit], ..Report::new(NOW, 47) };
        let waiting = vec![(attempt(), stage_check(CheckKind::Engine))];
        let checked = Report { waiting, ..Report::new(NOW, 48) };
        let own = WaitingOn::OwnLaunch { until, failure: failure(ErrorClass::Transient) };
        let waiting =
            vec![(attempt(), WaitingOn::OrderedLaunches { under_way: 5, at_most: 5 }), (attempt(), own)];
        let notes = vec![Note::ListImplausible { missing: 3, answering: 2 }];
        let own_keys = own_key::tests::each().into_iter().map(Note::OwnKey).collect();
        let own_keys = Report { notes: own_keys, ..Report::new(NOW, 50) };
        [rechecked, checked, Report { waiting, notes, ..Report::new(NOW, 49) }, own_keys]
    }

    fn no_host(out_of_service: u32, unreachable: u32, bound: u32) -> WaitingOn {
        let first = "h1 is out of service: exit status 1".to_owned();
        let of = out_of_service + unreachable;
        WaitingOn::NoHost { unusable: Some(UnusableHosts { of, out_of_service, unreachable, first, bound }) }
    }

    #[test]
    fn reports_of_format_2_are_read() {
        let failure = || failure(ErrorClass::Transient);
        let instance = instance();
        let until = NOW;
        let obstacle = Obstacle {
            cause: Cause::LoginDenied,
            at: "192.0.2.7:22".to_owned(),
            detail: "it does not accept the key SHA256:a".to_owned(),
        };
        let waiting = [
            WaitingOn::Boot { instance: instance.clone() },
            WaitingOn::Limit { in_use: 4, max_instances: 4, ahead: 1 },
            WaitingOn::Room { instance: instance.clone() },
            WaitingOn::Launching { under_way: 2, at_most: 2 },
            WaitingOn::Rate { until },
            WaitingOn::Backoff { until, failure: failure() },
            WaitingOn::Paused { until, failures: 5, failure: failure() },
            WaitingOn::NoOffering { until, offering: offering(), failure: failure(), count: 3 },
            WaitingOn::Cleaning { instance: instance.clone() },
            WaitingOn::Unreachable { instance: instance.clone(), reason: "no route".to_owned() },
            WaitingOn::Obstructed { instance: instance.clone(), obstacle: obstacle.clone() },
            WaitingOn::HostCheck { instance: instance.clone() },
            WaitingOn::Drained { since: NOW },
            WaitingOn::Moved { problem: "moved".to_owned() },
            WaitingOn::Elsewhere {
                instances: 2,
                location: Location::new("gce project shop"),
                here: Location::new("gce project test"),
            },
            WaitingOn::Disk { problem: "disk full".to_owned() },
            WaitingOn::TooLong { timeout: Duration::from_hours(2), max_lifetime: Duration::from_hours(1) },
            WaitingOn::NoHost { unusable: None },
            no_host(1, 1, 0),
            no_host(1, 0, 2),
            WaitingOn::NextPass,
            WaitingOn::Bound { hosts: 2, instance: instance.clone() },
        ];
        let boot = FailedBoot {
            instance: instance.clone(),
            at: NOW,
            reason: DrainReason::NeverReady,
            cause: Some("shut itself down".to_owned()),
            console: vec!["no root".to_owned()],
        };
        let notes = vec![
            Note::ListFailed { failure: failure() },
            Note::ListIncomplete,
            Note::OwnerConflict { instances: vec![instance.clone()] },
            Note::Copies { names: vec!["i-0abc".to_owned()] },
            Note::Elsewhere {
                instances: 2,
                location: Location::new("gce project shop"),
                here: Location::new("gce project test"),
            },
            Note::LocationUnknown { instances: 1 },
            Note::OverLimit { alive: 5, max_instances: 4 },
            Note::CallsFailing { instance: instance.clone(), failure: failure(), until },
            Note::ImageNotPulled { image: "ruby".into(), instances: 2, failure: failure(), until },
            Note::Announced { instance: instance.clone(), notice: "will be reclaimed".to_owned() },
            Note::Suspect { instance: instance.clone(), cause: Some("reclaimed".to_owned()), by_job: false },
            Note::HostSuspected { unreachable: 3, responding: 1, reason: "no answer".to_owned(), until },
            Note::Unavailable { instance: instance.clone(), reason: "no route".to_owned() },
            Note::BootFailed(boot),
            Note::ConfigInvalid { problem: "line 3".to_owned() },
            Note::Moved { problem: "moved".to_owned() },
        ];
        let report = Report {
            schedule: Some(0),
            rows: vec![(instance.clone(), 11)],
            details: vec![(instance.clone(), "spot".to_owned())],
            obstacles: vec![(instance.clone(), obstacle)],
            waiting: waiting.into_iter().map(|on| (attempt(), on)).collect(),
            launches: Some(WaitingOn::Rate { until }),
            notes,
            next: Some(NOW),
            ..Report::new(NOW, 42)
        };
        let problem = "`job` is damaged".to_owned();
        let unreadable = Note::AttemptUnreadable { attempt: attempt(), problem };
        let waiting = vec![(attempt(), stage_check(CheckKind::Stages))];
        let later = Report { waiting, notes: vec![unreadable], ..Report::new(NOW, 43) };
        let suspensions = Note::SuspensionsFail { failures: 2, failure: failure(), until };
        let waiting = vec![(attempt(), WaitingOn::Resume { instance: self::instance() })];
        let notes = vec![Note::CannotSuspend, suspensions];
        let tier = Report { waiting, notes, ..Report::new(NOW, 45) };
        let api_calls = Some(ApiCalls { ok: 4, failed: 3, throttled: 2, postponed: 1 });
        let counted = Report { listed: Some(NOW), api_calls, ..Report::new(NOW, 44) };
        let cause = Some("ran out of its 4Gi of memory".to_owned());
        let by_job = Note::Suspect { instance: self::instance(), cause, by_job: true };
        let blamed = Report { notes: vec![by_job], ..Report::new(NOW, 46) };
        hold(REPORTS, &[report, later, counted, tier, blamed]);
        hold(REPORTS, &of_checks_and_orders(until));
        covers::<WaitingOn>(REPORTS, r#"{"waiting_for":"?"}"#);
        covers::<Note>(REPORTS, r#"{"note":"?"}"#);
    }
}
