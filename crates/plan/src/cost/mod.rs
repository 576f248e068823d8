//! How long a plan takes, in a formula: to start, hop by hop, and byte by byte.
//!
//! ```text
//! time = launch + hops inside · α + hops across · β + max(bytes of a rank / what it gets inside,
//!                                                         bytes of an island / what it gets to others)
//! ```
//!
//! Bytes take no less than a lane needs for all its steps, one after the other.
//! A lane that hands many messages to the network waits for each, so hops take no less than that does.
//!
//! Hops and bytes come from the [header](crate::Algorithm::work) of an algorithm, which a test holds to its plans. What a
//! plan gets of the wiring is found by laying the plan itself on the links ([`Ground`]); nothing here knows an algorithm by
//! its name. Launch, α and β depend on what the plan is made of: messages by protocol, peer memory, switches that
//! compute ([`constants`]).
//!
//! All numbers are integers, so that every machine comes to the same ones.
//!
//! Deliberately absent: how tiles fill a pipeline, and other calls on the same links. That is for a simulator.

pub mod constants;
mod entrant;
mod ground;
mod loads;
mod usage;

use std::fmt;
use std::iter::Sum;
use std::ops::Add;

pub use entrant::{Entrant, entrants};
pub use ground::Ground;
pub use loads::Medium;

use crate::{Collective, Work};

/// A time. The longest is 213 days, and sums stay there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Picoseconds(pub u64);

/// What a call is predicted to take, and of what that is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prediction {
    /// Hops and bytes.
    pub work: Work,
    /// To start and to end.
    pub launch: Picoseconds,
    /// All hops inside islands.
    pub inside: Picoseconds,
    /// All hops between islands.
    pub across: Picoseconds,
    /// Messages that the network takes one by one, beyond the time of the hops.
    pub messages: Picoseconds,
    /// The bytes.
    pub transfer: Picoseconds,
    /// What the bytes wait for.
    pub limit: Limit,
}

/// What the bytes of a call wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// The links inside islands.
    Inside,
    /// The links between islands.
    Across,
    /// One partner after the other: lanes that wait for each step to end.
    Turns,
    /// The cut that bounds every algorithm.
    Cut,
}

impl Prediction {
    /// All of it.
    pub fn time(&self) -> Picoseconds {
        [self.launch, self.inside, self.across, self.messages, self.transfer].into_iter().sum()
    }
}

/// How long a call of so many bytes takes, as nccl-tests count them; nothing if the algorithm's header does not tell.
pub fn predict(
    entrant: &Entrant,
    ground: &Ground<'_>,
    collective: &Collective,
    bytes: u64,
) -> Option<Prediction> {
    let (islands, per_island) = ground.grid();
    let mut work = entrant.algorithm.work(collective, islands, per_island, bytes)?;
    if let Some((rank, island, parts)) = entrant.counted {
        let of = |chunks: u64| (u128::from(bytes) * u128::from(chunks)).div_ceil(parts.into());
        let whole = |bytes: u128| u64::try_from(bytes).unwrap_or(u64::MAX);
        // Messages are one hop, if any of them leaves its rank, and the slowest kind that there is.
        let hops_across = work.hops_across.min(island);
        let hops_inside = if hops_across > 0 { work.hops_inside } else { rank.min(1) };
        let (rank_bytes, island_bytes) = (whole(of(rank)), whole(of(island)));
        work = Work { hops_inside, hops_across, rank_bytes, island_bytes };
    }
    let inside = (entrant.over(work.rank_bytes, entrant.inside_bytes_per_second), Limit::Inside);
    let across = (entrant.over(work.island_bytes, entrant.across_bytes_per_second), Limit::Across);
    let (by_links, side) = if across.0 > inside.0 { across } else { inside };
    let (turn_inside, turn_across) = entrant.in_turn_bytes_per_second;
    let by_turns = entrant.over(work.rank_bytes, turn_inside) + entrant.over(work.island_bytes, turn_across);
    let by_cut = over(bytes, entrant.bound_bytes_per_second);
    // What says more comes first: others are named only where they are clearly narrower.
    let slower = |a: (Picoseconds, Limit), b: (Picoseconds, Limit)| {
        if b.0.beyond(a.0) > Picoseconds(a.0.0 / 100) { b } else { a }
    };
    let (_, limit) = slower(slower((by_links, side), (by_turns, Limit::Turns)), (by_cut, Limit::Cut));
    let transfer = by_links.max(by_turns).max(by_cut);
    let (inside, across) =
        (entrant.hop_inside.times(work.hops_inside), entrant.hop_across.times(work.hops_across));
    Some(Prediction {
        work,
        launch: entrant.launch,
        inside,
        across,
        messages: entrant.message_across.times(entrant.messages_across).beyond(inside + across),
        transfer,
        limit,
    })
}

/// How long so many bytes take, rounded up; no time at all where nothing limits them.
pub(crate) fn over(bytes: u64, bytes_per_second: Option<u64>) -> Picoseconds {
    let Some(rate) = bytes_per_second.filter(|rate| *rate > 0) else { return Picoseconds(0) };
    Picoseconds::clamp((u128::from(bytes) * Picoseconds::PER_SECOND).div_ceil(u128::from(rate)))
}

impl Picoseconds {
    const PER_SECOND: u128 = 1_000_000_000_000;

    fn clamp(picoseconds: u128) -> Self {
        Self(u64::try_from(picoseconds).unwrap_or(u64::MAX))
    }

    /// So many times this.
    pub fn times(self, count: u64) -> Self {
        Self(self.0.saturating_mul(count))
    }

    /// What this is longer by; nothing if it is not.
    pub fn beyond(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// How fast so many bytes in this time are, in bytes per second.
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

/// One digit behind the point, in the largest unit that leaves a number of at least one: `4.5 us`.
impl fmt::Display for Picoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_000_000_000_000, "s"), (1_000_000_000, "ms"), (1_000_000, "us")];
        // What rounds to a thousand is one of the next.
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
    fn times_read_as_one_would_write_them() {
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
