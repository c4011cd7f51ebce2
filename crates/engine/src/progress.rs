//! Messages of `prepare` for the job log while the job waits.

use std::time::Duration;

use greenroom_core::availability::Unavailable;
use greenroom_core::ids::{InstanceId, OfferingName};
use greenroom_core::report::{FailedBoot, WaitingOn};

/// Progress of a waiting job, for the job log.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// A new reason to wait.
    Waiting { on: WaitingOn, usual_boot: Option<Duration> },
    /// The offerings that its launch would have preferred, but that are unavailable.
    Unavailable(Vec<Unavailable>),
    /// The instance on its way reached the next step. `offering`: how it was launched, if there are several ways.
    Boot { instance: InstanceId, offering: Option<OfferingName>, step: BootStep, after: Duration },
    /// The instance that was on its way will never be ready.
    BootFailed(FailedBoot),
    /// The instance that was checked or cleaned for the job is out of use.
    Unfit { instance: InstanceId, reason: String },
    /// The job has its instance, but no keeper could be started: the pool is not refilled.
    NoKeeper { problem: String },
    /// An idle instance did not respond; the job takes another one.
    Broken { instance: InstanceId, problem: String },
    /// The job has an instance, but a fault that is not the instance's prevents its use; the job tries again.
    Held { problem: String },
}

/// Milestones of a boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BootStep {
    Launched,
    Reachable,
}
