//! Vector clocks and races. Two accesses of the same memory race, unless both read or the clock of one has seen the other.
//! Plans synchronise only through single-writer FIFOs and counters, so the clocks of one run are those of every run.

use std::rc::Rc;

use rustc_hash::FxHashMap;

use crate::classes::{Classes, Turn};
use crate::interpret::{Access, Shape, cell_position};
use crate::refusal::{Accessor, Cell, Fault, Spot};
use crate::well_formed::WellFormed;

/// The clocks of all lanes, and the last accesses of all cells.
pub(super) struct Clocks<'p> {
    plan: WellFormed<'p>,
    shape: Shape,
    classes: Rc<Classes>,
    /// For each lane of a representative, what it knows of every lane of every rank.
    clocks: Vec<Vec<u32>>,
    /// The first of each rank's lanes among those of all ranks, and one past the last.
    firsts: Vec<u32>,
    /// For each lane of a representative, its place among the lanes of all ranks.
    places: Vec<u32>,
    /// By the cell's position.
    accesses: Vec<LastAccesses>,
    /// For each turn so far, the place from which each lane's clock comes.
    turned: FxHashMap<Turn, Rc<[u32]>>,
}

/// The last accesses of a cell.
#[derive(Clone, Default)]
struct LastAccesses {
    write: Option<Accessed>,
    /// Reads since that write.
    reads: Vec<Accessed>,
}

#[derive(Clone)]
struct Accessed {
    /// The lane, among those of all ranks.
    place: u32,
    clock: u32,
    by: Accessor,
}

impl<'p> Clocks<'p> {
    pub(super) fn new(plan: WellFormed<'p>, shape: Shape, classes: Rc<Classes>) -> Self {
        let mut firsts = vec![0];
        for program in &plan.programs {
            firsts.push(firsts[firsts.len() - 1] + program.lanes.len() as u32);
        }
        let places: Vec<u32> = classes
            .representatives()
            .iter()
            .flat_map(|&rank| firsts[rank as usize]..firsts[rank as usize + 1])
            .collect();
        // A lane's own clock starts at 1, so that 0 means that nothing of a lane has been seen.
        let lanes = firsts[plan.ranks as usize];
        let clock = |place: &u32| (0..lanes).map(|other| u32::from(*place == other)).collect();
        let clocks = places.iter().map(clock).collect();
        let turned = FxHashMap::default();
        Self { plan, shape, classes, clocks, firsts, places, accesses: Vec::new(), turned }
    }

    /// A lane's own clock.
    pub(super) fn now(&self, lane: usize) -> u32 {
        self.clocks[lane][self.places[lane] as usize]
    }

    /// What a lane knows of the first lane of a rank.
    pub(super) fn known_of_rank(&self, lane: usize, rank: u32) -> u32 {
        self.clocks[lane][self.firsts[rank as usize] as usize]
    }

    pub(super) fn stamp(&mut self, lane: usize) -> Rc<[u32]> {
        let stamp = self.clocks[lane].as_slice().into();
        self.clocks[lane][self.places[lane] as usize] += 1;
        stamp
    }

    pub(super) fn join(&mut self, lane: usize, stamp: &[u32]) {
        for (mine, theirs) in self.clocks[lane].iter_mut().zip(stamp) {
            *mine = (*mine).max(*theirs);
        }
    }

    pub(super) fn turned_stamp(&mut self, stamp: &[u32], turn: Turn) -> Rc<[u32]> {
        let from = self.turned.entry(turn).or_insert_with(|| {
            let back = self.classes.inverse(turn);
            let ranks = (0..self.plan.ranks).map(|rank| self.classes.rank(rank, back) as usize);
            ranks.flat_map(|from| self.firsts[from]..self.firsts[from + 1]).collect()
        });
        from.iter().map(|&place| stamp[place as usize]).collect()
    }

    /// Records an access by a step, or by the user if there is no step; returns the race with an earlier access if there is one.
    pub(super) fn access(
        &mut self,
        lane: usize,
        spot: Option<&Spot>,
        cell: Cell,
        access: Access,
    ) -> Option<(Option<Spot>, Fault)> {
        let position = cell_position(self.plan, self.shape, &self.classes, cell);
        if self.accesses.len() <= position {
            self.accesses.resize(position + 1, LastAccesses::default());
        }
        let turn = self.classes.turn_of(cell.rank);
        let last = &self.accesses[position];
        let unseen = |accessed: &&Accessed| !self.has_seen(lane, accessed, turn);
        let write = last.write.iter().find(unseen).map(|accessed| (accessed, "writing"));
        let read = || last.reads.iter().find(unseen).map(|accessed| (accessed, "reading"));
        let other = if access == Access::Write { write.or_else(read) } else { write };
        let race = other.map(|(accessed, theirs)| {
            let mine = if access == Access::Write { "written" } else { "read" };
            // Blame the step, and name the caller as the other side, whichever came second in this run.
            let user = Accessor::User(cell.rank);
            let (spot, mine, theirs, other) = match (spot, &accessed.by) {
                (None, Accessor::Step(step)) => {
                    let mine = if theirs == "writing" { "written" } else { "read" };
                    let theirs = if access == Access::Write { "writing" } else { "reading" };
                    (Some(step.clone()), mine, theirs, user)
                }
                (spot, by) => (spot.cloned(), mine, theirs, by.clone()),
            };
            (spot, Fault::Race { aliasing: self.shape.aliasing, cell, mine, theirs, other })
        });
        let by = spot.map_or(Accessor::User(cell.rank), |spot| Accessor::Step(spot.clone()));
        // Recorded as the representative of the memory's owner sees it.
        let place = self.turned_place(self.places[lane], self.classes.inverse(turn));
        let accessed = Accessed { place, clock: self.now(lane), by };
        let last = &mut self.accesses[position];
        match access {
            Access::Write => *last = LastAccesses { write: Some(accessed), reads: Vec::new() },
            Access::Read => {
                // A lane's later read supersedes its earlier ones.
                last.reads.retain(|read| read.place != place);
                last.reads.push(accessed);
            }
        }
        race
    }

    /// Whether a lane has seen an access, recorded for a representative and turned to the memory's owner.
    fn has_seen(&self, lane: usize, accessed: &Accessed, turn: Turn) -> bool {
        self.clocks[lane][self.turned_place(accessed.place, turn) as usize] >= accessed.clock
    }

    /// A lane of some rank, given by its place among all, turned.
    fn turned_place(&self, place: u32, turn: Turn) -> u32 {
        if turn == Turn::NONE {
            return place;
        }
        let rank = self.firsts.partition_point(|&first| first <= place) as u32 - 1;
        self.firsts[self.classes.rank(rank, turn) as usize] + (place - self.firsts[rank as usize])
    }
}
