//! Figures of a link.

use std::time::Duration;

use tokio::time::timeout;

use super::hub::Hub;
use super::message::Figures;

/// A ping that takes longer is left out, because the querying process waits for only one second.
const PING_WITHIN: Duration = Duration::from_millis(500);

pub(super) async fn of(hub: &Hub<'_>) -> Figures {
    let connected = hub.connected_for();
    if connected.is_some()
        && !hub.is_busy()
        && let Ok(session) = hub.session().await
    {
        // Without a reply, the previous figure stays.
        let _answered = timeout(PING_WITHIN, hub.ping(session)).await;
    }
    let whole = |time: u128| u64::try_from(time).unwrap_or(u64::MAX);
    Figures {
        pid: std::process::id(),
        connected_ms: connected.map(|time| whole(time.as_millis())),
        round_trip_us: hub.round_trip.get().map(|time| whole(time.as_micros())),
        memory: memory(),
        stages: hub.stages.get(),
        busy: hub.is_busy(),
        shell_waits: hub.shells.one_waits.get(),
    }
}

/// Anonymous memory of this process, which excludes the program file.
fn memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}
