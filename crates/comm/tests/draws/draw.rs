//! A draw: everything that one seed decides.

use std::fmt;
use std::time::Duration;

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
    pub(crate) const ALL: [Kind; 8] = [
        Kind::Kill,
        Kind::Stop,
        Kind::Cut,
        Kind::Corrupt,
        Kind::Mismatch,
        Kind::Stranger,
        Kind::Skew,
        Kind::Shrink,
    ];
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
        let kind = Kind::ALL[random.below(8)];
        let needs_network = matches!(kind, Kind::Cut | Kind::Corrupt);
        let transport = Transport::ALL[if needs_network { 1 + random.below(3) } else { random.below(4) }];
        let phase = match kind {
            Kind::Skew => Phase::Meeting,
            Kind::Mismatch | Kind::Shrink => Phase::ALL[2 + random.below(6)],
            _ => Phase::ALL[random.below(8)],
        };
        let per_host = match transport {
            Transport::Shared => usize::MAX,
            Transport::Mixed => 2 + random.below(2),
            Transport::Network | Transport::Sealed => 1,
        };
        let ranks_min = match (transport, kind) {
            (Transport::Mixed, _) => per_host + 1,
            (_, Kind::Shrink) => 3,
            _ => 2,
        };
        let size = ranks_min + random.below(7 - ranks_min);
        let victim = random.below(size);
        let partner = (victim + 1 + random.below(size - 1)) % size;
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
}
