//! The records of a lane's steps.

use std::collections::{BTreeMap, BTreeSet};

use bytemuck::{Pod, bytes_of};
use weftlink_plan::Blocks;
use weftlink_plan::plan::{Buffer, Grouped, Input, Lane, Op, Output, Place, Remote, Step, Wait};

use super::{Arenas, Compiler, End, Finishing, Unfit};
use crate::arena::{FifoKey, steps_of};
use crate::records::{self, OPERANDS_MAX};

/// A step with its records.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) step: records::Step,
    /// Those for entries first.
    pub(super) polls: Vec<records::Poll>,
    pub(super) inputs: Vec<records::Operand>,
    pub(super) outputs: Vec<records::Operand>,
    pub(super) posts: Vec<records::Post>,
}

impl Draft {
    fn bytes(&self) -> usize {
        size_of::<records::Step>()
            + size_of_val(&*self.polls)
            + size_of_val(&*self.inputs)
            + size_of_val(&*self.outputs)
            + size_of_val(&*self.posts)
    }

    pub(super) fn write(&self, to: &mut Vec<u8>) {
        push(to, &self.step);
        self.polls.iter().for_each(|poll| push(to, poll));
        self.inputs.iter().chain(&self.outputs).for_each(|operand| push(to, operand));
        self.posts.iter().for_each(|post| push(to, post));
    }
}

/// One lane in one tile.
pub(super) struct LaneCompiler<'a> {
    pub(super) compiler: &'a Compiler,
    pub(super) arenas: &'a Arenas,
    pub(super) blocks: Blocks<'a>,
    pub(super) tile: usize,
    /// The first tile of its list of steps.
    pub(super) base: usize,
    pub(super) number: usize,
    pub(super) channel: u32,
    pub(super) ends: &'a [End],
}

/// What the steps before have done in this tile.
#[derive(Default)]
struct Progress {
    /// Messages of each FIFO.
    messages: BTreeMap<FifoKey, u32>,
    /// Signals of each counter.
    signals: BTreeMap<u32, u32>,
    /// Ranks whose entry has arrived.
    entered: BTreeSet<u32>,
}

/// The polls, operands and posts of a step so far.
#[derive(Default)]
struct Parts {
    entries: Vec<records::Poll>,
    polls: Vec<records::Poll>,
    inputs: Vec<records::Operand>,
    outputs: Vec<records::Operand>,
    posts: Vec<records::Post>,
    releases_data: bool,
}

impl LaneCompiler<'_> {
    pub(super) fn compile(&self, lane: &Lane) -> Result<Vec<Draft>, Unfit> {
        let mut progress = Progress::default();
        steps_of(lane).enumerate().map(|(ordinal, step)| self.step(ordinal, &step, &mut progress)).collect()
    }

    fn step(&self, ordinal: usize, step: &Step<u32>, progress: &mut Progress) -> Result<Draft, Unfit> {
        let compiler = self.compiler;
        let mut parts = Parts::default();
        for wait in &step.waits {
            self.wait(wait, &mut parts, progress);
        }
        for input in &step.inputs {
            let operand = match *input {
                Input::Local(Place { buffer, chunk }) => self.memory(compiler.rank, buffer, chunk)?,
                Input::Peer(Remote { rank, buffer, chunk }) => self.memory(rank, buffer, chunk)?,
                Input::Switch(ref all) => self.switched(all)?,
                Input::Received { from } => {
                    self.message((from, compiler.rank, self.channel), &mut parts, progress)
                }
            };
            parts.inputs.push(operand);
        }
        for output in &step.outputs {
            let operand = match *output {
                Output::Local(Place { buffer, chunk }) => self.memory(compiler.rank, buffer, chunk)?,
                Output::Peer(Remote { rank, buffer, chunk }) => self.memory(rank, buffer, chunk)?,
                Output::Multicast(ref all) => self.switched(all)?,
                Output::Sent { to } => self.message((compiler.rank, to, self.channel), &mut parts, progress),
            };
            parts.outputs.push(operand);
        }
        for &counter in &step.signals {
            self.signal(counter, &mut parts, progress);
        }
        let elements = match compiler.origins[self.number][ordinal] {
            Some(origin) => self.blocks.length(self.tile, origin).ok_or(Unfit::Length)?,
            None => 0,
        };
        if parts.inputs.len().max(parts.outputs.len()) > OPERANDS_MAX {
            return Err(Unfit::Operands { operands: parts.inputs.len().max(parts.outputs.len()) });
        }
        let finishing = compiler.finishing[self.number][ordinal];
        if finishing == Finishing::Output {
            parts.outputs.sort_by_key(|output| output.kind != records::OUTPUT);
        }
        let has = |kind: u8| parts.inputs.iter().chain(&parts.outputs).any(|operand| operand.kind == kind);
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(step.op != Op::Sync && !parts.inputs.is_empty(), records::MOVES)
            | flag(has(records::PACKET), records::PACKETS)
            | flag(has(records::MESSAGE), records::MESSAGES)
            | flag(finishing == Finishing::All, records::FINISHES)
            | flag(finishing == Finishing::Output, records::FINISHES_FIRST)
            | flag(has(records::SWITCH), records::BY_SWITCH)
            | flag(!parts.releases_data, records::RELAXED);
        let Parts { mut entries, polls, inputs, outputs, posts, .. } = parts;
        let entered = entries.len();
        entries.extend(polls);
        let count = |length: usize| u8::try_from(length).map_err(|_| Unfit::Operands { operands: length });
        let record = records::Step {
            bytes: 0,
            entries: count(entered)?,
            polls: count(entries.len())?,
            inputs: count(inputs.len())?,
            outputs: count(outputs.len())?,
            posts: count(posts.len())?,
            flags,
            ordinal: ordinal as u32,
            tile: (self.tile - self.base) as u32,
            elements: elements as u64,
        };
        let mut draft = Draft { step: record, polls: entries, inputs, outputs, posts };
        draft.step.bytes =
            u16::try_from(draft.bytes()).map_err(|_| Unfit::Operands { operands: draft.posts.len() })?;
        Ok(draft)
    }

    fn wait(&self, wait: &Wait<u32>, parts: &mut Parts, progress: &mut Progress) {
        let compiler = self.compiler;
        let mut enter = |rank: u32| {
            if rank != compiler.rank && progress.entered.insert(rank) {
                let (word, kind) = (rank * records::ENTRY_WORDS, records::ENTERED);
                parts.entries.push(records::Poll { word, kind, rank: rank as u8, ..Default::default() });
            }
        };
        match *wait {
            Wait::Entered { rank } => enter(rank),
            Wait::Reached { rank, counter, count } => {
                // The entry says which call the rank is in.
                enter(rank);
                parts.polls.push(records::Poll {
                    word: compiler.arena.counter_word(rank, counter),
                    per_tile: compiler.per_tile[rank as usize][counter as usize],
                    value: count as i32,
                    kind: records::REACHED,
                    rank: rank as u8,
                    reserved: 0,
                });
            }
        }
    }

    fn signal(&self, counter: u32, parts: &mut Parts, progress: &mut Progress) {
        let compiler = self.compiler;
        let signalled = progress.signals.entry(counter).or_default();
        *signalled += 1;
        for &rank in &compiler.waiters[counter as usize] {
            parts.releases_data = true;
            parts.posts.push(records::Post {
                word: self.arenas.word(rank, compiler.arena.counter_word(compiler.rank, counter)),
                per_tile: compiler.per_tile[compiler.rank as usize][counter as usize],
                value: *signalled as i32,
            });
        }
    }

    fn memory(&self, rank: u32, buffer: Buffer, chunk: u32) -> Result<records::Operand, Unfit> {
        let arena = &self.compiler.arena;
        if buffer == Buffer::Scratch {
            let base = if arena.scratch_is_private {
                self.arenas.private
            } else {
                self.arenas.of_ranks[rank as usize]
            };
            let offset = base + arena.scratch + u64::from(chunk) * arena.scratch_stride;
            return Ok(records::Operand { kind: records::SCRATCH, offset, ..Default::default() });
        }
        let start = self.blocks.start(self.tile, rank, buffer, chunk).ok_or(Unfit::Length)?;
        let offset = (start * self.blocks.shape.element_bytes) as u64;
        let kind = match (rank == self.compiler.rank, buffer) {
            (true, Buffer::Input) => records::INPUT,
            (true, _) => records::OUTPUT,
            (false, Buffer::Input) => records::PEER_INPUT,
            (false, _) => records::PEER_OUTPUT,
        };
        Ok(records::Operand { kind, index: rank as u16, offset, ..Default::default() })
    }

    /// A chunk of all ranks, which lies at the same place on each.
    fn switched(&self, all: &Grouped<u32>) -> Result<records::Operand, Unfit> {
        let records::Operand { offset, .. } = self.memory(self.compiler.rank, all.buffer, all.chunk)?;
        let index = u16::from(all.buffer == Buffer::Output);
        Ok(records::Operand { kind: records::SWITCH, index, offset, ..Default::default() })
    }

    /// The next message of a FIFO, with what to poll before and to post after it.
    fn message(&self, key: FifoKey, parts: &mut Parts, progress: &mut Progress) -> records::Operand {
        let compiler = self.compiler;
        let place = &compiler.arena.fifos[&key];
        let sends = key.0 == compiler.rank;
        let peer = if sends { key.1 } else { key.0 };
        let index = self.ends.iter().position(|end| end.key == key).unwrap_or_default();
        let per_tile = self.ends[index].per_tile;
        let next = progress.messages.entry(key).or_default();
        let number = *next;
        *next += 1;
        let [credit, arrival] = compiler.arena.fifo_words(place);
        let (own, theirs) = if sends { (credit, arrival) } else { (arrival, credit) };
        let poll = records::Poll { word: own, per_tile, rank: peer as u8, ..Default::default() };
        let post = records::Post { word: self.arenas.word(peer, theirs), per_tile, value: number as i32 + 1 };
        if sends {
            let value = number as i32 + 1 - place.depth as i32;
            parts.polls.push(records::Poll { kind: records::CREDIT, value, ..poll });
        } else if !place.is_packets {
            parts.polls.push(records::Poll { kind: records::ARRIVED, value: number as i32 + 1, ..poll });
        }
        // Flags announce packets.
        if !sends || !place.is_packets {
            parts.posts.push(post);
        }
        // Of packets nothing but their slot is released.
        parts.releases_data |= !place.is_packets;
        let kind = if place.is_packets { records::PACKET } else { records::MESSAGE };
        records::Operand { kind, index: index as u16, number, ..Default::default() }
    }
}

pub(super) fn push<T: Pod>(to: &mut Vec<u8>, record: &T) {
    to.extend_from_slice(bytes_of(record));
}
