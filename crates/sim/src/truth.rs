//! The actual state, whatever is recorded.
//!
//! Kept by the workload, the connector and the cloud; read by the checker.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use greenroom_core::ids::{AttemptName, InstanceId, PoolName};
use greenroom_core::job::JobFacts;
use greenroom_ports::provider::LaunchRequest;

use super::early::EarlyTruth;
use super::images::ImageTruth;
use super::keeping::LastKeeper;
use crate::exec::Pid;
use crate::offerings::OfferingAnswers;

/// A job's attempt between its `prepare` and its `cleanup`, as the runner sees it.
#[derive(Debug, Clone)]
pub struct Live {
    pub job: u64,
    pub facts: JobFacts,
    pub pool: PoolName,
    pub manager: usize,
    pub instance: InstanceId,
}

/// A session that runs on an instance now.
#[derive(Debug, Clone)]
pub struct Session {
    pub instance: InstanceId,
    /// The attempt of the session's job; `None`: the session is a command of the operator's.
    pub attempt: Option<AttemptName>,
}

/// The trust domain of jobs that ran on a static host before this state directory existed.
pub const EARLIER: &str = "another state directory";

/// The jobs of an instance.
#[derive(Debug, Clone, Default)]
pub struct Guests {
    /// The trust domain of the jobs since it was launched, or cleaned.
    pub domain: Option<String>,
    /// The operator has unbound the host since its last cleaning; and the same when the present cleaning began.
    pub unbound: bool,
    pub cleaned_unbound: bool,
    /// All attempts of its life.
    pub ever: BTreeSet<AttemptName>,
}

/// The end of a job, as GitLab sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobResult {
    Passed,
    /// The script's fault.
    Failed,
    /// The fault of Greenroom, or of the cloud.
    SystemFailure,
    Cancelled,
    /// The runner of the job died, and GitLab gave up the job.
    Abandoned,
}

#[derive(Debug, Default)]
pub struct Truth {
    /// Jobs that no runner has taken yet, by their index in the scenario.
    pub queue: VecDeque<usize>,
    pub live: BTreeMap<AttemptName, Live>,
    /// The moment when a keeper last failed to wait for wake-ups.
    pub failed_waits: BTreeMap<(Pid, PoolName), u64>,
    /// The job of every attempt so far.
    pub attempts: BTreeMap<AttemptName, (PoolName, JobFacts)>,
    pub sessions: BTreeMap<Pid, Session>,
    pub guests: BTreeMap<InstanceId, Guests>,
    /// Jobs in a row that are recorded with an instance that began no stage of theirs: attempt and trust domain.
    pub unbegun: BTreeMap<InstanceId, Vec<(AttemptName, String)>>,
    /// Instances that did not prepare a job's containers and have not been checked since.
    pub suspect: BTreeSet<InstanceId>,
    pub early: EarlyTruth,
    /// Instances that a job has ever spoiled.
    pub spoiled: BTreeSet<InstanceId>,
    /// Jobs that will fill the disk of their instance while it is checked after another job.
    pub spoils_during_check: u32,
    /// Launches that were sent and have not arrived: token, instance, pool.
    pub in_flight: BTreeMap<String, (InstanceId, PoolName)>,
    /// The tokens of launches that the cloud refused and carried out.
    pub lies: BTreeSet<String>,
    /// The provider's answers to launches of offerings.
    pub answers: BTreeMap<PoolName, OfferingAnswers>,
    /// Every launch ever sent, by its token.
    pub requested: BTreeMap<String, LaunchRequest>,
    pub results: BTreeMap<u64, JobResult>,
    /// Faults around a job that justify a system failure.
    pub excuses: BTreeMap<u64, &'static str>,
    /// Processes that the store has refused a call.
    pub refused_by_store: BTreeSet<Pid>,
    /// Jobs that runners work on: by number, with the runner.
    pub running: BTreeMap<u64, u32>,
    /// The last moment of an event that justifies a wait.
    pub excused: u64,
    /// The moment since which a job waits although an instance is free for it, by ledger and pool.
    pub unserved: BTreeMap<(usize, PoolName), (u64, String)>,
    /// Instances to be terminated on a full disk: since when, and during how many errors, no call was made about them.
    pub held_up: BTreeMap<InstanceId, (u64, u32)>,
    /// Instances whose last termination failed, and when it is repeated at the latest.
    pub pauses: BTreeMap<InstanceId, u64>,
    /// The last keeper of each manager, by the manager's number. Copies have none.
    pub last_keepers: BTreeMap<usize, LastKeeper>,
    /// The instance that the lists of a pool omit, and the moment until which they do.
    pub omitted: BTreeMap<PoolName, (u64, InstanceId)>,
    /// Instances that `endpoint` has ever denied, rightly or not.
    pub denied: BTreeSet<InstanceId>,
    /// The moment when the list of a pool last lacked everything, although instances responded.
    pub lost_lists: BTreeMap<PoolName, u64>,
    /// The moment until which such a list of a pool is right again.
    pub right_lists: BTreeMap<PoolName, u64>,
    /// Instances whose last launch was refused and that no list has shown since: recorded in no account.
    pub nowhere: BTreeSet<InstanceId>,
    /// Pools whose last list was that of the other account, by the manager that got it.
    pub elsewhere: BTreeSet<(usize, PoolName)>,
    /// Limits that applied until a moment ago: pool, until when, how many.
    pub old_limits: BTreeMap<PoolName, (u64, u32)>,
    pub images: ImageTruth,
    /// Instances that are being resumed, and whether a connection has succeeded since.
    pub resuming: BTreeMap<InstanceId, bool>,
    /// Counters for names.
    pub keepers: u32,
    pub runners: u32,
    pub tmpdirs: u32,
}

impl Truth {
    /// A fault occurred around this job.
    pub fn excuse(&mut self, job: u64, why: &'static str) {
        self.excuses.entry(job).or_insert(why);
    }

    /// Live jobs on an instance.
    pub fn jobs_on<'a>(&'a self, id: &'a InstanceId) -> impl Iterator<Item = &'a Live> {
        self.live.values().filter(move |l| l.instance == *id)
    }
}
