//! Shorthands to write plans, lanes and steps.

use crate::Affine;
use crate::plan::{
    Buffer, Channel, Input, Lane, Loop, Node, Op, Output, Place, Plan, Program, Protocol, Remote, Step, Wait,
};

impl Plan {
    /// Adds a channel.
    pub fn channel(mut self, protocol: Protocol, depth: u32) -> Self {
        self.channels.push(Channel { protocol, depth });
        self
    }

    /// Gives every rank one lane of these steps, on the first channel.
    pub fn steps(mut self, steps: impl Fn(u32) -> Vec<Step>) -> Self {
        let lane = |rank| Lane { channel: 0, nodes: steps(rank).into_iter().map(Node::Step).collect() };
        self.programs = (0..self.ranks).map(|rank| Program { lanes: vec![lane(rank)] }).collect();
        self
    }
}

impl Step {
    /// Copies one input; [`to`](Self::to) adds outputs.
    pub fn copy(input: Input) -> Self {
        Self { waits: vec![], inputs: vec![input], op: Op::Copy, outputs: vec![], signals: vec![] }
    }

    /// Combines inputs from left to right. A single input is only copied.
    pub fn reduce(inputs: Vec<Input>) -> Self {
        let op = if inputs.len() == 1 { Op::Copy } else { Op::Reduce };
        Self { waits: vec![], inputs, op, outputs: vec![], signals: vec![] }
    }

    /// Only waits and signals.
    pub fn sync() -> Self {
        Self { waits: vec![], inputs: vec![], op: Op::Sync, outputs: vec![], signals: vec![] }
    }

    /// Adds an output.
    pub fn to(mut self, output: Output) -> Self {
        self.outputs.push(output);
        self
    }

    /// Adds outputs.
    pub fn to_all(mut self, outputs: impl IntoIterator<Item = Output>) -> Self {
        self.outputs.extend(outputs);
        self
    }

    /// Adds waits.
    pub fn after(mut self, waits: impl IntoIterator<Item = Wait>) -> Self {
        self.waits.extend(waits);
        self
    }

    /// Adds a signal of one of the rank's own counters.
    pub fn signal(mut self, counter: u32) -> Self {
        self.signals.push(counter);
        self
    }
}

impl From<Step> for Node {
    fn from(step: Step) -> Self {
        Node::Step(step)
    }
}

impl Node {
    /// Nodes repeated `times`.
    pub fn repeat(times: u32, body: impl IntoIterator<Item = Step>) -> Self {
        Node::Loop(Loop { times, body: body.into_iter().map(Node::Step).collect() })
    }
}

impl Place {
    /// A chunk of the input buffer.
    pub fn input(chunk: impl Into<Affine>) -> Self {
        Self { buffer: Buffer::Input, chunk: chunk.into() }
    }

    /// A chunk of the output buffer.
    pub fn output(chunk: impl Into<Affine>) -> Self {
        Self { buffer: Buffer::Output, chunk: chunk.into() }
    }

    /// A chunk of the scratch buffer.
    pub fn scratch(chunk: impl Into<Affine>) -> Self {
        Self { buffer: Buffer::Scratch, chunk: chunk.into() }
    }

    fn of(self, rank: u32) -> Remote {
        Remote { rank: rank.into(), buffer: self.buffer, chunk: self.chunk }
    }
}

impl Input {
    /// A chunk that `owner` holds, seen from `rank`: local memory or a peer's.
    pub fn held_by(owner: u32, rank: u32, place: Place) -> Self {
        if owner == rank { Input::Local(place) } else { Input::Peer(place.of(owner)) }
    }

    /// The next message from a rank.
    pub fn received(from: u32) -> Self {
        Input::Received { from: from.into() }
    }
}

impl Output {
    /// A chunk that `owner` holds, seen from `rank`: local memory or a peer's.
    pub fn held_by(owner: u32, rank: u32, place: Place) -> Self {
        if owner == rank { Output::Local(place) } else { Output::Peer(place.of(owner)) }
    }

    /// The next message to a rank.
    pub fn sent(to: u32) -> Self {
        Output::Sent { to: to.into() }
    }
}

impl Wait {
    /// Until a rank has entered the call.
    pub fn entered(rank: u32) -> Self {
        Wait::Entered { rank: rank.into() }
    }

    /// Until a rank has signalled a counter `count` times in this tile.
    pub fn reached(rank: u32, counter: u32, count: u32) -> Self {
        Wait::Reached { rank: rank.into(), counter, count: count.into() }
    }
}
