//! How many lines of a plugin's log are passed on.

use std::time::{Duration, Instant};

/// Lines at a time.
const BURST: u32 = 200;
/// A further line is passed on for each of these.
const INTERVAL: Duration = Duration::from_millis(100);

/// Tokens that lines use up and time brings back.
#[derive(Debug)]
pub(super) struct Rate {
    tokens: u32,
    /// When the last token came back.
    at: Option<Instant>,
    left_out: u64,
}

impl Default for Rate {
    fn default() -> Self {
        Self { tokens: BURST, at: None, left_out: 0 }
    }
}

impl Rate {
    /// `None`: the line is left out. Otherwise how many lines were left out before this one.
    pub(super) fn take(&mut self, now: Instant) -> Option<u64> {
        let at = *self.at.get_or_insert(now);
        let came = now.saturating_duration_since(at).as_nanos() / INTERVAL.as_nanos();
        let came = u32::try_from(came).unwrap_or(BURST).min(BURST);
        if came > 0 {
            self.tokens = (self.tokens + came).min(BURST);
            self.at = Some(if self.tokens == BURST { now } else { at + INTERVAL * came });
        }
        if self.tokens == 0 {
            self.left_out += 1;
            return None;
        }
        self.tokens -= 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_counted() {
        let (mut rate, begun) = (Rate::default(), Instant::now());
        let passed = (0..40_000).filter(|_| rate.take(begun).is_some()).count();
        assert_eq!(passed, BURST as usize);
        let later = begun + INTERVAL * 3;
        let passed: Vec<_> = (0..10).filter_map(|_| rate.take(later)).collect();
        assert_eq!(passed, [40_000 - u64::from(BURST), 0, 0]);
        let quiet = later + Duration::from_hours(1);
        assert_eq!(
            (0..1000).filter(|_| rate.take(quiet).is_some()).count(),
            BURST as usize,
            "no more than a burst"
        );
    }
}
