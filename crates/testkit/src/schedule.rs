//! Schedules of many ranks in one process: random numbers from a seed, and events in the order of virtual time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

/// A random number generator (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let number = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ number >> 31
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// True once in this many times.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// A delay of up to one of several numbers of microseconds, so that most can be short and a few long.
    pub fn delay(&mut self, longest_us: &[u64]) -> Duration {
        let longest = self.pick(longest_us);
        Duration::from_micros(1 + self.below(longest))
    }
}

/// Events in the order of their times; events of one time in the order in which they were added.
#[derive(Debug)]
pub struct Queue<T> {
    order: BinaryHeap<Reverse<(Instant, u64)>>,
    events: BTreeMap<u64, T>,
    added: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue { order: BinaryHeap::new(), events: BTreeMap::new(), added: 0 }
    }
}

impl<T> Queue<T> {
    /// Adds an event.
    pub fn add(&mut self, when: Instant, event: T) {
        self.added += 1;
        self.order.push(Reverse((when, self.added)));
        self.events.insert(self.added, event);
    }

    /// Takes the next event, with its time.
    pub fn pop(&mut self) -> Option<(Instant, T)> {
        let Reverse((when, number)) = self.order.pop()?;
        Some((when, self.events.remove(&number)?))
    }
}
