//! The plan: what moves when, for one collective on `n` ranks.
//!
//! The user's buffers are cut into chunks; each rank runs lanes side by side; each lane runs its steps in order. A
//! step takes inputs (local, received, peer memory, reduced by a switch), combines them, and puts the result into
//! outputs (local, sent, peer memory, multicast). Every fused form that libraries name (recv-reduce-copy-send and so on)
//! is an instance of that step.
//!
//! Lanes synchronise in two ways only, both with a single writer: FIFOs between two lanes, and counters that only grow,
//! with thresholds that are part of the plan. So neither results nor deadlocks depend on timing, and one run of the
//! [interpreter](crate::interpret) covers all schedules.
//!
//! A plan lives in chunk space: no bytes, no element type, no addresses. The executor cuts a large buffer into tiles
//! and repeats the whole program for each.
//!
//! Deliberately absent: wildcard receives, conditions on data, and anything that resets a counter.

mod step;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use self::step::{
    Grouped, Input, Lane, Loop, Node, Op, Output, Place, Program, Remote, Role, Step, Wait,
};
pub use crate::buffer::Buffer;
pub use crate::collective::Collective;
pub use crate::symmetry::{Digit, RankDigit, Symmetry};

/// A collective as programs for its ranks, not yet proved. [`verify`](crate::verify()) turns it into a
/// [`Verified`](crate::Verified) plan, the only kind that can be run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The version of the file format.
    pub weft: Format,
    /// The plan's name in tables and errors.
    pub name: String,
    /// The collective it computes.
    pub collective: Collective,
    /// The number of ranks.
    pub ranks: u32,
    /// How the buffers of each rank are cut.
    pub chunks: Chunks,
    /// The ways of passing buffers that the plan supports; each is proved.
    pub aliasing: Vec<Aliasing>,
    /// Whether it supports blocks of different lengths.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uneven: bool,
    /// Whether ranks that are promised the same reduction get the same bits.
    #[serde(default, skip_serializing_if = "Agreement::is_default")]
    pub agreement: Agreement,
    /// The kinds of FIFO that lanes use.
    #[serde(default)]
    pub channels: Vec<Channel>,
    /// Ranks whose memory a switch reads and writes together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Group>,
    /// The number of counters of each rank, beside the one that says it has entered the call.
    #[serde(default)]
    pub counters: u32,
    /// Turns that map the plan to itself, so that a few ranks represent all. The verifier checks them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symmetry: Option<Symmetry>,
    /// The program of each rank.
    pub programs: Vec<Program>,
}

/// The version of the file format: `"plan/1"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Format {
    /// The first.
    #[default]
    #[serde(rename = "plan/1")]
    Plan1,
}

/// The number of chunks of each rank's buffers. A chunk has the same size in all three.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chunks {
    /// Chunks of the buffer the user passes in.
    pub input: u32,
    /// Chunks of the buffer the user gets back.
    pub output: u32,
    /// Chunks of memory that the library provides, which peers can reach too.
    #[serde(default)]
    pub scratch: u32,
}

/// Whether the user's input and output are one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aliasing {
    /// Input and output are the same memory.
    InPlace,
    /// Input and output do not overlap, and the call does not change the input.
    OutOfPlace,
}

impl Aliasing {
    /// Both ways of passing buffers.
    pub const BOTH: [Aliasing; 2] = [Aliasing::OutOfPlace, Aliasing::InPlace];
}

impl fmt::Display for Aliasing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Aliasing::InPlace => "in place",
            Aliasing::OutOfPlace => "out of place",
        })
    }
}

/// Whether ranks that are promised the same reduction get the same bits. Rounding depends on the order of additions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Agreement {
    /// All ranks combine in the same order.
    #[default]
    SameBits,
    /// Ranks combine in different orders, so that results may differ in the last bits. Some imported programs do.
    UpToRounding,
}

impl Agreement {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A kind of FIFO: there is one for each (source rank, target rank, channel) that some step uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Channel {
    /// How the receiver detects a message.
    pub protocol: Protocol,
    /// The number of slots. The executor provides exactly as many: a deeper FIFO would let a sender run further ahead
    /// than was proved.
    pub depth: u32,
}

/// How a receiver detects that a message has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Payload first, then a flag: full bandwidth, one more trip.
    Simple,
    /// Payload and flag in the same line (8 bytes on a GPU, a cache line on a CPU): the shortest latency.
    Ll,
    /// Payload and flag in the same 128 bytes, which NVLink keeps together.
    Ll128,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Protocol::Simple => "Simple",
            Protocol::Ll => "LL",
            Protocol::Ll128 => "LL128",
        })
    }
}

/// Ranks whose memory a switch can read and write together: it returns the sum of a chunk of all members, or stores to
/// all of them at once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// The kind of switch.
    pub switch: Switch,
    /// The ranks, in rising order.
    pub members: Vec<u32>,
}

/// A switch that computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// NVSwitch: a rank loads the sum and stores to all through the switch (NVLS).
    Nvswitch,
    /// Network switches: they add and copy in transit (SHARP).
    Network,
}

impl Plan {
    /// The number of chunks of each block; see [`Collective`].
    pub fn chunks_per_block(&self) -> u32 {
        let (input, output) = self.collective.blocks(self.ranks);
        self.chunks.input.checked_div(input).or_else(|| self.chunks.output.checked_div(output)).unwrap_or(1)
    }

    /// Whether some step accesses the user's buffers of another rank, so that these must be symmetric memory.
    pub fn needs_windows(&self) -> bool {
        self.writes_to_peers() || self.all_steps().any(|step| step.inputs.iter().any(reads_user))
    }

    /// Whether some step writes into the user's buffers of another rank. A plan that needs windows but does not write to peers also runs
    /// where peers can only read these buffers.
    pub fn writes_to_peers(&self) -> bool {
        self.all_steps().any(|step| step.outputs.iter().any(writes_user))
    }

    /// Whether some step writes into the scratch of another rank.
    pub fn writes_to_scratch(&self) -> bool {
        let is_scratch =
            |output: &Output| matches!(output, Output::Peer(Remote { buffer: Buffer::Scratch, .. }));
        self.all_steps().any(|step| step.outputs.iter().any(is_scratch))
    }

    fn all_steps(&self) -> impl Iterator<Item = &Step> {
        self.programs.iter().flat_map(|program| &program.lanes).flat_map(Lane::steps)
    }
}

fn reads_user(input: &Input) -> bool {
    match input {
        Input::Peer(Remote { buffer, .. }) | Input::Switch(Grouped { buffer, .. }) => {
            *buffer != Buffer::Scratch
        }
        Input::Local(_) | Input::Received { .. } => false,
    }
}

fn writes_user(output: &Output) -> bool {
    match output {
        Output::Peer(Remote { buffer, .. }) | Output::Multicast(Grouped { buffer, .. }) => {
            *buffer != Buffer::Scratch
        }
        Output::Local(_) | Output::Sent { .. } => false,
    }
}
