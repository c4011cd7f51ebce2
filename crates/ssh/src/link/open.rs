//! Counts links without contacting them: by the locks that the kernel reports as held.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The inodes of all files with a lock of `flock`.
#[derive(Debug, Default)]
pub struct HeldLocks(BTreeSet<u64>);

impl HeldLocks {
    /// As the kernel reports them now; none if it does not.
    pub fn now() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/locks").unwrap_or_default())
    }

    /// A line is `1: FLOCK  ADVISORY  WRITE 4711 08:01:393232 0 EOF`; one that waits has `->` after the number.
    fn parse(text: &str) -> Self {
        let inode = |line: &str| {
            let mut words = line.split_whitespace().skip(1);
            let (kind, _, mode) = (words.next()?, words.next()?, words.next()?);
            let place = words.nth(1).filter(|_| kind == "FLOCK" && mode == "WRITE")?;
            place.rsplit(':').next()?.parse().ok()
        };
        Self(text.lines().filter_map(inode).collect())
    }

    /// How many links are open below the directory of a pool's links. The kernel names file systems otherwise than `stat`
    /// does on some of them, so an inode alone identifies a lock.
    pub fn links(&self, dir: &Path) -> u64 {
        let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten();
        let is_lock = |entry: &std::fs::DirEntry| entry.path().extension().is_some_and(|name| name == "lock");
        let is_held =
            |entry: &std::fs::DirEntry| entry.metadata().is_ok_and(|found| self.0.contains(&found.ino()));
        let in_folder = |folder: std::fs::DirEntry| {
            entries(&folder.path()).filter(|entry| is_lock(entry) && is_held(entry)).count()
        };
        entries(dir).map(in_folder).map(|count| u64::try_from(count).unwrap_or(u64::MAX)).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn the_lines_of_the_kernel_are_read() {
        let text = "1: FLOCK  ADVISORY  WRITE 4711 08:01:393232 0 EOF\n2: POSIX  ADVISORY  READ 1 08:01:77 128 128\n\
                    3: FLOCK  ADVISORY  READ 12 08:01:78 0 EOF\n3: -> FLOCK  ADVISORY  WRITE 13 08:01:79 0 EOF\nrubbish\n";
        assert_eq!(HeldLocks::parse(text).0, BTreeSet::from([393_232]));
    }

    #[test]
    fn a_link_counts_as_long_as_its_lock_is_held() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("vm-1");
        fs::create_dir(&dir).unwrap();
        let held = File::create(dir.join("0.lock")).unwrap();
        File::create(dir.join("1.lock")).unwrap();
        held.lock().unwrap();
        assert_eq!(HeldLocks::now().links(home.path()), 1);
        drop(held);
        // RACE: a process that another test is starting has the lock, too, until it is a program.
        let until = Instant::now() + Duration::from_secs(10);
        while HeldLocks::now().links(home.path()) != 0 {
            assert!(Instant::now() < until, "the lock is held by nothing");
            std::thread::yield_now();
        }
        assert_eq!(HeldLocks::now().links(&home.path().join("none")), 0);
    }
}
