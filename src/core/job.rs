//! A job's facts, from GitLab's job response only.
//!
//! None of them comes from a variable that a user can set.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ids::JobKey;
use super::time::millis;

/// A job's facts, as GitLab itself states them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobFacts {
    pub key: JobKey,
    /// Full path of the project: `group/sub/project`.
    pub project: Arc<str>,
    /// The job's own timeout; an attempt never outlives it by more than `job_timeout_grace`.
    #[serde(with = "millis")]
    pub timeout: Duration,
}

impl JobFacts {
    /// The group or user of the project: its path without the last part.
    pub fn namespace(&self) -> &str {
        self.project.rsplit_once('/').map_or(&self.project, |(namespace, _)| namespace)
    }
}

#[cfg(test)]
mod tests {
    use crate::core::ids::JobKey;
    use crate::core::policy::{Policy, Reuse};

    use super::*;

    fn job(server: &str, project: &str) -> JobFacts {
        JobFacts { key: JobKey::new(server, 1), project: Arc::from(project), timeout: Duration::ZERO }
    }

    #[test]
    fn the_namespace_is_the_path_without_its_last_part() {
        assert_eq!(job("gl", "group/sub/project").namespace(), "group/sub");
        assert_eq!(job("gl", "user/project").namespace(), "user");
        assert_eq!(job("gl", "project").namespace(), "project");
    }

    #[test]
    fn who_may_share_is_what_the_operator_says_and_never_across_gitlabs() {
        let share = |reuse, a: &JobFacts, b: &JobFacts| {
            let policy = Policy { reuse, ..Policy::default() };
            policy.domain_of(a) == policy.domain_of(b)
        };
        let one = job("gl", "g/one");
        for (other, project, namespace, any) in [
            (job("gl", "g/one"), true, true, true),
            (job("gl", "g/two"), false, true, true),
            (job("gl", "h/one"), false, false, true),
            (job("elsewhere", "g/one"), false, false, true),
        ] {
            assert_eq!(share(Reuse::Project, &one, &other), project, "{other:?}");
            assert_eq!(share(Reuse::Namespace, &one, &other), namespace, "{other:?}");
            assert_eq!(share(Reuse::Any, &one, &other), any, "{other:?}");
        }
        let named = Policy { reuse: Reuse::Namespace, ..Policy::default() }.domain_of(&job("gl", "g/one"));
        let project = Policy::default().domain_of(&job("gl", "g"));
        assert_ne!(named, project, "a project is not the group of the same name");
    }
}
