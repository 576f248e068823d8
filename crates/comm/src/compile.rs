//! Compiles one rank's part of a verified plan, for one count, into flat lists: loops unrolled, chunks turned into
//! offsets and lengths, peers into indices of FIFO ends. Running it needs no lookup, allocation or arithmetic beyond
//! adding a base address. Compiled once per count and kept.

use weftlink_plan::plan::{Buffer, Input, Op, Output, Place, Remote, Wait};
use weftlink_plan::{Cut, Verified};

use crate::kernels::Store;
use crate::layout::{FifoPlace, Layout};

/// [`Communicator::load`](crate::Communicator::load) has refused it.
const NO_SWITCH: &str = "a plan with switches is not loaded";

/// From this many bytes written by a step on, stores bypass the caches. Half or twice as many hardly matters, a quarter
/// is slower, and so is never (`bench/runs/2026-11-15-thresholds-16-core-vm`).
const STREAM_BYTES_MIN: usize = 2 << 20;

/// What one rank does in one call.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) count: usize,
    pub(crate) cut: Cut,
    pub(crate) tiles: usize,
    /// All tiles but the last; their chunks have the same lengths.
    full: Tile,
    last: Tile,
}

impl Program {
    /// What is done in a tile.
    #[inline]
    pub(crate) fn tile(&self, tile: usize) -> &Tile {
        if tile + 1 == self.tiles { &self.last } else { &self.full }
    }

    /// Where a tile starts in the user's buffers, in elements.
    #[inline]
    pub(crate) fn start(&self, tile: usize) -> usize {
        if tile == 0 { 0 } else { self.cut.range(tile, 0).start }
    }
}

/// What one rank does in one tile.
#[derive(Debug, Default)]
pub(crate) struct Tile {
    pub(crate) lanes: Vec<Vec<Instruction>>,
}

/// A step.
#[derive(Debug)]
pub(crate) struct Instruction {
    /// Which of the lane's steps, in the order they run.
    pub(crate) ordinal: u32,
    pub(crate) op: Op,
    pub(crate) store: Store,
    /// Elements.
    pub(crate) length: usize,
    /// Everything the step waits for, in the order it is waited for.
    pub(crate) needs: Box<[Need]>,
    pub(crate) sources: Box<[Source]>,
    pub(crate) targets: Box<[Target]>,
    /// Own counters.
    pub(crate) signals: Box<[u32]>,
    /// Whether some target is a packet, which is made from a copy of the result.
    pub(crate) sends_packets: bool,
}

/// What a step waits for before it touches anything.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Need {
    /// A rank has announced the call.
    Entered { rank: u32 },
    /// A rank has signalled a counter so often in this tile.
    Reached { rank: u32, counter: u32, count: u32, per_tile: u32 },
    /// The n-th of the rank's receiving ends has a message.
    Message { end: u32 },
    /// The n-th of the rank's sending ends has a free slot.
    Credit { end: u32 },
}

/// Where an input is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    Memory(Address),
    /// The n-th of the rank's receiving ends, with payload in bulk memory or in the flags' lines.
    Slot(u32),
    Packet(u32),
}

/// Where an output goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    Memory(Address),
    /// The n-th of the rank's sending ends.
    Slot(u32),
    Packet(u32),
}

/// Memory of some rank: which base address, and elements from it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address {
    pub(crate) base: u32,
    pub(crate) offset: usize,
    /// Whether the start of the tile is to be added: for the user's buffers, not for scratch.
    pub(crate) tiled: bool,
}

/// The place of a rank's buffer in the table of base addresses.
pub(crate) fn base_of(rank: u32, buffer: Buffer) -> u32 {
    3 * rank
        + match buffer {
            Buffer::Input => 0,
            Buffer::Output => 1,
            Buffer::Scratch => 2,
        }
}

/// What compiling needs to know beside the count.
pub(crate) struct Compiler<'a> {
    pub(crate) plan: &'a Verified,
    pub(crate) layout: &'a Layout,
    pub(crate) rank: u32,
    /// How often each rank signals each counter in a tile.
    pub(crate) per_tile: &'a [Vec<u32>],
    /// Which chunk each step is about, by lane and ordinal.
    pub(crate) chunks: &'a [Vec<Option<u32>>],
    /// Positions of this rank's ends among the layout's FIFOs, in the order of its senders and receivers.
    pub(crate) sends: &'a [usize],
    pub(crate) receives: &'a [usize],
}

impl Compiler<'_> {
    /// The program for so many elements.
    pub(crate) fn compile(&self, count: usize) -> Program {
        let cut = self.layout.cut(self.plan, count);
        let tiles = cut.tiles();
        let full = if tiles > 1 { self.tile(cut, 0) } else { Tile::default() };
        Program { count, cut, tiles, full, last: self.tile(cut, tiles - 1) }
    }

    fn tile(&self, cut: Cut, tile: usize) -> Tile {
        let lanes = &self.plan.programs[self.rank as usize].lanes;
        let compile = |(number, lane): (usize, &weftlink_plan::plan::Lane)| {
            let steps = lane.walk().filter_map(|visit| visit.step.at(&visit.iterations));
            let step = |(ordinal, step)| {
                self.step(cut, tile, lane.channel, self.chunks[number][ordinal], ordinal, step)
            };
            steps.enumerate().map(step).collect()
        };
        Tile { lanes: lanes.iter().enumerate().map(compile).collect() }
    }

    fn step(
        &self,
        cut: Cut,
        tile: usize,
        channel: u32,
        chunk: Option<u32>,
        ordinal: usize,
        step: weftlink_plan::plan::Step<u32>,
    ) -> Instruction {
        let length = chunk.map_or(0, |chunk| cut.range(tile, chunk as usize).len());
        let address = |rank, buffer, chunk| self.address(cut, tile, rank, buffer, chunk);
        let wait = |wait: &Wait<u32>| match *wait {
            Wait::Entered { rank } => Need::Entered { rank },
            Wait::Reached { rank, counter, count } => {
                let per_tile = self.per_tile[rank as usize][counter as usize];
                Need::Reached { rank, counter, count, per_tile }
            }
        };
        let source = |input: &Input<u32>| match *input {
            Input::Local(Place { buffer, chunk }) => Source::Memory(address(self.rank, buffer, chunk)),
            Input::Peer(Remote { rank, buffer, chunk }) => Source::Memory(address(rank, buffer, chunk)),
            Input::Switch(_) => unreachable!("{NO_SWITCH}"),
            Input::Received { from } => {
                let (end, fifo) = self.end(self.receives, (from, self.rank, channel));
                if fifo.is_packet() { Source::Packet(end) } else { Source::Slot(end) }
            }
        };
        let target = |output: &Output<u32>| match *output {
            Output::Local(Place { buffer, chunk }) => Target::Memory(address(self.rank, buffer, chunk)),
            Output::Peer(Remote { rank, buffer, chunk }) => Target::Memory(address(rank, buffer, chunk)),
            Output::Multicast(_) => unreachable!("{NO_SWITCH}"),
            Output::Sent { to } => {
                let (end, fifo) = self.end(self.sends, (self.rank, to, channel));
                if fifo.is_packet() { Target::Packet(end) } else { Target::Slot(end) }
            }
        };
        let sources: Box<[_]> = step.inputs.iter().map(source).collect();
        let targets: Box<[_]> = step.outputs.iter().map(target).collect();
        let message = |source: &Source| match *source {
            Source::Memory(_) => None,
            Source::Slot(end) | Source::Packet(end) => Some(Need::Message { end }),
        };
        let credit = |target: &Target| match *target {
            Target::Memory(_) => None,
            Target::Slot(end) | Target::Packet(end) => Some(Need::Credit { end }),
        };
        let needs = step.waits.iter().map(wait);
        let needs = needs.chain(sources.iter().filter_map(message)).chain(targets.iter().filter_map(credit));
        let is_large = length * size_of::<f32>() * targets.len() >= STREAM_BYTES_MIN;
        Instruction {
            ordinal: ordinal as u32,
            op: step.op,
            store: if is_large { Store::Streaming } else { Store::Cached },
            length,
            needs: needs.collect(),
            sources,
            sends_packets: targets.iter().any(|target| matches!(target, Target::Packet(_))),
            targets,
            signals: step.signals.into(),
        }
    }

    fn address(&self, cut: Cut, tile: usize, rank: u32, buffer: Buffer, chunk: u32) -> Address {
        let base = base_of(rank, buffer);
        match buffer {
            Buffer::Scratch => {
                let offset = chunk as usize * self.layout.chunk_max.unwrap_or(0);
                Address { base, offset, tiled: false }
            }
            Buffer::Input | Buffer::Output => {
                let offset = cut.range(tile, chunk as usize).start - cut.range(tile, 0).start;
                Address { base, offset, tiled: true }
            }
        }
    }

    /// The number of this rank's end of a FIFO.
    fn end(&self, ends: &[usize], key: (u32, u32, u32)) -> (u32, &FifoPlace) {
        let is_it = |&position: &usize| {
            let FifoPlace { source, target, channel, .. } = self.layout.fifos[position];
            (source, target, channel) == key
        };
        match ends.iter().position(is_it) {
            Some(end) => (end as u32, &self.layout.fifos[ends[end]]),
            None => unreachable!("the layout holds every FIFO of the plan"),
        }
    }
}
