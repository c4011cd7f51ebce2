//! Writes the files: whole or not at all, nothing over another, with the earlier text kept.
//!
//! A directory is locked while something is written there. So there is one unfinished file at most, under a fixed name,
//! and the next call removes what a killed one has left.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Gid, RenameFlags, Uid, fchown, renameat_with};

/// A configuration may get a secret later, such as the URL of a webhook.
const MODE: u32 = 0o600;
/// Everyone may read a schema.
const GENERATED_MODE: u32 = 0o644;
const DIR_MODE: u32 = 0o755;
/// The highest number of earlier texts that are kept. If there are more, something else is wrong.
const MOST_BACKUPS: u32 = 1000;

/// The result of a [`change`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Changed {
    /// The earlier text is in this file.
    Done(PathBuf),
    /// The file has the new text already.
    Already,
    /// The file has a third text.
    Meanwhile,
}

/// Writes a new file; false if there is one already. Makes its directory.
pub(super) fn create(path: &Path, text: &str) -> io::Result<bool> {
    let dir = directory(path);
    DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir)?;
    let locked = lock(dir)?;
    let fresh = unfinished(path);
    write(&fresh, text, MODE, None)?;
    let placed = place(&fresh, path);
    if !matches!(placed, Ok(true)) {
        std::fs::remove_file(&fresh).ok();
    }
    locked.sync_all().ok();
    placed
}

/// Replaces the text of a file that has the text `before`. Owner and mode stay; a symbolic link stays one.
pub(super) fn change(path: &Path, before: &str, after: &str) -> io::Result<Changed> {
    let path = path.canonicalize()?;
    let locked = lock(directory(&path))?;
    let present = std::fs::read_to_string(&path)?;
    if present == after {
        return Ok(Changed::Already);
    }
    if present != before {
        return Ok(Changed::Meanwhile);
    }
    let like = std::fs::metadata(&path)?;
    let fresh = unfinished(&path);
    let backup = keep(&path, &fresh, &present, &like)?;
    let replaced =
        write(&fresh, after, like.mode(), Some(&like)).and_then(|()| std::fs::rename(&fresh, &path));
    if replaced.is_err() {
        std::fs::remove_file(&fresh).ok();
        std::fs::remove_file(&backup).ok();
    }
    replaced?;
    locked.sync_all().ok();
    Ok(Changed::Done(backup))
}

/// Writes a generated file; false if it has the text already. One that `may_replace` does not know stays.
pub(super) fn refresh(path: &Path, text: &str, may_replace: impl Fn(&Path) -> bool) -> io::Result<bool> {
    let locked = lock(directory(path))?;
    let present = std::fs::read_to_string(path).ok();
    if present.as_deref() == Some(text) || (path.symlink_metadata().is_ok() && !may_replace(path)) {
        return Ok(false);
    }
    let fresh = unfinished(path);
    write(&fresh, text, GENERATED_MODE, None)?;
    std::fs::rename(&fresh, path)?;
    locked.sync_all().ok();
    Ok(true)
}

/// Copies the present text to the first free name.
fn keep(path: &Path, fresh: &Path, text: &str, like: &Metadata) -> io::Result<PathBuf> {
    write(fresh, text, like.mode(), Some(like))?;
    for number in 1..=MOST_BACKUPS {
        let backup = beside(path, "", &format!(".before-greenroom-{number}"));
        match place(fresh, &backup) {
            Ok(true) => return Ok(backup),
            Ok(false) => {}
            Err(error) => {
                std::fs::remove_file(fresh).ok();
                return Err(error);
            }
        }
    }
    std::fs::remove_file(fresh).ok();
    Err(io::Error::other(format!("there are {MOST_BACKUPS} earlier texts of this file already")))
}

/// Renames a file to a free name; false if it is taken.
fn place(fresh: &Path, path: &Path) -> io::Result<bool> {
    match renameat_with(CWD, fresh, CWD, path, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::EXIST) => Ok(false),
        // File systems without this flag, such as NFS. The lock keeps other calls of `init` out.
        Err(rustix::io::Errno::INVAL) if path.symlink_metadata().is_ok() => Ok(false),
        Err(rustix::io::Errno::INVAL) => std::fs::rename(fresh, path).map(|()| true),
        Err(error) => Err(error.into()),
    }
}

/// Waits for other calls that write there.
fn lock(dir: &Path) -> io::Result<File> {
    let dir = File::open(dir)?;
    dir.lock()?;
    Ok(dir)
}

/// Writes a new file with this mode, and the owner of `like`, from the first byte on.
fn write(fresh: &Path, text: &str, mode: u32, like: Option<&Metadata>) -> io::Result<()> {
    // Left by a call that was killed.
    match std::fs::remove_file(fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(fresh)?;
    let written = (|| {
        if let Some(like) = like {
            fchown(&file, Some(Uid::from_raw(like.uid())), Some(Gid::from_raw(like.gid())))?;
        }
        file.set_permissions(Permissions::from_mode(mode & 0o7777))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    })();
    if written.is_err() {
        std::fs::remove_file(fresh).ok();
    }
    written
}

fn directory(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

fn unfinished(path: &Path) -> PathBuf {
    beside(path, ".", ".greenroom-init")
}

fn beside(path: &Path, before: &str, after: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{before}{name}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_new_file_is_never_written_over_another() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a/b/greenroom.toml");
        assert!(create(&path, "one").unwrap());
        assert!(!create(&path, "two").unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(names(path.parent().unwrap()), ["greenroom.toml"]);
    }

    #[test]
    fn a_changed_file_keeps_mode_owner_link_and_earlier_text() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("config.toml");
        let link = home.path().join("link");
        std::fs::write(&path, "one").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        // A call that was killed has left this.
        std::fs::write(home.path().join(".config.toml.greenroom-init"), "half").unwrap();
        let first = change(&link, "one", "two").unwrap();
        let backup = home.path().canonicalize().unwrap().join("config.toml.before-greenroom-1");
        assert_eq!(first, Changed::Done(backup.clone()));
        assert_eq!(
            (std::fs::read_to_string(&path).unwrap(), std::fs::read_to_string(&backup).unwrap()),
            ("two".into(), "one".into())
        );
        for file in [&path, &backup] {
            assert_eq!(std::fs::metadata(file).unwrap().mode() & 0o7777, 0o640);
        }
        assert_eq!(change(&path, "one", "two").unwrap(), Changed::Already);
        assert_eq!(change(&path, "one", "three").unwrap(), Changed::Meanwhile);
        assert!(matches!(change(&path, "two", "three").unwrap(), Changed::Done(_)));
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(
            names(home.path()),
            ["config.toml", "config.toml.before-greenroom-1", "config.toml.before-greenroom-2", "link"]
        );
    }
}
