//! Stops a stage that runs.
//!
//! The stage's own output is thrown away meanwhile: a connection whose output nobody takes stands still, and the
//! second channel with it.

use std::future::pending;
use std::time::Duration;

use russh::ChannelWriteHalf;
use russh::Sig;
use russh::client::Msg;
use tokio::time::Instant;

use super::guest::Guest;
use super::remote::{SessionId, sweep};
use super::session::Session;
use crate::core::time::Pretty;
use crate::port::connector::{ConnectError, StageEnd};

/// A stage that has just been started may not have named its session yet.
const NAMING: Duration = Duration::from_secs(2);
/// After KILL a process is gone in an instant; but one that waits for a disk is not, and a guest with a hundred busy
/// processes takes seconds to start the one that sends it.
const KILLING: Duration = Duration::from_secs(10);
/// The same where the server sends it itself: nothing has to be started.
const SIGNALLING: Duration = Duration::from_secs(5);
/// What a stop takes beyond the grace where the guest behaves, however busy it is.
pub(super) const MARGIN: Duration = NAMING.saturating_add(KILLING);
/// What a stop takes beyond twice the grace, whatever the guest does.
pub(super) const LONGEST: Duration = Duration::from_secs(30);
/// Until a guest that could not start the command that ends a session is asked once more.
const AGAIN: Duration = Duration::from_millis(200);

/// What became of the stage's session.
enum StopResult {
    Gone,
    Left,
    /// It could not be asked.
    Unknown,
}

/// TERM, after `grace` KILL, to the stage's whole session. `Stopped` only when nothing of it is left. Takes `grace`
/// and `MARGIN` at most; twice `grace` plus 27 s where the connection gives no second channel.
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
        None => StopResult::Unknown,
    };
    let gone = match fate {
        StopResult::Gone => true,
        StopResult::Left => false,
        StopResult::Unknown => by_signal(session, guest, to, grace).await,
    };
    if gone {
        return Ok(StageEnd::Stopped);
    }
    if session.is_closed() {
        return Err(session.lost(true));
    }
    let waited = Pretty(grace + KILLING);
    Err(session.lost_because(format!("the stage did not stop within {waited}"), true))
}

async fn by_session(session: &Session<'_>, id: SessionId, grace: Duration) -> StopResult {
    match sweeps(session, id, grace).await {
        StopResult::Unknown => {}
        fate => return fate,
    }
    // Refused (`MaxSessions`), or the connection is broken: then on one of its own.
    let Ok(other) = session.another(KILLING).await else { return StopResult::Unknown };
    let fate = sweeps(&other, id, grace).await;
    other.close().await;
    fate
}

/// One command does it all, so that the guest has one process to start, and starts it while it still has the grace.
async fn sweeps(session: &Session<'_>, id: SessionId, grace: Duration) -> StopResult {
    let kill_at = Instant::now() + grace;
    let until = kill_at + KILLING;
    loop {
        let now = Instant::now();
        let command = sweep(id, kill_at.saturating_duration_since(now), KILLING);
        match tokio::time::timeout_at(until, session.brief(&command)).await {
            Ok(Ok((StageEnd::Exited(0), _))) => return StopResult::Gone,
            Ok(Err(_)) => return StopResult::Unknown,
            // No process to be had, or it was killed with the rest.
            Ok(Ok(_)) if now + AGAIN < until => tokio::time::sleep(AGAIN).await,
            Ok(Ok(_)) | Err(_) => return StopResult::Left,
        }
    }
}

/// The signal request of the protocol: reaches the stage's first process group only, and some servers ignore it.
async fn by_signal(
    session: &Session<'_>,
    guest: &mut Guest,
    to: &ChannelWriteHalf<Msg>,
    grace: Duration,
) -> bool {
    for (signal, within) in [(Sig::TERM, grace), (Sig::KILL, SIGNALLING)] {
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
