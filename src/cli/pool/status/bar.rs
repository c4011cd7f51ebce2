//! The slots of a pool as a bar.

use greenroom_core::instance::Phase;

use super::view::StatusInput;

/// The widest bar.
const WIDEST: usize = 60;

/// The bar, `  slots: [##==~~....]`, and a line that counts each sign. Empty if the pool has no policy yet.
pub(super) fn bar(input: &StatusInput<'_>, width: usize) -> String {
    let Some(policy) = input.state.policy.as_deref() else { return String::new() };
    let all = policy.max_instances.saturating_mul(policy.capacity_per_instance);
    let instances = || input.state.instances.values();
    let in_use = input.state.in_use();
    let idle: u32 = instances().map(|instance| instance.usable()).sum();
    let coming = |phase: &Phase| {
        matches!(phase, Phase::Launching | Phase::Checking | Phase::Cleaning) || phase.is_resuming()
    };
    let coming: u32 = instances().filter(|each| coming(&each.phase)).map(|each| each.free_slots()).sum();
    let stopped: u32 = instances().filter(|each| each.phase.is_of_tier()).map(|each| each.free_slots()).sum();
    let present: u32 = instances().map(|each| each.capacity).sum();
    // Slots of instances that take no jobs: draining, out of service, unreachable, used up.
    let open = in_use.saturating_add(idle).saturating_add(coming).saturating_add(stopped);
    let closed = present.saturating_sub(open);
    let free = all.saturating_sub(present);
    let parts = [
        ('#', in_use, "in use"),
        ('=', idle, "idle"),
        ('~', coming, "on their way"),
        ('z', stopped, "stopped"),
        ('x', closed, "out of use"),
        ('.', free, "not launched"),
    ];
    let total = parts.iter().map(|(_, count, _)| u64::from(*count)).sum::<u64>().max(1);
    let columns = WIDEST.min(width.saturating_sub(12)).min(usize::try_from(total).unwrap_or(WIDEST));
    let mut drawn = String::new();
    let (mut slots, mut reached) = (0_u64, 0_usize);
    for (sign, count, _) in parts {
        slots += u64::from(count);
        let until = usize::try_from(slots * columns as u64 / total).unwrap_or(columns);
        // Whatever there is has at least one sign.
        let until = if count > 0 { until.max(reached + 1) } else { until };
        drawn.extend(std::iter::repeat_n(sign, until.saturating_sub(reached)));
        reached = reached.max(until);
    }
    let told: Vec<String> = parts
        .iter()
        .filter(|(_, count, _)| *count > 0)
        .map(|(sign, count, word)| format!("{sign} {count} {word}"))
        .collect();
    format!("  slots: [{drawn}]\n  {}\n", told.join(", "))
}
