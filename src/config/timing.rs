//! `[timing]`: every duration of the design.

use std::time::Duration;

use crate::core::policy::Timing;

use super::check;
use super::table::{Got, Sink, Table};

/// Durations that no decision depends on: how long processes on this machine wait for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostTiming {
    /// How long a starting keeper waits for the one before to go. Default 3 s.
    pub keeper_handover: Duration,
    /// Between two looks whether the state directory is still there. Default 5 s.
    pub presence_look: Duration,
    /// How long `run` waits for the keeper's verdict on a lost instance. Default 10 s.
    pub verdict_wait: Duration,
    /// How long a call waits for the lock of a pool's state. Default 10 s.
    pub lock_timeout: Duration,
}

impl Default for HostTiming {
    fn default() -> Self {
        Self {
            keeper_handover: Duration::from_secs(3),
            presence_look: Duration::from_secs(5),
            verdict_wait: Duration::from_secs(10),
            lock_timeout: Duration::from_secs(10),
        }
    }
}

/// Reads the table; what is not named keeps its default.
pub(super) fn read(table: &Table<'_>, sink: &mut Sink) -> (Timing, HostTiming) {
    let mut timing = Timing::default();
    let mut host = HostTiming::default();
    let fields: [(&str, &mut Duration); 23] = [
        ("acquire_timeout", &mut timing.acquire_timeout),
        ("launch_timeout", &mut timing.launch_timeout),
        ("relaunch_after", &mut timing.relaunch_after),
        ("absence_interval", &mut timing.absence_interval),
        ("reap_grace", &mut timing.reap_grace),
        ("place_kept", &mut timing.place_kept),
        ("lease_unused", &mut timing.lease_unused),
        ("overrun", &mut timing.overrun),
        ("attempt_kept", &mut timing.attempt_kept),
        ("clean_after", &mut timing.clean_after),
        ("surplus_kept", &mut timing.surplus_kept),
        ("probe_interval", &mut timing.probe_interval),
        ("pass_interval", &mut timing.pass_interval),
        ("launch_backoff", &mut timing.launch_backoff),
        ("launch_backoff_max", &mut timing.launch_backoff_max),
        ("connect_timeout", &mut timing.connect_timeout),
        ("ready_timeout", &mut timing.ready_timeout),
        ("stop_grace", &mut timing.stop_grace),
        ("waiter_look", &mut timing.waiter_look),
        ("keeper_handover", &mut host.keeper_handover),
        ("presence_look", &mut host.presence_look),
        ("verdict_wait", &mut host.verdict_wait),
        ("lock_timeout", &mut host.lock_timeout),
    ];
    let mut given: Vec<(&str, Got<Duration>)> = Vec::with_capacity(fields.len());
    for (name, field) in fields {
        let got = table.duration(name, sink);
        *field = got.or(*field);
        given.push((name, got));
    }
    timing.breaker_failures = table.count("breaker_failures", sink).or(timing.breaker_failures);
    check::timing(&given, sink);
    (timing, host)
}
