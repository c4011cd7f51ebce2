//! Stops a running stage.
//!
//! The stage's output is discarded meanwhile: unread output stalls the connection, and the second channel with it.

use std::future::pending;
use std::time::Duration;

use greenroom_core::time::Pretty;
use greenroom_ports::connector::{ConnectError, StageEnd};
use russh::ChannelWriteHalf;
use russh::Sig;
use russh::client::Msg;
use tokio::time::Instant;

use super::guest::Guest;
use super::session::Session;
use super::stop_handle::StopHandle;

/// KILL usually takes effect immediately. A process that waits for a disk takes longer, and a guest with a hundred busy
/// processes needs seconds to start the command that sends the signal.
const KILLING: Duration = Duration::from_secs(10);
/// The guest's answer to the command takes a moment more.
const SENDING: Duration = Duration::from_secs(2);
/// The same if the server sends the signal itself: no process has to be started.
const SIGNALLING: Duration = Duration::from_secs(5);
/// Time that a stop takes beyond the grace on a well-behaved guest, however busy it is.
pub(super) const MARGIN: Duration = KILLING.saturating_add(SENDING);
/// Time that a stop takes at most beyond twice the grace, whatever the guest does.
pub(super) const LONGEST: Duration = Duration::from_secs(30);
/// Delay before a command that the guest could not start is retried.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// What is left of the stage after a stop.
enum StopResult {
    Gone,
    Left,
    /// It could not be determined.
    Unknown,
}

/// Sends TERM and, after `grace`, KILL to everything that the stage started. Returns `Stopped` only if nothing of it is left.
/// Takes at most `grace` plus `MARGIN`, or twice `grace` plus 25 s if the connection has no second channel.
pub(super) async fn stop(
    session: &Session<'_>,
    guest: &mut Guest,
    to: &ChannelWriteHalf<Msg>,
    grace: Duration,
) -> Result<StageEnd, ConnectError> {
    let result = match guest.handle().cloned() {
        Some(handle) => {
            let discarding = async {
                while guest.discard_one().await {}
                pending().await
            };
            tokio::select! {
                biased;
                result = by_handle(session, &handle, grace) => result,
                result = discarding => result,
            }
        }
        None => StopResult::Unknown,
    };
    let gone = match result {
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

async fn by_handle(session: &Session<'_>, handle: &StopHandle, grace: Duration) -> StopResult {
    match send(session, handle, grace).await {
        StopResult::Unknown => {}
        result => return result,
    }
    // The server refused the session (`MaxSessions`), or the connection is broken: stop it on a new connection.
    let Ok(other) = session.another(KILLING).await else { return StopResult::Unknown };
    let result = send(&other, handle, grace).await;
    other.close().await;
    result
}

/// One command does everything, so that the guest starts only one process, and starts it during the grace.
async fn send(session: &Session<'_>, handle: &StopHandle, grace: Duration) -> StopResult {
    let kill_at = Instant::now() + grace;
    let until = kill_at + KILLING;
    loop {
        let now = Instant::now();
        let command = handle.command(kill_at.saturating_duration_since(now), KILLING);
        match tokio::time::timeout_at(until, session.brief(&command)).await {
            Ok(Ok((StageEnd::Exited(0), _))) => return StopResult::Gone,
            Ok(Err(_)) => return StopResult::Unknown,
            // The guest could not start a process, or the command was killed with the rest.
            Ok(Ok(_)) if now + RETRY_DELAY < until => tokio::time::sleep(RETRY_DELAY).await,
            Ok(Ok(_)) | Err(_) => return StopResult::Left,
        }
    }
}

/// Sends the protocol's signal request, which reaches only the stage's first process group. Some servers ignore it.
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
