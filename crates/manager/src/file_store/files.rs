//! The files of a pool: paths, identities, errors.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use greenroom_core::ids::PoolName;
use greenroom_ports::store::StoreError;

use super::dir::{check_owner, io_error};

/// The files of one pool.
#[derive(Debug, Clone)]
pub(super) struct Files {
    pub(super) pool: PoolName,
    pub(super) dir: PathBuf,
    pub(super) snapshot: PathBuf,
    pub(super) previous: PathBuf,
    pub(super) journal: PathBuf,
    pub(super) history: PathBuf,
    pub(super) lock: PathBuf,
    pub(super) reserve: PathBuf,
}

impl Files {
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
pub(super) struct Identity {
    device: u64,
    inode: u64,
    pub(super) size: u64,
    modified: (i64, i64),
}

impl Identity {
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

pub(super) fn identify(file: &File, path: &Path) -> Result<Identity, StoreError> {
    let meta = file.metadata().map_err(|e| io_error("stat", path, &e))?;
    check_owner(path, meta.uid())?;
    Ok(Identity::of(&meta))
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
