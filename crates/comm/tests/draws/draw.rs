//! A draw: all choices that follow from one seed.

use std::fmt;
use std::time::Duration;

use crate::quotas;

/// The kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A rank's process is killed.
    Kill,
    /// It is stopped.
    Stop,
    /// Connections are closed, or stall.
    Cut,
    /// A bit flips in transit.
    Corrupt,
    /// A rank makes a different call from the others.
    Mismatch,
    /// A client that does not belong to the job connects.
    Stranger,
    /// A rank with another protocol version or other settings tries to join.
    Skew,
    /// A rank is killed, the others shrink, and another is killed while they do.
    Shrink,
    /// A rank passes counts to an uneven call that disagree with those of a peer.
    Counts,
    /// A third rank is killed while one rank reads another's memory through the kernel.
    SingleCopy,
    /// One of two communicators that share a window fails, and the other is used.
    Lane,
    /// A rank is killed or stopped within 100 ms of its start.
    Early,
    /// A rank aborts the communicator from a signal handler.
    Handler,
    /// Many connections replay a recorded first message and stay open.
    Flood,
    /// Many idle connections to ranks that are limited to 128 descriptors.
    Descriptors,
    /// A process of another user has the secret and tries to join, or to take rank 0's place.
    ForeignUid,
    /// The network splits the ranks into two sides, and both shrink.
    Partition,
    /// On hosts with three addresses, a rank is killed and the rank that leads the shrink is stopped for a while.
    Addresses,
    /// One of 64 ranks is stopped and continues before its deadline.
    Resume,
}

/// The transport between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Transport {
    /// One host.
    Shared,
    /// One rank per host, over TCP.
    Network,
    /// Two or three ranks per host.
    Mixed,
    /// One rank per host, encrypted.
    Sealed,
}

/// What the ranks do at the time of the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Ranks join the job.
    Rendezvous,
    /// They have joined, and create the communicator.
    Creating,
    /// In the first call, which loads plans.
    First,
    /// In a series of small calls.
    Small,
    /// In all-reduces of 16 MiB.
    Large,
    /// No rank is in a call.
    Between,
    /// In calls with blocks of different lengths.
    Uneven,
    /// In barriers.
    Barrier,
}

impl Kind {
    /// The kinds that have no quota.
    pub(crate) const PLAIN: [Kind; 8] = [
        Kind::Kill,
        Kind::Stop,
        Kind::Cut,
        Kind::Corrupt,
        Kind::Mismatch,
        Kind::Stranger,
        Kind::Skew,
        Kind::Shrink,
    ];

    /// All kinds, in the order of the table.
    pub(crate) fn all() -> impl Iterator<Item = Kind> {
        Kind::PLAIN.into_iter().chain(quotas::QUOTAS.iter().map(|(kind, _)| *kind))
    }

    /// The transports on which it can happen.
    fn transports(self) -> &'static [Transport] {
        use Transport::{Mixed, Network, Sealed, Shared};
        match self {
            Kind::Cut | Kind::Corrupt | Kind::Flood | Kind::Partition => &[Network, Mixed, Sealed],
            Kind::SingleCopy | Kind::Lane | Kind::ForeignUid | Kind::Resume => &[Shared],
            Kind::Addresses => &[Network],
            _ => &Transport::ALL,
        }
    }

    /// The phases in which it can happen.
    fn phases(self) -> &'static [Phase] {
        match self {
            Kind::Skew | Kind::ForeignUid => &[Phase::Rendezvous],
            Kind::Mismatch | Kind::Shrink | Kind::Partition => &Phase::ALL[2..],
            Kind::Counts => &[Phase::Uneven],
            Kind::SingleCopy => &[Phase::Large],
            Kind::Handler => &[Phase::First, Phase::Small],
            Kind::Lane | Kind::Early | Kind::Addresses | Kind::Resume => &[Phase::Small],
            _ => &Phase::ALL,
        }
    }

    fn ranks_min(self) -> usize {
        match self {
            Kind::Shrink | Kind::SingleCopy | Kind::Partition | Kind::Addresses => 3,
            _ => 2,
        }
    }
}

impl Transport {
    pub(crate) const ALL: [Transport; 4] =
        [Transport::Shared, Transport::Network, Transport::Mixed, Transport::Sealed];
}

impl Phase {
    pub(crate) const ALL: [Phase; 8] = [
        Phase::Rendezvous,
        Phase::Creating,
        Phase::First,
        Phase::Small,
        Phase::Large,
        Phase::Between,
        Phase::Uneven,
        Phase::Barrier,
    ];

    /// Whether ranks make calls in this phase, so that errors refer to one.
    pub(crate) fn is_in_calls(self) -> bool {
        !matches!(self, Phase::Rendezvous | Phase::Creating)
    }
}

/// The ranks of a `Resume` draw: fewer in a slow, unoptimised build.
const RESUMED_OF: usize = if cfg!(debug_assertions) { 16 } else { 64 };

/// One fault and the job that it hits.
#[derive(Clone, Debug)]
pub(crate) struct Draw {
    pub(crate) seed: u64,
    pub(crate) kind: Kind,
    pub(crate) transport: Transport,
    pub(crate) phase: Phase,
    pub(crate) size: usize,
    pub(crate) per_host: usize,
    pub(crate) victim: usize,
    /// Another rank: the other end of a cut link, or the second to be killed.
    pub(crate) partner: usize,
    /// Time from the start of the phase to the fault.
    pub(crate) delay: Duration,
    /// Random bits from which each kind derives its details.
    pub(crate) way: u64,
}

impl Draw {
    pub(crate) fn new(seed: u64) -> Draw {
        let mut random = Random(seed);
        // The first value of neighbouring seeds is similar: discard it.
        random.next();
        let plain = Kind::PLAIN[random.below(8)];
        let kind = quotas::kind(seed).unwrap_or(plain);
        let transport = random.one_of(kind.transports());
        let phase = match kind.phases() {
            [phase] => *phase,
            phases => random.one_of(phases),
        };
        let per_host = match transport {
            Transport::Shared => usize::MAX,
            Transport::Mixed => 2 + random.below(2),
            Transport::Network | Transport::Sealed => 1,
        };
        let ranks_min = if transport == Transport::Mixed { per_host + 1 } else { kind.ranks_min() };
        let size = match kind {
            Kind::Resume => RESUMED_OF,
            _ => ranks_min + random.below(7 - ranks_min),
        };
        // In a `SingleCopy` draw the last rank is the reader.
        let parts = if kind == Kind::SingleCopy { size - 1 } else { size };
        let victim = random.below(parts);
        let partner = (victim + 1 + random.below(parts - 1)) % parts;
        let delay = Duration::from_micros(random.below(150_000) as u64);
        Draw { seed, kind, transport, phase, size, per_host, victim, partner, delay, way: random.next() >> 8 }
    }

    /// The host of a rank.
    pub(crate) fn host(&self, rank: usize) -> usize {
        rank / self.per_host
    }

    /// Whether a cut affects one link, not all links of a host.
    pub(crate) fn cuts_one_link(&self) -> bool {
        self.way.is_multiple_of(3) && self.host(self.victim) != self.host(self.partner)
    }

    /// Whether ranks join over TCP.
    pub(crate) fn is_networked(&self) -> bool {
        self.transport != Transport::Shared
    }
}

impl fmt::Display for Draw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Draw { seed, kind, transport, phase, size, victim, partner, delay, way, .. } = self;
        write!(
            f,
            "seed {seed}: {kind:?} rank {victim} (partner {partner}) of {size} over {transport:?}, {phase:?}, \
             after {delay:?}, way {}",
            way % 64
        )
    }
}

/// SplitMix64: a draw depends on its seed alone, on every machine.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}
