//! What the results of steps are: how many ranks' inputs each combines, and which of them are final.
//!
//! The step that combines the inputs of all ranks finishes the result (divides an average, say); from then on it is only copied. In a scan,
//! each rank has a result of its own, and others continue with the value before it is finished: the step that stores it last finishes
//! what it stores there, and nothing else.

use std::collections::{HashMap, HashSet};

use weftlink_plan::interpret::{Access, Domain, Machine, Shape};
use weftlink_plan::plan::{Buffer, Input, Output, Place, Remote, Step};
use weftlink_plan::{Aliasing, Cell, Collective, Spot, Verified};

use crate::arena::steps_of;

/// Rank, lane and the order of a step in a tile.
type StepNumber = (u32, u32, u32);

/// The results of a plan's steps.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// The ranks that each step's result combines, by rank, lane and the order of steps in a tile; 0 for steps that only synchronise.
    pub(crate) contributions: Vec<Vec<Vec<u32>>>,
    /// The steps of a scan that store their rank's final result.
    pub(crate) finals: HashSet<StepNumber>,
    /// Whether ranks store their own results of a scan, and no step reads one of them.
    pub(crate) can_finish: bool,
    /// Whether steps that read an input, and only these, read what the user has stored there.
    pub(crate) can_scale: bool,
}

impl Results {
    pub(crate) fn of(plan: &Verified) -> Results {
        let lanes = plan.programs.iter().map(|program| vec![Vec::new(); program.lanes.len()]);
        let contributions = lanes.collect();
        let mut results = Results { contributions, can_finish: true, can_scale: true, ..Results::default() };
        let steps: Vec<Vec<Vec<Step<u32>>>> = plan
            .programs
            .iter()
            .map(|program| program.lanes.iter().map(|lane| steps_of(lane).collect()).collect())
            .collect();
        for (number, &aliasing) in plan.aliasing.iter().enumerate() {
            results.run(plan, &steps, aliasing, number == 0);
        }
        results
    }

    fn run(&mut self, plan: &Verified, steps: &[Vec<Vec<Step<u32>>>], aliasing: Aliasing, counts: bool) {
        let step_of =
            |&(rank, lane, ordinal): &StepNumber| &steps[rank as usize][lane as usize][ordinal as usize];
        // The last writer of each cell, and the writers of results that a step has read from memory.
        let mut writers: HashMap<Cell, StepNumber> = HashMap::new();
        let mut read: HashSet<StepNumber> = HashSet::new();
        let shape = Shape { calls: 1, tiles: 1, aliasing };
        let domain = Contributions { accesses: Vec::new() };
        let ran = Machine::new(plan.well_formed(), shape, domain).run(|domain, event, ranks| {
            let number = (event.rank, event.lane, event.ordinal);
            if counts {
                self.contributions[event.rank as usize][event.lane as usize].push(ranks.unwrap_or(0));
            }
            let in_memory = step_of(&number).inputs.iter().filter_map(buffer_of);
            let (reads, writes): (Vec<_>, Vec<_>) =
                domain.accesses.drain(..).partition(|(_, access)| *access == Access::Read);
            // A switch adds what is in memory.
            self.can_scale &= !step_of(&number).inputs.iter().any(|input| matches!(input, Input::Switch(_)));
            for ((cell, _), buffer) in std::iter::zip(reads, in_memory) {
                let writer = writers.get(&cell);
                self.can_scale &= (buffer == Buffer::Input) == writer.is_none();
                read.extend(writer);
            }
            writers.extend(writes.into_iter().map(|(cell, _)| (cell, number)));
            true
        });
        assert!(ran.is_ok(), "a verified plan runs to its end");
        if !matches!(plan.collective, Collective::Scan | Collective::ExclusiveScan) {
            return;
        }
        for (cell, writer) in writers.iter().filter(|(cell, _)| cell.buffer == Buffer::Output) {
            let is_output =
                |output: &&Output<u32>| matches!(output, Output::Local(Place { buffer: Buffer::Output, .. }));
            let stores = step_of(writer).outputs.iter().filter(is_output).count();
            self.can_finish &= writer.0 == cell.rank && stores == 1 && !read.contains(writer);
            self.finals.insert(*writer);
        }
    }
}

/// The buffer of one rank that an input is in. Steps with a switch have no other input.
fn buffer_of(input: &Input<u32>) -> Option<Buffer> {
    match *input {
        Input::Local(Place { buffer, .. }) | Input::Peer(Remote { buffer, .. }) => Some(buffer),
        Input::Received { .. } | Input::Switch(_) => None,
    }
}

/// Values are the number of ranks that they combine.
struct Contributions {
    /// Of the current step. In place, input and output are one cell.
    accesses: Vec<(Cell, Access)>,
}

impl Domain for Contributions {
    type Value = u32;
    type Stamp = ();

    fn initial(&mut self, _call: u32, _cell: Cell) -> u32 {
        1
    }

    fn reduce(&mut self, _spot: &Spot, inputs: &[u32]) -> u32 {
        inputs.iter().sum()
    }

    fn returned(&mut self, _call: u32, _cell: Cell, _value: Option<&u32>) {}
    fn stamp(&mut self, _lane: usize) {}
    fn join(&mut self, _lane: usize, _stamp: &()) {}

    fn access(&mut self, _lane: usize, spot: Option<&Spot>, cell: Cell, access: Access) {
        // Others are the user's.
        if spot.is_some() {
            self.accesses.push((cell, access));
        }
    }

    fn stored(&mut self, _spot: &Spot, _cell: Cell, _value: &u32) {}
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use weftlink_plan::plan::{Node, Op};
    use weftlink_plan::{Algorithm, verify};

    use super::*;

    /// A scan by chain of 3 ranks, whose last rank also copies a chunk to scratch at the end.
    fn results(read_again: Option<Buffer>) -> Results {
        let mut plan = Algorithm::Chain.flat(&Collective::Scan, 3, 1).unwrap();
        if let Some(buffer) = read_again {
            let place = |buffer| Place { buffer, chunk: 0.into() };
            let (input, output) = (Input::Local(place(buffer)), Output::Local(place(Buffer::Scratch)));
            let (waits, signals) = (Vec::new(), Vec::new());
            plan.chunks.scratch = 1;
            plan.programs[2].lanes[0].nodes.push(Node::Step(Step {
                waits,
                inputs: vec![input],
                op: Op::Copy,
                outputs: vec![output],
                signals,
            }));
        }
        Results::of(&verify(plan).unwrap())
    }

    #[test]
    fn each_rank_of_a_scan_stores_its_own_result() {
        let chain = results(None);
        assert!(chain.can_finish && chain.can_scale);
        let mut ranks: Vec<_> = chain.finals.iter().map(|(rank, ..)| *rank).collect();
        ranks.sort_unstable();
        assert_eq!(ranks, [0, 1, 2]);
        for &(rank, lane, ordinal) in &chain.finals {
            assert_eq!(chain.contributions[rank as usize][lane as usize][ordinal as usize], rank + 1);
        }
    }

    #[test]
    fn steps_that_read_changed_buffers_are_noticed() {
        let output = results(Some(Buffer::Output));
        assert!(!output.can_finish && output.can_scale);
        // In place, the result is there.
        let input = results(Some(Buffer::Input));
        assert!(!input.can_finish && !input.can_scale);
    }
}
