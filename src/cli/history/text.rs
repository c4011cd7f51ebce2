//! The history as a table.
//!
//! Hundreds of thousands of rows are printed in a second, so the table is padded here.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use greenroom_core::history::JobPhase;
use greenroom_core::start::Start;
use greenroom_core::time::Pretty;

use super::view::{HistoryView, JobRow};
use crate::cli::rows::{shortened, wrapped};
use crate::cli::ui::plural;
use crate::cli::when::{When, whole};

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
        let (half, most) = (Pretty(waits[(waits.len() - 1) / 2]), Pretty(*longest));
        write!(text, "; median wait {half}, longest {most}").ok();
    }
    if seen.left_out > 0 {
        let earlier = plural(seen.left_out, "earlier job");
        write!(text, "; `--limit` leaves out {earlier}").ok();
    }
    text
}
