//! Reproducible random numbers: SplitMix64.

use std::time::Duration;

/// A stream of random numbers, given its state.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        let number = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        number
    }

    /// A number below the limit; 0 if the limit is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.draw() % limit.max(1)
    }

    /// Whether something happens that happens once in this number of times.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of several values.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// A delay up to one of these numbers of microseconds.
    pub fn delay(&mut self, longest_us: &[u64]) -> Duration {
        let longest = self.pick(longest_us);
        Duration::from_micros(1 + self.below(longest))
    }
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A hash that depends on every bit of its argument.
pub fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(STEP);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}
