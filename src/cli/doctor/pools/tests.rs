//! Pools with one problem each.

use std::time::Duration;

use greenroom_core::attempt::{Closed, End, Presence};
use greenroom_core::event::Change;
use greenroom_core::failure::{ErrorClass, Failure};
use greenroom_core::ids::{JobKey, Location};
use greenroom_core::instance::DrainReason;
use greenroom_core::job::JobFacts;
use greenroom_core::policy::IdlePolicy;
use greenroom_core::unbegun::EarlyFailures;

use super::*;
use crate::cli::fixture::{EventFixture, at, attempt, id, pool, report, when};

#[derive(Default)]
struct Bench {
    configured: Option<Policy>,
    story: EventFixture,
    notes: Vec<Note>,
    attempts: BTreeMap<AttemptName, AttemptSeen>,
}

impl Bench {
    fn with(policy: Policy) -> Self {
        Self { configured: Some(policy.clone()), story: EventFixture::of(policy), ..Self::default() }
    }

    fn check(&self) -> Vec<Finding> {
        let mut report = report(30.0);
        report.notes.clone_from(&self.notes);
        let name = pool();
        let facts = PoolFacts {
            pool: &name,
            configured: self.configured.as_ref(),
            config_read: true,
            state: &self.story.state,
            report: Some(&report),
            attempts: &self.attempts,
        };
        check(&facts, &when(60.0))
    }
}

fn seen(runner: Presence) -> AttemptSeen {
    let key = JobKey::new("https://gitlab.example.com", 4711);
    let job = JobFacts::new(key, "acme/shop", Duration::from_hours(1));
    AttemptSeen {
        job: Some(job),
        instance: None,
        unreadable: None,
        begun: at(0.0),
        closed: None,
        used: true,
        lease_held: false,
        lease_at: at(0.0),
        runner,
        tmpdir: Presence::There,
        boot: at(0.0).boot,
    }
}

fn failure() -> Failure {
    Failure { class: ErrorClass::Quota, message: "20 vCPU".into() }
}

type Trouble = (Bench, &'static str);

/// Every problem, with its finding.
fn problems() -> Vec<Trouble> {
    let mut all = of_policies();
    all.extend(of_launches());
    all.extend(of_reports());
    all
}

fn calm() -> Bench {
    Bench::with(Policy { max_instances: 2, ..Policy::default() })
}

fn of_policies() -> Vec<Trouble> {
    let mut all = Vec::new();

    let idle = IdlePolicy { idle_count: 3, ..IdlePolicy::default() };
    let bench = Bench::with(Policy { max_instances: 2, idle, ..Policy::default() });
    all.push((
        bench,
        "warning [pool-idle-over-limit]: pool `linux` requests 3 idle slots (`idle_count`), but can have at most 2\n  \
         help: raise `max_instances`, or lower `idle_count`",
    ));

    let mut bench = calm();
    bench.configured = Some(Policy { max_instances: 9, ..Policy::default() });
    all.push((
        bench,
        "note [config-not-applied]: the active policy of pool `linux` differs from the configuration\n  \
         help: if the configuration has just changed, wait for the keeper's next reconcile pass",
    ));

    let mut bench = calm();
    bench.story.ready(1, 1.0);
    bench.configured = None;
    all.push((
        bench,
        "warning [pool-unconfigured]: pool `linux` has 1 instance and 0 waiting jobs, but no table \
         `[pool.linux]`: no keeper reconciles it\n  help: restore `[pool.linux]`, \
         run `greenroom pool drain linux --wait`, then remove the table",
    ));

    let mut bench = calm();
    bench.story.then(10.0, Change::PoolDrained);
    all.push((
        bench,
        "note [pool-drained]: pool `linux` was drained by the operator 50 s ago\n  \
         help: run `greenroom pool resume linux` when it should accept jobs again",
    ));

    all
}

fn of_launches() -> Vec<Trouble> {
    let mut all = Vec::new();
    for (times, expected) in [
        (
            1,
            "warning [pool-launches-fail]: the last launch of pool `linux` failed (transient error: linux-7f3a-1: not \
             ready within `launch_timeout`)\n  help: wait for the next try (in 4 s)",
        ),
        (
            5,
            "error [pool-paused]: pool `linux` is paused until 14:05:59 (in 4m 59s) after 5 failed launches in a row \
             (last: transient error: linux-7f3a-5: not ready within `launch_timeout`)\n  \
             help: correct the cause, then run `greenroom pool resume linux`",
        ),
    ] {
        let mut bench = calm();
        for number in 1..=times {
            bench.story.launched(number, 50.0);
            bench
                .story
                .then(59.0, Change::DrainingBegun { instance: id(number), reason: DrainReason::NeverReady });
        }
        all.push((bench, expected));
    }

    let mut bench = calm();
    bench.story.ready(1, 1.0);
    bench.story.then(
        40.0,
        Change::OutOfService { instance: id(1), reason: "the clean command ended with 1".into() },
    );
    all.push((
        bench,
        "warning [pool-out-of-service]: instance linux-7f3a-1 of pool `linux` is out of service: the clean command ended \
         with 1\n  help: check the instance, then run `greenroom pool resume linux --instance linux-7f3a-1`",
    ));

    let mut bench = calm();
    bench.story.ready(1, 1.0);
    let suspect = Arc::make_mut(bench.story.state.instances.get_mut(&id(1)).unwrap());
    for (name, project) in [("a1", "g/one"), ("a2", "g/two")] {
        let row =
            EarlyFailures::with(suspect.early.as_ref(), &attempt(name), project, "`get_sources` failed");
        suspect.early = row;
    }
    all.push((
        bench,
        "warning [pool-suspect]: jobs of two projects failed on instance linux-7f3a-1 of pool `linux` at their start; other \
         jobs get it last: `get_sources` failed\n  help: none: the keeper replaces it once a job has passed on another \
         instance; `recheck_command` finds such instances earlier",
    ));

    all
}

fn of_the_tier() -> (Note, &'static str) {
    (
        Note::SuspensionsFail { failures: 2, failure: failure(), until: at(90.0) },
        "warning [pool-suspensions-fail]: pool `linux`: suspending and resuming failed 2 times in a row (last: quota \
         reached: 20 vCPU)\n  help: correct the cause, or remove `idle_stopped`; another instance is suspended in 30 s",
    )
}

fn over_limit() -> (Note, &'static str) {
    (
        Note::OverLimit { alive: 3, max_instances: 2 },
        "note [pool-over-limit]: pool `linux`: 3 instances exist, limit 2 (`max_instances`)",
    )
}

/// An instance that failed the check between jobs.
fn unfit() -> (Note, &'static str) {
    (
        Note::Unfit { instance: id(1), reason: "it failed the check between jobs: no space".into() },
        "warning [pool-unfit]: pool `linux`: linux-7f3a-1 gets no more jobs: it failed the check between jobs: no \
             space\n  help: see what the jobs before left there; more space for builds helps, or `max_use_count = 1`, \
             which gives each job an instance of its own",
    )
}

fn list_failed() -> (Note, &'static str) {
    (
        Note::ListFailed { failure: failure() },
        "warning [pool-list-failing]: pool `linux`: the provider's instances cannot be listed (quota reached: 20 vCPU)\n  \
         help: check that the provider is reachable and permits listing; until then no instance is replaced. If it is gone \
         for good: `greenroom pool resume linux --forget-unreachable`",
    )
}

fn implausible() -> (Note, &'static str) {
    (
        Note::ListImplausible { missing: 3, answering: 2 },
        "warning [pool-list-implausible]: pool `linux`: the provider's list lacks all 3 instances that were ready, but 2 \
         of them answer: those are kept and not replaced until the list has them again or they no longer answer\n  help: \
         check the provider, the filter of its program, and its credentials: the list is complete, but it has none of \
         the pool's instances",
    )
}

fn of_reports() -> Vec<Trouble> {
    let mut all = Vec::new();
    let trouble = Note::CallsFailing { instance: id(1), failure: failure(), until: at(90.0) };
    for (note, expected) in [
        of_the_tier(),
        unfit(),
        list_failed(),
        implausible(),
        (
            Note::OwnerConflict { instances: vec![id(8), id(9)] },
            "error [pool-owner-conflict]: pool `linux`: another keeper works with a copy of this state directory, \
             and reaping is suspended: linux-7f3a-8, linux-7f3a-9 have this owner's tag but an unknown generation\n  \
             help: find the other keeper, perhaps on a clone of the runner host, and run `greenroom doctor --new-owner` there",
        ),
        (
            Note::Copies { names: vec!["i-0abc".to_owned()] },
            "error [pool-copies]: pool `linux`: not launched by Greenroom, which never touches them, but with this \
             owner's tags: i-0abc\n  help: terminate the copies at the provider, or remove their tags `greenroom-…`; launch no instance \
             like one of Greenroom's",
        ),
        (
            Note::Elsewhere {
                instances: 3,
                location: Location::new("gce project shop"),
                here: Location::new("gce project test"),
            },
            "error [pool-elsewhere]: pool `linux`: 3 instances are in gce project shop, but the configuration and the \
             credentials lead to gce project test: Greenroom terminates, forgets and launches nothing until they lead \
             back\n  help: restore the `kind`, the region, the project and the credentials of gce project shop; before \
             another change, run `greenroom pool drain linux --wait`. If that place no longer exists: `greenroom pool \
             resume linux --forget-elsewhere`",
        ),
        (
            Note::LocationUnknown { instances: 1 },
            "warning [pool-location-unknown]: pool `linux`: 1 instance is missing from the provider's list, but the \
             provider does not say which account it lists: Greenroom forgets none\n  help: let the runner host \
             reach AWS STS, or set `sts_endpoint`; the call `sts:GetCallerIdentity` needs no permission",
        ),
        (
            Note::ImageNotPulled { image: "ruby".into(), instances: 1, failure: failure(), until: at(90.0) },
            "warning [pool-pulls-failing]: pool `linux`: image `ruby` of `images_warm` is missing on an idle instance: \
             quota reached: 20 vCPU\n  help: correct the name in `images_warm`, or `registry_auth`, `mirrors` and `ca`; \
             run `greenroom doctor --boot linux` to try the registries. Jobs are not affected: they pull the image \
             themselves",
        ),
        (
            Note::Announced { instance: id(1), notice: "will be reclaimed by EC2 (spot)".into() },
            "note [pool-announced]: pool `linux`: linux-7f3a-1 will be reclaimed by EC2 (spot), while a job uses it",
        ),
        over_limit(),
        (
            trouble,
            "warning [pool-calls-failing]: pool `linux`: calls about linux-7f3a-1 fail repeatedly (quota reached: 20 \
             vCPU)\n  help: run `greenroom explain linux-7f3a-1`",
        ),
        (
            Note::HostSuspected {
                unreachable: 3,
                responding: 1,
                reason: "no answer".into(),
                until: at(90.0),
            },
            "warning [pool-host-suspected]: pool `linux`: 3 of 4 idle instances do not respond; the fault may be on the \
             runner host, so they are kept for at most 5 minutes (no answer)\n  help: check the runner host: routes, \
             firewall, connection tracking, open files; afterwards the instances get jobs again",
        ),
        (
            Note::Unavailable { instance: id(1), reason: "it does not answer: no route to host".into() },
            "warning [pool-host-unavailable]: pool `linux`: linux-7f3a-1 gets no jobs at present: it does not answer: no \
             route to host\n  help: start the host if it should be running; it gets jobs again as soon as it responds",
        ),
        (
            Note::AttemptUnreadable { attempt: AttemptName::new("torn"), problem: "`job` is damaged".into() },
            "warning [attempts-unreadable]: pool `linux`: attempt `torn` cannot be read (`job` is damaged): its job \
             fails at the next stage, and keeps its instance until the attempt ends\n  help: make the file readable if a \
             change of its owner or mode caused this; otherwise wait: the runner ends the job, and a retry gets a new \
             attempt",
        ),
    ] {
        let mut bench = calm();
        bench.notes.push(note);
        all.push((bench, expected));
    }
    let mut bench = calm();
    bench.attempts.insert(AttemptName::new("dead"), seen(Presence::Gone));
    bench.attempts.insert(AttemptName::new("alive"), seen(Presence::There));
    let closed = Some(Closed::new(at(1.0), End::CleanedUp));
    bench.attempts.insert(AttemptName::new("closed"), AttemptSeen { closed, ..seen(Presence::Gone) });
    all.push((
        bench,
        "warning [attempts-orphaned]: 1 attempt of pool `linux` ended without `cleanup`: job 4711 (the runner is \
         gone, `dead`)\n  help: run `greenroom reap` to release what they hold; a running keeper does that by itself",
    ));
    all
}

#[test]
fn a_calm_pool_has_no_finding() {
    let mut bench = Bench::with(Policy { max_instances: 2, ..Policy::default() });
    bench.story.ready(1, 1.0);
    bench.notes = vec![Note::Suspect { instance: id(1), cause: None, by_job: false }];
    assert_eq!(bench.check(), []);
    // An empty directory of a pool that was removed from the configuration on purpose.
    assert_eq!(Bench::default().check(), []);
}

#[test]
fn each_trouble_is_said_once_with_what_helps() {
    for (bench, expected) in problems() {
        let found: Vec<String> = bench.check().iter().map(ToString::to_string).collect();
        assert_eq!(found, [expected]);
    }
}

/// One finding of each code.
pub(in crate::cli::doctor) fn provoked() -> Vec<Finding> {
    problems().iter().flat_map(|(bench, _)| bench.check()).collect()
}
