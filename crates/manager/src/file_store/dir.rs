//! The state directory, checked before use.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use greenroom_core::ids::PoolName;
use greenroom_ports::store::StoreError;

use super::{FileStore, Options};

/// Open flag: the last part of a path may not be a symbolic link.
pub(super) const NOFOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();

/// A usable state directory: it belongs to this user and lies on a local file system.
#[derive(Debug, Clone)]
pub struct StateDir {
    path: PathBuf,
    warning: Option<DirWarning>,
}

/// A warning about the state directory, for the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DirWarning {
    /// Files in a container's root are deleted with the container.
    #[error(
        "the state directory `{path}` is on a container's overlay and is lost with the container: mount a \
         volume, or set another `state_dir`"
    )]
    Overlay { path: String },
}

/// The suitability of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Local,
    Overlay,
    Refused(&'static str),
}

/// Opens a state directory, created (mode 0700) if it is missing. Refuses one that belongs to another user, that others
/// may write to, or that lies on a network or FUSE file system, where locks and renames are not reliable.
pub fn open_dir(path: &Path) -> Result<StateDir, StoreError> {
    make(path)?;
    let meta = std::fs::metadata(path).map_err(|e| io_error("stat", path, &e))?;
    check_owner(path, meta.uid())?;
    if !meta.is_dir() {
        return Err(refusal(format!(
            "the state directory `{}` is not a directory (`state_dir`)",
            path.display()
        )));
    }
    let mode = meta.mode() & 0o7777;
    if mode & 0o022 != 0 {
        let shown = path.display();
        return Err(refusal(format!(
            "other users can write to the state directory `{shown}` (mode {mode:04o}): `chmod 700 {shown}`"
        )));
    }
    let kind =
        rustix::fs::statfs(path).map_err(|e| io_error("determine the file system of", path, &e.into()))?;
    let warning = match classify(magic(&kind)) {
        Kind::Local => None,
        Kind::Overlay => Some(DirWarning::Overlay { path: path.display().to_string() }),
        Kind::Refused(name) => {
            return Err(refusal(format!(
                "the state directory `{}` is on {name}, where locks are not reliable: set `state_dir` to a \
                 local file system",
                path.display()
            )));
        }
    };
    Ok(StateDir { path: path.to_owned(), warning })
}

impl StateDir {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The warning for the operator, to be shown once.
    pub fn warning(&self) -> Option<&DirWarning> {
        self.warning.as_ref()
    }

    /// The store of one pool; its directory is created if it is missing.
    pub fn pool(&self, pool: &PoolName, options: Options) -> Result<FileStore, StoreError> {
        let pools = self.path.join("pools");
        let dir = pools.join(pool.as_str());
        for path in [&pools, &dir] {
            make(path)?;
            let meta = std::fs::metadata(path).map_err(|e| io_error("stat", path, &e))?;
            check_owner(path, meta.uid())?;
            if meta.mode() & 0o077 != 0 {
                let private = std::fs::set_permissions(path, Permissions::from_mode(0o700));
                private.map_err(|e| io_error("set mode 0700 on", path, &e))?;
            }
        }
        Ok(FileStore::new(dir, pool.clone(), options))
    }

    /// Pools that have a directory here, configured or not, sorted by name.
    pub fn pools(&self) -> Result<Vec<PoolName>, StoreError> {
        let names = list(&self.path.join("pools"))?;
        Ok(names.iter().filter_map(|name| PoolName::parse(name).ok()).collect())
    }
}

/// Creates a directory with mode 0700, and its parents with the default mode.
pub(super) fn make(path: &Path) -> Result<(), StoreError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound && path.parent().is_some_and(|p| !p.exists()) => {
            let parent = path.parent().unwrap_or(path);
            std::fs::create_dir_all(parent).map_err(|e| io_error("make", parent, &e))?;
            make(path)
        }
        // An existing directory is sufficient, whatever the error was.
        Err(_) if path.is_dir() => Ok(()),
        made => made.map_err(|e| io_error("make", path, &e)),
    }
}

/// Names in a directory, sorted; none if there is no directory.
pub(super) fn list(path: &Path) -> Result<Vec<String>, StoreError> {
    let entries = match std::fs::read_dir(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|e| io_error("list", path, &e))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| io_error("list", path, &e))?;
        names.extend(entry.file_name().into_string().ok());
    }
    names.sort_unstable();
    Ok(names)
}

/// Checks that a file belongs to this process's user.
pub(super) fn check_owner(path: &Path, uid: u32) -> Result<(), StoreError> {
    let own = rustix::process::geteuid().as_raw();
    if uid == own {
        return Ok(());
    }
    Err(refusal(format!(
        "`{}` belongs to uid {uid}, but this process runs as uid {own}: run it as the owner (`sudo -u \
         '#{uid}'`)",
        path.display()
    )))
}

fn refusal(what: String) -> StoreError {
    StoreError::Io { what }
}

/// The error of a system call, with the operation and its path.
pub(super) fn io_error(tried: &str, path: &Path, error: &io::Error) -> StoreError {
    let what = format!("cannot {tried} `{}`: {error}", path.display());
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full { what },
        _ => StoreError::Io { what },
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "magic numbers have 32 bits; the kernel's field is a signed word, sign-extended for some"
)]
fn magic(of: &rustix::fs::StatFs) -> u32 {
    of.f_type as u32
}

/// Names a file system by its magic number (`linux/magic.h` and the drivers' own).
fn classify(magic: u32) -> Kind {
    match magic {
        0x794c_7630 => Kind::Overlay,
        0x6573_5546 => Kind::Refused("FUSE"),
        0x6969 => Kind::Refused("NFS"),
        0x517b => Kind::Refused("SMB"),
        0xff53_4d42 => Kind::Refused("CIFS"),
        0xfe53_4d42 => Kind::Refused("SMB2"),
        0x0102_1997 => Kind::Refused("9p"),
        0x00c3_6400 => Kind::Refused("Ceph"),
        0x5346_414f | 0x6b41_4653 => Kind::Refused("AFS"),
        0x7375_7245 => Kind::Refused("Coda"),
        0x564c => Kind::Refused("NCP"),
        0x0bd0_0bd0 => Kind::Refused("Lustre"),
        0x4750_4653 => Kind::Refused("GPFS"),
        0x1983_0326 => Kind::Refused("BeeGFS"),
        0x2003_0528 => Kind::Refused("OrangeFS"),
        0xaad7_aaea => Kind::Refused("PanFS"),
        0x0116_1970 => Kind::Refused("GFS2"),
        0x7461_636f => Kind::Refused("OCFS2"),
        0x786f_4256 => Kind::Refused("a VirtualBox shared folder"),
        0xbacb_acbc => Kind::Refused("a VMware shared folder"),
        _ => Kind::Local,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_and_fuse_file_systems_are_refused_by_name() {
        for (magic, name) in
            [(0x6969, "NFS"), (0x6573_5546, "FUSE"), (0xff53_4d42, "CIFS"), (0x0102_1997, "9p")]
        {
            assert_eq!(classify(magic), Kind::Refused(name));
        }
    }

    #[test]
    fn local_file_systems_are_taken() {
        // ext4, xfs, btrfs, tmpfs, zfs, f2fs.
        for magic in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x2fc1_2fc1, 0xf2f5_2010] {
            assert_eq!(classify(magic), Kind::Local);
        }
        assert_eq!(classify(0x794c_7630), Kind::Overlay);
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused_and_one_of_ours_is_made_private() {
        let home = tempfile::tempdir().unwrap();
        let open = home.path().join("open");
        DirBuilder::new().create(&open).unwrap();
        std::fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        let refused = open_dir(&open).unwrap_err().to_string();
        assert!(refused.contains("0777") && refused.contains("chmod 700"), "{refused}");

        let state = open_dir(&home.path().join("a/b/state")).unwrap();
        assert_eq!(std::fs::metadata(state.path()).unwrap().mode() & 0o777, 0o700);
        state.pool(&PoolName::new("linux"), Options::default()).unwrap();
        assert_eq!(state.pools().unwrap(), vec![PoolName::new("linux")]);
    }
}
