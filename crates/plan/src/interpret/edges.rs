//! Synchronisation: whether the waits, messages and free slots of a step are there, and the happens-before edges they carry.

use std::ops::Range;

use super::{Blocked, Domain, Edge, LaneState, Machine};
use crate::classes::Turn;
use crate::plan::{Input, Output, Wait};

impl<'p, D: Domain> Machine<'p, D> {
    /// Calls `visit` with the happens-before edges into the next step of a lane that is [ready](Machine::ready), each with its peer and
    /// stamp, in the order of the step's waits, inputs and outputs. Starts at number `from` of these, stops when `visit` returns false, and
    /// returns the number at which it stopped, or their count.
    pub fn edges(
        &self,
        lane: usize,
        from: usize,
        mut visit: impl FnMut(Edge, u32, &D::Stamp) -> bool,
    ) -> usize {
        let state = &self.lanes[lane];
        let Some((_, step)) = &state.next else { return from };
        let (waits, inputs) = (step.waits.len(), step.waits.len() + step.inputs.len());
        let total = inputs + step.outputs.len();
        for number in from..total {
            let edge = if number < waits {
                let (Wait::Entered { rank } | Wait::Reached { rank, .. }) = step.waits[number];
                self.awaited(state, &step.waits[number]).map(|stamp| (Edge::Wait, rank, stamp))
            } else if number < inputs {
                let Input::Received { from } = step.inputs[number - waits] else { continue };
                let message = self.fifos[state.sources[number - waits].1 as usize].messages.front();
                message.map(|(_, stamp)| (Edge::Message, from, stamp))
            } else {
                let Output::Sent { to } = step.outputs[number - inputs] else { continue };
                let fifo = &self.fifos[state.targets[number - inputs].1 as usize];
                let slot = fifo.freed.front().filter(|_| fifo.freed.len() == fifo.free as usize);
                slot.map(|stamp| (Edge::Credit, to, stamp))
            };
            if let Some((edge, peer, stamp)) = edge
                && !visit(edge, peer, stamp)
            {
                return number;
            }
        }
        total
    }

    /// Joins the stamps of all lanes of a rank.
    pub(super) fn join_lanes(&mut self, lanes: Range<usize>) {
        let stamps: Vec<_> = lanes.clone().map(|lane| self.domain.stamp(lane)).collect();
        for lane in lanes {
            stamps.iter().for_each(|stamp| self.domain.join(lane, stamp));
        }
    }

    /// Joins a lane's past with a stamp of a representative, turned to the rank it is read from.
    pub(super) fn join_turned(&mut self, lane: usize, stamp: &D::Stamp, turn: Turn) {
        if !D::JOINS_STAMPS {
            return;
        }
        if turn == Turn::NONE {
            return self.domain.join(lane, stamp);
        }
        let stamp = self.domain.turned_stamp(stamp, turn);
        self.domain.join(lane, &stamp);
    }

    pub(super) fn missing_wait(&self, state: &LaneState<'p>, wait: &Wait<u32>) -> Option<Blocked> {
        self.awaited(state, wait).is_none().then(|| Blocked::Waits(wait.clone()))
    }

    pub(super) fn missing_input(
        &self,
        state: &LaneState<'p>,
        number: usize,
        input: &Input<u32>,
    ) -> Option<Blocked> {
        let Input::Received { from } = *input else { return None };
        self.fifos[state.sources[number].1 as usize].messages.is_empty().then_some(Blocked::Empty { from })
    }

    pub(super) fn missing_output(
        &self,
        state: &LaneState<'p>,
        number: usize,
        output: &Output<u32>,
    ) -> Option<Blocked> {
        let Output::Sent { to } = *output else { return None };
        (self.fifos[state.targets[number].1 as usize].free == 0).then_some(Blocked::Full { to })
    }

    /// The stamp of the signal or entry that ends a wait; nothing if it has not happened yet.
    pub(super) fn awaited(&self, state: &LaneState<'p>, wait: &Wait<u32>) -> Option<&D::Stamp> {
        let call = self.ranks[self.classes.position(state.rank)].call;
        match *wait {
            Wait::Entered { rank } => self.ranks[self.classes.position(rank)].entered.get(call as usize),
            Wait::Reached { rank, counter, count } => {
                let (rank, counter) = (&self.ranks[self.classes.position(rank)], counter as usize);
                let round = (call * self.shape.tiles + state.tile) as usize;
                let before = round * rank.per_tile[counter] as usize;
                rank.signalled[counter].get(before + count as usize - 1)
            }
        }
    }
}
