//! A job's facts, from the response only.
//!
//! Nothing here comes from a variable that a user can set.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ids::JobKey;
use super::time::millis;

/// What GitLab itself says about a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobFacts {
    pub key: JobKey,
    /// Full path of the project: `group/sub/project`.
    pub project: Arc<str>,
    /// The job's own timeout; an attempt never outlives it by more than `overrun`.
    #[serde(with = "millis")]
    pub timeout: Duration,
}

impl JobFacts {
    /// The group or user that the project lies in: its path without the last part.
    pub fn namespace(&self) -> &str {
        self.project.rsplit_once('/').map_or(&self.project, |(namespace, _)| namespace)
    }
}
