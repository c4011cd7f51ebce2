//! What `history` shows, and its `--json`.
//!
//! Field names are stable. Moments are RFC 3339 in UTC; fields that end in `_ms` are milliseconds.

use std::sync::Arc;
use std::time::Duration;

use greenroom_core::history::{JobPhase, JobRecord};
use greenroom_core::ids::{InstanceId, OfferingName, PoolName};
use greenroom_core::job_end::{Blame, JobResult};
use greenroom_core::start::Start;
use greenroom_core::time::Stamp;
use serde::{Serialize, Serializer};

use crate::cli::fields;

/// The jobs of the period that suit the question, oldest first.
#[derive(Debug, Serialize)]
pub(super) struct HistoryView {
    /// The present moment.
    #[serde(serialize_with = "fields::moment")]
    pub(super) at: Stamp,
    /// Null: since the first event that is kept.
    #[serde(serialize_with = "fields::moment")]
    pub(super) since: Option<Stamp>,
    #[serde(serialize_with = "fields::moment")]
    pub(super) until: Stamp,
    /// Time of the first event that is kept of these pools.
    #[serde(serialize_with = "fields::moment")]
    pub(super) history_begins: Option<Stamp>,
    pub(super) jobs: Vec<JobRow>,
    /// Jobs that `--limit` leaves out.
    pub(super) left_out: usize,
    /// Records that cannot be read.
    pub(super) unreadable: Vec<String>,
}

/// One job.
#[derive(Debug, Serialize)]
pub(super) struct JobRow {
    pub(super) job: u64,
    server: Arc<str>,
    pub(super) project: Arc<str>,
    name: Option<Arc<str>>,
    stage: Option<Arc<str>>,
    pipeline: Option<u64>,
    #[serde(rename = "ref")]
    git_ref: Option<Arc<str>>,
    pub(super) pool: PoolName,
    #[serde(serialize_with = "fields::moment")]
    pub(super) requested_at: Stamp,
    /// How often GitLab Runner tried to prepare it.
    attempts: u32,
    /// `waiting`, `running` or `ended`.
    pub(super) phase: JobPhase,
    /// Until the grant; of a job that waits, until now.
    #[serde(rename = "waited_ms", serialize_with = "ms")]
    pub(super) waited: Option<Duration>,
    /// `warm`, `booted` or `freed`; null: it got no instance.
    #[serde(serialize_with = "Start::serialize_word")]
    pub(super) start: Option<Start>,
    pub(super) instance: Option<InstanceId>,
    pub(super) offering: Option<OfferingName>,
    #[serde(serialize_with = "fields::moment")]
    granted_at: Option<Stamp>,
    #[serde(serialize_with = "fields::moment")]
    ended_at: Option<Stamp>,
    /// How long it has held its instance.
    #[serde(rename = "lasted_ms", serialize_with = "ms")]
    pub(super) lasted: Option<Duration>,
    /// `passed`, `failed`, `canceled`, `timed-out` or `system-failed`; null: not yet, or unknown.
    pub(super) result: Option<JobResult>,
    /// `job`, `user` or `system`; null: the job passed, has not ended, or its end is unknown.
    pub(super) blame: Option<Blame>,
    pub(super) reason: Option<Arc<str>>,
}

impl JobRow {
    pub(super) fn of(record: JobRecord, pool: &PoolName, now: Stamp) -> Self {
        let lasted = match (record.phase, record.granted) {
            (JobPhase::Running, Some(granted)) => Some(now.since(granted)),
            _ => record.lasted(),
        };
        let waited = match record.phase {
            JobPhase::Waiting => Some(record.waited + now.since(record.requested)),
            JobPhase::Running => Some(record.waited),
            JobPhase::Ended => record.granted.or(record.left).map(|_| record.waited),
        };
        let result = record.end.as_ref().map(|end| end.result);
        Self {
            job: record.job.id,
            server: record.job.server,
            project: record.project,
            name: record.name,
            stage: record.stage,
            pipeline: record.pipeline,
            git_ref: record.git_ref,
            pool: pool.clone(),
            requested_at: record.requested,
            attempts: record.attempts,
            phase: record.phase,
            waited,
            start: record.start,
            instance: record.instance,
            offering: record.offering,
            granted_at: record.granted,
            ended_at: record.left,
            lasted,
            result,
            blame: result.and_then(JobResult::blame),
            reason: record.end.and_then(|end| end.reason),
        }
    }
}

fn ms<S: Serializer>(duration: &(impl Copy + Into<Option<Duration>>), to: S) -> Result<S::Ok, S::Error> {
    let duration: Option<Duration> = (*duration).into();
    duration.map(|duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)).serialize(to)
}
