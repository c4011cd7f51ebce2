//! Removes a dead attempt's TMPDIR: its scripts and job response contain secrets.
//!
//! The path comes from a file and lies in a directory that other users may write to (`/tmp`). So a directory is emptied
//! only if device, inode and owner match the record. Links are not followed, and mounts are not crossed.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, statat, unlinkat,
};
use rustix::io::Errno;

use super::files;
use super::job_file::Tmpdir;

/// Maximum depth, more than the runner needs; each level holds a descriptor.
const DEEPEST: usize = 64;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes the directory and its content; does nothing if it is not the recorded one.
pub(super) fn clear(tmpdir: &Tmpdir) -> io::Result<()> {
    let (Some(parent), Some(name)) = (tmpdir.path.parent(), tmpdir.path.file_name()) else { return Ok(()) };
    let parent =
        match rustix::fs::open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(parent) => parent,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
    let dir = match openat(&parent, name, DIRECTORY, Mode::empty()) {
        Ok(dir) => dir,
        // Gone, or replaced by something else.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let found = fstat(&dir)?;
    let same = found.st_dev == tmpdir.device && found.st_ino == tmpdir.inode && found.st_uid == tmpdir.owner;
    if !same || tmpdir.owner != files::own_uid() {
        return Ok(());
    }
    empty(&dir, DEEPEST)?;
    // RACE: if the name now belongs to something else, at most an empty directory is removed.
    let now = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if now.st_ino == found.st_ino && now.st_dev == found.st_dev {
        unlinkat(&parent, name, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

/// Removes everything it can, and returns the first error.
fn empty(dir: &OwnedFd, deeper: usize) -> io::Result<()> {
    let mut first = Ok(());
    for (name, kind) in entries(dir)? {
        let removed = match kind {
            FileType::Directory | FileType::Unknown => remove(dir, &name, deeper),
            _ => unlinkat(dir, &name, AtFlags::empty()).map_err(io::Error::from),
        };
        if first.is_ok() {
            first = removed;
        }
    }
    first
}

fn entries(dir: &OwnedFd) -> io::Result<Vec<(CString, FileType)>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            found.push((entry.file_name().to_owned(), entry.file_type()));
        }
    }
    Ok(found)
}

fn remove(dir: &OwnedFd, name: &CString, deeper: usize) -> io::Result<()> {
    let child = match enter(dir, name) {
        Ok(child) => child,
        // A link or a file is removed; the target of a link is not.
        Err(Errno::NOTDIR | Errno::LOOP) => return Ok(unlinkat(dir, name, AtFlags::empty())?),
        Err(error) => return Err(error.into()),
    };
    if deeper == 0 {
        return Err(io::Error::other(format!("nested deeper than {DEEPEST} directories")));
    }
    empty(&child, deeper - 1)?;
    Ok(unlinkat(dir, name, AtFlags::REMOVEDIR)?)
}

/// Opens a subdirectory, unless something is mounted on it.
fn enter(dir: &OwnedFd, name: &CString) -> Result<OwnedFd, Errno> {
    let within = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    match openat2(dir.as_fd(), name, DIRECTORY, Mode::empty(), within) {
        // An old kernel, or a filter that does not support the call.
        Err(Errno::NOSYS | Errno::PERM) => {}
        opened => return opened,
    }
    let child = openat(dir, name, DIRECTORY, Mode::empty())?;
    if fstat(&child)?.st_dev == fstat(dir)?.st_dev { Ok(child) } else { Err(Errno::XDEV) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

    /// A TMPDIR as the runner leaves it, and a directory beside it that must stay.
    fn scene() -> (tempfile::TempDir, Tmpdir) {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("custom-executor1");
        fs::create_dir_all(dir.join("script1/deeper")).unwrap();
        fs::write(dir.join("script1/script"), "secret").unwrap();
        fs::write(dir.join("response.json"), "secret").unwrap();
        fs::create_dir(home.path().join("treasure")).unwrap();
        fs::write(home.path().join("treasure/gold"), "keep").unwrap();
        let tmpdir = Tmpdir::at(&dir).unwrap();
        (home, tmpdir)
    }

    fn treasure_is_safe(home: &Path) {
        assert_eq!(fs::read_to_string(home.join("treasure/gold")).unwrap(), "keep");
    }

    #[test]
    fn links_go_and_what_they_point_to_stays() {
        let (home, tmpdir) = scene();
        symlink(home.path().join("treasure"), tmpdir.path.join("link")).unwrap();
        symlink(home.path().join("treasure/gold"), tmpdir.path.join("script1/link")).unwrap();
        clear(&tmpdir).unwrap();
        assert!(!tmpdir.path.exists());
        treasure_is_safe(home.path());
        clear(&tmpdir).unwrap();
    }

    #[test]
    fn a_link_or_another_directory_by_the_name_is_left_alone() {
        let (home, tmpdir) = scene();
        fs::rename(&tmpdir.path, home.path().join("aside")).unwrap();
        symlink(home.path().join("treasure"), &tmpdir.path).unwrap();
        clear(&tmpdir).unwrap();
        treasure_is_safe(home.path());
        fs::remove_file(&tmpdir.path).unwrap();
        fs::create_dir(&tmpdir.path).unwrap();
        fs::write(tmpdir.path.join("file"), "").unwrap();
        clear(&tmpdir).unwrap();
        assert!(tmpdir.path.join("file").exists(), "another inode");
    }

    #[test]
    fn another_owner_is_left_alone() {
        let (_home, mut tmpdir) = scene();
        tmpdir.owner += 1;
        clear(&tmpdir).unwrap();
        assert!(tmpdir.path.join("response.json").exists());
    }

    #[test]
    fn a_tree_too_deep_is_reported_and_the_rest_goes() {
        let (_home, tmpdir) = scene();
        let mut deep = tmpdir.path.clone();
        for _ in 0..DEEPEST + 3 {
            deep.push("d");
        }
        fs::create_dir_all(&deep).unwrap();
        assert!(clear(&tmpdir).is_err());
        assert!(!tmpdir.path.join("response.json").exists());
    }
}
