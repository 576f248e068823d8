//! Random numbers from a seed.

use std::time::Duration;

/// A random number generator (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let number = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ number >> 31
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    pub(crate) fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Mostly short, sometimes long.
    pub(super) fn delay(&mut self) -> Duration {
        let longest = [50, 500, 500, 5_000, 50_000, 300_000][self.below(6) as usize];
        Duration::from_micros(1 + self.below(longest))
    }
}
