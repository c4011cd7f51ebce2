//! The number of further machines that an account's quotas allow.

use greenroom_core::ids::PoolName;

/// The headroom of a pool's quotas in one place, or for one kind of machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaHeadroom {
    pub machines: u32,
    /// The text after that number: `in us-east1 (CPUS)`.
    pub of: String,
}

/// The number of machines, `each` using that much of a quota, that fit into the rest of it.
#[must_use]
pub fn fits(left: f64, each: u32) -> u32 {
    let machines = (left / f64::from(each.max(1))).floor().clamp(0.0, f64::from(u32::MAX));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is within bounds")]
    let machines = machines as u32;
    machines
}

/// The message if fewer machines fit than the pool may launch. An empty `rooms` means that no limit is known.
#[must_use]
pub fn shortage(pool: &PoolName, rooms: &[QuotaHeadroom], wanted: u32) -> Option<String> {
    let fit = rooms.iter().fold(0_u32, |sum, room| sum.saturating_add(room.machines));
    if rooms.is_empty() || fit >= wanted {
        return None;
    }
    let each: Vec<_> = rooms.iter().map(|room| format!("{} {}", room.machines, room.of)).collect();
    let each = each.join(", ");
    Some(format!(
        "quotas allow {fit} more instances of pool `{pool}`, but the pool may launch {wanted} more: {each}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_fits_whole_or_not_at_all() {
        for (left, each, machines) in
            [(7.9, 4, 1), (8.0, 4, 2), (3.0, 4, 0), (-2.0, 4, 0), (5.0, 0, 5), (f64::INFINITY, 1, u32::MAX)]
        {
            assert_eq!(fits(left, each), machines, "{left} / {each}");
        }
    }

    #[test]
    fn rooms_add_up() {
        let pool = PoolName::new("linux");
        let room = |machines, of: &str| QuotaHeadroom { machines, of: of.to_owned() };
        let rooms = [room(2, "in a (CPUS)"), room(3, "in b (CPUS)")];
        assert_eq!(shortage(&pool, &rooms, 5), None);
        let message = shortage(&pool, &rooms, 6);
        let wanted = "quotas allow 5 more instances of pool `linux`, but the pool may launch 6 more: 2 in a \
                      (CPUS), 3 in b (CPUS)";
        assert_eq!(message.as_deref(), Some(wanted));
        assert_eq!(shortage(&pool, &[], 6), None, "no end is known");
        let many = [room(u32::MAX, "in a"), room(1, "in b")];
        assert_eq!(shortage(&pool, &many, u32::MAX), None);
    }
}
