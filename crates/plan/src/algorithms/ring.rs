//! # Ring
//!
//! Chunks travel around a ring of all ranks: once to be reduced, once more to be distributed.
//!
//! **Steps.** *All-gather:* every rank keeps its block and sends it to the next; n-1 times it receives a block, keeps it and
//! forwards all but the last. *Reduce-scatter:* block b starts behind rank b and travels around once while each rank adds its
//! part; it ends complete at rank b. *All-reduce:* both, one after the other, on n parts of the buffer: 2(n-1) messages in
//! sequence per rank, two loops in the plan. A rank combines and forwards received data in the same step, so only the second
//! trip around writes the output. Blocks and parts are cut into as many chunks as there are rings; each ring is a lane.
//!
//! **Bytes on the wire.** n-1 blocks per rank, each way of the ring; for the all-reduce 2(n-1)/n of the buffer. No
//! algorithm without a switch that adds can send less. An island sends no more than a rank does.
//!
//! **Possible.** Everywhere: all it needs is a cyclic order, and messages between neighbours.
//!
//! **When it wins.** Large buffers, and buffers that peers cannot access. Its latency grows with n.
//!
//! **Paper.** Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | all-reduce | `2(n-1) - [m>1](1 + floor((2n-3)/g))` | `[m>1](1 + floor((2n-3)/g))` | `2 S (n-1)/n [g>1]` | `2 S (n-1)/n [m>1]` |
//! | all-gather, reduce-scatter | `n-1 - [m>1](1 + floor((n-2)/g))` | `[m>1](1 + floor((n-2)/g))` | `S (n-1)/n [g>1]` | `S (n-1)/n [m>1]` |

use crate::layout::Layout;
use crate::plan::{
    Channel, Collective, Digit, Input, Lane, Node, Output, Place, Plan, Program, Protocol, RankDigit, Step,
    Symmetry,
};
use crate::{Affine, Recipe};

/// Two slots: one message is read while the next is written.
const DEPTH: u32 = 2;

/// The all-reduce along the rings of a layout.
pub fn all_reduce(layout: &Layout) -> Recipe<'_> {
    let nodes = |ring: &Ring<'_>| {
        let own = |part: Affine| Input::Local(Place::input(part));
        let keep = |part: Affine| Output::Local(Place::output(part));
        if ring.ranks == 1 {
            return vec![Step::copy(own(ring.block(0))).to(keep(ring.block(0))).into()];
        }
        let last = ring.ranks - 1;
        let add = |part| Step::reduce(vec![Input::received(ring.previous), own(part)]);
        let receive = |part| Step::copy(Input::received(ring.previous)).to(keep(part));
        let mut nodes = vec![Step::copy(own(ring.block(0))).to(Output::sent(ring.next)).into()];
        nodes.extend(ring.passing(1, last - 1, |part| add(part).to(Output::sent(ring.next))));
        let whole = add(ring.block(last)).to(keep(ring.block(last))).to(Output::sent(ring.next));
        nodes.push(whole.into());
        nodes.extend(ring.passing(0, last - 1, |part| receive(part).to(Output::sent(ring.next))));
        nodes.push(receive(ring.block(last - 1)).into());
        nodes
    };
    recipe(Collective::AllReduce, layout, layout.ranks(), nodes)
}

/// The all-gather along the rings of a layout.
pub fn all_gather(layout: &Layout) -> Recipe<'_> {
    let nodes = |ring: &Ring<'_>| {
        let keep =
            Step::copy(Input::Local(Place::input(ring.lane))).to(Output::Local(Place::output(ring.block(0))));
        if ring.ranks == 1 {
            return vec![keep.into()];
        }
        let receive =
            |block| Step::copy(Input::received(ring.previous)).to(Output::Local(Place::output(block)));
        let mut nodes = vec![keep.to(Output::sent(ring.next)).into()];
        nodes.extend(ring.passing(1, ring.ranks - 2, |block| receive(block).to(Output::sent(ring.next))));
        nodes.push(receive(ring.block(ring.ranks - 1)).into());
        nodes
    };
    recipe(Collective::AllGather, layout, 1, nodes)
}

/// The reduce-scatter along the rings of a layout.
pub fn reduce_scatter(layout: &Layout) -> Recipe<'_> {
    let nodes = |ring: &Ring<'_>| {
        let own = |block: Affine| Input::Local(Place::input(block));
        let keep = Output::Local(Place::output(ring.lane));
        if ring.ranks == 1 {
            return vec![Step::copy(own(ring.block(0))).to(keep).into()];
        }
        let add = |block| Step::reduce(vec![Input::received(ring.previous), own(block)]);
        let mut nodes = vec![Step::copy(own(ring.block(1))).to(Output::sent(ring.next)).into()];
        nodes.extend(ring.passing(2, ring.ranks - 2, |block| add(block).to(Output::sent(ring.next))));
        nodes.push(add(ring.block(0)).to(keep).into());
        nodes
    };
    recipe(Collective::ReduceScatter, layout, 1, nodes)
}

/// One rank's place in one lane's ring.
struct Ring<'a> {
    order: &'a [u32],
    position: u32,
    ranks: u32,
    lane: u32,
    lanes: u32,
    /// After this many places around, the ranks repeat with a constant added.
    period: u32,
    next: u32,
    previous: u32,
}

impl<'a> Ring<'a> {
    fn new(order: &'a [u32], period: u32, rank: u32, lane: u32, lanes: u32) -> Self {
        let ranks = order.len() as u32;
        let position = order.iter().position(|&other| other == rank).unwrap_or_default() as u32;
        let at = |position: u32| order[(position % ranks) as usize];
        let (next, previous) = (at(position + 1), at(position + ranks - 1));
        Self { order, position, ranks, lane, lanes, period, next, previous }
    }

    /// The rank `places` back.
    fn behind(&self, places: u32) -> u32 {
        self.order[((self.position + self.ranks - places % self.ranks) % self.ranks) as usize]
    }

    /// The lane's chunk of the block (or part) of the rank `places` back.
    fn block(&self, places: u32) -> Affine {
        (self.behind(places) * self.lanes + self.lane).into()
    }

    /// Steps for the blocks of the ranks `first` places back and further, `count` of them: a loop over whole periods, and the
    /// rest.
    fn passing(&self, first: u32, count: u32, step: impl Fn(Affine) -> Step) -> Vec<Node> {
        let rounds = count / self.period;
        let mut nodes = Vec::new();
        if rounds > 1 {
            let ahead = (self.behind(first) + self.period) % self.ranks;
            let rises = self.behind(first + self.period) == ahead;
            let by = if rises { i64::from(self.period) } else { -i64::from(self.period) };
            let body = (first..first + self.period).map(|places| {
                let base = i64::from(self.behind(places));
                let (lanes, modulo) = (i64::from(self.lanes), self.ranks * self.lanes);
                step(Affine::ring(base * lanes, by * lanes, modulo).plus(self.lane))
            });
            nodes.push(Node::repeat(rounds, body));
        }
        let done = if rounds > 1 { rounds * self.period } else { 0 };
        nodes.extend((first + done..first + count).map(|places| Node::Step(step(self.block(places)))));
        nodes
    }
}

/// The plan with the lanes that `nodes` writes, with each block cut into `parts` for each ring.
fn recipe<'a>(
    collective: Collective,
    layout: &'a Layout,
    parts: u32,
    nodes: impl Fn(&Ring<'a>) -> Vec<Node> + Send + Sync + 'a,
) -> Recipe<'a> {
    let (ranks, lanes) = (layout.ranks(), layout.rings.len() as u32);
    let period = period(layout);
    let outline = Plan {
        channels: vec![Channel { protocol: Protocol::Simple, depth: DEPTH }; lanes as usize],
        uneven: collective.may_be_uneven(),
        symmetry: (period < ranks).then(|| symmetry(&collective, ranks, period, lanes)),
        ..Plan::outline("ring", collective, ranks, parts * lanes)
    };
    Recipe::new(outline, move |rank| {
        let lane = |(number, order): (u32, &'a Vec<u32>)| Lane {
            channel: number,
            nodes: nodes(&Ring::new(order, period, rank, number, lanes)),
        };
        Program { lanes: (0..).zip(&layout.rings).map(lane).collect() }
    })
}

/// The number of places after which every ring repeats itself, with all ranks shifted by that number: one, an island or, if
/// it does not repeat, the whole ring.
fn period(layout: &Layout) -> u32 {
    let ranks = layout.ranks();
    let repeats = |period: u32| {
        let shifts = [period, ranks - period];
        let by = |order: &[u32], shift: u32| {
            let ahead = order.iter().cycle().skip(period as usize);
            order.iter().zip(ahead).all(|(&rank, &next)| next == (rank + shift) % ranks)
        };
        layout.rings.iter().all(|ring| shifts.iter().any(|&shift| by(ring, shift)))
    };
    let candidates = [Some(1), layout.per_island()];
    let fits = |period: &u32| *period < ranks && ranks.is_multiple_of(*period) && repeats(*period);
    candidates.into_iter().flatten().find(fits).unwrap_or(ranks)
}

/// The symmetry of turns by a period.
fn symmetry(collective: &Collective, ranks: u32, period: u32, lanes: u32) -> Symmetry {
    let turning = RankDigit { size: ranks / period, turns: true };
    let fixed = |size| Digit { size, with: None };
    let by_rank = vec![Digit { size: ranks / period, with: Some(0) }, fixed(period), fixed(lanes)];
    let by_lane = vec![fixed(lanes)];
    let (input, output) = match collective {
        Collective::AllGather => (by_lane, by_rank),
        Collective::ReduceScatter => (by_rank, by_lane),
        _ => (by_rank.clone(), by_rank),
    };
    let ranks = vec![turning, RankDigit { size: period, turns: false }];
    Symmetry { ranks, input, output, scratch: vec![] }
}
