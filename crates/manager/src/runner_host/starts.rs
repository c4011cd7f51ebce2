//! How often keepers started, and how often one had not exited by itself: the file `keeper-starts`.
//!
//! Only told, for metrics and notices: what cannot be read or written counts from the beginning.

use std::path::Path;

use greenroom_core::time::Stamp;
use serde::{Deserialize, Serialize};

use super::files;

const FILE: &str = "keeper-starts";
/// How many crashes are remembered with their time.
const RECENT: usize = 16;

/// What the file has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperStarts {
    pub starts: u64,
    /// Starts whose predecessor had not exited by itself: it was killed, or it crashed. A reboot does not count.
    pub crashes: u64,
    /// When the last crashes were found, oldest first.
    #[serde(default)]
    pub recent: Vec<Stamp>,
    /// The keeper that runs, unless it was killed.
    #[serde(default)]
    running: Option<Running>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Running {
    pid: u32,
    since: Stamp,
}

impl KeeperStarts {
    /// Reads the file of a state directory.
    pub fn read(root: &Path) -> Self {
        let text = files::read(&root.join(FILE)).ok().flatten().unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    fn begin(&mut self, pid: u32, now: Stamp) {
        match self.running {
            // It re-executed, or took its lock again.
            Some(earlier) if earlier.pid == pid && earlier.since.boot == now.boot => return,
            Some(killed) if killed.since.boot == now.boot => {
                self.crashes = self.crashes.saturating_add(1);
                self.recent.push(now);
                let surplus = self.recent.len().saturating_sub(RECENT);
                self.recent.drain(..surplus);
            }
            Some(_) | None => {}
        }
        self.starts = self.starts.saturating_add(1);
        self.running = Some(Running { pid, since: now });
    }
}

/// Notes that this process is the keeper now. It holds the keeper's lock.
pub(super) fn begin(root: &Path, now: Stamp) {
    let mut starts = KeeperStarts::read(root);
    starts.begin(std::process::id(), now);
    write(root, &starts);
}

/// Notes that the keeper exits by itself. It still holds the lock.
pub(super) fn end(root: &Path) {
    let starts = KeeperStarts { running: None, ..KeeperStarts::read(root) };
    write(root, &starts);
}

fn write(root: &Path, starts: &KeeperStarts) {
    if let Ok(text) = serde_json::to_vec(starts)
        && let Err(error) = files::replace_alone(root, FILE, &text)
    {
        tracing::warn!("cannot write `{}`: {error}", root.join(FILE).display());
    }
}

#[cfg(test)]
mod tests {
    use greenroom_core::notation::NOW;
    use greenroom_core::time::BootId;

    use super::*;

    #[test]
    fn only_a_keeper_that_did_not_exit_by_itself_counts_as_crashed() {
        let mut starts = KeeperStarts::default();
        starts.begin(1, NOW);
        starts.begin(1, NOW);
        assert_eq!((starts.starts, starts.crashes), (1, 0), "the same process");
        starts.running = None;
        starts.begin(2, NOW);
        assert_eq!((starts.starts, starts.crashes), (2, 0), "after an exit");
        starts.begin(3, NOW);
        assert_eq!((starts.starts, starts.crashes, starts.recent.len()), (3, 1, 1), "after a kill");
        starts.begin(4, Stamp { boot: BootId(99), ..NOW });
        assert_eq!((starts.starts, starts.crashes), (4, 1), "after a reboot");
    }

    #[test]
    fn the_file_holds_it_and_rubbish_counts_from_the_beginning() {
        let home = tempfile::tempdir().unwrap();
        begin(home.path(), NOW);
        end(home.path());
        begin(home.path(), NOW);
        assert_eq!(KeeperStarts::read(home.path()).starts, 2);
        std::fs::write(home.path().join(FILE), "{").unwrap();
        assert_eq!(KeeperStarts::read(home.path()), KeeperStarts::default());
        begin(home.path(), NOW);
        assert_eq!(KeeperStarts::read(home.path()).starts, 1);
    }
}
