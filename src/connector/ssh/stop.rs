//! Stops a stage that runs.
//!
//! The stage's own output is thrown away meanwhile: a connection whose output nobody takes stands still, and the
//! second channel with it.

use std::future::pending;
use std::time::Duration;

use russh::ChannelWriteHalf;
use russh::Sig;
use russh::client::Msg;

use super::remote::{Force, SessionId, sweep};
use super::session::Session;
use super::stage::Guest;
use crate::core::time::Pretty;
use crate::port::connector::{ConnectError, StageEnd};

/// A stage that has just been started may not have named its session yet.
const NAMING: Duration = Duration::from_secs(2);
/// After KILL a process is gone in an instant, unless the guest does not answer any more.
const KILLING: Duration = Duration::from_secs(5);

/// What became of the stage's session.
enum Fate {
    Gone,
    Left,
    /// It could not be asked.
    Unknown,
}

/// TERM, after `grace` KILL, to the stage's whole session. `Stopped` only when nothing of it is left. Takes `grace`
/// plus 7 s at most; twice `grace` plus 17 s where the connection gives no second channel.
pub(super) async fn stop(
    session: &Session<'_>,
    guest: &mut Guest,
    to: &ChannelWriteHalf<Msg>,
    grace: Duration,
) -> Result<StageEnd, ConnectError> {
    let naming = async { while guest.sift.session().is_none() && guest.discard_one().await {} };
    let _named = tokio::time::timeout(NAMING, naming).await;
    let fate = match guest.sift.session() {
        Some(id) => {
            let discarding = async {
                while guest.discard_one().await {}
                pending().await
            };
            tokio::select! {
                biased;
                fate = by_session(session, id, grace) => fate,
                fate = discarding => fate,
            }
        }
        None => Fate::Unknown,
    };
    let gone = match fate {
        Fate::Gone => true,
        Fate::Left => false,
        Fate::Unknown => by_signal(session, guest, to, grace).await,
    };
    if gone {
        return Ok(StageEnd::Stopped);
    }
    if session.is_closed() {
        return Err(session.lost(true));
    }
    let waited = Pretty(grace + KILLING);
    Err(session.lost_because(format!("the stage was told to stop and did not within {waited}"), true))
}

async fn by_session(session: &Session<'_>, id: SessionId, grace: Duration) -> Fate {
    match sweeps(session, id, grace).await {
        Fate::Unknown => {}
        fate => return fate,
    }
    // Refused (`MaxSessions`), or the connection is broken: then on one of its own.
    let Ok(other) = session.another(KILLING).await else { return Fate::Unknown };
    let fate = sweeps(&other, id, grace).await;
    other.close().await;
    fate
}

async fn sweeps(session: &Session<'_>, id: SessionId, grace: Duration) -> Fate {
    for (force, within) in [(Force::Term, grace), (Force::Kill, KILLING)] {
        let command = sweep(id, force, within);
        match tokio::time::timeout(within, session.brief(&command)).await {
            Ok(Ok((StageEnd::Exited(0), _))) => return Fate::Gone,
            Ok(Err(_)) => return Fate::Unknown,
            Ok(Ok(_)) | Err(_) => {}
        }
    }
    Fate::Left
}

/// The signal request of the protocol: reaches the stage's first process group only, and some servers ignore it.
async fn by_signal(
    session: &Session<'_>,
    guest: &mut Guest,
    to: &ChannelWriteHalf<Msg>,
    grace: Duration,
) -> bool {
    for (signal, within) in [(Sig::TERM, grace), (Sig::KILL, KILLING)] {
        let ending = async {
            let _sent = to.signal(signal).await;
            while guest.discard_one().await {}
        };
        if tokio::time::timeout(within, ending).await.is_ok() {
            return !session.is_closed();
        }
    }
    false
}
