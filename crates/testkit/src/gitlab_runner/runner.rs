//! The runner's side: its `config.toml`, its directories, and its timeouts.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::attempt::{Attempt, Build};
use super::events::Shared;
use super::handle::Handle;
use super::job::Job;
use super::record::JobResult;
use crate::program;

/// One of the four executables of `[runners.custom]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Exec {
    pub program: PathBuf,
    pub args: Vec<OsString>,
    /// `*_exec_timeout`; the real runner has none for `run`.
    pub timeout: Duration,
}

/// The runner's constant delays.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Pace {
    /// The time between two prepare attempts: 3 s.
    pub prepare_retry: Duration,
    /// The time before the second attempt of a stage: 5 s, doubling each time.
    pub stage_retry: Duration,
    /// Upper bound of that doubling: 5 min.
    pub stage_retry_cap: Duration,
    /// The time that a canceled or timed out job waits for its `run` before it calls `cleanup` beside it: 5 min.
    pub run_end: Duration,
    /// `shutdown_timeout`: the time from SIGTERM until the runner exits, even if calls are unfinished: 30 s.
    pub shutdown: Duration,
}

impl Pace {
    pub fn real() -> Self {
        Self::scaled(1.0)
    }

    pub fn scaled(factor: f64) -> Self {
        let seconds = |whole: f64| Duration::from_secs_f64(whole * factor);
        Self {
            prepare_retry: seconds(3.0),
            stage_retry: seconds(5.0),
            stage_retry_cap: seconds(300.0),
            run_end: seconds(300.0),
            shutdown: seconds(30.0),
        }
    }
}

/// A concurrency number in use: within the runner, and within the project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slot {
    pub concurrent_id: u64,
    pub concurrent_project_id: u64,
    project: String,
}

/// A runner with one `[[runners]]` section; clones share the slots that make `CI_CONCURRENT_ID`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Runner {
    pub config: Option<Exec>,
    pub prepare: Option<Exec>,
    pub run: Exec,
    pub cleanup: Option<Exec>,
    pub graceful_kill_timeout: Duration,
    pub force_kill_timeout: Duration,
    pub prepare_timeout: Option<Duration>,
    pub get_sources_timeout: Option<Duration>,
    pub builds_dir: Option<String>,
    pub cache_dir: Option<String>,
    /// `os.Environ()` of the runner process, complete: the harness adds nothing.
    pub environment: Vec<(OsString, OsString)>,
    /// `environment` of `[[runners]]`: becomes `CUSTOM_ENV_*`.
    pub variables: Vec<(String, OsString)>,
    /// The directory in which `custom-executorNNNN` directories are made.
    pub temp_dir: PathBuf,
    /// `[runners.cache]`: the signed URLs from which a cache is downloaded, and to which it is uploaded.
    pub cache_urls: Option<[String; 2]>,
    pub url: String,
    pub short_token: String,
    pub description: String,
    pub pace: Pace,
    /// Deadline of every wait of a [`Handle`].
    pub patience: Duration,
    #[serde(skip)]
    slots: Arc<Mutex<Vec<Slot>>>,
}

impl Runner {
    /// A runner whose four executables are `driver config`, `driver prepare`, `driver run`, `driver cleanup`, with its
    /// builds, caches and temporary directories below `home`. Waits are a tenth of the real ones.
    pub fn new(driver: impl Into<PathBuf>, home: &Path) -> Self {
        let driver = driver.into();
        let exec = |name: &str| Exec {
            program: driver.clone(),
            args: vec![name.into()],
            timeout: Duration::from_hours(1),
        };
        let temp_dir = home.join("tmp");
        std::fs::create_dir_all(&temp_dir).expect("the runner's temporary directory can be made");
        Self {
            config: Some(exec("config")),
            prepare: Some(exec("prepare")),
            run: exec("run"),
            cleanup: Some(exec("cleanup")),
            graceful_kill_timeout: Duration::from_secs(20),
            force_kill_timeout: Duration::from_secs(10),
            prepare_timeout: None,
            get_sources_timeout: None,
            builds_dir: Some(home.join("builds").to_string_lossy().into_owned()),
            cache_dir: Some(home.join("cache").to_string_lossy().into_owned()),
            environment: program::environment(home).into(),
            variables: Vec::new(),
            temp_dir,
            cache_urls: None,
            url: "http://127.0.0.1:9999".into(),
            short_token: "lab-rec".into(),
            description: "lab".into(),
            pace: Pace::scaled(0.1),
            patience: Duration::from_secs(30),
            slots: Arc::default(),
        }
    }

    /// Puts arguments before the subcommand of all four calls: `driver --config FILE prepare`.
    #[must_use]
    pub fn with_global_args(mut self, args: &[&str]) -> Self {
        let all = [self.config.as_mut(), self.prepare.as_mut(), Some(&mut self.run), self.cleanup.as_mut()];
        for exec in all.into_iter().flatten() {
            exec.args.splice(0..0, args.iter().map(OsString::from));
        }
        self
    }

    /// Adds to the environment of the runner process.
    #[must_use]
    pub fn with_env(mut self, key: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((key.into(), value.into()));
        self
    }

    #[must_use]
    pub fn with_kill_timeouts(mut self, graceful: Duration, force: Duration) -> Self {
        self.graceful_kill_timeout = graceful;
        self.force_kill_timeout = force;
        self
    }

    /// Plays the whole job and returns when the runner would have sent its final status.
    pub fn run(&self, job: &Job) -> JobResult {
        self.start(job).finish()
    }

    /// Plays the job in a thread.
    pub fn start(&self, job: &Job) -> Handle {
        Handle::in_thread(self, job)
    }

    /// Plays the job in a process of its own, which can be sent SIGTERM and SIGKILL.
    pub fn start_in_own_process(&self, job: &Job) -> Handle {
        Handle::in_process(self, job)
    }

    /// A prepare attempt whose calls are made by hand; dropping it kills those that are still running.
    pub fn attempt(&self, job: &Job) -> Attempt {
        Attempt::by_hand(Arc::new(Build::new(self, job, Arc::new(Shared::new(false)))), 1)
    }

    /// Takes the lowest free concurrency number, and the lowest of the project.
    pub(super) fn take_slot(&self, project: &str) -> Slot {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        // Among as many numbers as are taken, and one more, one is free.
        let lowest =
            |taken: Vec<u64>| (0..=taken.len() as u64).find(|id| !taken.contains(id)).unwrap_or_default();
        let all = slots.iter().map(|slot| slot.concurrent_id).collect();
        let of_project = slots.iter().filter(|slot| slot.project == project);
        let of_project = of_project.map(|slot| slot.concurrent_project_id).collect();
        let slot = Slot {
            concurrent_id: lowest(all),
            concurrent_project_id: lowest(of_project),
            project: project.to_owned(),
        };
        slots.push(slot.clone());
        slot
    }

    pub(super) fn give_slot_back(&self, slot: &Slot) {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).retain(|taken| taken != slot);
    }
}
