//! Reproducible randomness.

/// xorshift: a seed gives the same numbers in the same order.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// The next number, from 0 to one below the limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    /// One of the items, if there is any.
    pub fn pick<'a, T>(&mut self, among: &'a [T]) -> Option<&'a T> {
        let at = usize::try_from(self.below(among.len().max(1) as u64)).ok()?;
        among.get(at)
    }
}

/// A number from the environment.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
