//! Inspection of a host for an operator: the key that it presents, and how it would serve jobs.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use greenroom_core::endpoint::{Endpoint, without_comment};
use greenroom_core::execution::Shell;
use greenroom_core::ids::InstanceId;
use greenroom_core::text::clean_text;
use greenroom_ports::connector::ConnectError;
use greenroom_ports::dialect;
use greenroom_ports::host_keys::{HostKeys, PresentedKey};
use russh::keys::{HashAlg, PublicKey};
use tokio::time::{Instant, timeout};

use super::hop::Route;
use super::login::Credential;
use super::progress::Progress;
use super::session::Session;
use super::{Ssh, hops};

/// One for a stage and one to stop it. The standby shell for the next stage starts when the current stage has ended.
const SESSIONS_OF_A_JOB: u32 = 2;

/// A host's public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostKey {
    /// The key in OpenSSH format, without a comment.
    pub line: String,
    /// The fingerprint as `ssh-keygen -l` shows it: `SHA256:…`.
    pub fingerprint: String,
}

impl HostKey {
    /// Parses a key in OpenSSH format.
    pub fn parse(line: &str) -> Option<Self> {
        Self::of(&PublicKey::from_openssh(line.trim()).ok()?)
    }

    fn of(key: &PublicKey) -> Option<Self> {
        let line = without_comment(&key.to_openssh().ok()?);
        Some(Self { line, fingerprint: key.fingerprint(HashAlg::Sha256).to_string() })
    }
}

/// A host's fitness for jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspected {
    /// Time from the request of a shell to its end: the overhead of each stage.
    pub shell: Duration,
    /// The script's output on both streams.
    pub said: String,
    /// Connections that were open concurrently, of one for each possible job.
    pub connections: u32,
    /// Sessions that were open concurrently on one of them, of the two that a job needs.
    pub sessions: u32,
}

impl Ssh {
    /// Returns the key that a host presents, without logging in to it. A jump host on the way is verified and logged in
    /// to.
    pub async fn host_key(&self, at: &Endpoint, within: Duration) -> Result<HostKey, ConnectError> {
        let (host, jump) = hops(at, Credential::None)?;
        let forward = at.forward.as_deref();
        let way = Route { host, jump, forward, dialect: dialect::of(at), settings: &self.settings };
        let progress = Progress::default();
        let fetched = timeout(within, Box::pin(way.presented_key(&progress))).await;
        let key = fetched.map_err(|_| progress.timed_out(within))??;
        let unusable =
            || ConnectError::Local { what: "cannot encode the host key that the server presents".to_owned() };
        HostKey::of(&key).ok_or_else(unusable)
    }

    /// The output of a script in the environment of a login shell.
    pub async fn inspect_login(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        (shell, script): (Shell, &str),
        within: Duration,
    ) -> Result<String, ConnectError> {
        let dialect = dialect::of(at);
        let command = dialect.command_line(&dialect.in_login_shell(shell, script));
        let session = self.connect(id, at, within).await?;
        let answer = timeout(within, session.brief(&command)).await;
        let answer = answer.unwrap_or_else(|_| Err(session.timed_out(within)));
        session.close().await;
        Ok(clean_text(&answer?.1))
    }

    /// Logs in, and no more: a jump host may run no commands.
    pub async fn log_in(&self, id: &InstanceId, at: &Endpoint, within: Duration) -> Result<(), ConnectError> {
        self.connect(id, at, within).await?.close().await;
        Ok(())
    }

    /// Logs in as `jobs` concurrent jobs would, and runs a script on one of the connections. `within`
    /// limits each step.
    pub async fn inspect(
        &self,
        id: &InstanceId,
        at: &Endpoint,
        jobs: u32,
        script: &str,
        within: Duration,
    ) -> Result<Inspected, ConnectError> {
        let session = self.connect(id, at, within).await?;
        let begun = Instant::now();
        let late = |_| session.timed_out(within);
        timeout(within, session.brief(session.dialect().check())).await.map_err(late)??;
        let shell = begun.elapsed();
        session.close().await;
        // A server may count a session for a moment after its end, so each step uses a connection that had none.
        let session = self.connect(id, at, within).await?;
        let late = |_| session.timed_out(within);
        let command = session.dialect().command_line(script);
        let (_, output) = timeout(within, session.brief(&command)).await.map_err(late)??;
        session.close().await;
        let session = self.connect(id, at, within).await?;
        let sessions = sessions(&session, within).await;
        let others = (1..jobs).map(|_| self.connect(id, at, within));
        let others: Vec<Session<'_>> = join_all(others).await.into_iter().filter_map(Result::ok).collect();
        let connections = u32::try_from(others.len()).unwrap_or(u32::MAX).saturating_add(1);
        join_all(others.into_iter().map(Session::close)).await;
        session.close().await;
        Ok(Inspected { shell, said: clean_text(&output), connections, sessions })
    }
}

#[async_trait(?Send)]
impl HostKeys for Ssh {
    async fn presented(&self, at: &Endpoint, within: Duration) -> Result<PresentedKey, ConnectError> {
        let HostKey { line, fingerprint } = self.host_key(at, within).await?;
        Ok(PresentedKey { line, fingerprint })
    }
}

/// The number of a job's sessions that one connection can hold.
async fn sessions(session: &Session<'_>, within: Duration) -> u32 {
    let mut held = Vec::new();
    for _ in 0..SESSIONS_OF_A_JOB {
        match timeout(within, session.channel()).await {
            Ok(Ok(channel)) => held.push(channel),
            Ok(Err(_)) | Err(_) => break,
        }
    }
    u32::try_from(held.len()).unwrap_or(u32::MAX)
}
