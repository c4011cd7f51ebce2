//! Looks again and again, for a limited time.

use std::time::{Duration, Instant};

use super::check::Judged;

/// Between two looks: at first, and at most.
const POLL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Polls until a look finds something, or the time has passed.
pub async fn poll<T>(
    within: Duration,
    mut look: impl AsyncFnMut() -> Judged<Option<T>>,
) -> Judged<Option<T>> {
    let begun = Instant::now();
    let mut pause = POLL.0;
    loop {
        let is_last = begun.elapsed() >= within;
        if let Some(found) = look().await? {
            return Ok(Some(found));
        }
        if is_last {
            return Ok(None);
        }
        tokio::time::sleep(pause.min(within.saturating_sub(begun.elapsed()))).await;
        pause = (pause * 3 / 2).min(POLL.1);
    }
}
