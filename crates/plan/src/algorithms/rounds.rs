//! Rounds, for algorithms whose ranks exchange several chunks in each of a logarithmic number of rounds.
//!
//! A chunk is a message, so a round is many messages. One lane that sends them all and then receives would need FIFOs as deep
//! as a round is long, and one that alternates would make every message wait for the one before. So there are two lanes: the
//! first sends, the second receives. Before it sends the messages of a round, the first waits on a counter of its rank until
//! the second has received everything of earlier rounds.

use crate::Affine;
use crate::collective::Collective;
use crate::plan::{
    Channel, Digit, Lane, Loop, Node, Plan, Program, Protocol, RankDigit, Step, Symmetry, Wait,
};

/// Counts the rounds that have been received.
const RECEIVED: u32 = 0;
/// Counts sends, for plans that reuse scratch.
pub(super) const SENT: u32 = 1;

/// Two slots: one message is read while the next is written.
const DEPTH: u32 = 2;

/// The rounds of one rank so far.
pub(super) struct Rounds {
    rank: u32,
    sends: Vec<Node>,
    receives: Vec<Node>,
    /// The number of signals of the second lane that it has received everything so far.
    signals: u32,
    /// Whether it has received more since the last signal.
    has_unsignalled: bool,
}

impl Rounds {
    /// No rounds yet.
    pub(super) fn new(rank: u32) -> Self {
        Self { rank, sends: Vec::new(), receives: Vec::new(), signals: 0, has_unsignalled: false }
    }

    /// The outline of a plan of rounds.
    pub(super) fn outline(name: &str, collective: Collective, ranks: u32, chunks: u32) -> Plan {
        let channels = vec![Channel { protocol: Protocol::Simple, depth: DEPTH }];
        Plan { channels, counters: 2, ..Plan::outline(name, collective, ranks, chunks) }
    }

    /// Adds sends, which wait for all receives added so far.
    pub(super) fn send(&mut self, nodes: impl IntoIterator<Item = Node>) {
        if std::mem::take(&mut self.has_unsignalled) {
            self.signals += 1;
            self.receives.push(Step::sync().signal(RECEIVED).into());
            self.sends.push(Step::sync().after([Wait::reached(self.rank, RECEIVED, self.signals)]).into());
        }
        self.sends.extend(nodes);
    }

    /// Adds receives, which run beside the sends.
    pub(super) fn receive(&mut self, nodes: impl IntoIterator<Item = Node>) {
        self.receives.extend(nodes);
        self.has_unsignalled = true;
    }

    /// Both lanes; only the first if there are no receives.
    pub(super) fn program(self) -> Program {
        let lanes = [self.sends, self.receives].into_iter().filter(|nodes| !nodes.is_empty());
        Program { lanes: lanes.map(|nodes| Lane { channel: 0, nodes }).collect() }
    }

    /// Both lanes, where the second does not start the next tile before the first has sent everything: the data to send is in
    /// scratch, which the next tile reuses.
    pub(super) fn program_with_scratch(mut self) -> Program {
        if !self.receives.is_empty() {
            self.sends.push(Step::sync().signal(SENT).into());
            self.receives.push(Step::sync().after([Wait::reached(self.rank, SENT, 1)]).into());
        }
        self.program()
    }
}

/// A step for each corner of a cube: all numbers that differ from `corner` in some of these bits, in the order of their
/// difference. So two ranks that differ in other bits walk their cubes in the same order, and each loop is affine.
pub(super) fn cube(corner: u32, bits: u32, step: impl Fn(Affine) -> Step) -> Node {
    let values = (0..u32::BITS).rev().map(|bit| 1_u32 << bit).filter(|bit| bits & bit != 0);
    let by = |bit: u32| if corner & bit == 0 { i64::from(bit) } else { -i64::from(bit) };
    let by: Vec<_> = values.map(by).collect();
    let loops = by.len();
    let innermost = step(Affine { offset: 0, base: corner.into(), by, modulo: None }).into();
    (0..loops).fold(innermost, |body, _| Node::Loop(Loop { times: 2, body: vec![body] }))
}

/// The symmetry of a power of two ranks: flipping a bit of all ranks and of all blocks maps the plan to itself. Scratch, if
/// there is any, has a chunk for every block.
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

/// The symmetry of all ranks around the ring; blocks turn with them. Scratch does not, because its chunks are relative to the
/// rank.
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

/// Ranks folded to a power of two: of as many of the first ranks as necessary, the even one of each pair hosts the odd one. So
/// neighbours are folded, and the order of the ranks is kept.
#[derive(Clone, Copy)]
pub(super) struct Folded {
    /// The number of ranks that others host.
    pub(super) folded: u32,
    /// The power of two.
    pub(super) corners: u32,
}

/// The role of a rank among folded ranks.
pub(super) enum Role {
    /// A corner of the cube for itself alone.
    Corner(u32),
    /// A corner of the cube that hosts another rank.
    Host {
        /// Its corner of the cube.
        corner: u32,
        /// The rank it hosts.
        guest: u32,
    },
    /// Hosted by another rank.
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

    /// The role of a rank.
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

    /// The rank at a corner, and the one it hosts.
    pub(super) fn ranks(self, corner: u32) -> std::ops::Range<u32> {
        let rank = self.rank(corner);
        rank..rank + 1 + u32::from(corner < self.folded)
    }

    /// The dimensions of the cube as bits, the nearest ranks first.
    pub(super) fn dimensions(self) -> impl DoubleEndedIterator<Item = u32> {
        (0..self.corners.ilog2()).map(|dimension| 1 << dimension)
    }
}
