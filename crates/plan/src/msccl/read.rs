//! Converts a program to a plan: ranks, lanes and steps keep the file's numbers.

use std::collections::BTreeMap;

use super::error::{At, MscclError};
use super::pairs;
use super::program::{self, Block, Gpu, Kind, Program};
use crate::Affine;
use crate::plan::{
    Aliasing, Buffer, Channel, Chunks, Collective, Input, Lane, Loop, Node, Output, Place, Plan, Protocol,
    Step, Wait,
};
use crate::verify::agreement;

/// The slots of a FIFO between two gpus on a channel: `NCCL_STEPS`.
const SLOTS: u32 = 8;
/// The slots of a message with protocol Simple: `MSCCL_CHUNKSTEPS`. With the others it takes one.
const SLOTS_OF_SIMPLE: u32 = 4;

/// Converts a program to a plan.
pub(super) fn plan(program: &Program) -> Result<Plan, MscclError> {
    let ranks = program.gpus.len() as u32;
    let (input, output) = program.collective.blocks(ranks);
    let per_block = program.chunks / input.max(output).max(1);
    let scratch = program.gpus.iter().map(|gpu| gpu.scratch_chunks).max().unwrap_or(0);
    let (mut programs, mut counters) = (Vec::new(), 0);
    for (rank, gpu) in (0..).zip(&program.gpus) {
        let reader = GpuReader {
            rank,
            gpu,
            collective: &program.collective,
            ranks,
            per_block,
            in_place_only: program.aliasing == [Aliasing::InPlace],
            signalling: signalling(gpu),
        };
        let lanes = (0..).zip(&gpu.blocks).map(|(number, block)| reader.lane(number, block));
        let mut lanes = lanes.collect::<Result<Vec<_>, _>>()?;
        if lanes.iter().flat_map(Lane::steps).any(|step| !step.signals.is_empty()) {
            counters = counters.max(lanes.len() as u32);
        }
        if lanes.is_empty() {
            lanes.push(Lane { channel: 0, nodes: vec![] });
        }
        programs.push(crate::plan::Program { lanes });
    }
    pairs::check(program)?;
    let outline = Plan::outline(&program.name, program.collective.clone(), ranks, per_block);
    let chunks = Chunks { scratch, ..outline.chunks };
    let (aliasing, channels) = (program.aliasing.clone(), channels(program));
    let mut plan = Plan { chunks, aliasing, channels, counters, programs, ..outline };
    plan.agreement = agreement(&plan);
    Ok(plan)
}

/// The channels of a program. The runtimes send a step's chunks as one message, so that it never waits for its peer in the
/// middle; so a FIFO has at least as many slots as a step has chunks.
fn channels(program: &Program) -> Vec<Channel> {
    let depth = if program.protocol == Protocol::Simple { SLOTS / SLOTS_OF_SIMPLE } else { SLOTS };
    let mut channels = Vec::new();
    for block in program.gpus.iter().flat_map(|gpu| &gpu.blocks) {
        let number = block.channel as usize;
        if number >= channels.len() {
            channels.resize(number + 1, Channel { protocol: program.protocol, depth });
        }
        let longest = block.steps.iter().filter(|step| step.kind.sends()).map(|step| step.count).max();
        channels[number].depth = channels[number].depth.max(longest.unwrap_or(0));
    }
    channels
}

/// The steps of a gpu that signal, and the waits at the end of a tile.
struct Signalling {
    /// By tb and step: the value of the tb's counter once the step is done.
    signalled: Vec<Vec<u32>>,
    /// By tb and step: whether the step signals.
    signals: Vec<Vec<bool>>,
    /// By tb: the last steps of other tbs that use scratch which its next tile writes.
    guards: Vec<BTreeMap<u32, u32>>,
}

fn signalling(gpu: &Gpu) -> Signalling {
    let guards = guards(gpu);
    let mut signals: Vec<Vec<bool>> =
        gpu.blocks.iter().map(|block| block.steps.iter().map(|step| step.has_dependents).collect()).collect();
    for (&block, &step) in guards.iter().flatten() {
        signals[block as usize][step as usize] = true;
    }
    let total = |(block, signals): (&Block, &Vec<bool>)| {
        let mut sum = 0;
        let each = block.steps.iter().zip(signals).map(|(step, signals)| {
            sum += if *signals { step.count.max(1) } else { 0 };
            sum
        });
        each.collect()
    };
    let signalled = gpu.blocks.iter().zip(&signals).map(total).collect();
    Signalling { signalled, signals, guards }
}

/// For each tb that writes scratch: the last step of every other tb that accesses the same chunks.
fn guards(gpu: &Gpu) -> Vec<BTreeMap<u32, u32>> {
    // By chunk: the tbs that access it, each with its last step there and whether any of its steps writes.
    let mut accesses: BTreeMap<u32, BTreeMap<u32, (u32, bool)>> = BTreeMap::new();
    for (number, block) in (0..).zip(&gpu.blocks) {
        for (index, step) in (0..).zip(&block.steps) {
            let places = [(step.kind.reads(), step.source, false), (step.kind.writes(), step.target, true)];
            for (used, place, writes) in places {
                let Some(first) = place.chunk.filter(|_| used && place.buffer == Buffer::Scratch) else {
                    continue;
                };
                for chunk in first..first.saturating_add(step.count).min(gpu.scratch_chunks) {
                    let access = accesses.entry(chunk).or_default().entry(number).or_insert((index, false));
                    *access = (index, access.1 | writes);
                }
            }
        }
    }
    // Every tb may access every chunk, so this loop dominates: it indexes by writer and other tb, without a search.
    let mut guards = vec![vec![None; gpu.blocks.len()]; gpu.blocks.len()];
    for accessors in accesses.values() {
        let accessors: Vec<_> = accessors.iter().map(|(&number, &access)| (number, access)).collect();
        for &(writer, _) in accessors.iter().filter(|(_, (_, writes))| *writes) {
            let of_writer = &mut guards[writer as usize];
            for &(other, (last, _)) in accessors.iter().filter(|(other, _)| *other != writer) {
                of_writer[other as usize] = of_writer[other as usize].max(Some(last));
            }
        }
    }
    let listed = |steps: Vec<Option<u32>>| (0..).zip(steps).filter_map(|(other, step)| Some((other, step?)));
    guards.into_iter().map(|steps| listed(steps).collect()).collect()
}

/// The context of a gpu's steps.
struct GpuReader<'a> {
    rank: u32,
    gpu: &'a Gpu,
    collective: &'a Collective,
    ranks: u32,
    per_block: u32,
    in_place_only: bool,
    signalling: Signalling,
}

impl GpuReader<'_> {
    fn lane(&self, number: u32, block: &Block) -> Result<Lane, MscclError> {
        let read = (0..).zip(&block.steps).map(|(index, step)| self.node(number, block, index, step));
        let mut nodes = read.collect::<Result<Vec<_>, _>>()?;
        let guards = &self.signalling.guards[number as usize];
        if !guards.is_empty() {
            let waits = guards.iter().map(|(&block, &step)| self.signalled(block, step));
            nodes.push(Step::sync().after(waits).into());
        }
        Ok(Lane { channel: block.channel, nodes })
    }

    fn node(&self, number: u32, block: &Block, index: u32, step: &program::Step) -> Result<Node, MscclError> {
        let at = At::step(self.rank, number, index);
        let wait = step.after.map(|(other, target)| self.wait(at, other, target)).transpose()?;
        let signals = self.signalling.signals[number as usize][index as usize];
        let around = |step: Step| {
            let step = step.after(wait);
            if signals { step.signal(number) } else { step }
        };
        if step.kind == Kind::Nop || step.count == 0 {
            return Ok(around(Step::sync()).into());
        }
        let source = || self.place(at, "src", step, step.source);
        let target = || self.place(at, "dst", step, step.target);
        let peer = |peer: Option<u32>, which| peer.ok_or_else(|| no_peer(at, step.kind, which));
        let received = || Ok::<_, MscclError>(Input::received(peer(block.receive, "recv")?));
        let own = || Ok::<_, MscclError>(Input::Local(self.readable(source()?)));
        let inputs = match step.kind {
            Kind::Send | Kind::Copy => vec![own()?],
            Kind::Receive | Kind::ReceiveCopySend => vec![received()?],
            Kind::Reduce => vec![Input::Local(self.readable(target()?)), own()?],
            _ => vec![received()?, own()?],
        };
        let mut moved = Step::reduce(inputs);
        if step.kind.writes() {
            moved = moved.to(Output::Local(self.writable(target()?)));
        }
        if step.kind.sends() {
            moved = moved.to(Output::sent(peer(block.send, "send")?));
        }
        let moved = around(moved).into();
        // A loop around one step counts as one step, so the next step keeps its number.
        Ok(if step.count == 1 { moved } else { Node::Loop(Loop { times: step.count, body: vec![moved] }) })
    }

    /// A wait for a step of another tb, which must have `hasdep`.
    fn wait(&self, at: At, block: u32, step: u32) -> Result<Wait, MscclError> {
        let found = self.gpu.blocks.get(block as usize).and_then(|other| other.steps.get(step as usize));
        let Some(found) = found else {
            return Err(at.error(format!("it waits for step {step} of tb {block}, which does not exist")));
        };
        if Some(block) == at.tb {
            return Err(
                at.error(format!("it waits for step {step} of its own tb; steps run in order anyway"))
            );
        }
        if !found.has_dependents {
            let reason = match found.kind {
                Kind::Nop => "which is a nop and never signals; wait for a step that moves data",
                _ => "which does not signal because its hasdep is 0; set it to 1 there",
            };
            return Err(at.error(format!("it waits for step {step} of tb {block}, {reason}")));
        }
        Ok(self.signalled(block, step))
    }

    fn signalled(&self, block: u32, step: u32) -> Wait {
        Wait::reached(self.rank, block, self.signalling.signalled[block as usize][step as usize])
    }

    /// A step's place, checked against the gpu's buffers.
    fn place(
        &self,
        at: At,
        which: &str,
        step: &program::Step,
        place: program::Place,
    ) -> Result<(Buffer, u32, u32), MscclError> {
        let (chunks, name) = (self.gpu.chunks(place.buffer), place.buffer);
        let end = |first: u32| u64::from(first) + u64::from(step.count);
        match place.chunk {
            Some(first) if end(first) <= chunks.into() => Ok((place.buffer, first, step.count)),
            Some(first) => {
                let last = end(first) - 1;
                Err(at.error(format!(
                    "it uses {name} chunk {last}, but the gpu has {chunks}; correct {which}off"
                )))
            }
            None => Err(at.error(format!("a {} needs {which}off, which is -1", step.kind.name()))),
        }
    }

    /// The place that the plan reads for a program's place: in place, a rank without input blocks reads its output, and the
    /// other way around.
    fn readable(&self, (buffer, chunk, count): (Buffer, u32, u32)) -> Place {
        let has = match buffer {
            Buffer::Input => self.collective.gives(self.rank, self.ranks) > 0,
            Buffer::Output => self.collective.gets(self.rank, self.ranks) > 0,
            Buffer::Scratch => true,
        };
        let alias = if has { None } else { self.alias(buffer, chunk) };
        let (buffer, chunk) = alias.unwrap_or((buffer, chunk));
        Place { buffer, chunk: counted(chunk, count) }
    }

    /// The place that the plan writes for a program's place: the alias of an input in the output. An input without an alias is
    /// left to the verifier to refuse.
    fn writable(&self, (buffer, chunk, count): (Buffer, u32, u32)) -> Place {
        let is_input = buffer == Buffer::Input && self.collective.gets(self.rank, self.ranks) > 0;
        let alias = if is_input { self.alias(buffer, chunk) } else { None };
        let (buffer, chunk) = alias.unwrap_or((buffer, chunk));
        Place { buffer, chunk: counted(chunk, count) }
    }

    /// The chunk of the other buffer that is the same memory in place, if the program runs only in place.
    fn alias(&self, buffer: Buffer, chunk: u32) -> Option<(Buffer, u32)> {
        if !self.in_place_only {
            return None;
        }
        let (block, within) = (chunk / self.per_block, chunk % self.per_block);
        let (other, block) = self.collective.alias_in_place(self.rank, buffer, block)?;
        Some((other, block * self.per_block + within))
    }
}

/// The chunk in each of `count` iterations.
fn counted(first: u32, count: u32) -> Affine {
    let by = if count > 1 { vec![1] } else { vec![] };
    Affine { by, ..first.into() }
}

fn no_peer(at: At, kind: Kind, which: &str) -> MscclError {
    at.error(format!("a {} needs a peer, and the tb's {which} is -1", kind.name()))
}
