//! The check that a static host can be used: its host key is known, and its SSH server answers.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use fs_err as fs;
use greenroom_core::endpoint::{Endpoint, Jump};
use greenroom_core::ids::PoolName;
use greenroom_system::names::{connect_any, look_up};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

use super::StaticHosts;
use super::settings::{Host, JUMP, Server};

/// The reason Greenroom cannot connect to a host.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unavailable {
    #[error(transparent)]
    HostKey(#[from] HostKeyError),
    #[error("the jump host: {0}")]
    JumpHostKey(#[source] HostKeyError),
    #[error("the host does not respond: {0}")]
    NoAnswer(#[from] ProbeError),
}

/// The reason the host key of a server is unknown.
#[derive(Debug, thiserror::Error)]
pub(super) enum HostKeyError {
    #[error(
        "its host key is unknown: pin it with `greenroom doctor --pin {name} --pool {pool}`, or set `host_key`"
    )]
    Unknown { name: String, pool: PoolName },
    #[error(transparent)]
    Unreadable(#[from] io::Error),
}

/// The reason the SSH server of a host does not count as available.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    #[error("no answer within {} s", TIMEOUT.as_secs())]
    Late,
    #[error("it closes the connection before it sends its SSH version")]
    Closed,
    #[error("{}", without_number(.0))]
    Io(#[from] io::Error),
}

impl StaticHosts {
    /// The path of a host's pinned key. The file holds one public key in OpenSSH form, and only `doctor --pin` writes it.
    fn pin_path(&self, name: &str) -> PathBuf {
        self.context.state_dir.join("pinned").join(self.context.pool.as_str()).join(name)
    }

    /// The path of a server's pinned key; `None`: the table states the key.
    pub(super) fn pin_of(&self, server: &Server, name: &str) -> Option<PathBuf> {
        server.host_key.is_none().then(|| self.pin_path(name))
    }

    /// The host key that a server must present: the stated one or the pinned one.
    pub(super) fn host_key(&self, server: &Server, name: &str) -> Result<String, HostKeyError> {
        if let Some(stated) = &server.host_key {
            return Ok(stated.clone());
        }
        match fs::read_to_string(self.pin_path(name)) {
            Ok(text) => Ok(text.trim().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(HostKeyError::Unknown { name: name.to_owned(), pool: self.context.pool.clone() })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The jump host, if the table has one.
    pub(super) fn jump(&self) -> Result<Option<Jump>, Unavailable> {
        let Some(jump) = &self.settings.jump else { return Ok(None) };
        let host_key = self.host_key(jump, JUMP).map_err(Unavailable::JumpHostKey)?;
        let Server { address, port, user, key, .. } = jump.clone();
        Ok(Some(Jump { address, port, user, host_key, key }))
    }

    pub(super) fn endpoint_of(&self, host: &Host) -> Result<Endpoint, Unavailable> {
        let host_key = self.host_key(&host.server, &host.name)?;
        let jump = self.jump()?.map(Box::new);
        Ok(Endpoint { host_key, jump, ..without_key(&host.server) })
    }

    /// Checks that a host can be used, as far as the runner host can see without a login. A jump host is never probed: its
    /// server would penalize the runner host, and with it all hosts of the pool.
    pub(super) async fn check(&self, host: &Host) -> Result<(), Unavailable> {
        self.endpoint_of(host)?;
        if self.settings.jump.is_some() || self.answered.borrow().contains(&host.name) {
            return Ok(());
        }
        probe(&host.server).await?;
        self.answered.borrow_mut().insert(host.name.clone());
        Ok(())
    }
}

/// The endpoint of a server whose host key is not filled in.
pub(super) fn without_key(server: &Server) -> Endpoint {
    Endpoint {
        address: server.address.clone(),
        port: server.port,
        user: server.user.clone(),
        host_key: String::new(),
        key: Some(server.key.clone()),
        jump: None,
        forward: None,
        metadata: None,
    }
}

/// Time limit of one probe.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum output of a server before its version line (RFC 4253, 4.2), in bytes.
const PREAMBLE: u64 = 8 << 10;

/// Probes the SSH server of a host that has not answered yet, without logging in, so that a list stays cheap.
async fn probe(server: &Server) -> Result<(), ProbeError> {
    tokio::time::timeout(TIMEOUT, banner(server)).await.unwrap_or(Err(ProbeError::Late))
}

async fn banner(server: &Server) -> Result<(), ProbeError> {
    let stream = connect_any(&look_up(&server.address, server.port).await?).await?;
    let mut lines = BufReader::new(stream.take(PREAMBLE));
    let mut line = Vec::new();
    loop {
        line.clear();
        match lines.read_until(b'\n', &mut line).await? {
            0 => return Err(ProbeError::Closed),
            _ if line.starts_with(b"SSH-") => return Ok(()),
            _ => {}
        }
    }
}

/// The text of an I/O error without its number.
fn without_number(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}
