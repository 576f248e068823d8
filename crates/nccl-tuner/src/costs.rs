//! NCCL's table of costs for one call: microseconds by algorithm and protocol. NCCL takes the lowest.

/// An algorithm and a protocol, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) algorithm: usize,
    pub(crate) protocol: usize,
}

/// The largest numbers of algorithms and protocols that are plausible.
const NUMBER_MAX: usize = 64;

/// The costs of one call. Negative ones are of ways that NCCL cannot use.
pub(crate) struct Costs<'c> {
    entries: &'c mut [f32],
    protocols: usize,
}

impl<'c> Costs<'c> {
    /// The number of entries of a table of that many algorithms and protocols; nothing if the numbers make no sense.
    pub(crate) fn entries(algorithms: i32, protocols: i32) -> Option<usize> {
        let number =
            |number: i32| usize::try_from(number).ok().filter(|number| (1..=NUMBER_MAX).contains(number));
        Some(number(algorithms)? * number(protocols)?)
    }

    /// The table with these entries, a row of protocols per algorithm.
    pub(crate) fn new(entries: &'c mut [f32], protocols: usize) -> Self {
        Self { entries, protocols: protocols.max(1) }
    }

    fn index(&self, way: Way) -> Option<usize> {
        let first = way.algorithm.checked_mul(self.protocols)?;
        (way.protocol < self.protocols).then(|| first.saturating_add(way.protocol))
    }

    /// The cost by NCCL's own model; nothing for a way that it cannot use, or that this NCCL does not have.
    pub(crate) fn of(&self, way: Way) -> Option<f32> {
        self.entries.get(self.index(way)?).copied().filter(|cost| *cost >= 0.0)
    }

    /// What NCCL would take.
    pub(crate) fn cheapest(&self) -> Option<(Way, f32)> {
        let all = self.entries.iter().enumerate().filter(|(_, cost)| **cost >= 0.0);
        let (at, cost) = all.min_by(|(_, one), (_, other)| one.total_cmp(other))?;
        Some((Way { algorithm: at / self.protocols, protocol: at % self.protocols }, *cost))
    }

    /// Makes a way that NCCL can use the cheapest. `time_us` is what it will cost, if that is known: the lower of it and half of all others
    /// is written, so that estimates which NCCL passes on stay plausible.
    pub(crate) fn prefer(&mut self, way: Way, time_us: Option<f32>) {
        let Some(at) = self.index(way).filter(|_| self.of(way).is_some()) else { return };
        let others = self.entries.iter().enumerate().filter(|(other, cost)| *other != at && **cost >= 0.0);
        let least = others.map(|(_, cost)| *cost).fold(f32::INFINITY, f32::min);
        if least == 0.0 {
            // Nothing is below zero except what NCCL cannot use.
            for (other, cost) in self.entries.iter_mut().enumerate() {
                if other != at && *cost == 0.0 {
                    *cost = f32::MIN_POSITIVE;
                }
            }
        }
        let time_us = time_us.filter(|time| *time >= 0.0).unwrap_or(self.entries[at]);
        self.entries[at] = time_us.min(least / 2.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING_LL: Way = Way { algorithm: 1, protocol: 0 };

    #[test]
    fn the_preferred_way_is_the_cheapest() {
        for (before, time, after) in [
            ([5.0, -1.0, 7.0, 8.0], Some(3.0), 2.5),
            ([5.0, -1.0, 7.0, 8.0], Some(1.0), 1.0),
            ([5.0, -1.0, 7.0, 8.0], None, 2.5),
            ([5.0, -1.0, 7.0, 8.0], Some(f32::NAN), 2.5),
            ([0.0, 0.0, 7.0, 8.0], Some(3.0), 0.0),
            ([-1.0, -1.0, 7.0, -1.0], Some(3.0), 3.0),
        ] {
            let mut entries = before;
            let mut costs = Costs::new(&mut entries, 2);
            costs.prefer(RING_LL, time);
            assert_eq!(costs.cheapest(), Some((RING_LL, after)), "{before:?}");
            assert_eq!(entries[1].is_sign_negative(), before[1] < 0.0);
        }
    }

    #[test]
    fn ways_that_nccl_cannot_use_stay_so() {
        let before = [5.0, 6.0, -1.0, 8.0];
        let mut entries = before;
        let mut costs = Costs::new(&mut entries, 2);
        for (algorithm, protocol) in [(1, 0), (1, 2), (2, 0), (99, 0), (usize::MAX / 4, 1)] {
            let way = Way { algorithm, protocol };
            assert_eq!(costs.of(way), None);
            costs.prefer(way, Some(0.1));
        }
        assert_eq!(entries, before);
        assert_eq!(Costs::new(&mut [-1.0, f32::NAN], 1).cheapest(), None);
    }

    #[test]
    fn numbers_of_other_versions_are_checked() {
        assert_eq!(Costs::entries(7, 3), Some(21));
        assert_eq!(Costs::entries(9, 4), Some(36));
        for (algorithms, protocols) in [(0, 3), (-1, 3), (7, 0), (1000, 3), (i32::MAX, i32::MAX)] {
            assert_eq!(Costs::entries(algorithms, protocols), None);
        }
    }
}
