//! The instance's own process: serves SSH until it ends.
//!
//! A launch starts it, and it detaches immediately: a session of its own, a minimal environment, its streams on the
//! console's file. `terminate` marks its directory and sends SIGTERM; then the process removes the instance.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fs_err as fs;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::time::Pretty;
use greenroom_ssh::server::admission::Waiting;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::doctor;
use super::launch::Spec;
use super::processes::{self, COOKIE, Session};
use super::settings::ServerKind;
use crate::process::{self, Process};
use crate::supervised::instance_dir::InstanceDir;
use crate::supervised::launch::passed_on;
use crate::supervised::supervisor::{self, ExitReason, Seized, Signals, note};

mod ssh;

use ssh::SshServerError;

/// The hidden subcommands `instance serve --dir DIR` and `instance session DIR PROGRAM ARGUMENT…`; `arguments` follow
/// `instance`.
pub fn main(arguments: &[OsString]) -> ExitCode {
    let texts: Vec<&str> = arguments.iter().map_while(|argument| argument.to_str()).collect();
    match (texts.as_slice(), arguments) {
        (["serve", "--dir", ..], [_, _, dir]) => serve(Path::new(dir)),
        (["session", ..], [_, dir, program, rest @ ..]) => {
            processes::run_in_session(Path::new(dir), program, rest)
        }
        _ => {
            note("usage: greenroom instance serve --dir DIR");
            ExitCode::from(2)
        }
    }
}

/// Serves or removes the instance in a directory; returns when that is done.
pub fn serve(path: &Path) -> ExitCode {
    supervisor::detach();
    let dir = InstanceDir::at(path);
    match begin(&dir) {
        Ok(Some(begun)) => begun.run(),
        Ok(None) => {
            supervisor::answer();
            ExitCode::SUCCESS
        }
        Err(error) => {
            note(&format!("cannot serve: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// The state of a process that has seized its instance.
struct ServingProcess {
    guest: Arc<Guest>,
    seized: Seized,
    runtime: ProcessRuntime,
}

/// Takes the instance of a directory; `None`: this process has nothing to do.
fn begin(dir: &InstanceDir) -> std::io::Result<Option<ServingProcess>> {
    let runtime = ProcessRuntime::new()?;
    let Some(seized) = supervisor::seize(dir)? else { return Ok(None) };
    let Some(spec) = dir.read::<Spec>("spec.json")? else { return Ok(None) };
    let boot = process::boot_id()?;
    // Pids recorded in another boot are meaningless.
    let same_boot = seized.before.as_ref().is_none_or(|served| served.boot == boot);
    let recorded = processes::Session::recorded(&dir.file("sessions"));
    let sessions = if same_boot { recorded } else { std::collections::BTreeSet::default() };
    let guest = Guest { dir: dir.clone(), spec, user: doctor::login_name(), sessions: Mutex::new(sessions) };
    Ok(Some(ServingProcess { guest: Arc::new(guest), seized, runtime }))
}

impl ServingProcess {
    fn run(self) -> ExitCode {
        let Self { guest, seized: Seized { lock, before: _, removing }, runtime } = self;
        supervisor::answer();
        let end = if removing { ExitReason::Terminated } else { runtime.live(&guest, &lock) };
        note(&format!("stopping: {end}"));
        let left = guest.end_all();
        if left > 0 {
            note(&format!("cannot stop {left} processes"));
            return ExitCode::FAILURE;
        }
        let removed = match end {
            ExitReason::Terminated => supervisor::remove_dir(&guest.dir),
            ExitReason::Died(_) | ExitReason::Orphaned => Ok(()),
        };
        drop(lock);
        match removed {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                note(&format!("cannot remove the instance: {error}"));
                ExitCode::FAILURE
            }
        }
    }
}

/// Returns this process's executable, even if it has been replaced on disk.
fn own_program() -> PathBuf {
    PathBuf::from("/proc/self/exe")
}

/// The runtime and the signal handlers of an instance's process.
pub(super) struct ProcessRuntime {
    runtime: Runtime,
    signals: Signals,
}

impl ProcessRuntime {
    pub(super) fn new() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let signals = {
            let _inside = runtime.enter();
            Signals::new()?
        };
        Ok(Self { runtime, signals })
    }

    /// Boots, serves, and returns when the instance has to end. Its programs are still running then.
    pub(super) fn live(self, guest: &Arc<Guest>, lock: &fs::File) -> ExitReason {
        let Self { runtime, mut signals } = self;
        runtime.block_on(attend(guest, lock, &mut signals))
    }
}

async fn attend(guest: &Arc<Guest>, lock: &fs::File, signals: &mut Signals) -> ExitReason {
    tokio::select! {
        end = signals.end(&guest.dir, lock, || guest.sweep()) => end,
        end = boot_and_serve(guest) => end,
    }
}

async fn boot_and_serve(guest: &Arc<Guest>) -> ExitReason {
    let spec = &guest.spec;
    note(&format!(
        "booting `{}` as `{}`; jobs are not isolated from the runner host",
        spec.launched.instance, guest.user
    ));
    tokio::time::sleep(spec.boot_delay).await;
    let serving = match boot(guest).await {
        Ok(serving) => serving,
        Err(error) => return ExitReason::Died(format!("cannot boot: {error}")),
    };
    let life = spec.die_after_ms.map(Duration::from_millis);
    let death = async {
        match life {
            Some(life) => tokio::time::sleep(life).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = serving => ExitReason::Died("it can no longer accept connections".to_owned()),
        () = death => ExitReason::Died(format!("`die_after` = {} has passed", Pretty(life.unwrap_or_default()))),
    }
}

/// Does everything that can fail before it writes the endpoint: an instance with an endpoint answers.
async fn boot(guest: &Arc<Guest>) -> Result<impl Future<Output = ()> + use<>, SshServerError> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let server = match guest.spec.server {
        ServerKind::Embedded => {
            SshServer::Embedded(Arc::new(ssh::embedded_config(guest)?), ssh::authorized_key(guest)?)
        }
        ServerKind::Openssh => SshServer::Openssh(ssh::prepare_sshd(guest)?),
    };
    let address = listener.local_addr()?;
    let endpoint = Endpoint {
        address: address.ip().to_string(),
        port: address.port(),
        user: guest.user.clone(),
        host_key: fs::read_to_string(guest.dir.file("host_key.pub"))?.trim_end().to_owned(),
        key: None,
        jump: None,
        forward: None,
        metadata: None,
    };
    guest.dir.put("endpoint.json", &endpoint)?;
    note(&format!("reachable at {address}"));
    Ok(accept(Arc::clone(guest), listener, server))
}

/// The SSH server that gets a connection.
enum SshServer {
    Embedded(Arc<russh::server::Config>, russh::keys::PublicKey),
    Openssh(ssh::Sshd),
}

async fn accept(guest: Arc<Guest>, listener: TcpListener, server: SshServer) {
    let mut waiting = Waiting::<ssh::Connection>::default();
    loop {
        let (socket, source) = match listener.accept().await {
            Ok((socket, peer)) => (socket, peer.ip()),
            Err(error) => {
                // Out of descriptors, or the peer has disconnected: neither ends the instance.
                note(&format!("cannot accept a connection: {error}"));
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        match &server {
            SshServer::Embedded(config, key) => {
                waiting.retain(ssh::Connection::is_without_login);
                if let Some(crowding) = waiting.make_room(source) {
                    if waiting.is_news() {
                        note("too many connections without a login: one is closed for each new one");
                    }
                    crowding.close();
                }
                waiting.add(source, ssh::serve_embedded(&guest, config, key, socket));
            }
            SshServer::Openssh(sshd) => sshd.hand_over(&guest, socket),
        }
    }
}

/// The search path that is used if this process's environment has no `PATH`.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The instance, from the inside.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) dir: InstanceDir,
    pub(super) spec: Spec,
    /// The login name that all programs run as.
    pub(super) user: String,
    /// Started sessions in which processes may be left. Also on disk, for the process that removes the instance.
    pub(super) sessions: Mutex<BTreeSet<Session>>,
}

impl Guest {
    fn sessions(&self) -> MutexGuard<'_, BTreeSet<Session>> {
        // The set is consistent between any two operations, even after a panic.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A command that will run in a session of its own, recorded before its program begins.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(own_program());
        command.args(["instance", "session"]).arg(&self.dir.path).arg(program);
        command.env_clear().envs(self.environment());
        command.current_dir(self.dir.file("work"));
        command
    }

    /// The whole environment of a program on the instance.
    pub(super) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let mut environment = vec![("PATH", OsString::from(PATH))];
        environment.extend(passed_on());
        environment.extend([
            ("HOME", self.dir.file("home").into_os_string()),
            ("USER", OsString::from(&self.user)),
            ("LOGNAME", OsString::from(&self.user)),
            ("SHELL", OsString::from("/bin/sh")),
            (COOKIE, OsString::from(&self.spec.cookie)),
        ]);
        environment
    }

    /// Adds the session of a leader that has just been started.
    pub(super) fn started(&self, pid: Option<u32>) {
        let process = pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Process::of);
        if let Some(Process { pid, started, .. }) = process {
            self.sessions().insert(Session { leader: pid, started });
        }
    }

    /// Removes the sessions in which no process is left.
    pub(super) fn sweep(&self) {
        let mut sessions = self.sessions();
        if sessions.is_empty() {
            return;
        }
        for session in processes::ended(&sessions) {
            sessions.remove(&session);
            drop(std::fs::remove_file(self.dir.file("sessions").join(session.name())));
        }
    }

    /// Kills all processes on the instance; returns how many are left.
    pub(super) fn end_all(&self) -> usize {
        // A recorded session may be missing here: an earlier process of the instance was its parent.
        let mut sessions = self.sessions().clone();
        sessions.extend(Session::recorded(&self.dir.file("sessions")).iter().filter(|_| self.is_this_boot()));
        processes::end_all(&self.spec.cookie, &sessions).unwrap_or_else(|error| {
            note(&format!("cannot list processes: {error}"));
            1
        })
    }

    fn is_this_boot(&self) -> bool {
        let served = self.dir.served().ok().flatten();
        let boot = process::boot_id().ok();
        served.is_some_and(|served| Some(served.boot) == boot)
    }
}
