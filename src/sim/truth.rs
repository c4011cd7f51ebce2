//! What is really so, whatever anybody has recorded.
//!
//! Kept by the workload, the connector and the cloud; read by the checker.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::choosing::Said;
use super::steps::Pid;
use crate::core::ids::{AttemptName, InstanceId, PoolName};
use crate::core::job::JobFacts;
use crate::port::provider::LaunchRequest;

/// A job's attempt between its `prepare` and its `cleanup`, as the runner knows it.
#[derive(Debug, Clone)]
pub struct Live {
    pub job: u64,
    pub facts: JobFacts,
    pub pool: PoolName,
    pub machine: usize,
    pub instance: InstanceId,
}

/// Something that runs on an instance now.
#[derive(Debug, Clone)]
pub struct Session {
    pub instance: InstanceId,
    /// `None`: a command of the operator's.
    pub attempt: Option<AttemptName>,
}

/// Who has been on an instance.
#[derive(Debug, Clone, Default)]
pub struct Guests {
    /// The trust domain of the jobs since it was made, or cleaned.
    pub domain: Option<String>,
    /// Attempts of its whole life.
    pub ever: BTreeSet<AttemptName>,
}

/// How a job ended, for GitLab.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobResult {
    Passed,
    /// The script's fault.
    Failed,
    /// Ours, or the cloud's.
    SystemFailure,
    Cancelled,
    /// Its runner died; GitLab gives it up.
    Abandoned,
}

#[derive(Debug, Default)]
pub struct Truth {
    /// Jobs that no runner has taken yet, by their place in the scenario.
    pub queue: VecDeque<usize>,
    pub live: BTreeMap<AttemptName, Live>,
    /// The job of every attempt there ever was.
    pub attempts: BTreeMap<AttemptName, (PoolName, JobFacts)>,
    pub sessions: BTreeMap<Pid, Session>,
    pub guests: BTreeMap<InstanceId, Guests>,
    /// Launches that were sent and have not arrived: token, instance, pool.
    pub in_flight: BTreeMap<String, (InstanceId, PoolName)>,
    /// What launches of offerings met with.
    pub said: BTreeMap<PoolName, Said>,
    /// Every launch ever sent, by its token.
    pub asked: BTreeMap<String, LaunchRequest>,
    pub verdicts: BTreeMap<u64, JobResult>,
    /// What went wrong around a job, so that a system failure is true.
    pub excuses: BTreeMap<u64, &'static str>,
    /// Jobs that runners work on: by number, with the runner.
    pub running: BTreeMap<u64, u32>,
    /// The last moment at which something happened that excuses a wait.
    pub excused: u64,
    /// Since when a job waits although an instance is free for it, by machine and pool.
    pub unserved: BTreeMap<(usize, PoolName), (u64, String)>,
    /// When the last keeper of machine 0 left by itself, unless something happened since that excuses it.
    pub keeper_left: Option<u64>,
    /// Who became the keeper of machine 0 last, and whether somebody learned that it lives since it looked at a pool.
    pub keeper: Option<Pid>,
    pub relied: BTreeSet<PoolName>,
    /// Which instance the lists of a pool omit, and until when.
    pub omitted: BTreeMap<PoolName, (u64, InstanceId)>,
    /// Limits that were in force until a moment ago: pool, until when, how many.
    pub old_limits: BTreeMap<PoolName, (u64, u32)>,
    /// Counters for names.
    pub keepers: u32,
    pub runners: u32,
    pub tmpdirs: u32,
}

impl Truth {
    /// Something went wrong around this job.
    pub fn excuse(&mut self, job: u64, why: &'static str) {
        self.excuses.entry(job).or_insert(why);
    }

    /// Live jobs on an instance.
    pub fn jobs_on<'a>(&'a self, id: &'a InstanceId) -> impl Iterator<Item = &'a Live> {
        self.live.values().filter(move |l| l.instance == *id)
    }
}
