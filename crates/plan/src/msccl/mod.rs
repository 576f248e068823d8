//! MSCCL's XML, in and out: programs for collectives as msccl-tools writes them and RCCL and MSCCL run them.
//!
//! [`Plan::from_msccl`] reads a file and [`Plan::to_msccl`] writes one. Neither proves anything; a plan from a file has to be
//! [verified](crate::verify()) like any other. A `gpu` becomes a rank, a `tb` (thread block) a lane and a `step` a step, all
//! with the file's numbers, so that a refusal of the plan names the place in the file.
//!
//! The runtimes interpret a file as follows, and so does the plan:
//!
//! - Steps of a tb run in order, tbs side by side. A tb has one peer to send to and one to receive from, and messages
//!   between two gpus on a channel arrive in the order they were sent.
//! - A step of `cnt` chunks is a loop over them. Both ends of a message have the same `cnt`.
//! - `depid` and `deps` wait until another tb of the gpu has finished a step, which signals only if its `hasdep` is 1. A
//!   `nop` only waits and never signals.
//! - Scratch has a region for each tile, whereas all tiles of a plan share it. So a tb that writes scratch gets one more step
//!   at its end, which waits until the gpu's other tbs no longer use the chunks it writes.
//! - In place, `i` and `o` are one buffer, and a file may write `i`. Plans never write an input, so such a write goes to
//!   the chunk of output that is the same memory.
//! - A file does not specify the order of a reduction. If its ranks add in different orders, the plan declares that results
//!   [differ in the last bits](crate::plan::Agreement).
//!
//! Ignored: `minBytes`, `maxBytes`, `nthreads`, `nchannels`, and everything else that does not affect the data. Not
//! supported: the newer form with `op` elements, and collectives of the user's own (`custom`).

mod emit;
mod error;
mod lanes;
mod order;
mod pairs;
mod parse;
mod program;
mod read;
mod split;
mod write;

pub use error::{At, MscclError};

use crate::plan::Plan;

impl Plan {
    /// Reads MSCCL's XML. The plan is not proved.
    pub fn from_msccl(text: &str) -> Result<Self, MscclError> {
        read::plan(&parse::program(text)?)
    }

    /// The plan as MSCCL's XML, with loops unrolled and lanes split into tbs of one peer each way.
    ///
    /// XML has no depth of FIFOs, and readers take NCCL's. So the file has to be read back and verified again.
    pub fn to_msccl(&self) -> Result<String, MscclError> {
        Ok(emit::xml(&write::program(self)?))
    }
}
