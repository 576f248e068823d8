//! What happened when: every step of a run, for those who draw it.

use weftlink_plan::cost::Picoseconds;
use weftlink_plan::plan::{Input, Op, Output, Step};

/// A step that was taken. By classes, only ranks that stand for others have any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The job, by its place in the list.
    pub job: usize,
    /// The rank in that job.
    pub rank: u32,
    /// The lane of that rank.
    pub lane: u32,
    /// The channel of the lane's messages.
    pub channel: u32,
    /// Which of the lane's steps, counted from 0 over all tiles.
    pub step: u64,
    /// When it began.
    pub began: Picoseconds,
    /// When all it moved was through.
    pub ended: Picoseconds,
    /// What it did with what it got.
    pub op: Op,
    /// Whose messages or memory it took.
    pub received_from: Vec<u32>,
    /// Who it sent to or wrote to.
    pub sent_to: Vec<u32>,
    /// Whether a switch added or copied for it.
    pub by_switch: bool,
    /// Bytes of its chunk.
    pub bytes: u64,
}

/// Steps as they are over, as many as there is room for.
#[derive(Clone, Debug)]
pub struct Spans {
    room: usize,
    /// In the order in which they ended.
    pub list: Vec<Span>,
    /// How many more there were.
    pub left_out: u64,
}

impl Spans {
    /// Room for so many; what comes later is counted and left out.
    pub fn with_room_for(room: usize) -> Self {
        Self { room, list: Vec::new(), left_out: 0 }
    }

    /// Whether one more is wanted; counted if not.
    pub(super) fn wants_more(&mut self, begun: usize) -> bool {
        let wanted = self.list.len() + begun < self.room;
        self.left_out += u64::from(!wanted);
        wanted
    }
}

impl Span {
    /// A step that begins.
    pub(super) fn of(step: &Step<u32>, began: Picoseconds, bytes: f64) -> Self {
        let from = |input: &Input<u32>| match input {
            Input::Received { from } => Some(*from),
            Input::Peer(remote) => Some(remote.rank),
            Input::Local(_) | Input::Switch(_) => None,
        };
        let to = |output: &Output<u32>| match output {
            Output::Sent { to } => Some(*to),
            Output::Peer(remote) => Some(remote.rank),
            Output::Local(_) | Output::Multicast(_) => None,
        };
        Self {
            job: 0,
            rank: 0,
            lane: 0,
            channel: 0,
            step: 0,
            began,
            ended: began,
            op: step.op,
            received_from: step.inputs.iter().filter_map(from).collect(),
            sent_to: step.outputs.iter().filter_map(to).collect(),
            by_switch: step.inputs.iter().any(|input| matches!(input, Input::Switch(_)))
                || step.outputs.iter().any(|output| matches!(output, Output::Multicast(_))),
            bytes: bytes.round() as u64,
        }
    }
}
