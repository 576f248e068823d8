//! # Pairwise
//!
//! Every two ranks exchange their data for each other.
//!
//! **Steps.** *All-to-all:* in round k every rank sends to the rank k places ahead and receives from the rank k places
//! behind: n-1 rounds, one loop, and no rank receives from two at once. Which rounds stay inside an island depends on the
//! positions, hence the bounds: at most g-1 rounds at either end do. *Reduce-scatter:* every rank sends its part of each
//! block to the owner of the block, in the same order, then combines all parts of its own block in the order of the ranks.
//!
//! **Bytes on the wire.** n-1 blocks per rank, each way: the least possible.
//!
//! **Possible.** Everywhere: all it needs is messages between any two ranks. The all-to-all is out of place only: a
//! block would be overwritten before it is sent.
//!
//! **When it wins.** Large blocks.
//!
//! **Paper.** Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | all-to-all | `<= min(n-1, 2(g-1))` | `<= (n-1)[m>1]` | `S (g-1)/n` | `S g (n-g)/n` |
//! | reduce-scatter | `[m=1][g>1]` | `[m>1]` | `S (g-1)/n` | `S g (n-g)/n` |

use crate::layout::Layout;
use crate::plan::{
    Aliasing, Channel, Collective, Digit, Input, Lane, Node, Output, Place, Plan, Program, Protocol,
    RankDigit, Step, Symmetry,
};
use crate::{Affine, Recipe};

/// Every pair of ranks exchanges one message each way in a tile, and may be a tile apart.
const DEPTH: u32 = 2;

/// The all-to-all. Out of place only: a block would be overwritten before it is sent.
pub fn all_to_all(layout: &Layout) -> Recipe<'_> {
    let ranks = layout.ranks();
    let blocks = vec![Digit { size: ranks, with: Some(0) }];
    let symmetry = Symmetry {
        ranks: vec![RankDigit { size: ranks, turns: true }],
        input: blocks.clone(),
        output: blocks,
        scratch: vec![],
    };
    let outline = Plan {
        aliasing: vec![Aliasing::OutOfPlace],
        channels: vec![Channel { protocol: Protocol::Simple, depth: DEPTH }],
        uneven: true,
        symmetry: Some(symmetry),
        ..Plan::outline("pairwise", Collective::AllToAll, ranks, 1)
    };
    Recipe::new(outline, move |rank| {
        let ahead = || Affine::ring(i64::from(rank) + 1, 1, ranks);
        let behind = || Affine::ring(i64::from(rank) - 1, -1, ranks);
        let own = Step::copy(Input::Local(Place::input(rank))).to(Output::Local(Place::output(rank)));
        let send = Step::copy(Input::Local(Place::input(ahead()))).to(Output::Sent { to: ahead() });
        let receive =
            Step::copy(Input::Received { from: behind() }).to(Output::Local(Place::output(behind())));
        let nodes = vec![own.into(), Node::repeat(ranks - 1, [send, receive])];
        Program { lanes: vec![Lane { channel: 0, nodes }] }
    })
}

/// The reduce-scatter.
pub fn reduce_scatter(layout: &Layout) -> Recipe<'_> {
    let ranks = layout.ranks();
    let outline = Plan {
        channels: vec![Channel { protocol: Protocol::Simple, depth: DEPTH }],
        uneven: true,
        ..Plan::outline("pairwise", Collective::ReduceScatter, ranks, 1)
    };
    Recipe::new(outline, move |rank| {
        let ahead = || Affine::ring(i64::from(rank) + 1, 1, ranks);
        let send = Step::copy(Input::Local(Place::input(ahead()))).to(Output::Sent { to: ahead() });
        let part = |owner: u32| match owner == rank {
            true => Input::Local(Place::input(rank)),
            false => Input::received(owner),
        };
        let combine = Step::reduce((0..ranks).map(part).collect()).to(Output::Local(Place::output(0)));
        Program {
            lanes: vec![Lane { channel: 0, nodes: vec![Node::repeat(ranks - 1, [send]), combine.into()] }],
        }
    })
}
