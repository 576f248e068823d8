//! The memory of a run: which cell a chunk of a buffer is, and how steps read and write it.

use super::{Access, Domain, Machine, Shape, Unset};
use crate::classes::{Classes, Turn};
use crate::plan::{Aliasing, Buffer};
use crate::refusal::{Cell, Spot};
use crate::well_formed::WellFormed;

impl<D: Domain> Machine<'_, D> {
    /// Reads a chunk of some rank's memory for a step.
    pub(super) fn read(
        &mut self,
        lane: usize,
        spot: &Spot,
        owner: u32,
        buffer: Buffer,
        tile: u32,
        chunk: u32,
    ) -> Result<D::Value, Unset> {
        let cell = self.cell(owner, buffer, tile, chunk);
        if !D::KEEPS_VALUES {
            return Ok(self.domain.initial(0, cell));
        }
        self.domain.access(lane, Some(spot), cell, Access::Read);
        match &self.cells[self.position(cell)] {
            Some(value) => {
                let value = value.clone();
                Ok(self.turned(value, self.classes.turn_of(owner)))
            }
            None => Err(Unset { spot: spot.clone(), cell }),
        }
    }

    /// Writes a step's result into a chunk of some rank's memory.
    pub(super) fn write(
        &mut self,
        lane: usize,
        spot: &Spot,
        owner: u32,
        buffer: Buffer,
        chunk: u32,
        result: Option<&D::Value>,
    ) {
        if !D::KEEPS_VALUES {
            return;
        }
        let cell = self.cell(owner, buffer, self.lanes[lane].tile, chunk);
        self.domain.access(lane, Some(spot), cell, Access::Write);
        if let Some(value) = result {
            self.domain.stored(spot, cell, value);
        }
        let position = self.position(cell);
        let back = self.classes.inverse(self.classes.turn_of(owner));
        self.cells[position] = result.map(|value| self.turned(value.clone(), back));
    }

    pub(super) fn turned(&mut self, value: D::Value, turn: Turn) -> D::Value {
        if turn == Turn::NONE { value } else { self.domain.turned(&value, turn) }
    }

    /// Every chunk of the user's buffers: buffer, chunk, tile.
    pub(super) fn user_chunks(&self) -> Vec<(Buffer, u32, u32)> {
        let (chunks, tiles) = (self.plan.chunks, self.shape.tiles);
        let of = |buffer, count| (0..tiles).flat_map(move |tile| (0..count).map(move |c| (buffer, c, tile)));
        of(Buffer::Output, chunks.output).chain(of(Buffer::Input, chunks.input)).collect()
    }

    /// The cell of a chunk. In place, input and output share the larger of the two buffers.
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

/// The position of a cell, or of the representative's cell for it, among all cells of a machine of this shape.
pub(crate) fn cell_position(plan: WellFormed<'_>, shape: Shape, classes: &Classes, cell: Cell) -> usize {
    let (chunks, tiles) = (plan.chunks, shape.tiles as usize);
    let [input, output, scratch] = [chunks.input, chunks.output, chunks.scratch].map(|count| count as usize);
    let first = classes.position(cell.rank) * (tiles * (input + output) + scratch);
    let back = classes.inverse(classes.turn_of(cell.rank));
    let (tile, chunk) = (cell.tile as usize, classes.chunk(cell.buffer, cell.chunk, back) as usize);
    first
        + match cell.buffer {
            Buffer::Input => tile * input + chunk,
            Buffer::Output => tiles * input + tile * output + chunk,
            Buffer::Scratch => tiles * (input + output) + chunk,
        }
}
