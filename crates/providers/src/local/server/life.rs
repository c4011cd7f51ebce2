//! From boot to the end of an instance.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fs_err as fs;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::time::Pretty;
use greenroom_ssh::server::admission::Waiting;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use super::guest::Guest;
use super::{note, openssh, ssh};
use crate::local::settings::ServerKind;
use crate::supervisor::{ExitReason, Signals};

/// The runtime and the signal handlers of an instance's process.
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
enum Server {
    Embedded(Arc<russh::server::Config>, russh::keys::PublicKey),
    Openssh(openssh::Sshd),
}

async fn accept(guest: Arc<Guest>, listener: TcpListener, server: Server) {
    let mut waiting = Waiting::<ssh::Served>::default();
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
            Server::Embedded(config, key) => {
                waiting.retain(ssh::Served::is_without_login);
                if let Some(crowding) = waiting.make_room(source) {
                    if waiting.is_news() {
                        note("too many connections without a login: one is closed for each new one");
                    }
                    crowding.close();
                }
                waiting.add(source, ssh::talk(&guest, config, key, socket));
            }
            Server::Openssh(sshd) => sshd.hand_over(&guest, socket),
        }
    }
}
