//! `[timing]`: every duration.

use std::time::Duration;

use greenroom_core::policy::Timing;
use greenroom_keys::KeyTable;
use greenroom_keys::table::{self, Table};
use greenroom_keys::value_error::Got;

use super::check;
use super::keys::TIMING;

/// Durations that no decision depends on: how long processes on the runner host wait for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostTiming {
    /// How long a call waits for the lock of a pool's state.
    pub lock_timeout: Duration,
    /// How long a call waits for a lease that the keeper holds.
    pub lease_lock_timeout: Duration,
    /// How often a long call writes the time into its lease.
    pub lease_renew_interval: Duration,
    /// How long a starting keeper may take, and waits for the previous one to exit.
    pub keeper_start_timeout: Duration,
    /// How often background processes check whether their state directory and the configuration have changed.
    pub self_check_interval: Duration,
    /// Half-written files of killed calls are removed at this age.
    pub half_made_retention: Duration,
    /// Attempts without a `prepare` are removed at this age.
    pub unprepared_retention: Duration,
}

impl Default for HostTiming {
    /// The declared defaults.
    fn default() -> Self {
        let read = table::read(ALONE, "", &toml::Table::new(), |table| read(table).1);
        read.expect("an empty table has no mistakes; a test reads it")
    }
}

/// The table without those around it.
static ALONE: &[KeyTable] = &[TIMING];

/// Reads the table.
pub(super) fn read(table: &Table<'_>) -> (Timing, HostTiming) {
    let mut timing = Timing::default();
    let mut host = HostTiming {
        lock_timeout: Duration::ZERO,
        lease_lock_timeout: Duration::ZERO,
        lease_renew_interval: Duration::ZERO,
        keeper_start_timeout: Duration::ZERO,
        self_check_interval: Duration::ZERO,
        half_made_retention: Duration::ZERO,
        unprepared_retention: Duration::ZERO,
    };
    let fields: [(&str, &mut Duration); 38] = [
        ("acquire_timeout", &mut timing.acquire_timeout),
        ("launch_timeout", &mut timing.launch_timeout),
        ("relaunch_after", &mut timing.relaunch_after),
        ("absence_interval", &mut timing.absence_interval),
        ("reap_grace", &mut timing.reap_grace),
        ("place_retention", &mut timing.place_retention),
        ("lease_free_timeout", &mut timing.lease_free_timeout),
        ("job_timeout_grace", &mut timing.job_timeout_grace),
        ("attempt_retention", &mut timing.attempt_retention),
        ("clean_grace", &mut timing.clean_grace),
        ("surplus_min_time", &mut timing.surplus_min_time),
        ("probe_interval", &mut timing.probe_interval),
        ("pass_interval", &mut timing.pass_interval),
        ("list_interval", &mut timing.list_interval),
        ("launch_backoff", &mut timing.launch_backoff),
        ("launch_backoff_max", &mut timing.launch_backoff_max),
        ("stockout_backoff", &mut timing.stockout_backoff),
        ("stockout_backoff_max", &mut timing.stockout_backoff_max),
        ("quota_backoff", &mut timing.quota_backoff),
        ("connect_timeout", &mut timing.connect_timeout),
        ("ready_timeout", &mut timing.ready_timeout),
        ("clean_timeout", &mut timing.clean_timeout),
        ("suspend_timeout", &mut timing.suspend_timeout),
        ("resume_timeout", &mut timing.resume_timeout),
        ("health_interval", &mut timing.health_interval),
        ("stop_grace", &mut timing.stop_grace),
        ("container_start_timeout", &mut timing.container_start_timeout),
        ("no_host_timeout", &mut timing.no_host_timeout),
        ("image_check_interval", &mut timing.image_check_interval),
        ("loss_reason_timeout", &mut timing.loss_reason_timeout),
        ("waiter_poll_interval", &mut timing.waiter_poll_interval),
        ("lock_timeout", &mut host.lock_timeout),
        ("lease_lock_timeout", &mut host.lease_lock_timeout),
        ("lease_renew_interval", &mut host.lease_renew_interval),
        ("keeper_start_timeout", &mut host.keeper_start_timeout),
        ("self_check_interval", &mut host.self_check_interval),
        ("half_made_retention", &mut host.half_made_retention),
        ("unprepared_retention", &mut host.unprepared_retention),
    ];
    let mut given: Vec<(&str, Got<Duration>)> = Vec::with_capacity(fields.len());
    for (name, field) in fields {
        let got = table.duration(name);
        *field = got.or_declared();
        given.push((name, got));
    }
    timing.breaker_failures = table.count("breaker_failures").or_declared();
    check::timing(&given, table);
    (timing, host)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The simulation and the tests of the core have these values without a configuration.
    #[test]
    fn the_core_assumes_the_declared_defaults() {
        let read = table::read(ALONE, "", &toml::Table::new(), read).unwrap();
        assert_eq!(read, (Timing::default(), HostTiming::default()));
        assert_eq!(read.1.lock_timeout, Duration::from_secs(10));
    }
}
