//! How a buffer is cut into tiles and chunks.
//!
//! The plan knows neither counts nor bytes; the executor repeats it per tile. The cuts decide which rank adds first for
//! which element, so the oracle and the executors share this one rule and get the same bits.

use std::ops::Range;

/// The cuts of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    count: usize,
    chunks: usize,
    granule: usize,
    /// The elements of a chunk in every tile but the last.
    chunk_max: usize,
}

impl Cut {
    /// Cuts `count` elements into `chunks` per tile. A chunk holds at most `chunk_max` elements and begins at a multiple of
    /// `granule` elements (a cache line, so that two ranks never write the same one).
    ///
    /// # Panics
    /// If `chunks`, `granule` or `chunk_max` is zero, or `chunk_max` is not a multiple of `granule`.
    pub fn new(count: usize, chunks: u32, granule: usize, chunk_max: usize) -> Self {
        assert!(chunks > 0 && granule > 0 && chunk_max > 0, "chunks, granule and chunk_max must not be zero");
        assert!(
            chunk_max.is_multiple_of(granule),
            "chunk_max {chunk_max} is not a multiple of granule {granule}"
        );
        Self { count, chunks: chunks as usize, granule, chunk_max }
    }

    /// A cut into a single tile, however large.
    pub fn whole(count: usize, chunks: u32, granule: usize) -> Self {
        Self::new(count, chunks, granule, usize::MAX / granule * granule)
    }

    /// The number of elements.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The number of tiles; at least one, since ranks synchronise even in a call without elements.
    pub fn tiles(&self) -> usize {
        self.count.div_ceil(self.tile_max()).max(1)
    }

    /// The range of a chunk of a tile in the buffer. Chunks at the end may be shorter or empty.
    pub fn range(&self, tile: usize, chunk: usize) -> Range<usize> {
        let first = tile.saturating_mul(self.tile_max()).min(self.count);
        let length = (self.count - first).min(self.tile_max());
        let even = length.div_ceil(self.chunks).div_ceil(self.granule) * self.granule;
        let at = |chunk: usize| first + chunk.saturating_mul(even).min(length);
        at(chunk)..at(chunk + 1)
    }

    /// The maximum number of elements of a tile.
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
    fn empty_buffers_have_one_tile() {
        let cut = Cut::whole(0, 4, 16);
        assert_eq!(cut.tiles(), 1);
        assert_eq!(cut.range(0, 3), 0..0);
        assert_eq!(Cut::whole(100, 2, 16).range(0, 1), 64..100);
    }
}
