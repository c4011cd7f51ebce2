//! Checks the file system of the state directory: writes, syncs, renames, locks, and reads the free space.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use greenroom_ports::finding::Finding;

use super::code;

/// A journal of a busy pool and a day's attempts fit in several times.
const BYTES_WANTED: u64 = 100 << 20;
/// Each attempt makes a handful of files.
const FILES_WANTED: u64 = 1000;

/// Does everything that the state directory must support, and removes its files.
pub(super) fn check(dir: &Path) -> Vec<Finding> {
    let mut found = Vec::new();
    match write_and_lock(dir) {
        Ok(second) => found.extend(judge_lock(dir, second)),
        Err(error) => {
            let what = format!("cannot write a file in `{}`: {error}", dir.display());
            found.push(code::STATE_DIR_NOT_WRITABLE.found(what, remedy(&error)));
        }
    }
    found.extend(room(dir).and_then(|(bytes, files)| judge_room(dir, bytes, files)));
    found
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free space on its file system",
        io::ErrorKind::ReadOnlyFilesystem => "mount its file system read-write",
        _ => "run Greenroom as the user that owns it, or set another `state_dir`",
    }
}

/// Writes a file, renames it, and locks it twice; true if the second lock was given, too.
fn write_and_lock(dir: &Path) -> io::Result<bool> {
    // All readers of the directory skip dot-files, also if this process dies here.
    let name = format!(".doctor.{}", std::process::id());
    let (fresh, placed) = (dir.join(format!("{name}.new")), dir.join(name));
    let tried = (|| {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
        file.write_all(b"tried by doctor\n")?;
        file.sync_all()?;
        std::fs::rename(&fresh, &placed)?;
        let first = File::open(&placed)?;
        first.lock()?;
        match File::open(&placed)?.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    })();
    for path in [&fresh, &placed] {
        // Only one of the two exists.
        std::fs::remove_file(path).ok();
    }
    tried
}

fn judge_lock(dir: &Path, was_given_twice: bool) -> Option<Finding> {
    was_given_twice.then(|| {
        let what =
            format!("two file handles got the same lock in `{}`: state is not safe there", dir.display());
        code::STATE_DIR_LOCKS.found(what, "set `state_dir` to a directory on a local file system")
    })
}

/// Free bytes and inodes for this user. `None`: unknown.
fn room(dir: &Path) -> Option<(u64, Option<u64>)> {
    let space = rustix::fs::statvfs(dir).ok()?;
    // File systems that allocate inodes dynamically report none.
    let files = (space.f_files > 0).then_some(space.f_favail);
    Some((space.f_bavail.saturating_mul(space.f_frsize), files))
}

fn judge_room(dir: &Path, bytes: u64, files: Option<u64>) -> Option<Finding> {
    let left = match files {
        _ if bytes < BYTES_WANTED => format!("{} MiB", bytes >> 20),
        Some(files) if files < FILES_WANTED => format!("{files} inodes"),
        _ => return None,
    };
    let what = format!("the file system of `{}` has {left} left", dir.display());
    Some(code::STATE_DIR_SPACE.found(what, "free space, or lower `history_days`"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn a_usual_directory_passes_and_nothing_is_left_there() {
        let dir = tempfile::tempdir().unwrap();
        let found: Vec<Finding> =
            check(dir.path()).into_iter().filter(|f| f.code != "state-dir-space").collect();
        assert_eq!(found, []);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_that_takes_no_file_is_an_error_with_its_cause() {
        // No user, not even root, can create files in procfs.
        let found = check(Path::new("/proc/self"));
        assert_eq!(found[0].code, "state-dir-not-writable");
        assert!(
            found[0].message.starts_with("cannot write a file in `/proc/self`: "),
            "{}",
            found[0].message
        );
    }

    #[test]
    fn little_space_is_reported_in_its_own_unit() {
        let dir = Path::new("/s");
        let few = judge_room(dir, u64::MAX, Some(7)).unwrap();
        assert_eq!(few.message, "the file system of `/s` has 7 inodes left");
        let full = judge_room(dir, 3 << 20, None).unwrap();
        assert_eq!(full.message, "the file system of `/s` has 3 MiB left");
        assert_eq!(judge_room(dir, BYTES_WANTED, None), None);
    }

    /// One finding of each code.
    pub(in crate::cli::doctor) fn provoked() -> Vec<Finding> {
        let dir = Path::new("/s");
        let mut all = check(Path::new("/proc/self"));
        all.extend(judge_lock(dir, true));
        all.extend(judge_room(dir, 0, None));
        all
    }
}
