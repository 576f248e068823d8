//! How ranks enter and leave calls, and how lanes advance from step to step and from tile to tile.

use super::{Access, Domain, Machine, RankState};
use crate::plan::{Aliasing, Buffer};
use crate::refusal::{Cell, Spot};
use crate::walk::Visit;

impl<D: Domain> Machine<'_, D> {
    /// Finds the lane's next step: in this tile, in the next one, or in the next call of its rank.
    pub(super) fn advance(&mut self, lane: usize) {
        let state = &mut self.lanes[lane];
        loop {
            if let Some(Visit { step, index, iterations }) = state.walk.next() {
                let Some(step) = step.at(&iterations) else {
                    unreachable!("a well-formed plan has such steps only")
                };
                let spot = Spot { rank: state.rank, lane: state.number, step: index, iterations };
                state.next = Some((spot, step));
                state.satisfied.set(0);
                return self.find_fifos(lane);
            }
            state.tile += 1;
            state.ordinal = 0;
            if state.tile == self.shape.tiles {
                break;
            }
            state.walk = state.lane.walk();
        }
        let position = self.classes.position(state.rank);
        let rank = &mut self.ranks[position];
        rank.running -= 1;
        if rank.running == 0 {
            self.leave(position);
        }
    }

    /// Starts a rank's next call: its user fills the input, then its lanes begin. The user's accesses count as the first lane's.
    pub(super) fn enter(&mut self, position: usize) {
        let RankState { rank, lanes, call, .. } = &self.ranks[position];
        let (rank, lanes, call) = (*rank, lanes.clone(), *call);
        let inputs = self.plan.collective.gives(rank, self.plan.ranks) * self.per_block;
        let chunks = if D::KEEPS_VALUES { self.user_chunks() } else { Vec::new() };
        // Outputs first: where input and output are one buffer, the user's input must remain.
        for (buffer, chunk, tile) in chunks {
            let cell = self.cell(rank, buffer, tile, chunk);
            self.domain.access(lanes.start, None, cell, Access::Write);
            let home = Cell { rank, buffer, tile, chunk };
            let is_input = buffer == Buffer::Input && chunk < inputs;
            let value = is_input.then(|| self.domain.initial(call, home));
            let at = self.position(cell);
            self.cells[at] = value;
        }
        // Before the lanes' stamps are joined, so that each of them carries the entry.
        self.domain.entered(rank, lanes.start);
        self.join_lanes(lanes.clone());
        let stamp = self.domain.stamp(lanes.start);
        self.ranks[position].entered.push(stamp);
        self.ranks[position].running = lanes.len();
        for lane in lanes {
            let state = &mut self.lanes[lane];
            state.tile = 0;
            state.ordinal = 0;
            state.walk = state.lane.walk();
            self.advance(lane);
        }
    }

    /// Returns from a rank's call: its user reads the buffers and enters the next call if there is one.
    pub(super) fn leave(&mut self, position: usize) {
        let RankState { rank, lanes, call, .. } = &mut self.ranks[position];
        let (rank, lanes, done) = (*rank, lanes.clone(), *call);
        *call += 1;
        self.join_lanes(lanes.clone());
        self.domain.left(done, rank, lanes.start);
        let plan = self.plan.plan();
        let chunks = |blocks: u32| blocks * self.per_block;
        let inputs = chunks(plan.collective.gives(rank, plan.ranks));
        let outputs = chunks(plan.collective.gets(rank, plan.ranks));
        let user_chunks = if D::KEEPS_VALUES { self.user_chunks() } else { Vec::new() };
        for (buffer, chunk, tile) in user_chunks {
            let cell = self.cell(rank, buffer, tile, chunk);
            self.domain.access(lanes.start, None, cell, Access::Read);
            let is_checked = match buffer {
                Buffer::Input => chunk < inputs && self.shape.aliasing == Aliasing::OutOfPlace,
                _ => chunk < outputs,
            };
            if is_checked {
                let at = self.position(cell);
                let home = Cell { rank, buffer, tile, chunk };
                self.domain.returned(done, home, self.cells[at].as_ref());
            }
        }
        if done + 1 < self.shape.calls {
            self.enter(position);
        }
    }
}
