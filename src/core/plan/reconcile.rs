//! Second step: recorded against observed, row by row of the table.

use std::collections::BTreeSet;

use super::Effect;
use super::draft::Draft;
use super::observed::Observed;
use super::table::{self, Age, Recorded, Sight, Unrecorded, Verdict};
use crate::core::event::Change;
use crate::core::ids::InstanceId;
use crate::core::instance::{Answer, DrainWhy, Instance, Phase};
use crate::core::inventory::{Listed, Listing, Status};
use crate::core::policy::Policy;
use crate::core::report::{Note, Report};
use crate::core::time::Stamp;

/// Returns the instances that keep their place but get no job now.
pub(super) fn step(
    draft: &mut Draft<'_>,
    observed: &Observed,
    policy: &Policy,
    report: &mut Report,
) -> BTreeSet<InstanceId> {
    match &observed.listing {
        Err(failure) => report.notes.push(Note::ListFailed { failure: failure.clone() }),
        Ok(listing) if !listing.complete => report.notes.push(Note::ListIncomplete),
        Ok(_) => {}
    }
    let mut held_back = BTreeSet::new();
    let ids: Vec<InstanceId> = draft.state().instances.keys().cloned().collect();
    for id in ids {
        let sight = look(draft, observed, policy, &id);
        let Some(instance) = draft.state().instance(&id) else { continue };
        let (recorded, age) = describe(instance, observed, policy, draft.now);
        let row = table::recorded(recorded, sight, age);
        report.rows.push((id.clone(), row.number));
        if recorded == Recorded::Held && instance.holders.is_empty() {
            held_back.insert(id.clone());
        }
        if row.verdict == Verdict::HoldBack {
            held_back.insert(id.clone());
        }
        if row.verdict == Verdict::Suspect {
            report.notes.push(Note::Suspect { instance: id.clone() });
        }
        carry_out(draft, observed, policy, id, &row.verdict);
    }
    unrecorded(draft, observed, policy, report);
    for (id, trouble) in observed.troubles.iter().filter(|(_, t)| t.failures > 0) {
        let (instance, failure) = (id.clone(), trouble.failure.clone());
        report.notes.push(Note::Trouble { instance, failure, until: trouble.until });
    }
    held_back
}

/// What the world says about a recorded instance; notes when it goes missing and when it is back.
fn look(draft: &mut Draft<'_>, observed: &Observed, policy: &Policy, id: &InstanceId) -> Sight {
    let Ok(listing) = &observed.listing else { return Sight::Unknown };
    let Some(instance) = draft.state().instance(id) else { return Sight::Unknown };
    if let Some(listed) = find(listing, id) {
        if instance.missing.is_some() {
            draft.emit(Change::Seen { instance: id.clone() });
        }
        return match listed.status {
            Status::Starting => Sight::Starting,
            Status::Running => Sight::Running,
            Status::Stopping => Sight::Stopping,
        };
    }
    if !listing.complete || !could_show(instance, listing) {
        return Sight::Unknown;
    }
    let Some(first) = instance.missing else {
        draft.emit(Change::Missed { instance: id.clone(), begun: listing.begun });
        draft.wake_at(draft.now.plus(policy.timing.absence_interval));
        return Sight::Missing;
    };
    if listing.begun.since(first) < policy.timing.absence_interval {
        draft.wake_at(first.plus(policy.timing.absence_interval));
        return Sight::Missing;
    }
    if observed.denied.contains(id) { Sight::Absent } else { Sight::Missing }
}

/// Was the list begun after the launch was answered? An earlier one proves nothing.
fn could_show(instance: &Instance, listing: &Listing) -> bool {
    let Some(launch) = &instance.launch else { return true };
    let since = match &launch.answer {
        Answer::Pending => launch.asked,
        Answer::Accepted { at } | Answer::Unknown { at } | Answer::Refused { at, .. } => *at,
    };
    listing.begun.reached(since)
}

fn find<'a>(listing: &'a Listing, id: &InstanceId) -> Option<&'a Listed> {
    listing.instances.binary_search_by(|l| l.id.cmp(id)).ok().map(|at| &listing.instances[at])
}

/// The instances whose absence `endpoint` should confirm before this pass plans.
pub fn doubtful(state: &crate::core::pool::PoolState, listing: &Listing, policy: &Policy) -> Vec<InstanceId> {
    let missing_long = |i: &Instance| {
        i.missing.is_some_and(|first| listing.begun.since(first) >= policy.timing.absence_interval)
    };
    let lacks = |i: &Instance| listing.complete && could_show(i, listing) && find(listing, &i.id).is_none();
    state.instances.values().filter(|i| missing_long(i) && lacks(i)).map(|i| i.id.clone()).collect()
}

fn describe(instance: &Instance, observed: &Observed, policy: &Policy, now: Stamp) -> (Recorded, Age) {
    let timing = &policy.timing;
    let launching = |asked: Stamp| match now.since(asked) {
        past if past >= timing.launch_timeout => Age::Late,
        past if past >= timing.relaunch_after && observed.capabilities.idempotent_launch => Age::Due,
        _ => Age::Young,
    };
    let asked = instance.launch.as_ref().map_or(instance.since, |l| l.asked);
    let jobs = instance.holders.values().any(|h| h.lingering.is_none());
    match &instance.phase {
        Phase::Launching => {
            let recorded = match instance.launch.as_ref().map(|l| &l.answer) {
                Some(Answer::Refused { .. }) => Recorded::Refused,
                Some(Answer::Accepted { .. }) => Recorded::Booting,
                Some(Answer::Pending | Answer::Unknown { .. }) | None => Recorded::Asked,
            };
            (recorded, launching(asked))
        }
        Phase::Checking => (Recorded::Checking, launching(if instance.is_fixed() { now } else { asked })),
        Phase::Ready if !instance.holders.is_empty() || observed.is_named(&instance.id) => {
            (Recorded::Held, Age::Young)
        }
        Phase::Ready if instance.ready.is_none_or(|ready| ready.boot != now.boot) => {
            (Recorded::Stale, Age::Young)
        }
        Phase::Ready => (Recorded::Idle, Age::Young),
        Phase::Cleaning => (Recorded::Cleaning, Age::Young),
        Phase::SetAside { .. } => (Recorded::SetAside, Age::Young),
        Phase::Draining { .. } if jobs || observed.is_named(&instance.id) => {
            (Recorded::Finishing, Age::Young)
        }
        Phase::Draining { .. } => (Recorded::Leaving, Age::Young),
    }
}

fn carry_out(
    draft: &mut Draft<'_>,
    observed: &Observed,
    policy: &Policy,
    instance: InstanceId,
    verdict: &Verdict,
) {
    match verdict {
        Verdict::Wait => watch(draft, policy, &instance),
        Verdict::Probe => {
            watch(draft, policy, &instance);
            act(draft, observed, Effect::Probe { instance });
        }
        Verdict::LaunchAgain => {
            watch(draft, policy, &instance);
            if observed.launching.is_some() {
                act(draft, observed, Effect::Launch { instance });
            }
        }
        Verdict::Clean => {
            watch(draft, policy, &instance);
            act(draft, observed, Effect::Clean { instance });
        }
        Verdict::Refresh => {
            let fixed = draft.state().instance(&instance).is_some_and(Instance::is_fixed);
            if fixed {
                draft.emit(Change::CleaningBegun { instance: instance.clone() });
                act(draft, observed, Effect::Clean { instance });
            } else {
                drain(draft, observed, instance, DrainWhy::Rebooted);
            }
        }
        Verdict::Drain(why) => drain(draft, observed, instance, why.clone()),
        Verdict::Terminate => act(draft, observed, Effect::Terminate { instance }),
        Verdict::Forget => draft.emit(Change::Forgotten { instance }),
        Verdict::Keep
        | Verdict::HoldBack
        | Verdict::Suspect
        | Verdict::Adopt
        | Verdict::Leave
        | Verdict::Reap
        | Verdict::Alarm
        | Verdict::Ignore => {}
    }
}

/// Something is under way there: look again soon, and at the latest when its time is up.
fn watch(draft: &mut Draft<'_>, policy: &Policy, id: &InstanceId) {
    let Some(known) = draft.state().instance(id) else { return };
    let boots = matches!(known.phase, Phase::Launching | Phase::Checking) && !known.is_refused();
    let cleans = known.phase == Phase::Cleaning;
    let asked = known.launch.as_ref().map_or(known.since, |l| l.asked);
    if boots {
        draft.wake_at(asked.plus(policy.timing.launch_timeout));
    }
    if boots || cleans {
        draft.wake_at(draft.now.plus(policy.timing.pass_interval));
    }
}

/// Drains an instance without jobs: it can be terminated in the same pass.
fn drain(draft: &mut Draft<'_>, observed: &Observed, instance: InstanceId, why: DrainWhy) {
    draft.emit(Change::DrainingBegun { instance: instance.clone(), why });
    act(draft, observed, Effect::Terminate { instance });
}

/// Acts now if nothing is under way, or remembers when to look again.
pub(super) fn act(draft: &mut Draft<'_>, observed: &Observed, effect: Effect) {
    let Some(id) = effect.instance() else { return draft.act(effect) };
    if observed.is_free(id, draft.now) {
        return draft.act(effect);
    }
    if let Some(trouble) = observed.troubles.get(id).filter(|t| !draft.now.reached(t.until)) {
        draft.wake_at(trouble.until);
    }
}

fn unrecorded(draft: &mut Draft<'_>, observed: &Observed, policy: &Policy, report: &mut Report) {
    let Ok(listing) = &observed.listing else { return };
    let mut strangers = Vec::new();
    let mut orphans = Vec::new();
    for listed in &listing.instances {
        if draft.state().instances.contains_key(&listed.id) {
            continue;
        }
        let kind = kind_of(draft, observed, listed);
        let born = listed.created.or_else(|| observed.first_seen.get(&listed.id).copied());
        let due = born.unwrap_or(draft.now).plus(policy.timing.reap_grace);
        let age = if draft.now.reached(due) { Age::Late } else { Age::Young };
        let row = table::unrecorded(kind, listed.status, age);
        report.rows.push((listed.id.clone(), row.number));
        let id = listed.id.clone();
        match row.verdict {
            Verdict::Adopt => act(draft, observed, Effect::Adopt { instance: id }),
            Verdict::Leave if kind == Unrecorded::Ours => draft.wake_at(due),
            Verdict::Reap => orphans.push(id),
            Verdict::Alarm => strangers.push(id),
            Verdict::Leave
            | Verdict::Ignore
            | Verdict::Wait
            | Verdict::LaunchAgain
            | Verdict::Probe
            | Verdict::Keep
            | Verdict::HoldBack
            | Verdict::Suspect
            | Verdict::Refresh
            | Verdict::Clean
            | Verdict::Drain(_)
            | Verdict::Terminate
            | Verdict::Forget => {}
        }
    }
    if strangers.is_empty() {
        for instance in orphans {
            act(draft, observed, Effect::Reap { instance });
        }
    } else {
        report.notes.push(Note::AnotherManager { instances: strangers });
    }
}

fn kind_of(draft: &Draft<'_>, observed: &Observed, listed: &Listed) -> Unrecorded {
    let Some(tags) = &listed.tags else { return Unrecorded::Fixed };
    if tags.owner != observed.owner {
        return Unrecorded::Foreign;
    }
    let recorded = draft.state().generations.get(&tags.generation).copied();
    let highest = match recorded {
        Some(highest) => highest,
        // Begun here, but not yet in this pool's journal: no number was given out.
        None if observed.generations.contains(&tags.generation) => 0,
        None => return Unrecorded::Stranger,
    };
    if tags.number > highest {
        return Unrecorded::Stranger;
    }
    if observed.is_named(&listed.id) { Unrecorded::OursHeld } else { Unrecorded::Ours }
}

/// Listed instances with our owner's tag that no record knows: they count against `max_instances`.
pub(super) fn uncounted(draft: &Draft<'_>, observed: &Observed) -> u32 {
    let Ok(listing) = &observed.listing else { return 0 };
    let ours = |l: &&Listed| l.tags.as_ref().is_some_and(|t| t.owner == observed.owner);
    let unknown = |l: &&Listed| !draft.state().instances.contains_key(&l.id);
    u32::try_from(listing.instances.iter().filter(ours).filter(unknown).count()).unwrap_or(u32::MAX)
}
