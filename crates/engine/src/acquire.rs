//! `prepare`: from a request to an instance that responds.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use greenroom_core::attempt::{Closed, End};
use greenroom_core::availability::Unavailable;
use greenroom_core::ids::{AttemptName, InstanceId, JobKey, OfferingName, PoolName};
use greenroom_core::images::Images;
use greenroom_core::instance::{Answer, Instance, LaunchRecord, Phase, Release};
use greenroom_core::job::Reservation;
use greenroom_core::job_end::{JobEnd, JobResult};
use greenroom_core::order::RefusedOrder;
use greenroom_core::plan::request::{self, Ask};
use greenroom_core::plan::{self, warm};
use greenroom_core::policy::Policy;
use greenroom_core::pool::PoolState;
use greenroom_core::report::{Note, WaitingOn};
use greenroom_core::start::StartAccount;
use greenroom_core::time::{Pretty, Stamp};
use greenroom_ports::attempts::{Assignment, AttemptRecord, StageTimeouts};
use greenroom_ports::connector::{ConnectError, FirstStage};
use greenroom_ports::host_error::HostError;
use greenroom_ports::lock::Lock;
use greenroom_ports::store::StoreError;
use greenroom_ports::wakeups::{MailboxName, WakeReason};

use super::progress::{BootStep, Progress};
use super::{Engine, EngineError};

/// An instance that responds, and how the job got it.
#[derive(Debug)]
pub struct Acquired {
    /// The attempt's lease: held until the call ends.
    pub lease: Lock,
    pub assignment: Assignment,
    pub waited: Duration,
    pub account: StartAccount,
    /// Duration of the instance's boot, if the job waited for it.
    pub booted: Option<Duration>,
    /// Time from process start of the request to the committed grant.
    pub granted_after: Duration,
    /// The images that the instance had when it was granted.
    pub images: Images,
    /// True if another job may find there what this one pulls.
    pub shares_images: bool,
    /// Number of jobs that the instance may run concurrently.
    pub capacity: u32,
    /// True if other jobs are there, were there, or may come, whatever new instances of the pool are for.
    pub meets_others: bool,
}

/// The reason why a job got no instance.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    #[error("no instance within {} (`acquire_timeout`): {on}", Pretty(*limit))]
    TimedOut { limit: Duration, on: WaitingOn },
    /// SIGTERM: the job was cancelled or timed out.
    #[error("stopped while waiting for an instance; the job holds no slot")]
    Stopped,
    #[error("the runner is gone; the job holds no slot")]
    RunnerGone,
    #[error("{0}")]
    Closed(Closed),
    /// The pool can never serve this job, or never as it is.
    #[error("{0}")]
    Impossible(String),
    /// The pool cannot make the instance that the job ordered, through no fault of the job.
    #[error("{0}")]
    OrderRefused(String),
    /// No host of the pool may ever serve this job, unless the operator changes that.
    #[error(
        "no host may run this job: {on}; the runner's administrator can add a host, or release one with \
         `greenroom pool resume {pool} --instance {host} --unbind`"
    )]
    Bound { pool: PoolName, host: InstanceId, on: WaitingOn },
    /// All static hosts of the pool have been out of service for
    /// [`no_host_timeout`](greenroom_core::policy::Timing::no_host_timeout).
    #[error(
        "{on}; the job waited for {} (`no_host_timeout`); the runner's administrator can return a host to service with \
         `greenroom pool resume {pool} --instance HOST`",
        Pretty(*limit)
    )]
    NoHost { pool: PoolName, limit: Duration, on: WaitingOn },
    /// A fault on the runner host, or another job in the job's directory, lasted for
    /// [`acquire_timeout`](greenroom_core::policy::Timing::acquire_timeout).
    #[error("{0}")]
    Held(String),
    /// Neither the state nor the configuration has a policy for the pool; the reason of the latter.
    #[error("the pool has no policy: no keeper has recorded one yet, and {0}")]
    NoPolicy(NoConfiguredPolicy),
    #[error("{0}")]
    Moved(String),
    #[error(transparent)]
    Trouble(#[from] EngineError),
}

/// Why the configuration has no policy for a pool, as the command line says it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoConfiguredPolicy(pub String);

impl AcquireError {
    fn of_order(refused: &RefusedOrder) -> Self {
        let reason = refused.reason.clone();
        if refused.by_job { Self::Impossible(reason) } else { Self::OrderRefused(reason) }
    }

    /// The end of a job with this error, for the record.
    fn end(&self) -> Option<JobEnd> {
        let result = match self {
            Self::Stopped => JobResult::Canceled,
            Self::Impossible(_) => JobResult::Failed,
            Self::Closed(_) => return None,
            Self::TimedOut { .. }
            | Self::RunnerGone
            | Self::OrderRefused(_)
            | Self::Bound { .. }
            | Self::NoHost { .. }
            | Self::Held(_)
            | Self::NoPolicy(_)
            | Self::Moved(_)
            | Self::Trouble(_) => JobResult::SystemFailed,
        };
        Some(JobEnd::new(result, &self.to_string()))
    }
}

impl From<StoreError> for AcquireError {
    fn from(error: StoreError) -> Self {
        Self::Trouble(error.into())
    }
}

impl From<HostError> for AcquireError {
    fn from(error: HostError) -> Self {
        match error {
            HostError::Closed { closed, .. } => Self::Closed(closed),
            HostError::Io { .. } => Self::Trouble(error.into()),
        }
    }
}

/// The pieces of one `prepare` call.
struct Call<'a> {
    engine: &'a Engine,
    attempt: &'a AttemptName,
    record: &'a AttemptRecord,
    began: Stamp,
    report: &'a mut dyn FnMut(Progress),
    reported: Option<WaitingOn>,
    step: Option<(InstanceId, BootStep)>,
    /// The refusals of offerings that were reported.
    refusals: Vec<(OfferingName, Stamp)>,
    /// Instances on their way for this job, as it reported.
    awaited: Vec<InstanceId>,
    /// The fault on the runner host that was reported.
    fault: Option<String>,
    /// Time at which the last pass planned, if it saw the attempt waiting.
    seen: Option<Stamp>,
    /// Time since which all static hosts of the pool are known to be out of service.
    without_hosts: Option<Stamp>,
}

impl Engine {
    /// Acquires an instance for the attempt, or returns why there is none. After an error, the attempt has no grant.
    /// `policy` returns the configured policy, or why there is none; it is called only if none is recorded.
    pub async fn acquire(
        &self,
        attempt: &AttemptName,
        record: &AttemptRecord,
        policy: &dyn Fn() -> Result<Arc<Policy>, NoConfiguredPolicy>,
        report: &mut dyn FnMut(Progress),
    ) -> Result<Acquired, AcquireError> {
        let began = self.now();
        let (lease, record) = self.host.attempts.begin_attempt(attempt, record).await?;
        if let Some(problem) = self.host.leadership.identity().await?.moved {
            return Err(AcquireError::Moved(problem));
        }
        let known = self.store.load().await?;
        let policy = known.policy.clone().map_or_else(policy, Ok).map_err(AcquireError::NoPolicy)?;
        if let Some(why) = impossible(&record, &policy) {
            return Err(AcquireError::Impossible(why));
        }
        let ask = Ask { attempt: attempt.clone(), job: record.job.clone(), policy, superseded: Vec::new() };
        let state = self.request(&ask, &known).await?;
        let mut call = Call {
            engine: self,
            attempt,
            record: &record,
            began,
            report,
            reported: None,
            step: None,
            refusals: Vec::new(),
            awaited: Vec::new(),
            fault: None,
            seen: None,
            without_hosts: None,
        };
        let outcome = call.until_answering(&ask, state).await;
        match outcome {
            Ok(answering) => Ok(answering.acquired(lease, self.now().since(began))),
            Err(error) => {
                // The job log shows the cause. What stays behind ends with the attempt.
                if let Err(problem) = self.give_back(attempt, false, error.end()).await {
                    tracing::warn!(pool = %self.pool, %attempt, "cannot release its request: {problem}");
                }
                Err(error)
            }
        }
    }

    /// Requests capacity. A job has one open attempt: the earlier ones are closed first, their marks before their release, so
    /// that none of their calls can use the slot any more when it becomes free.
    async fn request(&self, ask: &Ask, known: &PoolState) -> Result<PoolState, AcquireError> {
        let mut superseded = Vec::new();
        for other in known.other_attempts(&ask.job.key, &ask.attempt) {
            let closing = self.host.attempts.close_attempt(other, End::Superseded).await?;
            let leaving = Release { how: End::Superseded, used: closing.used, closing: closing.calls_remain };
            superseded.push((other.clone(), leaving));
        }
        let ask = Ask { superseded, ..ask.clone() };
        Ok(self.commit(|state| request::acquire(state, &ask, self.now())).await?.state)
    }
}

/// The reason why the pool can never run a job, if it cannot.
fn impossible(record: &AttemptRecord, policy: &Policy) -> Option<String> {
    let timeout = record.job.timeout;
    let limit = policy.max_lifetime.filter(|_| !policy.has_time_for(&record.job))?;
    Some(format!(
        "the job's timeout of {} exceeds the lifetime of instances of pool `{}` ({}, `max_lifetime`)",
        Pretty(timeout),
        record.pool,
        Pretty(limit.0),
    ))
}

/// The instance that responds, as the grant found it.
struct Answering {
    assignment: Assignment,
    account: StartAccount,
    booted: Option<Duration>,
    granted_after: Duration,
    images: Images,
    shares_images: bool,
    capacity: u32,
    meets_others: bool,
}

impl Answering {
    fn acquired(self, lease: Lock, waited: Duration) -> Acquired {
        Acquired {
            lease,
            waited,
            assignment: self.assignment,
            account: self.account,
            booted: self.booted,
            granted_after: self.granted_after,
            images: self.images,
            shares_images: self.shares_images,
            capacity: self.capacity,
            meets_others: self.meets_others,
        }
    }
}

impl Call<'_> {
    /// Tries each granted instance until one responds.
    async fn until_answering(&mut self, ask: &Ask, mut state: PoolState) -> Result<Answering, AcquireError> {
        let mut woken = false;
        loop {
            if let Some(granted) = granted(&state, self.attempt) {
                let granted_after = self.engine.now().since(self.began);
                if !self.awaited.is_empty() {
                    // Another instance came first: the job log still has what became of the awaited one.
                    self.reason(&state).await;
                }
                if !woken {
                    self.engine.host.wakeups.wake_keeper(&self.engine.pool).await;
                }
                if let Some(job) = self.directory_user(granted.instance).await? {
                    let dir = self.record.builds_dir.as_deref().unwrap_or_default();
                    let problem = format!("job {job} still uses {dir} on {}", granted.instance.id);
                    state = self.hold_on(problem, &state).await?;
                    continue;
                }
                if is_newly_bound(granted.instance) {
                    // CRASH: after a power cut, only the record shows which domain's jobs a host has run.
                    self.engine.store.sync().await?;
                }
                match self.check(&granted.assignment).await? {
                    Ok(()) => {
                        // A living keeper was woken at the grant.
                        if let Err(error) = self.engine.ensure_keeper().await {
                            (self.report)(Progress::NoKeeper { problem: error.to_string() });
                        }
                        return Ok(granted.answering(state.policy.as_deref(), self.began, granted_after));
                    }
                    Err(problem @ ConnectError::HostFault { .. }) => {
                        state = self.hold_on(problem.to_string(), &state).await?;
                    }
                    Err(problem) => state = self.reject(&granted.assignment.instance, &problem).await?,
                }
                continue;
            }
            let Some(waiting) = state.waiting_for(self.attempt) else {
                // A keeper took this call for dead and dropped its request, keeping its place in the queue; or another
                // attempt of the job came in between.
                self.engine.refuse_closed(self.attempt).await?;
                state = self.engine.request(ask, &state).await?;
                continue;
            };
            if let Some(refused) = &waiting.refused {
                return Err(AcquireError::of_order(refused));
            }
            let waiting = waiting.clone();
            self.explain(&state).await?;
            woken = self.summon(&state).await?;
            state = self.wait(&waiting, &state).await?;
        }
    }

    /// The instance is granted: writes how to reach it for `run`, and checks whether it responds.
    async fn check(&mut self, assignment: &Assignment) -> Result<Result<(), ConnectError>, AcquireError> {
        let host = &self.engine.host;
        host.attempts.assign(self.attempt, Some(assignment)).await?;
        // RACE: `cleanup` sets the mark first and then releases; this call commits first and then checks the mark.
        self.engine.refuse_closed(self.attempt).await?;
        let within = assignment.timeouts.start_within;
        let shell = self.record.execution.shell();
        let builds_dir = self.record.builds_dir.clone();
        let first =
            FirstStage { shell, trace: self.engine.trace(self.attempt, assignment, builds_dir).await? };
        let id = &assignment.instance;
        let at = &assignment.endpoint;
        let check = self.engine.connector.check_for(id, at, &first, within);
        match select(check, host.wakeups.stopped(self.attempt)).await {
            Either::Left((answer, _)) => Ok(answer),
            Either::Right((woken, _)) => {
                if woken == WakeReason::Message {
                    self.engine.refuse_closed(self.attempt).await?;
                }
                Err(stopped(woken))
            }
        }
    }

    /// The job that got a slot of the instance earlier, and has its sources in the same directory. Runner processes with one
    /// token give the same number to two jobs, and a runner uses a number again while a stage of its last job still runs.
    async fn directory_user(&self, instance: &Instance) -> Result<Option<JobKey>, AcquireError> {
        let (Some(own), Some(dir)) = (instance.holders.get(self.attempt), &self.record.builds_dir) else {
            return Ok(None);
        };
        for (name, holder) in &instance.holders {
            let before = own.granted.since(holder.granted);
            let after = holder.granted.since(own.granted);
            let is_earlier = (after, name) < (before, self.attempt);
            if is_earlier && self.engine.host.attempts.builds_dir(name).await?.as_ref() == Some(dir) {
                return Ok(Some(holder.job.clone()));
            }
        }
        Ok(None)
    }

    /// Waits after a fault that is not the instance's: the job keeps it, and tries again. Another instance would meet the same
    /// fault.
    async fn hold_on(&mut self, problem: String, state: &PoolState) -> Result<PoolState, AcquireError> {
        let timing = state.policy.as_ref().map(|policy| policy.timing.clone()).unwrap_or_default();
        if self.engine.now().reached(self.began.plus(timing.acquire_timeout)) {
            return Err(AcquireError::Held(problem));
        }
        if self.fault.as_ref() != Some(&problem) {
            self.fault = Some(problem.clone());
            (self.report)(Progress::Held { problem });
        }
        self.poll(timing.waiter_poll_interval).await?;
        Ok(self.engine.store.load().await?)
    }

    /// Waits for a wake-up or this long, unless the call has to end.
    async fn poll(&self, within: Duration) -> Result<(), AcquireError> {
        match self.engine.host.wakeups.wait(MailboxName::Attempt(self.attempt), within).await? {
            WakeReason::Message | WakeReason::Timeout => {}
            woken => return Err(stopped(woken)),
        }
        Ok(self.engine.refuse_closed(self.attempt).await?)
    }

    /// Gives an instance back that does not respond, and keeps the place in the queue: the job may get another one
    /// immediately, and the keeper decides about this one.
    async fn reject(
        &mut self,
        instance: &InstanceId,
        problem: &ConnectError,
    ) -> Result<PoolState, AcquireError> {
        let problem = problem.to_string();
        (self.report)(Progress::Broken { instance: instance.clone(), problem: problem.clone() });
        self.engine.host.attempts.assign(self.attempt, None).await?;
        let decide = |s: &PoolState| request::reject(s, self.attempt, &problem, self.engine.now());
        Ok(self.engine.commit(decide).await?.state)
    }

    /// Sees to it that a keeper runs, and wakes it unless a pass saw the attempt within the last poll: many waiting calls
    /// then cause no more passes than one. True if the keeper was woken.
    async fn summon(&self, state: &PoolState) -> Result<bool, HostError> {
        let recent = self.seen.is_some_and(|at| !self.engine.now().reached(at.plus(poll_interval(state))));
        if recent {
            self.engine.ensure_keeper().await?;
        } else {
            self.engine.summon().await?;
        }
        Ok(!recent)
    }

    /// Waits for a wake-up or the next poll, and returns the state as it is then.
    async fn wait(&mut self, waiting: &Reservation, state: &PoolState) -> Result<PoolState, AcquireError> {
        let left = self.engine.now().until(waiting.deadline());
        self.poll(poll_interval(state).min(left)).await?;
        let state = self.engine.store.load().await?;
        let granted = state.granted.contains_key(self.attempt);
        if !granted && self.engine.now().reached(waiting.deadline()) {
            let limit = state.policy.as_ref().map_or(waiting.remaining_timeout, |p| p.timing.acquire_timeout);
            let on = self.reason(&state).await.unwrap_or(WaitingOn::NextPass);
            return Err(AcquireError::TimedOut { limit, on });
        }
        Ok(state)
    }

    /// The reason why the attempt waits: by the last report, or by the record if no pass has seen the attempt yet. Reports
    /// failed boots that it waited for.
    async fn reason(&mut self, state: &PoolState) -> Option<WaitingOn> {
        let report = self.engine.last_report().await;
        let at = report.as_ref().map(|report| report.at);
        let (waiting, notes) = report.map(|r| (r.waiting, r.notes)).unwrap_or_default();
        for note in notes {
            let (id, news) = match note {
                Note::BootFailed(boot) => (boot.instance.clone(), Progress::BootFailed(boot)),
                Note::Unfit { instance, reason } => (instance.clone(), Progress::Unfit { instance, reason }),
                _ => continue,
            };
            if let Some(at) = self.awaited.iter().position(|awaited| *awaited == id) {
                self.awaited.swap_remove(at);
                (self.report)(news);
            }
        }
        let on = waiting.into_iter().find(|(name, _)| name == self.attempt).map(|(_, on)| on);
        self.seen = on.as_ref().and(at);
        on.or_else(|| plan::by_record(state, self.attempt, self.engine.now()))
    }

    /// Reports each change of the reason once. Ends the call if waiting is no use.
    async fn explain(&mut self, state: &PoolState) -> Result<(), AcquireError> {
        let Some(on) = self.reason(state).await else { return Ok(()) };
        if let WaitingOn::Bound { instance, .. } = &on {
            let pool = self.engine.pool.clone();
            let host = instance.clone();
            return Err(AcquireError::Bound { pool, host, on });
        }
        let limit = state.policy.as_ref().map(|policy| policy.timing.no_host_timeout).unwrap_or_default();
        if self.lacks_hosts(&on, limit) {
            return Err(AcquireError::NoHost { pool: self.engine.pool.clone(), limit, on });
        }
        if self.reported.as_ref() != Some(&on) {
            self.reported = Some(on.clone());
            if let WaitingOn::Boot { instance }
            | WaitingOn::Recheck { instance }
            | WaitingOn::Cleaning { instance }
            | WaitingOn::Obstructed { instance, .. } = &on
                && !self.awaited.contains(instance)
            {
                self.awaited.push(instance.clone());
            }
            // The pool does not know how long the images of jobs take.
            let usual_boot = state.launches.usual_boot().filter(|_| self.record.job.order.is_none());
            (self.report)(Progress::Waiting { on: on.clone(), usual_boot });
        }
        if let WaitingOn::Boot { instance } | WaitingOn::Obstructed { instance, .. } = &on
            && let Some(known) = state.instance(instance)
        {
            self.report_unavailable(state, known);
            if let Some(step) = boot_step(known)
                && self.step != Some((instance.clone(), step))
            {
                self.step = Some((instance.clone(), step));
                let offering = known.offering().cloned();
                let after = self.engine.now().since(known.created);
                (self.report)(Progress::Boot { instance: instance.clone(), offering, step, after });
            }
        }
        Ok(())
    }

    /// True if no host of the pool has been in service for [`no_host_timeout`](greenroom_core::policy::Timing::no_host_timeout).
    fn lacks_hosts(&mut self, on: &WaitingOn, limit: Duration) -> bool {
        let now = self.engine.now();
        let all_out =
            matches!(on, WaitingOn::NoHost { unusable: Some(hosts) } if hosts.is_all_out_of_service());
        if !all_out {
            self.without_hosts = None;
            return false;
        }
        now.reached(self.without_hosts.get_or_insert(now).plus(limit))
    }

    /// Reports why the launch did not use the offerings before its own, each refusal once.
    fn report_unavailable(&mut self, state: &PoolState, known: &Instance) {
        let (Some(taken), Some(policy)) = (known.offering(), state.policy.as_deref()) else { return };
        let passed = state.availability.preferred_to(taken, &policy.timing, self.engine.now());
        let is_reported = |p: &Unavailable| self.refusals.contains(&(p.offering.clone(), p.refusal.at));
        let news: Vec<Unavailable> = passed.filter(|p| !is_reported(p)).collect();
        if !news.is_empty() {
            self.refusals.extend(news.iter().map(|p| (p.offering.clone(), p.refusal.at)));
            (self.report)(Progress::Unavailable(news));
        }
    }
}

/// The time that a waiting call sleeps unless it is woken.
fn poll_interval(state: &PoolState) -> Duration {
    state.policy.as_ref().map_or(Duration::from_secs(1), |policy| policy.timing.waiter_poll_interval)
}

fn stopped(woken: WakeReason) -> AcquireError {
    match woken {
        WakeReason::RunnerGone => AcquireError::RunnerGone,
        _ => AcquireError::Stopped,
    }
}

/// The recorded facts of an attempt's grant.
struct Granted<'a> {
    assignment: Assignment,
    instance: &'a Instance,
    account: StartAccount,
}

fn granted<'a>(state: &'a PoolState, attempt: &AttemptName) -> Option<Granted<'a>> {
    let grant = state.granted.get(attempt)?;
    let instance = state.instance(&grant.instance)?;
    let at = instance.holders.get(attempt)?.granted;
    let account = StartAccount::of(instance, attempt, grant.reservation.requested_at, at);
    let endpoint = instance.endpoint.clone()?;
    let is_static = instance.is_static();
    let timeouts =
        state.policy.as_ref().map(|policy| StageTimeouts::from(&policy.timing)).unwrap_or_default();
    let unbegun = instance.unbegun.is_some();
    let instance_id = grant.instance.clone();
    let assignment =
        Assignment { instance: instance_id, endpoint, is_static, timeouts, unbegun, container: None };
    Some(Granted { assignment, instance, account })
}

impl Granted<'_> {
    fn answering(self, policy: Option<&Policy>, began: Stamp, granted_after: Duration) -> Answering {
        let Self { assignment, instance, account } = self;
        Answering {
            booted: boot_since(instance, began),
            images: instance.images.clone(),
            shares_images: policy.is_some_and(|policy| warm::is_shared(instance, policy)),
            capacity: instance.capacity,
            meets_others: instance.jobs_meet(),
            assignment,
            account,
            granted_after,
        }
    }
}

fn boot_step(instance: &Instance) -> Option<BootStep> {
    let accepted = |launch: &LaunchRecord| matches!(launch.answer, Answer::Accepted { .. });
    match instance.phase {
        Phase::Checking => Some(BootStep::Reachable),
        Phase::Launching if instance.launch.as_ref().is_some_and(accepted) => Some(BootStep::Launched),
        _ => None,
    }
}

/// True if this grant may be what binds the static host to its domain. A launched instance is drained after a power
/// cut.
fn is_newly_bound(instance: &Instance) -> bool {
    instance.is_static() && instance.released.is_none()
}

/// Duration of a launched instance's boot, if it became ready after `began`.
fn boot_since(instance: &Instance, began: Stamp) -> Option<Duration> {
    let booted = !instance.is_static() && instance.resumed.is_none();
    let ready = instance.ready.filter(|ready| booted && !began.reached(*ready))?;
    Some(ready.since(instance.created))
}
