//! Each reason and each note in words.

use super::*;
use crate::failure::ErrorClass;
use crate::notation::{NOW, instance};

#[test]
fn each_reason_to_wait_is_a_sentence_without_internals() {
    let failure = || Failure { class: ErrorClass::Quota, message: "vCPU".to_owned() };
    let one = || instance("h1");
    let check = |kind| WaitingOn::StageCheck { instance: one(), kind };
    for (on, text) in [
        (WaitingOn::Boot { instance: one() }, "h1 is booting"),
        (
            WaitingOn::Limit { in_use: 3, max_instances: 4, ahead: 2 },
            "all 3 instances in use, limit 4 (`max_instances`), 2 jobs ahead",
        ),
        (WaitingOn::Room { instance: one() }, "h1 is being terminated to make room"),
        (WaitingOn::Launching { under_way: 2, at_most: 2 }, "2 launches in progress, limit 2"),
        (WaitingOn::Rate { until: NOW }, "`launches_per_minute` is reached"),
        (
            WaitingOn::Backoff { until: NOW, failure: failure() },
            "the last launch failed (quota reached: vCPU)",
        ),
        (
            WaitingOn::Paused { until: NOW, failures: 5, failure: failure() },
            "the pool is paused after 5 failed launches in a row (last: quota reached: vCPU)",
        ),
        (
            WaitingOn::NoOffering {
                until: NOW,
                offering: OfferingName::new("zone-b small spot"),
                failure: Failure {
                    class: ErrorClass::NoCapacity { scope: "zone-b".to_owned() },
                    message: "no such host is free".to_owned(),
                },
                count: 3,
            },
            "all 3 offerings are unavailable; zone-b small spot: no capacity",
        ),
        (
            WaitingOn::NoOffering {
                until: NOW,
                offering: OfferingName::new("zone-b small"),
                failure: failure(),
                count: 1,
            },
            "zone-b small: quota reached: vCPU",
        ),
        (WaitingOn::Resume { instance: one() }, "h1 was stopped and is being resumed"),
        (WaitingOn::Cleaning { instance: one() }, "h1 is being cleaned"),
        (
            WaitingOn::Unreachable { instance: one(), reason: String::new() },
            "h1 does not respond, and is checked again",
        ),
        (
            WaitingOn::Unreachable { instance: one(), reason: "no route".to_owned() },
            "h1 does not respond, and is checked again: no route",
        ),
        (WaitingOn::HostCheck { instance: one() }, "h1 is being checked"),
        (check(CheckKind::Stages), "h1 began no stages of its last jobs, and is checked"),
        (check(CheckKind::Engine), "h1 did not start the last job's containers, and is checked"),
        (WaitingOn::Recheck { instance: one() }, "h1 is checked after its last job"),
        (
            WaitingOn::Drained { since: NOW },
            "the operator drained the pool (`greenroom pool resume` resumes it)",
        ),
        (WaitingOn::Moved { problem: "moved".to_owned() }, "moved"),
        (
            WaitingOn::TooLong { timeout: Duration::from_hours(2), max_lifetime: Duration::from_hours(1) },
            "the job's timeout of 2h exceeds the lifetime of an instance (1h, `max_lifetime`)",
        ),
        (
            WaitingOn::Elsewhere {
                instances: 1,
                location: Location::new("gce project a"),
                here: Location::new("gce project b"),
            },
            "1 instance is in gce project a, but launches would be in gce project b",
        ),
        (WaitingOn::NoHost { unusable: None }, "no static host is free"),
        (
            WaitingOn::Bound { hosts: 1, instance: one() },
            "h1, the pool's only host, is bound to another trust domain",
        ),
        (
            WaitingOn::Bound { hosts: 2, instance: one() },
            "all 2 hosts of the pool are bound to other trust domains",
        ),
        (WaitingOn::NextPass, "the keeper's next reconcile pass is pending"),
    ] {
        assert_eq!(on.to_string(), text);
        let json = serde_json::to_string(&on).unwrap();
        assert_eq!(serde_json::from_str::<WaitingOn>(&json).unwrap(), on);
    }
}

#[test]
fn each_note_is_a_sentence_and_outlives_its_file() {
    let failure = || Failure { class: ErrorClass::Denied, message: "no key".to_owned() };
    let one = || instance("h1");
    let boot = |console: &[&str]| FailedBoot {
        instance: one(),
        at: NOW,
        reason: DrainReason::NeverReady,
        cause: None,
        console: console.iter().map(|line| (*line).to_owned()).collect(),
    };
    for (note, text) in [
        (
            Note::ListFailed { failure: failure() },
            "the provider's instances cannot be listed (denied: no key)",
        ),
        (Note::ListIncomplete, "the provider's list was incomplete: missing instances are not replaced"),
        (
            Note::Copies { names: vec!["i-0abc".to_owned(), "i-0def".to_owned()] },
            "not launched by Greenroom, which never touches them, but with this owner's tags: i-0abc, i-0def",
        ),
        (
            Note::OwnerConflict { instances: vec![one(), instance("h2")] },
            "another keeper works with a copy of this state directory, and reaping is suspended: h1, h2 have this \
             owner's tag but an unknown generation",
        ),
        (
            Note::Elsewhere {
                instances: 3,
                location: Location::new("gce project a"),
                here: Location::new("gce project b"),
            },
            "3 instances are in gce project a, but the configuration and the credentials lead to gce project b: \
             Greenroom terminates, forgets and launches nothing until they lead back",
        ),
        (
            Note::LocationUnknown { instances: 2 },
            "2 instances are missing from the provider's list, but the provider does not say which account it \
             lists: Greenroom forgets none",
        ),
        (Note::OverLimit { alive: 3, max_instances: 2 }, "3 instances exist, limit 2 (`max_instances`)"),
        (
            Note::CallsFailing { instance: one(), failure: failure(), until: NOW },
            "calls about h1 fail repeatedly (denied: no key)",
        ),
        (
            Note::HostSuspected { unreachable: 3, responding: 1, reason: "no answer".to_owned(), until: NOW },
            "3 of 4 idle instances do not respond; the fault may be on the runner host, so they are kept for at most \
             5 minutes (no answer)",
        ),
        (
            Note::Suspect { instance: one(), cause: None, by_job: false },
            "h1 looks gone while in use; the job's own connection decides",
        ),
        (
            Note::Suspect { instance: one(), cause: Some("it powered itself off".to_owned()), by_job: true },
            "h1 stopped while in use (it powered itself off); the job's own connection decides",
        ),
        (
            Note::Announced { instance: one(), notice: "will be reclaimed by EC2 (spot)".to_owned() },
            "h1 will be reclaimed by EC2 (spot), while a job uses it",
        ),
        (Note::Unfit { instance: one(), reason: "no space".into() }, "h1 gets no more jobs: no space"),
        (Note::BootFailed(boot(&[])), "h1 did not come up: not ready within `launch_timeout`"),
        (
            Note::BootFailed(boot(&["booting", "no root"])),
            "h1 did not come up: not ready within `launch_timeout`; the last line of its console is `no root`",
        ),
        (
            Note::BootFailed(FailedBoot {
                reason: DrainReason::Stopped,
                cause: Some("did not boot: the guest did not come up within 30 s".to_owned()),
                ..boot(&[])
            }),
            "h1 did not boot: the guest did not come up within 30 s",
        ),
        (
            Note::AttemptUnreadable {
                attempt: AttemptName::new("custom-executor7"),
                problem: "`job` is damaged".to_owned(),
            },
            "attempt `custom-executor7` cannot be read (`job` is damaged): its job fails at the next stage, and \
             keeps its instance until the attempt ends",
        ),
        (
            Note::ImageNotPulled { image: "ruby".into(), instances: 1, failure: failure(), until: NOW },
            "image `ruby` of `images_warm` is missing on an idle instance: denied: no key",
        ),
        (
            Note::ImageNotPulled { image: "ruby".into(), instances: 2, failure: failure(), until: NOW },
            "image `ruby` of `images_warm` is missing on 2 idle instances: denied: no key",
        ),
        (Note::Moved { problem: "moved".to_owned() }, "moved"),
    ] {
        assert_eq!(note.to_string(), text);
        let json = serde_json::to_string(&note).unwrap();
        assert_eq!(serde_json::from_str::<Note>(&json).unwrap(), note);
    }
}

#[test]
fn an_empty_tier_has_its_reason() {
    let failure = Failure { class: ErrorClass::Denied, message: "no key".to_owned() };
    assert!(Note::CannotSuspend.to_string().contains("`idle_stopped` has no effect"));
    let failing = Note::SuspensionsFail { failures: 2, failure, until: NOW };
    assert_eq!(failing.to_string(), "suspending and resuming failed 2 times in a row (last: denied: no key)");
}

#[test]
fn a_report_answers_for_one_instance_and_one_attempt() {
    let one = instance("i1");
    let two = instance("i2");
    let three = instance("i3");
    let report = Report {
        details: vec![(one.clone(), "i-0123".to_owned()), (two.clone(), "i-4567".to_owned())],
        pulls: vec![(one.clone(), "ruby".into()), (two.clone(), "go".into())],
        waiting: vec![
            (AttemptName::new("a"), WaitingOn::Rate { until: NOW }),
            (AttemptName::new("b"), WaitingOn::Boot { instance: one.clone() }),
        ],
        ..Report::new(NOW, 1)
    };
    assert_eq!((report.detail(&one), report.pull_on(&one)), (Some("i-0123"), Some("ruby")));
    assert_eq!((report.detail(&two), report.pull_on(&two)), (Some("i-4567"), Some("go")));
    assert_eq!((report.detail(&three), report.pull_on(&three)), (None, None));
    assert_eq!(report.waiting_on(&AttemptName::new("b")), Some(&WaitingOn::Boot { instance: one }));
    assert_eq!(report.waiting_on(&AttemptName::new("c")), None);
}
