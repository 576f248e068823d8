//! The rules that need no run: indices in range, one writer for everything, sizes that can be verified. The interpreter can
//! run a plan that keeps them; whether it is correct is for [`verify`](crate::verify()).

use std::ops::Deref;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::limits::sizes;
use crate::plan::{Buffer, Input, Lane, Op, Output, Plan, Step, Wait};
use crate::refusal::{Fault, Refusal, Spot};
use crate::walk::Visit;

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
    /// Checks the rules.
    pub fn check(plan: &'p Plan) -> Result<Self, Refusal> {
        let refuse = |spot, fault| Refusal { plan: plan.name.clone(), spot, fault: Box::new(fault) };
        sizes(plan).map_err(|fault| refuse(None, fault))?;
        let per_tile: Vec<_> = (0..plan.ranks).map(|rank| WellFormed(plan).signals_per_tile(rank)).collect();
        let (collective, per_block) = (&plan.collective, plan.chunks_per_block());
        let sizes_of = |rank| {
            let (gives, gets) = (collective.gives(rank, plan.ranks), collective.gets(rank, plan.ranks));
            (gives * per_block, gets * per_block)
        };
        let buffers: Vec<_> = (0..plan.ranks).map(sizes_of).collect();
        let mut traffic = FxHashMap::default();
        for (rank, program) in (0..).zip(&plan.programs) {
            let mut writers = Writers::default();
            for (number, lane) in (0..).zip(&program.lanes) {
                for Visit { step, index, iterations } in lane.walk() {
                    let rules = Rules { plan, per_tile: &per_tile, buffers: &buffers, rank, number, lane };
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
        let unequal = traffic.into_iter().filter(|(_, traffic)| traffic.sent != traffic.received);
        if let Some((fifo, Traffic { sent, received, first })) = unequal.min_by_key(|(fifo, _)| *fifo) {
            let (source, target, channel) = fifo;
            let what = format!(
                "in a tile, rank {source} sends {sent} messages to rank {target} on channel {channel}, and rank {target} \
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

    /// A plan that keeps the rules by construction, or because it was verified.
    pub(crate) fn trusted(plan: &'p Plan) -> Self {
        Self(plan)
    }

    /// The number of signals of each of a rank's counters in one tile.
    pub fn signals_per_tile(&self, rank: u32) -> Vec<u32> {
        let mut signals = vec![0; self.counters as usize];
        if signals.is_empty() {
            return signals;
        }
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

/// The lane of a rank that writes each counter, sends to each peer and receives from each. Each has one lane.
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

/// The context of a step.
struct Rules<'p> {
    plan: &'p Plan,
    per_tile: &'p [Vec<u32>],
    /// The chunks of input and output of each rank.
    buffers: &'p [(u32, u32)],
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
            (Op::Copy, 1, 0) | (Op::Reduce, 2.., 0) => return Err("it has no output".to_owned()),
            (Op::Copy, inputs, _) => return Err(format!("a copy has one input, not {inputs}")),
            (Op::Reduce, inputs, _) => {
                return Err(format!("a reduction has at least 2 inputs, not {inputs}"));
            }
        }
        // The call has no operation to combine with, and blocks may differ in length.
        let combines =
            step.op == Op::Reduce || step.inputs.iter().any(|input| matches!(input, Input::Switch(_)));
        if combines && !self.plan.collective.reduces() {
            return Err(format!("it combines inputs, but a {} only moves data", self.plan.collective));
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
                    self.claim_fifo("receives from rank", from, &mut writers.receives)?;
                }
            }
        }
        let mut seen = FxHashSet::default();
        for output in &step.outputs {
            if !seen.insert(output) {
                return Err("it lists the same output twice".to_owned());
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
                    self.claim_fifo("sends to rank", to, &mut writers.sends)?;
                }
            }
        }
        let mut seen = FxHashSet::default();
        for &counter in &step.signals {
            if counter >= self.plan.counters {
                return Err(format!("it signals counter {counter}, but there are {}", self.plan.counters));
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
            return Err(format!("it waits for rank {rank}, but there are {} ranks", self.plan.ranks));
        }
        if let Wait::Reached { counter, count, .. } = *wait {
            let Some(&signals) = self.per_tile[rank as usize].get(counter as usize) else {
                return Err(format!("it waits for counter {counter}, but there are {}", self.plan.counters));
            };
            if count == 0 || count > signals {
                return Err(format!(
                    "it waits until rank {rank} has signalled counter {counter} {count} times, but rank {rank} signals it \
                     {signals} times in a tile"
                ));
            }
        }
        Ok(())
    }

    fn peer(&self, rank: u32) -> Result<(), String> {
        if rank >= self.plan.ranks {
            return Err(format!("its peer is rank {rank}, but there are {} ranks", self.plan.ranks));
        }
        if rank == self.rank { Err("it names its own rank as a peer".to_owned()) } else { Ok(()) }
    }

    /// The members of a group that the step's rank belongs to.
    fn group(&self, number: u32) -> Result<&[u32], String> {
        let Some(group) = self.plan.groups.get(number as usize) else {
            return Err(format!("it uses group {number}, but there are {}", self.plan.groups.len()));
        };
        if group.members.binary_search(&self.rank).is_err() {
            return Err(format!("its rank is not a member of group {number}"));
        }
        Ok(&group.members)
    }

    fn place(&self, rank: u32, buffer: Buffer, chunk: u32) -> Result<(), String> {
        let collective = &self.plan.collective;
        let chunks = match buffer {
            Buffer::Input => self.buffers[rank as usize].0,
            Buffer::Output => self.buffers[rank as usize].1,
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
            Err(format!("it uses {buffer} chunk {chunk} of rank {rank}, which has {chunks}"))
        }
    }

    fn target(&self, rank: u32, buffer: Buffer, chunk: u32) -> Result<(), String> {
        if buffer == Buffer::Input {
            return Err("it writes the input, which belongs to the caller".to_owned());
        }
        self.place(rank, buffer, chunk)
    }

    /// Checks that the lane's channel exists, and that no other lane of the rank has the same end of the same FIFO.
    fn claim_fifo(
        &self,
        does: &str,
        peer: u32,
        lanes: &mut FxHashMap<(u32, u32), u32>,
    ) -> Result<(), String> {
        let channel = self.lane.channel;
        if channel as usize >= self.plan.channels.len() {
            return Err(format!(
                "its lane uses channel {channel}, but the plan has {}",
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
