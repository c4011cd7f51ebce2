//! The command `explain`.

use futures_util::future::join_all;
use greenroom_core::container::account::ContainerAccount;
use greenroom_core::event::Event;
use greenroom_core::pool::PoolState;
use greenroom_manager::runner_host::Role;
use greenroom_ports::clock::Clock as _;

use super::past::Question;
use super::{Chapter, explain};
use crate::cli::args::GlobalOptions;
use crate::cli::context::Context;
use crate::cli::error::CliError;
use crate::cli::pool::reader::{PoolReader, PoolRecord};
use crate::cli::pool::status::KeeperStatus;
use crate::cli::reporting::Reporting;
use crate::cli::ui;
use crate::cli::when::When;

/// Explains; false if no subject has that name.
pub(in crate::cli) async fn tell(place: &GlobalOptions, what: &str, json: bool) -> Result<bool, CliError> {
    let context = Context::open(place, Role::Operator)?;
    let reader = PoolReader::open(&context, None).await?;
    let (keeper, records) = reader.read().await;
    let when = When::local(context.host.now());
    // The history of a pool is shown even if its state cannot be read.
    let nothing = PoolState::default();
    let containers =
        Question::of(what).job.map(|job| context.host.containers_of_job(job)).unwrap_or_default();
    let reporting = Reporting::read(&context.state_path, &keeper);
    let chapters = records.iter().map(async |pool| {
        let notices = reporting.of_pool(pool.pool, when.now());
        Chapter { notices, ..chapter(pool, &nothing, &keeper, &containers).await }
    });
    let chapters = join_all(chapters).await;
    match explain(what, chapters, &when) {
        Ok(answer) if json => ui::out(&format!("{:#}\n", answer.json(&when))),
        Ok(answer) => ui::out(&answer.text(&when, ui::width())),
        Err(unknown) => {
            let help = unknown.help.clone();
            ui::err(&CliError::system(unknown).help(help).for_operator());
            return Ok(false);
        }
    }
    Ok(true)
}

async fn chapter<'a>(
    record: &'a PoolRecord<'_>,
    nothing: &'a PoolState,
    keeper: &'a KeeperStatus,
    containers: &'a [ContainerAccount],
) -> Chapter<'a> {
    let problems =
        [record.state.as_ref().err().map(ToString::to_string), record.report.as_ref().err().cloned()];
    let problems = problems.into_iter().flatten().map(Err);
    let history: Box<dyn Iterator<Item = Result<Event, String>>> = match record.store.history().await {
        Ok(history) => Box::new(history.map(|read| match read {
            Ok(recorded) => Ok(recorded.event),
            Err(error) => Err(error.to_string()),
        })),
        Err(error) => Box::new(std::iter::once(Err(error.to_string()))),
    };
    Chapter {
        pool: record.pool,
        state: record.state.as_ref().unwrap_or(nothing),
        report: record.report.as_ref().ok().and_then(Option::as_ref),
        keeper,
        containers,
        notices: Vec::new(),
        history: Box::new(problems.chain(history)),
    }
}
