//! The view of `history`: the jobs of a period, as a table and as `--json`.
//!
//! Field names are stable. Moments are RFC 3339 in UTC; fields that end in `_ms` are milliseconds.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use greenroom_core::history::{JobPhase, JobRecord};
use greenroom_core::ids::{InstanceId, OfferingName, PoolName};
use greenroom_core::job_end::{Blame, JobResult};
use greenroom_core::start::Start;
use greenroom_core::time::{Pretty, Stamp};
use serde::{Serialize, Serializer};

use crate::cli::fields;
use crate::cli::ui::{plural, shortened, wrapped};
use crate::cli::when::{When, whole};

/// The jobs of the period that suit the question, oldest first.
#[derive(Debug, Serialize)]
pub(super) struct HistoryView {
    /// The present moment.
    #[serde(serialize_with = "fields::moment")]
    pub(super) at: Stamp,
    /// The beginning of the period; null: the first event that is kept.
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

/// One job of a [`HistoryView`].
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
    /// The number of times that GitLab Runner tried to prepare the job.
    attempts: u32,
    /// `waiting`, `running` or `ended`.
    pub(super) phase: JobPhase,
    /// The time from the request until the grant; of a job that waits, until now.
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
    /// The time for which the job has held its instance.
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

/// The widest name of a project.
const PROJECT_COLUMNS: usize = 24;
const HEADER: [&str; 11] = [
    "REQUESTED",
    "JOB",
    "PROJECT",
    "POOL",
    "WAITED",
    "START",
    "INSTANCE",
    "OFFERING",
    "LASTED",
    "ENDED",
    "BLAME",
];
/// The column that is left out if no job has an offering.
const OFFERING: usize = 7;

/// Rows, the reasons of failures below them, and a summary. Ends with a newline.
pub(super) fn text(seen: &HistoryView, when: &When, width: usize) -> String {
    let mut text = String::new();
    if seen.jobs.is_empty() {
        text.push_str(&wrapped(&nothing(seen, when), width, "", "  "));
    } else {
        text.push_str(&table(&seen.jobs, when, width));
        text.push('\n');
        text.push_str(&wrapped(&summary(seen, when), width, "", "  "));
    }
    for problem in &seen.unreadable {
        text.push_str(&wrapped(&format!("unreadable: {problem}"), width, "", "  "));
    }
    text
}

fn nothing(seen: &HistoryView, when: &When) -> String {
    let kept = match seen.history_begins {
        Some(begins) => format!("events are kept since {}", when.clock(begins)),
        None => "no events are kept yet".to_owned(),
    };
    format!("no jobs {}; {kept}", period(seen, when))
}

fn period(seen: &HistoryView, when: &When) -> String {
    let since = seen.since.or(seen.history_begins).map(|since| format!("since {}", when.clock(since)));
    let until = (seen.until != seen.at).then(|| format!("until {}", when.clock(seen.until)));
    let parts: Vec<String> = since.into_iter().chain(until).collect();
    parts.join(" ")
}

fn table(jobs: &[JobRow], when: &When, width: usize) -> String {
    let rows: Vec<[String; 11]> = jobs.iter().map(|job| cells(job, when)).collect();
    let mut widths = HEADER.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    if jobs.iter().all(|job| job.offering.is_none()) {
        widths[OFFERING] = 0;
    }
    let mut text = String::new();
    line(&mut text, &HEADER, &widths);
    for (row, job) in rows.iter().zip(jobs) {
        line(&mut text, row, &widths);
        if let Some(reason) = &job.reason {
            text.push_str(&wrapped(reason, width, "    ", "    "));
        }
    }
    text
}

fn line(text: &mut String, cells: &[impl AsRef<str>], widths: &[usize]) {
    for (cell, width) in cells.iter().zip(widths).filter(|(_, width)| **width > 0) {
        // Writing to a string cannot fail.
        write!(text, "{:width$}  ", cell.as_ref()).ok();
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
}

fn cells(job: &JobRow, when: &When) -> [String; 11] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let ended = match (job.phase, job.result) {
        (JobPhase::Waiting, _) => "waiting".to_owned(),
        (JobPhase::Running, _) => "running".to_owned(),
        (JobPhase::Ended, Some(result)) => result.to_string(),
        (JobPhase::Ended, None) => "unknown".to_owned(),
    };
    [
        when.clock(job.requested_at),
        job.job.to_string(),
        printable(&shortened(&job.project, PROJECT_COLUMNS)),
        job.pool.to_string(),
        or_dash(job.waited.map(|waited| Pretty(waited).to_string())),
        job.start.map_or("-", Start::word).to_owned(),
        or_dash(job.instance.as_ref().map(ToString::to_string)),
        or_dash(job.offering.as_ref().map(ToString::to_string)),
        or_dash(job.lasted.map(|lasted| whole(lasted).to_string())),
        ended,
        or_dash(job.blame.map(|party| party.to_string())),
    ]
}

fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// `12 jobs since 14:00:00: 10 passed, 2 failed; 9 warm, 3 booted; half waited at most 14 ms, the longest 24.7 s`.
fn summary(seen: &HistoryView, when: &When) -> String {
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    let mut starts: BTreeMap<Start, usize> = BTreeMap::new();
    for job in &seen.jobs {
        let word = match (job.phase, job.result) {
            (JobPhase::Ended, Some(result)) => result.to_string(),
            (JobPhase::Ended, None) => "with an unknown end".to_owned(),
            (JobPhase::Running, _) => "running".to_owned(),
            (JobPhase::Waiting, _) => "waiting".to_owned(),
        };
        *ends.entry(word).or_default() += 1;
        if let Some(start) = job.start {
            *starts.entry(start).or_default() += 1;
        }
    }
    let counted = |count: usize, word: &str| format!("{count} {word}");
    let ends: Vec<String> = ends.iter().map(|(word, count)| counted(*count, word)).collect();
    let starts: Vec<String> = starts.iter().map(|(start, count)| counted(*count, start.word())).collect();
    let mut text = format!("{} {}: {}", plural(seen.jobs.len(), "job"), period(seen, when), ends.join(", "));
    if !starts.is_empty() {
        write!(text, "; {}", starts.join(", ")).ok();
    }
    let mut waits: Vec<Duration> = seen.jobs.iter().filter_map(|job| job.waited).collect();
    waits.sort_unstable();
    if let Some(longest) = waits.last() {
        let half = Pretty(waits[(waits.len() - 1) / 2]);
        let most = Pretty(*longest);
        write!(text, "; median wait {half}, longest {most}").ok();
    }
    if seen.left_out > 0 {
        let earlier = plural(seen.left_out, "earlier job");
        write!(text, "; `--limit` leaves out {earlier}").ok();
    }
    text
}
