//! The plan: what moves when, for one collective on `n` ranks.
//!
//! The user's buffers are cut into chunks; each rank runs lanes side by side; each lane runs its steps in order. A
//! step takes inputs (local, received, peer memory, reduced by a switch), combines them, and puts the result into
//! outputs (local, sent, peer memory, multicast). Every fused form that libraries name (recv-reduce-copy-send and so on) is a spelling of that step.
//!
//! Lanes meet in two ways only, both with a single writer: FIFOs between a lane here and a lane there, and counters
//! that only grow, waited for with thresholds that are part of the plan. So neither results nor deadlock depend on
//! who is faster, and one run of the [interpreter](crate::interpret) stands for all of them.
//!
//! A plan lives in chunk space: no bytes, no element type, no addresses. The executor cuts a large buffer into tiles
//! and repeats the whole program for each.
//!
//! Deliberately absent: wildcard receives, conditions on data, and anything that resets a counter.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Affine;
pub use crate::buffer::Buffer;
pub use crate::collective::Collective;
pub use crate::symmetry::{Digit, RankDigit, Symmetry};

/// A collective arranged as programs for its ranks, not yet proved. [`verify`](crate::verify) turns it into a
/// [`Verified`](crate::Verified) plan, the only kind that can be run.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// What a file of this form says it is.
    pub weft: Format,
    /// What the plan is called in tables and errors.
    pub name: String,
    /// What it computes.
    pub collective: Collective,
    /// How many ranks take part.
    pub ranks: u32,
    /// How the buffers of each rank are cut.
    pub chunks: Chunks,
    /// Which ways of passing buffers the plan claims to be right for; each is proved.
    pub aliasing: Vec<Aliasing>,
    /// Whether it is right for blocks of different lengths too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uneven: bool,
    /// Whether ranks that are promised the same reduction get the same bits.
    #[serde(default, skip_serializing_if = "Agreement::is_default")]
    pub agreement: Agreement,
    /// The kinds of FIFO that lanes use.
    #[serde(default)]
    pub channels: Vec<Channel>,
    /// Ranks whose memory a switch reads and writes as one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Group>,
    /// How many counters each rank has, beside the one that says it has entered the call.
    #[serde(default)]
    pub counters: u32,
    /// Turns that map the plan to itself, so that a few ranks stand for all. Checked, never believed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symmetry: Option<Symmetry>,
    /// What each rank does.
    pub programs: Vec<Program>,
}

/// The version of the form: `"plan/1"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Format {
    /// The first.
    #[default]
    #[serde(rename = "plan/1")]
    Plan1,
}

/// How many chunks each rank's buffers are cut into. A chunk has the same size in all three.
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
    /// Input and output do not overlap, and the input is left as it was.
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
    /// All combine in the same order.
    #[default]
    SameBits,
    /// Each in an order of its own, so that results may differ in the last bits. Programs from elsewhere do that.
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
    /// How messages say that they have arrived.
    pub protocol: Protocol,
    /// How many messages may be under way. The executor provides exactly as many: a deeper FIFO would let a sender
    /// run further ahead than was proved.
    pub depth: u32,
}

/// How a message says that it has arrived.
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

/// Ranks whose memory a switch can read and write as one: it hands out the sum of what all of them hold at a place, or
/// stores to all of them at once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// What does it.
    pub switch: Switch,
    /// The ranks, in rising order.
    pub members: Vec<u32>,
}

/// A switch that computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// NVSwitch: the sum goes to the rank that asks, and what it stores goes out from there (NVLS).
    Nvswitch,
    /// Switches of the network: sums and copies are made on the way (SHARP).
    Network,
}

/// What one rank does: lanes that run side by side.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// The lanes; each is a thread block on a GPU, one of the things to interleave on a CPU.
    pub lanes: Vec<Lane>,
}

/// Steps that run in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lane {
    /// Which of the plan's channels its sends and receives use.
    #[serde(default)]
    pub channel: u32,
    /// The steps and loops of steps.
    pub nodes: Vec<Node>,
}

/// A step, or a loop of steps.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Node {
    /// One step.
    Step(Step),
    /// Nodes that are repeated; indices inside may depend on the iteration.
    Loop(Loop),
}

/// Nodes that are repeated.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loop {
    /// How many times; zero is allowed.
    pub times: u32,
    /// What is repeated.
    pub body: Vec<Node>,
}

/// The one kind of step: wait, take inputs, combine, put outputs, signal. `I` is [`Affine`] in a plan and `u32` where
/// the loops around the step have been resolved.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "I: Deserialize<'de>"))]
pub struct Step<I = Affine> {
    /// What must have happened elsewhere before anything is touched.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Wait<I>>,
    /// What is combined, in this order.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<Input<I>>,
    /// How.
    pub op: Op,
    /// Where the result goes; all of them.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<Output<I>>,
    /// Which of the rank's own counters grow by one once the outputs are in place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signals: Vec<u32>,
}

/// How a step's inputs become its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// There is nothing to move: the step only waits and signals.
    Sync,
    /// The single input.
    Copy,
    /// The inputs combined with the call's reduction, from left to right.
    Reduce,
}

/// What a step waits for. Both kinds have one writer and only grow.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Wait<I = Affine> {
    /// A rank has entered the call: its user's buffers are ready to be read and written. Announced by the executor
    /// at the start of each call, so no step signals it.
    Entered {
        /// That rank.
        rank: I,
    },
    /// A rank's counter has been signalled so many times in this tile; counts start afresh with each.
    Reached {
        /// Whose counter.
        rank: I,
        /// Which one.
        counter: u32,
        /// How many times, at least.
        count: I,
    },
}

/// Where an input comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Input<I = Affine> {
    /// The rank's own memory.
    Local(Place<I>),
    /// The next message from a rank on this lane's channel; its slot is given back when the step is done.
    Received {
        /// That rank.
        from: I,
    },
    /// Another rank's memory, read from here.
    Peer(Remote<I>),
    /// The sum of what all members of a group hold at a place, in whatever order the switch adds.
    Switch(Grouped<I>),
}

/// Where an output goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Output<I = Affine> {
    /// The rank's own memory.
    Local(Place<I>),
    /// The next message to a rank on this lane's channel; waits for a free slot.
    Sent {
        /// That rank.
        to: I,
    },
    /// Another rank's memory, written from here.
    Peer(Remote<I>),
    /// The same place in the memory of all members of a group.
    Multicast(Grouped<I>),
}

/// One chunk of one of a rank's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place<I = Affine> {
    /// The buffer.
    pub buffer: Buffer,
    /// The chunk of it.
    pub chunk: I,
}

/// One chunk of one of another rank's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remote<I = Affine> {
    /// Whose.
    pub rank: I,
    /// The buffer.
    pub buffer: Buffer,
    /// The chunk of it.
    pub chunk: I,
}

/// One chunk of one buffer of all members of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grouped<I = Affine> {
    /// The group; the step's rank is a member.
    pub group: u32,
    /// The buffer.
    pub buffer: Buffer,
    /// The chunk of it.
    pub chunk: I,
}

/// What an index in a step counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Ranks.
    Rank,
    /// Chunks of a buffer.
    Chunk(Buffer),
    /// Signals of a counter.
    Count,
}

impl Step {
    /// The step in given iterations of the loops around it; nothing if some index is negative or too large there.
    pub fn at(&self, iterations: &[u32]) -> Option<Step<u32>> {
        self.map(|index, _| index.at(iterations))
    }
}

impl<I> Step<I> {
    /// The step with every index replaced; nothing if one cannot be.
    pub fn map<J>(&self, to: impl Fn(&I, Role) -> Option<J>) -> Option<Step<J>> {
        let rank = |rank: &I| to(rank, Role::Rank);
        let place = |Place { buffer, chunk }: &Place<I>| {
            Some(Place { buffer: *buffer, chunk: to(chunk, Role::Chunk(*buffer))? })
        };
        let remote = |Remote { rank: owner, buffer, chunk }: &Remote<I>| {
            Some(Remote { rank: rank(owner)?, buffer: *buffer, chunk: to(chunk, Role::Chunk(*buffer))? })
        };
        let grouped = |Grouped { group, buffer, chunk }: &Grouped<I>| {
            Some(Grouped { group: *group, buffer: *buffer, chunk: to(chunk, Role::Chunk(*buffer))? })
        };
        let wait = |wait: &Wait<I>| {
            Some(match wait {
                Wait::Entered { rank: of } => Wait::Entered { rank: rank(of)? },
                Wait::Reached { rank: of, counter, count } => {
                    Wait::Reached { rank: rank(of)?, counter: *counter, count: to(count, Role::Count)? }
                }
            })
        };
        let input = |input: &Input<I>| {
            Some(match input {
                Input::Local(local) => Input::Local(place(local)?),
                Input::Received { from } => Input::Received { from: rank(from)? },
                Input::Peer(peer) => Input::Peer(remote(peer)?),
                Input::Switch(all) => Input::Switch(grouped(all)?),
            })
        };
        let output = |output: &Output<I>| {
            Some(match output {
                Output::Local(local) => Output::Local(place(local)?),
                Output::Sent { to } => Output::Sent { to: rank(to)? },
                Output::Peer(peer) => Output::Peer(remote(peer)?),
                Output::Multicast(all) => Output::Multicast(grouped(all)?),
            })
        };
        Some(Step {
            waits: self.waits.iter().map(wait).collect::<Option<_>>()?,
            inputs: self.inputs.iter().map(input).collect::<Option<_>>()?,
            op: self.op,
            outputs: self.outputs.iter().map(output).collect::<Option<_>>()?,
            signals: self.signals.clone(),
        })
    }
}

impl Plan {
    /// Into how many chunks each block is cut; see [`Collective`].
    pub fn chunks_per_block(&self) -> u32 {
        let (input, output) = self.collective.blocks(self.ranks);
        self.chunks.input.checked_div(input).or_else(|| self.chunks.output.checked_div(output)).unwrap_or(1)
    }

    /// Whether some step reaches into the user's buffers of another rank, so that these must be symmetric memory.
    pub fn needs_windows(&self) -> bool {
        self.writes_to_peers() || self.all_steps().any(|step| step.inputs.iter().any(reads_user))
    }

    /// Whether some step writes into the user's buffers of another rank. A plan that needs windows and does not write there runs where
    /// peers can read these buffers and no more.
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
