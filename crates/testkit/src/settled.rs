//! Waits until no process runs for a directory.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

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
