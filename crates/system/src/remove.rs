//! Removes what jobs have left in files: a [`tree`], or its [`content`].
//!
//! A job's tree may be read-only, as Go's module cache is, or deep, or full of links, and a process may still be
//! changing it. So only its top is found by a path. Everything below is opened relative to its parent: links are removed
//! and not followed, mounts are not crossed, and directories are made writable by their descriptors.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::fs::{chmod, fchmod, fstat, open, openat, openat2, renameat, unlinkat};
use rustix::io::Errno;
use rustix::path::Arg;

/// Levels that are open at the same time. Deeper directories are moved to the top, and removed from there.
const LEVELS: usize = 64;
/// Number of such moves before the tree counts as one that a process keeps deepening.
const ROUNDS: usize = 1000;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// A directory that is only named: possible without any permission on it.
const NAMED: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes a file, a link or a whole tree. A missing path is not an error.
pub fn tree(path: &Path) -> io::Result<()> {
    match try_tree(path) {
        // RACE: another process removes it at the same time.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(())
        }
        Err(error) => {
            Err(io::Error::new(error.kind(), format!("cannot remove `{}`: {error}", path.display())))
        }
        Ok(()) => Ok(()),
    }
}

fn try_tree(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = if parent == Path::new("") { Path::new(".") } else { parent };
    let parent = open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    match enter(&parent, name) {
        Ok(top) => {
            content(&top)?;
            Ok(unlinkat(&parent, name, AtFlags::REMOVEDIR)?)
        }
        Err(Errno::NOTDIR | Errno::LOOP) => Ok(unlinkat(&parent, name, AtFlags::empty())?),
        Err(error) => Err(error.into()),
    }
}

/// Removes everything it can from a directory, and returns the first error.
pub fn content(top: &OwnedFd) -> io::Result<()> {
    make_writable(top);
    let mut first = Ok(());
    for _ in 0..ROUNDS {
        let mut round = Round { top, moved: 0 };
        let emptied = round.empty(top, LEVELS);
        first = first.and(emptied);
        if round.moved == 0 {
            return first;
        }
    }
    first.and(Err(io::Error::other("directories are nested too deep")))
}

/// One walk through a tree.
struct Round<'a> {
    top: &'a OwnedFd,
    /// Directories that were moved to the top.
    moved: usize,
}

impl Round<'_> {
    fn empty(&mut self, dir: &OwnedFd, levels: usize) -> io::Result<()> {
        let mut first = Ok(());
        for (name, kind) in entries(dir)? {
            let removed = match kind {
                FileType::Directory | FileType::Unknown => self.remove(dir, &name, levels),
                _ => Ok(unlinkat(dir, &name, AtFlags::empty())?),
            };
            match removed {
                Err(error) if error.kind() != io::ErrorKind::NotFound => first = first.and(Err(error)),
                _ => {}
            }
        }
        first
    }

    fn remove(&mut self, dir: &OwnedFd, name: &CString, levels: usize) -> io::Result<()> {
        let child = match enter(dir, name) {
            Ok(child) => child,
            // A link or a file is removed; the target of a link is not.
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(unlinkat(dir, name, AtFlags::empty())?),
            Err(error) => return Err(error.into()),
        };
        if levels == 0 {
            return self.move_up(dir, name);
        }
        self.empty(&child, levels - 1)?;
        match unlinkat(dir, name, AtFlags::REMOVEDIR) {
            // Its content was moved up, or came meanwhile: the next round, or the next call, removes it.
            Err(Errno::NOTEMPTY) if self.moved > 0 => Ok(()),
            removed => Ok(removed?),
        }
    }

    fn move_up(&mut self, dir: &OwnedFd, name: &CString) -> io::Result<()> {
        loop {
            self.moved += 1;
            match renameat(dir, name, self.top, format!(".deep-{}", self.moved)) {
                // The name is taken.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) if self.moved < ROUNDS => {}
                moved => return Ok(moved?),
            }
        }
    }
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

/// Opens a directory below another one, and makes it writable.
fn enter(dir: &OwnedFd, name: impl Arg + Copy) -> Result<OwnedFd, Errno> {
    let opened = match open_below(dir, name, DIRECTORY) {
        Err(Errno::ACCESS) => {
            let named = open_below(dir, name, NAMED)?;
            chmod(format!("/proc/self/fd/{}", named.as_raw_fd()), Mode::RWXU)?;
            open_below(dir, name, DIRECTORY)?
        }
        opened => opened?,
    };
    make_writable(&opened);
    Ok(opened)
}

/// A failure shows when an entry is to be removed.
fn make_writable(dir: &OwnedFd) {
    let writable = fstat(dir).is_ok_and(|found| Mode::from_raw_mode(found.st_mode).contains(Mode::RWXU));
    if !writable {
        let _refused = fchmod(dir, Mode::RWXU);
    }
}

/// Fails if something is mounted there.
fn open_below(dir: &OwnedFd, name: impl Arg + Copy, flags: OFlags) -> Result<OwnedFd, Errno> {
    let within = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
    match openat2(dir.as_fd(), name, flags, Mode::empty(), within) {
        // An old kernel, or a filter that does not support the call.
        Err(Errno::NOSYS | Errno::PERM) => {}
        opened => return opened,
    }
    let child = openat(dir, name, flags, Mode::empty())?;
    if fstat(&child)?.st_dev == fstat(dir)?.st_dev { Ok(child) } else { Err(Errno::XDEV) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    /// Runs a test as a user whom permissions bind, on a thread of its own.
    fn bound_by_permissions(test: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            let ended = scope.spawn(|| {
                let mut sets = capabilities(None).unwrap();
                sets.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
                set_capabilities(None, sets).unwrap();
                test();
            });
            ended.join().unwrap();
        });
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_read_only_tree_goes_and_links_are_not_followed() {
        let temporary = tempfile::tempdir().unwrap();
        let kept = temporary.path().join("kept");
        let root = temporary.path().join("cache");
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "x").unwrap();
        set_mode(&kept, 0o500);
        for mode in [0o500, 0o555, 0o100, 0o300, 0] {
            fs::create_dir_all(root.join("a/b/empty")).unwrap();
            fs::write(root.join("a/b/file"), "x").unwrap();
            symlink(&kept, root.join("a/link")).unwrap();
            symlink(kept.join("file"), root.join("a/b/link")).unwrap();
            for closed in ["a/b/empty", "a/b", "a", ""] {
                set_mode(&root.join(closed), mode);
            }
            bound_by_permissions(|| {
                tree(&root).unwrap();
                tree(&root).unwrap();
            });
            assert!(!root.exists(), "{mode:o}");
            assert!(kept.join("file").exists());
            assert_eq!(mode_of(&kept), 0o500);
        }
        set_mode(&kept, 0o700);
    }

    /// Stops the racer, also after a failed assertion.
    struct Stop<'a>(&'a AtomicBool);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_directory_that_a_racer_swaps_for_a_link_leaves_the_target_alone() {
        let temporary = tempfile::tempdir().unwrap();
        let kept = temporary.path().join("kept");
        let root = temporary.path().join("builds");
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("file"), "x").unwrap();
        set_mode(&kept, 0o500);
        let dir = root.join("dir");
        let link = root.join("link");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = Stop(&done);
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // Fails while one of the two is missing.
                    let _swapped = renameat_with(CWD, &dir, CWD, &link, RenameFlags::EXCHANGE);
                }
            });
            // One that cannot be entered, and one that can: both are made writable.
            for mode in [0, 0o500].into_iter().cycle().take(400) {
                fs::create_dir_all(&dir).unwrap();
                set_mode(&dir, mode);
                symlink(&kept, &link).unwrap();
                // A swap can make one call fail. Each call removes something.
                bound_by_permissions(|| while tree(&root).is_err() {});
                assert_eq!(mode_of(&kept), 0o500);
                assert!(kept.join("file").exists());
            }
        });
        set_mode(&kept, 0o700);
    }

    #[test]
    fn a_file_or_a_link_goes_alone() {
        let temporary = tempfile::tempdir().unwrap();
        let kept = temporary.path().join("kept");
        let link = temporary.path().join("link");
        fs::create_dir(&kept).unwrap();
        symlink(&kept, &link).unwrap();
        tree(&link).unwrap();
        assert!(kept.exists() && !link.is_symlink());
        let file = kept.join("file");
        fs::write(&file, "x").unwrap();
        tree(&file).unwrap();
        tree(&file.join("below")).unwrap();
        assert!(!file.exists());
    }

    #[test]
    fn no_tree_is_too_deep() {
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path().join("deep");
        fs::create_dir_all(root.join(".deep-1/file")).unwrap();
        fs::write(root.join(".deep-2"), "x").unwrap();
        let mut dir = root.clone();
        for _ in 0..LEVELS * 3 + 5 {
            dir.push("d");
        }
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("file"), "x").unwrap();
        set_mode(&dir, 0o500);
        bound_by_permissions(|| tree(&root).unwrap());
        assert!(!root.exists());
    }

    #[test]
    fn what_cannot_go_is_named_and_the_rest_goes() {
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path().join("builds");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("file"), "x").unwrap();
        set_mode(temporary.path(), 0o500);
        bound_by_permissions(|| {
            let error = tree(&root).unwrap_err();
            assert!(error.to_string().contains(root.to_str().unwrap()), "{error}");
        });
        assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
        set_mode(temporary.path(), 0o700);
        tree(&root).unwrap();
        assert!(!root.exists());
    }
}
