//! `pool status`: instances, waiting jobs and the active policy.

pub(in crate::cli) mod links;
mod ordered;
mod reason;
mod text;
mod until;
mod view;
pub mod watch;

use std::io::{self, Write as _};

use greenroom_core::pool::PoolState;
use greenroom_manager::runner_host::Role;
use greenroom_ports::clock::Clock as _;
use serde_json::{Value, json};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

use super::reader::{PoolReader, PoolRecord};
use crate::cli::args::GlobalOptions;
use crate::cli::context::Context;
use crate::cli::error::CliError;
use crate::cli::reporting::Reporting;
use crate::cli::ui::{self, wrapped};
use crate::cli::when::{When, rfc3339};
pub(crate) use reason::{hosts, is_suspended, job_on_what, on_what};
use view::PoolView;
pub use view::{ContainerUse, KeeperStatus, StatusInput};
pub(crate) use view::{InstanceView, LaunchBackoff, offerings};
use watch::{EVERY, Screen, Signal, Viewer, watch};

/// One pool as text, for a terminal of `width` columns. Ends with a newline.
pub fn render(input: StatusInput<'_>, when: &When, width: usize) -> String {
    text::text(&PoolView::of(input, when), when, width, None)
}

/// The same for a screen: what is many is counted. `lines`: about how many there is room for; `None`, any number. `bar`:
/// with a bar of the pool's slots.
pub fn render_on(
    input: StatusInput<'_>,
    when: &When,
    (width, lines): (usize, Option<usize>),
    bar: bool,
) -> String {
    let view = PoolView::of(input, when);
    let bar = if bar { text::bar(&input, width) } else { String::new() };
    let text = text::text(&view, when, width, lines.map(|lines| lines.saturating_sub(bar.lines().count())));
    match text.split_once('\n') {
        Some((first, rest)) => format!("{first}\n{bar}{rest}"),
        None => text,
    }
}

/// One pool as JSON.
pub fn as_json(input: StatusInput<'_>, when: &When) -> Value {
    json!(PoolView::of(input, when))
}

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
    let show = async |lines: usize| {
        let (keeper, mut records) = reader.read().await;
        if wide {
            reader.query_links(&mut records).await;
        }
        let when = When::local(context.host.now());
        let reporting = Reporting::read(&context.state_path, &keeper);
        let reported = reporting.lines(when.now());
        let lines = lines.saturating_sub(reported.len() + 1);
        let layout = Layout { lines: (!wide).then_some(lines), bar: again };
        let text = match form {
            Form::Text => {
                let below: String =
                    reported.iter().map(|line| wrapped(line, ui::width(), "", "  ")).collect();
                let gap = if below.is_empty() { "" } else { "\n" };
                shown(&records, &keeper, &when, layout) + gap + &below
            }
            Form::Json => format!("{:#}\n", as_document(&records, &keeper, &reporting, &when)),
            Form::JsonLine => format!("{}\n", as_document(&records, &keeper, &reporting, &when)),
        };
        (text, records.iter().all(|pool| pool.state.is_ok()))
    };
    if !again {
        let (text, is_sound) = show(ui::height()).await;
        ui::out(&text);
        return Ok(is_sound);
    }
    let screen = if ui::draws() && !json { Screen::Terminal } else { Screen::Pipe };
    let look = async || Ok::<_, CliError>(show(ui::height()).await.0);
    watch(screen, EVERY, look, &mut Live::new(screen)?).await?;
    Ok(true)
}

/// This process, its standard output and its signals.
struct Live {
    interrupt: Signals,
    terminate: Signals,
    resized: Signals,
    /// `None`: the usual action.
    suspended: Option<Signals>,
}

impl Live {
    fn new(screen: Screen) -> io::Result<Self> {
        let suspended = (screen == Screen::Terminal)
            .then(|| signal(SignalKind::from_raw(rustix::process::Signal::TSTP.as_raw())))
            .transpose()?;
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            resized: signal(SignalKind::window_change())?,
            suspended,
        })
    }
}

impl Viewer for Live {
    fn rows(&self) -> usize {
        ui::height()
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        // As it is: without colours, nothing has to be taken out.
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush())
    }

    async fn signal(&mut self) -> Signal {
        let suspended = async {
            match &mut self.suspended {
                Some(signals) => drop(signals.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Signal::Stop,
            _ = self.terminate.recv() => Signal::Stop,
            _ = self.resized.recv() => Signal::Resized,
            () = suspended => Signal::Suspend,
        }
    }

    fn suspend(&mut self) {
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP).ok();
    }
}

/// How much of it is written.
#[derive(Debug, Clone, Copy)]
struct Layout {
    /// The lines that there is room for; `None`, everything is shown.
    lines: Option<usize>,
    /// With a bar of the slots.
    bar: bool,
}

fn shown(records: &[PoolRecord<'_>], keeper: &KeeperStatus, when: &When, layout: Layout) -> String {
    // An empty line is between two pools.
    let each = layout.lines.map(|lines| (lines / records.len().max(1)).saturating_sub(1));
    let layout = Layout { lines: each, ..layout };
    let blocks: Vec<String> = records.iter().map(|pool| one_text(pool, keeper, when, layout)).collect();
    blocks.join("\n")
}

fn as_document(
    records: &[PoolRecord<'_>],
    keeper: &KeeperStatus,
    reporting: &Reporting,
    when: &When,
) -> Value {
    let pools: Vec<Value> = records.iter().map(|pool| one_json(pool, keeper, when)).collect();
    json!({ "pools": pools, "reporting": reporting.json() })
}

fn one_text(record: &PoolRecord<'_>, keeper: &KeeperStatus, when: &When, layout: Layout) -> String {
    let width = ui::width();
    let mut text = match &record.state {
        Ok(state) => {
            let input = input(record, state, keeper);
            render_on(input, when, (width, layout.lines), layout.bar)
        }
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

#[cfg(test)]
mod tests;
