//! Step *attempts*: which attempts have ended.
//!
//! Whatever needs the lease is an effect; whatever follows from the marks alone is an event. Only the manager whose attempt
//! it is has its directory and its lease: without them, an attempt of another manager looks as if it were over.

use std::time::Duration;

use super::observed::Observed;
use super::{Effect, PlanBuilder, assign};
use crate::attempt::{self, AttemptSeen, Closed, End};
use crate::event::Change;
use crate::ids::{AttemptName, InstanceId};
use crate::instance::Release;
use crate::job::Reservation;
use crate::policy::Policy;
use crate::pool::Grant;
use crate::report::{Note, Report};
use crate::time::Stamp;

/// Open attempts that name an instance without having a grant on it: it is in use, whatever the journal contains.
#[derive(Debug, Default)]
pub(super) struct UngrantedAttempts(Vec<UngrantedAttempt>);

#[derive(Debug)]
struct UngrantedAttempt {
    instance: InstanceId,
    used: bool,
}

impl UngrantedAttempts {
    /// True if one of them names this instance.
    pub(super) fn names(&self, id: &InstanceId) -> bool {
        self.0.iter().any(|s| s.instance == *id)
    }

    /// True if one of them has run a stage on this instance.
    pub(super) fn used(&self, id: &InstanceId) -> bool {
        self.0.iter().any(|s| s.used && s.instance == *id)
    }
}

/// The result of this step. Collected first and emitted after the walk, which borrows the state.
#[derive(Debug, Default)]
struct Found {
    changes: Vec<Change>,
    effects: Vec<Effect>,
    notes: Vec<Note>,
    ungranted: UngrantedAttempts,
}

/// A living `cleanup` takes milliseconds from the mark `closed` to the release.
const COMMITTING: Duration = Duration::from_secs(1);

pub(super) fn step(
    draft: &mut PlanBuilder<'_>,
    observed: &Observed,
    policy: &Policy,
    report: &mut Report,
) -> UngrantedAttempts {
    let mut found = Found::default();
    let is_own = |grant: &Grant| observed.is_own(grant.reservation.manager());
    let mut grants = draft.state().granted.iter().filter(|(_, grant)| is_own(grant)).peekable();
    // Both are sorted by name: one walk over both.
    for (name, seen) in &observed.attempts {
        while let Some((lost, grant)) = grants.next_if(|(next, _)| *next < name) {
            unseen(&mut found, draft, observed, policy, lost, grant);
        }
        let grant = grants.next_if(|(next, _)| *next == name).map(|(_, grant)| grant);
        match seen.closed {
            Some(closed) => ended(&mut found, draft, policy, name, (seen, closed), grant),
            None => open(&mut found, draft, policy, name, seen, grant),
        }
    }
    for (lost, grant) in grants {
        unseen(&mut found, draft, observed, policy, lost, grant);
    }
    waiting(&mut found, draft, observed);
    closing(&mut found, draft, observed, policy);
    let Found { changes, effects, notes, ungranted } = found;
    report.notes.extend(notes);
    if !changes.is_empty() {
        for change in changes {
            draft.emit(change);
        }
        assign::settle_all(draft);
    }
    let gone = observed.orphaned_builds.iter().filter(|name| !observed.attempts.contains_key(name));
    let orphaned = gone.map(|name| Effect::ForgetAttempt { attempt: name.clone() });
    for effect in effects.into_iter().chain(orphaned) {
        draft.act(effect);
    }
    ungranted
}

/// The directory is gone, so no call can serve the job any more.
fn unseen(
    found: &mut Found,
    draft: &PlanBuilder<'_>,
    observed: &Observed,
    policy: &Policy,
    name: &AttemptName,
    grant: &Grant,
) {
    if was_read_after(observed, grant.reservation.requested_at) {
        let leaving = Release { how: End::Unused, used: true, closing: false };
        found.changes.push(Change::Released { attempt: name.clone(), release: leaving });
    } else {
        // It came after the directories were read, and relies on a keeper that checks on it.
        draft.wake_at(draft.now.plus(policy.timing.pass_interval));
    }
}

fn ended(
    found: &mut Found,
    draft: &PlanBuilder<'_>,
    policy: &Policy,
    name: &AttemptName,
    (seen, closed): (&AttemptSeen, Closed),
    grant: Option<&Grant>,
) {
    let committing = closed.at.plus(COMMITTING);
    if grant.is_some() && seen.lease_held && !draft.now.reached(committing) {
        // The lease may be held by a `run`, which costs a use, or by `cleanup` itself, which costs none.
        draft.wake_at(committing);
    } else if grant.is_some() {
        // The call that closed it died between mark and release, or is slow: the first to commit releases the slot.
        let leaving = Release { how: closed.end(), used: seen.used, closing: seen.lease_held };
        found.changes.push(Change::Released { attempt: name.clone(), release: leaving });
    }
    if draft.now.reached(closed.at.plus(policy.timing.attempt_retention)) {
        found.effects.push(Effect::ForgetAttempt { attempt: name.clone() });
    }
}

fn open(
    found: &mut Found,
    draft: &PlanBuilder<'_>,
    policy: &Policy,
    name: &AttemptName,
    seen: &AttemptSeen,
    grant: Option<&Grant>,
) {
    draft.wake_at(draft.now.plus(policy.timing.pass_interval));
    if let Some(instance) = &seen.instance
        && grant.is_none_or(|g| g.instance != *instance)
    {
        found.ungranted.0.push(UngrantedAttempt { instance: instance.clone(), used: seen.used });
    }
    // A search: hundreds of jobs may wait.
    let is_waiting = || draft.state().waiting_for(name).is_some();
    if let Some(problem) = &seen.unreadable
        && (seen.job.is_some() || grant.is_some() || is_waiting())
    {
        let problem = problem.clone();
        found.notes.push(Note::AttemptUnreadable { attempt: name.clone(), problem });
    }
    let recorded = grant.filter(|_| seen.job.is_none()).map(|grant| as_granted(seen, grant));
    let seen = recorded.as_ref().unwrap_or(seen);
    let may_end = grant.is_some() || (!seen.lease_held && !is_waiting());
    if !may_end {
        return;
    }
    match attempt::over(seen, &policy.timing, draft.now) {
        Some(how) => found.effects.push(Effect::EndAttempt { attempt: name.clone(), how }),
        None => draft.wake_at(attempt::next_look(seen, &policy.timing)),
    }
}

/// An attempt whose file `job` cannot be read, with what its request recorded.
fn as_granted(seen: &AttemptSeen, grant: &Grant) -> AttemptSeen {
    let Reservation { job, requested_at, .. } = &*grant.reservation;
    AttemptSeen { job: Some(job.clone()), begun: *requested_at, boot: requested_at.boot, ..seen.clone() }
}

/// Withdraws the requests of ended attempts, and has those dropped whose call is gone. A grant would go to a job that no
/// call can start, and block the slot until a later pass.
fn waiting(found: &mut Found, draft: &PlanBuilder<'_>, observed: &Observed) {
    let waiting = draft.state().waiting.values();
    for reservation in waiting.filter(|reservation| observed.is_own(reservation.manager())) {
        let attempt = || reservation.attempt.clone();
        match observed.attempts.get(&reservation.attempt) {
            Some(AttemptSeen { closed: Some(closed), .. }) => {
                found.changes.push(Change::Withdrawn { attempt: attempt(), how: closed.end() });
            }
            Some(seen) if !seen.lease_held && was_read_after(observed, reservation.requested_at) => {
                found.effects.push(Effect::DropRequest { attempt: attempt() });
            }
            None if was_read_after(observed, reservation.requested_at) => {
                found.changes.push(Change::Withdrawn { attempt: attempt(), how: End::Unused });
            }
            Some(_) | None => {}
        }
    }
}

/// A closed attempt's slot becomes free when its last call has exited, or after
/// [`clean_grace`](crate::policy::Timing::clean_grace) at the latest.
fn closing(found: &mut Found, draft: &PlanBuilder<'_>, observed: &Observed, policy: &Policy) {
    for instance in draft.state().instances.values() {
        for (name, holder) in instance.holders.iter().filter(|(_, holder)| observed.is_own(holder.manager)) {
            let Some(since) = holder.closing else { continue };
            let held = observed.attempts.get(name).is_some_and(|seen| seen.lease_held);
            let limit = since.plus(policy.timing.clean_grace);
            if held && !draft.now.reached(limit) {
                draft.wake_at(draft.now.plus(policy.timing.probe_interval));
                draft.wake_at(limit);
            } else {
                found.changes.push(Change::SlotFreed { attempt: name.clone() });
            }
        }
    }
}

/// RACE: an attempt whose request came after the directories were read is not missing from them.
fn was_read_after(observed: &Observed, requested_at: Stamp) -> bool {
    observed.attempts_at.is_after(requested_at)
}
