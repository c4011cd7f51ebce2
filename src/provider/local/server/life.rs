//! From boot to the end of an instance.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use fs_err as fs;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::guest::Guest;
use super::{note, openssh, ssh};
use crate::core::endpoint::Endpoint;
use crate::core::time::Pretty;
use crate::provider::local::settings::ServerKind;

/// How often we look whether our lock file is still the one that is named.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Why it is over.
#[derive(Debug)]
pub(super) enum End {
    /// Somebody asked for it: what is left is removed.
    Terminated,
    /// It broke, or was told to die: the directory stays, as a dead machine stays in its provider's list.
    Died(String),
    /// The directory is gone or was replaced: whoever did that has nothing left to ask us.
    Orphaned,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Terminated => f.write_str("terminated"),
            Self::Died(why) => write!(f, "died: {why}"),
            Self::Orphaned => f.write_str("the directory is gone"),
        }
    }
}

/// What it takes to live. From its making on no signal but SIGKILL ends this process by itself: a burial is not cut
/// off by the next `terminate`.
pub(super) struct Pulse {
    runtime: Runtime,
    signals: Signals,
}

impl Pulse {
    pub(super) fn new() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let signals = {
            let _inside = runtime.enter();
            Signals::new()?
        };
        Ok(Self { runtime, signals })
    }

    /// Boots, serves, and returns when it is over. The programs that run then are still running.
    pub(super) fn live(self, guest: &Arc<Guest>, lock: &fs::File) -> End {
        let Self { runtime, mut signals } = self;
        runtime.block_on(attend(guest, lock, &mut signals))
    }
}

async fn attend(guest: &Arc<Guest>, lock: &fs::File, signals: &mut Signals) -> End {
    tokio::select! {
        () = signals.told_to_stop() => {
            let asked = guest.dir.has("terminating");
            if asked { End::Terminated } else { End::Died("killed by SIGTERM".to_owned()) }
        }
        () = watch(guest, lock) => End::Orphaned,
        end = boot_and_serve(guest) => end,
    }
}

/// A handler for each, not "ignore": that would be inherited by the jobs.
struct Signals {
    stop: Signal,
    _others: Vec<Signal>,
}

impl Signals {
    fn new() -> io::Result<Self> {
        let others = [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit()];
        let others: io::Result<Vec<Signal>> = others.into_iter().map(signal).collect();
        Ok(Self { stop: signal(SignalKind::terminate())?, _others: others? })
    }

    async fn told_to_stop(&mut self) {
        self.stop.recv().await;
    }
}

/// Returns when the path of our lock names another file, or none.
async fn watch(guest: &Guest, lock: &fs::File) {
    let inode = |found: std::fs::Metadata| (found.dev(), found.ino());
    let own = lock.metadata().ok().map(inode);
    let mut look = tokio::time::interval(LOOK_EVERY);
    loop {
        look.tick().await;
        match fs::metadata(guest.dir.file("lock")).map(inode) {
            Ok(named) if Some(named) == own => guest.sweep(),
            Err(error) if error.kind() != io::ErrorKind::NotFound => note(&format!("cannot look: {error}")),
            _ => return,
        }
    }
}

async fn boot_and_serve(guest: &Arc<Guest>) -> End {
    let spec = &guest.spec;
    note(&format!(
        "booting `{}` as `{}`; jobs are not isolated from this machine",
        spec.instance, guest.user
    ));
    tokio::time::sleep(spec.boot_delay).await;
    let serving = match boot(guest).await {
        Ok(serving) => serving,
        Err(error) => return End::Died(format!("cannot boot: {error}")),
    };
    let life = spec.die_after_ms.map(Duration::from_millis);
    let death = async {
        match life {
            Some(life) => tokio::time::sleep(life).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = serving => End::Died("no more connections are accepted".to_owned()),
        () = death => End::Died(format!("`die_after` = {} has passed", Pretty(life.unwrap_or_default()))),
    }
}

/// Everything that can fail comes before the endpoint is written: what has one answers.
async fn boot(guest: &Arc<Guest>) -> io::Result<impl Future<Output = ()> + use<>> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let server = match guest.spec.server {
        ServerKind::Embedded => Server::Embedded(Arc::new(ssh::config(guest)?), ssh::authorized(guest)?),
        ServerKind::Openssh => Server::Openssh(openssh::prepare(guest)?),
    };
    let address = listener.local_addr()?;
    let endpoint = Endpoint {
        address: address.ip().to_string(),
        port: address.port(),
        user: guest.user.clone(),
        host_key: fs::read_to_string(guest.dir.file("host_key.pub"))?.trim_end().to_owned(),
    };
    guest.dir.put("endpoint.json", &endpoint)?;
    note(&format!("reachable at {address}"));
    Ok(accept(Arc::clone(guest), listener, server))
}

/// Who talks to a peer.
enum Server {
    Embedded(Arc<russh::server::Config>, russh::keys::PublicKey),
    Openssh(openssh::Sshd),
}

async fn accept(guest: Arc<Guest>, listener: TcpListener, server: Server) {
    loop {
        let socket = match listener.accept().await {
            Ok((socket, _)) => socket,
            Err(error) => {
                // Out of descriptors, or the peer left again: neither is the end of the machine.
                note(&format!("cannot accept a connection: {error}"));
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        match &server {
            Server::Embedded(config, key) => ssh::talk(&guest, config, key, socket),
            Server::Openssh(sshd) => sshd.hand_over(&guest, socket),
        }
    }
}
