//! Images that instances have, and those that jobs want.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::{Stamp, millis};

/// Images that are recorded of an instance. Jobs choose their names, and an instance may have any number of jobs.
const MOST: usize = 300;

/// An image as it was found on an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundImage {
    /// The image's complete name: registry, path, and tag or digest.
    pub name: Arc<str>,
    /// The digest of the image's manifest; `None`: the engine did not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Arc<str>>,
    /// The image's size on the instance, unpacked.
    pub bytes: u64,
}

/// An image that an instance has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageFact {
    #[serde(flatten)]
    pub image: FoundImage,
    /// Time since which the image has had this name on the instance, with this digest.
    pub since: Stamp,
    /// Time at which the image was last compared with the registry's, if that was later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked: Option<Stamp>,
}

impl ImageFact {
    /// Time at which the image was last compared with the registry's.
    pub fn checked_at(&self) -> Stamp {
        self.checked.unwrap_or(self.since)
    }
}

/// The images of an instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<ImageFact>", into = "Vec<ImageFact>")]
pub struct Images {
    facts: Vec<ImageFact>,
    marks: Marks,
}

/// A script's observations of the images of an instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeenImages {
    pub found: Vec<FoundImage>,
    /// Removed before the others came.
    pub removed: Vec<Arc<str>>,
}

impl SeenImages {
    pub fn is_empty(&self) -> bool {
        self.found.is_empty() && self.removed.is_empty()
    }

    /// True if it tells nothing that these facts lack.
    pub fn is_known(&self, images: &Images) -> bool {
        self.removed.is_empty() && self.found.iter().all(|found| images.knows(found))
    }
}

/// The complete names of a job's images, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Arc<str>>", into = "Vec<Arc<str>>")]
pub struct WantedImages {
    names: Vec<Arc<str>>,
    /// The marks of each name.
    marks: Vec<Marks>,
    /// The marks of all names.
    all: Marks,
}

/// Two of 128 bits for each name of a set. Names may share bits: a set that has a name has its bits, and rarely one that
/// lacks it. So most comparisons need no look at the texts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Marks([u64; 2]);

impl Marks {
    /// FNV-1a: the same in each process.
    fn of(name: &str) -> Self {
        let begin = 0xcbf2_9ce4_8422_2325;
        let hash = name
            .bytes()
            .fold(begin, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Self([1 << (hash % 64), 1 << ((hash >> 32) % 64)])
    }

    /// The marks of both sets.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self([self.0[0] | other.0[0], self.0[1] | other.0[1]])
    }

    fn has(self, other: Self) -> bool {
        self.0[0] & other.0[0] == other.0[0] && self.0[1] & other.0[1] == other.0[1]
    }

    /// The most of these names that the set may have; the true number is never larger.
    pub fn at_most(self, wanted: &WantedImages) -> u32 {
        wanted.marks.iter().map(|marks| u32::from(self.has(*marks))).sum()
    }

    /// True if the set may have at least `needed` of these names. Usually all of them are needed: then one look suffices.
    pub fn may_have(self, wanted: &WantedImages, needed: u32) -> bool {
        match needed.cmp(&wanted.count()) {
            Ordering::Greater => false,
            Ordering::Equal => self.has(wanted.all),
            Ordering::Less => self.at_most(wanted) >= needed,
        }
    }
}

impl Images {
    pub fn is_empty(&self) -> bool {
        self.facts.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &ImageFact> {
        self.facts.iter()
    }

    pub fn get(&self, name: &str) -> Option<&ImageFact> {
        self.facts.iter().find(|fact| *fact.image.name == *name)
    }

    /// Notes an image that was found at `at`.
    pub(super) fn note(&mut self, found: &FoundImage, at: Stamp) {
        let known = self.facts.iter_mut().find(|fact| fact.image.name == found.name);
        match known {
            Some(known) if known.image.digest == found.digest => {
                known.image.bytes = found.bytes;
                known.checked = Some(at);
            }
            Some(known) => *known = ImageFact { image: found.clone(), since: at, checked: None },
            None => {
                // The one that was not seen for longest goes; without its record, a job pulls it again at most.
                if self.facts.len() >= MOST {
                    let seen = |fact: &ImageFact| fact.checked_at().wall_ms;
                    let oldest = (0..self.facts.len()).min_by_key(|at| seen(&self.facts[*at])).unwrap_or(0);
                    self.facts.remove(oldest);
                    *self = std::mem::take(&mut self.facts).into();
                }
                self.facts.push(ImageFact { image: found.clone(), since: at, checked: None });
            }
        }
        self.marks = self.marks.with(Marks::of(&found.name));
    }

    /// Keeps those facts only.
    pub(super) fn retain(&mut self, is_kept: impl Fn(&ImageFact) -> bool) {
        let mut facts = std::mem::take(&mut self.facts);
        facts.retain(is_kept);
        *self = facts.into();
    }

    /// True if it has this name there, with this digest.
    pub fn knows(&self, found: &FoundImage) -> bool {
        self.get(&found.name).is_some_and(|fact| fact.image.digest == found.digest)
    }

    pub fn marks(&self) -> Marks {
        self.marks
    }

    /// Number of these names that are among the images.
    pub fn count(&self, wanted: &WantedImages) -> u32 {
        if self.marks.at_most(wanted) == 0 {
            return 0;
        }
        let count = wanted.names.iter().filter(|name| self.get(name).is_some()).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }
}

impl WantedImages {
    pub fn new(names: impl IntoIterator<Item = Arc<str>>) -> Self {
        let mut all: Vec<Arc<str>> = Vec::new();
        for name in names {
            if !all.contains(&name) {
                all.push(name);
            }
        }
        let marks: Vec<Marks> = all.iter().map(|name| Marks::of(name)).collect();
        let of_all = marks.iter().copied().fold(Marks::default(), Marks::with);
        Self { names: all, marks, all: of_all }
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    /// Number of names.
    pub fn count(&self) -> u32 {
        u32::try_from(self.names.len()).unwrap_or(u32::MAX)
    }
}

impl From<Vec<ImageFact>> for Images {
    fn from(facts: Vec<ImageFact>) -> Self {
        let marks = facts.iter().map(|fact| Marks::of(&fact.image.name)).fold(Marks::default(), Marks::with);
        Self { facts, marks }
    }
}

impl From<Images> for Vec<ImageFact> {
    fn from(images: Images) -> Self {
        images.facts
    }
}

impl From<Vec<Arc<str>>> for WantedImages {
    fn from(names: Vec<Arc<str>>) -> Self {
        Self::new(names)
    }
}

impl From<WantedImages> for Vec<Arc<str>> {
    fn from(wanted: WantedImages) -> Self {
        wanted.names
    }
}

// What the keeper pulls on idle instances, as the operator configured it.

/// `images_warm` of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmPolicy {
    /// Complete names, the most important one first. Empty if they are learned.
    pub images: Vec<Arc<str>>,
    /// The most bytes, unpacked, of all images that the pool learns from its jobs; `None`: it learns none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learn: Option<u64>,
    /// Limit for one pull.
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

/// Number of jobs that a pool learns from.
const JOBS: usize = 200;

/// The images of the last jobs, for a pool that learns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentImages {
    /// The images of each job, the last one at the end.
    jobs: VecDeque<WantedImages>,
    /// Sizes of the images that have been pulled, unpacked.
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
            let jobs = &self.jobs;
            let sizes = &mut self.sizes;
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
    use proptest::prelude::*;

    use super::*;
    use crate::notation::NOW;

    fn found(name: &str, digest: &str) -> FoundImage {
        FoundImage { name: name.into(), digest: Some(digest.into()), bytes: 7 }
    }

    #[test]
    fn of_too_many_images_the_one_that_was_not_seen_for_longest_is_forgotten() {
        let mut images = Images::default();
        let found = |number: usize| FoundImage { name: format!("i{number}").into(), digest: None, bytes: 1 };
        for number in 0..MOST {
            images.note(&found(number), NOW.plus(Duration::from_secs(number as u64)));
        }
        images.note(&found(0), NOW.plus(Duration::from_hours(1)));
        images.note(&found(MOST), NOW.plus(Duration::from_hours(2)));
        assert_eq!(images.iter().count(), MOST);
        assert!(images.get("i1").is_none() && images.get("i0").is_some() && images.get("i2").is_some());
        let wanted = WantedImages::new(["i0".into(), "i1".into(), format!("i{MOST}").into()]);
        assert_eq!(images.count(&wanted), 2);
    }

    #[test]
    fn a_digest_that_changes_begins_anew_and_the_same_one_is_only_checked() {
        let mut images = Images::default();
        let later = NOW.plus(Duration::from_secs(1));
        let last = NOW.plus(Duration::from_secs(2));
        images.note(&found("a:1", "x"), NOW);
        images.note(&found("a:1", "x"), later);
        let fact = images.get("a:1").unwrap();
        assert_eq!((fact.since, fact.checked_at()), (NOW, later));
        images.note(&found("a:1", "y"), last);
        let fact = images.get("a:1").unwrap();
        assert_eq!((fact.since, fact.checked_at(), fact.image.digest.as_deref()), (last, last, Some("y")));
        assert_eq!(images.iter().count(), 1);
    }

    proptest! {
        #[test]
        fn the_bound_is_never_too_low_and_both_survive_their_text(
            has in proptest::collection::vec("[a-c]{1,2}", 0..6),
            wants in proptest::collection::vec("[a-c]{1,2}", 0..6),
        ) {
            let mut images = Images::default();
            for name in &has {
                images.note(&found(name, "x"), NOW);
            }
            let wanted = WantedImages::new(wants.iter().map(|name| name.as_str().into()));
            let common = wanted.names().iter().filter(|name| has.iter().any(|own| **own == ***name)).count();
            prop_assert_eq!(images.count(&wanted), u32::try_from(common).unwrap());
            let at_most = images.marks().at_most(&wanted);
            prop_assert!(at_most >= images.count(&wanted));
            for needed in 0..8 {
                prop_assert_eq!(images.marks().may_have(&wanted, needed), at_most >= needed);
            }
            let text = serde_json::to_string(&(&images, &wanted)).unwrap();
            prop_assert_eq!(serde_json::from_str::<(Images, WantedImages)>(&text).unwrap(), (images, wanted));
        }
    }

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
