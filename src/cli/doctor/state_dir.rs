//! The state directory: whether it can hold state, whether it was copied or moved, and what its file system can do.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use greenroom_manager::runner_host::{StateDir, StateDirError};
use greenroom_ports::finding::Finding;
use greenroom_ports::host_error::HostError;
use greenroom_ports::leadership::Identity;

use super::code;

/// Opens the directory without making or changing anything. `None`: nothing further can be checked.
pub(super) fn open(path: &Path) -> (Option<StateDir>, Vec<Finding>) {
    if !path.try_exists().unwrap_or(true) {
        let what = format!("the state directory `{}` does not exist yet", path.display());
        let remedy = "correct `state_dir`, unless this is a new installation: the first job or \
                      `greenroom keep` creates it";
        return (None, vec![code::STATE_DIR_MISSING.found(what, remedy)]);
    }
    match StateDir::open_for_repair(path) {
        Ok(state) => {
            let found = state.warning().map(ephemeral).into_iter().chain(owner_lost(&state)).collect();
            (Some(state), found)
        }
        // From a package or a checkout, and not used yet: the first use makes it private.
        Err(StateDirError::Readable { path, .. }) if !path.join("owner").exists() => (None, Vec::new()),
        Err(error) => (None, vec![refused(&error)]),
    }
}

fn ephemeral(warning: &str) -> Finding {
    code::STATE_DIR_EPHEMERAL
        .found(warning, "set `state_dir` to a directory on a persistent disk, or mount one there")
}

/// The finding about a lost file `owner`. The next call would make a new one, unless instances of the old owner may
/// exist.
fn owner_lost(state: &StateDir) -> Option<Finding> {
    let has = |name: &str| state.root().join(name).exists();
    (has("generations") && !has("owner"))
        .then(|| refused(&StateDirError::OwnerMissing { path: state.root().to_owned() }))
}

/// Splits the error's sentence into message and remedy.
fn refused(error: &StateDirError) -> Finding {
    match error {
        StateDirError::NotADirectory { path } => {
            let what = format!("the state directory `{}` is not a directory", path.display());
            code::STATE_DIR_UNUSABLE.found(what, "correct `state_dir`")
        }
        StateDirError::Foreign { path, found, own } => {
            let what = format!(
                "the state directory `{}` belongs to user {found}, but doctor runs as user {own}",
                path.display()
            );
            code::STATE_DIR_OWNER
                .found(what, format!("run `sudo -u '#{found}' greenroom doctor`, or set another `state_dir`"))
        }
        StateDirError::Readable { path, found } => {
            let what =
                format!("the state directory `{}` has mode {found:04o}, expected 0700", path.display());
            code::STATE_DIR_MODE.found(what, format!("run `chmod 700 {}`", path.display()))
        }
        StateDirError::Remote { path, kind } => {
            let what = format!(
                "the state directory `{}` is on {kind}, where file locks are not reliable",
                path.display()
            );
            code::STATE_DIR_REMOTE.found(what, "set `state_dir` to a directory on a local file system")
        }
        StateDirError::ReadOnly { path } => {
            let what = format!("the state directory `{}` is on a read-only file system", path.display());
            code::STATE_DIR_READ_ONLY.found(what, "mount it read-write, or set another `state_dir`")
        }
        StateDirError::OwnerMissing { path } => {
            let what = format!(
                "the file `{}` is missing, although instances have been launched",
                path.join("owner").display()
            );
            let remedy = "restore it from a backup. Without one, run `greenroom doctor --new-owner`, and terminate the old \
                          owner's instances at the provider";
            code::OWNER_MISSING.found(what, remedy)
        }
        StateDirError::File(error) => code::STATE_DIR_UNUSABLE
            .found(error.to_string(), "correct `state_dir`, or the permissions of its parent directories"),
    }
}

/// The owner, and whether the directory was copied or moved.
pub(super) fn identity(found: &Result<Identity, HostError>) -> Option<Finding> {
    match found {
        Ok(identity) => {
            let what = identity.moved.clone()?;
            let remedy = "run one of these commands: until then, nothing is launched, granted or terminated";
            Some(code::OWNER_MOVED.found(what, remedy))
        }
        Err(error) => {
            let remedy = "restore the file `owner` from a backup, or run `greenroom doctor --new-owner`";
            Some(code::OWNER_UNREADABLE.found(error.to_string(), remedy))
        }
    }
}

/// A journal of a busy pool and a day's attempts fit in several times.
const BYTES_WANTED: u64 = 100 << 20;
/// The inodes that should be free: each attempt makes a handful of files.
const FILES_WANTED: u64 = 1000;

/// Does everything that the state directory must support, and removes its files.
pub(super) fn check_file_system(dir: &Path) -> Vec<Finding> {
    let mut found = Vec::new();
    match write_and_lock(dir) {
        Ok(second) => found.extend(judge_lock(dir, second)),
        Err(error) => {
            let what = format!("cannot write a file in `{}`: {error}", dir.display());
            found.push(code::STATE_DIR_NOT_WRITABLE.found(what, write_remedy(&error)));
        }
    }
    found.extend(room(dir).and_then(|(bytes, files)| judge_room(dir, bytes, files)));
    found
}

fn write_remedy(error: &io::Error) -> &'static str {
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
    let fresh = dir.join(format!("{name}.new"));
    let placed = dir.join(name);
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

/// The bytes and inodes that are free for this user. `None`: unknown.
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
    use std::collections::BTreeSet;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use greenroom_core::ids::OwnerId;

    use super::*;

    /// A directory that was used, then changed.
    fn used(change: impl FnOnce(&Path)) -> Vec<Finding> {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("state");
        StateDir::open(&path).unwrap();
        change(&path);
        // Where tests run may be memory.
        open(&path).1.into_iter().filter(|f| f.code != "state-dir-ephemeral").collect()
    }

    fn codes(found: &[Finding]) -> Vec<&'static str> {
        found.iter().map(|f| f.code).collect()
    }

    fn loosen(path: &Path) {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn lose_owner(path: &Path) {
        fs::write(path.join("generations"), "0123abcd\n").unwrap();
        fs::remove_file(path.join("owner")).unwrap();
    }

    fn become_a_file(path: &Path) {
        fs::remove_dir_all(path).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn a_used_directory_is_fine_and_looking_makes_none() {
        assert_eq!(used(|_| ()), []);
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("state");
        assert_eq!(codes(&open(&path).1), ["state-dir-missing"]);
        assert!(!path.exists());
    }

    #[test]
    fn a_checkouts_folder_that_nobody_used_may_be_open() {
        let home = tempfile::tempdir().unwrap();
        loosen(home.path());
        assert_eq!(open(home.path()).1, []);
    }

    #[test]
    fn what_was_done_to_a_directory_is_said() {
        assert_eq!(codes(&used(loosen)), ["state-dir-mode"]);
        assert_eq!(codes(&used(lose_owner)), ["owner-missing"]);
        assert_eq!(codes(&used(become_a_file)), ["state-dir-unusable"]);
    }

    #[test]
    fn what_helps_stands_apart_from_what_is_so() {
        let path = "/s".into();
        let found = refused(&StateDirError::Foreign { path, found: 998, own: 0 });
        assert_eq!(
            found.to_string(),
            "error [state-dir-owner]: the state directory `/s` belongs to user 998, but doctor runs as user 0\n  \
             help: run `sudo -u '#998' greenroom doctor`, or set another `state_dir`"
        );
    }

    /// One finding of each code.
    pub(in crate::cli::doctor) fn provoked() -> Vec<Finding> {
        let path = || "/s".into();
        let mut all = [used(loosen), used(lose_owner), used(become_a_file)].concat();
        all.extend(open(Path::new("/no/such/state")).1);
        all.extend([
            refused(&StateDirError::Foreign { path: path(), found: 998, own: 0 }),
            refused(&StateDirError::Remote { path: path(), kind: "NFS" }),
            refused(&StateDirError::ReadOnly { path: path() }),
        ]);
        all.push(ephemeral("the state directory `/s` is in memory"));
        let owner = OwnerId::new("0123");
        let moved = Some("the state directory `/s` was copied or moved".to_owned());
        all.extend(identity(&Ok(Identity { owner, moved, generations: BTreeSet::new() })));
        all.extend(identity(&Err(HostError::Io { what: "`/s/owner` is damaged".into() })));
        all.extend(provoked_by_trials());
        all
    }

    #[test]
    fn a_usual_directory_passes_and_nothing_is_left_there() {
        let dir = tempfile::tempdir().unwrap();
        let found: Vec<Finding> =
            check_file_system(dir.path()).into_iter().filter(|f| f.code != "state-dir-space").collect();
        assert_eq!(found, []);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_that_takes_no_file_is_an_error_with_its_cause() {
        // No user, not even root, can create files in procfs.
        let found = check_file_system(Path::new("/proc/self"));
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
    fn provoked_by_trials() -> Vec<Finding> {
        let dir = Path::new("/s");
        let mut all = check_file_system(Path::new("/proc/self"));
        all.extend(judge_lock(dir, true));
        all.extend(judge_room(dir, 0, None));
        all
    }
}
