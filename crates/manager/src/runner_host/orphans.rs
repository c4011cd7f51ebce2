//! Removes what dead attempts left: builds on the runner host, and TMPDIRs.
//!
//! Where instances use the runner host's files, `builds/ATTEMPT` in the state directory has a job's builds. They go with
//! their attempt. A removal that was interrupted or failed leaves builds without an attempt, which a later search finds.
//!
//! A TMPDIR has scripts and a job response, which contain secrets. Its path comes from a file and lies in a directory that other
//! users may write to (`/tmp`). So a directory is emptied only if device, inode and owner match the record. What is in it is removed
//! as any job's files are.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::{fs, io};

use greenroom_core::ids::AttemptName;
use greenroom_core::time::Stamp;
use greenroom_ports::clock::Clock;
use greenroom_ports::host_error::HostError;
use greenroom_system::remove;
use rustix::fs::{AtFlags, Mode, OFlags, fstat, openat, statat, unlinkat};
use rustix::io::Errno;

use super::attempt_files::Tmpdir;
use super::files::{self, cannot};
use super::host::LocalHost;

/// The directory of all builds.
const BUILDS: &str = "builds";

impl LocalHost {
    /// The builds whose attempt is gone; searched for once in each `half_made_retention`.
    pub(super) fn search_builds(&self) -> BTreeSet<AttemptName> {
        let now = self.clock.now();
        let is_due = |at: Stamp| now.since(at) >= self.times.half_made_retention;
        if !self.searched_builds.get().is_none_or(is_due) {
            return BTreeSet::new();
        }
        self.searched_builds.set(Some(now));
        self.orphaned_builds().unwrap_or_else(|error| {
            tracing::warn!("{error}");
            BTreeSet::new()
        })
    }

    fn orphaned_builds(&self) -> Result<BTreeSet<AttemptName>, HostError> {
        let builds = self.state.root().join(BUILDS);
        let failed = |e: io::Error| cannot("list", &builds, e);
        let mut orphaned = BTreeSet::new();
        for entry in files::missing_is_none(fs::read_dir(&builds)).map_err(failed)?.into_iter().flatten() {
            let name = entry.map_err(failed)?.file_name();
            let Some(Ok(name)) = name.to_str().map(AttemptName::parse) else { continue };
            // RACE: builds come after their attempt, so in this order the attempt of all that are in use is found.
            if !self.state.attempt(&name)?.try_exists().map_err(failed)? {
                orphaned.insert(name);
            }
        }
        Ok(orphaned)
    }

    /// An attempt's builds, if instances share the runner host's files.
    pub(super) fn builds(&self, name: &AttemptName) -> PathBuf {
        self.state.root().join(BUILDS).join(name.as_str())
    }
}

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
