//! Reaches a pod by a port-forward of its cluster's API server, as OpenSSH's `ProxyCommand` would.
//!
//! Only `greenroom-backends` has the libraries that this needs. So a process of that program makes the forward, and the SSH
//! session runs over a pair of sockets to it. The process ends with the session, and with this process.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;

use greenroom_core::endpoint::Forward;
use greenroom_core::text::clean_line;
use greenroom_ports::connector::ConnectError;
use greenroom_ports::forward::{COMMAND, LONGEST, OPEN, Refusal, Request};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};

use super::dial::{Wire, plain};

/// Maximum length of a reported reason, in characters.
const MAX_REASON: usize = 300;

/// The environment variables that the process inherits: those of the resolver, of a service account, and those that a
/// kubeconfig's own program for credentials needs.
pub(super) const ENVIRONMENT: [&str; 8] = [
    "HOME",
    "HOSTALIASES",
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "LOCALDOMAIN",
    "PATH",
    "RES_OPTIONS",
    "TZ",
];

/// Opens a forward to a port of a pod. `at` names it in errors.
pub(super) async fn open(
    program: Option<&Path>,
    to: &Forward,
    port: u16,
    at: &str,
) -> Result<(UnixStream, Wire), ConnectError> {
    let fault = |problem: String| ConnectError::HostFault { at: at.to_owned(), problem };
    let program = program.ok_or_else(|| fault("no program for port-forwards is set".to_owned()))?;
    let (mut stream, wire) = start(program)
        .map_err(|error| fault(format!("`{}` cannot be started: {}", program.display(), plain(&error))))?;
    let request = serde_json::to_string(&Request { to: to.clone(), port });
    let request = request.map_err(|error| fault(error.to_string()))? + "\n";
    // A process that has died does not answer either.
    let _sent = stream.write_all(request.as_bytes()).await;
    let mut first = [0];
    let read = stream.read(&mut first).await;
    if matches!(read, Ok(1)) && first == [OPEN] {
        return Ok((stream, wire));
    }
    let mut answer = if matches!(read, Ok(1)) { first.to_vec() } else { Vec::new() };
    let _whole = stream.take(LONGEST).read_to_end(&mut answer).await;
    let clean = |reason: &str| clean_line(reason.as_bytes(), MAX_REASON);
    Err(match serde_json::from_slice(&answer) {
        Ok(Refusal::Pod(reason)) => ConnectError::Unreachable { at: at.to_owned(), problem: clean(&reason) },
        Ok(Refusal::Way(reason)) => fault(clean(&reason)),
        Err(_) => fault("the process of the port-forward ended without an answer".to_owned()),
    })
}

fn start(program: &Path) -> io::Result<(UnixStream, Wire)> {
    let (own, other) = std::os::unix::net::UnixStream::pair()?;
    own.set_nonblocking(true)?;
    let wire = OwnedFd::from(own.try_clone()?);
    let child: Child = Command::new(program)
        .arg(COMMAND)
        .env_clear()
        .envs(ENVIRONMENT.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
        .current_dir("/")
        .stdin(Stdio::from(OwnedFd::from(other.try_clone()?)))
        .stdout(Stdio::from(OwnedFd::from(other)))
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    Ok((UnixStream::from_std(own)?, Wire::new(wire, Some(child))))
}
