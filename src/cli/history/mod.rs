//! `history`: the jobs of a period, one row each.

mod moment;
mod view;

use std::time::Duration;

use clap::Args;
use greenroom_core::glob::Glob;
use greenroom_core::history::{JobRecord, Period};
use greenroom_core::time::Stamp;
use greenroom_manager::runner_host::Role;
use greenroom_ports::clock::Clock as _;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::args::GlobalOptions;
use super::context::Context;
use super::error::CliError;
use super::explain::job_number;
use super::read_model::PoolReader;
use super::ui;
use super::when::When;
use moment::{Edge, parse};
use view::{HistoryView, JobRow};

#[derive(Debug, Default, Args)]
pub struct HistoryOptions {
    /// Start of the period [default: 24 hours before its end; with --job: the first event that is kept]
    #[arg(long, value_name = "WHEN")]
    pub since: Option<String>,
    /// End of the period [default: now]
    #[arg(long, value_name = "WHEN")]
    pub until: Option<String>,
    /// Name of the pool [default: all pools]
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// Number or URL of one job
    #[arg(long, value_name = "JOB")]
    pub job: Option<String>,
    /// Full path of the project; `*` stands for any characters but `/`, `**` for any
    #[arg(long, value_name = "PATH")]
    pub project: Option<String>,
    /// Show only the last N jobs
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The length of a period without `--since`.
const USUAL: Duration = Duration::from_hours(24);

/// The conditions that a shown job meets.
struct Filter {
    job: Option<u64>,
    project: Option<Glob>,
}

impl Filter {
    fn of(options: &HistoryOptions) -> Result<Self, CliError> {
        let job = options.job.as_deref().map(|what| {
            job_number(what).ok_or_else(|| {
                CliError::say(format!("`{what}` is not a job"))
                    .help("name its number, such as `4711`, or its URL")
            })
        });
        Ok(Self { job: job.transpose()?, project: options.project.as_deref().map(Glob::new) })
    }

    fn takes(&self, job: &JobRecord) -> bool {
        self.job.is_none_or(|number| job.job.id == number)
            && self.project.as_ref().is_none_or(|project| project.matches(&job.project))
    }
}

/// Shows the jobs of a period; false if records of it cannot be read.
pub(in crate::cli) async fn history(
    place: &GlobalOptions,
    options: &HistoryOptions,
) -> Result<bool, CliError> {
    let context = Context::open(place, Role::Operator)?;
    let now = context.host.now();
    let filter = Filter::of(options)?;
    let period = period(options, now)?;
    let reader = PoolReader::open(&context, options.pool.as_deref()).await?;
    let mut view = HistoryView {
        at: now,
        since: (period.since_ms != i64::MIN).then(|| wall(now, period.since_ms)),
        until: wall(now, period.until_ms),
        history_begins: None,
        jobs: Vec::new(),
        left_out: 0,
        unreadable: Vec::new(),
    };
    for (pool, store) in reader.stores() {
        let known = store.jobs(period).await?;
        if let Some(begins) = known.begins
            && view.history_begins.is_none_or(|first| begins.wall_ms < first.wall_ms)
        {
            view.history_begins = Some(begins);
        }
        view.unreadable.extend(known.unreadable.iter().map(ToString::to_string));
        let jobs = known.jobs.into_iter().filter(|job| filter.takes(job));
        view.jobs.extend(jobs.map(|job| JobRow::of(job, pool, now)));
    }
    view.jobs.sort_by_key(|job| job.requested_at.wall_ms);
    if let Some(limit) = options.limit {
        view.left_out = view.jobs.len().saturating_sub(limit);
        view.jobs.drain(..view.left_out);
    }
    let text = if options.json {
        serde_json::to_string_pretty(&view).map_err(CliError::system)? + "\n"
    } else {
        view::text(&view, &When::local(now), ui::width())
    };
    ui::out(&text);
    Ok(view.unreadable.is_empty())
}

fn period(options: &HistoryOptions, now: Stamp) -> Result<Period, CliError> {
    let zone = TimeZone::system();
    let clock = Timestamp::from_millisecond(now.wall_ms).map_err(CliError::system)?;
    let read = |flag: &str, text: &str, edge| {
        parse(text, edge, clock, &zone)
            .map_err(|help| CliError::say(format!("`{flag} {text}` is not a moment")).help(help.to_string()))
    };
    let until = options.until.as_deref().map(|text| read("--until", text, Edge::End)).transpose()?;
    let until_ms = until.unwrap_or(now.wall_ms);
    let since_ms = match &options.since {
        Some(text) => read("--since", text, Edge::Begin)?,
        None if options.job.is_some() => i64::MIN,
        None => wall(now, until_ms).minus(USUAL).wall_ms,
    };
    if since_ms > until_ms {
        return Err(
            CliError::say("the period ends before it begins").help("name a `--since` before `--until`")
        );
    }
    Ok(Period { since_ms, until_ms })
}

/// A moment of the wall clock.
fn wall(now: Stamp, wall_ms: i64) -> Stamp {
    if wall_ms == now.wall_ms { now } else { Stamp { wall_ms, uptime_ms: 0, ..now } }
}

#[cfg(test)]
mod tests;
