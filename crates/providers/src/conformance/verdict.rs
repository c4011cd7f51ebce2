//! The verdict on a promise, which a kit reports and a test panics with, and the wait for what takes time.

use std::time::{Duration, Instant};

/// Between two looks: at first, and at most.
const POLL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckVerdict {
    Passed,
    /// Permitted, but it makes mistakes hard to find: what came.
    Warned(String),
    /// The deviation.
    Failed(String),
    /// Why it could not be made.
    Skipped(String),
}

impl CheckVerdict {
    /// The deviation, or the reason why the check could not be made; empty if it passed.
    pub fn text(&self) -> String {
        match self {
            Self::Passed => String::new(),
            Self::Warned(text) | Self::Failed(text) | Self::Skipped(text) => text.clone(),
        }
    }
}

/// The result of a check that may end early: `Err` is any verdict but `Passed`.
pub type Judged<T = ()> = Result<T, CheckVerdict>;

/// Ends a check with a failure.
pub fn failed<T>(came: impl Into<String>) -> Judged<T> {
    Err(CheckVerdict::Failed(came.into()))
}

/// Ends a check with the reason why it cannot be made.
pub fn skipped<T>(why: impl Into<String>) -> Judged<T> {
    Err(CheckVerdict::Skipped(why.into()))
}

/// Polls until a look finds something, or the time has passed. The pauses grow.
pub async fn poll<T>(within: Duration, look: impl AsyncFnMut() -> Judged<Option<T>>) -> Judged<Option<T>> {
    poll_with(POLL, within, look).await
}

/// Polls like [`poll`], with pauses that stay the same.
pub async fn poll_every<T>(
    pause: Duration,
    within: Duration,
    look: impl AsyncFnMut() -> Judged<Option<T>>,
) -> Judged<Option<T>> {
    poll_with((pause, pause), within, look).await
}

async fn poll_with<T>(
    (mut pause, longest): (Duration, Duration),
    within: Duration,
    mut look: impl AsyncFnMut() -> Judged<Option<T>>,
) -> Judged<Option<T>> {
    let begun = Instant::now();
    loop {
        let is_last = begun.elapsed() >= within;
        if let Some(found) = look().await? {
            return Ok(Some(found));
        }
        if is_last {
            return Ok(None);
        }
        tokio::time::sleep(pause.min(within.saturating_sub(begun.elapsed()))).await;
        pause = (pause * 3 / 2).min(longest);
    }
}
