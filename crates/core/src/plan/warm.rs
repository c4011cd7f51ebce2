//! Pulls images on idle instances before a job needs them.
//!
//! Few at a time, and nothing waits for it: a pull is stopped when its instance is granted, and one that fails costs the
//! instance nothing. What an instance has is recorded, so a new keeper pulls only what is missing.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::observed::{FailingCall, Observed, Pulls};
use super::reconcile::Reconciled;
use super::{Effect, PlanBuilder};
use crate::event::{Change, Event};
use crate::ids::{AttemptName, InstanceId};
use crate::images::{FoundImage, ImageFact, SeenImages};
use crate::instance::{Instance, Phase};
use crate::job::Reservation;
use crate::policy::Policy;
use crate::pool::PoolState;
use crate::report::{Note, Report};
use crate::time::Stamp;

/// Number of a pool's instances that pull at the same time.
pub const AT_MOST: usize = 2;

/// True if images may be pulled there: no job has it or waits for it.
fn is_fit(instance: &Instance) -> bool {
    instance.is_idle() && instance.usable() > 0 && instance.ordered.is_none()
}

/// True if a pull that is under way goes on: its instance is still idle, and the image is still wanted.
pub fn goes_on(state: &PoolState, instance: &InstanceId, image: &str) -> bool {
    let policy = state.policy.as_ref();
    let wanted = policy.is_some_and(|policy| state.warm_images(policy).iter().any(|i| **i == *image));
    wanted && state.drained.is_none() && state.instance(instance).is_some_and(is_fit)
}

/// True if an idle instance lacks an image that it should have.
pub fn is_missing(state: &PoolState) -> bool {
    let Some(policy) = state.policy.as_ref().filter(|_| state.drained.is_none()) else { return false };
    let images = state.warm_images(policy);
    let lacks = |i: &Instance| is_fit(i) && images.iter().any(|image| i.images.get(image).is_none());
    !images.is_empty() && state.instances.values().any(|i| lacks(i))
}

/// The images that the first waiting job needs and an instance which is being checked lacks.
pub fn ahead(state: &PoolState, instance: &InstanceId) -> Vec<Arc<str>> {
    let (Some(known), Some(policy)) = (state.instance(instance), &state.policy) else { return Vec::new() };
    if known.phase != Phase::Checking || known.ordered.is_some() {
        return Vec::new();
    }
    let suits = |waits: &&Arc<Reservation>| {
        waits.job.order.is_none() && known.admits(&waits.domain) && policy.has_time_for(&waits.job)
    };
    let first = state.waiting.values().find(suits);
    let wanted = first.map(|waits| waits.job.images.names()).unwrap_or_default();
    wanted.iter().filter(|name| known.images.get(name).is_none()).cloned().collect()
}

/// A pull that is due.
struct Due {
    /// True if the instance has the image, perhaps an old one.
    present: bool,
    /// The place of the image in the operator's list.
    place: usize,
    instance: InstanceId,
}

pub(super) fn step(
    draft: &mut PlanBuilder<'_>,
    observed: &Observed,
    policy: &Policy,
    reconciled: &Reconciled,
    report: &mut Report,
) {
    let Some(pulls) = &observed.pulls else { return };
    let under_way = &pulls.under_way;
    if policy.warm.is_off() || draft.state().drained.is_some() {
        return;
    }
    let goes_on = |(id, image): &(&InstanceId, &Arc<str>)| goes_on(draft.state(), id, image);
    report.pulls =
        under_way.iter().filter(goes_on).map(|(id, image)| (id.clone(), Arc::clone(image))).collect();
    let images = draft.state().warm_images(policy).into_owned();
    let mut due = Vec::new();
    for instance in draft.state().instances.values().filter(|i| is_fit(i)) {
        let id = &instance.id;
        if under_way.contains_key(id) || observed.busy.contains(id) || reconciled.held_back.contains(id) {
            continue;
        }
        due.extend(first_due(draft, pulls, (policy, &images), instance));
    }
    due.sort_by(|a, b| (a.present, a.place, &a.instance).cmp(&(b.present, b.place, &b.instance)));
    // What is being stopped counts until it has ended.
    for due in due.into_iter().take(AT_MOST.saturating_sub(under_way.len())) {
        let image = Arc::clone(&images[due.place]);
        report.pulls.push((due.instance.clone(), Arc::clone(&image)));
        draft.act(Effect::Warm { instance: due.instance, image });
    }
    // Which of the jobs' images need a password of theirs is not known.
    if policy.warm.learn.is_none() {
        report.notes.extend(notes(draft, pulls, &images));
    }
}

/// The first image that an instance lacks, else the first one that is compared with the registry's again.
fn first_due(
    draft: &PlanBuilder<'_>,
    pulls: &Pulls,
    (policy, images): (&Policy, &[Arc<str>]),
    instance: &Instance,
) -> Option<Due> {
    let now = draft.now;
    let is_old = |fact: &ImageFact| now.since(fact.checked_at()) >= policy.timing.image_check_interval;
    let mut old = None;
    for (place, image) in images.iter().enumerate() {
        let fact = instance.images.get(image);
        if fact.is_some_and(|fact| !is_old(fact)) {
            continue;
        }
        let failing = pulls.failing.get(&(instance.id.clone(), Arc::clone(image)));
        if let Some(failing) = failing.filter(|failing| !now.reached(failing.until)) {
            // Later tries do not keep an idle keeper awake.
            if failing.failures < policy.timing.breaker_failures {
                draft.wake_at(failing.until);
            }
            continue;
        }
        let due = Due { present: fact.is_some(), place, instance: instance.id.clone() };
        if !due.present {
            return Some(due);
        }
        old = old.or(Some(due));
    }
    old
}

/// The notes for operators about pulls that fail.
fn notes(draft: &PlanBuilder<'_>, pulls: &Pulls, images: &[Arc<str>]) -> Vec<Note> {
    let mut failing: BTreeMap<&str, Vec<&FailingCall>> = BTreeMap::new();
    for ((id, image), call) in &pulls.failing {
        if draft.state().instance(id).is_some_and(is_fit) && images.contains(image) {
            failing.entry(image).or_default().push(call);
        }
    }
    let note = |(image, calls): (&str, Vec<&FailingCall>)| {
        let next = calls.iter().min_by_key(|call| draft.now.until(call.until))?;
        let failure = next.failure.clone();
        let until = next.until;
        let instances = u32::try_from(calls.len()).unwrap_or(u32::MAX);
        Some(Note::ImageNotPulled { image: image.into(), instances, failure, until })
    };
    failing.into_iter().filter_map(note).collect()
}

// What is recorded of the images that scripts have seen on an instance.
//
// A fact lasts as long as the image: what a script removes goes, and so does what a cleaning leaves nothing of.

/// True if what a job pulls may serve another one: a further job of the instance, or one beside it.
pub fn is_shared(instance: &Instance, policy: &Policy) -> bool {
    if instance.is_static() {
        // A host that is given to any domain next has lost its images by then.
        return instance.capacity > 1 || !policy.clean_unbinds;
    }
    instance.uses_left != Some(0)
}

/// The keeper has pulled an image on an instance.
pub fn seen_by_keeper(state: &PoolState, instance: &InstanceId, seen: &SeenImages, now: Stamp) -> Vec<Event> {
    let serves = |known: &&Instance| matches!(known.phase, Phase::Checking | Phase::Ready);
    let Some(known) = state.instance(instance).filter(serves) else { return Vec::new() };
    changes(known, seen.found.clone(), seen, None, now)
}

/// A job's `prepare` has pulled or found its images. Once the attempt has left, its instance may have been cleaned.
pub fn seen_by_job(state: &PoolState, attempt: &AttemptName, seen: &SeenImages, now: Stamp) -> Vec<Event> {
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
