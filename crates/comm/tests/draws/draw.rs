//! A draw: all choices that follow from one seed.

use std::fmt;
use std::time::Duration;

use crate::quotas;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A rank's process is killed.
    Kill,
    /// It is stopped.
    Stop,
    /// Connections end, or fall silent.
    Cut,
    /// A bit changes on its way.
    Corrupt,
    /// A rank makes another call than the others.
    Mismatch,
    /// Somebody comes who does not belong there.
    Stranger,
    /// A rank of another version comes, or one that is set up otherwise.
    Skew,
    /// A rank is killed, the others shrink, and another is killed while they do.
    Shrink,
    /// A rank passes counts to an uneven call that disagree with those of a peer.
    Counts,
    /// A third rank is killed while one rank reads another's memory through the kernel.
    SingleCopy,
    /// One of two communicators that share a window fails, and the other is used.
    Lane,
    /// A rank is killed or stopped within 100 ms of its start, wherever it is then.
    Early,
    /// A rank aborts the communicator from a signal handler.
    Handler,
    /// Many connections replay a recorded first message and stay.
    Flood,
    /// Many silent connections come to ranks that may have 128 descriptors.
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

/// What ranks send through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Transport {
    /// One host.
    Shared,
    /// Every rank a host of its own.
    Network,
    /// Hosts of two or three ranks.
    Mixed,
    /// Every rank a host of its own, and everything encrypted.
    Sealed,
}

/// When.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Ranks are meeting.
    Meeting,
    /// They have met, and make the communicator.
    Making,
    /// In the first call, which loads plans.
    First,
    /// In a series of small calls.
    Small,
    /// In all-reduces of 16 MiB.
    Large,
    /// Nobody is in a call.
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

    /// The transports that a kind is about.
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
            Kind::Skew | Kind::ForeignUid => &[Phase::Meeting],
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
        Phase::Meeting,
        Phase::Making,
        Phase::First,
        Phase::Small,
        Phase::Large,
        Phase::Between,
        Phase::Uneven,
        Phase::Barrier,
    ];

    /// Whether ranks make calls by then, so that errors tell of one.
    pub(crate) fn is_in_calls(self) -> bool {
        !matches!(self, Phase::Meeting | Phase::Making)
    }
}

/// How many ranks there are of which one resumes. Unoptimised, fewer are as slow.
const RESUMED_OF: usize = if cfg!(debug_assertions) { 16 } else { 64 };

/// Everything about one draw.
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
    /// How long after the phase began it happens.
    pub(crate) delay: Duration,
    /// Which of the ways in which it can happen.
    pub(crate) way: u64,
}

impl Draw {
    pub(crate) fn new(seed: u64) -> Draw {
        let mut random = Random(seed);
        // Mixed first, so that neighbouring seeds have nothing in common.
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
        // The last rank has another part in a draw of single copies.
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

    /// Whether a cut is between two ranks only, and not between a host and all others.
    pub(crate) fn cuts_one_link(&self) -> bool {
        self.way.is_multiple_of(3) && self.host(self.victim) != self.host(self.partner)
    }

    /// Whether ranks meet over the network.
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

/// SplitMix64: what is drawn depends on the seed alone, on every machine and for ever.
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
