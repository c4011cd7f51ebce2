//! [`Linked`], the connector that uses links.
//!
//! If no link is available (no process can be started, the state directory is full), a call makes a connection of its
//! own.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::future::ready;
use std::io::{self, ErrorKind, Seek as _, Write as _};
use std::os::fd::AsFd as _;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, StreamExt as _};
use greenroom_core::endpoint::Endpoint;
use greenroom_core::execution::StageShell;
use greenroom_core::ids::InstanceId;
use greenroom_core::metadata::MetadataAnswers;
use greenroom_ports::connector::{
    ConnectError, Connector, FirstStage, Mark, Output, Reader, RemoteCommand, Stage, StageEnd, Stop, Stream,
};
use greenroom_ports::dialect;
use greenroom_ports::provider::InstanceKeys;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::pipe::{SpliceFlags, splice};
use tokio::net::unix::pipe;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::super::script_ack::AcknowledgedOutput;
use super::super::stage::LocalError;
use super::super::{COMMAND_GRACE, Ssh, dial, stop};
use super::call::{LinkSettings, LinkTarget, Links, kill};
use super::protocol::{Control, Interpreter, LinkReply, LinkRequest, LinkStream};

/// A link acknowledges a stop immediately; on a busy machine, within the grace plus this time.
const STOP_ACKNOWLEDGED: Duration = Duration::from_millis(800);
/// Time for the link's own part, beyond the limit of a check on the instance.
const MARGIN: Duration = Duration::from_secs(1);
/// Instances whose links are asked concurrently; each takes a descriptor or two.
const CONCURRENT: usize = 256;
/// Tries with links that die before they have sent any part of a script.
const MOST_TRIES: u32 = 3;
/// The pause before a job's next try, after a connection that the server closed before its greeting; doubles with each.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

/// Reaches instances through the links of their job slots.
#[derive(Debug)]
pub struct Linked {
    ssh: Ssh,
    links: Links,
    /// Instances that have answered: they are not connected to without a login.
    answered: RefCell<BTreeSet<InstanceId>>,
}

impl Linked {
    pub fn new(ssh: Ssh, settings: LinkSettings) -> Self {
        Self { ssh, links: Links::new(settings), answered: RefCell::default() }
    }

    fn target<'a>(&'a self, id: &'a InstanceId, at: &'a Endpoint, within: Duration) -> LinkTarget<'a> {
        LinkTarget { id, at, ssh: &self.ssh.settings, within }
    }
}

/// A conversation with a link about a stage.
struct Conversation {
    line: LinkStream,
    /// The call's ends of the stage's pipes.
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
    /// True if the output did not end with a line break.
    line_open: bool,
}

/// Result of a conversation about a stage.
enum Talk {
    Over(Result<StageEnd, ConnectError>),
    /// The connection was lost while the stage was being stopped: it may still run.
    Lost(ConnectError),
    /// The link died before any part of the script was sent: another link may run the stage.
    Again,
}

#[async_trait(?Send)]
impl Connector for Linked {
    async fn keys(&self, id: &InstanceId) -> Result<InstanceKeys, ConnectError> {
        self.ssh.keys(id).await
    }

    async fn discard_keys(&self, id: &InstanceId) {
        self.answered.borrow_mut().remove(id);
        self.links.end(id).await;
        self.ssh.discard_keys(id).await;
    }

    async fn disconnect(&self, id: &InstanceId) {
        // It is probed often while it is resumed.
        self.answered.borrow_mut().remove(id);
        self.links.end(id).await;
    }

    fn has_answered(&self, id: &InstanceId) {
        self.answered.borrow_mut().insert(id.clone());
    }

    async fn check(&self, id: &InstanceId, at: &Endpoint, within: Duration) -> Result<(), ConnectError> {
        self.check_by_link(id, at, None, within).await
    }

    async fn metadata(&self, of: &[InstanceId]) -> BTreeMap<InstanceId, MetadataAnswers> {
        let ask = async |id: &InstanceId| (id.clone(), self.links.metadata(id).await);
        let asked = stream::iter(of).map(ask).buffer_unordered(CONCURRENT);
        asked.filter(|(_, answers)| ready(!answers.is_empty())).collect().await
    }

    async fn check_for(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        first: &FirstStage,
        within: Duration,
    ) -> Result<(), ConnectError> {
        self.check_by_link(id, at, Some(first), within).await
    }

    async fn run(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        mut stage: Stage,
        output: &mut dyn Output,
        mut stop: Stop<'_>,
    ) -> Result<StageEnd, ConnectError> {
        let dialect = dialect::of(at);
        let mut acknowledged = AcknowledgedOutput::new(&mut stage, dialect, output)?;
        let interpreter = |reader: Reader| {
            let before = dialect.before(&reader, stage.trace.as_ref(), stage.container_start);
            Interpreter { reader, before }
        };
        let marks = acknowledged.marks();
        let ask = || LinkRequest::Stage {
            at: at.clone(),
            interpreter: interpreter(stage.reader.clone()),
            start_within: stage.start_within,
            stop_grace: stage.stop_grace,
            // On a host that is cleaned after the job, a shell would wait for nothing.
            followed: !(stage.last && stage.trace.is_some()),
            ahead: stage.ahead.clone().map(|name| interpreter(Reader::Container(name))),
            ready_mark: marks.as_ref().map(|marks| marks.ready.clone()),
            exit_mark: marks.as_ref().map(|marks| marks.exit.mark.clone()),
            exit_joined: marks.as_ref().is_some_and(|marks| marks.exit.joined),
        };
        let target = self.target(id, at, stage.start_within);
        let program = LinkedProgram { request: &ask, input: &stage.script, grace: stage.stop_grace };
        let end = match self.by_link(target, program, &mut acknowledged, &mut stop).await {
            Some(end) => end,
            None => self.ssh.run_as_it_is(id, at, stage, &mut acknowledged, stop).await,
        };
        acknowledged.end(at.place(), end).await
    }

    /// Checks on a connection of its own: a link's shell may have started before the fault.
    async fn begins_stage(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        (shell, mark): (StageShell, Option<&Mark>),
        within: Duration,
    ) -> Result<(), ConnectError> {
        self.ssh.begins_stage(id, at, (shell, mark), within).await
    }

    async fn command(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        command: RemoteCommand<'_>,
        output: &mut dyn Output,
    ) -> Result<StageEnd, ConnectError> {
        let begun = Instant::now();
        if command.shared {
            match self.shared_command(id, at, command, output).await {
                Some(Ok(end)) => return Ok(end),
                Some(Err(error @ ConnectError::Lost { sent: true, .. })) => return Err(error),
                // The open connection may be the problem: the command gets one of its own.
                Some(Err(_)) | None => {}
            }
        }
        let within = command.within.saturating_sub(begun.elapsed());
        self.ssh.command(id, at, RemoteCommand { within, ..command }, output).await
    }
}

/// A program for a link to run.
#[derive(Clone, Copy)]
struct LinkedProgram<'a> {
    /// Makes the request; each try sends one.
    request: &'a dyn Fn() -> LinkRequest,
    input: &'a File,
    /// The time from TERM to KILL when the program is stopped.
    grace: Duration,
}

impl Linked {
    /// Sends the check to the link, which is started if there is none and then connects.
    async fn check_by_link(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        first: Option<&FirstStage>,
        within: Duration,
    ) -> Result<(), ConnectError> {
        let begun = Instant::now();
        // A booting instance is probed repeatedly: no process is started for each probe. Once it has answered, it is logged
        // in to: servers penalize connections without a login. For a jump host, that concerns all instances behind it.
        let is_new = first.is_none() && at.jump.is_none() && !self.answered.borrow().contains(id);
        if is_new && !self.links.has_one(id) {
            dial::probe_port(at, within).await?;
        }
        self.has_answered(id);
        let late = || ConnectError::timed_out(at.place(), within);
        let mut tries = 0;
        let mut pause = FIRST_PAUSE;
        while tries < MOST_TRIES {
            tries += 1;
            let left = within.saturating_sub(begun.elapsed());
            let interpreter = |first: &FirstStage| {
                let reader = Reader::Shell(first.shell);
                let before = dialect::of(at).before(&reader, first.trace.as_ref(), Duration::ZERO);
                Interpreter { reader, before }
            };
            let ask = LinkRequest::Check { at: at.clone(), within: left, next: first.map(interpreter) };
            let Ok(mut line) = self.links.call(self.target(id, at, left), ask, &[]).await else { break };
            match timeout(left + MARGIN, line.receive::<LinkReply>()).await {
                Ok(Ok(Some(LinkReply::Answers))) => return Ok(()),
                // The link's limit was the remaining time; the error names the whole limit.
                Ok(Ok(Some(LinkReply::Failed(ConnectError::TimedOut { at, during, .. })))) => {
                    return Err(ConnectError::timed_out_in(during, at, within));
                }
                // A job comes where others ran: the server penalizes this address, or many log in at the same time.
                Ok(Ok(Some(LinkReply::Failed(ConnectError::TurnedAway { .. }))))
                    if first.is_some() && begun.elapsed() + pause < within =>
                {
                    sleep(pause).await;
                    tries = 0;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Ok(Ok(Some(LinkReply::Failed(error)))) => return Err(error),
                // The link died.
                Ok(_) => {}
                Err(_) => {
                    kill(&line);
                    return Err(late());
                }
            }
        }
        self.ssh.check(id, at, within.saturating_sub(begun.elapsed())).await
    }

    /// Runs a command on a link's connection. `None`: no link is available.
    async fn shared_command(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        command: RemoteCommand<'_>,
        output: &mut dyn Output,
    ) -> Option<Result<StageEnd, ConnectError>> {
        let input = in_memory(command.input.as_bytes()).ok()?;
        let start_within = self.ssh.settings.start_within(&command);
        let ask = || LinkRequest::Command {
            at: at.clone(),
            text: command.text.to_owned(),
            start_within,
            stop_grace: COMMAND_GRACE,
        };
        // An instance that is not reached is an error, and no stop.
        let until = Instant::now() + command.within.max(start_within + MARGIN);
        let mut stop: Stop<'_> = Box::pin(sleep_until(until));
        let target = self.target(id, at, start_within);
        let program = LinkedProgram { request: &ask, input: &input, grace: COMMAND_GRACE };
        self.by_link(target, program, output, &mut stop).await
    }

    /// Runs a program on a link's connection. `None`: no link is available.
    async fn by_link(
        &self,
        target: LinkTarget<'_>,
        program: LinkedProgram<'_>,
        output: &mut dyn Output,
        stop: &mut Stop<'_>,
    ) -> Option<Result<StageEnd, ConnectError>> {
        for _ in 0..MOST_TRIES {
            let calling = self.call(target, program);
            tokio::pin!(calling);
            let called = tokio::select! {
                biased;
                called = &mut calling => called,
                () = &mut *stop => {
                    // The link may already have the stage and then has to stop it.
                    *stop = Box::pin(ready(()));
                    let Ok(called) = timeout(program.grace + STOP_ACKNOWLEDGED, calling).await else {
                        return Some(Ok(StageEnd::Stopped));
                    };
                    called
                }
            };
            let Ok(mut conversation) = called else { break };
            let talk = conversation.converse(program.grace, target.at, output, stop).await;
            let Conversation { line, stdout: _stdout, stderr: _stderr, line_open } = conversation;
            // A link that waits for this call learns that it has gone. Its output still has readers.
            drop(line);
            // A link that died with the stage could not say.
            let is_lost =
                matches!(talk, Talk::Lost(_) | Talk::Over(Err(ConnectError::Lost { sent: true, .. })));
            output.note_line(line_open || is_lost);
            match talk {
                Talk::Over(end) => return Some(end),
                Talk::Lost(error) => {
                    // The next link, on a connection of its own, stops the remaining processes before it replies.
                    let stopped = self.check(target.id, target.at, stop::MARGIN).await;
                    return Some(stopped.map(|()| StageEnd::Stopped).map_err(|_| error));
                }
                Talk::Again => {}
            }
        }
        None
    }

    /// Sends a program to a link of [`Links`], with separate pipes, so that a link never holds this process's streams.
    async fn call(&self, target: LinkTarget<'_>, program: LinkedProgram<'_>) -> io::Result<Conversation> {
        let (stdout, out) = io::pipe()?;
        let (stderr, err) = io::pipe()?;
        let line = self
            .links
            .call(target, (program.request)(), &[program.input.as_fd(), out.as_fd(), err.as_fd()])
            .await?;
        Ok(Conversation {
            line,
            stdout: pipe::Receiver::from_owned_fd(stdout.into())?,
            stderr: pipe::Receiver::from_owned_fd(stderr.into())?,
            line_open: false,
        })
    }
}

/// A file that is in no directory, to be read from its beginning.
fn in_memory(content: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create("greenroom-input", MemfdFlags::CLOEXEC)?);
    file.write_all(content)?;
    file.rewind()?;
    Ok(file)
}

impl Conversation {
    /// Follows a stage to its end: forwards its output and handles the link's replies.
    ///
    /// The end comes as a reply on the socket and the output through the pipes, so either may come first: a stage is over
    /// when both have ended. A stop changes that. A process that the stage left behind may hold the pipes open, and the runner no
    /// longer reads, so a stopped stage is over with its end, whatever is left in the pipes.
    ///
    /// Only the link can stop what runs in the guest, and the link may be stuck. So a stop has two limits: the link acknowledges
    /// it immediately, and reports the end within the time that a stop takes at most. A link that misses a limit is killed, and the
    /// next stage's link stops what is left.
    async fn converse(
        &mut self,
        stop_grace: Duration,
        at: &Endpoint,
        output: &mut dyn Output,
        stop: &mut Stop<'_>,
    ) -> Talk {
        let Self { line, stdout, stderr, line_open } = self;
        let lost = ConnectError::Lost {
            at: at.place(),
            problem: "the link, which held the connection, has exited".to_owned(),
            sent: true,
        };
        let pumping = pump(stdout, stderr, output);
        tokio::pin!(pumping);
        let mut begun = false;
        let mut drained = false;
        let mut acknowledged = false;
        let mut output_error: Option<ConnectError> = None;
        let mut end: Option<Result<StageEnd, ConnectError>> = None;
        // When the link counts as unresponsive; set once the stage is to be stopped.
        let mut unresponsive_at: Option<Instant> = None;
        loop {
            match &end {
                // The remaining output of a stopped stage is discarded.
                Some(Ok(StageEnd::Stopped)) => {
                    return Talk::Over(output_error.map_or(Ok(StageEnd::Stopped), Err));
                }
                // No living link has acknowledged the stop: the stage may still run.
                Some(Err(error @ ConnectError::Lost { sent: true, .. }))
                    if unresponsive_at.is_some() && !acknowledged =>
                {
                    return Talk::Lost(error.clone());
                }
                // A stage that is being stopped has no reader.
                Some(end) if drained || unresponsive_at.is_some() => return Talk::Over(end.clone()),
                _ => {}
            }
            tokio::select! {
                biased;
                // The stop is first, so that neither replies nor endless output can delay it. A reply that has arrived comes
                // before the limit, so a link that met its limit is not killed.
                () = &mut *stop, if unresponsive_at.is_none() => {
                    let _sent = line.send(&Control::Stop, &[]).await;
                    unresponsive_at = Some(Instant::now() + stop_grace + STOP_ACKNOWLEDGED);
                    // The stage has ended by itself, and its output is still held open or is not read.
                    end = end.map(|_| Ok(StageEnd::Stopped));
                }
                reply = line.receive::<LinkReply>(), if end.is_none() => match reply {
                    Ok(Some(LinkReply::Begun)) => begun = true,
                    Ok(Some(LinkReply::LineOpen)) => *line_open = true,
                    Ok(Some(LinkReply::Stopping)) => {
                        // From here on, the limit is the longest time that a stop takes in the guest.
                        acknowledged = true;
                        unresponsive_at = Some(Instant::now() + stop_grace * 2 + stop::LONGEST);
                    }
                    Ok(Some(LinkReply::Ended(ended))) => end = Some(Ok(ended)),
                    Ok(Some(LinkReply::Failed(error))) => end = Some(Err(error)),
                    Ok(Some(_)) => {}
                    // Before `Begun`, nothing of the script has been sent: a second link cannot run it twice.
                    Ok(None) | Err(_) if !begun && unresponsive_at.is_none() => return Talk::Again,
                    Ok(None) | Err(_) => {
                        // A link that has died cannot finish the stop that it acknowledged.
                        acknowledged = false;
                        end = Some(Err(lost.clone()));
                    }
                },
                () = sleep_until(unresponsive_at.unwrap_or_else(Instant::now)),
                    if unresponsive_at.is_some() && end.is_none() =>
                {
                    // The next stage's link stops what this one left running.
                    kill(line);
                    end = Some(Ok(StageEnd::Stopped));
                }
                pumped = &mut pumping, if !drained => {
                    drained = true;
                    if let Err(error) = pumped {
                        // No more output can be forwarded: the stage is stopped, and the error is reported once it has ended.
                        output_error = Some(LocalError::Output(error).into());
                        let _sent = line.send(&Control::Stop, &[]).await;
                        unresponsive_at = Some(Instant::now() + stop_grace + STOP_ACKNOWLEDGED);
                    }
                }
            }
        }
    }
}

/// The capacity of a pipe.
const PIPE: usize = 64 << 10;
/// Size of a copy where `splice` fails. A pipe with any room has room for a page.
const PAGE: usize = 4 << 10;

/// Forwards both pipes to their ends.
pub(super) async fn pump(
    stdout: &pipe::Receiver,
    stderr: &pipe::Receiver,
    output: &mut dyn Output,
) -> io::Result<()> {
    let mut out_ended = false;
    let mut err_ended = false;
    while !(out_ended && err_ended) {
        tokio::select! {
            ready = stdout.readable(), if !out_ended => {
                ready?;
                out_ended = forward_some(stdout, Stream::Stdout, output).await?;
            }
            ready = stderr.readable(), if !err_ended => {
                ready?;
                err_ended = forward_some(stderr, Stream::Stderr, output).await?;
            }
        }
    }
    Ok(())
}

/// Forwards some of a pipe's data; true if the pipe has ended.
async fn forward_some(pipe: &pipe::Receiver, stream: Stream, output: &mut dyn Output) -> io::Result<bool> {
    if let Some(sink) = output.descriptor(stream)
        && let Ok(moved) = splice(pipe, None, sink, None, PIPE, SpliceFlags::NONBLOCK)
    {
        return Ok(moved == 0);
    }
    // Either the pipe is empty, or the sink is full, has no reader, or is an append-only file. Reading detects the
    // first case; writing handles the others.
    let mut page = [0; PAGE];
    match pipe.try_read(&mut page) {
        Ok(0) => Ok(true),
        Ok(size) => output.write(stream, &page[..size]).await.map(|()| false),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}
