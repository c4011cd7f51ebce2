//! Lifetimes: some seeds have a default one, and jobs with timeouts that exceed it.
//!
//! Everything is drawn from a stream of its own, so that the course of the other seeds does not depend on this file.

use std::sync::Arc;
use std::time::Duration;

use super::rng::Rng;
use super::scenario::{JobPlan, PoolPlan};

/// Makes the pool's lifetime a default in some seeds, and gives some of its jobs longer timeouts.
pub(super) fn draw(seed: u64, pool: &mut PoolPlan, jobs: &mut [JobPlan]) {
    let mut rng = Rng::new(seed, "lifetimes");
    if pool.policy.max_lifetime.is_none() || !rng.chance(500) {
        return;
    }
    Arc::make_mut(&mut pool.policy).extends_lifetime = true;
    for job in jobs.iter_mut().filter(|job| job.pool == pool.name) {
        if rng.chance(150) {
            job.facts.timeout = Duration::from_mins(rng.pick(&[60, 75, 100]));
        }
    }
}
