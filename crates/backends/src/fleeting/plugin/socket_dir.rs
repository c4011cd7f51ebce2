//! The private directory of a plugin's socket, and the removal of those that killed processes left.

use std::fs::TryLockError;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs_err as fs;
use greenroom_providers::launch::random;
use greenroom_providers::process::{Process, boot_id, signal};
use greenroom_system::remove;
use rustix::process::Signal;

use crate::fleeting::holder::{LOCK, RECORD, Running};

/// Longest path, in bytes: a socket's path has at most 107, and plugins add a name of up to 17.
const LONGEST: usize = 90;
/// A directory without a lock that is older than this was left by a killed process.
const ABANDONED_AFTER: Duration = Duration::from_mins(2);

/// Makes a fresh directory below `base`, and clears what was left there.
pub(super) fn create(base: &Path) -> Result<PathBuf, String> {
    let wrong = |error: std::io::Error| error.to_string();
    fs::create_dir_all(base).map_err(wrong)?;
    check(base)?;
    sweep(base);
    let path = base.join(random().map_err(wrong)?);
    if path.as_os_str().len() > LONGEST {
        let why = "the path of the directory for plugins' sockets is too long for a socket";
        let most = LONGEST - 17;
        return Err(format!(
            "{why}: `{}` may have at most {most} bytes; use a shorter state directory",
            base.display()
        ));
    }
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(&path)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// Refuses a directory that another user could exchange sockets in.
fn check(base: &Path) -> Result<(), String> {
    let known = fs::symlink_metadata(base).map_err(|error| error.to_string())?;
    let own = rustix::process::geteuid().as_raw();
    if !known.is_dir() || known.uid() != own || known.permissions().mode() & 0o022 != 0 {
        let why = "must be a directory of this user's that only this user may write to";
        return Err(format!("`{}` {why}", base.display()));
    }
    Ok(())
}

fn sweep(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let is_ours = entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.len() == 16 && name.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let path = entry.path();
        if is_ours && is_abandoned(&path) {
            end_process(&path);
            drop(remove::tree(&path));
        }
    }
}

/// True if the process that holds the plugin is gone.
fn is_abandoned(path: &Path) -> bool {
    if let Ok(lock) = fs::File::open(path.join(LOCK)) {
        return !matches!(lock.file().try_lock_shared(), Err(TryLockError::WouldBlock));
    }
    let age = fs::metadata(path).and_then(|known| known.modified()).ok().and_then(|at| at.elapsed().ok());
    age.is_some_and(|age| age > ABANDONED_AFTER)
}

/// Kills the plugin that lost its holder, and its session.
fn end_process(path: &Path) {
    let Ok(record) = fs::read(path.join(RECORD)) else { return };
    let Ok(running) = serde_json::from_slice::<Running>(&record) else { return };
    let is_it = |process: &Process| process.started == running.started;
    if boot_id().is_ok_and(|boot| boot == running.boot)
        && Process::of(running.pid).as_ref().is_some_and(is_it)
    {
        end_session(running.session);
    }
}

/// Kills every process of a session.
pub(super) fn end_session(session: i32) {
    for process in Process::all().unwrap_or_default() {
        if process.session == session && !process.zombie {
            signal(&process, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_directory_is_private_and_abandoned_ones_go() {
        let base = tempfile::tempdir().unwrap();
        let (dead, held, young) = (
            base.path().join("0123456789abcdef"),
            base.path().join("1123456789abcdef"),
            base.path().join("2123456789abcdef"),
        );
        for dir in [&dead, &held, &young, &base.path().join("other")] {
            fs::create_dir(dir).unwrap();
        }
        fs::write(dead.join(LOCK), "").unwrap();
        fs::write(dead.join(RECORD), "no record").unwrap();
        let lock = fs::File::create(held.join(LOCK)).unwrap();
        lock.file().try_lock().unwrap();
        let fresh = create(base.path()).unwrap();
        assert_eq!(fs::metadata(&fresh).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(!dead.exists() && held.exists() && young.exists() && base.path().join("other").exists());
        // Not only closed: a process that another test has just forked holds the same lock until it runs its program.
        lock.file().unlock().unwrap();
        create(base.path()).unwrap();
        assert!(!held.exists() && fresh.exists());
    }

    #[test]
    fn a_directory_of_others_or_with_a_long_path_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let long = base.path().join("x".repeat(80));
        assert!(create(&long).unwrap_err().contains("too long for a socket"));
        let open = base.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(create(&open).unwrap_err().contains("only this user may write"));
        let link = base.path().join("link");
        std::os::unix::fs::symlink(base.path(), &link).unwrap();
        assert!(create(&link).is_err());
    }
}
