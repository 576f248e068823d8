//! Sets of time: when a device was busy, as intervals that do not overlap.

/// When something ran, in nanoseconds.
///
/// Kernels of several streams overlap and come in any order. They are collected as they come and merged from time to time, so that a
/// trace with millions of kernels that follow each other closely takes the memory of its gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    spans: Vec<(i64, i64)>,
    /// How many spans at the front are already merged.
    merged: usize,
}

/// Spans are merged when this many have come since the last time, or as many as there were then.
const MERGE_AFTER: usize = 1 << 16;

impl Spans {
    /// Adds the time from `start` on, for `duration` nanoseconds. A span without duration is left out.
    pub fn add(&mut self, start: i64, duration: u64) {
        let end = start.saturating_add_unsigned(duration);
        if end > start {
            self.spans.push((start, end));
            if self.spans.len() - self.merged > MERGE_AFTER.max(self.merged) {
                self.merge();
            }
        }
    }

    /// Merges spans that touch. Queries need it after the last addition.
    pub fn merge(&mut self) {
        self.spans.sort_unstable();
        self.spans.dedup_by(|next, kept| {
            let touches = next.0 <= kept.1;
            if touches {
                kept.1 = kept.1.max(next.1);
            }
            touches
        });
        self.merged = self.spans.len();
    }

    /// Moves all spans by a number of nanoseconds.
    pub fn shift(&mut self, by: i64) {
        for (start, end) in &mut self.spans {
            (*start, *end) = (start.saturating_add(by), end.saturating_add(by));
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// From the start of the first to the end of the last.
    pub fn extent(&self) -> Option<(i64, i64)> {
        let start = self.spans.iter().map(|span| span.0).min()?;
        let end = self.spans.iter().map(|span| span.1).max()?;
        Some((start, end))
    }

    /// The time in the set, in nanoseconds. The set must be merged.
    pub fn total_ns(&self) -> u64 {
        debug_assert_eq!(self.merged, self.spans.len());
        self.spans.iter().fold(0, |sum, (start, end)| sum.saturating_add(end.abs_diff(*start)))
    }

    /// The time that is in both sets, in nanoseconds. Both must be merged.
    pub fn shared_ns(&self, other: &Self) -> u64 {
        debug_assert_eq!((self.merged, other.merged), (self.spans.len(), other.spans.len()));
        let (mut ours, mut theirs) = (self.spans.iter().peekable(), other.spans.iter().peekable());
        let mut shared: u64 = 0;
        while let (Some(our), Some(their)) = (ours.peek(), theirs.peek()) {
            let (start, end) = (our.0.max(their.0), our.1.min(their.1));
            if end > start {
                shared = shared.saturating_add(end.abs_diff(start));
            }
            if our.1 <= their.1 {
                ours.next()
            } else {
                theirs.next()
            };
        }
        shared
    }

    /// The number of separate spans.
    pub fn len(&self) -> usize {
        self.spans.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(spans: &[(i64, u64)]) -> Spans {
        let mut all = Spans::default();
        spans.iter().for_each(|(start, duration)| all.add(*start, *duration));
        all.merge();
        all
    }

    #[test]
    fn overlapping_spans_count_once() {
        let spans = of(&[(10, 10), (15, 10), (40, 5), (25, 5), (50, 0)]);
        assert_eq!((spans.len(), spans.total_ns(), spans.extent()), (2, 25, Some((10, 45))));
        assert_eq!(spans.shared_ns(&of(&[(0, 12), (28, 14)])), 2 + 2 + 2);
        assert_eq!(spans.shared_ns(&Spans::default()), 0);
        let mut later = spans.clone();
        later.shift(-20);
        assert_eq!((later.extent(), later.total_ns()), (Some((-10, 25)), 25));
        assert_eq!(Spans::default().extent(), None);
        assert_eq!(of(&[(i64::MAX - 1, u64::MAX)]).total_ns(), 1);
    }

    #[test]
    fn many_spans_are_merged_as_they_come() {
        let mut spans = Spans::default();
        (0..10 * MERGE_AFTER as i64).rev().for_each(|at| spans.add(at * 10, 10));
        assert!(spans.spans.len() <= MERGE_AFTER + 1);
        spans.merge();
        assert_eq!(spans.len(), 1);
    }

    proptest! {
        #[test]
        fn times_are_those_of_single_nanoseconds(
            a in prop::collection::vec((0_i64..60, 0_u64..12), 0..12),
            b in prop::collection::vec((0_i64..60, 0_u64..12), 0..12),
        ) {
            let is_in = |spans: &[(i64, u64)], at: i64| {
                spans.iter().any(|(start, duration)| (*start..start + *duration as i64).contains(&at))
            };
            let total = (0..80).filter(|at| is_in(&a, *at)).count() as u64;
            let shared = (0..80).filter(|at| is_in(&a, *at) && is_in(&b, *at)).count() as u64;
            prop_assert_eq!(of(&a).total_ns(), total);
            prop_assert_eq!(of(&a).shared_ns(&of(&b)), shared);
        }
    }
}
