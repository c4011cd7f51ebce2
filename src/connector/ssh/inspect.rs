//! What an operator wants to know of a host: which key it shows, and how it would serve jobs.

use std::cell::RefCell;
use std::time::Duration;

use futures_util::future::join_all;
use russh::keys::{HashAlg, PublicKey};
use tokio::time::{Instant, timeout};

use super::hop::Way;
use super::login::Credential;
use super::remote;
use super::session::Session;
use super::{Ssh, hops};
use crate::core::endpoint::Endpoint;
use crate::core::ids::InstanceId;
use crate::core::text::clean_text;
use crate::port::connector::ConnectError;

/// A stage and whatever stops it. The shell that waits for the next stage comes when the present one has ended.
const SESSIONS_OF_A_JOB: u32 = 2;

/// A host's public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostKey {
    /// In OpenSSH form, without a comment.
    pub line: String,
    /// As `ssh-keygen -l` shows it: `SHA256:…`.
    pub fingerprint: String,
}

impl HostKey {
    /// Reads a key in OpenSSH form.
    pub fn parse(line: &str) -> Option<Self> {
        Self::of(&PublicKey::from_openssh(line.trim()).ok()?)
    }

    fn of(key: &PublicKey) -> Option<Self> {
        let text = key.to_openssh().ok()?;
        let line = text.split(' ').take(2).collect::<Vec<_>>().join(" ");
        Some(Self { line, fingerprint: key.fingerprint(HashAlg::Sha256).to_string() })
    }
}

/// How a host would serve jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspected {
    /// From asking for a shell to its end: what each stage pays.
    pub shell: Duration,
    /// What the script said on either of its streams.
    pub said: String,
    /// Connections that could be held at once, of as many as there may be jobs.
    pub connections: u32,
    /// Sessions that one of them could hold at once, of the two that a job needs.
    pub sessions: u32,
}

impl Ssh {
    /// Looks at the key that a host shows, without logging in there; a jump host on the way is verified, and logged
    /// in to.
    pub async fn host_key(&self, at: &Endpoint, within: Duration) -> Result<HostKey, ConnectError> {
        let (host, jump) = hops(at, Credential::Nobodys)?;
        let way = Way { host, jump, settings: &self.settings };
        let present = RefCell::new(String::new());
        let looked = timeout(within, Box::pin(way.look_at_key(&present))).await;
        let key = looked.map_err(|_| ConnectError::timed_out(present.take(), within))??;
        let unusable =
            || ConnectError::Local { what: "cannot encode the host key that the server presents".to_owned() };
        HostKey::of(&key).ok_or_else(unusable)
    }

    /// Logs in as so many jobs would at once, and lets `/bin/sh` run a script in one of the connections. Each step may
    /// take `within`.
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
        timeout(within, session.brief("true")).await.map_err(late)??;
        let shell = begun.elapsed();
        session.close().await;
        // A server may count a session for a moment after its end: each on a connection that had none.
        let session = self.connect(id, at, within).await?;
        let late = |_| session.timed_out(within);
        let (_, said) = timeout(within, session.brief(&remote::shell(script))).await.map_err(late)??;
        session.close().await;
        let session = self.connect(id, at, within).await?;
        let sessions = sessions(&session, within).await;
        let others = (1..jobs).map(|_| self.connect(id, at, within));
        let others: Vec<Session<'_>> = join_all(others).await.into_iter().filter_map(Result::ok).collect();
        let connections = u32::try_from(others.len()).unwrap_or(u32::MAX).saturating_add(1);
        join_all(others.into_iter().map(Session::close)).await;
        session.close().await;
        Ok(Inspected { shell, said: clean_text(&said), connections, sessions })
    }
}

/// How many sessions of a job's one connection can hold.
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
