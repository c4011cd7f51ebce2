//! A job, its standing request for capacity with its place in the queue, and the launches of its own instance.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::availability::concerns_offering;
use crate::failure::Failure;
use crate::ids::{AttemptName, JobKey, OfferingName, TrustDomain};
use crate::images::WantedImages;
use crate::order::{Order, RefusedOrder};
use crate::text::clean_line;
use crate::time::{ManagerId, Stamp, millis};

/// A job's texts are cut to this length, in characters. GitLab's own names are not longer.
const TEXT_LIMIT: usize = 255;

/// A job's facts, as GitLab itself states them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobFacts {
    pub key: JobKey,
    /// Full path of the project: `group/sub/project`.
    pub project: Arc<str>,
    /// The job's own timeout; an attempt never outlives it by more than
    /// [`job_timeout_grace`](crate::policy::Timing::job_timeout_grace).
    #[serde(with = "millis")]
    pub timeout: Duration,
    /// Id of the pipeline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Arc<str>>,
    /// The job's name in the pipeline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Arc<str>>,
    /// Branch or tag.
    #[serde(rename = "ref", default, skip_serializing_if = "Option::is_none")]
    pub git_ref: Option<Arc<str>>,
    /// True if GitLab reports the ref as protected. Older versions report nothing: then it does not count as protected.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub protected: bool,
    /// The images of its containers, as the pool has judged them.
    #[serde(default, skip_serializing_if = "WantedImages::is_empty")]
    pub images: WantedImages,
    /// The order that the job's own instance is made of; `None`: the job takes one of the pool's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Arc<Order>>,
}

impl JobFacts {
    /// The address of its project, which no project of another server has.
    pub fn project_url(&self) -> String {
        format!("{}/{}", self.key.server, self.project)
    }

    /// The facts that decide, and no others.
    pub fn new(key: JobKey, project: impl Into<Arc<str>>, timeout: Duration) -> Self {
        let project = project.into();
        Self {
            key,
            project,
            timeout,
            pipeline: None,
            stage: None,
            name: None,
            git_ref: None,
            protected: false,
            images: WantedImages::default(),
            order: None,
        }
    }

    /// A text chosen by the author of a commit, for the record: one line, cleaned and cut; `None` if nothing is left.
    pub fn text(foreign: &str) -> Option<Arc<str>> {
        let line = clean_line(foreign.as_bytes(), TEXT_LIMIT);
        (!line.is_empty()).then(|| Arc::from(line))
    }

    /// The group or user of the project: its path without the last part.
    pub fn namespace(&self) -> &str {
        self.project.rsplit_once('/').map_or(&self.project, |(namespace, _)| namespace)
    }
}

// A job's standing request for capacity, and its place in the queue.

/// A job's place in the queue. Lower comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ticket(pub u64);

/// A request that waits, or that was granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    pub ticket: Ticket,
    pub attempt: AttemptName,
    pub job: JobFacts,
    pub domain: TrustDomain,
    /// Time at which this attempt requested the slot.
    pub requested_at: Stamp,
    /// Time that this attempt may wait, less the time that earlier attempts of the job waited.
    #[serde(with = "millis")]
    pub remaining_timeout: Duration,
    /// The provider refused to make its order: nothing is launched for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<RefusedOrder>,
    /// The refused launches of the instance that it ordered.
    #[serde(default, skip_serializing_if = "OwnLaunches::is_unused")]
    pub own: OwnLaunches,
}

impl Reservation {
    /// The manager whose attempt it is: the one that recorded the request.
    pub fn manager(&self) -> ManagerId {
        self.requested_at.manager
    }

    pub fn deadline(&self) -> Stamp {
        self.requested_at.plus(self.remaining_timeout)
    }
}

/// The queue place of a job whose attempt ended, kept as long as a retry may come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuePlace {
    pub ticket: Ticket,
    pub ended_at: Stamp,
    /// The rest of its [`acquire_timeout`](crate::policy::Timing::acquire_timeout).
    #[serde(with = "millis")]
    pub remaining_timeout: Duration,
}

// The launches of a job's own instance: what was refused, and when the next one is due.
//
// They concern no other launch. A refusal makes no offering unavailable, and neither starts nor ends a back-off of the
// pool: a job can order what no cluster would make.

/// The refused launches of a job's own instance. Empty before the first refusal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnLaunches {
    /// Number of launches that have followed a pause.
    pauses: u32,
    /// The offerings that have refused it since the last pause.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tried: Vec<OfferingName>,
    last: Option<(Stamp, Failure)>,
}

impl OwnLaunches {
    pub fn is_unused(&self) -> bool {
        *self == Self::default()
    }

    /// A launch was intended. One that is not for the next offering ends the pause.
    pub(super) fn intended(&mut self, offering: Option<&OfferingName>) {
        if self.last.is_some() && !self.is_next(offering) {
            self.pauses = self.pauses.saturating_add(1);
            self.tried.clear();
        }
    }

    /// A launch was refused.
    pub(super) fn refused(&mut self, offering: Option<&OfferingName>, failure: &Failure, at: Stamp) {
        self.tried.extend(offering.filter(|offering| !self.tried.contains(offering)).cloned());
        self.last = Some((at, failure.clone()));
    }

    /// True if the offering follows one that was refused, without a pause.
    pub fn is_next(&self, offering: Option<&OfferingName>) -> bool {
        let of_offering = self.last.as_ref().is_some_and(|(_, failure)| concerns_offering(&failure.class));
        of_offering && offering.is_some_and(|offering| !self.tried.contains(offering))
    }

    /// Number of launches that have followed a pause.
    pub fn pauses(&self) -> u32 {
        self.pauses
    }

    /// The last refusal.
    pub fn last(&self) -> Option<&(Stamp, Failure)> {
        self.last.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Policy, Reuse};

    fn job(server: &str, project: &str) -> JobFacts {
        JobFacts::new(JobKey::new(server, 1), project, Duration::ZERO)
    }

    #[test]
    fn the_namespace_is_the_path_without_its_last_part() {
        assert_eq!(job("gl", "group/sub/project").namespace(), "group/sub");
        assert_eq!(job("gl", "user/project").namespace(), "user");
        assert_eq!(job("gl", "project").namespace(), "project");
    }

    #[test]
    fn what_gitlab_does_not_say_is_not_written_and_reads_as_before() {
        let bare = job("gl", "g/p");
        let text = r#"{"key":{"server":"gl","id":1},"project":"g/p","timeout":0}"#;
        assert_eq!(serde_json::to_string(&bare).unwrap(), text);
        assert_eq!(serde_json::from_str::<JobFacts>(text).unwrap(), bare);
        let full = JobFacts {
            pipeline: Some(99),
            stage: JobFacts::text("test"),
            name: JobFacts::text("rspec 1/5"),
            git_ref: JobFacts::text("main"),
            protected: true,
            ..bare
        };
        let text = concat!(
            r#"{"key":{"server":"gl","id":1},"project":"g/p","timeout":0,"#,
            r#""pipeline":99,"stage":"test","name":"rspec 1/5","ref":"main","protected":true}"#,
        );
        assert_eq!(serde_json::to_string(&full).unwrap(), text);
        assert_eq!(serde_json::from_str::<JobFacts>(text).unwrap(), full);
    }

    #[test]
    fn a_text_of_a_job_is_one_clean_line_and_not_too_long() {
        assert_eq!(JobFacts::text("build\n\x1b[31mred\x1b[0m\0").as_deref(), Some("build red"));
        for nothing in ["", " \n ", "\x1b[2J"] {
            assert_eq!(JobFacts::text(nothing), None, "{nothing:?}");
        }
        let longest = "ä".repeat(TEXT_LIMIT);
        assert_eq!(JobFacts::text(&longest).as_deref(), Some(longest.as_str()));
        let cut = JobFacts::text(&(longest + "ä")).unwrap();
        assert_eq!((cut.chars().count(), cut.ends_with('…')), (TEXT_LIMIT, true));
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
        let protected = |job| JobFacts { protected: true, ..job };
        for other in ["g/one", "g/two", "h/one"].map(|project| job("gl", project)) {
            for reuse in [Reuse::Project, Reuse::Namespace] {
                assert!(!share(reuse, &one, &protected(other.clone())), "{reuse:?} {other:?}");
                let both = protected(one.clone());
                let none = share(reuse, &one, &other);
                assert_eq!(share(reuse, &both, &protected(other.clone())), none, "{reuse:?} {other:?}");
            }
            assert!(share(Reuse::Any, &one, &protected(other)));
        }
        let named = Policy { reuse: Reuse::Namespace, ..Policy::default() }.domain_of(&job("gl", "g/one"));
        let project = Policy::default().domain_of(&job("gl", "g"));
        assert_ne!(named, project, "a project is not the group of the same name");
    }
}
