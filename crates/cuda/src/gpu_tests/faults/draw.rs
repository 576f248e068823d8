//! A fault, derived from a seed.

use std::fmt;
use std::time::Duration;

use weftlink_testkit::random::Random;

/// Where ranks run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Threads,
    Processes,
    /// Processes that use a GPU through MPS.
    Mps,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Place::Threads => "threads",
            Place::Processes => "processes",
            Place::Mps => "processes under MPS",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Is killed, and the others call afterwards.
    KilledBefore,
    /// Is killed while its kernel waits for another rank. The call of the others may still succeed: the rank may have sent all that they need
    /// before, and its kernel runs until the driver has destroyed its context. Their next call cannot succeed.
    KilledIn,
    /// Is killed between two calls, while the others wait for it.
    KilledBetween,
    /// Is stopped for longer than the others wait, and then continued.
    Stopped,
    /// Drops the communicator while the others call.
    Leaves,
    OtherCount,
    OtherType,
    OtherOperation,
    OtherCollective,
    /// Calls later than the others, and in time.
    Late,
    /// A thread of its process aborts while the others wait.
    Aborts,
    /// Aborts between two launches of a graph.
    AbortsGraph,
}

impl Kind {
    pub(super) const ALL: [Kind; 12] = [
        Kind::KilledBefore,
        Kind::KilledIn,
        Kind::KilledBetween,
        Kind::Stopped,
        Kind::Leaves,
        Kind::OtherCount,
        Kind::OtherType,
        Kind::OtherOperation,
        Kind::OtherCollective,
        Kind::Late,
        Kind::Aborts,
        Kind::AbortsGraph,
    ];

    pub(super) fn kills(self) -> bool {
        matches!(self, Kind::KilledBefore | Kind::KilledIn | Kind::KilledBetween)
    }

    /// Whether the rank is in the communicator afterwards.
    pub(super) fn stays(self) -> bool {
        !self.kills() && self != Kind::Leaves
    }

    fn needs_process(self) -> bool {
        self.kills() || self == Kind::Stopped
    }
}

/// What a rank calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// An all-reduce by packets.
    Small,
    /// An all-reduce that accesses the buffers of other ranks.
    Large,
    OtherCount,
    OtherType,
    OtherOperation,
    OtherCollective,
}

/// One rank does something wrong, or is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) seed: u64,
    pub(super) kind: Kind,
    /// The rank that the fault hits.
    pub(super) rank: usize,
    pub(super) after: Duration,
    /// What the other ranks call.
    pub(super) call: Call,
    /// Calls before.
    pub(super) calls: u64,
}

impl Fault {
    /// The fault of a seed for this many ranks. Every kind comes once in as many seeds as there are kinds. `late_max`: what no wait takes for
    /// a timeout.
    pub(super) fn draw(seed: u64, place: Place, ranks: usize, late_max: Duration) -> Fault {
        let kinds = Kind::ALL.into_iter().filter(|kind| place != Place::Threads || !kind.needs_process());
        let mut kinds: Vec<Kind> = kinds.collect();
        let mut order = Random(seed / kinds.len() as u64);
        for at in (1..kinds.len()).rev() {
            kinds.swap(at, order.below(at as u64 + 1) as usize);
        }
        let kind = kinds[seed as usize % kinds.len()];
        let mut random = Random(seed);
        let longest_us = if kind == Kind::Late { late_max.as_micros() as u64 } else { 60_000 };
        Fault {
            seed,
            kind,
            rank: random.below(ranks as u64) as usize,
            after: Duration::from_micros(2_000 + random.below(longest_us)),
            call: match kind {
                Kind::OtherCount | Kind::OtherType | Kind::OtherOperation | Kind::OtherCollective => {
                    Call::Small
                }
                _ => random.pick(&[Call::Small, Call::Large]),
            },
            calls: random.below(3),
        }
    }

    /// What the rank calls in place of the call of the others.
    pub(super) fn wrong_call(&self) -> Call {
        match self.kind {
            Kind::OtherCount => Call::OtherCount,
            Kind::OtherType => Call::OtherType,
            Kind::OtherOperation => Call::OtherOperation,
            Kind::OtherCollective => Call::OtherCollective,
            _ => self.call,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { seed, rank, kind, after, call, calls } = self;
        let after_ms = after.as_secs_f64() * 1e3;
        write!(f, "seed {seed}: rank {rank} {kind:?} after {calls} calls and {after_ms:.0} ms, {call:?}")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_kind_comes_and_a_seed_repeats_its_fault() {
        let late_max = Duration::from_secs(1);
        for (place, kinds) in [(Place::Threads, 8), (Place::Processes, 12), (Place::Mps, 12)] {
            let draw = |seed| Fault::draw(seed, place, 3, late_max);
            let first = kinds * 5;
            let drawn: BTreeSet<Kind> = (first..first + kinds).map(|seed| draw(seed).kind).collect();
            assert_eq!(drawn.len() as u64, kinds, "{place}");
            let all: Vec<Fault> = (0..100).map(draw).collect();
            assert_eq!(all, (0..100).map(draw).collect::<Vec<_>>());
            assert!(
                all.iter().all(|fault| fault.rank < 3 && fault.after < late_max + Duration::from_millis(3))
            );
            assert!((0..3).all(|rank| all.iter().any(|fault| fault.rank == rank)));
        }
    }
}
