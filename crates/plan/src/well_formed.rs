//! The rules a plan can be held to without running it: indices in range, one writer for everything, sizes that can
//! be verified. What passes can be interpreted without surprises; whether it is right is for [`verify`](crate::verify).

use std::ops::Deref;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::classes::Classes;
use crate::plan::{Buffer, Collective, Input, Lane, Loop, Node, Op, Output, Plan, Step, Wait};
use crate::refusal::{Fault, Refusal, Spot};
use crate::walk::Visit;

// Far above what plans use, and low enough that a hostile file cannot exhaust memory.
const RANKS_MAX: u32 = 1 << 16;
const LANES_MAX: usize = 256;
const CHANNELS_MAX: usize = 1024;
/// Messages under way in a FIFO.
const DEPTH_MAX: u32 = 256;
/// Counters of a rank.
const COUNTERS_MAX: u32 = 1024;
/// Messages that are sent and received as one group.
const MESSAGES_MAX: usize = 1 << 12;
/// Digits of the numbers that a symmetry turns: enough for the bits of a rank.
const DIGITS_MAX: usize = 16;
/// What all ranks are promised, and what they do, times the digits that turn: a symmetry is held against each of these.
const TURNED_MAX: u64 = 1 << 26;
/// Chunks of a buffer.
const CHUNKS_MAX: u32 = 1 << 20;
/// Nodes, waits, inputs, outputs and signals that all ranks together go through in one tile.
const WORK_MAX: u64 = 1 << 25;
/// The same over all tiles of a proof, for the ranks that stand for the others, times the lanes whose clocks each of
/// them carries: some seconds.
const CLOCK_WORK_MAX: u64 = 1 << 31;
/// Up to so much of that, every rank stands for itself, whatever symmetry a plan declares.
pub(crate) const EXACT_WORK_MAX: u64 = 1 << 26;
/// Lanes of all ranks: each knows how far each of the others is.
const LANES_TOTAL_MAX: u64 = 1 << 14;
/// Clock entries that signals and entered calls leave behind in a proof: half a gigabyte.
const KEPT_CLOCKS_MAX: u64 = 1 << 27;
/// Chunks of memory of all ranks in a proof: some hundred megabytes.
const CELLS_MAX: u64 = 1 << 21;

/// A plan that keeps the rules.
#[derive(Clone, Copy, Debug)]
pub struct WellFormed<'p>(&'p Plan);

impl Deref for WellFormed<'_> {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        self.0
    }
}

impl<'p> WellFormed<'p> {
    /// Holds a plan to the rules.
    pub fn check(plan: &'p Plan) -> Result<Self, Refusal> {
        let refuse = |spot, fault| Refusal { plan: plan.name.clone(), spot, fault: Box::new(fault) };
        sizes(plan).map_err(|fault| refuse(None, fault))?;
        let per_tile: Vec<_> = (0..plan.ranks).map(|rank| WellFormed(plan).signals_per_tile(rank)).collect();
        let (collective, per_block) = (&plan.collective, plan.chunks_per_block());
        let room = |rank| {
            let (gives, gets) = (collective.gives(rank, plan.ranks), collective.gets(rank, plan.ranks));
            (gives * per_block, gets * per_block)
        };
        let rooms: Vec<_> = (0..plan.ranks).map(room).collect();
        let mut traffic = FxHashMap::default();
        for (rank, program) in (0..).zip(&plan.programs) {
            let mut writers = Writers::default();
            for (number, lane) in (0..).zip(&program.lanes) {
                for Visit { step, index, iterations } in lane.walk() {
                    let rules = Rules { plan, per_tile: &per_tile, rooms: &rooms, rank, number, lane };
                    let resolved = step.at(&iterations);
                    let spot = Spot { rank, lane: number, step: index, iterations };
                    let kept = match &resolved {
                        Some(step) => rules.step(step, &mut writers),
                        None => Err("an index is negative or too large".to_owned()),
                    };
                    kept.map_err(|what| refuse(Some(spot.clone()), Fault::Malformed(what)))?;
                    resolved.iter().for_each(|step| rules.count(step, &spot, &mut traffic));
                }
            }
        }
        let lopsided = traffic.into_iter().filter(|(_, traffic)| traffic.sent != traffic.received);
        if let Some((fifo, Traffic { sent, received, first })) = lopsided.min_by_key(|(fifo, _)| *fifo) {
            let (source, target, channel) = fifo;
            let what = format!(
                "rank {source} sends {sent} messages to rank {target} on channel {channel} in a tile, which \
                 receives {received}"
            );
            return Err(refuse(Some(first), Fault::Malformed(what)));
        }
        Ok(Self(plan))
    }

    /// The plan itself, for as long as it lives.
    pub fn plan(self) -> &'p Plan {
        self.0
    }

    /// A plan that is known to keep the rules since it was verified.
    pub(crate) fn trusted(plan: &'p Plan) -> Self {
        Self(plan)
    }

    /// How often a rank signals each of its counters in one tile.
    pub fn signals_per_tile(&self, rank: u32) -> Vec<u32> {
        let mut signals = vec![0; self.counters as usize];
        for lane in &self.programs[rank as usize].lanes {
            for visit in lane.walk() {
                for &counter in &visit.step.signals {
                    signals.get_mut(counter as usize).into_iter().for_each(|count| *count += 1);
                }
            }
        }
        signals
    }
}

/// Checks everything that needs no walk, so that walking is bounded.
fn sizes(plan: &Plan) -> Result<(), Fault> {
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
        return malformed(format!("{} ranks, but programs for {}", plan.ranks, plan.programs.len()));
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
            "a rank of this {collective} has {input} blocks of input and {output} of output, and each is cut into as many \
             chunks; {} and {} chunks are not",
            chunks.input, chunks.output
        ));
    }
    let distinct: FxHashSet<_> = plan.aliasing.iter().collect();
    if distinct.len() != plan.aliasing.len() || distinct.is_empty() {
        return malformed("it must claim to work in place, out of place or both, each once".to_owned());
    }
    for (number, channel) in plan.channels.iter().enumerate() {
        if channel.depth == 0 {
            return malformed(format!("channel {number} has depth 0, so nothing could ever be sent"));
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
            return malformed(format!("group {number} does not list some of the ranks in rising order"));
        }
    }
    limit("the number of groups", plan.groups.len() as u64, RANKS_MAX.into())?;
    let members = plan.groups.iter().map(|group| group.members.len() as u64).sum();
    limit("the number of members of all groups", members, u64::from(RANKS_MAX) * 4)
}

/// The classes by which a plan is proved: every rank on its own up to so much work, else those it declares.
pub(crate) fn classes(plan: WellFormed<'_>, exact_work_max: u64) -> Result<Classes, Refusal> {
    let refuse = |spot, fault| Refusal { plan: plan.name.clone(), spot, fault: Box::new(fault) };
    let trivial = Classes::trivial(plan.ranks);
    let classes = if plan.proof_work(&trivial) <= exact_work_max {
        trivial
    } else {
        let digits = plan.symmetry.iter().flat_map(|symmetry| &symmetry.ranks);
        let turning = digits.filter(|digit| digit.turns).count() as u64;
        let outputs = u64::from(plan.ranks) * u64::from(plan.chunks.output);
        for (what, each) in [
            ("the number of ranks times chunks of output times digits that turn", outputs),
            ("the work of one tile times digits that turn", plan.work()),
        ] {
            let (value, limit) = (each * turning, TURNED_MAX);
            if value > limit {
                return Err(refuse(None, Fault::TooLarge { what, value, limit }));
            }
        }
        Classes::check(plan.plan()).map_err(|(spot, what)| refuse(spot, Fault::Malformed(what)))?
    };
    limits(plan.plan(), &classes).map_err(|fault| refuse(None, fault))?;
    Ok(classes)
}

/// Checks that a proof by these classes takes neither for ever nor all memory.
fn limits(plan: &Plan, classes: &Classes) -> Result<(), Fault> {
    let limit = |what, value: u64, limit: u64| {
        if value <= limit { Ok(()) } else { Err(Fault::TooLarge { what, value, limit }) }
    };
    let lanes = plan.lanes_total();
    let rounds = 2 * u64::from(plan.rounds());
    let classes_count = classes.representatives().len() as u64;
    limit("the number of lanes of all ranks", lanes, LANES_TOTAL_MAX)?;
    limit("the work of a proof", plan.proof_work(classes), CLOCK_WORK_MAX)?;
    // Entering a call is a signal too, and the only one that takes no step.
    let signals = plan.total(classes, |step| step.signals.len(), |_| 0) + classes_count;
    limit("the number of signals of a proof, times lanes", signals * rounds * lanes, KEPT_CLOCKS_MAX)?;
    let user = u64::from(plan.chunks.input) + u64::from(plan.chunks.output);
    let cells = classes_count * (rounds / 2 * user + u64::from(plan.chunks.scratch));
    limit("the number of chunks of all ranks and tiles of a proof", cells, CELLS_MAX)
}

impl Plan {
    /// The steps, waits, inputs, outputs, signals and loops that all ranks together go through in one tile.
    pub fn work(&self) -> u64 {
        self.work_of(&Classes::trivial(self.ranks))
    }

    /// The steps that all ranks together take in one tile.
    pub(crate) fn chunk_steps(&self) -> u64 {
        self.total(&Classes::trivial(self.ranks), |_| 1, |_| 0)
    }

    fn work_of(&self, classes: &Classes) -> u64 {
        // A switch does for its asker what the asker would do with every member.
        let members = |group: u32| self.groups.get(group as usize).map_or(0, |group| group.members.len());
        let of_input = |input: &Input| if let Input::Switch(all) = input { members(all.group) } else { 0 };
        let of_output =
            |output: &Output| if let Output::Multicast(all) = output { members(all.group) } else { 0 };
        let of_step = |step: &Step| {
            let listed = step.waits.len() + step.inputs.len() + step.outputs.len() + step.signals.len();
            let switched = step.inputs.iter().map(of_input).chain(step.outputs.iter().map(of_output));
            1 + listed + switched.sum::<usize>()
        };
        // A walk looks at all that is written in a loop to find out whether any of it runs.
        self.total(classes, of_step, |inner| 1 + nodes_in(&inner.body))
    }

    /// The work of a proof by these classes, times the clocks that each bit of it carries.
    fn proof_work(&self, classes: &Classes) -> u64 {
        let rounds = 2 * u64::from(self.rounds());
        self.work_of(classes).saturating_mul(rounds).saturating_mul(self.lanes_total())
    }

    fn lanes_total(&self) -> u64 {
        self.programs.iter().map(|program| program.lanes.len() as u64).sum()
    }

    /// Something about each step and each loop, added up over all that the representatives go through in one tile.
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

    /// How many tiles in a row use every slot again while its last use may still be near.
    pub(crate) fn rounds(&self) -> u32 {
        self.channels.iter().map(|channel| channel.depth).max().unwrap_or(1) + 1
    }
}

/// Something about each step and each loop, added up over all that are met when these nodes run once.
fn sum_over(nodes: &[Node], of_step: &dyn Fn(&Step) -> usize, of_loop: &dyn Fn(&Loop) -> usize) -> u64 {
    let node = |node: &Node| match node {
        Node::Step(step) => of_step(step) as u64,
        Node::Loop(inner) => sum_over(&inner.body, of_step, of_loop)
            .saturating_mul(inner.times.into())
            .saturating_add(of_loop(inner) as u64),
    };
    nodes.iter().fold(0, |sum, each| sum.saturating_add(node(each)))
}

/// How many nodes are written here, those in loops included.
fn nodes_in(nodes: &[Node]) -> usize {
    let node = |node: &Node| match node {
        Node::Step(_) => 1,
        Node::Loop(inner) => 1 + nodes_in(&inner.body),
    };
    nodes.iter().map(node).sum()
}

/// Which lane of a rank writes each counter, sends to each peer and receives from each: only one may.
#[derive(Default)]
struct Writers {
    counters: FxHashMap<u32, u32>,
    sends: FxHashMap<(u32, u32), u32>,
    receives: FxHashMap<(u32, u32), u32>,
}

/// The messages of a FIFO in one tile, and the first step that sends or receives one.
struct Traffic {
    sent: u64,
    received: u64,
    first: Spot,
}

/// What is needed to judge a step of a lane.
struct Rules<'p> {
    plan: &'p Plan,
    per_tile: &'p [Vec<u32>],
    /// How many chunks of input and output each rank has.
    rooms: &'p [(u32, u32)],
    rank: u32,
    number: u32,
    lane: &'p Lane,
}

impl Rules<'_> {
    /// Counts the messages of a step, by source, target and channel.
    fn count(&self, step: &Step<u32>, spot: &Spot, traffic: &mut FxHashMap<(u32, u32, u32), Traffic>) {
        let mut add = |source, target, sent, received| {
            let new = || Traffic { sent: 0, received: 0, first: spot.clone() };
            let traffic = traffic.entry((source, target, self.lane.channel)).or_insert_with(new);
            traffic.sent += sent;
            traffic.received += received;
        };
        for input in &step.inputs {
            if let Input::Received { from } = *input {
                add(from, self.rank, 0, 1);
            }
        }
        for output in &step.outputs {
            if let Output::Sent { to } = *output {
                add(self.rank, to, 1, 0);
            }
        }
    }

    fn step(&self, step: &Step<u32>, writers: &mut Writers) -> Result<(), String> {
        match (step.op, step.inputs.len(), step.outputs.len()) {
            (Op::Sync, 0, 0) | (Op::Copy, 1, 1..) | (Op::Reduce, 2.., 1..) => {}
            (Op::Sync, ..) => return Err("a sync step has neither inputs nor outputs".to_owned()),
            (Op::Copy, 1, 0) | (Op::Reduce, 2.., 0) => return Err("its result goes nowhere".to_owned()),
            (Op::Copy, inputs, _) => return Err(format!("a copy has one input, not {inputs}")),
            (Op::Reduce, inputs, _) => {
                return Err(format!("a reduction has at least 2 inputs, not {inputs}"));
            }
        }
        // There is no operation to combine with, and blocks may differ in length.
        let combines =
            step.op == Op::Reduce || step.inputs.iter().any(|input| matches!(input, Input::Switch(_)));
        if combines && !self.plan.collective.reduces() {
            return Err(format!("a {} moves what it is given and combines nothing", self.plan.collective));
        }
        step.waits.iter().try_for_each(|wait| self.wait(wait))?;
        let mut seen = FxHashSet::default();
        for input in &step.inputs {
            match *input {
                Input::Local(place) => self.place(self.rank, place.buffer, place.chunk)?,
                Input::Peer(remote) => {
                    self.peer(remote.rank)?;
                    self.place(remote.rank, remote.buffer, remote.chunk)?;
                }
                Input::Switch(all) => {
                    let members = self.group(all.group)?;
                    members.iter().try_for_each(|&rank| self.place(rank, all.buffer, all.chunk))?;
                }
                Input::Received { from } => {
                    self.peer(from)?;
                    if !seen.insert(from) {
                        return Err(format!("it receives twice from rank {from}; use two steps"));
                    }
                    self.sole("receives from rank", from, &mut writers.receives)?;
                }
            }
        }
        let mut seen = FxHashSet::default();
        for output in &step.outputs {
            if !seen.insert(output) {
                return Err("the same output stands there twice".to_owned());
            }
            match *output {
                Output::Local(place) => self.target(self.rank, place.buffer, place.chunk)?,
                Output::Peer(remote) => {
                    self.peer(remote.rank)?;
                    self.target(remote.rank, remote.buffer, remote.chunk)?;
                }
                Output::Multicast(all) => {
                    let members = self.group(all.group)?;
                    members.iter().try_for_each(|&rank| self.target(rank, all.buffer, all.chunk))?;
                }
                Output::Sent { to } => {
                    self.peer(to)?;
                    self.sole("sends to rank", to, &mut writers.sends)?;
                }
            }
        }
        let mut seen = FxHashSet::default();
        for &counter in &step.signals {
            if counter >= self.plan.counters {
                return Err(format!("there is no counter {counter}, only {}", self.plan.counters));
            }
            if !seen.insert(counter) {
                return Err(format!("it signals counter {counter} twice; use two steps"));
            }
            let writer = *writers.counters.entry(counter).or_insert(self.number);
            if writer != self.number {
                return Err(format!("lane {writer} signals counter {counter} too; a counter has one writer"));
            }
        }
        Ok(())
    }

    fn wait(&self, wait: &Wait<u32>) -> Result<(), String> {
        let (Wait::Entered { rank } | Wait::Reached { rank, .. }) = *wait;
        if rank >= self.plan.ranks {
            return Err(format!("there is no rank {rank}, only {}", self.plan.ranks));
        }
        if let Wait::Reached { counter, count, .. } = *wait {
            let Some(&signals) = self.per_tile[rank as usize].get(counter as usize) else {
                return Err(format!("there is no counter {counter}, only {}", self.plan.counters));
            };
            if count == 0 || count > signals {
                return Err(format!(
                    "it waits until rank {rank} has signalled counter {counter} {count} times, which happens {signals} \
                     times in a tile"
                ));
            }
        }
        Ok(())
    }

    fn peer(&self, rank: u32) -> Result<(), String> {
        if rank >= self.plan.ranks {
            return Err(format!("there is no rank {rank}, only {}", self.plan.ranks));
        }
        if rank == self.rank { Err("it names its own rank as a peer".to_owned()) } else { Ok(()) }
    }

    /// The members of a group that the step's rank belongs to.
    fn group(&self, number: u32) -> Result<&[u32], String> {
        let Some(group) = self.plan.groups.get(number as usize) else {
            return Err(format!("there is no group {number}, only {}", self.plan.groups.len()));
        };
        if group.members.binary_search(&self.rank).is_err() {
            return Err(format!("its rank is no member of group {number}"));
        }
        Ok(&group.members)
    }

    fn place(&self, rank: u32, buffer: Buffer, chunk: u32) -> Result<(), String> {
        let collective = &self.plan.collective;
        let chunks = match buffer {
            Buffer::Input => self.rooms[rank as usize].0,
            Buffer::Output => self.rooms[rank as usize].1,
            Buffer::Scratch => self.plan.chunks.scratch,
        };
        if chunks == 0 && buffer == Buffer::Input {
            return Err(format!("in a {collective}, rank {rank} passes nothing in, so it has no input"));
        }
        if chunks == 0 && buffer == Buffer::Output {
            return Err(format!("in a {collective}, rank {rank} gets nothing back, so it has no output"));
        }
        if chunk < chunks {
            Ok(())
        } else {
            Err(format!("there is no {buffer} chunk {chunk}, only {chunks}"))
        }
    }

    fn target(&self, rank: u32, buffer: Buffer, chunk: u32) -> Result<(), String> {
        if buffer == Buffer::Input {
            return Err("it writes the input, which belongs to the caller".to_owned());
        }
        self.place(rank, buffer, chunk)
    }

    /// Checks that the lane has a channel, and that no other lane of the rank has the same end of the same FIFO.
    fn sole(&self, does: &str, peer: u32, lanes: &mut FxHashMap<(u32, u32), u32>) -> Result<(), String> {
        let channel = self.lane.channel;
        if channel as usize >= self.plan.channels.len() {
            return Err(format!(
                "its lane uses channel {channel}, but there are {}",
                self.plan.channels.len()
            ));
        }
        let owner = *lanes.entry((peer, channel)).or_insert(self.number);
        if owner == self.number {
            return Ok(());
        }
        Err(format!("lane {owner} {does} {peer} on channel {channel} too; a FIFO has one lane at each end"))
    }
}
