//! # One-shot
//!
//! Every rank reads all inputs in peer memory and reduces for itself.
//!
//! **Steps.** Once all have entered the call, every rank reads all inputs where they are, combines them in the order
//! of the ranks and keeps the result; nobody leaves before everybody has read.
//!
//! **Bytes on the wire.** n-1 times the buffer read per rank.
//!
//! **Possible.** Where ranks reach each other's buffers, which must be symmetric memory. It cannot work in place: a rank would
//! overwrite what others are still reading.
//!
//! **When it wins.** Small symmetric buffers on many ranks.
//!
//! **Paper.** "One-shot" in NVIDIA's and PyTorch's symmetric-memory kernels; MSCCL++, Shah et al., 2025.
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | all-reduce | `2 [m=1][g>1]` | `2 [m>1]` | `S (g-1)` | `S g (n-g)` |

use crate::Recipe;
use crate::layout::Layout;
use crate::plan::{Aliasing, Collective, Input, Lane, Output, Place, Plan, Program, Step, Wait};

/// The counter that says a rank has read everything.
const READ: u32 = 0;

/// The all-reduce. Out of place only: others still read what would be overwritten.
pub fn all_reduce(layout: &Layout) -> Recipe<'_> {
    let ranks = layout.ranks();
    let outline = Plan {
        aliasing: vec![Aliasing::OutOfPlace],
        counters: 1,
        ..Plan::outline("one-shot", Collective::AllReduce, ranks, 1)
    };
    Recipe::new(outline, move |rank| {
        let peers = || (0..ranks).filter(move |&peer| peer != rank);
        let parts = (0..ranks).map(|owner| Input::held_by(owner, rank, Place::input(0))).collect();
        let combine = Step::reduce(parts)
            .after(peers().map(Wait::entered))
            .to(Output::Local(Place::output(0)))
            .signal(READ);
        let leave = Step::sync().after(peers().map(|peer| Wait::reached(peer, READ, 1)));
        Program { lanes: vec![Lane { channel: 0, nodes: vec![combine.into(), leave.into()] }] }
    })
}
