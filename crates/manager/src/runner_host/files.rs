//! Small files, written whole or not at all, and errors that name the file.

use std::fmt::Display;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use greenroom_ports::host_error::HostError;
use greenroom_system::random_hex;

/// Larger files were not written by Greenroom.
const LARGEST: u64 = 16 << 20;

/// The durability of written data: [`Durable::Yes`] has it survive a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Durable {
    Yes,
    No,
}

/// A temporary name beside `name`, unique to this call and skipped when the directory is listed.
pub(super) fn beside(name: &str) -> io::Result<String> {
    Ok(format!(".{name}.{}", random_hex(4)?))
}

/// Creates a directory that only this user can enter.
pub(super) fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Creates a new file that only this user can read.
pub(super) fn create_new(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Opens a lock file, and creates it if it is missing. Lock files are never deleted.
pub(super) fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Writes `bytes` to `dir/name` in one step: a reader sees the old file or the new one.
pub(super) fn replace(dir: &Path, name: &str, bytes: &[u8], durable: Durable) -> io::Result<()> {
    let fresh = dir.join(beside(name)?);
    rename_new(&fresh, &dir.join(name), bytes, durable)?;
    if durable == Durable::Yes { sync_dir(dir) } else { Ok(()) }
}

/// Writes `bytes` to `dir/name` in one step, without a sync: the file is only shown.
pub fn replace_told(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    replace(dir, name, bytes, Durable::No)
}

/// Writes a file of which this process is the only writer, in one step and without a sync. The incomplete file of a killed process is
/// overwritten.
pub fn replace_alone(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let fresh = dir.join(format!(".{name}.new"));
    missing_is_none(fs::remove_file(&fresh))?;
    rename_new(&fresh, &dir.join(name), bytes, Durable::No)
}

fn rename_new(fresh: &Path, path: &Path, bytes: &[u8], durable: Durable) -> io::Result<()> {
    let written = write_new(fresh, bytes, durable).and_then(|()| fs::rename(fresh, path));
    if written.is_err() {
        // Best effort: listings of the directory skip dot-files anyway.
        fs::remove_file(fresh).ok();
    }
    written
}

/// Writes `bytes` to `dir/name` in one step, unless the name is taken. Of several concurrent calls, exactly one returns
/// `true`.
pub(super) fn put_first(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<bool> {
    let fresh = dir.join(beside(name)?);
    let linked = write_new(&fresh, bytes, Durable::Yes).and_then(|()| fs::hard_link(&fresh, dir.join(name)));
    fs::remove_file(&fresh).ok();
    match linked {
        Ok(()) => sync_dir(dir).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn write_new(path: &Path, bytes: &[u8], durable: Durable) -> io::Result<()> {
    let mut file = create_new(path)?;
    file.write_all(bytes)?;
    if durable == Durable::Yes { file.sync_all() } else { Ok(()) }
}

pub(super) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// The content of a small file; `None` if there is none.
pub(super) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let Some(size) = missing_is_none(fs::metadata(path))?.map(|known| known.len()) else { return Ok(None) };
    if size > LARGEST {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("the file is too large ({size} bytes)"),
        ));
    }
    missing_is_none(fs::read(path))
}

pub(super) fn missing_is_none<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A file operation that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} `{}`: {}", .path.display(), reason(.cause))]
pub struct FileError {
    operation: &'static str,
    path: PathBuf,
    /// The sentence says it in its own words, so it is no source of it.
    cause: io::Error,
}

impl FileError {
    pub(super) fn new(operation: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self { operation, path: path.to_owned(), cause: source.into() }
    }
}

impl From<FileError> for HostError {
    fn from(error: FileError) -> Self {
        Self::Io { what: error.to_string() }
    }
}

/// A failed file operation, as an error of the port.
pub(super) fn cannot(operation: &'static str, path: &Path, source: impl Into<io::Error>) -> HostError {
    FileError::new(operation, path, source).into()
}

/// The error of a file that is not as Greenroom left it.
pub(super) fn broken(what: impl Display) -> HostError {
    HostError::Io { what: what.to_string() }
}

/// Errors that an operator can fix get a text of their own, all others have the system's.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::StorageFull => "its file system is full".to_owned(),
        io::ErrorKind::QuotaExceeded => "the disk quota is exhausted".to_owned(),
        io::ErrorKind::ReadOnlyFilesystem => "its file system is read-only".to_owned(),
        io::ErrorKind::PermissionDenied => format!("not permitted to user {}", super::files::own_uid()),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_that_put_the_first_one_wins_and_all_read_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        let winners: usize = std::thread::scope(|scope| {
            let puts: Vec<_> = (0..16)
                .map(|n| scope.spawn(move || put_first(path, "x", format!("{n}").as_bytes()).unwrap()))
                .collect();
            puts.into_iter().map(|put| usize::from(put.join().unwrap())).sum()
        });
        assert_eq!(winners, 1);
        assert_eq!(fs::read_dir(path).unwrap().count(), 1, "no litter");
    }

    #[test]
    fn a_full_and_a_read_only_disk_are_named_as_such() {
        for (number, reason) in [(28, "its file system is full"), (30, "its file system is read-only")] {
            let error = FileError::new("write", Path::new("/x"), io::Error::from_raw_os_error(number));
            assert_eq!(error.to_string(), format!("cannot write `/x`: {reason}"));
        }
    }
}
