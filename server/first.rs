//! The first process of the container: accepts connections, and reaps what loses its parent.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::future::pending;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::ExitCode;
use std::time::Duration;

use greenroom_ssh::server::admission::Waiting;
use russh::keys::key::safe_rng;
use russh::keys::ssh_key::LineEnding;
use russh::keys::{Algorithm, PrivateKey};
use rustix::net::sockopt;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};

use super::account::Account;
use super::connection::{self, Passed, Started};
use super::settings::Settings;
use super::{UNFIT, note};

/// Exit statuses of a process that a signal ends, as shells show them.
const BY_SIGTERM: u8 = 128 + 15;
const BY_SIGINT: u8 = 128 + 2;
/// The lifetime is over.
const BY_AGE: u8 = 3;
/// The search path if the container has no `PATH`.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The idle time after which the kernel begins to probe a peer. It gives up one that no longer exists after [`PROBES`]
/// probes.
const PROBE_AFTER: Duration = Duration::from_mins(1);
const PROBE_INTERVAL: Duration = Duration::from_secs(15);
const PROBES: u32 = 4;

/// Serves until a signal, or the end of the lifetime. The kernel then ends everything else in the container.
pub(crate) fn run() -> ExitCode {
    // A log keeps the order of one stream, but not that of two.
    let one_stream = rustix::stdio::dup2_stderr(rustix::stdio::stdout());
    let served = one_stream.map_err(|error| error.to_string()).and_then(|()| {
        let settings = Settings::read()?;
        let account = if settings.keep_user { Account::own() } else { Account::of(&settings.user)? };
        if settings.keep_user && !can_run(&settings.shell) {
            return Err(format!("the image cannot run jobs: it has no {}", settings.shell));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime
            .and_then(|runtime| runtime.block_on(serve(&settings, account)))
            .map_err(|error| format!("the SSH server cannot start: {error}"))
    });
    served.unwrap_or_else(|why| {
        note(&why);
        ExitCode::from(UNFIT)
    })
}

/// True if the program can be run. A job's own image shows only here what it lacks.
fn can_run(program: &str) -> bool {
    std::fs::metadata(program).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

async fn serve(settings: &Settings, account: Account) -> io::Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut child_ended = signal(SignalKind::child())?;
    let environment = environment(std::env::vars_os(), &account);
    let host_key = PrivateKey::random(&mut safe_rng(), Algorithm::Ed25519).map_err(io::Error::other)?;
    let host_key_public = host_key.public_key().to_openssh().map_err(io::Error::other)?;
    let passed = serde_json::to_vec(&Passed {
        host_key: host_key.to_openssh(LineEnding::LF).map_err(io::Error::other)?.to_string(),
        authorized_key: settings.authorized_key.to_openssh().map_err(io::Error::other)?,
        user: settings.user.clone(),
        account,
        shell: settings.shell.clone(),
    })?;
    let listener = TcpListener::bind(settings.listen).await?;
    let at = listener.local_addr()?;
    writeln!(io::stderr(), "greenroom-host-key {}", host_key_public.trim())?;
    note(&format!("Server listening on {} port {}", at.ip(), at.port()));
    let old = async {
        match settings.lifetime {
            Some(lifetime) => tokio::time::sleep(lifetime).await,
            None => pending().await,
        }
    };
    tokio::pin!(old);
    let mut waiting = Waiting::default();
    loop {
        tokio::select! {
            biased;
            _ = terminate.recv() => return Ok(ExitCode::from(BY_SIGTERM)),
            _ = interrupt.recv() => return Ok(ExitCode::from(BY_SIGINT)),
            () = &mut old => {
                note("the lifetime of the pod is over");
                return Ok(ExitCode::from(BY_AGE));
            }
            _ = child_ended.recv() => reap(&mut waiting),
            accepted = listener.accept() => match accepted {
                Ok((socket, peer)) => connect((socket, peer.ip()), &passed, &environment, &mut waiting),
                Err(error) => {
                    // Out of descriptors, or the peer has disconnected: neither ends the pod.
                    note(&format!("cannot accept a connection: {error}"));
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

/// Starts the process of a connection. Too many without a login cost one of them its place.
fn connect(
    (socket, source): (TcpStream, IpAddr),
    passed: &[u8],
    environment: &[(OsString, OsString)],
    waiting: &mut Waiting<Started>,
) {
    waiting.retain(Started::is_without_login);
    if let Some(crowding) = waiting.make_room(source) {
        if waiting.is_news() {
            note("too many connections without a login: one is closed for each new one");
        }
        // It has not been reaped: the number is still its own.
        if let Some(pid) = i32::try_from(crowding.pid).ok().and_then(Pid::from_raw) {
            let _ended = kill_process(pid, Signal::KILL);
        }
    }
    let started = watch(&socket)
        .and_then(|()| socket.into_std())
        .and_then(|socket| connection::start(socket, passed, environment.iter()));
    match started {
        Ok(started) => waiting.add(source, started),
        Err(error) => note(&format!("cannot serve a connection: {error}")),
    }
}

/// Lets the kernel find a peer that no longer exists.
fn watch(socket: &TcpStream) -> io::Result<()> {
    let socket = socket.as_fd();
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(socket, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, PROBES)?;
    Ok(())
}

/// Reaps connections and, as the first process, every process that lost its parent.
fn reap(waiting: &mut Waiting<Started>) {
    while let Ok(Some((pid, _))) = wait(WaitOptions::NOHANG) {
        let ended = pid.as_raw_nonzero().get().unsigned_abs();
        waiting.retain(|connection| connection.pid != ended);
    }
}

/// The container's environment, apart from what belongs to a login.
fn environment(
    all: impl Iterator<Item = (OsString, OsString)>,
    account: &Account,
) -> Vec<(OsString, OsString)> {
    let is_kept = |name: &str| {
        let other =
            ["HOSTNAME", "MAIL", "TERM", "PWD", "OLDPWD", "SHLVL", "_", "HOME", "USER", "LOGNAME", "SHELL"];
        !name.starts_with("GREENROOM_") && !name.starts_with("KUBERNETES_") && !other.contains(&name)
    };
    let kept = all.filter(|(name, _)| name.to_str().is_none_or(is_kept));
    let mut kept: BTreeMap<OsString, OsString> = kept.collect();
    let mut default = |name: &str, value: &str| {
        kept.entry(name.into()).or_insert_with(|| value.into());
    };
    default("PATH", PATH);
    default("LANG", "C.UTF-8");
    for (name, value) in [("USER", &account.name), ("LOGNAME", &account.name), ("SHELL", &account.shell)] {
        kept.insert(name.into(), value.into());
    }
    kept.insert("HOME".into(), account.home.clone().into_os_string());
    kept.into_iter().collect()
}
