//! The configuration keys that change what a question is about.

use std::time::Duration;

use greenroom_core::ids::PoolName;
use greenroom_core::instance::DrainReason;
use greenroom_core::order::Order;
use greenroom_core::policy::Policy;
use greenroom_core::report::WaitingOn;
use greenroom_core::time::Pretty;

use crate::cli::when::whole;

/// The causes for which a job waited for its instance. [`of_past_wait`] names the key for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitCause {
    /// The pool was at its limit when the job came.
    Limit,
    /// The job got an instance that was booted meanwhile.
    Boot,
    /// The job got the instance that was launched for it.
    Ordered,
    /// The job got a stopped instance that was resumed meanwhile.
    Resume,
    /// An instance became free.
    Freed,
    /// The job got no instance.
    GaveUp,
}

/// A wait that is over, and the key that shortens it.
pub(super) fn of_past_wait(waited: Duration, cause: WaitCause, policy: Option<&Policy>) -> String {
    let waited = Pretty(waited);
    match cause {
        WaitCause::Limit => {
            let limit = policy.map_or(String::new(), |policy| format!(" ({})", policy.max_instances));
            format!("{waited} with the pool at its limit; `max_instances`{limit} sets it")
        }
        WaitCause::Resume => {
            format!(
                "{waited} for a stopped instance to be resumed; `idle_count`{} keeps slots ready without that",
                idle(policy)
            )
        }
        WaitCause::Boot => format!("{waited} for a boot; `idle_count`{} keeps slots ready", idle(policy)),
        WaitCause::Ordered => {
            format!("{waited} for an instance of its own to boot; a pool for its image keeps slots ready")
        }
        WaitCause::Freed => {
            format!("{waited} until an instance became free; `idle_count`{} keeps slots ready", idle(policy))
        }
        WaitCause::GaveUp => {
            let limit = policy.map(|policy| whole(policy.timing.acquire_timeout).to_string());
            let limit = limit.map_or(String::new(), |limit| format!(" ({limit})"));
            format!("{waited} without getting an instance; `acquire_timeout`{limit} is the longest wait")
        }
    }
}

fn idle(policy: Option<&Policy>) -> String {
    policy.map_or(String::new(), |policy| format!(" ({})", policy.idle.idle_count))
}

/// Advice that makes a job with this order faster.
pub(super) fn of_order(order: &Order) -> String {
    if order.services.is_empty() {
        return format!("a pool for image `{}` keeps slots ready with `idle_count`", order.image);
    }
    "a job with `services:` gets an instance of its own; one without may find a slot ready".to_owned()
}

/// A wait that lasts; `None`: no key changes it.
pub(super) fn of_wait(on: &WaitingOn, pool: &PoolName, policy: Option<&Policy>) -> Option<String> {
    Some(match on {
        WaitingOn::Boot { .. } => format!("`idle_count`{} keeps slots ready", idle(policy)),
        WaitingOn::Limit { max_instances, .. } => {
            format!("`max_instances` ({max_instances}) is the limit of the pool")
        }
        WaitingOn::Room { .. } => {
            let limit = policy.map_or(String::new(), |policy| format!(" ({})", policy.max_instances));
            format!("`max_instances`{limit} is the limit of the pool")
        }
        WaitingOn::Launching { at_most, .. } => {
            format!("`max_launching` and the runner host allow {at_most} concurrent launches")
        }
        WaitingOn::OrderedLaunches { at_most, .. } => format!(
            "half of `max_launching` ({at_most}) is for instances that jobs order; a pool for the image keeps slots ready"
        ),
        WaitingOn::OwnLaunch { .. } => "`launch_backoff` sets the pause, which doubles".to_owned(),
        WaitingOn::Rate { .. } => {
            let rate = policy.map_or(String::new(), |policy| format!(" ({})", policy.launches_per_minute));
            format!("`launches_per_minute`{rate} limits launches")
        }
        WaitingOn::Backoff { .. } => "`launch_backoff` sets the pause after a failed launch".to_owned(),
        WaitingOn::Paused { .. } => format!(
            "`breaker_failures` pauses the pool; `greenroom pool resume {pool}` resumes it now"
        ),
        WaitingOn::NoOffering { .. } => {
            "`stockout_backoff` and `quota_backoff` set when launches try an offering again; another offering adds a \
             choice"
                .to_owned()
        }
        WaitingOn::Resume { .. } => {
            "`resume_timeout` is the longest resume; `idle_count` keeps slots ready without one".to_owned()
        }
        WaitingOn::Cleaning { .. } => "`clean_timeout` is the longest cleaning".to_owned(),
        WaitingOn::Unreachable { .. } => "`health_interval` sets how often it is probed".to_owned(),
        WaitingOn::TooLong { .. } => "`max_lifetime` must exceed the timeouts of jobs".to_owned(),
        WaitingOn::Drained { .. } => format!("`greenroom pool resume {pool}` ends the drain"),
        WaitingOn::NextPass => "`pass_interval` is the longest time between passes".to_owned(),
        WaitingOn::Recheck { .. } => {
            "`recheck_command` adds to the check between jobs; `ready_timeout` is its longest time".to_owned()
        }
        WaitingOn::NoHost { unusable: Some(hosts) } if hosts.out_of_service > 0 => {
            format!("`greenroom pool resume {pool} --instance HOST` returns a host to service")
        }
        WaitingOn::StageCheck { .. }
        | WaitingOn::Obstructed { .. }
        | WaitingOn::HostCheck { .. }
        | WaitingOn::Moved { .. }
        | WaitingOn::Disk { .. }
        | WaitingOn::Elsewhere { .. }
        | WaitingOn::NoHost { .. }
        | WaitingOn::Bound { .. } => return None,
    })
}

/// An instance that is drained; `None`: no key changes it.
pub(super) fn of_drain(reason: &DrainReason) -> Option<&'static str> {
    Some(match reason {
        DrainReason::UsedUp => "`max_use_count` sets how many jobs it serves",
        DrainReason::Surplus => {
            "`idle_time` sets how long it stays idle, `idle_count` how many slots stay ready"
        }
        DrainReason::Expired => "`max_lifetime` sets its age",
        DrainReason::MadeRoom => {
            "`max_instances` leaves room for other trust domains and for what jobs order, `reuse` sets what the domains are"
        }
        DrainReason::NeverReady => "`launch_timeout` sets how long it may boot",
        DrainReason::NotReady { .. } => "`ready_command` has to pass, within `ready_timeout`",
        DrainReason::NotSuspended { .. } => "`suspend_timeout` sets how long a suspension may take",
        DrainReason::NotResumed { .. } => "`resume_timeout` sets how long a resume may take",
        DrainReason::Unresponsive { .. } => "`health_interval` sets how often idle instances are probed",
        DrainReason::Unfit { .. } => {
            "`max_use_count = 1` gives each job an instance of its own; `recheck_command` has to pass"
        }
        DrainReason::FailsEarly { .. } => "`recheck_command` lets the keeper find out what these jobs met",
        DrainReason::ByOperator
        | DrainReason::Stopped
        | DrainReason::Vanished
        | DrainReason::Broken { .. }
        | DrainReason::Rebooted
        | DrainReason::Unaccounted
        | DrainReason::LaunchedAfterRefusal
        | DrainReason::Announced { .. }
        | DrainReason::BeginsNoStage { .. }
        | DrainReason::FailedCheck { .. }
        | DrainReason::Abandoned => return None,
    })
}
