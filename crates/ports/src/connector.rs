//! Reaches an instance and runs commands there.
//!
//! The host key of the [`Endpoint`] is verified from the first byte. A script is passed by standard input, never as an
//! argument. The guest's exit status is reported separately from transport errors.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::container::name::EngineContainer;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::execution::StageShell;
use greenroom_core::ids::{AttemptName, InstanceId, OwnerId, PoolName};
use greenroom_core::metadata::MetadataAnswers;
use greenroom_core::time::Pretty;
use serde::{Deserialize, Serialize};

use super::provider::InstanceKeys;

/// A future that resolves when the [`Stage`] is to be stopped.
pub type Stop<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// One of the guest's two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// The receiver of a [`Stage`]'s output. A write that waits blocks the guest; buffers are bounded.
#[async_trait(?Send)]
pub trait Output {
    async fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()>;

    /// Notes whether the last bytes, which may have been moved directly, left a line open.
    fn note_line(&mut self, _is_open: bool) {}

    /// Ends a line that the last bytes left open, so that another one can follow.
    async fn end_line(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Writes a line of Greenroom's own to standard error, after an open line in one piece with its end: a reader of both
    /// streams could put something between two.
    async fn own_line(&mut self, line: &str) -> io::Result<()> {
        self.write(Stream::Stderr, format!("{line}\n").as_bytes()).await
    }

    /// A descriptor to which a stream's bytes can also be moved directly, as long as it does not block. `None`: use
    /// `write`.
    fn descriptor(&self, _stream: Stream) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The reader of a script: a shell on the instance, or one in a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reader {
    /// A shell on the instance itself.
    Shell(StageShell),
    /// The first shell that is found in this container.
    Container(EngineContainer),
}

/// A script and how to run it.
#[derive(Debug)]
pub struct Stage {
    /// The reader of the script, which arrives at its standard input.
    pub reader: Reader,
    /// The script runs with umask 0.
    pub open_umask: bool,
    /// True if the script's standard error stays apart from its standard output in a container. A shell on the instance has
    /// its own flag.
    pub separate_stderr: bool,
    /// The container of a later stage: it may start as soon as it is not in use.
    pub ahead: Option<EngineContainer>,
    /// The script's text, opened for reading.
    pub script: std::fs::File,
    /// Limit for connecting, and again for starting the script.
    pub start_within: Duration,
    /// Time from TERM to KILL when the stage is stopped.
    pub stop_grace: Duration,
    /// Limit for the instance's engine to start the container. What the container then does has none.
    pub container_start: Duration,
    /// The trace by which cleaning recognises what the stage left on a static host.
    pub trace: Option<Trace>,
    /// True if no stage of the job follows.
    pub last: bool,
}

/// The facts of a job's first stage that are known before the stage comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstStage {
    pub shell: StageShell,
    pub trace: Option<Trace>,
}

/// The trace that makes the remains of a job known to the cleaning after it.
///
/// The stage records its session in `~/.greenroom/MARK` on the host, and all its processes carry the mark in their
/// environment, as `GREENROOM_TRACE=/MARK/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    pub mark: Mark,
    pub attempt: AttemptName,
    /// The attempt's own directory, absolute; its `TMPDIR` is beside it, with `.tmp` at its end.
    pub builds_dir: String,
}

/// The mark that distinguishes the jobs of one pool and owner on a host from those of others that use the same account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark(String);

impl Mark {
    pub fn new(owner: &OwnerId, pool: &PoolName, instance: &InstanceId) -> Self {
        Self(format!("{owner}.{pool}.{instance}"))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A command of the operator's or Greenroom's own, such as [`ready_command`](super::setup::PoolSetup::ready_command).
#[derive(Debug, Clone, Copy)]
pub struct RemoteCommand<'a> {
    /// The command in the syntax of `/bin/sh`.
    pub text: &'a str,
    /// The command's standard input.
    pub input: &'a str,
    /// Limit for the connection and the command together.
    pub within: Duration,
    /// Limit for connecting and logging in, and again for the start, if it is longer than the connector's own.
    pub start_within: Duration,
    /// True if it may use a connection that is open already. A command that changes what a login gets, such as the
    /// account's groups, needs a login of its own: later stages use that connection, too.
    pub shared: bool,
}

/// The end of a stage. Every variant means that the transport held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StageEnd {
    Exited(u32),
    /// The guest's process was killed by a signal: its name without `SIG`.
    Signalled(String),
    /// The stage was stopped on request: its session is gone.
    Stopped,
    /// The job asked for what cannot be had there, such as an image that does not exist: why. Its script has not begun.
    Impossible(String),
}

/// The end as messages name it: *exit status 3*, *signal TERM*.
impl fmt::Display for StageEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => write!(f, "exit status {status}"),
            Self::Signalled(name) => write!(f, "signal {name}"),
            Self::Stopped => f.write_str("a stop"),
            Self::Impossible(why) => f.write_str(why),
        }
    }
}

/// The reason why an instance could not be reached, or was lost.
#[derive(Debug, Clone, Serialize, Deserialize, thiserror::Error)]
pub enum ConnectError {
    /// Nothing listens there, or the network is at fault.
    #[error("cannot connect to {at}: {problem}")]
    Unreachable { at: String, problem: String },
    /// The runner host cannot connect to anything at present; says nothing about the instance.
    #[error("the runner host cannot connect to {at}: {problem}")]
    HostFault { at: String, problem: String },
    /// The server accepts connections, and closes them before it has sent its SSH greeting.
    #[error("{at} closes connections before its SSH greeting: {problem}")]
    TurnedAway { at: String, problem: String },
    #[error("{}", during.timed_out(at, waited))]
    TimedOut {
        at: String,
        waited: String,
        #[serde(default, skip_serializing_if = "Step::is_first")]
        during: Step,
    },
    /// The host key differs from the recorded one; both fingerprints.
    #[error("{at} presents host key {found}, expected {expected}")]
    HostKey { at: String, expected: String, found: String },
    #[error("{at} denies the login of `{user}`: {problem}")]
    Refused { at: String, user: String, problem: String },
    /// The connection broke. `sent`: whether the script had been sent, at least in part.
    #[error("the connection to {at} was lost: {problem}")]
    Lost { at: String, problem: String, sent: bool },
    /// The connection stood, but the guest never gave the stage's first word: the script has not run.
    #[error("{at} began no stage: {why}")]
    NotBegun { at: String, why: String },
    /// The instance began the stage, but no shell in the job's container read the script. `why` comes from the output, which
    /// the container may have written: it is for people. `if_ran`: the sentence for a container that has run; `by_image`: it
    /// also holds if the engine works, because its text is about the image.
    #[error("{at} started no container: {why}")]
    NoContainer {
        at: String,
        why: String,
        if_ran: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_image: bool,
    },
    /// A problem on the runner host, such as an unreadable key file.
    #[error("{what}")]
    Local { what: String },
}

/// The step that a connection waits for, from the first packet to the first command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// The server's address: the name's resolution and the TCP connection.
    #[default]
    Connect,
    /// The SSH server's first line.
    Greeting,
    /// The server's host key.
    Exchange,
    Login,
    /// The start of a shell that runs a command.
    Shell,
}

impl Step {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_first(&self) -> bool {
        *self == Self::Connect
    }

    /// The sentence about a step that took too long.
    fn timed_out(self, at: &str, waited: &str) -> String {
        match self {
            Self::Connect => format!("no answer from {at} within {waited}"),
            Self::Greeting => {
                format!("{at} accepted the connection, but sent no SSH greeting within {waited}")
            }
            Self::Exchange => format!("{at} sent its SSH greeting, but no host key within {waited}"),
            Self::Login => format!("{at} did not complete the login within {waited}"),
            Self::Shell => {
                format!("{at} accepted the login, but ran no command within {waited}")
            }
        }
    }
}

impl ConnectError {
    pub fn timed_out(at: impl Into<String>, waited: Duration) -> Self {
        Self::timed_out_in(Step::Connect, at, waited)
    }

    /// The error of a step that took too long.
    pub fn timed_out_in(during: Step, at: impl Into<String>, waited: Duration) -> Self {
        Self::TimedOut { at: at.into(), waited: Pretty(waited).to_string(), during }
    }
}

/// The way to instances: keys, checks, stages and commands.
///
/// # What an implementation promises
///
/// * **Identity.** It connects to a server only if that presents the host key of the [`Endpoint`]. Another key is
///   [`ConnectError::HostKey`], and the server gets neither a login nor a script.
/// * **Answers.** Output arrives in the order of each stream, and what a guest writes cannot imitate an answer of the connector's
///   own. A [`StageEnd`] means that the transport held until the end, so the exit status is the guest's.
/// * **Errors.** A [`ConnectError`] names the step that failed, which decides whose fault it is: a fault of the runner host
///   ([`ConnectError::HostFault`], [`ConnectError::Local`]) says nothing about the instance.
/// * **Repetition.** Each call is one try: a script or command that may have begun is never sent a second time.
///   [`ConnectError::NotBegun`] is certain: no part of the script or command has run. After [`ConnectError::Lost`], it may have,
///   unless nothing was sent.
/// * **Keys.** The keys of an instance are stored before [`keys`](Self::keys) returns them. Concurrent first calls, also of
///   several processes, get the same keys: the launch carries one pair, and every later login needs it.
/// * **Concurrency.** Calls overlap, also those about one instance. They may share a connection.
/// * **Deadlines.** Each call that connects has its limit as an argument, and keeps it: [`ConnectError::TimedOut`] names
///   the step that was reached. Only [`run`](Self::run) has none once the script has begun: it ends with the script, or with its
///   [`Stop`].
///
/// # What a caller may rely on
///
/// A caller may rely on these, and may drop the future of any call: a script that was sent may go on running. It does not
/// rely on an instance that answered to answer again.
#[async_trait(?Send)]
pub trait Connector {
    /// The keys of an instance: created by the first call, the same for each further call.
    async fn keys(&self, id: &InstanceId) -> Result<InstanceKeys, ConnectError>;

    /// Removes the keys of an instance that no longer exists. Idempotent.
    async fn discard_keys(&self, id: &InstanceId);

    /// Closes the connections to an instance that is about to be suspended. It keeps its keys.
    async fn disconnect(&self, _id: &InstanceId) {}

    /// Tells the connector that the address of an instance has answered before: no later call connects there without a login.
    fn has_answered(&self, _id: &InstanceId) {}

    /// Connects, authenticates and runs `true`, which proves that the instance responds *now*.
    async fn check(&self, id: &InstanceId, at: &Endpoint, within: Duration) -> Result<(), ConnectError>;

    /// The last known answers of the metadata services of these instances, for those whose endpoint names a service. Sends nothing
    /// to an instance. Instances without answers are left out.
    async fn metadata(&self, _of: &[InstanceId]) -> BTreeMap<InstanceId, MetadataAnswers> {
        BTreeMap::new()
    }

    /// Does what [`check`](Self::check) does, for a job whose first stage follows: its shell may start now.
    async fn check_for(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        first: &FirstStage,
        within: Duration,
    ) -> Result<(), ConnectError> {
        let _not_in_advance = first;
        self.check(id, at, within).await
    }

    /// Runs a [`Stage`] to its end, or until `stop` resolves: then the end is [`StageEnd::Stopped`].
    async fn run(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        stage: Stage,
        output: &mut dyn Output,
        stop: Stop<'_>,
    ) -> Result<StageEnd, ConnectError>;

    /// Checks that the instance begins a stage now: an empty script behind everything that comes before a job's. `shell`:
    /// that of the pool's jobs, and on a static host the mark of its jobs. An instance that answers and begins none is
    /// [`ConnectError::NotBegun`].
    async fn begins_stage(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        shell: (StageShell, Option<&Mark>),
        within: Duration,
    ) -> Result<(), ConnectError>;

    /// Runs a command to its end. Its output streams to `output`; a [`Tail`](super::tail::Tail) keeps the last part.
    ///
    /// Stops a command that runs longer than its limit; its end is then [`StageEnd::Stopped`]. An instance that is not
    /// reached in that time is an error.
    async fn command(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        command: RemoteCommand<'_>,
        output: &mut dyn Output,
    ) -> Result<StageEnd, ConnectError>;
}
