//! The cost model: the time of a plan as launch, hops and bytes.
//!
//! ```text
//! time = launch + hops inside · α + hops across · β + max(bytes of a rank / its rate inside the island,
//!                                                         bytes of an island / its rate to other islands)
//! ```
//!
//! The bytes take at least as long as the slowest lane needs for its steps one after the other. The hops take at least as
//! long as a lane needs to send its messages into the network one after the other.
//!
//! Hops and bytes come from the [header](crate::Algorithm::work) of an algorithm, which a test compares with its plans. Rates
//! come from the load that the plan puts on the links ([`Placement`]); no code here depends on an algorithm's name. Launch, α
//! and β depend on the plan's operations: messages by protocol, peer memory, switches that compute ([`constants`]).
//!
//! All numbers are integers, so that every machine computes the same ones.
//!
//! Deliberately absent: pipelines of tiles that fill, and other calls on the same links. A simulator covers these.

mod candidate;
pub mod constants;
mod loads;
mod placement;
mod usage;

use std::fmt;
use std::iter::Sum;
use std::ops::Add;

pub use candidate::{Candidate, candidates};
pub use loads::Medium;
pub use placement::Placement;

use crate::{Collective, Work};

/// A time. Saturates at 213 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Picoseconds(pub u64);

/// The predicted time of a call, by its terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prediction {
    /// Hops and bytes.
    pub work: Work,
    /// The time to start and to end.
    pub launch: Picoseconds,
    /// All hops inside islands.
    pub inside: Picoseconds,
    /// All hops between islands.
    pub across: Picoseconds,
    /// The time to send messages into the network one after the other, beyond the time of the hops.
    pub messages: Picoseconds,
    /// The bytes.
    pub transfer: Picoseconds,
    /// The bottleneck of the bytes.
    pub limit: Limit,
}

/// The bottleneck of a call's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// The links inside islands.
    Inside,
    /// The links between islands.
    Across,
    /// A lane that takes its steps one after the other.
    Serial,
    /// The cut that bounds every algorithm.
    Cut,
}

impl Prediction {
    /// The sum of all terms.
    pub fn time(&self) -> Picoseconds {
        [self.launch, self.inside, self.across, self.messages, self.transfer].into_iter().sum()
    }
}

/// The predicted time of a call of `bytes`, as nccl-tests count them; nothing if the algorithm's header has no formula for it.
pub fn predict(
    candidate: &Candidate,
    placement: &Placement<'_>,
    collective: &Collective,
    bytes: u64,
) -> Option<Prediction> {
    let (islands, per_island) = placement.grid();
    let mut work = candidate.algorithm.work(collective, islands, per_island, bytes)?;
    if let Some((rank, island, parts)) = candidate.counted {
        let of = |chunks: u64| (u128::from(bytes) * u128::from(chunks)).div_ceil(parts.into());
        let whole = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
        // Messages are one hop if any of them leaves its rank, of the slowest kind present.
        let hops_across = work.hops_across.min(island);
        let hops_inside = if hops_across > 0 { work.hops_inside } else { rank.min(1) };
        let (rank_bytes, island_bytes) = (whole(of(rank)), whole(of(island)));
        work = Work { hops_inside, hops_across, rank_bytes, island_bytes };
    }
    let inside = (candidate.over(work.rank_bytes, candidate.inside_bytes_per_second), Limit::Inside);
    let across = (candidate.over(work.island_bytes, candidate.across_bytes_per_second), Limit::Across);
    let (by_links, side) = if across.0 > inside.0 { across } else { inside };
    let (serial_inside, serial_across) = candidate.serial_bytes_per_second;
    let serial =
        candidate.over(work.rank_bytes, serial_inside) + candidate.over(work.island_bytes, serial_across);
    let by_cut = over(bytes, candidate.bound_bytes_per_second);
    // The more informative limits come first: a later one replaces them only if it is clearly slower.
    let slower = |a: (Picoseconds, Limit), b: (Picoseconds, Limit)| {
        if b.0.beyond(a.0) > Picoseconds(a.0.0 / 100) { b } else { a }
    };
    let (_, limit) = slower(slower((by_links, side), (serial, Limit::Serial)), (by_cut, Limit::Cut));
    let transfer = by_links.max(serial).max(by_cut);
    let (inside, across) =
        (candidate.hop_inside.times(work.hops_inside), candidate.hop_across.times(work.hops_across));
    Some(Prediction {
        work,
        launch: candidate.launch,
        inside,
        across,
        messages: candidate.message_across.times(candidate.messages_across).beyond(inside + across),
        transfer,
        limit,
    })
}

/// The time of `bytes` at a rate, rounded up; zero without a rate.
pub(crate) fn over(bytes: u64, bytes_per_second: Option<u64>) -> Picoseconds {
    let Some(rate) = bytes_per_second.filter(|rate| *rate > 0) else { return Picoseconds(0) };
    Picoseconds::clamp((u128::from(bytes) * Picoseconds::PER_SECOND).div_ceil(u128::from(rate)))
}

impl Picoseconds {
    const PER_SECOND: u128 = 1_000_000_000_000;

    fn clamp(picoseconds: u128) -> Self {
        Self(u64::try_from(picoseconds).unwrap_or(u64::MAX))
    }

    /// The time of `count` repetitions.
    pub fn times(self, count: u64) -> Self {
        Self(self.0.saturating_mul(count))
    }

    /// The difference; zero if `other` is longer.
    pub fn beyond(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The rate of `bytes` in this time, in bytes per second.
    pub fn rate_of(self, bytes: u64) -> u64 {
        let rate = (u128::from(bytes) * Self::PER_SECOND).checked_div(self.0.into());
        rate.map_or(0, |rate| u64::try_from(rate).unwrap_or(u64::MAX))
    }
}

impl Add for Picoseconds {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sum for Picoseconds {
    fn sum<I: Iterator<Item = Self>>(times: I) -> Self {
        times.fold(Self(0), Self::add)
    }
}

/// One decimal, in the largest unit that gives at least 1: `4.5 us`.
impl fmt::Display for Picoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_000_000_000_000, "s"), (1_000_000_000, "ms"), (1_000_000, "us")];
        // A number that rounds to 1000 takes the next unit.
        let (size, unit) =
            units.into_iter().find(|(size, _)| self.0 >= size - size / 20_000).unwrap_or((1_000, "ns"));
        let tenths = self.0.saturating_add(size / 20) / (size / 10);
        f.pad(&format!("{}.{} {unit}", tenths / 10, tenths % 10))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_printed_in_the_largest_unit() {
        for (picoseconds, text) in [
            (0, "0.0 ns"),
            (600_000, "600.0 ns"),
            (999_960_000, "1.0 ms"),
            (4_500_000, "4.5 us"),
            (999_940_000, "999.9 us"),
            (1_250_000_000_000, "1.3 s"),
        ] {
            assert_eq!(Picoseconds(picoseconds).to_string(), text);
        }
    }

    #[test]
    fn bytes_take_time_and_times_have_rates() {
        assert_eq!(over(1_000_000_000, Some(1_000_000_000)), Picoseconds(1_000_000_000_000));
        assert_eq!(over(1, Some(3)), Picoseconds(333_333_333_334));
        assert_eq!(over(7, None), Picoseconds(0));
        assert_eq!(over(u64::MAX, Some(1)), Picoseconds(u64::MAX));
        assert_eq!(Picoseconds(2_000_000).rate_of(64), 32_000_000);
    }
}
