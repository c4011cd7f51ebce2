//! `pool status`: instances, waiting jobs and the active policy.

mod instance;
pub(in crate::cli) mod links;
mod text;
mod view;
pub mod watch;

use std::io::{self, Write as _};

use futures_util::future::join_all;
use greenroom_core::ids::{AttemptName, PoolName};
use greenroom_core::pool::PoolState;
use greenroom_manager::runner_host::Role;
use greenroom_ports::clock::Clock as _;
use greenroom_providers::qemu::store_use::PoolStore;
use greenroom_ssh::link::Survey;
use serde_json::{Value, json};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

use crate::cli::args::GlobalOptions;
use crate::cli::context::Context;
use crate::cli::error::CliError;
use crate::cli::read_model::{self, KeeperStatus, PoolReader, PoolRecord};
use crate::cli::reporting::Reporting;
use crate::cli::ui::{self, wrapped};
use crate::cli::when::{When, rfc3339};
pub(crate) use instance::InstanceView;
use view::PoolView;
pub use view::{ContainerUse, StatusInput};
pub(crate) use view::{LaunchBackoff, hosts, is_suspended, job_on_what, offerings, on_what};
use watch::{EVERY, Screen, Signal, Viewer, watch};

/// One pool as text, for a terminal of `width` columns. Ends with a newline.
pub fn render(input: StatusInput<'_>, when: &When, width: usize) -> String {
    text::text(&PoolView::of(input, when), when, width, None)
}

/// One pool as text for a screen, where many rows are counted. `lines`: about how many there is room for; `None`, any
/// number. `bar`: with a bar of the pool's slots.
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

/// The form in which the status is written.
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
        let keeper = KeeperStatus::read(&context.host).await;
        let records = reader.read(&context.host).await;
        let links = if wide { all_links(&context, &records).await } else { Vec::new() };
        let mut links = links.into_iter();
        let pools = records.into_iter().map(|record| ShownPool {
            containers: ContainerUse::read(&context, record.pool, record.state.as_ref().ok()),
            links: links.next(),
            record,
        });
        let pools: Vec<ShownPool<'_>> = pools.collect();
        let when = When::local(context.host.now());
        let reporting = Reporting::read(&context.state_path, &keeper);
        let reported = reporting.lines(when.now());
        // The pools leave room for the lines below them, and for the blank line in between.
        let lines = lines.saturating_sub(reported.len() + 1);
        let layout = Layout { lines: (!wide).then_some(lines), bar: again };
        let text = match form {
            Form::Text => {
                let below: String =
                    reported.iter().map(|line| wrapped(line, ui::width(), "", "  ")).collect();
                let gap = if below.is_empty() { "" } else { "\n" };
                shown(&pools, &keeper, &when, layout) + gap + &below
            }
            Form::Json => format!("{:#}\n", as_document(&pools, &keeper, &reporting, &when)),
            Form::JsonLine => format!("{}\n", as_document(&pools, &keeper, &reporting, &when)),
        };
        (text, pools.iter().all(|pool| pool.record.state.is_ok()))
    };
    if !again {
        let (text, is_sound) = show(ui::height()).await;
        ui::out(&text);
        return Ok(is_sound);
    }
    let screen = if ui::draws() && !json { Screen::Terminal } else { Screen::Pipe };
    let look = async || Ok::<_, CliError>(show(ui::height()).await.0);
    watch(screen, EVERY, look, &mut TerminalViewer::new(screen)?).await?;
    Ok(true)
}

/// The viewer of a terminal: this process, its standard output and its signals.
struct TerminalViewer {
    interrupt: Signals,
    terminate: Signals,
    resized: Signals,
    /// The signal of Ctrl-Z; `None`: it has its usual effect.
    suspended: Option<Signals>,
}

impl TerminalViewer {
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

impl Viewer for TerminalViewer {
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

/// The part of the status that is written.
#[derive(Debug, Clone, Copy)]
struct Layout {
    /// The lines that there is room for; `None`, everything is shown.
    lines: Option<usize>,
    /// True if the text has a bar of the slots.
    bar: bool,
}

/// A pool with everything that the command shows of it.
struct ShownPool<'a> {
    record: PoolRecord<'a>,
    /// The status of its links, if they were queried.
    links: Option<Survey>,
    containers: ContainerUse,
}

impl ShownPool<'_> {
    fn input<'a>(&'a self, state: &'a PoolState, keeper: &'a KeeperStatus) -> StatusInput<'a> {
        StatusInput {
            pool: self.record.pool,
            state,
            report: self.record.readable_report(),
            keeper,
            links: self.links.as_ref(),
            containers: Some(&self.containers),
        }
    }
}

impl ContainerUse {
    /// The present use of containers in a pool.
    fn read(context: &Context, pool: &PoolName, state: Option<&PoolState>) -> Self {
        let configured = context.config().ok().and_then(|config| config.pools.get(pool));
        let settings = configured.and_then(|pool| pool.containers.as_ref());
        let instances = state.into_iter().flat_map(|state| state.instances.values());
        let attempts = instances.flat_map(|instance| instance.holders.keys());
        let image = |attempt: &AttemptName| {
            let account = context.host.containers_of(attempt)?;
            Some((attempt.clone(), account.image.name))
        };
        let store = configured.and_then(|settings| {
            let provider = &settings.provider;
            PoolStore::of(pool, &provider.kind, &provider.table, &context.state_path)
        });
        Self {
            mode: settings.map(|settings| settings.mode),
            engine: settings.map(|settings| settings.engine).unwrap_or_default(),
            images: attempts.filter_map(image).collect(),
            image_store: store.map(|store| store.status(jiff::Timestamp::now())),
        }
    }
}

/// The links of all pools, which are queried concurrently.
async fn all_links(context: &Context, records: &[PoolRecord<'_>]) -> Vec<Survey> {
    join_all(records.iter().map(|record| read_model::links(&context.state_path, record.pool))).await
}

fn shown(pools: &[ShownPool<'_>], keeper: &KeeperStatus, when: &When, layout: Layout) -> String {
    // An empty line is between two pools.
    let each = layout.lines.map(|lines| (lines / pools.len().max(1)).saturating_sub(1));
    let layout = Layout { lines: each, ..layout };
    let blocks: Vec<String> = pools.iter().map(|pool| one_text(pool, keeper, when, layout)).collect();
    blocks.join("\n")
}

fn as_document(pools: &[ShownPool<'_>], keeper: &KeeperStatus, reporting: &Reporting, when: &When) -> Value {
    let pools: Vec<Value> = pools.iter().map(|pool| one_json(pool, keeper, when)).collect();
    json!({ "pools": pools, "reporting": reporting.json() })
}

fn one_text(shown: &ShownPool<'_>, keeper: &KeeperStatus, when: &When, layout: Layout) -> String {
    let width = ui::width();
    let mut text = match &shown.record.state {
        Ok(state) => render_on(shown.input(state, keeper), when, (width, layout.lines), layout.bar),
        Err(error) => {
            let head = format!("pool {}: its state cannot be read\n", shown.record.pool);
            let error = wrapped(&format!("error: {error}"), width, "  ", "    ");
            head + &error + "  help: run `greenroom doctor`\n"
        }
    };
    if let Err(problem) = &shown.record.report {
        text.push_str(&wrapped(
            &format!("error: the last report cannot be read: {problem}"),
            width,
            "  ",
            "    ",
        ));
    }
    text
}

fn one_json(shown: &ShownPool<'_>, keeper: &KeeperStatus, when: &When) -> Value {
    match &shown.record.state {
        Ok(state) => as_json(shown.input(state, keeper), when),
        Err(error) => {
            json!({ "pool": shown.record.pool.as_str(), "at": rfc3339(when.now()), "error": error.to_string() })
        }
    }
}

#[cfg(test)]
mod tests;
