//! Removes a dead attempt's TMPDIR: its scripts and job response contain secrets.
//!
//! The path comes from a file and lies in a directory that other users may write to (`/tmp`). So a directory is emptied
//! only if device, inode and owner match the record. What is in it is removed as any job's files are.

use std::io;

use greenroom_system::remove;
use rustix::fs::{AtFlags, Mode, OFlags, fstat, openat, statat, unlinkat};
use rustix::io::Errno;

use super::files;
use super::job_file::Tmpdir;

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
    remove::content(&dir)?;
    // RACE: if the name now belongs to something else, at most an empty directory is removed.
    let now = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if now.st_ino == found.st_ino && now.st_dev == found.st_dev {
        unlinkat(&parent, name, AtFlags::REMOVEDIR)?;
    }
    Ok(())
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
}
