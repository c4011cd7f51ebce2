//! Step *reconcile*: recorded against observed, row by row of the table.

use std::collections::BTreeSet;
use std::time::Duration;

use super::attempts::UngrantedAttempts;
use super::listing::{self, Coverage, Elsewhere, Implausible, KnownLaunches, coverage, is_elsewhere};
use super::observed::Observed;
use super::table::{self, Age, Observation, Recorded, Unrecorded, Verdict};
use super::{Effect, PlanBuilder, health};
use crate::event::Change;
use crate::ids::InstanceId;
use crate::instance::{Answer, DrainReason, Instance, LaunchRecord, Phase, Suspension};
use crate::inventory::{Listed, Listing, Status};
use crate::orphan::{Ownership, judge_copy};
use crate::policy::{Policy, Timing};
use crate::pool::PoolState;
use crate::report::{Note, Report};
use crate::time::{Pretty, Stamp};

/// The results of this step that later steps need.
#[derive(Debug, Default)]
pub(super) struct Reconciled {
    /// Instances that are kept but get no job now.
    pub(super) held_back: BTreeSet<InstanceId>,
    /// Listed instances with this owner's tag and without a record: they count against [`Policy::max_instances`].
    pub(super) uncounted: u32,
    pub(super) elsewhere: Option<Elsewhere>,
    pub(super) implausible: Option<Implausible>,
}

pub(super) fn step(
    draft: &mut PlanBuilder<'_>,
    observed: &Observed,
    policy: &Policy,
    ungranted: &UngrantedAttempts,
    report: &mut Report,
) -> Reconciled {
    let mut listed = match &observed.listing {
        Err(failure) => {
            report.notes.push(Note::ListFailed { failure: failure.clone() });
            [].iter().peekable()
        }
        Ok(listing) => {
            if !listing.complete {
                report.notes.push(Note::ListIncomplete);
            }
            listing.instances.iter().peekable()
        }
    };
    let implausible = Implausible::of(draft.state(), observed, policy, draft.now);
    report.notes.extend(implausible.as_ref().and_then(Implausible::note));
    let mut reconciled = Reconciled { implausible, ..Reconciled::default() };
    let mut todo = Vec::new();
    let mut others = Vec::new();
    report.rows.reserve(draft.state().instances.len());
    // Both are sorted by id, so one walk covers both.
    for (id, instance) in &draft.state().instances {
        while let Some(other) = listed.next_if(|l| l.id < *id) {
            others.push(other);
        }
        let own = listed.next_if(|l| l.id == *id);
        let doubt = reconciled.implausible.as_ref();
        let (observation, noted) = observe(draft, observed, policy, instance, (own, doubt));
        let (recorded, age) = describe(instance, draft.state(), observed, policy, ungranted, draft.now);
        let row = table::recorded(recorded, observation, age);
        report.rows.push((id.clone(), row.number));
        if row.verdict == Verdict::HoldBack || ungranted.names(id) {
            reconciled.held_back.insert(id.clone());
        }
        let detail = own.and_then(|own| own.detail.clone());
        if row.verdict == Verdict::Suspect {
            let by_job = own.is_some_and(|own| own.by_job) && instance.had_one_job();
            report.notes.push(Note::Suspect { instance: id.clone(), cause: detail.clone(), by_job });
        }
        report.details.extend(detail.map(|detail| (id.clone(), detail)));
        let stays = matches!(row.verdict, Verdict::Keep | Verdict::HoldBack | Verdict::Suspect);
        if !noted.is_empty() || !stays || instance.is_static() {
            todo.push((id.clone(), own, noted, row.verdict));
        }
    }
    others.extend(listed);
    for (id, own, noted, verdict) in todo {
        for change in noted {
            draft.emit(change);
        }
        if let Some(own) = own {
            health::resize(draft, policy, own);
        }
        if verdict == Verdict::HoldBack {
            health::hold_back(draft, policy, &id, own);
        }
        carry_out(draft, observed, policy, id, &verdict);
    }
    reconciled.uncounted = unrecorded(draft, observed, policy, &others, report);
    report.notes.extend(copies(observed));
    reconciled.elsewhere = Elsewhere::find(draft.state(), observed);
    report.notes.extend(reconciled.elsewhere.as_ref().map(Elsewhere::note));
    report.notes.extend(listing::unknown(draft.state(), observed));
    let unavailable = health::unavailable(observed);
    let unavailable_ids: BTreeSet<&InstanceId> = unavailable.iter().map(|(id, _)| *id).collect();
    for (id, failing) in observed.failing_calls.iter().filter(|(id, _)| !unavailable_ids.contains(id)) {
        let instance = id.clone();
        let failure = failing.failure.clone();
        report.notes.push(match health::obstacle(draft, observed, id) {
            Some(reason) => Note::Unavailable { instance, reason },
            None => Note::CallsFailing { instance, failure, until: failing.until },
        });
    }
    for (id, why) in unavailable {
        report.notes.push(Note::Unavailable { instance: id.clone(), reason: why.to_owned() });
    }
    reconciled
}

/// The observed side of a recorded instance; notes when it goes missing, when it is listed again, and where.
fn observe(
    draft: &PlanBuilder<'_>,
    observed: &Observed,
    policy: &Policy,
    instance: &Instance,
    (listed, implausible): (Option<&Listed>, Option<&Implausible>),
) -> (Observation, Vec<Change>) {
    let Ok(listing) = &observed.listing else { return (Observation::Unknown, Vec::new()) };
    let id = || instance.id.clone();
    if let Some(listed) = listed {
        let back = instance.missing.map(|_| Change::ListedAgain { instance: id() });
        let found = listing.location.as_ref().filter(|location| instance.location.as_ref() != Some(location));
        let found = found.map(|location| Change::Located { instance: id(), location: location.clone() });
        let observation = match listed.status {
            Status::Running => Observation::Running,
            Status::Stopping if !instance.is_static() => Observation::Stopping,
            Status::Starting | Status::Stopping | Status::Suspended if is_ready_since(instance, listing) => {
                Observation::Unknown
            }
            Status::Suspended => Observation::Suspended,
            // A stopping host may start again, and nothing of Greenroom's is lost with it.
            Status::Starting | Status::Stopping => Observation::Starting,
        };
        return (observation, back.into_iter().chain(found).collect());
    }
    match coverage(instance, listing) {
        Coverage::Elsewhere => return (Observation::Elsewhere, Vec::new()),
        Coverage::Covered if listing.complete && could_show(instance, listing) => {}
        Coverage::Covered | Coverage::Unknown => return (Observation::Unknown, Vec::new()),
    }
    let interval = policy.timing.absence_interval;
    let Some(first) = instance.missing else {
        draft.wake_at(draft.now.plus(interval));
        return (
            Observation::Missing,
            vec![Change::MissingFromList { instance: id(), begun: listing.begun }],
        );
    };
    if !missing_for_long(first, listing, policy) {
        let due = first.plus(interval);
        // The interval has passed, but this list is older than that: the next one decides.
        let next_list = draft.now.plus(policy.timing.list_interval);
        draft.wake_at(if draft.now.reached(due) { next_list } else { due });
        return (Observation::Missing, Vec::new());
    }
    if implausible.is_some_and(|implausible| implausible.protects(instance)) {
        draft.wake_at(draft.now.plus(interval));
        return (Observation::Unknown, Vec::new());
    }
    if is_denied(instance, listing, observed) {
        return (Observation::Absent, Vec::new());
    }
    draft.wake_at(draft.now.plus(interval));
    (Observation::Missing, Vec::new())
}

/// True if the list was begun long enough after the one that first lacked the instance: a provider that shows changes late
/// would otherwise lack it in both.
fn missing_for_long(first: Stamp, listing: &Listing, policy: &Policy) -> bool {
    listing.begun.since(first.seen_from(listing.begun)) >= policy.timing.absence_interval
}

/// True if `endpoint` denied the instance ([`Observed::denied`]) before the list was begun. A later answer may be that of
/// another account: only a list names its location.
fn is_denied(instance: &Instance, listing: &Listing, observed: &Observed) -> bool {
    observed.denied.get(&instance.id).is_some_and(|at| listing.begun.reached(at.seen_from(listing.begun)))
}

/// True if an instance became ready after a list was begun, which shows it as it was before.
pub(super) fn is_ready_since(instance: &Instance, listing: &Listing) -> bool {
    let is_later = |ready: Stamp| !listing.begun.reached(ready.seen_from(listing.begun));
    instance.phase == Phase::Ready && instance.ready.is_some_and(is_later)
}

/// True if the list was begun after the launch was answered. An earlier one proves nothing.
fn could_show(instance: &Instance, listing: &Listing) -> bool {
    instance
        .launch
        .as_ref()
        .is_none_or(|launch| listing.begun.reached(last_try(launch).seen_from(listing.begun)))
}

/// Time at which the launch was answered, or requested if no answer is known.
fn last_try(launch: &LaunchRecord) -> Stamp {
    match &launch.answer {
        Answer::Pending => launch.requested_at,
        Answer::Accepted { at } | Answer::Unknown { at } | Answer::Refused { at, .. } => *at,
    }
}

/// The instances whose absence `endpoint` should confirm before this pass plans.
pub fn unconfirmed_absences(
    state: &crate::pool::PoolState,
    listing: &Listing,
    policy: &Policy,
) -> Vec<InstanceId> {
    if !listing.complete {
        return Vec::new();
    }
    let listed = |id: &InstanceId| listing.instances.binary_search_by(|l| l.id.cmp(id)).is_ok();
    let missing = |i: &Instance| {
        // Nothing follows from the absence of a refused launch.
        !i.is_refused() && i.missing.is_some_and(|first| missing_for_long(first, listing, policy))
    };
    let instances = state.instances.values();
    let covered = |i: &Instance| coverage(i, listing) == Coverage::Covered && could_show(i, listing);
    let doubtful = instances.filter(|i| missing(i) && covered(i) && !listed(&i.id));
    doubtful.map(|i| i.id.clone()).collect()
}

/// The column *recorded* of the table for an instance, and how long its launch, suspension or resume has lasted.
///
/// The order of the arms is an order of evidence. Use comes first: a directory that names the instance may know of a job
/// that the journal lost in a crash, so neither phase nor age may end that instance. Then the reboot: what was recorded
/// before it may lack the last events. Only then does the phase count.
fn describe(
    instance: &Instance,
    state: &PoolState,
    observed: &Observed,
    policy: &Policy,
    ungranted: &UngrantedAttempts,
    now: Stamp,
) -> (Recorded, Age) {
    let named = ungranted.names(&instance.id);
    let forgotten = |at: Stamp| state.may_have_forgotten(at, now);
    let recorded = match &instance.phase {
        // A job may still run on it: it is terminated only when the last one has left.
        Phase::Draining { .. } if named || !super::upcoming::is_left(instance) => Recorded::Draining,
        Phase::Draining { .. } => Recorded::Terminating,
        // Before *held*: the record lacks a job that has run here, so no further job may follow, which a held one would get.
        Phase::Launching
        | Phase::Checking
        | Phase::Ready
        | Phase::Suspended { .. }
        | Phase::Cleaning
        | Phase::OutOfService { .. }
            if named && is_claimed(instance, observed, ungranted) =>
        {
            Recorded::Unaccounted
        }
        Phase::Launching
        | Phase::Checking
        | Phase::Ready
        | Phase::Suspended { .. }
        | Phase::Cleaning
        | Phase::OutOfService { .. }
            if named || !instance.holders.is_empty() =>
        {
            Recorded::Held
        }
        Phase::Cleaning => Recorded::Cleaning,
        Phase::OutOfService { .. } => Recorded::OutOfService,
        // Before the reboot counts: a refused launch has no instance that could have got a job.
        Phase::Launching if instance.is_refused() => Recorded::Refused,
        // The record may lack the last events before the reboot, such as a grant.
        Phase::Launching | Phase::Checking | Phase::Suspended { .. } if forgotten(instance.since) => {
            Recorded::Stale
        }
        Phase::Ready if instance.ready.is_none_or(forgotten) => Recorded::Stale,
        // An accepted launch has an instance to wait for; an unanswered one may have none, and is repeated.
        Phase::Launching if is_accepted(instance) => Recorded::Booting,
        Phase::Launching => Recorded::Requested,
        Phase::Checking => Recorded::Checking,
        Phase::Ready => Recorded::Idle,
        Phase::Suspended { step: Suspension::Suspending } => Recorded::Suspending,
        Phase::Suspended { step: Suspension::Stopped } => Recorded::Stopped,
        Phase::Suspended { step: Suspension::Resuming } => Recorded::Resuming,
    };
    (recorded, age(instance, observed, policy, now))
}

/// True if an attempt without a grant has run a stage there: the record lacks a job.
fn is_claimed(instance: &Instance, observed: &Observed, ungranted: &UngrantedAttempts) -> bool {
    // RACE: an attempt that ended after the directories were read was open in them, too.
    let read = observed.attempts_at;
    let changed = |at: Option<Stamp>| at.is_some_and(|at| at.seen_from(read).reached(read));
    let fresh = changed(instance.released) || changed(instance.ready) || changed(Some(instance.since));
    let cleanable = matches!(instance.phase, Phase::Checking | Phase::Ready) && instance.holders.is_empty();
    ungranted.used(&instance.id) && !fresh && (!instance.is_static() || cleanable)
}

/// True if the provider has accepted the launch.
fn is_accepted(instance: &Instance) -> bool {
    instance.launch.as_ref().is_some_and(|l| matches!(l.answer, Answer::Accepted { .. }))
}

/// The age of a launch, a suspension or a resume; anything else is young.
fn age(instance: &Instance, observed: &Observed, policy: &Policy, now: Stamp) -> Age {
    let timing = &policy.timing;
    match (&instance.phase, &instance.launch) {
        (Phase::Launching | Phase::Checking, Some(launch)) => {
            if now.age_of(launch.requested_at) >= timing.launch_timeout {
                return Age::Late;
            }
            let again = now.age_of(last_try(launch)) >= timing.relaunch_after;
            if again && observed.capabilities.idempotent_launch { Age::Due } else { Age::Young }
        }
        (Phase::Suspended { step }, _) => {
            let limit = moves_within(*step, timing);
            if limit.is_some_and(|limit| now.age_of(instance.since) >= limit) {
                Age::Late
            } else {
                Age::Young
            }
        }
        _ => Age::Young,
    }
}

/// Limit for a suspension or a resume. An instance that is stopped waits for a resume without a limit.
fn moves_within(step: Suspension, timing: &Timing) -> Option<Duration> {
    match step {
        Suspension::Suspending => Some(timing.suspend_timeout),
        Suspension::Resuming => Some(timing.resume_timeout),
        Suspension::Stopped => None,
    }
}

/// Turns a row's verdict into changes and effects. In a drained pool, suspended and resuming instances are drained instead:
/// a resumed one would only be terminated.
fn carry_out(
    draft: &mut PlanBuilder<'_>,
    observed: &Observed,
    policy: &Policy,
    instance: InstanceId,
    verdict: &Verdict,
) {
    let moves = |i: &Instance| matches!(i.phase, Phase::Suspended { .. }) && i.holders.is_empty();
    let acts = matches!(verdict, Verdict::Suspend | Verdict::Record | Verdict::Resume | Verdict::Probe);
    if acts && draft.state().drained.is_some() && draft.state().instance(&instance).is_some_and(moves) {
        return drain(draft, observed, instance, DrainReason::ByOperator);
    }
    match verdict {
        Verdict::Wait => watch(draft, policy, &instance),
        Verdict::Probe => {
            watch(draft, policy, &instance);
            act(draft, observed, Effect::Probe { instance });
        }
        // The limit was lowered after the intent: another request would exceed it.
        Verdict::LaunchAgain if made(draft) > policy.max_instances => {
            drain(draft, observed, instance, DrainReason::Surplus);
        }
        Verdict::LaunchAgain => {
            watch(draft, policy, &instance);
            if observed.launching.is_some() {
                act(draft, observed, Effect::Launch { instance, repeated: true });
            }
        }
        Verdict::Clean => {
            watch(draft, policy, &instance);
            act(draft, observed, Effect::Clean { instance });
        }
        Verdict::Suspend | Verdict::Record | Verdict::Resume | Verdict::GiveUp => {
            move_tier(draft, observed, policy, instance, verdict);
        }
        Verdict::Refresh if is_static(draft, &instance) => clean(draft, observed, instance),
        Verdict::Refresh => drain(draft, observed, instance, DrainReason::Rebooted),
        Verdict::LastJob => {
            if !is_static(draft, &instance) {
                draft.emit(Change::DrainingBegun { instance, reason: DrainReason::Unaccounted });
            } else if policy.clean_unbinds || is_bound(draft, &instance) {
                draft.emit(Change::CleaningBegun { instance });
            } else {
                // Cleaning does not separate domains here, and the domain of its jobs is unknown.
                draft.emit(Change::OutOfService { instance, reason: DrainReason::Unaccounted.to_string() });
            }
        }
        Verdict::Drain(_) if is_static(draft, &instance) => forget(draft, observed, instance),
        Verdict::Drain(why) => drain(draft, observed, instance, why.clone()),
        Verdict::Terminate => act(draft, observed, Effect::Terminate { instance }),
        // To forget is to terminate once more: keys go first and the record last, so that a kill in between leaks
        // nothing. A launch that is still under way in this process is not absence.
        Verdict::Forget => act(draft, observed, Effect::Forget { instance }),
        // In another location: looked at again, because what is to be terminated costs money.
        Verdict::Leave => draft.wake_at(draft.now.plus(policy.timing.pass_interval)),
        Verdict::Keep
        | Verdict::HoldBack
        | Verdict::Suspect
        | Verdict::Adopt
        | Verdict::Reap
        | Verdict::Alarm
        | Verdict::Ignore => {}
    }
}

/// The recorded instances without refused launches, which created nothing.
fn made(draft: &PlanBuilder<'_>) -> u32 {
    let made = draft.state().instances.values().filter(|i| !i.is_refused());
    u32::try_from(made.count()).unwrap_or(u32::MAX)
}

/// Carries out the rows of the tier *stopped*.
fn move_tier(
    draft: &mut PlanBuilder<'_>,
    observed: &Observed,
    policy: &Policy,
    instance: InstanceId,
    verdict: &Verdict,
) {
    let resumes = draft.state().instance(&instance).is_some_and(|i| i.phase.is_resuming());
    if *verdict == Verdict::GiveUp {
        let message = |key, limit| format!("not within {} (`{key}`)", Pretty(limit));
        let timing = &policy.timing;
        let why = if resumes {
            DrainReason::NotResumed { message: message("resume_timeout", timing.resume_timeout) }
        } else {
            DrainReason::NotSuspended { message: message("suspend_timeout", timing.suspend_timeout) }
        };
        return drain(draft, observed, instance, why);
    }
    if *verdict == Verdict::Record {
        // RACE: a call that is still under way here would suspend it once more, after it was resumed.
        if observed.busy.contains(&instance) {
            watch(draft, policy, &instance);
        } else {
            draft.emit(Change::Suspended { instance });
        }
        return;
    }
    // It runs, and costs as much as an idle one.
    if !resumes && draft.state().instance(&instance).is_some_and(|i| i.phase.is_stopped()) {
        draft.emit(Change::SuspendIntended { instance: instance.clone() });
    }
    watch(draft, policy, &instance);
    act(draft, observed, if resumes { Effect::Resume { instance } } else { Effect::Suspend { instance } });
}

/// RACE: a launch that is still under way here may yet create it; then it needs its record.
fn forget(draft: &mut PlanBuilder<'_>, observed: &Observed, instance: InstanceId) {
    if !observed.busy.contains(&instance) {
        draft.emit(Change::Forgotten { instance });
    }
}

fn is_static(draft: &PlanBuilder<'_>, id: &InstanceId) -> bool {
    draft.state().instance(id).is_some_and(Instance::is_static)
}

fn is_bound(draft: &PlanBuilder<'_>, id: &InstanceId) -> bool {
    draft.state().instance(id).is_some_and(|known| known.domain.is_some())
}

/// Watches an instance with something under way: schedules the next pass soon, and at the latest at its deadline.
fn watch(draft: &PlanBuilder<'_>, policy: &Policy, id: &InstanceId) {
    let Some(known) = draft.state().instance(id) else { return };
    let boots = matches!(known.phase, Phase::Launching | Phase::Checking) && !known.is_refused();
    if let Some(launch) = known.launch.as_ref().filter(|_| boots) {
        draft.wake_at(launch.requested_at.plus(policy.timing.launch_timeout));
    }
    let moves =
        if let Phase::Suspended { step } = known.phase { moves_within(step, &policy.timing) } else { None };
    // A call that is under way may outlast the limit: its end wakes the keeper.
    if let Some(limit) = moves.map(|limit| known.since.plus(limit)).filter(|limit| !draft.now.reached(*limit))
    {
        draft.wake_at(limit);
    }
    if boots || moves.is_some() || known.phase == Phase::Cleaning {
        draft.wake_at(draft.now.plus(policy.timing.pass_interval));
    }
}

/// Drains an instance without jobs: it can be terminated in the same pass.
pub(super) fn drain(
    draft: &mut PlanBuilder<'_>,
    observed: &Observed,
    instance: InstanceId,
    why: DrainReason,
) {
    draft.emit(Change::DrainingBegun { instance: instance.clone(), reason: why });
    act(draft, observed, Effect::Terminate { instance });
}

/// Cleans a static host without jobs.
pub(super) fn clean(draft: &mut PlanBuilder<'_>, observed: &Observed, instance: InstanceId) {
    draft.emit(Change::CleaningBegun { instance: instance.clone() });
    act(draft, observed, Effect::Clean { instance });
}

/// Acts now if nothing is under way, or schedules the pass that retries. Makes no call of a provider that answers for
/// another location: its answer would be about another instance, or none.
pub(super) fn act(draft: &mut PlanBuilder<'_>, observed: &Observed, effect: Effect) {
    let Some(id) = effect.instance() else { return draft.act(effect) };
    if effect.calls_provider() && draft.state().instance(id).is_some_and(|i| is_elsewhere(i, observed)) {
        return;
    }
    if observed.is_free(id, draft.now) {
        return draft.act(effect);
    }
    if let Some(until) = observed.paused_until(id, draft.now) {
        draft.wake_at(until);
    }
}

/// Acts on listed instances without a record. Returns how many of them belong to this owner.
fn unrecorded(
    draft: &mut PlanBuilder<'_>,
    observed: &Observed,
    policy: &Policy,
    others: &[&Listed],
    report: &mut Report,
) -> u32 {
    let complete = observed.listing.as_ref().is_ok_and(|l| l.complete);
    let mut owned = 0;
    let mut strangers = Vec::new();
    let mut orphans = Vec::new();
    for listed in others {
        let kind = KnownLaunches::seen_by(draft.state(), observed).classify(&listed.id, listed.tags.as_ref());
        owned += u32::from(!matches!(kind, Unrecorded::Static | Unrecorded::Foreign));
        let due = grace_ends(listed, observed, policy, draft.now);
        let late = draft.now.reached(due);
        // The missing part of the list may contain a stranger.
        let age = if late && complete { Age::Late } else { Age::Young };
        let row = table::unrecorded(kind, listed.status, age);
        report.rows.push((listed.id.clone(), row.number));
        let id = listed.id.clone();
        match row.verdict {
            Verdict::Adopt => {
                let capacity = listed.static_host.as_ref().and_then(|host| host.capacity);
                act(draft, observed, Effect::Adopt { instance: id, capacity });
            }
            Verdict::Leave if kind == Unrecorded::Ours && !late => draft.wake_at(due),
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
            | Verdict::LastJob
            | Verdict::Clean
            | Verdict::Suspend
            | Verdict::Record
            | Verdict::Resume
            | Verdict::GiveUp
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
        report.notes.push(Note::OwnerConflict { instances: strangers });
    }
    owned
}

/// Listed copies of this owner's instances.
fn copies(observed: &Observed) -> Option<Note> {
    let copies = observed.listing.iter().flat_map(|listing| &listing.copies);
    let own = copies.filter(|copy| judge_copy(copy, &observed.owner) == Ownership::Copied);
    let names: Vec<String> = own.map(|copy| copy.name.clone()).collect();
    (!names.is_empty()).then_some(Note::Copies { names })
}

/// Time at which an unrecorded instance is old enough: by its creation time, or since it was first seen, whichever is
/// earlier.
///
/// A creation time comes from another clock: the runner host's clock may be set back long after it.
fn grace_ends(listed: &Listed, observed: &Observed, policy: &Policy, now: Stamp) -> Stamp {
    let known = observed.first_seen.get(&listed.id).copied().unwrap_or(now);
    let grace = policy.timing.reap_grace;
    let by_birth = listed.created.unwrap_or(known).plus(grace);
    let by_sight = known.plus(grace);
    if now.until(by_birth) < now.until(by_sight) { by_birth } else { by_sight }
}
