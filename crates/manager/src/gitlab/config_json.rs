//! The output of `config`.
//!
//! `config` runs before an instance is chosen, and two concurrent jobs of one project get the same paths from the
//! runner. So where jobs may share a file system, [`BuildsLayout`] adds a part to `builds_dir`. That part is the same
//! for the next job where it can be: caches keep absolute paths, and `GIT_STRATEGY: fetch` finds the clone.
//!
//! `cache_dir` stays common, as with GitLab's own executors: cache archives are created under a temporary name and
//! renamed, and a separate cache would never be hit.

use std::collections::BTreeMap;
use std::path::Path;

use greenroom_core::ids::{AttemptName, PoolName};
use serde::Serialize;

use super::env::{POOL, STATE_DIR};

/// The place of a job's sources, below the pool's `builds_dir`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuildsLayout {
    /// `builds_dir` itself: one job at a time, on an instance that is not cleaned.
    Whole,
    /// The directory `0` in `builds_dir`: one job at a time, on a host that is cleaned after it.
    OneSlot,
    /// A directory for each number that a runner gives to concurrent jobs of a project.
    Slots,
    /// A directory for each attempt: instances share a file system.
    Attempts,
}

/// The number that a runner gives to one of several concurrent jobs of a project.
///
/// The number comes from `CI_CONCURRENT_PROJECT_ID`, which a job can forge. It is unique only within one process of GitLab
/// Runner, which uses it again while a stage of the job before may still be running. So the engine starts no job in a
/// directory that another one has: a forged number only makes the forging job wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunnerSlot {
    /// The id that GitLab gave to the runner.
    pub runner: u64,
    pub number: u32,
}

impl BuildsLayout {
    /// `slots`: the largest number of concurrent jobs on an instance. `is_cleaned`: hosts are cleaned between jobs.
    pub fn of(slots: u32, is_cleaned: bool) -> Self {
        match (slots, is_cleaned) {
            (0 | 1, false) => Self::Whole,
            (0 | 1, true) => Self::OneSlot,
            _ => Self::Slots,
        }
    }

    /// The directory of a job's sources, below the pool's directory. `slot`: `None` if the runner states none.
    pub fn builds_dir(self, root: &str, attempt: &AttemptName, slot: Option<RunnerSlot>) -> String {
        let separator = if root.contains('\\') { '\\' } else { '/' };
        match (self, slot) {
            (Self::Whole, _) => root.to_owned(),
            (Self::OneSlot, _) => format!("{root}{separator}0"),
            (Self::Slots, Some(RunnerSlot { runner, number })) => {
                format!("{root}{separator}{runner}-{number}")
            }
            (Self::Slots, None) | (Self::Attempts, _) => format!("{root}{separator}{attempt}"),
        }
    }
}

/// The values in the output.
#[derive(Debug, Clone, Copy)]
pub struct ConfigOutput<'a> {
    /// The version of this program.
    pub version: &'a str,
    pub pool: &'a PoolName,
    /// Absolute; the later calls of the job find the state through it.
    pub state_dir: &'a Path,
    /// One of the runner's shells: `bash`, `sh`, `pwsh`, `powershell`.
    pub shell: &'a str,
    /// Absolute on the instance: the directory of this job's sources.
    pub builds_dir: &'a str,
    /// Absolute on the instance.
    pub cache_dir: &'a str,
}

/// The state directory's path is not valid UTF-8, which JSON requires.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`state_dir` must be valid UTF-8, because the later calls of a job receive it; found `{0}`")]
pub struct NotText(String);

#[derive(Serialize)]
struct Document<'a> {
    driver: Driver<'a>,
    builds_dir: &'a str,
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
            builds_dir: self.builds_dir,
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

    fn answer(builds_dir: &str) -> String {
        let answer = ConfigOutput {
            version: "1.2.3",
            pool: &PoolName::new("linux"),
            state_dir: Path::new("/var/lib/greenroom"),
            shell: "bash",
            builds_dir,
            cache_dir: "/cache",
        };
        answer.to_json().unwrap()
    }

    #[test]
    fn the_document_has_everything_the_runner_needs_and_no_more() {
        let document: Value = serde_json::from_str(&answer("/builds")).unwrap();
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
    fn a_path_is_the_same_for_the_next_job_unless_instances_share_a_file_system() {
        let slot = |runner, number| Some(RunnerSlot { runner, number });
        let dir = |layout: BuildsLayout, root: &str, attempt: &str, slot| {
            layout.builds_dir(root, &AttemptName::new(attempt), slot)
        };
        for (layout, slot, expected) in [
            (BuildsLayout::Whole, slot(7, 3), "/b"),
            (BuildsLayout::OneSlot, slot(7, 3), "/b/0"),
            (BuildsLayout::OneSlot, None, "/b/0"),
            (BuildsLayout::Slots, slot(7, 3), "/b/7-3"),
            (BuildsLayout::Slots, None, "/b/x1"),
            (BuildsLayout::Attempts, slot(7, 3), "/b/x1"),
        ] {
            assert_eq!(dir(layout, "/b", "x1", slot), expected, "{layout:?}");
        }
        assert_eq!(dir(BuildsLayout::Slots, "C:\\b", "x1", slot(1, 0)), "C:\\b\\1-0");
        assert_eq!(dir(BuildsLayout::Attempts, "C:/b", "x1", None), "C:/b/x1");
    }

    #[test]
    fn several_slots_and_cleaning_decide_the_layout() {
        for (slots, is_cleaned, layout) in [
            (1, false, BuildsLayout::Whole),
            (1, true, BuildsLayout::OneSlot),
            (2, false, BuildsLayout::Slots),
            (4, true, BuildsLayout::Slots),
        ] {
            assert_eq!(BuildsLayout::of(slots, is_cleaned), layout);
        }
    }

    #[test]
    fn the_later_calls_find_pool_and_state_through_it_and_lose_nothing_of_the_protocol() {
        let document: Value = serde_json::from_str(&answer("/b")).unwrap();
        let job_env = document["job_env"].as_object().unwrap();
        assert!(job_env.keys().all(|name| name.starts_with("GREENROOM_")), "nothing else may be overwritten");
        let env = JobEnv::of(job_env.iter().map(|(name, value)| (name, value.as_str().unwrap())));
        assert_eq!(env.pool().unwrap(), Some(PoolName::new("linux")));
        assert_eq!(env.state_dir(), Some(Path::new("/var/lib/greenroom")));
    }

    #[test]
    fn a_state_directory_that_is_no_text_is_refused() {
        let pool = PoolName::new("p");
        let state_dir = Path::new(OsStr::from_bytes(b"/var/\xff"));
        let answer = ConfigOutput {
            version: "1",
            pool: &pool,
            state_dir,
            shell: "sh",
            builds_dir: "/b",
            cache_dir: "/c",
        };
        assert!(answer.to_json().is_err());
    }
}
