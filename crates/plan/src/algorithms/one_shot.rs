//! One-shot all-reduce in peer memory.
//!
//! **Steps.** Once all have entered the call, every rank reads all inputs where they are, combines them in the order
//! of the ranks and keeps the result; nobody leaves before everybody has read.
//!
//! **Bytes on the wire.** n-1 times the buffer read per rank.
//!
//! **When it wins.** Small symmetric buffers on many ranks. It cannot work in place: a rank would overwrite what
//! others are still reading.
//!
//! **Paper.** "One-shot" in NVIDIA's and PyTorch's symmetric-memory kernels; MSCCL++, Shah et al., 2025.

use crate::plan::{
    Aliasing, Chunks, Collective, Format, Input, Lane, Output, Place, Plan, Program, Step, Wait,
};

/// The counter that says a rank has read everything.
const READ: u32 = 0;

/// The plan for `ranks`.
///
/// # Panics
/// If there are no ranks.
pub fn one_shot(ranks: u32) -> Plan {
    assert!(ranks > 0, "an all-reduce needs a rank");
    Plan {
        weft: Format::default(),
        name: "one-shot".to_owned(),
        collective: Collective::AllReduce,
        ranks,
        chunks: Chunks { input: 1, output: 1, scratch: 0 },
        aliasing: vec![Aliasing::OutOfPlace],
        channels: vec![],
        counters: 1,
        programs: (0..ranks).map(|rank| one_shot_program(rank, ranks)).collect(),
    }
}

fn one_shot_program(rank: u32, ranks: u32) -> Program {
    let peers = || (0..ranks).filter(move |&peer| peer != rank);
    let parts = (0..ranks).map(|owner| Input::held_by(owner, rank, Place::input(0))).collect();
    let combine = Step::reduce(parts)
        .after(peers().map(Wait::entered))
        .to(Output::Local(Place::output(0)))
        .signal(READ);
    let leave = Step::sync().after(peers().map(|peer| Wait::reached(peer, READ, 1)));
    Program { lanes: vec![Lane { channel: 0, nodes: vec![combine.into(), leave.into()] }] }
}
