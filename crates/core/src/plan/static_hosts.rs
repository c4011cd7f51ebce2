//! Static hosts, beside the table: changes by the operator, and availability as the provider reports it.

use super::builder::PlanBuilder;
use super::observed::Observed;
use crate::event::Change;
use crate::ids::InstanceId;
use crate::inventory::Listed;
use crate::policy::Policy;

/// Records another capacity, as soon as the present jobs fit.
pub(super) fn resize(draft: &mut PlanBuilder<'_>, policy: &Policy, listed: &Listed) {
    let (Some(host), Some(known)) = (&listed.static_host, draft.state().instance(&listed.id)) else { return };
    let capacity = host.capacity.unwrap_or(policy.capacity_per_instance);
    let fits = u32::try_from(known.holders.len()).is_ok_and(|jobs| jobs <= capacity);
    if known.is_static() && known.capacity != capacity && fits {
        draft.emit(Change::Resized { instance: listed.id.clone(), capacity });
    }
}

/// A ready host became unreachable. This is recorded, so that no `prepare` takes it. It is probed until it is back.
pub(super) fn hold_back(
    draft: &mut PlanBuilder<'_>,
    policy: &Policy,
    id: &InstanceId,
    listed: Option<&Listed>,
) {
    if !draft.state().instance(id).is_some_and(|known| known.is_static() && known.is_idle()) {
        return;
    }
    let reported = listed.and_then(|l| l.static_host.as_ref()?.problem.clone());
    let why = reported.unwrap_or_else(|| "it is starting".to_owned());
    draft.emit(Change::BecameUnreachable { instance: id.clone(), reason: why });
    draft.wake_at(draft.now.plus(policy.timing.probe_interval));
}

/// Why a host gets no job that the provider takes for usable: its last probe.
pub(super) fn obstacle(draft: &PlanBuilder<'_>, observed: &Observed, id: &InstanceId) -> Option<String> {
    let host = draft.state().instance(id).filter(|known| known.is_static())?;
    Some(observed.obstacles.get(id)?.of(host, draft.now)?.sentence(id))
}

/// The hosts that the provider reports as unusable now, and why.
pub(super) fn unavailable(observed: &Observed) -> Vec<(&InstanceId, &str)> {
    let listed = observed.listing.iter().flat_map(|listing| &listing.instances);
    listed.filter_map(|l| Some((&l.id, l.static_host.as_ref()?.problem.as_deref()?))).collect()
}
