//! A trace of a run: when each step began and ended.

use weftlink_plan::cost::Picoseconds;
use weftlink_plan::plan::{Input, Op, Output, Step};

/// A simulated step. In a run by classes, only representative ranks have steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Index of the job.
    pub job: usize,
    /// The rank in that job.
    pub rank: u32,
    /// The lane of that rank.
    pub lane: u32,
    /// The channel of the lane's messages.
    pub channel: u32,
    /// Index of the step in its lane, over all tiles.
    pub step: u64,
    /// Start time.
    pub began: Picoseconds,
    /// Time at which its last transfer ended.
    pub ended: Picoseconds,
    /// The step's operation.
    pub op: Op,
    /// Ranks whose messages or memory it read.
    pub received_from: Vec<u32>,
    /// Ranks that it sent to or whose memory it wrote.
    pub sent_to: Vec<u32>,
    /// Whether it used an in-switch reduction or multicast.
    pub by_switch: bool,
    /// Size of its chunk.
    pub bytes: u64,
}

/// Steps in the order in which they ended, up to a capacity.
#[derive(Clone, Debug)]
pub struct Spans {
    capacity: usize,
    /// The recorded steps.
    pub list: Vec<Span>,
    /// Number of steps beyond the capacity.
    pub dropped: u64,
}

impl Spans {
    /// Records up to `capacity` steps; later ones are only counted.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { capacity, list: Vec::new(), dropped: 0 }
    }

    /// Whether another step can be recorded beside `open` unfinished ones; otherwise counts it as dropped.
    pub(super) fn reserve(&mut self, open: usize) -> bool {
        let fits = self.list.len() + open < self.capacity;
        self.dropped += u64::from(!fits);
        fits
    }
}

impl Span {
    /// The span of a step that begins now.
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
