//! All faults, with their names.
//!
//! Some faults are windows of time in which calls may fail, others happen at a moment. The scenario of a seed has both;
//! after `calm` no fault occurs, and the simulation must come to rest.

use std::fmt;

use super::rng::Rng;

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A kind of fault.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Fault {
            $($(#[$doc])* $name,)*
        }

        impl Fault {
            pub const ALL: &'static [Fault] = &[$(Fault::$name,)*];
        }

        impl fmt::Display for Fault {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $(Fault::$name => $text,)* })
            }
        }
    };
}

faults! {
    /// The instance is created and never responds.
    NeverBoots = "never-boots",
    /// The instance responds only after minutes.
    BootsLate = "boots-late",
    /// The instance's ready command fails.
    NotReady = "not-ready",
    /// The provider has no capacity until the window ends.
    NoCapacity = "no-capacity",
    /// The account's limit is reached.
    QuotaReached = "quota-reached",
    /// One offering has no capacity for a while.
    OfferingOut = "offering-out",
    /// The limit of one offering is reached.
    OfferingQuota = "offering-quota",
    /// The provider cannot launch one offering at all, until the cause is removed.
    OfferingInvalid = "offering-invalid",
    /// A launch is refused permanently, although the instance exists.
    RefusedYetThere = "refused-yet-there",
    /// A complete list lacks an instance that exists.
    ListOmits = "list-omits",
    /// A complete list lacks every instance for a while, and no call finds them, although they respond.
    ListLosesAll = "list-loses-all",
    /// The instance runs, but no call finds it for a while.
    Hidden = "hidden",
    /// The credentials are those of another account, which has nothing and may create nothing.
    OtherAccount = "other-account",
    /// The list shows an earlier state.
    ListLags = "list-lags",
    /// The list is incomplete and reports this.
    ListIncomplete = "list-incomplete",
    /// The list fails.
    ListFails = "list-fails",
    /// An instance dies while it has a job.
    DiesLeased = "dies-leased",
    /// A script uses up the memory or the disk of its instance, which ends.
    UsedUp = "used-up",
    /// An instance without a job dies, or is deleted from outside.
    DiesIdle = "dies-idle",
    /// All instances of a pool are gone at the same moment.
    LosesAll = "loses-all",
    /// An instance is stopped at the provider, but not deleted.
    StoppedOutside = "stopped-outside",
    /// An instance reboots.
    Reboots = "reboots",
    /// An instance responds, and begins no stages until an operator has seen to it.
    BeginsNoStage = "begins-no-stage",
    /// An instance responds, and its engine starts no container until an operator has seen to it.
    EngineBroken = "engine-broken",
    /// A job's containers are not prepared for a reason that looks like the engine's, and is the job's own.
    NotPrepared = "not-prepared",
    /// A job fills the disk of its instance, until an operator has seen to it.
    FallsSick = "falls-sick",
    /// The first stage of each job fails on an instance that the keeper finds fit.
    FailsEarly = "fails-early",
    /// Calls are refused for being too many.
    Throttles = "throttles",
    /// A provider call is never answered.
    Hangs = "hangs",
    /// A transient error of any provider call.
    Stumbles = "stumbles",
    /// A launch is carried out and its answer is lost.
    AnswerLost = "answer-lost",
    /// A launch is lost on its way, without an error.
    LaunchLost = "launch-lost",
    /// A suspension is refused.
    SuspendFails = "suspend-fails",
    /// A suspension is answered and not carried out.
    SuspendLost = "suspend-lost",
    /// A suspension never ends.
    SuspendStuck = "suspend-stuck",
    /// A resume is refused.
    ResumeFails = "resume-fails",
    /// A resumed instance never responds.
    ResumeHangs = "resume-hangs",
    /// A termination is answered and not carried out.
    TerminateIgnored = "terminate-ignored",
    /// A runner host loses power: every process there dies, and the last records are lost.
    PowerCut = "power-cut",
    /// An instance with a job loses its record: the journal was damaged and repaired by hand.
    RecordLost = "record-lost",
    /// A process is killed at a port call.
    Kill = "kill",
    /// A process is stalled for a while.
    Stall = "stall",
    /// A keeper that is about to exit is stalled for a while.
    LeavesSlowly = "leaves-slowly",
    /// A keeper dies when it has recorded that a launch was refused: its successor has to know.
    DiesRefused = "dies-refused",
    /// The wall clock steps by a day.
    WallSteps = "wall-steps",
    /// A copy of the state directory starts on a second machine.
    Copied = "copied",
    /// Another keeper with the same owner ID launches an instance.
    Twin = "twin",
    /// A runner dies with its jobs; their driver calls live on.
    RunnerDies = "runner-dies",
    /// A runner's service is killed with everything in its control group.
    ServiceDies = "service-dies",
    /// `prepare` is killed and repeated for the same attempt.
    PrepareRepeated = "prepare-repeated",
    /// `cleanup` comes late.
    CleanupLate = "cleanup-late",
    /// `cleanup` never comes.
    CleanupMissing = "cleanup-missing",
    /// The runner abandons a `run` that does not exit, and runs `cleanup` beside it.
    RunAbandoned = "run-abandoned",
    /// The job is cancelled while it waits for its instance.
    CancelledWaiting = "cancelled-waiting",
    /// The job is cancelled while a stage runs.
    CancelledRunning = "cancelled-running",
    /// A wake-up is lost on its way.
    HintLost = "hint-lost",
    /// A keeper cannot wait for wake-ups.
    WaitFails = "wait-fails",
    /// The state's lock is held for too long.
    StoreBusy = "store-busy",
    /// The disk reports an error.
    StoreFails = "store-fails",
    /// The disk is full: only the store's reserve takes records.
    DiskFull = "disk-full",
    /// The configuration on disk is invalid for a while.
    ConfigInvalid = "config-invalid",
    /// The operator changes the policy.
    ConfigChanges = "config-changes",
    /// The operator drains the pool and resumes it.
    Drained = "drained",
    /// The manager's network fails: no connection to an instance succeeds.
    NetworkCut = "network-cut",
    /// A static host cannot be cleaned.
    CleanFails = "clean-fails",
}

/// Faults that hit calls in their window, with their rate per thousand.
pub const WINDOWED: &[(Fault, u64)] = &[
    (Fault::NeverBoots, 300),
    (Fault::BootsLate, 300),
    (Fault::NotReady, 300),
    (Fault::NoCapacity, 1000),
    (Fault::QuotaReached, 1000),
    (Fault::RefusedYetThere, 400),
    (Fault::ListOmits, 1000),
    (Fault::ListLags, 1000),
    (Fault::Hidden, 1000),
    (Fault::OtherAccount, 1000),
    (Fault::ListIncomplete, 400),
    (Fault::ListFails, 500),
    (Fault::Throttles, 700),
    (Fault::Stumbles, 300),
    (Fault::Hangs, 50),
    (Fault::AnswerLost, 500),
    (Fault::LaunchLost, 500),
    (Fault::TerminateIgnored, 400),
    (Fault::Stall, 3),
    (Fault::HintLost, 500),
    (Fault::WaitFails, 300),
    (Fault::StoreBusy, 10),
    (Fault::StoreFails, 10),
    (Fault::DiskFull, 1000),
    (Fault::ConfigInvalid, 1000),
    (Fault::CleanFails, 400),
    (Fault::NetworkCut, 1000),
];

/// A stretch of virtual time in which a fault may occur.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    pub fault: Fault,
    pub from: u64,
    pub to: u64,
    pub per_mille: u64,
}

/// Every [`Window`] of a [`Scenario`](crate::scenario::Scenario).
#[derive(Debug, Clone, Default)]
pub struct Windows {
    windows: Vec<Window>,
}

impl Windows {
    /// Draws windows for the chosen faults between the start and `calm`.
    pub fn draw(chosen: &[Fault], calm: u64, rng: &mut Rng) -> Self {
        let mut windows = Vec::new();
        for (fault, per_mille) in WINDOWED {
            if !chosen.contains(fault) {
                continue;
            }
            for _ in 0..rng.within(1..4) {
                let from = rng.below(calm * 9 / 10);
                let to = (from + rng.within(30_000..240_000)).min(calm);
                windows.push(Window { fault: *fault, from, to, per_mille: *per_mille });
            }
        }
        Self { windows }
    }

    /// Adds a window that is open from the start to `calm`.
    #[must_use]
    pub fn with(mut self, fault: Fault, calm: u64, per_mille: u64) -> Self {
        self.windows.push(Window { fault, from: 0, to: calm, per_mille });
        self
    }

    /// Adds a window.
    #[must_use]
    pub fn and(mut self, window: Window) -> Self {
        self.windows.push(window);
        self
    }

    /// A plan of these windows alone, for tests.
    pub fn of(windows: Vec<Window>) -> Self {
        Self { windows }
    }

    /// True if the fault has a window at all.
    pub fn have(&self, fault: Fault) -> bool {
        self.windows.iter().any(|window| window.fault == fault)
    }

    /// True if the fault had an open window at some time between these.
    pub fn touches(&self, fault: Fault, from: u64, to: u64) -> bool {
        self.windows.iter().any(|w| w.fault == fault && w.from <= to && from < w.to)
    }

    /// The open window of a fault.
    pub fn open(&self, fault: Fault, now: u64) -> Option<&Window> {
        self.windows.iter().find(|w| w.fault == fault && w.from <= now && now < w.to)
    }
}
