//! Opens and checks the state directory.
//!
//! Greenroom's guarantees depend on kernel locks and renames in this directory, so it must lie on a local file system
//! and belong to one user.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

use greenroom_core::ids::{AttemptName, PoolName};
use greenroom_ports::host_error::HostError;
use rustix::fs::{StatVfsMountFlags, statfs, statvfs};

use super::files::{self, FileError, cannot};
use super::owner;

/// The reason a directory cannot be the state directory.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    #[error("the state directory `{path}` is not a directory")]
    NotADirectory { path: PathBuf },
    #[error(
        "the state directory `{path}` belongs to user {found}, but this process runs as user {own}: run \
         every greenroom command as GitLab Runner's user, or set another `state_dir`"
    )]
    Foreign { path: PathBuf, found: u32, own: u32 },
    #[error("the state directory `{path}` has mode {found:04o}, expected 0700: `chmod 700 {path}`")]
    Readable { path: PathBuf, found: u32 },
    #[error(
        "the state directory `{path}` is on {kind}, where locks are not reliable: set `state_dir` to a local \
         file system"
    )]
    Remote { path: PathBuf, kind: &'static str },
    #[error("the state directory `{path}` is on a read-only file system")]
    ReadOnly { path: PathBuf },
    #[error(
        "the state directory `{path}` has launched instances, but its file `owner` is missing: restore the \
         file, or start with a new owner (`greenroom doctor --new-owner`; instances of the old owner are \
         then left alone)"
    )]
    OwnerMissing { path: PathBuf },
    #[error(transparent)]
    File(#[from] FileError),
}

impl From<StateDirError> for HostError {
    fn from(error: StateDirError) -> Self {
        HostError::Io { what: error.to_string() }
    }
}

/// A state directory that passed all checks.
#[derive(Debug, Clone)]
pub struct StateDir {
    root: PathBuf,
    warning: Option<String>,
}

impl StateDir {
    /// Opens the directory at `path`; creates it, with a new owner id, if it is missing.
    pub fn open(path: &Path) -> Result<Self, StateDirError> {
        let state = Self::examine(path)?;
        if state.has("owner")? {
            state.check_mode()?;
            return Ok(state);
        }
        if state.has("generations")? {
            return Err(StateDirError::OwnerMissing { path: state.root });
        }
        // A directory without an owner may come from a package or a checkout, with a looser mode.
        let tight = fs::Permissions::from_mode(0o700);
        fs::set_permissions(&state.root, tight).map_err(|e| FileError::new("chmod", &state.root, e))?;
        owner::make_owner(&state.root).map_err(|e| FileError::new("write `owner` in", &state.root, e))?;
        Ok(state)
    }

    /// Opens the directory for `doctor`, which accepts a missing owner.
    pub fn open_for_repair(path: &Path) -> Result<Self, StateDirError> {
        let state = Self::examine(path)?;
        state.check_mode()?;
        Ok(state)
    }

    /// True if the directory at `path` was opened before and still exists.
    pub fn is_made(path: &Path) -> bool {
        path.join("owner").exists()
    }

    fn examine(path: &Path) -> Result<Self, StateDirError> {
        let root = std::path::absolute(path).map_err(|e| FileError::new("find", path, e))?;
        let known = match fs::metadata(&root) {
            Ok(known) => known,
            Err(error) if error.kind() == io::ErrorKind::NotFound => make(&root)?,
            Err(error) => return Err(FileError::new("stat", &root, error).into()),
        };
        if !known.is_dir() {
            return Err(StateDirError::NotADirectory { path: root });
        }
        let found = known.uid();
        let own = files::own_uid();
        if found != own {
            return Err(StateDirError::Foreign { path: root, found, own });
        }
        let warning = examine_file_system(&root)?;
        Ok(Self { root, warning })
    }

    fn has(&self, name: &str) -> Result<bool, StateDirError> {
        let path = self.root.join(name);
        let found = files::missing_is_none(fs::symlink_metadata(&path));
        Ok(found.map_err(|e| FileError::new("stat", &path, e))?.is_some())
    }

    fn check_mode(&self) -> Result<(), StateDirError> {
        let known = fs::metadata(&self.root).map_err(|e| FileError::new("stat", &self.root, e))?;
        let found = known.mode() & 0o7777;
        if found & 0o077 != 0 {
            return Err(StateDirError::Readable { path: self.root.clone(), found });
        }
        Ok(())
    }

    /// The absolute path.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A warning for the operator about the directory's location.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    pub(super) fn attempts(&self) -> PathBuf {
        self.root.join("attempts")
    }

    /// An attempt's directory. Names are checked again, because some come from files.
    pub(super) fn attempt(&self, name: &AttemptName) -> Result<PathBuf, HostError> {
        let checked = AttemptName::parse(name.as_str()).map_err(super::files::broken)?;
        Ok(self.attempts().join(checked.as_str()))
    }

    pub(super) fn pool(&self, name: &PoolName) -> Result<PathBuf, HostError> {
        let checked = PoolName::parse(name.as_str()).map_err(super::files::broken)?;
        Ok(self.pools().join(checked.as_str()))
    }

    pub(super) fn pools(&self) -> PathBuf {
        self.root.join("pools")
    }

    /// A pool's directory, created if it is missing. The state directory itself is not created: a deleted one stays
    /// deleted.
    pub(super) fn ensure_pool(&self, name: &PoolName) -> Result<PathBuf, HostError> {
        let path = self.pool(name)?;
        for dir in [self.pools(), path.clone()] {
            match files::make_dir(&dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(cannot("create", &dir, error));
                }
                _ => {}
            }
        }
        Ok(path)
    }
}

fn make(root: &Path) -> Result<fs::Metadata, StateDirError> {
    if let Some(parent) = root.parent() {
        fs::create_dir_all(parent).map_err(|e| FileError::new("create", parent, e))?;
    }
    match files::make_dir(root) {
        Ok(()) => {}
        // RACE: another first call was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(FileError::new("create", root, error).into()),
    }
    Ok(fs::metadata(root).map_err(|e| FileError::new("stat", root, e))?)
}

fn examine_file_system(root: &Path) -> Result<Option<String>, StateDirError> {
    let fs = statfs(root).map_err(|e| FileError::new("determine the file system of", root, e))?;
    // The field's width differs between architectures; the numbers are 32 bits wide on all of them.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "magic numbers have 32 bits")]
    let magic = fs.f_type as u32;
    if let Some(kind) = remote(magic) {
        return Err(StateDirError::Remote { path: root.to_owned(), kind });
    }
    let mount = statvfs(root).map_err(|e| FileError::new("determine the file system of", root, e))?;
    if mount.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(StateDirError::ReadOnly { path: root.to_owned() });
    }
    Ok(ephemeral(magic).map(|why| format!("the state directory `{}` {why}", root.display())))
}

/// File systems on which a lock is not visible on other machines, or a rename is not atomic.
fn remote(magic: u32) -> Option<&'static str> {
    Some(match magic {
        0x0000_6969 => "NFS",
        0xff53_4d42 | 0xfe53_4d42 | 0x0000_517b => "SMB",
        0x6573_5546 => "FUSE",
        0x0102_1997 => "9p",
        0x00c3_6400 => "Ceph",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x7375_7245 => "Coda",
        0x0116_1970 => "GFS2",
        0x7461_636f => "OCFS2",
        0x0bd0_0bd0 => "Lustre",
        0x4750_4653 => "GPFS",
        0x1983_0326 => "BeeGFS",
        0x2003_0528 => "OrangeFS",
        0x786f_4256 => "a VirtualBox shared folder",
        0xbacb_acbc => "a VMware shared folder",
        _ => return None,
    })
}

fn ephemeral(magic: u32) -> Option<&'static str> {
    Some(match magic {
        0x794c_7630 => "is in a container's own layer and is lost with the container: mount a volume there",
        0x0102_1994 => "is in memory: a reboot deletes it, but not the instances",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_directory_is_ours_alone_and_opens_again() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("deep/state");
        let state = StateDir::open(&path).unwrap();
        assert_eq!(fs::metadata(state.root()).unwrap().mode() & 0o7777, 0o700);
        assert!(state.root().join("owner").exists());
        StateDir::open(&path).unwrap();
    }

    #[test]
    fn a_checkouts_folder_is_tightened_once_and_a_loosened_one_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let loose = || fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
        loose();
        StateDir::open(home.path()).unwrap();
        assert_eq!(fs::metadata(home.path()).unwrap().mode() & 0o777, 0o700);
        loose();
        let error = StateDir::open(home.path()).unwrap_err();
        assert!(error.to_string().contains("mode 0755, expected 0700"), "{error}");
    }

    #[test]
    fn a_file_is_no_state_directory() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(StateDir::open(file.path()), Err(StateDirError::NotADirectory { .. })));
    }

    #[test]
    fn a_used_directory_without_its_owner_gets_no_new_one_by_itself() {
        let home = tempfile::tempdir().unwrap();
        StateDir::open(home.path()).unwrap();
        fs::write(home.path().join("generations"), "0123abcd\n").unwrap();
        fs::remove_file(home.path().join("owner")).unwrap();
        assert!(matches!(StateDir::open(home.path()), Err(StateDirError::OwnerMissing { .. })));
        StateDir::open_for_repair(home.path()).unwrap();
    }

    #[test]
    fn network_and_fuse_file_systems_are_refused_by_name() {
        for (magic, kind) in [(0x6969, "NFS"), (0x6573_5546, "FUSE"), (0xff53_4d42, "SMB")] {
            assert_eq!(remote(magic), Some(kind));
        }
        for local in [0xef53, 0x5846_5342, 0x9123_683e, 0x2fc1_2fc1, 0x0102_1994, 0x794c_7630] {
            assert_eq!(remote(local), None, "{local:x}");
        }
        assert!(ephemeral(0x794c_7630).unwrap().contains("container"));
    }

    #[test]
    fn a_kernel_file_system_that_cannot_be_written_is_refused() {
        // procfs answers every mkdir with ENOENT or EACCES: an error, never a panic.
        let error = StateDir::open(Path::new("/proc/greenroom-state")).unwrap_err();
        assert!(error.to_string().contains("cannot create `/proc/greenroom-state`"), "{error}");
    }
}
