//! The output of `config`.
//!
//! `config` runs before an instance is chosen, and two concurrent jobs of one project get the same paths from the
//! runner. So where jobs may share a file system, the attempt's name, which is unique and known here, becomes part of
//! `builds_dir`.
//!
//! The runner's own solution, `builds_dir_is_shared`, is not used: its numbers are unique only within one runner
//! process, and are reused while a stage that did not stop may still write. `cache_dir` stays common, as with GitLab's
//! own executors: cache archives are created under a temporary name and renamed, and a separate cache would never be
//! hit.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::core::ids::{AttemptName, PoolName};

use super::env::{POOL, STATE_DIR};

/// Whether other jobs share the file system of a job's sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileSystem {
    /// Not shared, neither while the job runs nor afterwards.
    Own,
    /// Shared with other jobs: several on one instance, instances with a common file system, or a host that is cleaned
    /// for the next job.
    Shared,
}

impl FileSystem {
    /// `is_shared`: whether the pool's instances share a file system (like processes on one machine), or jobs use it
    /// one after another (like static hosts).
    pub fn of(capacity_per_instance: u32, is_shared: bool) -> Self {
        if is_shared || capacity_per_instance > 1 { Self::Shared } else { Self::Own }
    }

    /// The directory of an attempt's sources, below the pool's directory.
    pub fn builds_dir(self, root: &str, attempt: &AttemptName) -> String {
        let separator = if root.contains('\\') { '\\' } else { '/' };
        match self {
            Self::Own => root.to_owned(),
            Self::Shared => format!("{root}{separator}{attempt}"),
        }
    }
}

/// The values in the output.
#[derive(Debug, Clone, Copy)]
pub struct ConfigOutput<'a> {
    /// The version of this program.
    pub version: &'a str,
    pub attempt: &'a AttemptName,
    pub pool: &'a PoolName,
    /// Absolute; the later calls of the job find the state through it.
    pub state_dir: &'a Path,
    /// One of the runner's shells: `bash`, `sh`, `pwsh`, `powershell`.
    pub shell: &'a str,
    /// Absolute on the instance.
    pub builds_dir: &'a str,
    /// Absolute on the instance.
    pub cache_dir: &'a str,
    pub file_system: FileSystem,
}

/// The state directory's path is not valid UTF-8, which JSON requires.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`state_dir` must be valid UTF-8, because the later calls of a job receive it; found `{0}`")]
pub struct NotText(String);

#[derive(Serialize)]
struct Document<'a> {
    driver: Driver<'a>,
    builds_dir: String,
    cache_dir: &'a str,
    builds_dir_is_shared: bool,
    shell: &'a str,
    job_env: BTreeMap<&'static str, &'a str>,
}

#[derive(Serialize)]
struct Driver<'a> {
    name: &'static str,
    version: &'a str,
}

impl ConfigOutput<'_> {
    /// One JSON document in one line. There is no `hostname`: no instance is chosen yet, and it would be kept for all
    /// attempts of the job.
    pub fn to_json(&self) -> Result<String, NotText> {
        let state_dir = self.state_dir.to_str();
        let state_dir = state_dir.ok_or_else(|| NotText(self.state_dir.display().to_string()))?;
        let document = Document {
            driver: Driver { name: "greenroom", version: self.version },
            builds_dir: self.file_system.builds_dir(self.builds_dir, self.attempt),
            cache_dir: self.cache_dir,
            builds_dir_is_shared: false,
            shell: self.shell,
            job_env: BTreeMap::from([(STATE_DIR, state_dir), (POOL, self.pool.as_str())]),
        };
        Ok(serde_json::to_string(&document).expect("maps with text keys and text values always serialise"))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use serde_json::{Value, json};

    use super::*;
    use crate::gitlab::env::JobEnv;

    fn answer(attempt: &str, builds_dir: &str, file_system: FileSystem) -> String {
        let answer = ConfigOutput {
            version: "1.2.3",
            attempt: &AttemptName::new(attempt),
            pool: &PoolName::new("linux"),
            state_dir: Path::new("/var/lib/greenroom"),
            shell: "bash",
            builds_dir,
            cache_dir: "/cache",
            file_system,
        };
        answer.to_json().unwrap()
    }

    #[test]
    fn the_document_has_everything_the_runner_needs_and_no_more() {
        let document: Value =
            serde_json::from_str(&answer("custom-executor1", "/builds", FileSystem::Own)).unwrap();
        assert_eq!(
            document,
            json!({
                "driver": {"name": "greenroom", "version": "1.2.3"},
                "builds_dir": "/builds",
                "cache_dir": "/cache",
                "builds_dir_is_shared": false,
                "shell": "bash",
                "job_env": {"GREENROOM_POOL": "linux", "GREENROOM_STATE_DIR": "/var/lib/greenroom"},
            })
        );
    }

    #[test]
    fn two_jobs_at_once_never_share_a_directory_where_they_share_a_file_system() {
        let dir = |attempt: &str, builds_dir: &str, file_system| {
            let document: Value = serde_json::from_str(&answer(attempt, builds_dir, file_system)).unwrap();
            document["builds_dir"].as_str().unwrap().to_owned()
        };
        assert_eq!(dir("x1", "/builds", FileSystem::Shared), "/builds/x1");
        assert_ne!(dir("x1", "/b", FileSystem::Shared), dir("x2", "/b", FileSystem::Shared));
        assert_eq!(dir("x1", "/b", FileSystem::Own), dir("x2", "/b", FileSystem::Own));
        assert_eq!(dir("x1", "C:\\b", FileSystem::Shared), "C:\\b\\x1");
        assert_eq!(dir("x1", "C:/b", FileSystem::Shared), "C:/b/x1");
    }

    #[test]
    fn a_file_system_is_shared_when_jobs_or_instances_share_it() {
        for (capacity, instances_share, file_system) in
            [(1, false, FileSystem::Own), (2, false, FileSystem::Shared), (1, true, FileSystem::Shared)]
        {
            assert_eq!(FileSystem::of(capacity, instances_share), file_system);
        }
    }

    #[test]
    fn the_later_calls_find_pool_and_state_through_it_and_lose_nothing_of_the_protocol() {
        let document: Value = serde_json::from_str(&answer("a", "/b", FileSystem::Own)).unwrap();
        let job_env = document["job_env"].as_object().unwrap();
        assert!(job_env.keys().all(|name| name.starts_with("GREENROOM_")), "nothing else may be overwritten");
        let env = JobEnv::of(job_env.iter().map(|(name, value)| (name, value.as_str().unwrap())));
        assert_eq!(env.pool().unwrap(), Some(PoolName::new("linux")));
        assert_eq!(env.state_dir(), Some(Path::new("/var/lib/greenroom")));
    }

    #[test]
    fn a_state_directory_that_is_no_text_is_refused() {
        let (attempt, pool) = (AttemptName::new("a"), PoolName::new("p"));
        let state_dir = Path::new(OsStr::from_bytes(b"/var/\xff"));
        let answer = ConfigOutput {
            version: "1",
            attempt: &attempt,
            pool: &pool,
            state_dir,
            shell: "sh",
            builds_dir: "/b",
            cache_dir: "/c",
            file_system: FileSystem::Own,
        };
        assert!(answer.to_json().is_err());
    }
}
