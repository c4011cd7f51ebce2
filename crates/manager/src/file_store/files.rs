//! The state directory, checked before use, and the files of a pool in it: paths, identities, errors, reserve.
//!
//! The reserve is disk space that only terminations get.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use greenroom_core::ids::PoolName;
use greenroom_ports::store::StoreError;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno;

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
enum FileSystem {
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
        FileSystem::Local => None,
        FileSystem::Overlay => Some(DirWarning::Overlay { path: path.display().to_string() }),
        FileSystem::Refused(name) => {
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
fn check_owner(path: &Path, uid: u32) -> Result<(), StoreError> {
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
fn classify(magic: u32) -> FileSystem {
    match magic {
        0x794c_7630 => FileSystem::Overlay,
        0x6573_5546 => FileSystem::Refused("FUSE"),
        0x6969 => FileSystem::Refused("NFS"),
        0x517b => FileSystem::Refused("SMB"),
        0xff53_4d42 => FileSystem::Refused("CIFS"),
        0xfe53_4d42 => FileSystem::Refused("SMB2"),
        0x0102_1997 => FileSystem::Refused("9p"),
        0x00c3_6400 => FileSystem::Refused("Ceph"),
        0x5346_414f | 0x6b41_4653 => FileSystem::Refused("AFS"),
        0x7375_7245 => FileSystem::Refused("Coda"),
        0x564c => FileSystem::Refused("NCP"),
        0x0bd0_0bd0 => FileSystem::Refused("Lustre"),
        0x4750_4653 => FileSystem::Refused("GPFS"),
        0x1983_0326 => FileSystem::Refused("BeeGFS"),
        0x2003_0528 => FileSystem::Refused("OrangeFS"),
        0xaad7_aaea => FileSystem::Refused("PanFS"),
        0x0116_1970 => FileSystem::Refused("GFS2"),
        0x7461_636f => FileSystem::Refused("OCFS2"),
        0x786f_4256 => FileSystem::Refused("a VirtualBox shared folder"),
        0xbacb_acbc => FileSystem::Refused("a VMware shared folder"),
        _ => FileSystem::Local,
    }
}

/// The files of one pool.
#[derive(Debug, Clone)]
pub(super) struct PoolFiles {
    pub(super) pool: PoolName,
    pub(super) dir: PathBuf,
    pub(super) snapshot: PathBuf,
    pub(super) previous: PathBuf,
    pub(super) journal: PathBuf,
    pub(super) history: PathBuf,
    pub(super) lock: PathBuf,
    pub(super) reserve: PathBuf,
}

impl PoolFiles {
    pub(super) fn new(dir: PathBuf, pool: PoolName) -> Self {
        Self {
            snapshot: dir.join("snapshot.json"),
            previous: dir.join("snapshot.previous.json"),
            journal: dir.join("journal.jsonl"),
            history: dir.join("history"),
            lock: dir.join("lock"),
            reserve: dir.join("reserve"),
            dir,
            pool,
        }
    }
}

/// The identity of a file and of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileIdentity {
    device: u64,
    inode: u64,
    pub(super) size: u64,
    modified: (i64, i64),
}

impl FileIdentity {
    fn of(meta: &std::fs::Metadata) -> Self {
        let modified = (meta.mtime(), meta.mtime_nsec());
        Self { device: meta.dev(), inode: meta.ino(), size: meta.size(), modified }
    }

    /// The identity of the file at a path, if there is one.
    pub(super) fn at(path: &Path) -> Result<Option<Self>, StoreError> {
        match std::fs::symlink_metadata(path) {
            Ok(meta) => Ok(Some(Self::of(&meta))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(io_error("stat", path, &e)),
        }
    }

    /// True for the same file, which may have grown.
    pub(super) fn same_file(self, other: Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

pub(super) fn identify(file: &File, path: &Path) -> Result<FileIdentity, StoreError> {
    let meta = file.metadata().map_err(|e| io_error("stat", path, &e))?;
    check_owner(path, meta.uid())?;
    Ok(FileIdentity::of(&meta))
}

pub(super) fn damaged(path: &Path, line: u64, problem: String) -> StoreError {
    StoreError::Damaged { file: path.display().to_string(), line, problem }
}

pub(super) fn newer(path: &Path, found: u32) -> StoreError {
    StoreError::Newer { file: path.display().to_string(), found }
}

pub(super) fn outdated(path: &Path, found: u32) -> StoreError {
    StoreError::Outdated { file: path.display().to_string(), found }
}

/// Enough for the last events of 1,000 instances.
const RESERVE: u64 = 1 << 20;
/// Free space below which the reserve is not made again, so that it never takes the last of the disk.
const FREE_FOR_RESERVE: u64 = 4 * RESERVE;

/// True if the whole reserve is there.
pub(super) fn is_reserve_kept(files: &PoolFiles) -> bool {
    std::fs::symlink_metadata(&files.reserve).is_ok_and(|known| known.size() >= RESERVE)
}

/// Makes the reserve.
pub(super) fn make_reserve(files: &PoolFiles) -> Result<(), StoreError> {
    let path = &files.reserve;
    let made = statvfs(&files.dir).map_err(io::Error::from).and_then(|disk| {
        if disk.f_bavail.saturating_mul(disk.f_frsize) < FREE_FOR_RESERVE {
            return Err(Errno::NOSPC.into());
        }
        let how =
            OpenOptions::new().write(true).create(true).mode(0o600).custom_flags(NOFOLLOW).open(path)?;
        fill_reserve(how)
    });
    made.map_err(|e| {
        // A part of a reserve is no reserve.
        drop(std::fs::remove_file(path));
        io_error("reserve space in", path, &e)
    })
}

/// Takes blocks of the disk: a file with a hole takes none.
fn fill_reserve(mut file: File) -> io::Result<()> {
    match fallocate(&file, FallocateFlags::empty(), 0, RESERVE) {
        Err(Errno::OPNOTSUPP) => file.write_all(&vec![0; usize::try_from(RESERVE).unwrap_or(0)]),
        other => Ok(other?),
    }
}

/// Frees the reserve. False if there was none.
pub(super) fn give_up_reserve(files: &PoolFiles) -> bool {
    std::fs::remove_file(&files.reserve).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_and_fuse_file_systems_are_refused_by_name() {
        for (magic, name) in
            [(0x6969, "NFS"), (0x6573_5546, "FUSE"), (0xff53_4d42, "CIFS"), (0x0102_1997, "9p")]
        {
            assert_eq!(classify(magic), FileSystem::Refused(name));
        }
    }

    #[test]
    fn local_file_systems_are_taken() {
        // ext4, xfs, btrfs, tmpfs, zfs, f2fs.
        for magic in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x2fc1_2fc1, 0xf2f5_2010] {
            assert_eq!(classify(magic), FileSystem::Local);
        }
        assert_eq!(classify(0x794c_7630), FileSystem::Overlay);
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
