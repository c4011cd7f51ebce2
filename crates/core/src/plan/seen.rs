//! What is recorded of the images that scripts have seen on an instance.
//!
//! A fact lasts as long as the image: what a script removes goes, and so does what a cleaning leaves nothing of.

use std::sync::Arc;

use crate::event::{Change, Event};
use crate::ids::{AttemptName, InstanceId};
use crate::images::{FoundImage, SeenImages};
use crate::instance::{Instance, Phase};
use crate::policy::Policy;
use crate::pool::PoolState;
use crate::time::Stamp;

/// True if what a job pulls may serve another one: a further job of the instance, or one beside it.
pub fn is_shared(instance: &Instance, policy: &Policy) -> bool {
    if instance.is_static() {
        // A host that is given to any domain next has lost its images by then.
        return instance.capacity > 1 || !policy.clean_unbinds;
    }
    instance.uses_left != Some(0)
}

/// The keeper has pulled an image on an instance.
pub fn by_keeper(state: &PoolState, instance: &InstanceId, seen: &SeenImages, now: Stamp) -> Vec<Event> {
    let serves = |known: &&Instance| matches!(known.phase, Phase::Checking | Phase::Ready);
    let Some(known) = state.instance(instance).filter(serves) else { return Vec::new() };
    changes(known, seen.found.clone(), seen, None, now)
}

/// A job's `prepare` has pulled or found its images. Once the attempt has left, its instance may have been cleaned.
pub fn by_job(state: &PoolState, attempt: &AttemptName, seen: &SeenImages, now: Stamp) -> Vec<Event> {
    let known = state.granted.get(attempt).and_then(|grant| state.instance(&grant.instance));
    let Some((known, policy)) = known.zip(state.policy.as_deref()) else { return Vec::new() };
    if !is_shared(known, policy) {
        return Vec::new();
    }
    let news = seen.found.iter().filter(|found| !known.images.knows(found)).cloned().collect();
    changes(known, news, seen, Some(attempt), now)
}

fn changes(
    known: &Instance,
    found: Vec<FoundImage>,
    seen: &SeenImages,
    attempt: Option<&AttemptName>,
    now: Stamp,
) -> Vec<Event> {
    let id = || known.id.clone();
    let removed = removed(known, seen);
    let mut changes = Vec::new();
    if !removed.is_empty() {
        changes.push(Change::ImagesRemoved { instance: id(), images: removed }.at(now));
    }
    if !found.is_empty() {
        let attempt = attempt.cloned();
        changes.push(Change::ImagesFound { instance: id(), images: found, attempt }.at(now));
    }
    changes
}

/// The recorded names that went: an image may have several, and is removed with all of them.
fn removed(known: &Instance, seen: &SeenImages) -> Vec<Arc<str>> {
    let facts = || known.images.iter().map(|fact| &fact.image);
    let is_named = |image: &FoundImage| seen.removed.contains(&image.name);
    let digests: Vec<_> =
        facts().filter(|image| is_named(image)).filter_map(|image| image.digest.as_ref()).collect();
    let went = |image: &&FoundImage| {
        is_named(image) || image.digest.as_ref().is_some_and(|digest| digests.contains(&digest))
    };
    facts().filter(went).map(|image| Arc::clone(&image.name)).collect()
}
