//! A few words that one thread writes and any other reads at any time, without a lock: a sequence lock whose sequence is
//! a *tag*.
//!
//! The writer takes the tag away (0), writes the values, and puts the new tag there. A reader reads the tag, the values
//! and the tag again, and has them if both tags are the same and not 0. Every value is stored with release and loaded with
//! acquire (`Edge::Record`): a reader that has read a new value sees, at its second load of the tag, that the old one is gone; one that
//! has read a new tag reads values at least as new. So what is read under one tag is what was written under it. There is no fence
//! anywhere, and on x86 all of it is plain moves.
//!
//! A tag may be changed without the values ([`Slot::retag`]), and a value may be set before that ([`Slot::set`]): a
//! reader under the old tag may then find that value new, which callers take into account. Tags count up, so none is reused while a
//! reader may load it.
//!
//! A reader stops after some tries: the slot is being written, and a later read succeeds.
//!
//! Deliberately absent: more than one writer.

use crate::sync::{AtomicU64, Edge, Ordering};

const TRIES_MAX: usize = 8;

/// `N` values under a tag.
#[repr(C)]
#[derive(Debug)]
pub struct Slot<const VALUES: usize> {
    tag: AtomicU64,
    values: [AtomicU64; VALUES],
}

impl<const VALUES: usize> Slot<VALUES> {
    /// As fresh memory has it.
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Self { tag: AtomicU64::new(0), values: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Writes all values under a tag, which is not 0. Only one thread may.
    #[inline]
    pub fn write(&self, tag: u64, values: [u64; VALUES]) {
        self.tag.store(0, Ordering::Relaxed);
        for (place, value) in self.values.iter().zip(values) {
            place.store(value, Edge::Record.release());
        }
        self.tag.store(tag, Edge::Record.release());
    }

    /// Writes the first value under a tag that marks the others as meaningless.
    #[inline]
    pub fn write_first(&self, tag: u64, value: u64) {
        self.tag.store(0, Ordering::Relaxed);
        self.values[0].store(value, Edge::Record.release());
        self.tag.store(tag, Edge::Record.release());
    }

    /// The same values under another tag.
    #[inline]
    pub fn retag(&self, tag: u64) {
        self.tag.store(tag, Edge::Record.release());
    }

    /// Sets a value that means something only under a tag to come.
    #[inline]
    pub fn set(&self, at: usize, value: u64) {
        self.values[at].store(value, Edge::Record.release());
    }

    /// Makes a copy of a slot what [`Slot::read`] would have made of the slot itself: `before` and `after` are copies that
    /// were made earlier and later, and the tag holds if it is theirs.
    pub fn settle(&self, before: &Self, after: &Self) {
        let [first, second] = [before, after].map(|copy| copy.tag.load(Ordering::Relaxed));
        self.retag(if first == second { first } else { 0 });
    }

    /// The tag and its values, unless there are none or they are being written.
    pub fn read(&self) -> Option<(u64, [u64; VALUES])> {
        for _ in 0..TRIES_MAX {
            let tag = self.tag.load(Edge::Record.acquire());
            if tag == 0 {
                return None;
            }
            let values = std::array::from_fn(|at| self.values[at].load(Edge::Record.acquire()));
            if self.tag.load(Ordering::Relaxed) == tag {
                return Some((tag, values));
            }
        }
        None
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_valid_if_the_tag_is_unchanged() {
        let copy = |tag: u64, value: u64| {
            let slot = Slot::<1>::new();
            slot.write(tag, [value]);
            slot
        };
        for (before, after, wanted) in [(4, 4, Some((4, [7]))), (4, 5, None), (0, 5, None), (0, 0, None)] {
            // The tag that was copied along with the values does not say when.
            for between in [0, 4, 5] {
                let slot = copy(between, 7);
                slot.settle(&copy(before, 6), &copy(after, 8));
                assert_eq!(slot.read(), wanted);
            }
        }
    }

    #[test]
    fn values_read_under_a_tag_were_written_under_it() {
        const ROUNDS: u64 = if cfg!(miri) { 200 } else { 100_000 };
        let slot = Slot::<3>::new();
        assert_eq!(slot.read(), None);
        let mut seen = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| (1..=ROUNDS).for_each(|tag| slot.write(tag, [tag; 3])));
            while seen < ROUNDS {
                if let Some((tag, values)) = slot.read() {
                    assert_eq!(values, [tag; 3]);
                    assert!(tag >= seen, "a tag that was there before");
                    seen = tag;
                }
            }
        });
    }
}
