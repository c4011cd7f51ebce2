//! The summary at the end of a job's log, for pools with `summary = true`.
//!
//! `prepare` begins it, each `run` adds a row, and the last stage prints it. Nothing of it decides anything: a problem
//! costs the job its summary.

use std::time::Duration;

use greenroom_core::container::account::{ContainerAccount, ImageSource};
use greenroom_core::summary::{SummaryRow, table};
use greenroom_engine::acquire::Acquired;
use greenroom_manager::gitlab::exit::Outcome;
use greenroom_manager::gitlab::stage::Stage;

use super::job::Call;
use super::ui;

/// Begins the summary of a job that has its instance. `containers`: how long they took, if the job has any.
pub(super) fn begin(call: &Call, acquired: &Acquired, containers: Option<Duration>) {
    let account = containers.and_then(|_| call.context.host.containers_of(&call.attempt));
    let rows = rows(acquired, containers, account.as_ref());
    if let Err(problem) = call.context.host.begin_summary(&call.attempt, &rows) {
        tracing::warn!("cannot begin the summary of the job: {problem}");
    }
}

fn rows(
    acquired: &Acquired,
    containers: Option<Duration>,
    account: Option<&ContainerAccount>,
) -> Vec<SummaryRow> {
    let mut rows = vec![SummaryRow::new("waited", acquired.waited, acquired.account.to_string())];
    let instance = acquired.assignment.instance.as_str();
    rows.extend(acquired.booted.map(|boot| SummaryRow::new("booted", boot, instance)));
    rows.extend(containers.map(|took| SummaryRow::new("containers", took, "")));
    let images = account.into_iter().flat_map(|account| {
        std::iter::once(&account.image).chain(account.services.iter().map(|service| &service.image))
    });
    rows.extend(images.filter_map(|image| match image.source {
        Some(ImageSource::Pulled { after, .. }) => {
            Some(SummaryRow::new("pulled", after, image.name.as_str()))
        }
        Some(ImageSource::Present) | None => None,
    }));
    rows
}

/// Adds the row of a stage, if the job has a summary; after the last one, prints it. `outcome`: `None`, the stage could not be
/// run.
pub(super) fn note(call: &Call, stage: &Stage, took: Duration, outcome: Option<Outcome>) {
    let host = &call.context.host;
    let row = || SummaryRow::new(stage.to_string(), took, ending(outcome));
    let shown = host.add_to_summary(&call.attempt, row).and_then(|has_one| {
        if has_one && stage.is_last() { host.summary(&call.attempt) } else { Ok(Vec::new()) }
    });
    match shown {
        Ok(rows) if rows.is_empty() => {}
        Ok(rows) => ui::err(&format!("greenroom: summary of this job\n{}", table(&rows))),
        Err(problem) => tracing::warn!("cannot write the summary of the job: {problem}"),
    }
}

fn ending(outcome: Option<Outcome>) -> String {
    match outcome {
        Some(Outcome::Success) => String::new(),
        Some(Outcome::Build(code)) => format!("exit status {code}"),
        Some(Outcome::System) => "stopped".to_owned(),
        None => "system failure".to_owned(),
    }
}
