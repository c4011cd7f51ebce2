//! The state as the plan changes it, step by step.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeSet;

use super::{Effect, Plan};
use crate::event::{Change, Event};
use crate::ids::InstanceId;
use crate::pool::PoolState;
use crate::report::Report;
use crate::time::Stamp;

/// A copy of the state, made only when something changes, and the decisions so far.
#[derive(Debug)]
pub(super) struct PlanBuilder<'a> {
    state: Cow<'a, PoolState>,
    pub(super) now: Stamp,
    events: Vec<Event>,
    effects: Vec<Effect>,
    next: Cell<Option<Stamp>>,
}

impl<'a> PlanBuilder<'a> {
    pub(super) fn new(state: &'a PoolState, now: Stamp) -> Self {
        Self {
            state: Cow::Borrowed(state),
            now,
            events: Vec::new(),
            effects: Vec::new(),
            next: Cell::new(None),
        }
    }

    pub(super) fn state(&self) -> &PoolState {
        &self.state
    }

    /// Decides a change; later steps see it.
    pub(super) fn emit(&mut self, change: Change) {
        let event = change.at(self.now);
        let fits = self.state.to_mut().apply(&event);
        debug_assert!(fits.is_ok(), "{event:?}: {fits:?}");
        if fits.is_ok() {
            self.events.push(event);
        }
    }

    pub(super) fn act(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    pub(super) fn has(&self, effect: &Effect) -> bool {
        self.effects.contains(effect)
    }

    /// Schedules the next pass for `moment` at the latest.
    pub(super) fn wake_at(&self, moment: Stamp) {
        let sooner = self.next.get().is_none_or(|next| self.now.until(moment) < self.now.until(next));
        if sooner {
            self.next.set(Some(moment));
        }
    }

    /// True if this plan has changed anything yet.
    pub(super) fn has_changed(&self) -> bool {
        !self.events.is_empty()
    }

    /// The instances that this plan takes out of use, in the order of their IDs.
    pub(super) fn retired(&self) -> BTreeSet<&InstanceId> {
        let mut retired = BTreeSet::new();
        for event in &self.events {
            if let Change::DrainingBegun { instance, .. } | Change::CleaningBegun { instance } = &event.change
            {
                retired.insert(instance);
            }
        }
        retired
    }

    pub(super) fn into_events(self) -> Vec<Event> {
        self.events
    }

    pub(super) fn into_plan(self, mut report: Report) -> Plan {
        report.next = self.next.get();
        Plan { events: self.events, effects: self.effects, report }
    }
}
