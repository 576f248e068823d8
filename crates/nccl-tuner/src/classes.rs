//! Classes of sizes, for which ways are ranked once: four for each power of two.
//!
//! A class is ranked at its smallest size, so that powers of two, which are most sizes, are ranked exactly.

use std::sync::OnceLock;

use crate::costs::Way;

/// Classes of all sizes of 64 bits.
pub(crate) const CLASSES: usize = 64 * 4;

/// A way and its predicted time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) way: Way,
    pub(crate) time_us: f32,
}

/// The class of a size.
#[inline]
pub(crate) fn class(bytes: u64) -> usize {
    let bytes = bytes.max(1);
    let power = bytes.ilog2();
    let quarter = if power >= 2 { bytes >> (power - 2) } else { bytes << (2 - power) } & 3;
    4 * power as usize + quarter as usize
}

/// The smallest size of a class.
pub(crate) fn smallest(class: usize) -> u64 {
    let (power, quarter) = (class as u32 / 4, class as u64 % 4);
    let bytes = u128::from(4 + quarter) << power >> 2;
    u64::try_from(bytes).unwrap_or(u64::MAX).max(1)
}

/// The ranked ways of each class of one function.
pub(crate) struct Ranked {
    classes: Box<[OnceLock<Box<[Candidate]>>]>,
}

impl Ranked {
    pub(crate) fn new() -> Self {
        Self { classes: (0..CLASSES).map(|_| OnceLock::new()).collect() }
    }

    /// The ways for a size, the fastest first. `rank` is called for the first size of a class.
    #[inline]
    pub(crate) fn of(&self, bytes: u64, rank: impl FnOnce(u64) -> Box<[Candidate]>) -> &[Candidate] {
        let class = class(bytes);
        self.classes[class].get_or_init(|| rank(smallest(class)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_begins_at_its_smallest_size() {
        let sizes = (0..64).flat_map(|power| {
            let of_power = move |quarter: u64| (1_u64 << power).checked_add((1_u64 << power) / 4 * quarter);
            (0..4).filter_map(of_power)
        });
        for bytes in sizes.chain([3, 5, 1000, 1 << 20, (1 << 20) + 1, u64::MAX]) {
            let class = class(bytes);
            assert!(class < CLASSES, "{bytes}");
            assert!(smallest(class) <= bytes, "{bytes}");
            assert_eq!(super::class(smallest(class)), class, "{bytes}");
        }
        assert_eq!(smallest(class(1 << 20)), 1 << 20);
        assert_eq!(smallest(class((1 << 20) + (1 << 18))), (1 << 20) + (1 << 18));
        assert_eq!(class(0), class(1));
    }

    #[test]
    fn a_class_is_ranked_once() {
        let ranked = Ranked::new();
        let mut sizes = Vec::new();
        for bytes in [1 << 20, (1 << 20) + 5, 1 << 21] {
            ranked.of(bytes, |smallest| {
                sizes.push(smallest);
                Box::new([])
            });
        }
        assert_eq!(sizes, [1 << 20, 1 << 21]);
    }
}
