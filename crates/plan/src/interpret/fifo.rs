//! FIFOs between ranks: messages, free slots, and the lanes that wait for them.

use std::collections::VecDeque;

use super::{Domain, Machine};
use crate::classes::Turn;
use crate::plan::{Input, Output, Step};

pub(super) struct Fifo<D: Domain> {
    pub(super) messages: VecDeque<(D::Value, D::Stamp)>,
    pub(super) free: u32,
    /// Stamps of the receiver for slots that it has freed and that are still free.
    pub(super) freed: VecDeque<D::Stamp>,
    /// The lane that waits for a message, and the one that waits for a slot.
    reader: Option<u32>,
    writer: Option<u32>,
}

/// Marks an input or output without a FIFO.
const NO_FIFO: (u32, u32) = (u32::MAX, u32::MAX);

impl<D: Domain> Machine<'_, D> {
    /// Registers a lane with the empty or full FIFO that keeps it from being [ready](Machine::ready), so that [`Machine::woken`] returns
    /// it when to poll again. Returns false if the lane is not blocked by a FIFO. A FIFO has one lane at each end.
    pub fn wait_for_fifo(&mut self, lane: usize) -> bool {
        let state = &self.lanes[lane];
        let Some((_, step)) = &state.next else { return false };
        let Some(number) = state.satisfied.get().checked_sub(step.waits.len()) else { return false };
        match number.checked_sub(step.inputs.len()) {
            None => self.fifos[state.sources[number].1 as usize].reader = Some(lane as u32),
            Some(number) => self.fifos[state.targets[number].1 as usize].writer = Some(lane as u32),
        }
        true
    }

    /// Removes and returns a lane whose FIFO has changed, the latest first.
    pub fn woken(&mut self) -> Option<u32> {
        self.woken.pop()
    }

    /// Looks up the FIFOs of a lane's next step.
    pub(super) fn find_fifos(&mut self, lane: usize) {
        let state = &mut self.lanes[lane];
        let (rank, channel) = (state.rank, state.lane.channel);
        let (mut sources, mut targets) =
            (std::mem::take(&mut state.sources), std::mem::take(&mut state.targets));
        let next = state.next.take();
        if let Some((_, step)) = &next {
            sources.resize(sources.len().max(step.inputs.len()), NO_FIFO);
            targets.resize(targets.len().max(step.outputs.len()), NO_FIFO);
            for (input, known) in step.inputs.iter().zip(&mut sources) {
                if let Input::Received { from } = *input
                    && (known.0 != from || *known == NO_FIFO)
                {
                    *known = (from, self.fifo(self.key(from, rank, channel)));
                }
            }
            for (output, known) in step.outputs.iter().zip(&mut targets) {
                if let Output::Sent { to } = *output
                    && (known.0 != to || *known == NO_FIFO)
                {
                    *known = (to, self.fifo((rank, to, channel)));
                }
            }
        }
        let state = &mut self.lanes[lane];
        (state.sources, state.targets, state.next) = (sources, targets, next);
    }

    /// Publishes the messages, freed slots and signals of a finished step.
    pub(super) fn publish(&mut self, lane: usize, step: &Step<u32>, result: Option<&D::Value>) {
        let rank = self.lanes[lane].rank;
        let stamp = self.domain.stamp(lane);
        for (number, input) in step.inputs.iter().enumerate() {
            if let Input::Received { from } = *input {
                let back = self.classes.inverse(self.classes.turn_of(from));
                let seen =
                    if back == Turn::NONE { stamp.clone() } else { self.domain.turned_stamp(&stamp, back) };
                let fifo = &mut self.fifos[self.lanes[lane].sources[number].1 as usize];
                fifo.free += 1;
                fifo.freed.push_back(seen);
                self.woken.extend(fifo.writer.take());
            }
        }
        for (number, output) in step.outputs.iter().enumerate() {
            if let (Output::Sent { .. }, Some(value)) = (output, result) {
                let fifo = &mut self.fifos[self.lanes[lane].targets[number].1 as usize];
                fifo.free -= 1;
                fifo.messages.push_back((value.clone(), stamp.clone()));
                self.woken.extend(fifo.reader.take());
            }
        }
        for &counter in &step.signals {
            let position = self.classes.position(rank);
            self.ranks[position].signalled[counter as usize].push(stamp.clone());
        }
    }

    /// The key of the FIFO from a rank to a rank, turned to the representative of the source.
    fn key(&self, source: u32, target: u32, channel: u32) -> (u32, u32, u32) {
        let back = self.classes.inverse(self.classes.turn_of(source));
        (self.classes.rank(source, back), self.classes.rank(target, back), channel)
    }

    fn fifo(&mut self, key: (u32, u32, u32)) -> u32 {
        let number = *self.fifo_numbers.entry(key).or_insert(self.fifos.len() as u32);
        if number as usize == self.fifos.len() {
            let depth = self.plan.channels[key.2 as usize].depth;
            self.fifos.push(Fifo {
                messages: VecDeque::new(),
                free: depth,
                freed: VecDeque::new(),
                reader: None,
                writer: None,
            });
        }
        number
    }
}
