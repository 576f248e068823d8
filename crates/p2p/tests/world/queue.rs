//! What is still to happen, by time and then in the order in which it was decided.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Instant;

/// Events at times.
pub(crate) struct Queue<E> {
    times: BinaryHeap<Reverse<(Instant, u64)>>,
    events: BTreeMap<u64, E>,
    last: u64,
}

impl<E> Queue<E> {
    pub(crate) fn new() -> Queue<E> {
        Queue { times: BinaryHeap::new(), events: BTreeMap::new(), last: 0 }
    }

    /// A number that no event and no other caller has.
    pub(crate) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(crate) fn push(&mut self, when: Instant, event: E) {
        let number = self.number();
        self.times.push(Reverse((when, number)));
        self.events.insert(number, event);
    }

    /// The next event, and its time.
    pub(crate) fn pop(&mut self) -> Option<(Instant, E)> {
        let Reverse((when, number)) = self.times.pop()?;
        Some((when, self.events.remove(&number)?))
    }
}
