//! The directory of an instance that is a process on the runner host. It holds the whole state of the instance.
//!
//! `spec.json` exists from the launch until the removal: without it there is no instance, only the rest of an
//! interrupted removal. The instance's process holds `lock` as long as it lives. This is a record lock: the kernel
//! reports the holder without taking the lock. `server.json` records that such a process has started: no instance is
//! ever served twice.

use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use fs_err as fs;
use fs_err::os::unix::fs::OpenOptionsExt;
use greenroom_core::endpoint::Endpoint;
use greenroom_core::ids::InstanceId;
use greenroom_core::inventory::{Status, Tags};
use greenroom_core::time::Stamp;
use greenroom_ports::provider::{InstanceKeys, LaunchRequest};
use rustix::fs::FlockOperation;
use rustix::process::{Flock, FlockOffsetType, FlockType, Pid};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The mark of a requested termination: the file itself, whatever it contains.
const TERMINATING: &str = "terminating";

/// The part of `spec.json` that every provider writes, beside keys of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launched {
    pub instance: InstanceId,
    pub token: String,
    pub tags: Tags,
    pub created: Stamp,
}

impl Launched {
    pub fn new(request: &LaunchRequest, created: Stamp) -> Self {
        let LaunchRequest { instance, token, tags, .. } = request.clone();
        Self { instance, token, tags, created }
    }
}

/// The process that serves, or served, an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerRecord {
    pub pid: i32,
    /// The kernel's boot id: pids of another boot are meaningless.
    pub boot: String,
}

/// The life-cycle state of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// The launch was interrupted before the instance's process started.
    HalfMade,
    Booting,
    Running,
    /// Terminated, or dead.
    Ended,
}

impl Life {
    pub fn status(self) -> Status {
        match self {
            Self::HalfMade | Self::Booting => Status::Starting,
            Self::Running => Status::Running,
            Self::Ended => Status::Stopping,
        }
    }
}

/// The directory, by its path.
#[derive(Debug, Clone)]
pub struct InstanceDir {
    pub path: PathBuf,
}

impl InstanceDir {
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub fn has(&self, name: &str) -> bool {
        self.file(name).exists()
    }

    /// The part of `spec.json` that every provider writes; `None`: the instance does not exist.
    pub fn launched(&self) -> io::Result<Option<Launched>> {
        self.read("spec.json")
    }

    /// Reads a file that [`put`](Self::put) wrote; `None`: the file does not exist.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        read_json(&self.file(name))
    }

    /// Writes the initial files of an instance: its keys, a free lock, an empty console. The caller adds the spec and
    /// moves the directory into place.
    pub fn fill(&self, keys: &InstanceKeys) -> io::Result<()> {
        make_private(&self.path)?;
        write_private(&self.file("host_key"), newline(&keys.host_key).as_bytes())?;
        write_private(&self.file("host_key.pub"), newline(&keys.host_key_public).as_bytes())?;
        write_private(&self.file("authorized_keys"), newline(&keys.authorized_key).as_bytes())?;
        write_private(&self.file("lock"), b"")?;
        write_private(&self.file("console.log"), b"")
    }

    pub fn endpoint(&self) -> io::Result<Option<Endpoint>> {
        self.read("endpoint.json")
    }

    pub fn served(&self) -> io::Result<Option<ServerRecord>> {
        self.read("server.json")
    }

    /// Returns when termination was first requested, or last enforced. `None` if it was not requested, or if there was no room
    /// to record when.
    pub fn terminating(&self) -> io::Result<Option<Stamp>> {
        let is_empty = |found: std::fs::Metadata| found.len() == 0;
        if fs::metadata(self.file(TERMINATING)).is_ok_and(is_empty) {
            return Ok(None);
        }
        self.read(TERMINATING)
    }

    /// Marks the instance as requested to terminate.
    pub fn mark_terminating(&self, now: &Stamp) -> io::Result<()> {
        self.put(TERMINATING, now).or_else(|error| {
            // A full disk has room for a name. The mark is what counts: the termination is what makes room.
            let mut options = fs::OpenOptions::new();
            options.write(true).create(true).mode(0o600);
            options.open(self.file(TERMINATING)).map(drop).map_err(|_| error)
        })
    }

    /// Replaces a file atomically: a reader sees either the old or the new content.
    pub fn put(&self, name: &str, value: &impl Serialize) -> io::Result<()> {
        let fresh = self.file(&format!(".{name}.{}", std::process::id()));
        let written = write_private(&fresh, &serde_json::to_vec(value)?);
        let placed = written.and_then(|()| fs::rename(&fresh, self.file(name)));
        // On a full disk, the part that fitted goes.
        placed.inspect_err(|_| drop(fs::remove_file(&fresh)))
    }

    pub fn life(&self) -> io::Result<Life> {
        // RACE: the process takes its lock first and writes `server.json` second. Read in the reverse order, "recorded,
        // but holds no lock" can only mean that the process has exited.
        let served = self.has("server.json");
        let lives = self.holder()?.is_some();
        // RACE: a removal deletes the spec before the mark. Read in this order, at most one of the two is missed.
        let ends = self.has(TERMINATING) || !self.has("spec.json");
        Ok(match (served, lives) {
            _ if ends => Life::Ended,
            (_, true) if self.has("endpoint.json") => Life::Running,
            (_, true) => Life::Booting,
            (true, false) => Life::Ended,
            (false, false) => Life::HalfMade,
        })
    }

    /// The process that holds the lock, as the kernel reports it.
    pub fn holder(&self) -> io::Result<Option<Pid>> {
        let file = match fs::File::open(self.file("lock")) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let whole = Flock {
            start: 0,
            length: 0,
            pid: None,
            typ: FlockType::WriteLock,
            offset_type: FlockOffsetType::Set,
        };
        Ok(rustix::process::fcntl_getlk(&file, &whole)?.and_then(|held| held.pid))
    }

    /// Takes the lock, which makes this process the instance's. `None`: another process holds it. The kernel releases
    /// the lock when the process exits, or when it closes *any* descriptor of the file: the file is opened once.
    pub fn seize(&self) -> io::Result<Option<fs::File>> {
        let file = fs::OpenOptions::new().read(true).write(true).open(self.file("lock"))?;
        match rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// True if the name is valid for an instance's directory. Ids come from Greenroom's own journal; this is an
/// additional safeguard.
pub fn is_plain_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !name.is_empty() && name.len() <= 128 && !name.starts_with('.') && name.bytes().all(plain)
}

/// Creates a directory and its parents, with access for this user only. An existing directory is not an error.
pub fn make_private(path: &Path) -> io::Result<()> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| io::Error::new(error.kind(), format!("cannot create {}: {error}", path.display())))
}

fn newline(text: &str) -> String {
    format!("{}\n", text.trim_end())
}

/// Writes a file that only this user may read.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write;
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)?.write_all(bytes)
}

/// Reads a JSON file; `None`: the file does not exist.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let damaged = |error| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).map(Some).map_err(damaged)
}

/// Maximum size of the tail, in bytes.
pub const CONSOLE_TAIL: u64 = 64 * 1024;

/// The last 64 KiB of a file, from the beginning of a line. Bytes that are not UTF-8 become `�`.
pub fn console_tail(path: &Path) -> io::Result<String> {
    let mut file = fs::File::open(path)?;
    let length = file.metadata()?.len();
    let begin = length.saturating_sub(CONSOLE_TAIL);
    file.seek(SeekFrom::Start(begin))?;
    let mut bytes = Vec::new();
    // The file may be growing: later output is left for the next call.
    file.take(CONSOLE_TAIL).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    match text.split_once('\n') {
        Some((_, whole)) if begin > 0 => Ok(whole.to_owned()),
        _ => Ok(text.into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_name_never_leaves_its_pool() {
        assert!(is_plain_name("linux-3f9a-12"));
        for bad in ["", ".", "..", ".new-x", "a/b", "a\0", "ä"] {
            assert!(!is_plain_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_directory_without_a_process_is_half_made_until_it_was_served() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = InstanceDir::at(temporary.path());
        assert_eq!(dir.life().unwrap(), Life::Ended, "buried");
        for file in ["lock", "spec.json"] {
            fs::write(dir.file(file), "").unwrap();
        }
        assert_eq!(dir.life().unwrap(), Life::HalfMade);
        dir.put("server.json", &ServerRecord { pid: 1, boot: "b".to_owned() }).unwrap();
        assert_eq!(dir.life().unwrap(), Life::Ended);
        assert_eq!(dir.served().unwrap().unwrap().pid, 1);
    }

    #[test]
    fn a_torn_file_is_an_error_that_names_it() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = InstanceDir::at(temporary.path());
        assert!(dir.launched().unwrap().is_none());
        fs::write(dir.file("spec.json"), "{").unwrap();
        assert!(dir.launched().unwrap_err().to_string().contains("spec.json"));
    }

    #[test]
    fn the_tail_is_bounded_and_begins_with_a_whole_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("console.log");
        fs::write(&file, b"one\ntwo\xff").unwrap();
        assert!(console_tail(&file).unwrap().starts_with("one\ntwo"));
        fs::write(&file, "0123456789abcde\n".repeat(10_000)).unwrap();
        let kept = console_tail(&file).unwrap();
        assert_eq!(kept.len() as u64, CONSOLE_TAIL - 16);
        assert!(kept.starts_with("0123"));
        assert!(console_tail(&dir.path().join("none")).is_err());
    }
}
