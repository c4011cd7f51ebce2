//! The directory of an instance that is a process of ours on this machine: all there is to know of it.
//!
//! `spec.json` is there from the beginning to the very end: without it there is no instance, only the rest of a
//! burial. `lock` is held by the instance's process as long as it lives (a record lock: the kernel names the holder,
//! and asking takes nothing). `server.json` says that there was such a process: nothing is ever served twice.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use fs_err as fs;
use fs_err::os::unix::fs::OpenOptionsExt;
use rustix::fs::FlockOperation;
use rustix::process::{Flock, FlockOffsetType, FlockType, Pid};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::core::endpoint::Endpoint;
use crate::core::ids::InstanceId;
use crate::core::inventory::{Status, Tags};
use crate::core::time::Stamp;
use crate::port::provider::{InstanceKeys, LaunchRequest};

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
pub struct Served {
    pub pid: i32,
    /// The kernel's boot id: process numbers of another boot mean nothing.
    pub boot: String,
}

/// How far an instance has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// Its launch was cut off before its process began.
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

    /// What every provider writes of a launch; `None`: there is no such instance.
    pub fn launched(&self) -> io::Result<Option<Launched>> {
        self.read("spec.json")
    }

    /// Reads what `put` wrote; `None`: there is no such file.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        read_json(&self.file(name))
    }

    /// Writes what every instance begins with: its keys, a lock that nobody holds, an empty console. The caller adds
    /// the spec and moves the directory into place.
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

    pub fn served(&self) -> io::Result<Option<Served>> {
        self.read("server.json")
    }

    /// When termination was first asked for, or last insisted on.
    pub fn terminating(&self) -> io::Result<Option<Stamp>> {
        self.read("terminating")
    }

    /// Replaces a file so that a reader sees all of it or the one before.
    pub fn put(&self, name: &str, value: &impl Serialize) -> io::Result<()> {
        let fresh = self.file(&format!(".{name}.{}", std::process::id()));
        write_private(&fresh, &serde_json::to_vec(value)?)?;
        fs::rename(&fresh, self.file(name))
    }

    pub fn life(&self) -> io::Result<Life> {
        // RACE: the process takes its lock first and says so second. Asked in the other order, the lock is looked at
        // last, and "has served, holds no lock" can only mean that it is over.
        let served = self.has("server.json");
        let lives = self.holder()?.is_some();
        // RACE: a burial removes the spec before the mark. Asked in this order, one of the two is missed at most.
        let ends = self.has("terminating") || !self.has("spec.json");
        Ok(match (served, lives) {
            _ if ends => Life::Ended,
            (_, true) if self.has("endpoint.json") => Life::Running,
            (_, true) => Life::Booting,
            (true, false) => Life::Ended,
            (false, false) => Life::HalfMade,
        })
    }

    /// The process that holds the lock, by the kernel's word.
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

    /// Becomes the instance's process. `None`: another one is. The lock goes with the process, or when *any*
    /// descriptor of the file is closed in it: the file is opened once.
    pub fn seize(&self) -> io::Result<Option<fs::File>> {
        let file = fs::OpenOptions::new().read(true).write(true).open(self.file("lock"))?;
        match rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Is the name fit for a directory of ours? Ids come from our own journal; this is the second wall.
pub fn is_plain_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !name.is_empty() && name.len() <= 128 && !name.starts_with('.') && name.bytes().all(plain)
}

/// Makes a directory, and those above it, for us alone. There already: fine.
pub fn make_private(path: &Path) -> io::Result<()> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| io::Error::new(error.kind(), format!("cannot create {}: {error}", path.display())))
}

fn newline(text: &str) -> String {
    format!("{}\n", text.trim_end())
}

/// Writes a file that only we may read.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write;
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)?.write_all(bytes)
}

/// `None`: there is no such file.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let damaged = |error| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).map(Some).map_err(damaged)
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
        dir.put("server.json", &Served { pid: 1, boot: "b".to_owned() }).unwrap();
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
}
