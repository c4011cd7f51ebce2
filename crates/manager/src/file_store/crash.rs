//! Places where a test kills the process.
//!
//! Compiled to nothing without the feature `crash-points`.

/// Kills this process (SIGKILL, so nothing is unwound or flushed) if `GREENROOM_CRASH` is `NAME` or `NAME:COUNT` and
/// this is the `COUNT`th time (from 1) that the place is passed.
#[cfg(feature = "crash-points")]
pub(super) fn crash_point(name: &str) {
    use std::sync::atomic::{AtomicU32, Ordering};

    static PASSED: AtomicU32 = AtomicU32::new(0);
    let Ok(order) = std::env::var("GREENROOM_CRASH") else { return };
    let (place, count) = order.split_once(':').unwrap_or((&order, "1"));
    if place != name {
        return;
    }
    if count.parse() == Ok(PASSED.fetch_add(1, Ordering::Relaxed) + 1) {
        let dead = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        unreachable!("SIGKILL cannot be survived: {dead:?}");
    }
}

/// Without the feature there is nothing to do.
#[cfg(not(feature = "crash-points"))]
pub(super) fn crash_point(_name: &str) {}
