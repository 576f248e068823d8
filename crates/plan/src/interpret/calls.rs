//! The user's side of a run: how calls are entered and left, how lanes go from tile to tile, and which memory a chunk is.

use std::ops::Range;

use super::{Access, Domain, Machine, RankState, Shape};
use crate::classes::Classes;
use crate::plan::{Aliasing, Buffer};
use crate::refusal::{Cell, Spot};
use crate::walk::Visit;
use crate::well_formed::WellFormed;

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
                state.there.set(0);
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

    /// Starts a rank's next call: its user, whose acts count as the first lane's, fills the input, and its lanes begin.
    pub(super) fn enter(&mut self, position: usize) {
        let RankState { rank, lanes, call, .. } = &self.ranks[position];
        let (rank, lanes, call) = (*rank, lanes.clone(), *call);
        let given = self.plan.collective.gives(rank, self.plan.ranks) * self.per_block;
        let chunks = if D::REMEMBERS { self.user_chunks() } else { Vec::new() };
        // Outputs first: where both are one buffer, the input is what the user writes there.
        for (buffer, chunk, tile) in chunks {
            let cell = self.cell(rank, buffer, tile, chunk);
            self.domain.touch(lanes.start, None, cell, Access::Write);
            let home = Cell { rank, buffer, tile, chunk };
            let is_given = buffer == Buffer::Input && chunk < given;
            let value = is_given.then(|| self.domain.fresh(call, home));
            let at = self.position(cell);
            self.cells[at] = value;
        }
        // Before the lanes begin, so that each of them knows of it and can tell others.
        self.domain.entered(rank, lanes.start);
        self.join(lanes.clone());
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

    /// Returns from a rank's call: its user looks at the buffers, and enters the next call if there is one.
    pub(super) fn leave(&mut self, position: usize) {
        let RankState { rank, lanes, call, .. } = &mut self.ranks[position];
        let (rank, lanes, done) = (*rank, lanes.clone(), *call);
        *call += 1;
        self.join(lanes.clone());
        self.domain.left(done, rank, lanes.start);
        let plan = self.plan.plan();
        let chunks = |blocks: u32| blocks * self.per_block;
        let given = chunks(plan.collective.gives(rank, plan.ranks));
        let got = chunks(plan.collective.gets(rank, plan.ranks));
        let user_chunks = if D::REMEMBERS { self.user_chunks() } else { Vec::new() };
        for (buffer, chunk, tile) in user_chunks {
            let cell = self.cell(rank, buffer, tile, chunk);
            self.domain.touch(lanes.start, None, cell, Access::Read);
            let looks = match buffer {
                Buffer::Input => chunk < given && self.shape.aliasing == Aliasing::OutOfPlace,
                _ => chunk < got,
            };
            if looks {
                let at = self.position(cell);
                let home = Cell { rank, buffer, tile, chunk };
                self.domain.returned(done, home, self.cells[at].as_ref());
            }
        }
        if done + 1 < self.shape.calls {
            self.enter(position);
        }
    }

    /// Lets lanes of a rank learn each other's past.
    pub(super) fn join(&mut self, lanes: Range<usize>) {
        let stamps: Vec<_> = lanes.clone().map(|lane| self.domain.stamp(lane)).collect();
        for lane in lanes {
            stamps.iter().for_each(|stamp| self.domain.meet(lane, stamp));
        }
    }

    /// Every chunk of the user's buffers: buffer, chunk, tile.
    fn user_chunks(&self) -> Vec<(Buffer, u32, u32)> {
        let (chunks, tiles) = (self.plan.chunks, self.shape.tiles);
        let of = |buffer, count| (0..tiles).flat_map(move |tile| (0..count).map(move |c| (buffer, c, tile)));
        of(Buffer::Output, chunks.output).chain(of(Buffer::Input, chunks.input)).collect()
    }

    /// The memory behind a chunk: in place, input and output lie in the larger of the two.
    pub(super) fn cell(&self, rank: u32, buffer: Buffer, tile: u32, chunk: u32) -> Cell {
        if buffer == Buffer::Scratch {
            return Cell { rank, buffer, tile: 0, chunk };
        }
        if self.shape.aliasing == Aliasing::OutOfPlace {
            return Cell { rank, buffer, tile, chunk };
        }
        let per_block = self.per_block;
        let (buffer, block) = self.plan.collective.in_place(rank, self.plan.ranks, buffer, chunk / per_block);
        Cell { rank, buffer, tile, chunk: block * per_block + chunk % per_block }
    }

    pub(super) fn position(&self, cell: Cell) -> usize {
        cell_position(self.plan, self.shape, &self.classes, cell)
    }
}

/// Where a cell, or the one that stands for it, stands among all cells of a machine of this shape.
pub(crate) fn cell_position(plan: WellFormed<'_>, shape: Shape, classes: &Classes, cell: Cell) -> usize {
    let (chunks, tiles) = (plan.chunks, shape.tiles as usize);
    let [input, output, scratch] = [chunks.input, chunks.output, chunks.scratch].map(|count| count as usize);
    let first = classes.position(cell.rank) * (tiles * (input + output) + scratch);
    let back = classes.back(classes.turn_of(cell.rank));
    let (tile, chunk) = (cell.tile as usize, classes.chunk(cell.buffer, cell.chunk, back) as usize);
    first
        + match cell.buffer {
            Buffer::Input => tile * input + chunk,
            Buffer::Output => tiles * input + tile * output + chunk,
            Buffer::Scratch => tiles * (input + output) + chunk,
        }
}
