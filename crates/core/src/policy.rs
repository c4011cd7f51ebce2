//! A pool's policy: its limits and idle targets, as set by the operator.
//!
//! The keys have the names and the meaning of GitLab Runner's own autoscaler. The last entry of [`Policy::schedules`] whose
//! periods contain the current minute is active; outside all periods, the defaults are.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ids::TrustDomain;
use super::job::JobFacts;
use super::schedule::Schedule;
use super::time::{Stamp, millis};
use crate::images::WarmPolicy;

/// The policy of one pool, as recorded in its state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// Hard limit of instances in any phase, which no request exceeds.
    pub max_instances: u32,
    /// Jobs that may share an instance concurrently.
    pub capacity_per_instance: u32,
    /// Jobs that an instance runs before it is drained; `None`: no limit.
    pub max_use_count: Option<u32>,
    /// Concurrent launches.
    pub max_launching: u32,
    /// New launches in any minute.
    pub launches_per_minute: u32,
    /// Instances are drained at this age, once idle; `None`: never.
    #[serde(default)]
    pub max_lifetime: Option<Lifetime>,
    /// True if [`max_lifetime`](Self::max_lifetime) is the provider's default: for a job with a longer timeout, an instance
    /// is launched that lives longer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub extends_lifetime: bool,
    pub reuse: Reuse,
    /// True if a successful cleaning makes a static host capacity for all trust domains again.
    pub clean_unbinds: bool,
    /// Active outside all periods.
    pub idle: IdlePolicy,
    /// Active inside their periods; the last match wins.
    #[serde(default)]
    pub schedules: Vec<ScheduledIdle>,
    /// Instances that are launched, checked and suspended. A job that finds no idle instance resumes one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub idle_stopped: u32,
    pub timing: Timing,
    /// The images that the keeper pulls on idle instances.
    #[serde(default, skip_serializing_if = "WarmPolicy::is_off")]
    pub warm: WarmPolicy,
}

/// An instance's age limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lifetime(#[serde(with = "millis")] pub Duration);

/// The spare capacity that is kept, in job slots.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct IdlePolicy {
    /// Spare job slots kept ready.
    pub idle_count: u32,
    /// The time that a surplus instance stays, counted from when it became ready or its last job ended.
    #[serde(with = "millis")]
    pub idle_time: Duration,
    /// Spare slots as a multiple of those in use; 0 switches it off.
    pub scale_factor: f64,
    /// The maximum that [`scale_factor`](Self::scale_factor) may yield; 0: no limit.
    pub scale_factor_limit: u32,
}

/// An idle policy for some periods.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScheduledIdle {
    pub when: Schedule,
    pub idle: IdlePolicy,
}

/// The jobs that may follow one another on an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reuse {
    /// Only jobs of the same project (default).
    Project,
    /// Only jobs of projects in the same group.
    Namespace,
    /// Any job.
    Any,
}

/// The domain of all jobs under `reuse = "any"`.
const ANYBODY: &str = "any";
/// Begins the domains of protected refs. A domain that was recorded before this word existed counts as not protected.
const PROTECTED: &str = "protected ";

/// All durations, so that tests of the real binary can shorten them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timing {
    /// The time that `prepare` waits for an instance. Default 30 min.
    #[serde(with = "millis")]
    pub acquire_timeout: Duration,
    /// A launch that has not become ready by then is drained. Default 10 min.
    #[serde(with = "millis")]
    pub launch_timeout: Duration,
    /// A launch without an answer is repeated after this. Default 30 s.
    #[serde(with = "millis")]
    pub relaunch_after: Duration,
    /// Two complete lists at least this far apart prove absence. Default 30 s.
    #[serde(with = "millis")]
    pub absence_interval: Duration,
    /// An unrecorded instance of this owner is reaped at this age. Default 5 min.
    #[serde(with = "millis")]
    pub reap_grace: Duration,
    /// The time that a job keeps its place in the queue between two attempts. Default 5 min.
    #[serde(with = "millis")]
    pub place_retention: Duration,
    /// An attempt whose runner's state is unknown has ended once its lease has been free this long. Default 10 min.
    #[serde(with = "millis")]
    pub lease_free_timeout: Duration,
    /// An attempt has ended at its job's timeout plus this. Default 15 min.
    #[serde(with = "millis")]
    pub job_timeout_grace: Duration,
    /// Attempt directories are removed this long after the attempt's end. Default 1 day.
    #[serde(with = "millis")]
    pub attempt_retention: Duration,
    /// A static host is cleaned when the lease is free, or this long after closing. Default 60 s.
    #[serde(with = "millis")]
    pub clean_grace: Duration,
    /// An instance that turned surplus while it was launched stays at least this long. Default 60 s.
    #[serde(with = "millis")]
    pub surplus_min_time: Duration,
    /// Between two tries to reach a booting instance. Default 1 s.
    #[serde(with = "millis")]
    pub probe_interval: Duration,
    /// Between two passes while something is under way. Default 10 s.
    #[serde(with = "millis")]
    pub pass_interval: Duration,
    /// The provider's instances are listed at most this often. Default 5 s.
    #[serde(with = "millis")]
    pub list_interval: Duration,
    /// The first delay after a failed launch; doubles with each further one. Default 5 s.
    #[serde(with = "millis")]
    pub launch_backoff: Duration,
    /// The longest such delay, and the pause of an open circuit breaker. Default 5 min.
    #[serde(with = "millis")]
    pub launch_backoff_max: Duration,
    /// Failed launches in a row before the pool pauses; concurrent refusals count once. Default 5.
    pub breaker_failures: u32,
    /// An offering without capacity is unavailable this long; doubles for each refusal in a row. Default 2 min.
    #[serde(with = "millis", default = "stockout_backoff")]
    pub stockout_backoff: Duration,
    /// Longest such time. Default 30 min.
    #[serde(with = "millis", default = "stockout_backoff_max")]
    pub stockout_backoff_max: Duration,
    /// An offering is unavailable this long after a refusal for a quota, a missing permission or an invalid request.
    /// Default 15 min.
    #[serde(with = "millis", default = "quota_backoff")]
    pub quota_backoff: Duration,
    /// Limit for connecting to an instance and checking it. Default 10 s.
    #[serde(with = "millis")]
    pub connect_timeout: Duration,
    /// Limit for the ready command. Default 2 min.
    #[serde(with = "millis")]
    pub ready_timeout: Duration,
    /// Limit for cleaning, and again for its `clean_command`. Default 10 min.
    #[serde(with = "millis", default = "clean_timeout")]
    pub clean_timeout: Duration,
    /// An instance that is not suspended by then is drained. Default 10 min.
    #[serde(with = "millis", default = "suspend_timeout", skip_serializing_if = "is_suspend_timeout")]
    pub suspend_timeout: Duration,
    /// An instance that is not ready this long after its resume was requested is drained. Default 3 min.
    #[serde(with = "millis", default = "resume_timeout", skip_serializing_if = "is_resume_timeout")]
    pub resume_timeout: Duration,
    /// Idle instances are probed this often. Default 60 s.
    #[serde(with = "millis", default = "health_interval")]
    pub health_interval: Duration,
    /// Time from TERM to KILL when a stage is stopped. Default 10 s.
    #[serde(with = "millis")]
    pub stop_grace: Duration,
    /// Limit for the instance's engine to start a job's container. Default 1 min.
    #[serde(with = "millis", default = "container_start", skip_serializing_if = "is_container_start")]
    pub container_start_timeout: Duration,
    /// An image that was pulled in advance is compared with the registry's this often. Default 1 h.
    #[serde(with = "millis", default = "image_check", skip_serializing_if = "is_image_check")]
    pub image_check_interval: Duration,
    /// A job that waits fails after all static hosts of its pool have been out of service for so long. Default 1 min.
    #[serde(with = "millis", default = "no_host", skip_serializing_if = "is_no_host")]
    pub no_host_timeout: Duration,
    /// The time that `run` waits for the keeper to report why an instance was lost. Default 10 s.
    #[serde(with = "millis")]
    pub loss_reason_timeout: Duration,
    /// A waiting call polls the state at least this often. Default 1 s.
    #[serde(with = "millis")]
    pub waiter_poll_interval: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let s = Duration::from_secs;
        let m = Duration::from_mins;
        Self {
            acquire_timeout: m(30),
            launch_timeout: m(10),
            relaunch_after: s(30),
            absence_interval: s(30),
            reap_grace: m(5),
            place_retention: m(5),
            lease_free_timeout: m(10),
            job_timeout_grace: m(15),
            attempt_retention: Duration::from_hours(24),
            clean_grace: s(60),
            surplus_min_time: s(60),
            probe_interval: s(1),
            pass_interval: s(10),
            list_interval: s(5),
            launch_backoff: s(5),
            launch_backoff_max: m(5),
            breaker_failures: 5,
            stockout_backoff: stockout_backoff(),
            stockout_backoff_max: stockout_backoff_max(),
            quota_backoff: quota_backoff(),
            connect_timeout: s(10),
            ready_timeout: m(2),
            clean_timeout: clean_timeout(),
            suspend_timeout: suspend_timeout(),
            resume_timeout: resume_timeout(),
            health_interval: health_interval(),
            stop_grace: s(10),
            container_start_timeout: container_start(),
            image_check_interval: image_check(),
            no_host_timeout: no_host(),
            loss_reason_timeout: s(10),
            waiter_poll_interval: s(1),
        }
    }
}

// Defaults for policies recorded by versions without these keys.

fn no_host() -> Duration {
    Duration::from_mins(1)
}

fn is_no_host(value: &Duration) -> bool {
    *value == no_host()
}

fn clean_timeout() -> Duration {
    Duration::from_mins(10)
}

fn stockout_backoff() -> Duration {
    Duration::from_mins(2)
}

fn stockout_backoff_max() -> Duration {
    Duration::from_mins(30)
}

fn quota_backoff() -> Duration {
    Duration::from_mins(15)
}

fn suspend_timeout() -> Duration {
    Duration::from_mins(10)
}

fn is_suspend_timeout(limit: &Duration) -> bool {
    *limit == suspend_timeout()
}

fn resume_timeout() -> Duration {
    Duration::from_mins(3)
}

fn is_resume_timeout(limit: &Duration) -> bool {
    *limit == resume_timeout()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

fn health_interval() -> Duration {
    Duration::from_mins(1)
}

/// The default of [`Timing::container_start_timeout`].
pub fn container_start() -> Duration {
    Duration::from_mins(1)
}

/// True for the default, which is left out of what is recorded.
pub fn is_container_start(limit: &Duration) -> bool {
    *limit == container_start()
}

fn image_check() -> Duration {
    Duration::from_hours(1)
}

fn is_image_check(interval: &Duration) -> bool {
    *interval == image_check()
}

impl Default for IdlePolicy {
    fn default() -> Self {
        Self { idle_count: 0, idle_time: Duration::from_mins(20), scale_factor: 0.0, scale_factor_limit: 0 }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_instances: 1,
            capacity_per_instance: 1,
            max_use_count: Some(1),
            max_launching: 10,
            launches_per_minute: 60,
            max_lifetime: None,
            extends_lifetime: false,
            reuse: Reuse::Project,
            clean_unbinds: false,
            idle: IdlePolicy::default(),
            schedules: Vec::new(),
            idle_stopped: 0,
            timing: Timing::default(),
            warm: WarmPolicy::default(),
        }
    }
}

impl Policy {
    /// The active idle policy, and its entry of `schedules` (`None`: the default).
    pub fn in_force(&self, now: Stamp) -> (&IdlePolicy, Option<usize>) {
        for (index, entry) in self.schedules.iter().enumerate().rev() {
            if entry.when.contains(now) {
                return (&entry.idle, Some(index));
            }
        }
        (&self.idle, None)
    }

    /// Jobs that a fresh instance can run concurrently.
    pub fn fresh_slots(&self) -> u32 {
        self.capacity_per_instance.min(self.max_use_count.unwrap_or(u32::MAX)).max(1)
    }

    /// True if an instance that is launched for this job lives long enough for its timeout.
    pub fn has_time_for(&self, job: &JobFacts) -> bool {
        self.extends_lifetime || self.max_lifetime.is_none_or(|limit| job.timeout <= limit.0)
    }

    /// The lifetime of an instance that is launched while a job with this timeout waits.
    pub fn lifetime_for(&self, longest_timeout: Duration) -> Option<Lifetime> {
        // Neither the pass that assigns the job nor its end comes immediately.
        let needed = longest_timeout.saturating_add(self.timing.launch_timeout);
        let extended =
            |limit: Lifetime| if self.extends_lifetime { Lifetime(limit.0.max(needed)) } else { limit };
        self.max_lifetime.map(extended)
    }

    /// The trust domain of a job under this policy. A project's protected refs have one of their own: users who may not
    /// push to them may run jobs on its other refs.
    pub fn domain_of(&self, job: &JobFacts) -> TrustDomain {
        let (kind, name) = match self.reuse {
            Reuse::Project => ("project", &*job.project),
            Reuse::Namespace => ("namespace", job.namespace()),
            Reuse::Any => return TrustDomain::new(ANYBODY),
        };
        let protected = if job.protected { PROTECTED } else { "" };
        TrustDomain::new(format!("{protected}{kind} {} {name}", job.key.server))
    }
}

impl Reuse {
    /// True if an instance that is bound to this domain is still capacity for every job.
    pub fn is_open(self, bound_to: &TrustDomain) -> bool {
        self == Self::Any && bound_to.is_of_all()
    }
}

impl TrustDomain {
    /// The project or namespace of a trust domain, without the server.
    pub fn name(&self) -> &str {
        self.as_str().rsplit(' ').next().unwrap_or_default()
    }

    /// True for the domain of all jobs.
    pub fn is_of_all(&self) -> bool {
        self.as_str() == ANYBODY
    }

    /// True if its jobs are those of protected refs.
    pub fn is_protected(&self) -> bool {
        self.as_str().starts_with(PROTECTED)
    }
}

impl IdlePolicy {
    /// Spare slots wanted while `in_use` slots are taken.
    pub fn target(&self, in_use: u32) -> u32 {
        if self.scale_factor <= 0.0 {
            return self.idle_count;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to u32's range just before"
        )]
        let wished = (f64::from(in_use) * self.scale_factor).ceil().clamp(0.0, f64::from(u32::MAX)) as u32;
        let limit = if self.scale_factor_limit == 0 { u32::MAX } else { self.scale_factor_limit };
        wished.min(limit).max(self.idle_count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::ScheduleText;
    use crate::time::{BootId, ManagerId};

    fn idle(idle_count: u32, scale_factor: f64, scale_factor_limit: u32) -> IdlePolicy {
        IdlePolicy { idle_count, scale_factor, scale_factor_limit, ..IdlePolicy::default() }
    }

    #[test]
    fn the_idle_target_follows_use_between_its_bounds() {
        for (policy, in_use, target) in [
            (idle(2, 0.0, 0), 100, 2),
            (idle(2, 0.5, 0), 0, 2),
            (idle(2, 0.5, 0), 5, 3),
            (idle(2, 0.5, 0), 100, 50),
            (idle(2, 0.5, 10), 100, 10),
            (idle(5, 0.5, 3), 100, 5), // idle_count is a floor, also above the limit
            (idle(0, 1e300, 0), 4_000_000_000, u32::MAX),
        ] {
            assert_eq!(policy.target(in_use), target, "{policy:?} {in_use}");
        }
    }

    #[test]
    fn the_last_matching_period_wins_and_outside_all_the_default_rules() {
        let entry = |period: &str, count| ScheduledIdle {
            when: Schedule::parse(ScheduleText { periods: vec![period.into()], timezone: "UTC".into() })
                .unwrap(),
            idle: idle(count, 0.0, 0),
        };
        let policy = Policy {
            idle: idle(1, 0.0, 0),
            schedules: vec![entry("* 8-17 * * *", 10), entry("* 12 * * *", 20)],
            ..Policy::default()
        };
        let hour =
            |h: i64| Stamp { wall_ms: h * 3_600_000, manager: ManagerId(1), boot: BootId(0), uptime_ms: 0 };
        assert_eq!(policy.in_force(hour(7)), (&idle(1, 0.0, 0), None));
        assert_eq!(policy.in_force(hour(8)), (&idle(10, 0.0, 0), Some(0)));
        assert_eq!(policy.in_force(hour(12)), (&idle(20, 0.0, 0), Some(1)));
    }

    #[test]
    fn a_fresh_instance_offers_no_more_slots_than_it_has_uses() {
        let with = |capacity_per_instance, max_use_count| {
            Policy { capacity_per_instance, max_use_count, ..Policy::default() }.fresh_slots()
        };
        assert_eq!(with(4, Some(1)), 1);
        assert_eq!(with(4, Some(9)), 4);
        assert_eq!(with(4, None), 4);
    }

    #[test]
    fn a_job_has_time_if_an_instance_lives_as_long_as_its_timeout() {
        let has_time = |limit: Option<u64>| {
            let max_lifetime = limit.map(|s| Lifetime(Duration::from_secs(s)));
            let job = crate::notation::facts(1, "a", Duration::from_mins(1));
            Policy { max_lifetime, ..Policy::default() }.has_time_for(&job)
        };
        assert_eq!([has_time(None), has_time(Some(59)), has_time(Some(60))], [true, false, true]);
    }

    #[test]
    fn only_the_domain_of_everybody_is_open_and_only_where_anybody_may_follow() {
        let job = crate::notation::facts(1, "a", Duration::ZERO);
        let domain = |reuse| Policy { reuse, ..Policy::default() }.domain_of(&job);
        for bound in [Reuse::Any, Reuse::Project, Reuse::Namespace] {
            for now in [Reuse::Any, Reuse::Project, Reuse::Namespace] {
                assert_eq!(now.is_open(&domain(bound)), (bound, now) == (Reuse::Any, Reuse::Any));
            }
        }
    }

    #[test]
    fn a_domain_is_shown_by_its_name_and_its_protection() {
        let shown = |text: &str| {
            let domain = TrustDomain::new(text);
            (domain.name().to_owned(), domain.is_protected())
        };
        assert_eq!(shown("any"), ("any".to_owned(), false));
        assert_eq!(shown("project gl group/a"), ("group/a".to_owned(), false));
        assert_eq!(shown("protected namespace gl group"), ("group".to_owned(), true));
        assert_eq!(shown("project gl protected"), ("protected".to_owned(), false));
    }

    proptest::proptest! {
        #[test]
        fn the_target_never_falls_when_use_rises_and_keeps_its_bounds(
            idle_count in 0..50_u32,
            factor in 0.0..5.0_f64,
            limit in 0..200_u32,
            in_use in 0..10_000_u32,
        ) {
            let policy = idle(idle_count, factor, limit);
            let target = policy.target(in_use);
            proptest::prop_assert!(target <= policy.target(in_use + 1));
            proptest::prop_assert!(target >= idle_count);
            proptest::prop_assert!(limit == 0 || target <= limit.max(idle_count));
        }
    }

    #[test]
    fn no_factor_however_odd_breaks_the_target() {
        for factor in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 1e-300] {
            let target = idle(2, factor, 7).target(u32::MAX);
            assert!((2..=7).contains(&target), "{factor}: {target}");
        }
    }
}
