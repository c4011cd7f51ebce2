//! The planning of one pass: [`plan`] decides what to do next, and why.
//!
//! Total and deterministic: every input has one answer, always the same. The steps have a fixed order, and each sees what
//! the previous one decided: attempts, orders, reconcile, notices, assign, resume, retire, scale. State changes are
//! [`Event`]s; actions on the outside world are [`Effect`]s. The dry run *is* the plan.

mod assign;
mod attempts;
pub mod backoff;
pub mod checks;
pub mod health;
mod launch_limits;
pub mod listing;
mod observed;
mod reconcile;
pub mod request;
mod retire;
mod scale;
pub mod table;
#[cfg(test)]
mod tests;
mod tier;
mod upcoming;
pub mod warm;
mod why;

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use listing::Elsewhere;
pub use observed::{FailingCall, Fresh, InstanceCalls, Observed, Pulls};
use reconcile::Reconciled;
pub use reconcile::unconfirmed_absences;
use upcoming::{Shortfall, UpcomingCapacity};
pub use why::by_record;

use crate::attempt::End;
use crate::event::{Change, Event};
use crate::ids::{AttemptName, InstanceId};
use crate::policy::{IdlePolicy, Policy};
use crate::pool::PoolState;
use crate::report::{Note, Report};
use crate::time::Stamp;
use crate::unbegun::CheckKind;

/// Recorded and observed state: the input of [`plan`].
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub recorded: &'a PoolState,
    pub observed: &'a Observed,
}

/// The result of [`plan`]: the events to commit, the effects to carry out then, and the reasons.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "a plan does nothing until it is carried out"]
pub struct Plan {
    pub events: Vec<Event>,
    pub effects: Vec<Effect>,
    pub report: Report,
}

/// An action on the outside world. Running one twice equals running it once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Call `launch` with the recorded attempt. `repeated`: an earlier call for it may have got no answer.
    Launch { instance: InstanceId, repeated: bool },
    /// Check whether it is reachable, then run the ready command.
    Probe { instance: InstanceId },
    /// Request that it is suspended.
    Suspend { instance: InstanceId },
    /// Request that it is resumed, then probe it.
    Resume { instance: InstanceId },
    /// Get the endpoint of a static host, and record it. `capacity`: if it differs from the pool's.
    Adopt { instance: InstanceId, capacity: Option<u32> },
    /// Check that an idle instance still accepts the login.
    CheckHealth { instance: InstanceId },
    /// Check what the last jobs met on an instance.
    Check { instance: InstanceId, kind: CheckKind },
    /// Check that an instance is fit for the next job.
    Recheck { instance: InstanceId },
    /// Pull an image on an idle instance. It holds up nothing else about the instance.
    Warm { instance: InstanceId, image: Arc<str> },
    /// Clean a static host between jobs.
    Clean { instance: InstanceId },
    /// Request its termination. *Not found* proves nothing: the provider may not show it yet.
    Terminate { instance: InstanceId },
    /// Lists have proven that it is gone: request its termination once more, then drop its record.
    Forget { instance: InstanceId },
    /// Request the termination of an instance of this owner without a record.
    Reap { instance: InstanceId },
    /// Seize the lease, close the attempt, release its slot.
    EndAttempt { attempt: AttemptName, how: End },
    /// Seize the lease, remove the request from the queue.
    DropRequest { attempt: AttemptName },
    /// Remove the directory of an attempt that ended long ago, and its builds on the runner host.
    ForgetAttempt { attempt: AttemptName },
}

/// Decides what to do next: events to commit, effects to carry out, and the reasons for the [`Report`].
pub fn plan(view: View<'_>, policy: &Policy, now: Stamp) -> Plan {
    let mut draft = PlanBuilder::new(view.recorded, now);
    let mut report = Report::new(now, view.recorded.revision);
    if let Some(problem) = &view.observed.moved {
        report.notes.push(Note::Moved { problem: problem.clone() });
        why::all_waiting(&draft, &mut report, problem);
        return draft.into_plan(report);
    }
    if view.recorded.policy.as_deref() != Some(policy) {
        draft.emit(Change::PolicySet { policy: Arc::new(policy.clone()) });
    }
    let offerings = &view.observed.capabilities.offerings;
    if view.recorded.availability.offerings() != &**offerings {
        draft.emit(Change::OfferingsChanged { offerings: offerings.to_vec() });
    }
    let ungranted = attempts::step(&mut draft, view.observed, policy, &mut report);
    assign::settle_orders(&mut draft, view.observed, &ungranted);
    let reconciled = reconcile::step(&mut draft, view.observed, policy, &ungranted, &mut report);
    retire::announced(&mut draft, view.observed, &ungranted, &mut report);
    assign::step(&mut draft, policy, &reconciled.held_back);
    health::replace(&mut draft, view.observed, policy, &reconciled, &mut report);
    tier::resume(&mut draft, view.observed, policy, &ungranted);
    tier::notes(&draft, view.observed, policy, &mut report);
    report.notes.extend(view.observed.capabilities.own_key.clone().map(Note::OwnKey));
    let input = ScaleInput::of(&draft, view.observed, policy, &ungranted, &reconciled);
    report.idle_target = input.target;
    report.schedule = input.schedule;
    retire::step(&mut draft, &input);
    tier::resume_idle(&mut draft, &input);
    let scaled = scale::step(&mut draft, &input, &mut report);
    checks::check(&mut draft, view.observed, policy, &reconciled);
    checks::recheck(&mut draft, view.observed, policy, &reconciled);
    if let Some(implausible) = &reconciled.implausible {
        implausible.probe(&mut draft, view.observed, policy);
    }
    health::check(&mut draft, view.observed, policy, &reconciled);
    warm::step(&mut draft, view.observed, policy, &reconciled, &mut report);
    why::step(&draft, &input, &scaled, &mut report);
    draft.into_plan(report)
}

/// The input of retire and scale.
#[derive(Debug, Clone)]
struct ScaleInput<'a> {
    observed: &'a Observed,
    policy: &'a Policy,
    /// The active [`IdlePolicy`], its entry of [`schedules`](Policy::schedules), and the number of spare slots that it
    /// yields now.
    idle: &'a IdlePolicy,
    schedule: Option<usize>,
    target: u32,
    ungranted: &'a attempts::UngrantedAttempts,
    uncounted: u32,
    held_back: &'a BTreeSet<InstanceId>,
    elsewhere: Option<&'a Elsewhere>,
    /// The capacity that is missing for the jobs that still wait.
    shortfall: Shortfall,
}

impl<'a> ScaleInput<'a> {
    fn of(
        draft: &PlanBuilder<'_>,
        observed: &'a Observed,
        policy: &'a Policy,
        ungranted: &'a attempts::UngrantedAttempts,
        reconciled: &'a Reconciled,
    ) -> Self {
        let (idle, schedule) = policy.in_force(draft.now);
        let target = idle.target(draft.state().in_use());
        let upcoming = UpcomingCapacity::new(draft.state(), policy, ungranted, draft.now);
        let shortfall = upcoming.shortfall(draft.state());
        let uncounted = reconciled.uncounted;
        let elsewhere = reconciled.elsewhere.as_ref();
        let held_back = &reconciled.held_back;
        Self {
            observed,
            policy,
            idle,
            schedule,
            target,
            ungranted,
            uncounted,
            held_back,
            elsewhere,
            shortfall,
        }
    }
}

impl Effect {
    /// True if it calls the provider about its instance.
    fn calls_provider(&self) -> bool {
        match self {
            Self::Launch { .. }
            | Self::Probe { .. }
            | Self::Suspend { .. }
            | Self::Resume { .. }
            | Self::Adopt { .. }
            | Self::Terminate { .. }
            | Self::Forget { .. }
            | Self::Reap { .. } => true,
            Self::CheckHealth { .. }
            | Self::Check { .. }
            | Self::Recheck { .. }
            | Self::Warm { .. }
            | Self::Clean { .. }
            | Self::EndAttempt { .. }
            | Self::DropRequest { .. }
            | Self::ForgetAttempt { .. } => false,
        }
    }

    /// The instance it is about, if it is about one. An instance has one such effect at a time.
    pub fn instance(&self) -> Option<&InstanceId> {
        match self {
            Self::Launch { instance, .. }
            | Self::Probe { instance }
            | Self::Suspend { instance }
            | Self::Resume { instance }
            | Self::Adopt { instance, .. }
            | Self::CheckHealth { instance }
            | Self::Check { instance, .. }
            | Self::Recheck { instance }
            | Self::Clean { instance }
            | Self::Terminate { instance }
            | Self::Forget { instance }
            | Self::Reap { instance } => Some(instance),
            Self::Warm { .. }
            | Self::EndAttempt { .. }
            | Self::DropRequest { .. }
            | Self::ForgetAttempt { .. } => None,
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Launch { instance, repeated: false } => write!(f, "launch {instance}"),
            Self::Launch { instance, repeated: true } => write!(f, "repeat the launch of {instance}"),
            Self::Probe { instance } => write!(f, "probe {instance}"),
            Self::Suspend { instance } => write!(f, "suspend {instance}"),
            Self::Resume { instance } => write!(f, "resume {instance}"),
            Self::Adopt { instance, .. } => write!(f, "adopt {instance}"),
            Self::CheckHealth { instance } => write!(f, "check the health of {instance}"),
            Self::Check { instance, kind } => write!(f, "check {kind} on {instance}"),
            Self::Recheck { instance } => write!(f, "check {instance} between jobs"),
            Self::Warm { instance, image } => write!(f, "pull {image} on {instance}"),
            Self::Clean { instance } => write!(f, "clean {instance}"),
            Self::Terminate { instance } => write!(f, "terminate {instance}"),
            Self::Forget { instance } => write!(f, "forget {instance}"),
            Self::Reap { instance } => write!(f, "reap {instance}"),
            Self::EndAttempt { attempt, how } => write!(f, "end attempt {attempt} ({how})"),
            Self::DropRequest { attempt } => write!(f, "drop the request of {attempt}"),
            Self::ForgetAttempt { attempt } => write!(f, "remove the directory of {attempt}"),
        }
    }
}

/// A copy of the state, made only when something changes, and the decisions so far.
#[derive(Debug)]
struct PlanBuilder<'a> {
    state: Cow<'a, PoolState>,
    now: Stamp,
    events: Vec<Event>,
    effects: Vec<Effect>,
    next: Cell<Option<Stamp>>,
}

impl<'a> PlanBuilder<'a> {
    fn new(state: &'a PoolState, now: Stamp) -> Self {
        Self {
            state: Cow::Borrowed(state),
            now,
            events: Vec::new(),
            effects: Vec::new(),
            next: Cell::new(None),
        }
    }

    fn state(&self) -> &PoolState {
        &self.state
    }

    /// Decides a change; later steps see it.
    fn emit(&mut self, change: Change) {
        let event = change.at(self.now);
        let fits = self.state.to_mut().apply(&event);
        debug_assert!(fits.is_ok(), "{event:?}: {fits:?}");
        if fits.is_ok() {
            self.events.push(event);
        }
    }

    fn act(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    fn has(&self, effect: &Effect) -> bool {
        self.effects.contains(effect)
    }

    /// Schedules the next pass for `moment` at the latest.
    fn wake_at(&self, moment: Stamp) {
        let sooner = self.next.get().is_none_or(|next| self.now.until(moment) < self.now.until(next));
        if sooner {
            self.next.set(Some(moment));
        }
    }

    /// True if this plan has changed anything yet.
    fn has_changed(&self) -> bool {
        !self.events.is_empty()
    }

    /// The instances that this plan takes out of use, in the order of their IDs.
    fn retired(&self) -> BTreeSet<&InstanceId> {
        let mut retired = BTreeSet::new();
        for event in &self.events {
            if let Change::DrainingBegun { instance, .. } | Change::CleaningBegun { instance } = &event.change
            {
                retired.insert(instance);
            }
        }
        retired
    }

    fn into_events(self) -> Vec<Event> {
        self.events
    }

    fn into_plan(self, mut report: Report) -> Plan {
        report.next = self.next.get();
        Plan { events: self.events, effects: self.effects, report }
    }
}
