//! The instances: directories, which a platform (tests/external/platform.rs) may give a machine.

use std::fs;
use std::path::{Path, PathBuf};

use greenroom_backends::fleeting::wire::State;
use serde_json::{Value, json};

/// The directory with one subdirectory for each instance.
#[derive(Debug, Clone)]
pub struct Machines {
    directory: PathBuf,
    /// True if another process starts the machines; otherwise an instance runs as soon as it exists.
    pub platform: bool,
}

/// The settings of a new machine.
#[derive(Debug)]
pub struct Boot {
    pub host_key: String,
    /// A certificate of the host key; empty: none.
    pub host_certificate: String,
    pub authorized_key: String,
}

impl Machines {
    pub fn new(directory: &Path, platform: bool) -> Self {
        let directory = directory.join("machines");
        fs::create_dir_all(&directory).unwrap();
        Self { directory, platform }
    }

    /// Sorted by id.
    pub fn ids(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.directory).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        let mut ids: Vec<String> = names.filter(|name| name.starts_with("i-")).collect();
        ids.sort();
        ids
    }

    fn dir(&self, id: &str) -> PathBuf {
        self.directory.join(id)
    }

    pub fn exists(&self, id: &str) -> bool {
        id.starts_with("i-") && !id.contains('/') && self.dir(id).is_dir()
    }

    pub fn create(&self, id: &str, boot: &Boot) {
        let dir = self.dir(id);
        fs::create_dir(&dir).unwrap();
        let request = json!({
            "instance": id, "host_key": boot.host_key, "host_certificate": boot.host_certificate,
            "authorized_key": boot.authorized_key,
        });
        if self.platform {
            // The platform must not read half of it.
            fs::write(dir.join("request.new"), request.to_string()).unwrap();
            fs::rename(dir.join("request.new"), dir.join("request")).unwrap();
        } else {
            let state = json!({ "state": "running", "address": "127.0.0.1", "port": 22 });
            fs::write(dir.join("state"), state.to_string()).unwrap();
        }
    }

    pub fn remove(&self, id: &str) {
        if self.platform {
            // It may be gone meanwhile.
            let _gone = fs::write(self.dir(id).join("end"), "");
        } else {
            let _gone = fs::remove_dir_all(self.dir(id));
        }
    }

    /// Suspends or resumes.
    pub fn set_suspended(&self, id: &str, suspended: bool) {
        let mark = self.dir(id).join("suspended");
        let _gone = if suspended { fs::write(mark, "") } else { fs::remove_file(mark) };
    }

    pub fn state(&self, id: &str) -> State {
        let dir = self.dir(id);
        if dir.join("end").exists() {
            return State::Deleting;
        }
        match self.reported(id).as_ref().and_then(|state| state["state"].as_str()) {
            Some("running") if dir.join("suspended").exists() => State::Suspended,
            Some("running") => State::Running,
            Some(_) => State::Timeout,
            None => State::Creating,
        }
    }

    /// The address of a running machine.
    pub fn address(&self, id: &str) -> Option<(String, i64)> {
        let state = self.reported(id)?;
        Some((state["address"].as_str()?.to_owned(), state["port"].as_i64()?))
    }

    fn reported(&self, id: &str) -> Option<Value> {
        serde_json::from_slice(&fs::read(self.dir(id).join("state")).ok()?).ok()
    }
}
