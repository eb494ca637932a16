//! Random numbers that a seed reproduces.

/// Generator of random numbers. It is not suitable for secrets.
#[derive(Clone, Copy, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns the generator with this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// Returns the next number, which is less than `limit`. The limit must not be zero.
    pub const fn below(&mut self, limit: u64) -> u64 {
        // The constants come from Knuth's MMIX generator.
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}
