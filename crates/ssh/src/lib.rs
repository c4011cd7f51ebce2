//! Reaches instances over SSH, with russh.
//!
//! The instance is assumed hostile: it runs untrusted jobs as root. So the connector verifies the host key before it
//! sends anything else, limits every wait and every buffer, refuses channels that the instance opens, and cleans the
//! instance's text before it reaches a message.
//!
//! The commands for a guest come from its [`dialect`]. A guest needs no profile, no `setsid` and no particular login shell.

mod accepted;
mod client;
mod container_start_failure;
mod dial;
mod guest;
mod hop;
mod inspect;
mod keys;
pub mod link;
mod login;
mod login_profile;
mod marker_scan;
pub mod output;
mod progress;
mod remote;
pub mod rsa;
mod script_ack;
pub mod server;
mod session;
mod stage;
mod stop;

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::endpoint::{Endpoint, Jump};
use greenroom_core::execution::StageShell;
use greenroom_core::ids::InstanceId;
use greenroom_core::text::clean_line;
use greenroom_core::time::millis;
use greenroom_ports::connector::{
    ConnectError, Connector, Mark, Output, RemoteCommand, Stage, StageEnd, Stop,
};
use greenroom_ports::dialect;
use greenroom_ports::provider::InstanceKeys;
use greenroom_ports::tail::Tail;
use greenroom_system::threads::disk::BlockingPool;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use self::hop::{Hop, Route};
pub use self::inspect::{HostKey, Inspected};
use self::keys::{KeyStore, KeyStoreError};
use self::login::Credential;
use self::script_ack::AcknowledgedOutput;
use self::session::Session;
use self::stage::StageWork;

/// Settings of the connector [`Ssh`]; [`SshSettings::new`] returns the defaults.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SshSettings {
    /// The directory of the instances' keys; created with mode 0700 if it is missing.
    pub keys_dir: PathBuf,
    /// Limit of an operator's command for name resolution, TCP, key exchange and login together, and again for its
    /// start, until the guest's first message. A stage has its own limit. Default 15 s.
    #[serde(with = "millis")]
    pub connect_timeout: Duration,
    /// Keep-alives are sent to an instance that has been silent for this long. Default 20 s, because hundreds of links
    /// send them for days.
    #[serde(with = "millis")]
    pub keepalive: Duration,
    /// The number of keep-alives in a row that may stay unanswered; the next one due ends the connection. Default 2, which
    /// detects a dead instance after 60 s.
    pub keepalive_misses: u32,
    /// A background process of the script may keep the output open after the script has ended. After this long, or 3 s
    /// without output, the stage ends and the output is closed. Default 10 s.
    #[serde(with = "millis")]
    pub linger: Duration,
    /// Limit for the shell in a container to read its first line, after the container has started. Then the stage ends
    /// as the job's own fault. The job log names the wait after a twentieth. Default 10 min: entrypoints may be slow.
    #[serde(with = "millis", default = "first_line", skip_serializing_if = "is_first_line")]
    pub first_line: Duration,
    /// The program that makes port-forwards, `greenroom-backends`. Absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forwarder: Option<PathBuf>,
}

fn first_line() -> Duration {
    Duration::from_mins(10)
}

fn is_first_line(limit: &Duration) -> bool {
    *limit == first_line()
}

impl SshSettings {
    pub fn new(keys_dir: impl Into<PathBuf>) -> Self {
        Self {
            keys_dir: keys_dir.into(),
            connect_timeout: Duration::from_secs(15),
            keepalive: Duration::from_secs(20),
            keepalive_misses: 2,
            linger: Duration::from_secs(10),
            first_line: first_line(),
            forwarder: None,
        }
    }

    /// Limit for connecting and logging in before a command, and again for its start.
    fn start_within(&self, command: &RemoteCommand<'_>) -> Duration {
        command.start_within.max(self.connect_timeout).min(command.within)
    }

    /// Silence after which a connection counts as lost.
    fn silence(&self) -> Duration {
        self.keepalive * self.keepalive_misses.max(1).saturating_add(1)
    }
}

/// The connector. It opens one connection per call and keeps only the keys between calls.
#[derive(Debug)]
pub struct Ssh {
    settings: SshSettings,
    keys: KeyStore,
    disk: BlockingPool,
}

/// The longest time that stopping a stage takes beyond its grace, on a responsive instance.
pub const STOP_MARGIN: Duration = stop::MARGIN;
/// Time from TERM to KILL for an operator's command that timed out.
pub(crate) const COMMAND_GRACE: Duration = Duration::from_secs(1);

impl Ssh {
    pub fn new(settings: SshSettings) -> Self {
        Self { keys: KeyStore::new(settings.keys_dir.clone()), disk: BlockingPool::default(), settings }
    }

    async fn connect<'a>(
        &'a self,
        id: &InstanceId,
        endpoint: &'a Endpoint,
        within: Duration,
    ) -> Result<Session<'a>, ConnectError> {
        Session::open(Rc::new(self.way(id, endpoint)?), within).await
    }

    /// Runs a stage whose script is complete.
    async fn run_as_it_is(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        stage: Stage,
        output: &mut AcknowledgedOutput<'_>,
        mut stop: Stop<'_>,
    ) -> Result<StageEnd, ConnectError> {
        let start_within = stage.start_within;
        let work = StageWork::script(stage, dialect::of(at), output.marks(), &self.settings)?;
        let session = tokio::select! {
            biased;
            () = &mut stop => return Ok(StageEnd::Stopped),
            session = self.connect(id, at, start_within) => session?,
        };
        let result = stage::run(&session, work, output, &mut stop).await;
        session.close().await;
        result
    }

    /// Checks that a shell there begins a stage; see [`Connector::begins_stage`].
    pub async fn begins(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        (shell, mark): (StageShell, Option<&Mark>),
        within: Duration,
    ) -> Result<(), ConnectError> {
        let work = StageWork::probe((shell, mark), dialect::of(at), within, &self.settings)?;
        let session = self.connect(id, at, within).await?;
        // An empty script ends by itself: a shell that does not end has begun, too.
        let mut stop: Stop<'_> = Box::pin(tokio::time::sleep(within * 2));
        let result = stage::run(&session, work, &mut Tail::default(), &mut stop).await;
        session.close().await;
        result.map(drop)
    }

    /// The way to an instance, with its credential.
    fn way<'a>(&'a self, id: &InstanceId, endpoint: &'a Endpoint) -> Result<Route<'a>, ConnectError> {
        let credential = Credential::find(endpoint.key.as_ref(), &self.keys, id)?;
        let (host, jump) = hops(endpoint, credential)?;
        let forward = endpoint.forward.as_deref();
        Ok(Route { host, jump, forward, dialect: dialect::of(endpoint), settings: &self.settings })
    }
}

/// Checks that the command of a check exited with 0.
fn passed(session: &Session<'_>, user: &str, answer: (StageEnd, Vec<u8>)) -> Result<(), ConnectError> {
    let (end, output) = answer;
    if end == StageEnd::Exited(0) {
        return Ok(());
    }
    let problem = format!("the command `true` failed with {end}: {}", clean_line(&output, 200));
    Err(ConnectError::Refused { at: session.at().to_owned(), user: user.to_owned(), problem })
}

/// The hosts on the way to an instance: itself and its jump host.
fn hops(endpoint: &Endpoint, credential: Credential) -> Result<(Hop<'_>, Option<Hop<'_>>), ConnectError> {
    let Endpoint { address, port, user, host_key, key: _, jump, forward: _, metadata: _ } = endpoint;
    let host = Hop { address, port: *port, user, host_key, credential };
    let Some(jump) = jump.as_deref() else { return Ok((host, None)) };
    let Jump { address, port, user, host_key, key } = jump;
    let jump = Hop { address, port: *port, user, host_key, credential: Credential::of(key)? };
    Ok((host, Some(jump)))
}

#[async_trait(?Send)]
impl Connector for Ssh {
    async fn keys(&self, id: &InstanceId) -> Result<InstanceKeys, ConnectError> {
        // Fresh keys are synced to the disk.
        let keys = self.keys.clone();
        let instance = id.clone();
        let folder = self.keys.folder(id);
        let obtained = self.disk.run(&folder, move || Ok(keys.obtain(&instance))).await;
        let pair = obtained.map_err(KeyStoreError::Read)??;
        Ok(InstanceKeys {
            authorized_key: pair.authorized_key()?,
            host_key: pair.host_key()?,
            host_key_public: pair.host_key_public()?,
        })
    }

    async fn discard_keys(&self, id: &InstanceId) {
        self.keys.discard(id);
    }

    async fn check(&self, id: &InstanceId, at: &Endpoint, within: Duration) -> Result<(), ConnectError> {
        let begun = Instant::now();
        let session = self.connect(id, at, within).await?;
        let left = within.saturating_sub(begun.elapsed());
        let answer = tokio::time::timeout(left, session.brief(session.dialect().check())).await;
        let result = match answer {
            Err(_) => Err(session.timed_out(within)),
            Ok(answer) => answer.and_then(|answer| passed(&session, &at.user, answer)),
        };
        session.close().await;
        result
    }

    async fn run(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        mut stage: Stage,
        output: &mut dyn Output,
        stop: Stop<'_>,
    ) -> Result<StageEnd, ConnectError> {
        let mut acknowledged = AcknowledgedOutput::new(&mut stage, dialect::of(at), output)?;
        let end = self.run_as_it_is(id, at, stage, &mut acknowledged, stop).await;
        acknowledged.end(at.place(), end).await
    }

    async fn begins_stage(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        (shell, mark): (StageShell, Option<&Mark>),
        within: Duration,
    ) -> Result<(), ConnectError> {
        self.begins(id, at, (shell, mark), within).await
    }

    async fn command(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        command: RemoteCommand<'_>,
        output: &mut dyn Output,
    ) -> Result<StageEnd, ConnectError> {
        let deadline = Instant::now() + command.within;
        let session = self.connect(id, at, self.settings.start_within(&command)).await?;
        let mut stop: Stop<'_> = Box::pin(tokio::time::sleep_until(deadline));
        let work = StageWork::command(command, dialect::of(at), COMMAND_GRACE, &self.settings)?;
        let result = stage::run(&session, work, output, &mut stop).await;
        session.close().await;
        result
    }
}
