//! One case: the call that fails, its fault, and when the keeper is killed.

use std::fmt;

use serde_json::{Value, json};

use crate::cloud::Cloud;

/// The fault of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Rejected,
    Throttled,
    Denied,
    /// The call takes effect, and its answer is lost.
    Lost,
    /// No answer for a while, then a reset.
    Hang,
    /// No answer for a while, then a reset; but the call takes effect.
    HangApplied,
    Slow,
    Capacity,
    Quota,
    /// The launch is accepted, but the instance never runs.
    EndsInError,
    /// The instance runs, and is reclaimed.
    Reclaimed,
}

/// The moment at which the keeper is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// The intent is recorded, but the call has not reached the cloud.
    Before,
    /// The call has taken effect, but its answer is not recorded.
    Answered,
    /// The keeper has recorded the answer.
    Recorded,
}

#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub cloud: Cloud,
    pub call: &'static str,
    pub mode: Mode,
    pub crash: Crash,
}

/// The faults of any call.
const OF_CALLS: [Mode; 7] =
    [Mode::Rejected, Mode::Throttled, Mode::Denied, Mode::Lost, Mode::Hang, Mode::HangApplied, Mode::Slow];
/// The further faults of a launch.
const OF_LAUNCHES: [Mode; 4] = [Mode::Capacity, Mode::Quota, Mode::EndsInError, Mode::Reclaimed];
const CRASHES: [Crash; 3] = [Crash::Before, Crash::Answered, Crash::Recorded];

impl Case {
    /// Every call with every mode and every crash.
    pub fn all(cloud: Cloud) -> Vec<Self> {
        let mut cases = Vec::new();
        for (call, mode, _) in combinations(cloud) {
            cases.extend(CRASHES.map(|crash| Self { cloud, call, mode, crash }));
        }
        cases
    }

    /// A choice of cases with at least every pair of two of the three: the crash alternates along calls and modes.
    pub fn pairs(cloud: Cloud) -> Vec<Self> {
        let turn = |(call, mode, turn): (_, _, usize)| Self { cloud, call, mode, crash: CRASHES[turn % 3] };
        let of_calls =
            combinations(cloud).into_iter().filter(|(_, mode, _)| OF_CALLS.contains(mode)).map(turn);
        let of_launches = Self::all(cloud).into_iter().filter(|case| OF_LAUNCHES.contains(&case.mode));
        of_calls.chain(of_launches).collect()
    }

    /// True if the cloud receives a launch, but the pool never gets a definite answer.
    pub fn repeats_launch(&self) -> bool {
        let is_open = matches!(self.mode, Mode::Rejected | Mode::Lost | Mode::Hang | Mode::HangApplied);
        self.call == self.cloud.launch() && (is_open || self.crash == Crash::Answered)
    }

    /// The operation that fails.
    pub fn operation(&self) -> &'static str {
        self.call.split_once(' ').map_or(self.call, |(operation, _)| operation)
    }

    /// The emulator's fault.
    pub fn fault(&self) -> Value {
        let internal = if self.cloud == Cloud::Ec2 { "InternalError" } else { "backendError" };
        let mut fault = match self.mode {
            Mode::Rejected => json!({ "mode": "rejected", "code": internal }),
            Mode::Throttled => json!({ "mode": "throttled" }),
            Mode::Denied => json!({ "mode": "denied" }),
            Mode::Lost => json!({ "mode": "lost" }),
            Mode::Hang => json!({ "mode": "hang", "seconds": 1 }),
            Mode::HangApplied => json!({ "mode": "hang", "seconds": 1, "applied": true }),
            Mode::Slow => json!({ "mode": "slow", "seconds": 1 }),
            Mode::Capacity => json!({ "mode": "capacity" }),
            Mode::Quota => json!({ "mode": "quota" }),
            Mode::EndsInError => json!({ "mode": "ends-in-error" }),
            Mode::Reclaimed => json!({ "mode": "spot-reclaim", "seconds": 0.5 }),
        };
        fault["operation"] = self.operation().into();
        fault
    }
}

/// Each call with each of its modes, and the number of its crash: neighbours have different ones.
fn combinations(cloud: Cloud) -> Vec<(&'static str, Mode, usize)> {
    let mut combinations = Vec::new();
    for (row, call) in cloud.calls().iter().enumerate() {
        let of_launches = if *call == cloud.launch() { &OF_LAUNCHES[..] } else { &[] };
        let modes = OF_CALLS.iter().chain(of_launches);
        combinations.extend(modes.enumerate().map(|(column, mode)| (*call, *mode, row + column)));
    }
    combinations
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cloud, call, mode, crash } = self;
        write!(f, "{}: {call} {mode:?}, killed {crash:?}", cloud.kind())
    }
}

#[test]
fn the_cases_of_an_ordinary_run_have_every_pair() {
    for cloud in [Cloud::Ec2, Cloud::Gce] {
        let (all, some) = (Case::all(cloud), Case::pairs(cloud));
        assert!(some.len() < all.len());
        for case in all {
            let has = |fits: &dyn Fn(&Case) -> bool| some.iter().any(fits);
            assert!(has(&|one| one.call == case.call && one.mode == case.mode), "{case}");
            assert!(has(&|one| one.call == case.call && one.crash == case.crash), "{case}");
            assert!(has(&|one| one.mode == case.mode && one.crash == case.crash), "{case}");
        }
    }
}
