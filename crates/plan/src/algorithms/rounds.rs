//! Rounds: what algorithms have in common whose ranks exchange several chunks at a time, a logarithmic number of
//! times.
//!
//! A chunk is a message, so a round is many. One lane that sends them all and then receives would need FIFOs as deep
//! as a round is long, and one that takes turns would make every message wait for the one before. So there are two
//! lanes: the first sends, the second receives. Before the messages of a round, the first waits until the second has
//! everything that earlier rounds brought, told by a counter of the rank's own.

use crate::Affine;
use crate::collective::Collective;
use crate::plan::{
    Channel, Digit, Lane, Loop, Node, Plan, Program, Protocol, RankDigit, Step, Symmetry, Wait,
};

/// The counter that says how many rounds have been received.
const RECEIVED: u32 = 0;
/// The counter of what was sent, for those who use memory again.
pub(super) const SENT: u32 = 1;

/// One message is read while the next is written.
const DEPTH: u32 = 2;

/// What one rank does in its rounds so far.
pub(super) struct Rounds {
    rank: u32,
    sends: Vec<Node>,
    receives: Vec<Node>,
    /// How often the second lane says that it has received everything so far.
    told: u32,
    /// Whether it has received more since.
    has_news: bool,
}

impl Rounds {
    /// No rounds yet.
    pub(super) fn new(rank: u32) -> Self {
        Self { rank, sends: Vec::new(), receives: Vec::new(), told: 0, has_news: false }
    }

    /// The outline of a plan of rounds.
    pub(super) fn outline(name: &str, collective: Collective, ranks: u32, chunks: u32) -> Plan {
        let channels = vec![Channel { protocol: Protocol::Simple, depth: DEPTH }];
        Plan { channels, counters: 2, ..Plan::outline(name, collective, ranks, chunks) }
    }

    /// Sends, once everything has been received that [`receive`](Self::receive) was told so far.
    pub(super) fn send(&mut self, nodes: impl IntoIterator<Item = Node>) {
        if std::mem::take(&mut self.has_news) {
            self.told += 1;
            self.receives.push(Step::sync().signal(RECEIVED).into());
            self.sends.push(Step::sync().after([Wait::reached(self.rank, RECEIVED, self.told)]).into());
        }
        self.sends.extend(nodes);
    }

    /// Receives, beside everything that is sent.
    pub(super) fn receive(&mut self, nodes: impl IntoIterator<Item = Node>) {
        self.receives.extend(nodes);
        self.has_news = true;
    }

    /// Both lanes; only the first if nothing is received.
    pub(super) fn program(self) -> Program {
        let lanes = [self.sends, self.receives].into_iter().filter(|nodes| !nodes.is_empty());
        Program { lanes: lanes.map(|nodes| Lane { channel: 0, nodes }).collect() }
    }

    /// Both lanes, where the second does not go on to the next tile before the first has sent everything: what is sent
    /// lies in scratch, which the next tile uses again.
    pub(super) fn program_with_scratch(mut self) -> Program {
        if !self.receives.is_empty() {
            self.sends.push(Step::sync().signal(SENT).into());
            self.receives.push(Step::sync().after([Wait::reached(self.rank, SENT, 1)]).into());
        }
        self.program()
    }
}

/// A step for each corner of a cube: all numbers that differ from `corner` in some of these bits, in the order in which
/// they differ. So two ranks that differ in other bits go through their cubes in step, and each loop is affine.
pub(super) fn cube(corner: u32, bits: u32, step: impl Fn(Affine) -> Step) -> Node {
    let values = (0..u32::BITS).rev().map(|bit| 1_u32 << bit).filter(|bit| bits & bit != 0);
    let by = |bit: u32| if corner & bit == 0 { i64::from(bit) } else { -i64::from(bit) };
    let by: Vec<_> = values.map(by).collect();
    let loops = by.len();
    let innermost = step(Affine { offset: 0, base: corner.into(), by, modulo: None }).into();
    (0..loops).fold(innermost, |body, _| Node::Loop(Loop { times: 2, body: vec![body] }))
}

/// The same from every rank of a power of two, since changing a bit of all ranks and of all blocks changes nothing.
/// Scratch, if there is any, has a chunk for every block.
pub(super) fn cube_symmetry(plan: &Plan) -> Symmetry {
    let digits = plan.ranks.ilog2();
    let turning = |chunks: u32| match chunks {
        0 | 1 => vec![],
        _ => (0..digits).map(|digit| Digit { size: 2, with: Some(digit) }).collect(),
    };
    Symmetry {
        ranks: vec![RankDigit { size: 2, turns: true }; digits as usize],
        input: turning(plan.chunks.input),
        output: turning(plan.chunks.output),
        scratch: turning(plan.chunks.scratch),
    }
}

/// The same from every rank around the ring, which blocks turn with. Scratch does not: it is counted from the rank.
pub(super) fn ring_symmetry(plan: &Plan) -> Symmetry {
    let turning = |chunks: u32| match chunks {
        0 | 1 => vec![],
        _ => vec![Digit { size: plan.ranks, with: Some(0) }],
    };
    Symmetry {
        ranks: vec![RankDigit { size: plan.ranks, turns: true }],
        input: turning(plan.chunks.input),
        output: turning(plan.chunks.output),
        scratch: if plan.chunks.scratch == 0 {
            vec![]
        } else {
            vec![Digit { size: plan.chunks.scratch, with: None }]
        },
    }
}

/// Ranks folded to a power of two: of the first ranks, so many that a power of two is left, each odd one is stood for by the
/// even one before it. So neighbours are folded, and the order of the ranks is kept.
#[derive(Clone, Copy)]
pub(super) struct Folded {
    /// How many ranks are stood for by others.
    pub(super) folded: u32,
    /// The power of two.
    pub(super) corners: u32,
}

/// What a rank is once ranks are folded.
pub(super) enum Role {
    /// It stands for itself alone, as this corner of the cube.
    Corner(u32),
    /// It stands for another rank too.
    Host {
        /// Its corner of the cube.
        corner: u32,
        /// The other rank.
        guest: u32,
    },
    /// That rank stands for it.
    Guest {
        /// That rank.
        host: u32,
    },
}

impl Folded {
    pub(super) fn new(ranks: u32) -> Self {
        let corners = 1 << ranks.ilog2();
        Self { folded: ranks - corners, corners }
    }

    /// What a rank is.
    pub(super) fn role(self, rank: u32) -> Role {
        match rank {
            _ if rank >= 2 * self.folded => Role::Corner(rank - self.folded),
            _ if rank.is_multiple_of(2) => Role::Host { corner: rank / 2, guest: rank + 1 },
            _ => Role::Guest { host: rank - 1 },
        }
    }

    /// The rank at a corner.
    pub(super) fn rank(self, corner: u32) -> u32 {
        if corner < self.folded { 2 * corner } else { corner + self.folded }
    }

    /// The rank at a corner, and the one it stands for.
    pub(super) fn ranks(self, corner: u32) -> std::ops::Range<u32> {
        let rank = self.rank(corner);
        rank..rank + 1 + u32::from(corner < self.folded)
    }

    /// The dimensions of the cube as bits, the nearest ranks first.
    pub(super) fn dimensions(self) -> impl DoubleEndedIterator<Item = u32> {
        (0..self.corners.ilog2()).map(|dimension| 1 << dimension)
    }
}
