//! Timeouts and intervals of this host.

use std::time::Duration;

/// Bounds and intervals; tests shorten them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Times {
    /// A call waits this long for a lease that the keeper holds. Default 10 s.
    pub lease_lock_timeout: Duration,
    /// A call that waits or runs writes the time into its lease this often. Default 60 s.
    pub lease_renew_interval: Duration,
    /// The keeper checks this often whether the state directory is still its own. Default 5 s.
    pub self_check_interval: Duration,
    /// A started keeper must have detached itself within this time. Default 3 s.
    pub keeper_start_timeout: Duration,
    /// Incomplete directories of killed calls are removed at this age. Default 1 h.
    pub half_made_retention: Duration,
    /// Attempts without a `prepare` are removed at this age. Default 1 day.
    pub unprepared_retention: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            lease_lock_timeout: Duration::from_secs(10),
            lease_renew_interval: Duration::from_mins(1),
            self_check_interval: Duration::from_secs(5),
            keeper_start_timeout: Duration::from_secs(3),
            half_made_retention: Duration::from_hours(1),
            unprepared_retention: Duration::from_hours(24),
        }
    }
}
