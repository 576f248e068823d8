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
//! All results are integers, so that every machine computes the same ones.
//!
//! Deliberately absent: other calls on the same links, and ranks that wait for each other. The simulator covers these.

mod candidate;
mod carried;
pub mod constants;
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
pub use carried::{Carried, HOSTS_OF_16_CORES};
pub use given::Given;
pub use hops::Hop;
pub use loads::Medium;
pub use placement::Placement;

use carried::{ONE, part_of};

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
    /// Filling the pipeline.
    pub fill: Picoseconds,
    /// The part of the hops that takes no time, because data waits for a slower link meanwhile.
    pub hidden: Picoseconds,
    /// Tiles that are pipelined through the plan.
    pub tiles: u32,
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
        let terms = [self.launch, self.inside, self.across, self.messages, self.transfer, self.fill];
        terms.into_iter().sum::<Picoseconds>().beyond(self.hidden)
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
    Some(price(candidate, placement, work, bytes))
}

/// The predicted time of a plan with these costs, hops and bytes.
fn price(candidate: &Terms, placement: &Placement<'_>, work: Work, bytes: u64) -> Prediction {
    let inside = (over(work.rank_bytes, candidate.inside_bytes_per_second), Limit::Inside);
    let across = (over(work.island_bytes, candidate.across_bytes_per_second), Limit::Across);
    let (by_links, side) = if across.0 > inside.0 { across } else { inside };
    let (serial_inside, serial_across) = candidate.serial_bytes_per_second;
    let is_tiled = candidate.path_per_hop.is_some() && candidate.protocol.is_some();
    let hops = work.hops_inside + work.hops_across;
    let along_a_ring = candidate.one_target && work.hops_inside > 0 && work.hops_across > 0;
    // Without tiles, phases inside islands and between them follow each other, except along a ring.
    let in_phases = !is_tiled && !candidate.one_target && work.hops_inside > 0 && work.hops_across > 0;
    let serial = over(work.rank_bytes, serial_inside) + over(work.island_bytes, serial_across);
    let serial = if in_phases { serial.max(inside.0 + across.0) } else { serial };
    let by_cut = over(bytes, candidate.bound_bytes_per_second);
    // The more informative limits come first: a later one replaces them only if it is clearly slower.
    let slower = |a: (Picoseconds, Limit), b: (Picoseconds, Limit)| {
        if b.0.beyond(a.0) > Picoseconds(a.0.0 / 100) { b } else { a }
    };
    let (_, limit) = slower(slower((by_links, side), (serial, Limit::Serial)), (by_cut, Limit::Cut));
    let transfer = by_links.max(serial).max(by_cut);
    let message = part_of(bytes, candidate.message_part);
    let inside = candidate.hop_inside.of(message).times(work.hops_inside);
    let across = candidate.hop_across.of(message).times(work.hops_across);
    let path = match candidate.path_per_hop.filter(|_| is_tiled) {
        Some(part) => Picoseconds(part_of(transfer.0, part)).times(hops),
        // The way of one chunk, without other data on the links.
        None => {
            over(message, candidate.inside_bytes_per_second).times(work.hops_inside)
                + over(message, candidate.across_bytes_per_second).times(work.hops_across)
        }
    };
    let piped = Pipeline { hops, latency: inside + across, transfer, path };
    let (fill, tiles) = match is_tiled {
        true => piped.by_tiles(),
        false => (piped.by_steps(candidate.fill, bytes, placement.fill_bytes()), 1),
    };
    let hidden = if along_a_ring && !is_tiled {
        transfer.beyond(piped.path).min(piped.latency + fill)
    } else {
        Picoseconds(0)
    };
    let launch = candidate.launch;
    let messages = candidate.message_across.times(candidate.messages_across).beyond(inside + across);
    Prediction { work, launch, inside, across, messages, transfer, fill, hidden, tiles, limit }
}

/// The most tiles of a call.
const TILES_MAX: u64 = 64;

/// A call whose data flows through its ranks.
struct Pipeline {
    hops: u64,
    latency: Picoseconds,
    transfer: Picoseconds,
    path: Picoseconds,
}

impl Pipeline {
    /// Whole buffers pass from rank to rank: tiles of them, as many as take a quarter of a hop each, follow each other.
    fn by_tiles(&self) -> (Picoseconds, u32) {
        let beyond = self.path.beyond(self.transfer);
        let least = (self.latency.0 / self.hops.max(1) / 4).max(1);
        let tiles = (self.transfer.0 / least).clamp(1, TILES_MAX);
        // Without rounding, so that longer calls never take less time.
        let part = u128::from(beyond.0) * u128::from(least) / u128::from(self.transfer.0.max(1));
        let fill = part.clamp(u128::from(beyond.0 / TILES_MAX), beyond.0.into());
        (Picoseconds::clamp(fill), tiles as u32)
    }

    /// Each step moves another part: with steps of optimal length, the square root of latency times transfer, of which a part is hidden.
    /// Steps grow no further than `fill_bytes`.
    fn by_steps(&self, part: u64, bytes: u64, fill_bytes: u64) -> Picoseconds {
        let growth = u128::from(fill_bytes.min(bytes)) * u128::from(ONE) / u128::from(bytes.max(1));
        let product = u128::from(self.latency.0) * u128::from(self.transfer.0) / u128::from(ONE);
        Picoseconds(part_of(Picoseconds::clamp((product * growth).isqrt()).0, part))
    }
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
