//! Where rings and bells lie in an endpoint's memory.
//!
//! ```text
//! for each rank:   [ bell ][ asleep ]
//! for each pair:   [ released ][ taken ]  [ frame ] x depth  [ bulk ] x depth
//! ```
//!
//! Processors fetch neighbouring lines in pairs, so lines that different ranks write are two apart.

use crate::transport::LINE;

/// The most memory of an endpoint on a host. From 419 ranks of a host on it is 192 bytes for each pair.
const BUDGET_BYTES: usize = 32 << 20;
/// Frames of a ring and bytes beside each, from the largest ring to the smallest.
const RINGS: [(usize, usize); 9] = [
    (16, 64 << 10),
    (8, 64 << 10),
    (16, 16 << 10),
    (16, 8 << 10),
    (16, 2 << 10),
    (8, 1 << 10),
    (8, 128),
    (4, 0),
    (1, 0),
];

/// The layout of an endpoint's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    ranks: usize,
    /// Frames that may be in flight from one rank to another.
    pub(super) depth: usize,
    /// The bulk memory beside each.
    pub(super) bulk_bytes: usize,
}

/// The places of a ring, in bytes from the start of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingPlace {
    pub(super) released: usize,
    pub(super) taken: usize,
    pub(super) frames: usize,
    pub(super) bulk: usize,
}

impl Layout {
    /// The largest rings that fit.
    pub(super) fn of(ranks: usize) -> Layout {
        let layouts = RINGS.map(|(depth, bulk_bytes)| Layout { ranks, depth, bulk_bytes });
        let [.., least] = layouts;
        layouts.into_iter().find(|layout| layout.bytes() <= BUDGET_BYTES).unwrap_or(least)
    }

    pub(super) fn bytes(&self) -> usize {
        2 * LINE * self.ranks + self.ranks * self.ranks.saturating_sub(1) * self.ring_bytes()
    }

    /// The line that wakes a rank.
    pub(super) fn bell(&self, rank: usize) -> usize {
        2 * LINE * rank
    }

    /// The line in which it says that it sleeps.
    pub(super) fn asleep(&self, rank: usize) -> usize {
        self.bell(rank) + LINE
    }

    /// The ring from one rank to another.
    pub(super) fn ring(&self, from: usize, to: usize) -> RingPlace {
        debug_assert!(from != to && from.max(to) < self.ranks, "a ring from {from} to {to}");
        let pair = from * (self.ranks - 1) + if to < from { to } else { to - 1 };
        let released = 2 * LINE * self.ranks + pair * self.ring_bytes();
        let frames = released + 2 * LINE;
        RingPlace { released, taken: released + LINE, frames, bulk: frames + self.frame_bytes() }
    }

    fn ring_bytes(&self) -> usize {
        let bytes = 2 * LINE + self.frame_bytes() + self.depth * self.bulk_bytes;
        if self.depth > 1 { bytes.next_multiple_of(2 * LINE) } else { bytes }
    }

    fn frame_bytes(&self) -> usize {
        self.depth * LINE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_do_not_overlap_and_fit_the_memory() {
        for ranks in [1, 2, 3, 7, 24] {
            let layout = Layout::of(ranks);
            let mut places: Vec<(usize, usize)> = (0..ranks)
                .flat_map(|rank| [(layout.bell(rank), LINE), (layout.asleep(rank), LINE)])
                .collect();
            for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
                if from != to {
                    let RingPlace { released, taken, frames, bulk } = layout.ring(from, to);
                    places.extend([(released, LINE), (taken, LINE), (frames, LINE * layout.depth)]);
                    places.push((bulk, layout.bulk_bytes * layout.depth));
                }
            }
            places.sort_unstable();
            for window in places.windows(2) {
                assert!(window[0].0 + window[0].1 <= window[1].0, "{ranks} ranks: {window:?}");
            }
            assert!(places.iter().all(|(at, _)| at.is_multiple_of(LINE)));
            assert!(places.last().is_some_and(|(at, bytes)| at + bytes <= layout.bytes()));
        }
    }

    #[test]
    fn memory_stays_within_the_budget() {
        for ranks in (1..=400).step_by(3) {
            assert!(Layout::of(ranks).bytes() <= BUDGET_BYTES, "{ranks} ranks");
        }
        assert_eq!(Layout::of(8).bulk_bytes, 64 << 10);
        assert_eq!(Layout::of(9).bulk_bytes, 16 << 10);
    }
}
