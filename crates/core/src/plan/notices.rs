//! Instances whose end the provider has announced.
//!
//! Comes before jobs are assigned. An instance without a job is replaced; a running job is told, and goes on.

use std::collections::BTreeMap;
use std::time::Duration;

use super::attempts::UngrantedAttempts;
use super::builder::PlanBuilder;
use super::observed::Observed;
use super::reconcile::drain;
use crate::ids::InstanceId;
use crate::instance::{DrainReason, Instance, Phase};
use crate::inventory::Notice;
use crate::report::{Note, Report};

/// How long before the announced time an instance is replaced. New instances may have an equal notice, so an earlier
/// replacement could repeat itself for days.
const LEAD: Duration = Duration::from_hours(1);

pub(super) fn step(
    draft: &mut PlanBuilder<'_>,
    observed: &Observed,
    ungranted: &UngrantedAttempts,
    report: &mut Report,
) {
    watch(draft, observed);
    for (id, notice) in notices(observed) {
        let Some(known) = draft.state().instance(id) else { continue };
        let due = notice.at.map(|at| at.minus(LEAD));
        if let Some(due) = due.filter(|due| !draft.now.reached(*due)) {
            draft.wake_at(due);
            continue;
        }
        let is_used = !known.holders.is_empty() || ungranted.names(id);
        let (instance, notice) = (id.clone(), notice.text.clone());
        if is_used {
            report.notes.push(Note::Announced { instance, notice });
        } else if (known.is_idle() || known.phase.is_stopped()) && !known.is_static() {
            drain(draft, observed, instance, DrainReason::Announced { notice });
        }
    }
}

/// The notices of the list, and those that only the instances' metadata services have.
fn notices(observed: &Observed) -> impl Iterator<Item = (&InstanceId, &Notice)> {
    let list = observed.listing.iter().flat_map(|listing| &listing.instances);
    let listed: BTreeMap<&InstanceId, &Notice> =
        list.filter_map(|listed| Some((&listed.id, listed.notice.as_ref()?))).collect();
    let is_new = {
        let listed = listed.clone();
        move |(id, notice): &(&InstanceId, &Notice)| {
            listed.get(id).is_none_or(|known| known.text != notice.text)
        }
    };
    listed.into_iter().chain(observed.announced.iter().filter(is_new))
}

/// A provider that announces ends is listed from time to time, as long as there is something to announce.
fn watch(draft: &PlanBuilder<'_>, observed: &Observed) {
    let interval = observed.capabilities.notice_interval;
    let exists =
        |instance: &Instance| !instance.is_refused() && !matches!(instance.phase, Phase::Draining { .. });
    let mut instances = draft.state().instances.values();
    if let Some(interval) = interval.filter(|_| instances.any(|instance| exists(instance))) {
        draft.wake_at(draft.now.plus(interval));
    }
}
