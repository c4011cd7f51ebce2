//! The command `pool status`: once, or every second.

use std::io::{self, Write as _};

use serde_json::{Value, json};

use super::watch::{EVERY, Screen, watch};
use super::{KeeperStatus, StatusInput, as_json, render};
use crate::cli::args::GlobalOptions;
use crate::cli::context::Context;
use crate::cli::error::CliError;
use crate::cli::pool::reader::{PoolReader, PoolRecord};
use crate::cli::rows::wrapped;
use crate::cli::ui;
use crate::cli::when::{When, rfc3339};
use crate::core::pool::PoolState;
use crate::host::local::Role;
use crate::port::clock::Clock as _;

/// How it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    Json,
    /// One document a line.
    JsonLine,
}

/// Shows pools, with their links if `wide`; false if the state of one cannot be read.
pub(in crate::cli) async fn status(
    place: &GlobalOptions,
    pool: Option<&str>,
    wide: bool,
    again: bool,
    json: bool,
) -> Result<bool, CliError> {
    let context = Context::open(place, Role::Operator)?;
    let reader = PoolReader::open(&context, pool).await?;
    let form = match (json, again) {
        (false, _) => Form::Text,
        (true, false) => Form::Json,
        (true, true) => Form::JsonLine,
    };
    let show = async || {
        let (keeper, mut records) = reader.read().await;
        if wide {
            reader.query_links(&mut records).await;
        }
        let when = When::local(context.host.now());
        (shown(&records, &keeper, &when, form), records.iter().all(|pool| pool.state.is_ok()))
    };
    if !again {
        let (text, is_sound) = show().await;
        ui::out(&text);
        return Ok(is_sound);
    }
    let screen = if ui::is_terminal() && !json { Screen::Terminal } else { Screen::Pipe };
    let look = async || Ok::<_, CliError>(show().await.0);
    let write = |text: &str| {
        let mut out = anstream::stdout();
        out.write_all(text.as_bytes()).and_then(|()| out.flush())
    };
    watch(screen, EVERY, look, write, interrupted()?).await?;
    Ok(true)
}

/// Resolves at SIGINT or SIGTERM: the usual end of a watch.
fn interrupted() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

fn shown(records: &[PoolRecord<'_>], keeper: &KeeperStatus, when: &When, form: Form) -> String {
    let json =
        || json!({ "pools": records.iter().map(|pool| one_json(pool, keeper, when)).collect::<Vec<_>>() });
    match form {
        Form::Text => {
            let blocks: Vec<String> = records.iter().map(|pool| one_text(pool, keeper, when)).collect();
            blocks.join("\n")
        }
        Form::Json => format!("{:#}\n", json()),
        Form::JsonLine => format!("{}\n", json()),
    }
}

fn one_text(record: &PoolRecord<'_>, keeper: &KeeperStatus, when: &When) -> String {
    let width = ui::width();
    let mut text = match &record.state {
        Ok(state) => render(input(record, state, keeper), when, width),
        Err(error) => {
            let head = format!("pool {}: its state cannot be read\n", record.pool);
            let error = wrapped(&format!("error: {error}"), width, "  ", "    ");
            head + &error + "  help: run `greenroom doctor`\n"
        }
    };
    if let Err(problem) = &record.report {
        text.push_str(&wrapped(
            &format!("error: the last report cannot be read: {problem}"),
            width,
            "  ",
            "    ",
        ));
    }
    text
}

fn input<'a>(record: &'a PoolRecord<'_>, state: &'a PoolState, keeper: &'a KeeperStatus) -> StatusInput<'a> {
    let report = record.report.as_ref().ok().and_then(Option::as_ref);
    StatusInput {
        pool: record.pool,
        state,
        report,
        keeper,
        links: record.links.as_ref(),
        containers: Some(&record.containers),
    }
}

fn one_json(record: &PoolRecord<'_>, keeper: &KeeperStatus, when: &When) -> Value {
    match &record.state {
        Ok(state) => as_json(input(record, state, keeper), when),
        Err(error) => {
            json!({ "pool": record.pool.as_str(), "at": rfc3339(when.now()), "error": error.to_string() })
        }
    }
}
