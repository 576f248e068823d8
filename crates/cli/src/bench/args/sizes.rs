//! The sizes of a case.

use weftlink_fabric::bytes::Bytes;

use super::{Args, misuse};
use crate::Failure;
use crate::bench::job::Case;
use crate::units::size;

const MINBYTES: Bytes = Bytes(8);
const MAXBYTES: Bytes = Bytes(128 << 20);
const STEPFACTOR: u64 = 8;
/// A limit on the rows of a run.
const SIZES_MAX: usize = 10_000;
/// The sizes of the tour.
const TOUR_BYTES: [u64; 6] = [8, 512, 32 << 10, 1 << 20, 8 << 20, 64 << 20];

impl Args {
    /// The sizes of a case, as elements of a block.
    pub(super) fn counts(&self, case: &Case, ranks: usize) -> Result<Vec<usize>, Failure> {
        let blocks = case.blocks(ranks);
        if blocks == 0 {
            let is_given =
                self.smallest().or(self.largest()).or(self.stepbytes).is_some() || self.stepfactor.is_some();
            let name = case.collective.name();
            return if is_given { misuse(format!("a {name} has no size")) } else { Ok(vec![0]) };
        }
        let element = case.data_type.bytes() as u64;
        let smallest = self.smallest().unwrap_or(MINBYTES);
        let largest = self.largest().unwrap_or(MAXBYTES.max(smallest));
        if self.smallest().is_some() && smallest.0 < element {
            let name = case.data_type.name();
            let option = match (self.size, self.sizes) {
                (Some(_), _) => "--size",
                (None, Some(_)) => "--sizes",
                (None, None) => "-b",
            };
            return misuse(format!(
                "{option} {}: the smallest size is {element} bytes, one {name}",
                smallest.0
            ));
        }
        if smallest > largest {
            return misuse(format!(
                "the smallest size (-b {}) is larger than the largest (-e {})",
                size(smallest.0),
                size(largest.0)
            ));
        }
        let step = |bytes: u64| match self.stepbytes {
            Some(step) => bytes.checked_add(step.0),
            None => bytes.checked_mul(self.stepfactor.unwrap_or(STEPFACTOR)),
        };
        if self.stepbytes.is_some_and(|step| step.0 < element) {
            return misuse(format!("-i must be at least {element} bytes, one {}", case.data_type.name()));
        }
        let is_asked_for =
            self.smallest().or(self.largest()).or(self.stepbytes).is_some() || self.stepfactor.is_some();
        let sizes: Vec<u64> = if self.is_tour() && !is_asked_for {
            TOUR_BYTES.to_vec()
        } else {
            let all = std::iter::successors(Some(smallest.0), |&bytes| step(bytes));
            all.take_while(|&bytes| bytes <= largest.0).take(SIZES_MAX + 1).collect()
        };
        if sizes.len() > SIZES_MAX {
            return misuse(format!("more than {SIZES_MAX} sizes; use larger steps"));
        }
        // Every block has an element at least, so several small sizes may come to the same.
        let count = |bytes: u64| ((bytes / element / blocks as u64) as usize).max(1);
        let mut counts: Vec<usize> = sizes.into_iter().map(count).collect();
        counts.dedup();
        Ok(counts)
    }
}
