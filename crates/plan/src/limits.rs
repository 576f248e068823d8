//! Limits on the size of a plan and the work of its proof. Checked before anything is walked or run, so that no file can
//! exhaust time or memory.

use rustc_hash::FxHashSet;

use crate::classes::Classes;
use crate::plan::{Collective, Input, Loop, Node, Output, Plan, Step};
use crate::refusal::Fault;

// Far above what plans use, and low enough that a hostile file cannot exhaust memory.
const RANKS_MAX: u32 = 1 << 16;
const LANES_MAX: usize = 256;
const CHANNELS_MAX: usize = 1024;
/// Slots of a FIFO.
const DEPTH_MAX: u32 = 256;
/// Counters of a rank.
const COUNTERS_MAX: u32 = 1024;
/// Messages of a send-receive.
const MESSAGES_MAX: usize = 1 << 12;
/// Digits of a symmetry: enough for the bits of a rank.
const DIGITS_MAX: usize = 16;
/// Promises to all ranks, and their work, times the digits that turn: the check of a symmetry compares each of these.
pub(crate) const TURNED_MAX: u64 = 1 << 26;
/// Chunks of a buffer.
const CHUNKS_MAX: u32 = 1 << 20;
/// Nodes, waits, inputs, outputs and signals of all ranks in one tile.
const WORK_MAX: u64 = 1 << 25;
/// The same over all tiles of a proof, for the representatives, times the lanes of all ranks, whose clocks each carries: a few
/// seconds.
const CLOCK_WORK_MAX: u64 = 1 << 31;
/// Up to this much of that, the verifier proves every rank on its own and ignores the symmetry that a plan declares.
pub(crate) const EXACT_WORK_MAX: u64 = 1 << 26;
/// Lanes of all ranks: the length of a vector clock.
const LANES_TOTAL_MAX: u64 = 1 << 14;
/// Clock entries that a proof keeps for signals and entered calls: half a gigabyte.
const KEPT_CLOCKS_MAX: u64 = 1 << 27;
/// Chunks of memory of all ranks in a proof: a few hundred megabytes.
const CELLS_MAX: u64 = 1 << 21;

/// Checks everything that needs no walk, so that walking is bounded.
pub(crate) fn sizes(plan: &Plan) -> Result<(), Fault> {
    let malformed = |what: String| Err(Fault::Malformed(what));
    let limit = |what, value: u64, limit: u64| {
        if value <= limit { Ok(()) } else { Err(Fault::TooLarge { what, value, limit }) }
    };
    if plan.ranks == 0 {
        return malformed("there are no ranks".to_owned());
    }
    limit("the number of ranks", plan.ranks.into(), RANKS_MAX.into())?;
    limit("the number of channels", plan.channels.len() as u64, CHANNELS_MAX as u64)?;
    limit("the number of counters", plan.counters.into(), COUNTERS_MAX.into())?;
    for chunks in [plan.chunks.input, plan.chunks.output, plan.chunks.scratch] {
        limit("the number of chunks", chunks.into(), CHUNKS_MAX.into())?;
    }
    if plan.programs.len() != plan.ranks as usize {
        return malformed(format!("it has {} ranks, but {} programs", plan.ranks, plan.programs.len()));
    }
    let (collective, chunks) = (&plan.collective, plan.chunks);
    if let Collective::SendReceive { messages } = collective {
        limit("the number of messages", messages.len() as u64, MESSAGES_MAX as u64)?;
    }
    if let Some(symmetry) = &plan.symmetry {
        let digits = [symmetry.input.len(), symmetry.output.len(), symmetry.scratch.len()];
        let most = digits.into_iter().max().unwrap_or(0).max(symmetry.ranks.len());
        limit("the number of digits of a symmetry", most as u64, DIGITS_MAX as u64)?;
    }
    if let Some(what) = collective.misfit(plan.ranks) {
        return malformed(what);
    }
    if plan.uneven && !collective.may_be_uneven() {
        return malformed(format!("the blocks of a {collective} cannot be uneven"));
    }
    let (input, output) = collective.blocks(plan.ranks);
    let per_block = plan.chunks_per_block();
    let cut = |blocks: u32, chunks: u32| u64::from(blocks) * u64::from(per_block) == u64::from(chunks);
    let moves = input > 0 || output > 0;
    if moves && (per_block == 0) || !cut(input, chunks.input) || !cut(output, chunks.output) {
        return malformed(format!(
            "a rank of this {collective} has {input} blocks of input and {output} of output, all cut into the same number of \
             chunks; {} and {} chunks do not fit",
            chunks.input, chunks.output
        ));
    }
    let distinct: FxHashSet<_> = plan.aliasing.iter().collect();
    if distinct.len() != plan.aliasing.len() || distinct.is_empty() {
        return malformed("its aliasing must list in_place, out_of_place or both, each once".to_owned());
    }
    for (number, channel) in plan.channels.iter().enumerate() {
        if channel.depth == 0 {
            return malformed(format!("channel {number} has depth 0, so no message could be sent"));
        }
        limit("the depth of a channel", channel.depth.into(), DEPTH_MAX.into())?;
    }
    for (rank, program) in plan.programs.iter().enumerate() {
        limit("the number of lanes of a rank", program.lanes.len() as u64, LANES_MAX as u64)?;
        if program.lanes.is_empty() {
            return malformed(format!("rank {rank} has no lane"));
        }
    }
    limit("the work of one tile", plan.work(), WORK_MAX)?;
    for (number, group) in plan.groups.iter().enumerate() {
        let rising = group.members.windows(2).all(|pair| pair[0] < pair[1]);
        if !rising || group.members.last().is_none_or(|&last| last >= plan.ranks) {
            return malformed(format!("group {number} must list one or more ranks in rising order"));
        }
    }
    limit("the number of groups", plan.groups.len() as u64, RANKS_MAX.into())?;
    let members = plan.groups.iter().map(|group| group.members.len() as u64).sum();
    limit("the number of members of all groups", members, u64::from(RANKS_MAX) * 4)
}

/// Checks that a proof by these classes stays within the limits of time and memory.
pub(crate) fn limits(plan: &Plan, classes: &Classes) -> Result<(), Fault> {
    let limit = |what, value: u64, limit: u64| {
        if value <= limit { Ok(()) } else { Err(Fault::TooLarge { what, value, limit }) }
    };
    let lanes = plan.lanes_total();
    let rounds = 2 * u64::from(plan.rounds());
    let classes_count = classes.representatives().len() as u64;
    limit("the number of lanes of all ranks", lanes, LANES_TOTAL_MAX)?;
    limit("the work of a proof", plan.proof_work(classes), CLOCK_WORK_MAX)?;
    // Entering a call is a signal too, the only one without a step.
    let signals = plan.total(classes, |step| step.signals.len(), |_| 0) + classes_count;
    limit("the number of signals of a proof, times lanes", signals * rounds * lanes, KEPT_CLOCKS_MAX)?;
    let user = u64::from(plan.chunks.input) + u64::from(plan.chunks.output);
    let cells = classes_count * (rounds / 2 * user + u64::from(plan.chunks.scratch));
    limit("the number of chunks of all ranks and tiles of a proof", cells, CELLS_MAX)
}

impl Plan {
    /// The steps, waits, inputs, outputs, signals and loops of all ranks in one tile.
    pub fn work(&self) -> u64 {
        self.work_of(&Classes::trivial(self.ranks))
    }

    /// The steps of all ranks in one tile.
    pub(crate) fn chunk_steps(&self) -> u64 {
        self.total(&Classes::trivial(self.ranks), |_| 1, |_| 0)
    }

    fn work_of(&self, classes: &Classes) -> u64 {
        // A switch accesses the memory of every member.
        let members = |group: u32| self.groups.get(group as usize).map_or(0, |group| group.members.len());
        let of_input = |input: &Input| if let Input::Switch(all) = input { members(all.group) } else { 0 };
        let of_output =
            |output: &Output| if let Output::Multicast(all) = output { members(all.group) } else { 0 };
        let of_step = |step: &Step| {
            let listed = step.waits.len() + step.inputs.len() + step.outputs.len() + step.signals.len();
            let switched = step.inputs.iter().map(of_input).chain(step.outputs.iter().map(of_output));
            1 + listed + switched.sum::<usize>()
        };
        // A walk reads the whole body of a loop to find out whether any of it runs.
        self.total(classes, of_step, |inner| 1 + nodes_in(&inner.body))
    }

    /// The work of a proof by these classes, times the length of a vector clock.
    pub(crate) fn proof_work(&self, classes: &Classes) -> u64 {
        let rounds = 2 * u64::from(self.rounds());
        self.work_of(classes).saturating_mul(rounds).saturating_mul(self.lanes_total())
    }

    fn lanes_total(&self) -> u64 {
        self.programs.iter().map(|program| program.lanes.len() as u64).sum()
    }

    /// A number of each step and each loop, summed over all that the representatives run in one tile.
    fn total(
        &self,
        classes: &Classes,
        of_step: impl Fn(&Step) -> usize,
        of_loop: impl Fn(&Loop) -> usize,
    ) -> u64 {
        let ranks = classes.representatives().iter().filter_map(|&rank| self.programs.get(rank as usize));
        let lanes = ranks.flat_map(|program| &program.lanes);
        lanes.fold(0, |sum, lane| sum.saturating_add(sum_over(&lane.nodes, &of_step, &of_loop)))
    }

    /// The number of consecutive tiles that reuse every slot while its last use may still be in progress.
    pub(crate) fn rounds(&self) -> u32 {
        self.channels.iter().map(|channel| channel.depth).max().unwrap_or(1) + 1
    }
}

/// A number of each step and each loop, summed over one run of these nodes.
fn sum_over(nodes: &[Node], of_step: &dyn Fn(&Step) -> usize, of_loop: &dyn Fn(&Loop) -> usize) -> u64 {
    let node = |node: &Node| match node {
        Node::Step(step) => of_step(step) as u64,
        Node::Loop(inner) => sum_over(&inner.body, of_step, of_loop)
            .saturating_mul(inner.times.into())
            .saturating_add(of_loop(inner) as u64),
    };
    nodes.iter().fold(0, |sum, each| sum.saturating_add(node(each)))
}

/// The number of written nodes, those in loops included.
fn nodes_in(nodes: &[Node]) -> usize {
    let node = |node: &Node| match node {
        Node::Step(_) => 1,
        Node::Loop(inner) => 1 + nodes_in(&inner.body),
    };
    nodes.iter().map(node).sum()
}
