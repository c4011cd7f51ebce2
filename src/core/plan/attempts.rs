//! First step: which attempts are over?
//!
//! Whatever needs the lease is an effect; what can be judged from marks alone is an event.

use super::draft::Draft;
use super::observed::Observed;
use super::{Effect, assign};
use crate::core::attempt::{self, AttemptSeen, End};
use crate::core::event::Change;
use crate::core::ids::AttemptName;
use crate::core::instance::Leaving;
use crate::core::policy::Policy;
use crate::core::time::Stamp;

pub(super) fn step(draft: &mut Draft<'_>, observed: &Observed, policy: &Policy) {
    let timing = &policy.timing;
    granted(draft, observed, policy);
    waiting(draft, observed);
    lingering(draft, observed, policy);
    for (name, seen) in &observed.attempts {
        if let Some(closed) = seen.closed {
            let gone_at = closed.plus(timing.attempt_kept);
            if draft.now.reached(gone_at) {
                draft.act(Effect::ForgetAttempt { attempt: name.clone() });
            }
            continue;
        }
        draft.wake_at(draft.now.plus(timing.pass_interval));
        let idle = !draft.state().granted.contains_key(name) && draft.state().waiting_for(name).is_none();
        if idle && !seen.lease_held {
            end_if_over(draft, name, seen, policy);
        }
    }
}

fn granted(draft: &mut Draft<'_>, observed: &Observed, policy: &Policy) {
    let held: Vec<(AttemptName, Stamp)> =
        draft.state().granted.iter().map(|(name, g)| (name.clone(), g.reservation.asked)).collect();
    for (name, asked) in held {
        match observed.attempts.get(&name) {
            Some(seen) if seen.closed.is_some() => {
                // Its `cleanup` died between mark and release, or is just about to commit: whoever comes first.
                let leaving = Leaving { how: End::CleanedUp, used: seen.used, lingering: seen.lease_held };
                draft.emit(Change::Released { attempt: name.clone(), leaving });
                settle_holder(draft, &name, observed);
            }
            Some(seen) => end_if_over(draft, &name, seen, policy),
            None if was_looked_for(observed, asked) => {
                // The directory is gone, so no call can serve the job any more.
                let leaving = Leaving { how: End::Unused, used: true, lingering: false };
                draft.emit(Change::Released { attempt: name, leaving });
                assign::settle_all(draft);
            }
            None => {}
        }
    }
}

fn waiting(draft: &mut Draft<'_>, observed: &Observed) {
    let queue: Vec<(AttemptName, Stamp)> =
        draft.state().waiting.values().map(|r| (r.attempt.clone(), r.asked)).collect();
    for (name, asked) in queue {
        match observed.attempts.get(&name) {
            Some(seen) if seen.closed.is_some() => {
                draft.emit(Change::Withdrawn { attempt: name, how: End::CleanedUp });
            }
            Some(seen) if !seen.lease_held && was_looked_for(observed, asked) => {
                draft.act(Effect::DropRequest { attempt: name });
            }
            None if was_looked_for(observed, asked) => {
                draft.emit(Change::Withdrawn { attempt: name, how: End::Unused });
            }
            Some(_) | None => {}
        }
    }
}

/// A closed attempt's slot is free when its last call has ended, or after `clean_after` at the latest.
fn lingering(draft: &mut Draft<'_>, observed: &Observed, policy: &Policy) {
    let mut departed = Vec::new();
    let mut looks = Vec::new();
    for instance in draft.state().instances.values() {
        for (name, holder) in &instance.holders {
            let Some(since) = holder.lingering else { continue };
            let held = observed.attempts.get(name).is_some_and(|seen| seen.lease_held);
            let limit = since.plus(policy.timing.clean_after);
            if !held || draft.now.reached(limit) {
                departed.push(name.clone());
            } else {
                looks.push(limit);
            }
        }
    }
    for limit in looks {
        draft.wake_at(draft.now.plus(policy.timing.probe_interval));
        draft.wake_at(limit);
    }
    for name in departed {
        draft.emit(Change::Departed { attempt: name });
    }
    assign::settle_all(draft);
}

fn settle_holder(draft: &mut Draft<'_>, name: &AttemptName, observed: &Observed) {
    if !observed.attempts.get(name).is_some_and(|seen| seen.lease_held) {
        assign::settle_all(draft);
    }
}

fn end_if_over(draft: &mut Draft<'_>, name: &AttemptName, seen: &AttemptSeen, policy: &Policy) {
    match attempt::over(seen, &policy.timing, draft.now) {
        Some(how) => draft.act(Effect::EndAttempt { attempt: name.clone(), how }),
        None => draft.wake_at(attempt::next_look(seen, &policy.timing)),
    }
}

/// RACE: an attempt that asked after the directories were read is not missing from them.
fn was_looked_for(observed: &Observed, asked: Stamp) -> bool {
    asked.boot != observed.attempts_at.boot || asked.uptime_ms < observed.attempts_at.uptime_ms
}
