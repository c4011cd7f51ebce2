//! Time limits as strict as written on an idle machine, and fair on a busy one.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Processor time of one piece of work. Shorter ones would fit into one time slice, and meet no competitor.
const PIECE: Duration = Duration::from_millis(10);
/// The time between two pieces, so that the measurement itself costs little.
const PAUSE: Duration = Duration::from_millis(90);
/// The lowest number of pieces that prove anything.
const FEWEST: usize = 5;
/// No limit is stretched further, so that every check can fail.
const MOST: f64 = 10.0;

/// The factor by which the load slows down work on this machine, from [`watch`](Self::watch) on: measured by the time
/// that work waits for a processor.
#[derive(Debug)]
pub struct Pace {
    /// Wall time of each piece.
    took: Arc<Mutex<Vec<Duration>>>,
    over: Arc<AtomicBool>,
}

impl Pace {
    /// Measures beside the test until this value is dropped.
    pub fn watch() -> Self {
        let pace = Self { took: Arc::default(), over: Arc::default() };
        let took = Arc::clone(&pace.took);
        let over = Arc::clone(&pace.over);
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                note(&took);
                std::thread::sleep(PAUSE);
            }
        });
        pace
    }

    /// The limit on this machine during this time: scaled by the mean of all pieces, and never below the limit itself.
    pub fn stretched(&self, bound: Duration) -> Duration {
        while note(&self.took) < FEWEST {}
        let took = self.took.lock().unwrap_or_else(PoisonError::into_inner);
        let pieces = u32::try_from(took.len()).unwrap_or(u32::MAX);
        let slower = took.iter().sum::<Duration>().div_duration_f64(PIECE * pieces);
        bound.mul_f64(slower.clamp(1.0, MOST))
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Works for one piece and records its duration.
fn note(pieces: &Mutex<Vec<Duration>>) -> usize {
    let used = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default();
    let begun = Instant::now();
    let before = used();
    while used().saturating_sub(before) < PIECE {
        std::hint::spin_loop();
    }
    let took = begun.elapsed();
    let mut pieces = pieces.lock().unwrap_or_else(PoisonError::into_inner);
    pieces.push(took);
    pieces.len()
}

// Waits until no process runs for a directory.

/// A keeper exits by itself within its interval; an instance whose directory is gone, within 5 s.
const WITHIN: Duration = Duration::from_secs(20);

/// Waits until no process has the directory in its arguments; fails the test otherwise. A directory that is removed
/// while a keeper works in it may reappear with that keeper's files.
pub fn await_settled(directory: &Path) {
    let until = Instant::now() + WITHIN;
    loop {
        let left = processes(directory);
        if left.is_empty() {
            return;
        }
        if Instant::now() > until {
            // A failed test has its own message already.
            assert!(std::thread::panicking(), "still running: {left:?}");
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The command lines of the processes that are still running.
fn processes(directory: &Path) -> Vec<String> {
    let needle = directory.as_os_str().as_bytes();
    let entries = std::fs::read_dir("/proc").expect("/proc can be read").flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let ours = lines.filter(|line| line.windows(needle.len()).any(|window| window == needle));
    ours.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).collect()
}
