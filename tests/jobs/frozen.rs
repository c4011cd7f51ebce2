//! Processes that a test stops for inspection: anything that waits for one of them waits until it continues.

use std::path::{Path, PathBuf};

use greenroom_harness::place::{Place, SOON};
use greenroom_harness::processes::{Kind, Process, is_stopped, wait_for};
use rustix::process::Signal;

/// Processes that are stopped, and continue when this is dropped.
#[derive(Debug)]
pub struct Frozen(Vec<Process>);

impl Frozen {
    /// Stops the place's keeper and these processes, at a moment when none of them holds a lock that a call takes. Such
    /// a lock is held for a few instructions only, unless a test stops its holder just then.
    #[track_caller]
    pub fn with_keeper(place: &Place, others: impl IntoIterator<Item = Process>) -> Self {
        let processes = place.of_kind(Kind::Keeper).into_iter().chain(others);
        let frozen = Self(processes.collect());
        wait_for("a moment without a lock", SOON, || {
            frozen.signal(Signal::STOP);
            wait_for("their stop", SOON, || frozen.all_stand().then_some(()));
            let free = frozen.0.iter().all(|process| locks(process.pid, &place.state_dir).is_empty());
            if !free {
                frozen.signal(Signal::CONT);
            }
            free.then_some(())
        });
        frozen
    }

    /// True if each of their threads is stopped.
    fn all_stand(&self) -> bool {
        let stands = |process: &Process| {
            let mut threads =
                std::fs::read_dir(format!("/proc/{}/task", process.pid)).into_iter().flatten().flatten();
            threads.all(|thread| {
                thread.file_name().to_str().and_then(|id| id.parse().ok()).is_some_and(is_stopped)
            })
        };
        self.0.iter().all(|process| !process.is_alive() || stands(process))
    }

    fn signal(&self, signal: Signal) {
        for process in &self.0 {
            process.signal(signal);
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
    }
}

/// The locks of pools and attempts that a process holds; those that it holds for life lie elsewhere.
fn locks(pid: i32, state: &Path) -> Vec<PathBuf> {
    let shared = [state.join("pools"), state.join("attempts")];
    let open = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten();
    let locked = open.filter(|entry| {
        let facts = std::fs::read_to_string(entry.path()).unwrap_or_default();
        facts.lines().any(|line| line.starts_with("lock:"))
    });
    let files = locked.filter_map(|entry| {
        std::fs::read_link(format!("/proc/{pid}/fd/{}", entry.file_name().to_string_lossy())).ok()
    });
    files.filter(|file| shared.iter().any(|dir| file.starts_with(dir))).collect()
}
