//! # Linear
//!
//! The root exchanges data with one rank after the other; and messages, each sent directly to its target.
//!
//! **Steps.** The root receives (gather) or sends (scatter) every other rank's block, one after the other. It sends
//! (broadcast) its input to every other rank, or combines (reduce) all inputs in the order of the ranks.
//! *Send-receive:* one lane sends a rank's messages in the order of the list and another receives, so both sides may
//! send first; the earliest unfinished message is always next on both sides, so there is no deadlock.
//! *Neighbours:* every rank sends its blocks, then receives in the order in which they were sent, since on a dimension of
//! two ranks both come from the same rank.
//!
//! **Bytes on the wire.** n-1 blocks at the root, one at every other rank: the least possible, except for a broadcast or
//! a reduction. Every message and every neighbour's block is sent once.
//!
//! **Possible.** Everywhere: all it needs is messages between any two ranks. Send-receive is out of place only: received
//! data would overwrite data that is not sent yet.
//!
//! **When it wins.** Where the root's link is the bottleneck anyway, as with large blocks; and for messages, which no other
//! algorithm sends.
//!
//! **Paper.** Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | gather, scatter | `[m=1][g>1]` | `[m>1]` | `S (g-1)/n` | `S (n-g)/n` |
//! | broadcast, reduce | `[m=1][g>1]` | `[m>1]` | `S (g-1)` | `S (n-g)` |
//! | send-receive | `[m=1][g>1]` | `[m>1]` | `S [g>1]` | `S [m>1]` |
//! | neighbours | `[m=1][g>1]` | `[m>1]` | `S/3 [g>1]` | `S/3 g [m>1]` |

use crate::collective::neighbour;
use crate::layout::Layout;
use crate::plan::{
    Aliasing, Channel, Collective, Digit, Input, Lane, Node, Output, Place, Plan, Program, Protocol,
    RankDigit, Step, Symmetry,
};
use crate::{Affine, Recipe};

/// Two slots: one message is read while the next is written. Neighbours on a dimension of two ranks send each other two messages
/// before either receives, so one slot would deadlock.
const DEPTH: u32 = 2;

/// The blocks that neighbours exchange: two for each dimension of the torus.
const BLOCKS: u32 = 6;

/// The gather to `root`.
pub fn gather(layout: &Layout, root: u32) -> Recipe<'_> {
    let ranks = layout.ranks();
    let own = || Input::Local(Place::input(0));
    let at_root = move |owner: u32| {
        let source = if owner == root { own() } else { Input::received(owner) };
        Step::copy(source).to(Output::Local(Place::output(owner)))
    };
    let at_root = move || (0..ranks).map(|owner| at_root(owner).into()).collect();
    recipe(Collective::Gather { root }, layout, root, at_root, Step::copy(own()).to(Output::sent(root)))
}

/// The scatter from `root`.
pub fn scatter(layout: &Layout, root: u32) -> Recipe<'_> {
    let ranks = layout.ranks();
    let keep = || Output::Local(Place::output(0));
    let at_root = move |owner: u32| {
        let target = if owner == root { keep() } else { Output::sent(owner) };
        Step::copy(Input::Local(Place::input(owner))).to(target)
    };
    let at_root = move || (0..ranks).map(|owner| at_root(owner).into()).collect();
    recipe(Collective::Scatter { root }, layout, root, at_root, Step::copy(Input::received(root)).to(keep()))
}

/// The broadcast from `root`.
pub fn broadcast(layout: &Layout, root: u32) -> Recipe<'_> {
    let ranks = layout.ranks();
    let others = move || Affine::ring(i64::from(root) + 1, 1, ranks);
    let own = || Input::Local(Place::input(0));
    let keep = || Output::Local(Place::output(0));
    let at_root = move || {
        let send = Step::copy(own()).to(Output::Sent { to: others() });
        vec![Step::copy(own()).to(keep()).into(), Node::repeat(ranks - 1, [send])]
    };
    recipe(
        Collective::Broadcast { root },
        layout,
        root,
        at_root,
        Step::copy(Input::received(root)).to(keep()),
    )
}

/// The reduction to `root`.
pub fn reduce(layout: &Layout, root: u32) -> Recipe<'_> {
    let ranks = layout.ranks();
    let own = || Input::Local(Place::input(0));
    let part = move |owner: u32| if owner == root { own() } else { Input::received(owner) };
    let at_root = move || {
        let all = Step::reduce((0..ranks).map(part).collect());
        vec![all.to(Output::Local(Place::output(0))).into()]
    };
    recipe(Collective::Reduce { root }, layout, root, at_root, Step::copy(own()).to(Output::sent(root)))
}

/// Messages from rank to rank. Out of place only: received data would overwrite data that is not sent yet.
pub fn send_receive<'a>(layout: &'a Layout, messages: &[(u32, u32)]) -> Recipe<'a> {
    let messages = messages.to_vec();
    let collective = Collective::SendReceive { messages: messages.clone() };
    let outline = Plan { aliasing: vec![Aliasing::OutOfPlace], ..outline(collective, layout.ranks()) };
    Recipe::new(outline, move |rank| {
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        let (mut given, mut got) = (0, 0);
        for &(from, to) in &messages {
            let source = || Input::Local(Place::input(given));
            let target = || Output::Local(Place::output(got));
            match (from == rank, to == rank) {
                (true, true) => sends.push(Step::copy(source()).to(target()).into()),
                (true, false) => sends.push(Step::copy(source()).to(Output::sent(to)).into()),
                (false, true) => receives.push(Step::copy(Input::received(from)).to(target()).into()),
                (false, false) => {}
            }
            given += u32::from(from == rank);
            got += u32::from(to == rank);
        }
        let both = [sends, receives].into_iter().filter(|nodes: &Vec<Node>| !nodes.is_empty());
        let mut lanes: Vec<_> = both.map(|nodes| Lane { channel: 0, nodes }).collect();
        if lanes.is_empty() {
            lanes.push(Lane { channel: 0, nodes: vec![Step::sync().into()] });
        }
        Program { lanes }
    })
}

/// A block to and from each neighbour on a torus.
pub fn neighbours(layout: &Layout, torus: [u32; 3]) -> Recipe<'_> {
    let fixed = |size| vec![Digit { size, with: None }];
    let symmetry = Symmetry {
        ranks: torus.iter().map(|&size| RankDigit { size, turns: true }).collect(),
        input: fixed(BLOCKS),
        output: fixed(BLOCKS),
        scratch: fixed(1),
    };
    let mut outline = outline(Collective::Neighbours { torus }, layout.ranks());
    outline.chunks.scratch = 1;
    let outline = Plan { symmetry: Some(symmetry), ..outline };
    Recipe::new(outline, move |rank| {
        let input = |block| Step::copy(Input::Local(Place::input(block)));
        let keep = |block| Output::Local(Place::output(block));
        let of_one = |block: &u32| torus[*block as usize / 2] == 1;
        let neighbour = |block| neighbour(torus, rank, block);
        let sends = (0..BLOCKS)
            .filter(|block| !of_one(block))
            .map(|block| input(block).to(Output::sent(neighbour(block))));
        // A block that is sent in one direction arrives from the opposite one.
        let receives = (0..BLOCKS)
            .filter(|block| !of_one(block))
            .map(|sent| Step::copy(Input::received(neighbour(sent ^ 1))).to(keep(sent ^ 1)));
        // A rank that is alone in a dimension sends itself two blocks. In place they are swapped.
        let swaps = (0..BLOCKS).step_by(2).filter(of_one).flat_map(|block| {
            [
                input(block).to(Output::Local(Place::scratch(0))),
                input(block + 1).to(keep(block)),
                Step::copy(Input::Local(Place::scratch(0))).to(keep(block + 1)),
            ]
        });
        let nodes = sends.chain(receives).chain(swaps).map(Into::into).collect();
        Program { lanes: vec![Lane { channel: 0, nodes }] }
    })
}

fn outline(collective: Collective, ranks: u32) -> Plan {
    let channels = vec![Channel { protocol: Protocol::Simple, depth: DEPTH }];
    let uneven = collective.may_be_uneven();
    Plan { channels, uneven, ..Plan::outline("linear", collective, ranks, 1) }
}

/// A plan with one program for the root and another for all others.
fn recipe<'a>(
    collective: Collective,
    layout: &'a Layout,
    root: u32,
    at_root: impl Fn() -> Vec<Node> + Send + Sync + 'a,
    elsewhere: Step,
) -> Recipe<'a> {
    Recipe::new(outline(collective, layout.ranks()), move |rank| {
        let nodes = if rank == root { at_root() } else { vec![elsewhere.clone().into()] };
        Program { lanes: vec![Lane { channel: 0, nodes }] }
    })
}
