//! Seeded random streams, one per purpose.
//!
//! Each purpose draws from a stream of its own, so that one more fault does not reshuffle all arrivals.

use std::ops::Range;

/// A splitmix64 generator: one word of state, random enough to pick steps.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The stream of `seed` for one purpose.
    pub fn new(seed: u64, purpose: &str) -> Self {
        let mut state = seed ^ 0x6a09_e667_f3bc_c908;
        for byte in purpose.bytes() {
            state = mix(state ^ u64::from(byte));
        }
        Self(state)
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.word()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// A number of the range; its start if it is empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end.saturating_sub(range.start))
    }

    /// True this often in a thousand draws.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    /// One of the choices. The slice must not be empty.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }
}

fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Every stream of a [`World`](crate::world::World), each an [`Rng`] of its own.
#[derive(Debug)]
pub struct Streams {
    /// Picks the next step.
    pub scheduling: Rng,
    /// The arrivals of jobs, and their properties.
    pub jobs: Rng,
    /// The durations of boots and terminations.
    pub boots: Rng,
    /// The faults that occur, and their moments.
    pub faults: Rng,
    /// The durations of calls.
    pub latency: Rng,
    /// Nonces.
    pub ids: Rng,
    /// The durations and the failures of image pulls.
    pub images: Rng,
}

impl Streams {
    pub fn new(seed: u64) -> Self {
        Self {
            scheduling: Rng::new(seed, "scheduling"),
            jobs: Rng::new(seed, "jobs"),
            boots: Rng::new(seed, "boots"),
            faults: Rng::new(seed, "faults"),
            latency: Rng::new(seed, "latency"),
            ids: Rng::new(seed, "ids"),
            images: Rng::new(seed, "pulls"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_seed_differ_and_repeat() {
        let words = |purpose| (0..5).scan(Rng::new(7, purpose), |r, _| Some(r.word())).collect::<Vec<_>>();
        assert_eq!(words("boots"), words("boots"));
        assert_ne!(words("boots"), words("faults"));
    }

    #[test]
    fn draws_stay_inside_and_reach_every_value() {
        let mut rng = Rng::new(1, "test");
        let mut seen = [0_u32; 5];
        for _ in 0..5000 {
            seen[rng.index(5)] += 1;
        }
        assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
        assert_eq!(rng.within(3..3), 3);
        assert!((0..100).all(|_| (10..12).contains(&rng.within(10..12))));
        assert!(!rng.chance(0) && rng.chance(1000));
    }
}
