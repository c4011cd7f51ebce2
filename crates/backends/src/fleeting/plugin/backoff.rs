//! When a plugin that exits, or does not start, may be started again.

use std::time::{Duration, Instant};

use super::settings::Pauses;
use crate::fleeting::group::CallErrorKind;

/// Pause after a configuration that the plugin refuses: only the operator ends that.
const REFUSED: Duration = Duration::from_mins(10);

/// What ended the plugin's last runs.
#[derive(Debug, Clone, Default)]
pub(super) struct Backoff {
    /// Ends in a row.
    failures: u32,
    /// Why the plugin does not run, and until when it is not started.
    waiting: Option<(CallErrorKind, String, Instant)>,
}

impl Backoff {
    /// A run ended by itself after `ran`. The first such end is followed by a start without a pause.
    pub(super) fn exited(&mut self, why: String, ran: Duration, pauses: &Pauses, now: Instant) {
        if ran >= pauses.forgiven_after {
            self.failures = 0;
        }
        let pause = if self.failures == 0 { Duration::ZERO } else { self.pause(pauses) };
        self.failures += 1;
        self.waiting = Some((CallErrorKind::NotStarted, why, now + pause));
    }

    /// A start failed.
    pub(super) fn not_started(&mut self, kind: CallErrorKind, why: String, pauses: &Pauses, now: Instant) {
        self.failures += 1;
        let pause = if kind == CallErrorKind::Configuration { REFUSED } else { self.pause(pauses) };
        self.waiting = Some((kind, why, now + pause));
    }

    fn pause(&self, pauses: &Pauses) -> Duration {
        let doubled = 1_u32.checked_shl(self.failures.saturating_sub(1)).unwrap_or(u32::MAX);
        pauses.first.saturating_mul(doubled).min(pauses.longest)
    }

    /// The operator has removed the cause: it may be started at once.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Why the plugin may not be started now, and how long that lasts.
    pub(super) fn waits(&self, now: Instant) -> Option<(CallErrorKind, &str, Duration)> {
        let (kind, why, until) = self.waiting.as_ref()?;
        let left = until.saturating_duration_since(now);
        (!left.is_zero()).then_some((*kind, why.as_str(), left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSES: Pauses = Pauses {
        first: Duration::from_secs(1),
        longest: Duration::from_secs(10),
        forgiven_after: Duration::from_mins(1),
    };

    fn left(backoff: &Backoff, now: Instant) -> u64 {
        backoff.waits(now).map_or(0, |(_, _, left)| left.as_secs())
    }

    #[test]
    fn pauses_grow_up_to_the_longest() {
        let (mut backoff, now) = (Backoff::default(), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..40 {
            backoff.not_started(CallErrorKind::NotStarted, "no".into(), &PAUSES, now);
            pauses.push(left(&backoff, now));
        }
        assert_eq!(pauses[..6], [1, 2, 4, 8, 10, 10]);
        assert_eq!(pauses[39], 10);
        assert_eq!(left(&backoff, now + Duration::from_secs(10)), 0, "it may be started then");
    }

    #[test]
    fn one_crash_is_followed_by_a_start_and_a_series_by_pauses() {
        let (mut backoff, now) = (Backoff::default(), Instant::now());
        let short = Duration::from_secs(5);
        let pauses = [(); 4].map(|()| {
            backoff.exited("crash".into(), short, &PAUSES, now);
            left(&backoff, now)
        });
        assert_eq!(pauses, [0, 1, 2, 4]);
        backoff.exited("crash".into(), Duration::from_mins(2), &PAUSES, now);
        assert_eq!(left(&backoff, now), 0, "a long run begins anew");
    }

    #[test]
    fn a_refused_configuration_waits_for_the_operator() {
        let (mut backoff, now) = (Backoff::default(), Instant::now());
        backoff.not_started(CallErrorKind::Configuration, "no zone".into(), &PAUSES, now);
        let (kind, why, left) = backoff.waits(now).unwrap();
        assert_eq!((kind, why, left), (CallErrorKind::Configuration, "no zone", REFUSED));
        backoff.forget();
        assert!(backoff.waits(now).is_none());
    }
}
