//! What the keeper pulls on idle instances, as the operator configured it.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::images::{FoundImage, WantedImages};
use super::time::millis;

/// `images_warm` of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmPolicy {
    /// Complete names, the most important one first. Empty if they are learned.
    pub images: Vec<Arc<str>>,
    /// Set if the pool learns them from its jobs: the most bytes of all of them, unpacked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learn: Option<u64>,
    /// How long one pull may take.
    #[serde(with = "millis")]
    pub pull_timeout: Duration,
}

impl Default for WarmPolicy {
    fn default() -> Self {
        Self { images: Vec::new(), learn: None, pull_timeout: Duration::from_mins(15) }
    }
}

impl WarmPolicy {
    /// True if nothing is pulled in advance.
    pub fn is_off(&self) -> bool {
        self.images.is_empty() && self.learn.is_none()
    }

    /// The images to pull, the most important one first.
    pub fn images<'a>(&'a self, jobs: &RecentImages) -> Cow<'a, [Arc<str>]> {
        match self.learn {
            None => Cow::Borrowed(&self.images),
            Some(most) => Cow::Owned(jobs.within(most)),
        }
    }
}

/// How many jobs a pool learns from.
const JOBS: usize = 200;

/// The images of the last jobs, for a pool that learns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentImages {
    /// Those of each job, the last one at the end.
    jobs: VecDeque<WantedImages>,
    /// How large those are that have been pulled, unpacked.
    sizes: BTreeMap<Arc<str>, u64>,
}

impl RecentImages {
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Counts a job. One without images counts, too.
    pub(super) fn count(&mut self, images: &WantedImages) {
        self.jobs.push_back(images.clone());
        if self.jobs.len() > JOBS {
            self.jobs.pop_front();
            let (jobs, sizes) = (&self.jobs, &mut self.sizes);
            sizes.retain(|name, _| jobs.iter().any(|job| job.names().contains(name)));
        }
    }

    /// Notes how large an image is, if a job used it.
    pub(super) fn measure(&mut self, found: &FoundImage) {
        if self.jobs.iter().any(|job| job.names().contains(&found.name)) {
            self.sizes.insert(Arc::clone(&found.name), found.bytes);
        }
    }

    /// The images that most jobs used, as far as they fit. One that was never pulled counts nothing until then.
    fn within(&self, most: u64) -> Vec<Arc<str>> {
        let mut used: BTreeMap<&Arc<str>, (usize, usize)> = BTreeMap::new();
        for (place, job) in self.jobs.iter().enumerate() {
            for name in job.names() {
                let known = used.entry(name).or_default();
                *known = (known.0 + 1, place);
            }
        }
        // One job alone says nothing about the next.
        let mut used: Vec<_> = used.into_iter().filter(|(_, (jobs, _))| *jobs > 1).collect();
        used.sort_by(|(a, by_a), (b, by_b)| by_b.cmp(by_a).then_with(|| a.cmp(b)));
        let mut left = most;
        let fits = |name: &&Arc<str>| {
            let size = self.sizes.get(*name).copied().unwrap_or(0);
            let fits = size <= left;
            left -= if fits { size } else { 0 };
            fits
        };
        used.into_iter().map(|(name, _)| name).filter(fits).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recent(jobs: &[&str]) -> RecentImages {
        let mut recent = RecentImages::default();
        for job in jobs {
            let names = job.split(',').filter(|name| !name.is_empty()).map(Arc::from);
            recent.count(&WantedImages::new(names));
        }
        recent
    }

    fn learned(recent: &RecentImages, most: u64) -> String {
        let policy = WarmPolicy { learn: Some(most), ..WarmPolicy::default() };
        policy.images(recent).join(" ")
    }

    #[test]
    fn what_most_of_the_last_jobs_used_comes_first_and_a_single_use_does_not_count() {
        for (jobs, expected) in [
            (&["a"][..], ""),
            (&["a", "a"], "a"),
            (&["a", "b", "b,a", "b", "c"], "b a"),
            // The one that was used last, among as many.
            (&["a", "b", "a", "b"], "b a"),
            (&["", "a", "", "a"], "a"),
        ] {
            assert_eq!(learned(&recent(jobs), u64::MAX), expected, "{jobs:?}");
        }
    }

    #[test]
    fn the_bound_leaves_out_what_does_not_fit_as_soon_as_its_size_is_known() {
        let mut recent = recent(&["a,b,c", "a,b,c", "a,b", "a"]);
        assert_eq!(learned(&recent, 10), "a b c");
        for (name, bytes) in [("a", 6), ("b", 5), ("c", 4), ("never used", 1)] {
            recent.measure(&FoundImage { name: name.into(), digest: None, bytes });
        }
        assert_eq!(
            (learned(&recent, 10), learned(&recent, 5), learned(&recent, 0)),
            ("a c".into(), "b".into(), String::new())
        );
        assert_eq!(recent.sizes.len(), 3);
    }

    #[test]
    fn only_the_last_jobs_count() {
        let mut recent = recent(&["a", "a"]);
        recent.measure(&FoundImage { name: "a".into(), digest: None, bytes: 1 });
        for _ in 0..JOBS {
            recent.count(&WantedImages::new([Arc::from("b")]));
        }
        assert_eq!((learned(&recent, 9), recent.jobs.len(), recent.sizes.len()), ("b".into(), JOBS, 0));
    }
}
