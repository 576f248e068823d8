//! Hops: the length of a plan's critical path. Every stamp carries the hops behind its writer, so one run of the interpreter
//! finds the longest path.
//!
//! A hop is a message from another rank, or a wait for one. Synchronisation between lanes of a rank is not a hop, and neither
//! is waiting for a free slot: that depends on the depth of FIFOs, not on the algorithm.

use crate::interpret::{Access, Domain, Machine, Shape};
use crate::refusal::{Cell, Spot};
use crate::well_formed::WellFormed;

/// Hops on a path. Those between islands weigh more, so of two paths the longer is the one with more of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hops {
    /// Between islands.
    pub across: u32,
    /// Inside an island.
    pub inside: u32,
}

/// The hops on the longest path through one tile of a plan, given the island of each rank; nothing if the plan deadlocks.
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
    let is_complete = machine.blocked().is_empty();
    let longest = machine.into_domain().lanes.into_iter().map(|lane| lane.hops).max();
    longest.filter(|_| is_complete)
}

struct Counting<'i> {
    islands: &'i [u32],
    /// By lane.
    lanes: Vec<Stamp>,
}

/// The longest path that ends at a lane, and the lane's rank.
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
