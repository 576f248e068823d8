//! Hops: how far the last result is from the first step. Every stamp carries how many hops lie behind its writer, so that a
//! plan's longest way through its ranks comes out of one run of the interpreter.
//!
//! A hop is a message from another rank, or a wait for one. Lanes of a rank learn from each other for nothing, and waiting
//! for a free slot is no hop: it depends on how deep FIFOs are, not on the algorithm.

use crate::interpret::{Access, Domain, Machine, Shape};
use crate::refusal::{Cell, Spot};
use crate::well_formed::WellFormed;

/// Hops in a row. Those between islands weigh more, so of two ways the longer is the one with more of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hops {
    /// Between islands.
    pub across: u32,
    /// Inside an island.
    pub inside: u32,
}

/// The hops on the longest way through one tile of a plan, given the island of each rank; nothing if the plan does not run
/// to its end.
///
/// # Panics
/// If a rank has no island.
pub fn hops(plan: WellFormed<'_>, islands: &[u32]) -> Option<Hops> {
    assert_eq!(islands.len(), plan.ranks as usize, "every rank has an island");
    let lanes = |(rank, program): (u32, &crate::plan::Program)| {
        std::iter::repeat_n(Stamp { rank, hops: Hops::default() }, program.lanes.len())
    };
    let lanes = (0..).zip(&plan.plan().programs).flat_map(lanes).collect();
    let shape = Shape { calls: 1, tiles: 1, aliasing: *plan.aliasing.first()? };
    let mut machine = Machine::new(plan, shape, Counting { islands, lanes });
    machine.run(|_, _, _| true).ok()?;
    let through = machine.blocked().is_empty();
    let longest = machine.into_domain().lanes.into_iter().map(|lane| lane.hops).max();
    longest.filter(|_| through)
}

struct Counting<'i> {
    islands: &'i [u32],
    /// What lies behind each lane.
    lanes: Vec<Stamp>,
}

/// What lies behind a lane of some rank.
#[derive(Clone, Copy)]
struct Stamp {
    rank: u32,
    hops: Hops,
}

impl Domain for Counting<'_> {
    type Value = ();
    type Stamp = Stamp;
    const KEEPS_VALUES: bool = false;

    fn initial(&mut self, _call: u32, _cell: Cell) {}
    fn reduce(&mut self, _spot: &Spot, _inputs: &[()]) {}
    fn returned(&mut self, _call: u32, _cell: Cell, _value: Option<&()>) {}

    fn stamp(&mut self, lane: usize) -> Stamp {
        self.lanes[lane]
    }

    fn join(&mut self, lane: usize, stamp: &Stamp) {
        let island = |rank: u32| self.islands[rank as usize];
        let (from, to) = (stamp.rank, self.lanes[lane].rank);
        let Hops { across, inside } = stamp.hops;
        let hops = match (from == to, island(from) == island(to)) {
            (true, _) => stamp.hops,
            (false, true) => Hops { across, inside: inside + 1 },
            (false, false) => Hops { across: across + 1, inside },
        };
        let behind = &mut self.lanes[lane].hops;
        *behind = hops.max(*behind);
    }

    fn credit(&mut self, _lane: usize, _stamp: &Stamp) {}
    fn access(&mut self, _lane: usize, _spot: Option<&Spot>, _cell: Cell, _access: Access) {}
    fn stored(&mut self, _spot: &Spot, _cell: Cell, _value: &()) {}
}
