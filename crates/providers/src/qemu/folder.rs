//! What folders of images and of image stores share: their entries, and the locks of builds.

use std::io;
use std::path::Path;

use fs_err as fs;
use fs_err::os::unix::fs::OpenOptionsExt as _;

/// Every entry whose name is UTF-8; Greenroom creates no others. A missing folder has none.
pub(super) fn names(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string());
    }
    Ok(names)
}

/// Takes a build's lock; `None`: another build has it.
pub(super) fn lock(path: &Path) -> io::Result<Option<fs::File>> {
    let lock = fs::OpenOptions::new().read(true).write(true).create(true).mode(0o600).open(path)?;
    match lock.file().try_lock() {
        Ok(()) => Ok(Some(lock)),
        Err(std::fs::TryLockError::WouldBlock) => Ok(None),
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    }
}
