//! A pool behind a gate, and a job in it.

use std::time::Duration;

use greenroom_harness::processes::{Kind, Process, wait_for};
use greenroom_testkit::gitlab_runner::job::Job;
use greenroom_testkit::gitlab_runner::record::{JobResult, Outcome};
use serde_json::json;

use super::case::{Case, Crash, Mode};
use crate::cloud::Buy;
use crate::gate::{At, Gate, Then};
use crate::lab::Taken;
use crate::site::{PATIENCE, Site, pool};

/// Limit for the call to arrive; a job takes seconds.
const SOON: Duration = Duration::from_mins(1);

/// The time from running until sshd listens, in seconds: the emulator's default, and a value for boots that must fail.
const SSH: f64 = 0.1;
const SSH_NEVER: f64 = 3600.0;

/// The time for which lists lack a new instance, in seconds: as a rule, if the pool must poll for the launch, and if it
/// must repeat the launch.
const LAG: f64 = 0.6;
const LONGER_LAG: f64 = 3.0;
const ENDLESS_LAG: f64 = 3600.0;

/// A pool behind a gate. The pool is dropped before the gate.
#[derive(Debug)]
pub struct Scene {
    site: Site,
    gate: Gate,
}

/// The time for which lists lack a new instance in this case: a listed instance is neither polled for nor launched
/// again.
fn lag(case: &Case) -> f64 {
    let is = |call: Option<&str>| call == Some(case.call);
    match () {
        () if case.repeats_launch() => ENDLESS_LAG,
        () if is(case.cloud.launch_status_call()) => LONGER_LAG,
        () if is(case.cloud.end_reason_call()) => 0.0,
        () => LAG,
    }
}

impl Scene {
    pub fn open(case: &Case) -> Self {
        let lab = Taken::take();
        let gate = Gate::before(lab.host());
        lab.set(&json!({ "visible": lag(case) }));
        let mut setting = pool().pool("idle_time", "1s").pool("max_instances", 3);
        setting = setting.timing("relaunch_after", "200ms");
        if case.call == case.cloud.console() {
            // The keeper reads the console when a boot fails.
            lab.set(&json!({ "ssh": SSH_NEVER }));
            for (key, value) in [("launch_timeout", "5s"), ("connect_timeout", "4s"), ("ready_timeout", "4s")]
            {
                setting = setting.timing(key, value);
            }
        }
        let site = Site::at(case.cloud, setting, Buy::Spot, lab, &gate.url);
        Self { site, gate }
    }

    /// Runs a job during which one call fails, and kills the keeper that makes the call.
    pub fn play(self, case: &Case) {
        eprintln!("{case}");
        let needs_reason = Some(case.call) == case.cloud.end_reason_call();
        if needs_reason {
            self.site
                .lab
                .fault(&json!({ "operation": case.cloud.launch(), "mode": "spot-reclaim", "seconds": 1 }));
        }
        self.site.lab.fault(&case.fault());
        let at = if case.crash == Crash::Before { At::Request } else { At::Answer };
        self.gate.hold(case.operation(), at);
        let mut handle =
            self.site.runner().start(&Job::new(1).script([if needs_reason { "sleep 3" } else { "true" }]));
        if !self.gate.wait_held(SOON) {
            handle.abort();
            panic!("{case}: the call never came\n{}", handle.finish().describe());
        }
        self.site.lab.set(&json!({ "ssh": SSH }));
        match case.crash {
            Crash::Before | Crash::Answered => {
                self.kill_keepers();
                self.gate.release(Then::Drop);
            }
            Crash::Recorded => {
                self.let_it_record();
                self.kill_keepers();
            }
        }
        if case.repeats_launch() {
            self.expect_repeat(case);
            self.site.lab.set(&json!({ "visible": LAG }));
        }
        self.judge(case, &handle.finish());
    }

    /// Expects that the launch without an answer is repeated, and that the repeat is identical.
    fn expect_repeat(&self, case: &Case) {
        let launches = wait_for(&format!("{case}: the launch again"), SOON, || {
            let launches = self.site.launches();
            (launches.len() > 1).then_some(launches)
        });
        assert_eq!(launches[0], launches[1], "{case}: another launch came instead of a repeat");
    }

    /// Releases the answer, and waits until an event is recorded or the next call is made: then this one is done.
    fn let_it_record(&self) {
        let before = (self.site.state().revision, self.gate.seen());
        self.gate.release(Then::Go);
        wait_for("what follows the answer", SOON, || {
            (self.site.state().revision != before.0 || self.gate.seen() != before.1).then_some(())
        });
    }

    fn kill_keepers(&self) {
        let keepers = self.site.of_kind(Kind::Keeper);
        for keeper in &keepers {
            keeper.kill9();
        }
        wait_for("their end", SOON, || (!keepers.iter().any(Process::is_alive)).then_some(()));
    }

    /// Expects that the job ended correctly and that `greenroom reap` leaves nothing behind.
    fn judge(&self, case: &Case, result: &JobResult) {
        let may_be_lost = case.mode == Mode::Reclaimed || Some(case.call) == case.cloud.end_reason_call();
        let lost = may_be_lost && result.outcome == Outcome::RunnerSystemFailure;
        assert!(lost || result.outcome == Outcome::Success, "{case}\n{}", result.describe());
        wait_for(&format!("{case}: nothing in the cloud, nothing recorded"), PATIENCE, || {
            // The fault may affect it, so its result is ignored.
            self.site.greenroom(&["reap"]);
            let truth = self.site.lab.truth();
            let nothing = truth.live().next().is_none() && truth.volumes.is_empty();
            (nothing && self.site.state().instances.is_empty()).then_some(())
        });
        self.site.expect_nothing_left(0);
        // A keeper that finds an instance by its token or tags needs no second call.
        let left = self.site.lab.faults_left();
        let happened = left.iter().all(|count| *count == Some(0));
        assert!(happened || case.crash == Crash::Before, "{case}: it never happened: {left:?}");
    }
}
