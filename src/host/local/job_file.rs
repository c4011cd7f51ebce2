//! The file `job` of an attempt.
//!
//! It is complete before the directory has its name, and is changed by rename only: a reader never sees half of it,
//! unless the machine lost power.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::{cannot, io};
use super::files::{self, Durable};
use super::process::{Namespaces, ProcessId};
use crate::port::host::{AttemptRecord, HostError};

const JOB: &str = "job";
const FORMAT: u32 = 1;

/// What `job` holds: the port's record and what is needed to judge whether the attempt lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JobFile {
    pub format: u32,
    pub record: AttemptRecord,
    pub origin: Origin,
}

/// Who made the attempt, and from where. What could not be found out is not judged later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Origin {
    pub runner: Option<ProcessId>,
    pub tmpdir: Option<Tmpdir>,
    /// Both of the above mean something only in these.
    pub namespaces: Option<Namespaces>,
}

/// A TMPDIR, beyond doubt: a path alone could be anything by tomorrow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tmpdir {
    pub path: PathBuf,
    pub device: u64,
    pub inode: u64,
    pub owner: u32,
}

impl Tmpdir {
    /// The directory at `path`; `None` if there is none, or its name cannot be written as text.
    pub(super) fn at(path: &Path) -> Option<Self> {
        path.to_str()?;
        let path = std::path::absolute(path).ok()?;
        let known = fs::symlink_metadata(&path).ok().filter(fs::Metadata::is_dir)?;
        Some(Self { path, device: known.dev(), inode: known.ino(), owner: known.uid() })
    }
}

/// Why a `job` file cannot be used.
#[derive(Debug)]
pub(super) struct JobTrouble {
    pub error: HostError,
    /// Its text makes no sense, as opposed to a text that could not be read or is a newer version's.
    pub damaged: bool,
}

impl From<JobTrouble> for HostError {
    fn from(trouble: JobTrouble) -> Self {
        trouble.error
    }
}

impl JobFile {
    pub(super) fn new(record: AttemptRecord, origin: Origin) -> Self {
        Self { format: FORMAT, record, origin }
    }

    /// Writes `dir/job` in one step.
    pub(super) fn write(&self, dir: &Path) -> Result<(), HostError> {
        let path = dir.join(JOB);
        let text = serde_json::to_vec(self).map_err(|e| cannot("write", &path, std::io::Error::from(e)))?;
        files::replace(dir, JOB, &text, Durable::No).map_err(|e| cannot("write", &path, e))
    }

    /// Reads `dir/job`; `None` if no `prepare` ever made one.
    pub(super) fn read(dir: &Path) -> Result<Option<Self>, JobTrouble> {
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let path = dir.join(JOB);
        let text =
            files::read(&path).map_err(|e| JobTrouble { error: cannot("read", &path, e), damaged: false })?;
        let Some(text) = text else { return Ok(None) };
        let damaged = |e: serde_json::Error| JobTrouble {
            error: io(format_args!("`{}` is damaged: {e}", path.display())),
            damaged: true,
        };
        let Version { format } = serde_json::from_slice(&text).map_err(damaged)?;
        if format > FORMAT {
            let what = format!(
                "`{}` was written by a newer version (format {format}, this one knows {FORMAT})",
                path.display()
            );
            return Err(JobTrouble { error: HostError::Io { what }, damaged: false });
        }
        serde_json::from_slice(&text).map(Some).map_err(damaged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_file_is_damaged_and_a_newer_one_is_not() {
        let home = tempfile::tempdir().unwrap();
        assert!(JobFile::read(home.path()).unwrap().is_none());
        for (text, damaged) in
            [("", true), ("{\"format\":1", true), ("{\"format\":1}", true), ("{\"format\":2}", false)]
        {
            fs::write(home.path().join(JOB), text).unwrap();
            let trouble = JobFile::read(home.path()).unwrap_err();
            assert_eq!(trouble.damaged, damaged, "{text}");
        }
    }
}
