//! State that all attempts of a job share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::events::Shared;
use super::job::Job;
use super::runner::{Runner, Slot};

/// Facts that are learnt during the job and kept across attempts.
#[derive(Debug, Clone)]
pub(super) struct Places {
    pub builds_dir: String,
    pub cache_dir: String,
    pub project_dir: String,
    pub job_status: String,
    pub hostname: Option<String>,
}

impl Places {
    pub(super) fn temp_project_dir(&self) -> String {
        format!("{}.tmp", self.project_dir)
    }
}

#[derive(Debug)]
pub(super) struct Build {
    pub runner: Runner,
    pub job: Job,
    pub shared: Arc<Shared>,
    pub(super) slot: Slot,
    places: Mutex<Places>,
    released: AtomicBool,
}

impl Build {
    pub(super) fn new(runner: &Runner, job: &Job, shared: Arc<Shared>) -> Self {
        let slot = runner.take_slot(&job.project_path);
        // Directories are empty until the first config call has answered.
        let places = Places {
            builds_dir: String::new(),
            cache_dir: String::new(),
            project_dir: String::new(),
            job_status: "running".into(),
            hostname: None,
        };
        Self {
            runner: runner.clone(),
            job: job.clone(),
            shared,
            slot,
            places: Mutex::new(places),
            released: AtomicBool::new(false),
        }
    }

    /// Releases the concurrency numbers once, before the final status is sent, so that the next job can have them.
    pub(super) fn release(&self) {
        if !self.released.swap(true, Ordering::Relaxed) {
            self.runner.give_slot_back(&self.slot);
        }
    }

    pub(super) fn places(&self) -> Places {
        self.lock_places().clone()
    }

    pub(super) fn lock_places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The project directory: two jobs of one project share it unless the driver reports `builds_dir_is_shared`.
    pub(super) fn settle(&self, builds_dir: &str, cache_dir: &str, is_shared: bool) {
        let path = self.job.clone_path.as_ref().unwrap_or(&self.job.project_path);
        let empty = match self.variable("GIT_STRATEGY").as_deref() {
            Some("empty") => "-empty",
            _ => "",
        };
        let infix = if is_shared {
            format!("{}/{}/", self.runner.short_token, self.slot.concurrent_project_id)
        } else {
            String::new()
        };
        let mut places = self.lock_places();
        places.builds_dir = builds_dir.into();
        places.project_dir = format!("{builds_dir}/{infix}{path}{empty}");
        places.cache_dir = format!("{cache_dir}/{path}");
    }

    /// A variable that the job itself sets; the last one wins.
    pub(super) fn variable(&self, key: &str) -> Option<String> {
        let found = self.job.variables.iter().rev().find(|variable| variable.key == key);
        found.map(|variable| variable.value.to_string_lossy().into_owned())
    }
}

impl Drop for Build {
    fn drop(&mut self) {
        self.release();
    }
}
