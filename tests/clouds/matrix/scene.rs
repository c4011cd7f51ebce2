//! A pool behind a gate, and a job in it.

use std::time::Duration;

use serde_json::json;

use super::case::{Case, Crash, Mode};
use crate::cloud::Buy;
use crate::gate::{At, Gate, Then};
use crate::lab::Taken;
use crate::processes::{Kind, Process, wait_for};
use crate::site::{PATIENCE, Site, pool};
use crate::support::job::Job;
use crate::support::record::{JobResult, Outcome};

/// The call must come within this; a job takes seconds.
const SOON: Duration = Duration::from_mins(1);

/// From running until sshd listens, in seconds: the lab's default, and for instances whose boot shall fail.
const SSH: f64 = 0.1;
const NEVER: f64 = 3600.0;

/// How long no list tells of what was made just now, in seconds: as a rule, where a launch has to be asked after, and where
/// it has to come again.
const UNSEEN: f64 = 0.6;
const UNSEEN_FOR_A_WHILE: f64 = 3.0;
const UNSEEN_FOR_LONG: f64 = 3600.0;

/// The pool is dropped before what it talks to.
#[derive(Debug)]
pub struct Scene {
    site: Site,
    gate: Gate,
}

/// What a list tells of is not asked for again, nor asked after.
fn unseen(case: &Case) -> f64 {
    let is = |call: Option<&str>| call == Some(case.call);
    match () {
        () if case.repeats_launch() => UNSEEN_FOR_LONG,
        () if is(case.cloud.fates()) => UNSEEN_FOR_A_WHILE,
        () if is(case.cloud.endings()) => 0.0,
        () => UNSEEN,
    }
}

impl Scene {
    pub fn open(case: &Case) -> Self {
        let lab = Taken::take();
        let gate = Gate::before(lab.host());
        lab.set(&json!({ "visible": unseen(case) }));
        let mut setting = pool().pool("idle_time", "1s").pool("max_instances", 3);
        setting = setting.timing("relaunch_after", "200ms");
        if case.call == case.cloud.console() {
            // It is asked for when a boot fails.
            lab.set(&json!({ "ssh": NEVER }));
            for (key, value) in [("launch_timeout", "5s"), ("connect_timeout", "4s"), ("ready_timeout", "4s")]
            {
                setting = setting.timing(key, value);
            }
        }
        let site = Site::at(case.cloud, setting, Buy::Spot, lab, &gate.url);
        Self { site, gate }
    }

    /// A job during which one call goes wrong, and the keeper that makes the call is killed.
    pub fn play(self, case: &Case) {
        eprintln!("{case}");
        let asks_why = Some(case.call) == case.cloud.endings();
        if asks_why {
            self.site
                .lab
                .fault(&json!({ "operation": case.cloud.launch(), "mode": "spot-reclaim", "seconds": 1 }));
        }
        self.site.lab.fault(&case.fault());
        let at = if case.crash == Crash::Before { At::Request } else { At::Answer };
        self.gate.hold(case.operation(), at);
        let mut handle =
            self.site.runner().start(&Job::new(1).script([if asks_why { "sleep 3" } else { "true" }]));
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
            self.site.lab.set(&json!({ "visible": UNSEEN }));
        }
        self.judge(case, &handle.finish());
    }

    /// The launch that the pool has no answer of comes again, and is the same.
    fn expect_repeat(&self, case: &Case) {
        let launches = wait_for(&format!("{case}: the launch again"), SOON, || {
            let launches = self.site.launches();
            (launches.len() > 1).then_some(launches)
        });
        assert_eq!(launches[0], launches[1], "{case}: another launch came instead of a repeat");
    }

    /// Hands the answer over, and waits until something is recorded, or the next call is made: then this one is done.
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

    /// The job ended right; then, with the passes that an operator's timer makes, nothing is left anywhere.
    fn judge(&self, case: &Case, result: &JobResult) {
        let may_be_lost = case.mode == Mode::Reclaimed || Some(case.call) == case.cloud.endings();
        let lost = may_be_lost && result.outcome == Outcome::RunnerSystemFailure;
        assert!(lost || result.outcome == Outcome::Success, "{case}\n{}", result.describe());
        wait_for(&format!("{case}: nothing in the cloud, nothing recorded"), PATIENCE, || {
            // It may meet the fault, and say so.
            self.site.greenroom(&["reap"]);
            let truth = self.site.lab.truth();
            let nothing = truth.live().next().is_none() && truth.volumes.is_empty();
            (nothing && self.site.state().instances.is_empty()).then_some(())
        });
        self.site.expect_nothing_left(0);
        // Whoever finds an instance by its token or tags needs no second call.
        let left = self.site.lab.faults_left();
        let happened = left.iter().all(|count| *count == Some(0));
        assert!(happened || case.crash == Crash::Before, "{case}: it never happened: {left:?}");
    }
}
