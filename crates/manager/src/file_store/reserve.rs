//! Disk space that only terminations get.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use greenroom_ports::store::StoreError;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno;

use super::dir::{NOFOLLOW, io_error};
use super::files::Files;

/// Enough for the last events of 1,000 instances.
const SIZE: u64 = 1 << 20;
/// Free space below which the reserve is not made again, so that it never takes the last of the disk.
const FREE: u64 = 4 * SIZE;

/// True if the whole reserve is there.
pub(super) fn is_kept(files: &Files) -> bool {
    std::fs::symlink_metadata(&files.reserve).is_ok_and(|known| known.size() >= SIZE)
}

/// Makes the reserve.
pub(super) fn make(files: &Files) -> Result<(), StoreError> {
    let path = &files.reserve;
    let made = statvfs(&files.dir).map_err(io::Error::from).and_then(|disk| {
        if disk.f_bavail.saturating_mul(disk.f_frsize) < FREE {
            return Err(Errno::NOSPC.into());
        }
        let how =
            OpenOptions::new().write(true).create(true).mode(0o600).custom_flags(NOFOLLOW).open(path)?;
        fill(how)
    });
    made.map_err(|e| {
        // A part of a reserve is no reserve.
        drop(std::fs::remove_file(path));
        io_error("reserve space in", path, &e)
    })
}

/// Takes blocks of the disk: a file with a hole takes none.
fn fill(mut file: File) -> io::Result<()> {
    match fallocate(&file, FallocateFlags::empty(), 0, SIZE) {
        Err(Errno::OPNOTSUPP) => file.write_all(&vec![0; usize::try_from(SIZE).unwrap_or(0)]),
        other => Ok(other?),
    }
}

/// Frees the reserve. False if there was none.
pub(super) fn give_up(files: &Files) -> bool {
    std::fs::remove_file(&files.reserve).is_ok()
}
