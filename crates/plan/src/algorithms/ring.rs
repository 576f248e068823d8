//! Ring all-reduce.
//!
//! **Steps.** The buffer is cut into n chunks (per lane). Chunk c starts at rank c and is passed on n-1 times, each
//! rank adding its own part on the way (reduce-scatter); the rank where it is complete keeps it and passes it on n-1
//! times more (all-gather): 2(n-1) messages in a row per rank, two loops in the plan. Received data is combined and
//! sent on in the same step, so only the all-gather writes the output. Odd lanes run the other way around, so that
//! both directions of every link carry data.
//!
//! **Bytes on the wire.** 2(n-1)/n of the buffer per rank, each way of the ring: the least any algorithm can send.
//!
//! **When it wins.** Large buffers, and buffers that peers cannot reach. Its latency grows with n.
//!
//! **Paper.** Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.

use crate::Affine;
use crate::plan::{
    Aliasing, Channel, Chunks, Collective, Format, Input, Lane, Node, Output, Place, Plan, Program, Protocol,
    Step,
};

/// How many messages may be under way between two neighbours: one that is read while the next is written.
const DEPTH: u32 = 2;

/// The plan for `ranks` in a ring, with `lanes` rings side by side.
///
/// # Panics
/// If there are no ranks or no lanes.
pub fn ring(ranks: u32, lanes: u32) -> Plan {
    assert!(ranks > 0 && lanes > 0, "a ring needs a rank and a lane");
    let chunks = Chunks { input: ranks * lanes, output: ranks * lanes, scratch: 0 };
    let program = |rank| Program { lanes: (0..lanes).map(|lane| ring_lane(rank, ranks, lane)).collect() };
    Plan {
        weft: Format::default(),
        name: "ring".to_owned(),
        collective: Collective::AllReduce,
        ranks,
        chunks,
        aliasing: Aliasing::BOTH.to_vec(),
        channels: vec![Channel { protocol: Protocol::Simple, depth: DEPTH }; lanes as usize],
        counters: 0,
        programs: (0..ranks).map(program).collect(),
    }
}

fn ring_lane(rank: u32, ranks: u32, lane: u32) -> Lane {
    let forward = if lane.is_multiple_of(2) { 1 } else { -1 };
    let neighbour = |way: i64| (i64::from(rank) + way).rem_euclid(i64::from(ranks)) as u32;
    let (next, previous) = (neighbour(forward), neighbour(-forward));
    // The chunk whose journey began `behind` ranks back, one further back in each iteration.
    let chunk =
        |behind: i64| Affine::ring(i64::from(rank) - forward * behind, -forward, ranks).plus(lane * ranks);
    let fixed = |behind: i64| Affine::from(chunk(behind).at(&[0]).unwrap_or_default());
    let last = i64::from(ranks) - 1;

    let nodes = if ranks == 1 {
        vec![Step::copy(Input::Local(Place::input(lane))).to(Output::Local(Place::output(lane))).into()]
    } else {
        vec![
            Step::copy(Input::Local(Place::input(fixed(0)))).to(Output::sent(next)).into(),
            Node::repeat(
                ranks - 2,
                [Step::reduce(vec![Input::received(previous), Input::Local(Place::input(chunk(1)))])
                    .to(Output::sent(next))],
            ),
            Step::reduce(vec![Input::received(previous), Input::Local(Place::input(fixed(last)))])
                .to(Output::Local(Place::output(fixed(last))))
                .to(Output::sent(next))
                .into(),
            Node::repeat(
                ranks - 2,
                [Step::copy(Input::received(previous))
                    .to(Output::Local(Place::output(chunk(0))))
                    .to(Output::sent(next))],
            ),
            Step::copy(Input::received(previous)).to(Output::Local(Place::output(fixed(last - 1)))).into(),
        ]
    };
    Lane { channel: lane, nodes }
}
