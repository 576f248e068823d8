//! Programs: lanes of steps, and loops of steps.

use serde::{Deserialize, Serialize};

use crate::Affine;
use crate::buffer::Buffer;

/// The program of one rank: lanes that run side by side.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// The lanes. A GPU runs each in a thread block; a CPU rank interleaves them.
    pub lanes: Vec<Lane>,
}

/// Steps that run in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lane {
    /// The number of the channel that its sends and receives use.
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
    /// A loop; indices inside may depend on the iteration.
    Loop(Loop),
}

/// A loop of nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loop {
    /// The number of iterations; zero is allowed.
    pub times: u32,
    /// The nodes of one iteration.
    pub body: Vec<Node>,
}

/// The one kind of step: wait, take inputs, combine, put outputs, signal. `I` is [`Affine`] in a plan and `u32` where
/// the loops around the step have been resolved.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "I: Deserialize<'de>"))]
pub struct Step<I = Affine> {
    /// Conditions that must hold before any access.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Wait<I>>,
    /// The inputs, combined in this order.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<Input<I>>,
    /// How the inputs become the result.
    pub op: Op,
    /// The places that all get the result.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<Output<I>>,
    /// The rank's own counters to increment once the outputs are in place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signals: Vec<u32>,
}

/// How a step's inputs become its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// No data: the step only waits and signals.
    Sync,
    /// The single input.
    Copy,
    /// The inputs combined with the call's reduction, from left to right.
    Reduce,
}

/// A condition that a step waits for. Both kinds have one writer and only grow.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Wait<I = Affine> {
    /// A rank has entered the call: its user's buffers are ready to be read and written. The executor announces it at
    /// the start of each call, so no step signals it.
    Entered {
        /// That rank.
        rank: I,
    },
    /// A rank has signalled a counter at least `count` times in this tile.
    Reached {
        /// The rank.
        rank: I,
        /// The counter.
        counter: u32,
        /// The threshold, counted from the start of the tile.
        count: I,
    },
}

/// Where an input comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Input<I = Affine> {
    /// The rank's own memory.
    Local(Place<I>),
    /// The next message from a rank on this lane's channel; its slot is freed when the step is done.
    Received {
        /// That rank.
        from: I,
    },
    /// Another rank's memory, read from here.
    Peer(Remote<I>),
    /// The sum of a chunk of all members of a group, in the order in which the switch adds.
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
    /// The same chunk of all members of a group.
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
    /// The other rank.
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
