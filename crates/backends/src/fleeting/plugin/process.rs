//! A plugin's process: its start, its streams, its end.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use greenroom_core::time::Pretty;
use greenroom_system::remove;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, ChildStdout};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::log::Log;
use super::settings::PluginSettings;
use super::{handshake, socket_dir};
use crate::fleeting::holder;
use crate::held::{self, Ending};

/// The variable that tells a plugin who starts it, and its value.
const COOKIE: (&str, &str) = ("FLEETING_INSTANCE_GROUP_PLUGIN", "4c6410b1-cb78-4962-8c76-ab936d0ea908");
/// How long the rest of the log may take to arrive after the plugin's end.
const DRAINING: Duration = Duration::from_millis(300);

/// A running process, which dropping ends.
#[derive(Debug)]
pub(super) struct PluginProcess {
    /// The socket that the plugin serves.
    pub(super) socket: PathBuf,
    /// The holder ends the plugin when this is closed.
    _control: OwnedWriteHalf,
    ended: watch::Receiver<Option<String>>,
}

impl PluginProcess {
    /// Starts the plugin, and waits for its address.
    pub(super) async fn start(
        settings: &PluginSettings,
        program: &Path,
        log: &Arc<Log>,
    ) -> Result<Self, String> {
        let directory = socket_dir::create(&settings.sockets)?;
        let spawned = spawn(settings, program, &directory);
        let (mut child, stream) = spawned.inspect_err(|_| drop(remove::tree(&directory)))?;
        let (report, control) = stream.into_split();
        let (address, line) = oneshot::channel();
        let mut streams = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            streams.push(tokio::spawn(read_stdout(stdout, address, Arc::clone(log))));
        }
        if let Some(stderr) = child.stderr.take() {
            streams.push(tokio::spawn(Arc::clone(log).drain(stderr)));
        }
        let (tell, ended) = watch::channel(None);
        let place = directory.clone();
        tokio::spawn(async move { tell.send_replace(Some(end(child, report, streams, &place).await)) });
        let limit = settings.deadlines.handshake;
        let mut process = Self { socket: PathBuf::new(), _control: control, ended };
        let line = tokio::select! {
            line = tokio::time::timeout(limit, line) => line,
            end = process.ended() => return Err(log.explain(&format!("it {end} before its handshake"))),
        };
        let line = match line {
            Ok(Ok(line)) => line,
            // Its standard output ended first: the end follows, or the plugin hangs without one.
            Ok(Err(_)) => return Err(process.ended_without_address(limit, log).await),
            Err(_) => {
                return Err(log.explain(&format!("it did not print its address within {}", Pretty(limit))));
            }
        };
        process.socket = handshake::socket(&line, &directory)?;
        Ok(process)
    }

    async fn ended_without_address(&self, limit: Duration, log: &Log) -> String {
        match tokio::time::timeout(limit, self.ended()).await {
            Ok(end) => log.explain(&format!("it {end} before its handshake")),
            Err(_) => log.explain("it closed its output before its handshake"),
        }
    }

    /// How the process ended, as the end of a sentence; `None`: it runs.
    pub(super) fn end(&self) -> Option<String> {
        self.ended.borrow().clone()
    }

    /// Waits for that. Dropping the process does not end the wait.
    pub(super) fn ended(&self) -> impl Future<Output = String> + use<> {
        let mut ended = self.ended.clone();
        async move {
            let end = ended.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
            end.unwrap_or_else(|| "ended".to_owned())
        }
    }
}

fn spawn(settings: &PluginSettings, program: &Path, directory: &Path) -> Result<(Child, UnixStream), String> {
    let arguments = vec![holder::KIND.into(), directory.into(), program.into()];
    held::spawn(&settings.holder, arguments, variables(settings, directory)?)
}

/// A few variables of this process, those that the operator names, and the plugins' own. Any other `PLUGIN_` variable could
/// turn on what Greenroom does not speak.
fn variables(settings: &PluginSettings, directory: &Path) -> Result<Vec<(String, OsString)>, String> {
    let mut all = settings.environment.variables()?;
    all.retain(|(name, _)| !name.starts_with("PLUGIN_") && name != COOKIE.0 && name != "TMPDIR");
    all.push((COOKIE.0.to_owned(), COOKIE.1.into()));
    all.push(("PLUGIN_PROTOCOL_VERSIONS".to_owned(), "0".into()));
    all.push(("PLUGIN_UNIX_SOCKET_DIR".to_owned(), directory.into()));
    // Where plugins with an older library put their socket.
    all.push(("TMPDIR".to_owned(), directory.into()));
    Ok(all)
}

/// The first line is the address; the rest is log.
async fn read_stdout(stdout: ChildStdout, address: oneshot::Sender<Vec<u8>>, log: Arc<Log>) {
    let mut reader = BufReader::new(stdout);
    let mut line = Vec::new();
    let read = (&mut reader).take(handshake::MAX_LINE as u64).read_until(b'\n', &mut line).await;
    if read.is_ok() && !line.is_empty() {
        address.send(line).ok();
    }
    log.drain(reader).await;
}

/// Waits for the holder's report and the rest of the log.
async fn end(
    mut child: Child,
    report: OwnedReadHalf,
    streams: Vec<JoinHandle<()>>,
    directory: &Path,
) -> String {
    let report = held::reported(report).await;
    if report.is_none()
        && let Some(session) = child.id().and_then(|id| i32::try_from(id).ok())
    {
        // The holder was killed: its session is what is left of the plugin. Its pid stays taken until the wait below.
        socket_dir::end_session(session);
        drop(remove::tree(directory));
    }
    let _drained = tokio::time::timeout(DRAINING, futures_util::future::join_all(streams)).await;
    child.wait().await.ok();
    match report.map(|report| report.ending) {
        Some(Ending::Code(code)) => format!("exited with code {code}"),
        Some(Ending::Signal(number)) => format!("was killed by signal {number}"),
        Some(Ending::NotStarted(why)) => format!("cannot be executed: {why}"),
        Some(Ending::TimeLimit | Ending::Stopped) => "was stopped by Greenroom".to_owned(),
        None => "was killed with the process that holds it".to_owned(),
    }
}
