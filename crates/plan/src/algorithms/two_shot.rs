//! # Two-shot
//!
//! Every rank reduces its share in peer memory and writes it to everyone.
//!
//! **Steps.** The buffer is cut into n chunks. Once all have entered the call, rank r reads chunk r of every input
//! where it is, combines them in the order of the ranks and writes the result into chunk r of every output: one step
//! does the reduce-scatter and the all-gather. Nobody leaves before everybody has written.
//!
//! **Bytes on the wire.** (n-1)/n of the buffer read and as much written per rank: the least possible, and each byte
//! is touched once.
//!
//! **Possible.** Where ranks reach each other's buffers, which must be symmetric memory.
//!
//! **When it wins.** Symmetric buffers that peers can reach, from a few hundred bytes up; in place too.
//!
//! **Paper.** "Two-shot" in NVIDIA's and PyTorch's symmetric-memory kernels; as reduce-scatter and all-gather,
//! Rabenseifner, 2004.
//!
//! | collective | inside | across | rank | island |
//! |---|---|---|---|---|
//! | all-reduce | `2 [m=1][g>1]` | `2 [m>1]` | `2 S (g-1)/n` | `2 S g (n-g)/n` |

use crate::Recipe;
use crate::layout::Layout;
use crate::plan::{Collective, Input, Lane, Output, Place, Plan, Program, Step, Wait};

/// The counter that says a rank has written its share everywhere.
const WRITTEN: u32 = 0;

/// The all-reduce.
pub fn all_reduce(layout: &Layout) -> Recipe<'_> {
    let ranks = layout.ranks();
    let outline = Plan { counters: 1, ..Plan::outline("two-shot", Collective::AllReduce, ranks, ranks) };
    Recipe::new(outline, move |rank| {
        let peers = || (0..ranks).filter(move |&peer| peer != rank);
        let parts = (0..ranks).map(|owner| Input::held_by(owner, rank, Place::input(rank))).collect();
        let share = Step::reduce(parts)
            .after(peers().map(Wait::entered))
            .to_all((0..ranks).map(|owner| Output::held_by(owner, rank, Place::output(rank))))
            .signal(WRITTEN);
        let leave = Step::sync().after(peers().map(|peer| Wait::reached(peer, WRITTEN, 1)));
        Program { lanes: vec![Lane { channel: 0, nodes: vec![share.into(), leave.into()] }] }
    })
}
