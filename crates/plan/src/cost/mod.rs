//! The cost model: the time of a plan as launch, hops and bytes.
//!
//! ```text
//! time = launch + hops inside · α + hops across · β + bytes + fill - hidden
//! bytes = max(bytes of a rank / its rate inside the island, bytes of an island / its rate to other islands)
//! ```
//!
//! The bytes take at least as long as the slowest lane needs for its steps one after the other. The hops take at least as
//! long as a lane needs to send its messages into the network one after the other. *Fill* is the time until a pipeline of tiles or
//! steps runs at its full rate. Along a ring that crosses slow links, fast hops are *hidden*: a chunk waits for the slow link anyway.
//!
//! Hops and bytes come from the [header](crate::Algorithm::work) of an algorithm, which a test compares with its plans. Rates
//! come from the load that the plan puts on the links ([`Placement`]); no code here depends on an algorithm's name. All times and
//! fractions of rates come from one table of [`constants`], which the models of other libraries and the simulator use, too.
//!
//! The closed form itself is [`Form`]: hops, bytes and rates in, a time with its terms out. The models of other libraries fill it in by their own
//! rules, and are priced by it as Weft's plans are.
//!
//! All results are integers, so that every machine computes the same ones.
//!
//! Deliberately absent: other calls on the same links, and ranks that wait for each other. The simulator covers these.

mod candidate;
mod carried;
pub mod constants;
mod form;
mod given;
mod hops;
pub mod lines;
mod loads;
mod placement;
mod usage;

use std::fmt;
use std::iter::Sum;
use std::ops::Add;

pub use candidate::{Candidate, Terms, candidates};
pub use carried::{Carried, Surroundings, host_memory_gbytes_per_second, millionths};
pub use form::{Flow, Form, Limit, Posting, Prediction};
pub use given::Given;
pub use hops::{Hop, Hops};
pub use loads::Medium;
pub use placement::Placement;

use crate::{Collective, Work};

/// A time. Saturates at 213 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Picoseconds(pub u64);

/// The predicted time of a call of `bytes`, as nccl-tests count them; nothing if the algorithm's header has no formula for it.
pub fn predict(
    candidate: &Candidate,
    placement: &Placement<'_>,
    collective: &Collective,
    bytes: u64,
) -> Option<Prediction> {
    let (islands, per_island) = placement.grid();
    let mut work = candidate.algorithm.work(collective, islands, per_island, bytes)?;
    let with_more = |hops: u64, more: i64| hops.saturating_add_signed(more);
    work.hops_inside = with_more(work.hops_inside, candidate.more_hops.0);
    work.hops_across = with_more(work.hops_across, candidate.more_hops.1);
    if let Some((rank, island, parts)) = candidate.counted {
        let of = |chunks: u64| (u128::from(bytes) * u128::from(chunks)).div_ceil(parts.into());
        let whole = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
        // Messages are one hop if any of them leaves its rank, of the slowest kind present. A rank that reads another's memory waits for
        // that rank first, and signals it afterwards: two hops.
        let hops_across = work.hops_across.min(island);
        let each = if candidate.enters { 2 } else { 1 };
        let hops_inside = if hops_across > 0 { work.hops_inside } else { each * rank.min(1) };
        let (rank_bytes, island_bytes) = (whole(of(rank)), whole(of(island)));
        work = Work { hops_inside, hops_across, rank_bytes, island_bytes };
    }
    Some(candidate.form(placement, work, bytes).predict())
}

/// The time of `bytes` at a rate, rounded up; zero without a rate.
pub(crate) fn over(bytes: u64, bytes_per_second: Option<u64>) -> Picoseconds {
    let Some(rate) = bytes_per_second.filter(|rate| *rate > 0) else { return Picoseconds(0) };
    Picoseconds::clamp((u128::from(bytes) * Picoseconds::PER_SECOND).div_ceil(u128::from(rate)))
}

impl Picoseconds {
    const PER_SECOND: u128 = 1_000_000_000_000;

    /// The nearest to a number of microseconds.
    pub fn from_us(us: f64) -> Self {
        Self((us * 1e6).round() as u64)
    }

    /// In microseconds.
    pub fn us(self) -> f64 {
        self.0 as f64 / 1e6
    }

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
