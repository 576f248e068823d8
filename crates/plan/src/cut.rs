//! How a buffer of some elements is cut into tiles and chunks.
//!
//! The plan knows neither counts nor bytes; the executor repeats it per tile. Where the cuts fall decides which rank
//! adds first for which element, so the oracle and the executors share this one rule, and results are the same bits.

use std::ops::Range;

/// The cuts of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    count: usize,
    chunks: usize,
    granule: usize,
    /// Elements of a chunk in every tile but the last.
    chunk_max: usize,
}

impl Cut {
    /// Cuts `count` elements into `chunks` per tile. A chunk holds at most `chunk_max` elements, and all its cuts fall
    /// on multiples of `granule` elements (a cache line, so that two ranks never write the same one).
    ///
    /// # Panics
    /// If `chunks`, `granule` or `chunk_max` is zero, or `chunk_max` is no multiple of `granule`.
    pub fn new(count: usize, chunks: u32, granule: usize, chunk_max: usize) -> Self {
        assert!(chunks > 0 && granule > 0 && chunk_max > 0, "a cut needs chunks, a granule and room");
        assert!(chunk_max.is_multiple_of(granule), "chunks of {chunk_max} are no multiple of {granule}");
        Self { count, chunks: chunks as usize, granule, chunk_max }
    }

    /// A cut into a single tile, however large.
    pub fn whole(count: usize, chunks: u32, granule: usize) -> Self {
        Self::new(count, chunks, granule, usize::MAX / granule * granule)
    }

    /// How many elements are cut.
    pub fn count(&self) -> usize {
        self.count
    }

    /// How many tiles there are; at least one, since ranks of a call with no elements still meet.
    pub fn tiles(&self) -> usize {
        self.count.div_ceil(self.tile_max()).max(1)
    }

    /// Where a chunk of a tile lies in the buffer. Chunks at the end may be shorter or empty.
    pub fn range(&self, tile: usize, chunk: usize) -> Range<usize> {
        let first = tile.saturating_mul(self.tile_max()).min(self.count);
        let length = (self.count - first).min(self.tile_max());
        let even = length.div_ceil(self.chunks).div_ceil(self.granule) * self.granule;
        let at = |chunk: usize| first + chunk.saturating_mul(even).min(length);
        at(chunk)..at(chunk + 1)
    }

    /// The most elements of a tile.
    pub fn tile_max(&self) -> usize {
        self.chunk_max.saturating_mul(self.chunks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_element_is_in_one_chunk(count in 0usize..5000, chunks in 1u32..9, granules in 1usize..9) {
            let granule = 16;
            let cut = Cut::new(count, chunks, granule, granules * granule);
            let mut next = 0;
            for tile in 0..cut.tiles() {
                for chunk in 0..chunks as usize {
                    let range = cut.range(tile, chunk);
                    prop_assert_eq!(range.start, next);
                    prop_assert!(range.len() <= granules * granule);
                    prop_assert!(range.start.is_multiple_of(granule) || range.is_empty());
                    next = range.end;
                }
            }
            prop_assert_eq!(next, count);
        }
    }

    #[test]
    fn nothing_is_one_tile() {
        let cut = Cut::whole(0, 4, 16);
        assert_eq!(cut.tiles(), 1);
        assert_eq!(cut.range(0, 3), 0..0);
        assert_eq!(Cut::whole(100, 2, 16).range(0, 1), 64..100);
    }
}
