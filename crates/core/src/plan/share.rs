//! What is left of a limit on launches, for each kind: those of the pool, and those that jobs ordered.
//!
//! How long the image of a job takes, and whether it ever comes, is up to that job. So the launches that jobs ordered
//! get at most half of each limit: the other half is always free for the pool's own.

/// A limit, and the launches that count against it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    limit: u32,
    shared: u32,
    ordered: u32,
}

impl Share {
    pub(super) fn new(limit: u32, shared: u32, ordered: u32) -> Self {
        Self { limit, shared, ordered }
    }

    /// The launches that jobs ordered get this much: half, and at least one.
    pub(super) fn most_ordered(limit: u32) -> u32 {
        (limit / 2).max(1).min(limit)
    }

    /// Further launches of the pool's own kind. Of those that jobs ordered, no more than half of the limit counts: with a limit
    /// of 1, both kinds have one launch.
    pub(super) fn for_shared(&self) -> u32 {
        self.limit.saturating_sub(self.shared).saturating_sub(self.ordered.min(self.limit / 2))
    }

    /// Further launches that jobs ordered.
    pub(super) fn for_ordered(&self) -> u32 {
        let own = Self::most_ordered(self.limit).saturating_sub(self.ordered);
        own.min(self.limit.saturating_sub(self.shared).saturating_sub(self.ordered))
    }

    pub(super) fn add_shared(&mut self) {
        self.shared = self.shared.saturating_add(1);
    }

    pub(super) fn add_ordered(&mut self) {
        self.ordered = self.ordered.saturating_add(1);
    }

    /// Launches that jobs ordered.
    pub(super) fn ordered(&self) -> u32 {
        self.ordered
    }

    /// Launches of both kinds.
    pub(super) fn used(&self) -> u32 {
        self.shared.saturating_add(self.ordered)
    }
}

/// Whether a trust domain may have one more of the launches that jobs ordered, of which `left` are left. The last one is for a
/// domain that has none.
pub(super) fn is_fair(left: u32, of_domain: u32) -> bool {
    left > 1 || (left == 1 && of_domain == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_jobs_ordered_the_pool_has_room_and_a_limit_holds() {
        for limit in 0..12 {
            for ordered in 0..12 {
                let most = Share::most_ordered(limit);
                let mut share = Share::new(limit, 0, ordered.min(most));
                assert!(limit == 0 || share.for_shared() > 0, "{limit} {ordered}");
                while share.for_shared() > 0 {
                    share.add_shared();
                }
                assert!(share.used() <= limit.max(2), "{share:?}");
                assert!(share.for_ordered() == 0 || share.used() < limit, "{share:?}");
                while share.for_ordered() > 0 {
                    share.add_ordered();
                }
                assert!(share.used() <= limit.max(2), "{share:?}");
            }
        }
    }

    #[test]
    fn orders_get_half_of_what_is_free() {
        for (limit, shared, ordered, for_shared, for_ordered) in [
            (10, 0, 0, 10, 5),
            (10, 0, 5, 5, 0),
            (10, 8, 0, 2, 2),
            (10, 10, 0, 0, 0),
            (10, 5, 5, 0, 0),
            (3, 0, 1, 2, 0),
            (2, 1, 0, 1, 1),
            (1, 0, 0, 1, 1),
            (1, 0, 1, 1, 0),
            (1, 1, 0, 0, 0),
            // The limit was lowered meanwhile.
            (2, 0, 5, 1, 0),
            (0, 0, 0, 0, 0),
        ] {
            let share = Share::new(limit, shared, ordered);
            assert_eq!((share.for_shared(), share.for_ordered()), (for_shared, for_ordered), "{share:?}");
        }
    }

    #[test]
    fn the_last_one_is_for_a_domain_that_has_none() {
        assert!(is_fair(2, 7) && is_fair(1, 0) && !is_fair(1, 1) && !is_fair(0, 0));
    }
}
