//! The source of time.

use crate::core::time::Stamp;

/// Read at the edge and passed inwards: nothing in `core` can read a clock.
pub trait Clock {
    fn now(&self) -> Stamp;
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::Clock;
    use crate::core::time::{BootId, ManagerId, Stamp};

    /// Time passes only where a test advances it.
    #[derive(Debug, Default)]
    pub(crate) struct ManualClock(Cell<u64>);

    impl ManualClock {
        pub(crate) fn pass(&self, time: Duration) {
            self.0.set(self.0.get() + u64::try_from(time.as_millis()).unwrap());
        }
    }

    impl Clock for ManualClock {
        fn now(&self) -> Stamp {
            let ms = self.0.get();
            Stamp {
                wall_ms: i64::try_from(ms).unwrap(),
                manager: ManagerId(1),
                boot: BootId(1),
                uptime_ms: ms,
            }
        }
    }
}
