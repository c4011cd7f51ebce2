//! How long this host waits for what.

use std::time::Duration;

/// Bounds and intervals; tests shorten them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Times {
    /// A call waits this long for a lease that the keeper holds. Default 10 s.
    pub lease_patience: Duration,
    /// A call that waits or runs writes the time into its lease this often. Default 60 s.
    pub lease_touched: Duration,
    /// The keeper looks this often whether the state directory is still its own. Default 5 s.
    pub replaced_look: Duration,
    /// A keeper that was started must be on its own by then. Default 3 s.
    pub keeper_start: Duration,
    /// What killed calls left half-made is removed at this age. Default 1 h.
    pub half_made_kept: Duration,
    /// Attempts that no `prepare` ever came for go at this age. Default 1 day.
    pub unprepared_kept: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            lease_patience: Duration::from_secs(10),
            lease_touched: Duration::from_mins(1),
            replaced_look: Duration::from_secs(5),
            keeper_start: Duration::from_secs(3),
            half_made_kept: Duration::from_hours(1),
            unprepared_kept: Duration::from_hours(24),
        }
    }
}
