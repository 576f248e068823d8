//! Ring all-reduce, all-gather and reduce-scatter.
//!
//! **Steps.** *All-gather:* every rank keeps its block and passes it on; n-1 times it receives one, keeps it and passes it
//! on, but the last. *Reduce-scatter:* block b starts behind rank b and is passed around once, each rank adding its part;
//! it ends complete at rank b. *All-reduce:* both, one after the other, on n parts of the buffer: 2(n-1) messages in a row
//! per rank, two loops in the plan. Received data is combined and sent on in the same step, so only the second trip
//! around writes the output. Blocks and parts are cut into as many chunks as there are lanes; odd lanes run the other
//! way around, so that both directions of every link carry data.
//!
//! **Bytes on the wire.** n-1 blocks per rank, each way of the ring; for the all-reduce 2(n-1)/n of the buffer. No
//! algorithm can send less.
//!
//! **When it wins.** Large buffers, and buffers that peers cannot reach. Its latency grows with n.
//!
//! **Paper.** Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.

use crate::Affine;
use crate::plan::{
    Aliasing, Channel, Chunks, Collective, Format, Input, Lane, Node, Output, Place, Plan, Program, Protocol,
    Step,
};

/// One message is read while the next is written.
const DEPTH: u32 = 2;

/// The all-reduce of `ranks` in a ring, with `lanes` rings side by side.
///
/// # Panics
/// If there are no ranks or no lanes.
pub fn ring(ranks: u32, lanes: u32) -> Plan {
    let nodes = |ring: &Ring| {
        let own = |part| Input::Local(Place::input(part));
        let keep = |part| Output::Local(Place::output(part));
        if ranks == 1 {
            return vec![Step::copy(own(ring.fixed(0))).to(keep(ring.fixed(0))).into()];
        }
        let last = i64::from(ranks) - 1;
        let add = |part| Step::reduce(vec![Input::received(ring.previous), own(part)]);
        let receive = |part| Step::copy(Input::received(ring.previous)).to(keep(part));
        vec![
            Step::copy(own(ring.fixed(0))).to(Output::sent(ring.next)).into(),
            Node::repeat(ranks - 2, [add(ring.block(1)).to(Output::sent(ring.next))]),
            add(ring.fixed(last)).to(keep(ring.fixed(last))).to(Output::sent(ring.next)).into(),
            Node::repeat(ranks - 2, [receive(ring.block(0)).to(Output::sent(ring.next))]),
            receive(ring.fixed(last - 1)).into(),
        ]
    };
    plan(Collective::AllReduce, ranks, lanes, ranks * lanes, nodes)
}

/// The all-gather of `ranks` in a ring, with `lanes` rings side by side.
///
/// # Panics
/// If there are no ranks or no lanes.
pub fn ring_all_gather(ranks: u32, lanes: u32) -> Plan {
    let nodes = |ring: &Ring| {
        let keep =
            Step::copy(Input::Local(Place::input(ring.lane))).to(Output::Local(Place::output(ring.fixed(0))));
        if ranks == 1 {
            return vec![keep.into()];
        }
        let receive =
            |block| Step::copy(Input::received(ring.previous)).to(Output::Local(Place::output(block)));
        vec![
            keep.to(Output::sent(ring.next)).into(),
            Node::repeat(ranks - 2, [receive(ring.block(1)).to(Output::sent(ring.next))]),
            receive(ring.fixed(i64::from(ranks) - 1)).into(),
        ]
    };
    plan(Collective::AllGather, ranks, lanes, lanes, nodes)
}

/// The reduce-scatter of `ranks` in a ring, with `lanes` rings side by side.
///
/// # Panics
/// If there are no ranks or no lanes.
pub fn ring_reduce_scatter(ranks: u32, lanes: u32) -> Plan {
    let nodes = |ring: &Ring| {
        let own = |block| Input::Local(Place::input(block));
        let keep = Output::Local(Place::output(ring.lane));
        if ranks == 1 {
            return vec![Step::copy(own(ring.fixed(0))).to(keep).into()];
        }
        let add = |block| Step::reduce(vec![Input::received(ring.previous), own(block)]);
        vec![
            Step::copy(own(ring.fixed(1))).to(Output::sent(ring.next)).into(),
            Node::repeat(ranks - 2, [add(ring.block(2)).to(Output::sent(ring.next))]),
            add(ring.fixed(0)).to(keep).into(),
        ]
    };
    plan(Collective::ReduceScatter, ranks, lanes, lanes, nodes)
}

/// One rank's place in one lane's ring.
struct Ring {
    rank: u32,
    ranks: u32,
    lane: u32,
    lanes: u32,
    forward: i64,
    next: u32,
    previous: u32,
}

impl Ring {
    fn new(rank: u32, ranks: u32, lane: u32, lanes: u32) -> Self {
        let forward = if lane.is_multiple_of(2) { 1 } else { -1 };
        let neighbour = |way: i64| (i64::from(rank) + way).rem_euclid(i64::from(ranks)) as u32;
        let (next, previous) = (neighbour(forward), neighbour(-forward));
        Self { rank, ranks, lane, lanes, forward, next, previous }
    }

    /// The lane's chunk of the block (or part) that belongs to the rank `behind` ranks back, one further back in each
    /// iteration.
    fn block(&self, behind: i64) -> Affine {
        let lanes = i64::from(self.lanes);
        let base = (i64::from(self.rank) - self.forward * behind) * lanes;
        Affine::ring(base, -self.forward * lanes, self.ranks * self.lanes).plus(self.lane)
    }

    fn fixed(&self, behind: i64) -> Affine {
        self.block(behind).at(&[0]).unwrap_or_default().into()
    }
}

/// The plan whose lanes do what `nodes` says, with each block cut into `chunks`.
fn plan(
    collective: Collective,
    ranks: u32,
    lanes: u32,
    chunks: u32,
    nodes: impl Fn(&Ring) -> Vec<Node>,
) -> Plan {
    assert!(ranks > 0 && lanes > 0, "a ring needs a rank and a lane");
    let (input, output) = collective.blocks(ranks);
    let lane = |rank, lane| Lane { channel: lane, nodes: nodes(&Ring::new(rank, ranks, lane, lanes)) };
    let program = |rank| Program { lanes: (0..lanes).map(|number| lane(rank, number)).collect() };
    Plan {
        weft: Format::default(),
        name: "ring".to_owned(),
        collective,
        ranks,
        chunks: Chunks { input: input * chunks, output: output * chunks, scratch: 0 },
        aliasing: Aliasing::BOTH.to_vec(),
        channels: vec![Channel { protocol: Protocol::Simple, depth: DEPTH }; lanes as usize],
        counters: 0,
        programs: (0..ranks).map(program).collect(),
    }
}
