//! The stored books of a pool, `fleeting/POOL/record.json`: on disk before each call that creates, and after each answer.
//!
//! Plugins store no tags. So this file alone says which machine belongs to which launch. One process writes it, the one
//! that holds the lock beside it; others read it.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering as AtomicOrdering};

use fs_err as fs;
use fs_err::os::unix::fs::OpenOptionsExt as _;
use greenroom_core::format::{FORMAT, OUTDATED_REMEDY, newer, outdated};
use greenroom_core::ids::PoolName;
use greenroom_system::threads::disk::BlockingPool;
use greenroom_system::threads::flock::{Kind, try_lock};
use serde::{Deserialize, Serialize};

use super::book::Book;

/// The books by the id of their group: a plugin with another configuration may serve another group.
pub type Books = BTreeMap<String, Book>;

/// Numbers the writes of this process.
static WRITES: AtomicU64 = AtomicU64::new(0);

#[derive(Serialize, Deserialize)]
struct RecordContent<B> {
    format: u32,
    groups: B,
}

/// The reason the stored [`Books`] cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("`{}` cannot be read", path.display())]
    Content {
        path: PathBuf,
        #[source]
        cause: serde_json::Error,
    },
    #[error("{}: {OUTDATED_REMEDY}", outdated(&format!("`{}`", path.display()), *format))]
    Outdated { path: PathBuf, format: u32 },
    #[error("{}", newer(&format!("`{}`", path.display()), *format))]
    Newer { path: PathBuf, format: u32 },
}

/// A pool's directory.
#[derive(Debug, Clone)]
pub struct PoolRecord {
    dir: PathBuf,
    disk: BlockingPool,
}

impl PoolRecord {
    pub fn new(state_dir: &Path, pool: &PoolName) -> Self {
        Self { dir: state_dir.join("fleeting").join(pool.as_str()), disk: BlockingPool::default() }
    }

    /// The directory, which only the keeper's account enters.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn path(&self) -> PathBuf {
        self.dir.join("record.json")
    }

    /// Creates the directory.
    pub fn make_dir(&self) -> io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)
    }

    /// The right to write, as long as the file is open; `None`: another process has it.
    pub fn lock(&self) -> io::Result<Option<File>> {
        self.make_dir()?;
        let mut options = fs::OpenOptions::new();
        let file =
            options.create(true).truncate(false).write(true).mode(0o600).open(self.dir.join("lock"))?;
        let file = file.into_parts().0;
        Ok(try_lock(&file, Kind::Exclusive)?.then_some(file))
    }

    /// Empty if there is no file.
    pub fn read(&self) -> Result<Books, RecordError> {
        #[derive(Deserialize)]
        struct FormatVersion {
            format: u32,
        }
        let path = self.path();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Books::new()),
            Err(error) => return Err(error.into()),
        };
        let damaged = |cause| RecordError::Content { path: path.clone(), cause };
        let FormatVersion { format } = serde_json::from_slice(&bytes).map_err(damaged)?;
        match format.cmp(&FORMAT) {
            Ordering::Equal => {
                Ok(serde_json::from_slice::<RecordContent<Books>>(&bytes).map_err(damaged)?.groups)
            }
            Ordering::Less => Err(RecordError::Outdated { path, format }),
            Ordering::Greater => Err(RecordError::Newer { path, format }),
        }
    }

    /// Replaces the file in one step, durably.
    pub async fn write(&self, books: &Books) -> io::Result<()> {
        let bytes = serde_json::to_vec(&RecordContent { format: FORMAT, groups: books })?;
        let dir = self.dir.clone();
        let path = self.path();
        // A write that was given up may still be running.
        let write = WRITES.fetch_add(1, AtomicOrdering::Relaxed);
        let fresh = dir.join(format!("record.{}-{write}.new", std::process::id()));
        let aside = fresh.clone();
        let put = move || {
            // On a full disk, the part that fitted goes.
            put(&dir, &fresh, &path, &bytes).inspect_err(|_| drop(fs::remove_file(&fresh)))
        };
        self.disk.run(&aside, put).await
    }
}

fn put(dir: &Path, fresh: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    private(fresh, bytes)?;
    fs::rename(fresh, path)?;
    fs::File::open(dir)?.sync_all()
}

/// Writes a file that only the keeper's account reads, and syncs it.
pub fn private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use greenroom_core::ids::{Generation, InstanceId, OwnerId};
    use greenroom_core::inventory::Tags;
    use greenroom_core::notation::NOW;

    use super::*;

    fn record(state: &Path) -> PoolRecord {
        PoolRecord::new(state, &PoolName::new("linux"))
    }

    fn books() -> Books {
        let pool = PoolName::new("linux");
        let owner = OwnerId::new("a1");
        let tags = Tags { pool, owner, generation: Generation::new("c0ffee"), number: 1 };
        let mut book = Book::default();
        book.want(&InstanceId::new("linux-c0ffee-1"), "t", &tags, NOW);
        Books::from([("group".to_owned(), book)])
    }

    #[tokio::test]
    async fn a_record_is_read_as_it_was_written_by_the_keepers_account_alone() {
        let state = tempfile::tempdir().unwrap();
        let record = record(state.path());
        assert_eq!(record.read().unwrap(), Books::new());
        let _lock = record.lock().unwrap().unwrap();
        record.write(&books()).await.unwrap();
        assert_eq!(record.read().unwrap(), books());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(record.dir()), mode(&record.path())), (0o700, 0o600));
        let names = fs::read_dir(record.dir()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.count(), 2, "the lock, and the record");
    }

    /// The Debian package refuses a purge while there are machines, and has only this file to read.
    #[tokio::test]
    async fn the_package_finds_the_launches_in_a_record() {
        let home = tempfile::tempdir().unwrap();
        let record = record(home.path());
        record.make_dir().unwrap();
        record.write(&books()).await.unwrap();
        let root = greenroom_testkit::REPOSITORY;
        let state = home.path().display();
        let script =
            format!(". {root}/packaging/instances.sh; state_dir() {{ echo '{state}'; }}; cloud_instances");
        let listed = std::process::Command::new("sh").args(["-ec", &script]).output().unwrap();
        let mut expected: Vec<String> = books()
            .values()
            .flat_map(|book| book.intents().iter().map(|intent| intent.instance.to_string()))
            .collect();
        expected.sort();
        assert!(!expected.is_empty());
        assert_eq!(String::from_utf8(listed.stdout).unwrap().lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn one_process_writes() {
        let state = tempfile::tempdir().unwrap();
        let one = record(state.path());
        let other = record(state.path());
        let lock = one.lock().unwrap();
        assert!(lock.is_some() && other.lock().unwrap().is_none());
        drop(lock);
        // RACE: a process that another test is starting has the lock, too, until it is a program.
        while other.lock().unwrap().is_none() {
            std::thread::yield_now();
        }
    }

    #[tokio::test]
    async fn a_record_of_another_version_or_a_torn_one_is_refused_with_the_reason() {
        let state = tempfile::tempdir().unwrap();
        let record = record(state.path());
        record.make_dir().unwrap();
        record.write(&books()).await.unwrap();
        let text = fs::read_to_string(record.path()).unwrap();
        let own = format!("\"format\":{FORMAT}");
        for (text, reason) in [
            (text.replacen(&own, "\"format\":1", 1), "before the first release"),
            (text.replacen(&own, "\"format\":99", 1), "a newer version"),
            (text[..text.len() / 2].to_owned(), "cannot be read"),
        ] {
            fs::write(record.path(), text).unwrap();
            let error = record.read().unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("record.json"), "{error}");
        }
    }
}
