//! Compiles one rank's part of a verified plan into a device program: flat records that the kernel in `device/run.h` interprets. Pure:
//! addresses are inputs.
//!
//! Lanes are blocks; each lane runs once for each slice of the elements. A program has the peers' addresses, this rank's FIFO ends, and
//! for each lane the steps of a tile and of the last tile.

use std::collections::{BTreeMap, BTreeSet};

use bytemuck::{Pod, bytes_of};
use weftlink_plan::collective::Promise;
use weftlink_plan::domain::chunks::{Origin, origins_of_steps};
use weftlink_plan::plan::{Buffer, Input, Lane, Op, Output, Place, Remote, Step, Wait};
use weftlink_plan::{Blocks, Shape, Verified};

use crate::arena::{Arena, FifoKey, slots_for};
use crate::contributions::contributions_of_steps;
use crate::records::{self, FIFOS_MAX, OPERANDS_MAX, RANKS_MAX, STEP_BYTES, TABLES_BYTES};

/// The most inputs and outputs of a loop that is compiled for their numbers.
const SPECIALISED_MAX: usize = 16;

/// What does not change from call to call of a plan.
#[derive(Debug)]
pub(crate) struct Compiler {
    plan: Verified,
    pub(crate) arena: Arena,
    rank: u32,
    origins: Vec<Vec<Option<Origin>>>,
    contributions: Vec<Vec<u32>>,
    /// The ranks that wait for each counter of this rank.
    waiters: Vec<BTreeSet<u32>>,
    /// How often each rank signals each counter in a tile.
    per_tile: Vec<Vec<u32>>,
    /// Whether some rank waits for this rank's entry.
    announces: bool,
}

/// How a call is spread over blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spread {
    pub(crate) slices: u32,
    /// Threads of a block.
    pub(crate) threads: u32,
    /// The most bytes of a chunk in a tile, if the plan does not limit it further.
    pub(crate) chunk_bytes: usize,
}

/// The addresses that this rank uses for the arenas of all ranks.
#[derive(Clone, Debug)]
pub(crate) struct Arenas(pub(crate) Vec<u64>);

/// A program for blocks of certain lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// Peers, FIFO ends, lanes and steps.
    pub(crate) bytes: Vec<u8>,
    /// The rest of the parameters, without what the call adds.
    pub(crate) header: records::CallHeader,
    pub(crate) loops: Loops,
}

/// The loops that the kernel of a program contains.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Loops {
    /// Inputs, outputs, and whether some of them are messages.
    pub(crate) vectors: BTreeSet<(u8, u8, bool)>,
    /// Inputs of steps with packets.
    pub(crate) packets: BTreeSet<u8>,
    /// Whether no more are added: other steps use the loops for any number of operands.
    pub(crate) is_closed: bool,
}

impl Loops {
    /// The loop for a step with these operands, added if there is none.
    fn select(
        &mut self,
        inputs: &[records::Operand],
        outputs: &[records::Operand],
        is_packets: bool,
    ) -> LoopKind {
        if inputs.is_empty() {
            return LoopKind::Any;
        }
        let has = |kind: u8| inputs.iter().chain(outputs).any(|operand| operand.kind == kind);
        let (of_inputs, of_outputs) = (inputs.len(), outputs.len());
        if has(records::PACKET) {
            let number = of_inputs as u8;
            if !self.is_closed && of_inputs <= SPECIALISED_MAX {
                self.packets.insert(number);
            }
            return if self.packets.contains(&number) {
                LoopKind::Packets(number)
            } else {
                LoopKind::ManyPackets
            };
        }
        if is_packets {
            return LoopKind::Any;
        }
        let key = (of_inputs as u8, of_outputs as u8, has(records::MESSAGE));
        if !self.is_closed && of_inputs <= SPECIALISED_MAX && of_outputs <= SPECIALISED_MAX {
            self.vectors.insert(key);
        }
        if self.vectors.contains(&key) { LoopKind::Vectors(key.0, key.1, key.2) } else { LoopKind::Any }
    }

    /// The macros that the kernel is compiled with.
    pub(crate) fn macros(&self) -> String {
        let mut text = "#define WEFT_LOOPS".to_owned();
        for (number, (inputs, outputs, slots)) in (records::LOOP_VECTORS..).zip(&self.vectors) {
            // Loads in flight: several units of a step with few inputs.
            let unroll = match inputs {
                1 => 4,
                2..=4 => 2,
                _ => 1,
            };
            text += &format!(" LOOP({number}, {inputs}, {outputs}, {unroll}, {slots})");
        }
        text += "\n#define WEFT_PACKETS";
        self.packets.iter().for_each(|inputs| text += &format!(" PACKETS({inputs})"));
        text + "\n"
    }
}

/// Why a plan cannot run a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unfit {
    /// An element does not fit into a message.
    #[error("an element is larger than a message of the plan")]
    Element,
    /// A step moves a block whose length only other ranks know.
    #[error("the plan moves blocks whose length this rank does not know")]
    Length,
    /// A step has more operands, or a rank more peers, than a device program has room for.
    #[error("the plan is too large for a device program")]
    Size,
    /// The plan uses a switch.
    #[error("the plan uses a switch that reduces or multicasts")]
    Switch,
}

/// This rank's end of a FIFO.
#[derive(Clone, Copy, Debug)]
struct End {
    key: FifoKey,
    lane: u8,
    per_tile: u32,
}

impl Compiler {
    pub(crate) fn new(plan: Verified, rank: u32, slices_max: u32) -> Compiler {
        let arena = Arena::new(&plan, slices_max);
        let own = rank as usize;
        let origins = origins_of_steps(&plan).swap_remove(own);
        let contributions = contributions_of_steps(&plan).swap_remove(own);
        let mut waiters = vec![BTreeSet::new(); plan.counters as usize];
        let mut per_tile = vec![vec![0; plan.counters as usize]; plan.ranks as usize];
        let mut announces = false;
        for (of, program) in (0..).zip(&plan.programs) {
            for step in program.lanes.iter().flat_map(steps_of) {
                for signal in &step.signals {
                    per_tile[of as usize][*signal as usize] += 1;
                }
                for wait in &step.waits {
                    match *wait {
                        Wait::Entered { rank: entered } => announces |= entered == rank,
                        Wait::Reached { rank: reached, counter, .. } if reached == rank => {
                            waiters[counter as usize].insert(of);
                            announces |= of != rank;
                        }
                        Wait::Reached { .. } => {}
                    }
                }
            }
        }
        Compiler { plan, arena, rank, origins, contributions, waiters, per_tile, announces }
    }

    pub(crate) fn has_packets(&self) -> bool {
        self.arena.fifos.values().any(|place| place.is_packets)
    }

    pub(crate) fn plan(&self) -> &Verified {
        &self.plan
    }

    /// The program for blocks of these lengths, for a kernel with these loops and those that it needs.
    pub(crate) fn compile(
        &self,
        shape: &Shape,
        spread: Spread,
        Arenas(arenas): &Arenas,
        mut loops: Loops,
    ) -> Result<Program, Unfit> {
        let Spread { slices, threads, .. } = spread;
        assert!(slices > 0 && slices <= self.arena.slices_max, "the arena has room for {slices} slices");
        // A thread moves 16 bytes at a time; of packets, 8 bytes or an element.
        let thread_bytes = if self.has_packets() { shape.element_bytes.max(8) } else { 16 };
        if !thread_bytes.is_multiple_of(shape.element_bytes) {
            return Err(Unfit::Element);
        }
        let unit = threads as usize * thread_bytes / shape.element_bytes;
        let blocks = self.blocks(shape, spread, unit)?;
        let cut = blocks.longest();
        let tiles = cut.tiles();
        let ends = self.ends()?;
        // Tiles are alike except the last, unless blocks differ in length.
        let repeats = if shape.uneven.is_some() { 0 } else { tiles - 1 };
        let lanes = &self.plan.programs[self.rank as usize].lanes;
        let mut drafts = |tiles: std::ops::Range<usize>, base: usize| {
            let lane = |(number, lane): (usize, &Lane)| {
                let tile = |tile| LaneCompiler {
                    compiler: self,
                    blocks,
                    tile,
                    base,
                    number,
                    channel: lane.channel,
                    ends: &ends,
                };
                let steps =
                    tiles.clone().map(|at| tile(at).compile(lane, &mut loops)).collect::<Result<Vec<_>, _>>();
                Ok(steps?.into_iter().flatten().collect())
            };
            lanes.iter().enumerate().map(lane).collect::<Result<Vec<Vec<Draft>>, Unfit>>()
        };
        let (first, last) = (drafts(0..repeats.min(1), 0)?, drafts(repeats..tiles, repeats)?);
        let tables = (self.plan.ranks as usize * size_of::<records::Peer>()
            + ends.len() * size_of::<records::Fifo>()
            + last.len() * size_of::<records::Lane>()) as u32;
        if tables as usize > TABLES_BYTES {
            return Err(Unfit::Size);
        }
        let mut steps = Vec::new();
        let mut place = |drafts: &[Draft]| {
            let start = steps.len();
            drafts.iter().for_each(|draft| draft.write(&mut steps, &loops));
            (tables + start as u32, (steps.len() - start) as u32)
        };
        let lanes: Vec<_> = std::iter::zip(&first, &last)
            .map(|(first, last)| {
                let ((first, first_bytes), (last, last_bytes)) = (place(first), place(last));
                records::Lane { first, first_bytes, last, last_bytes }
            })
            .collect();
        let mut bytes = Vec::new();
        for arena in arenas {
            push(&mut bytes, &records::Peer { control: *arena, scratch: arena + self.arena.scratch });
        }
        for end in ends.values() {
            push(&mut bytes, &self.fifo(end, arenas));
        }
        lanes.iter().for_each(|lane| push(&mut bytes, lane));
        bytes.extend(steps);
        let own = arenas[self.rank as usize];
        let header = records::CallHeader {
            rank: self.rank,
            ranks: self.plan.ranks,
            lanes: lanes.len() as u32,
            slices,
            fifos: ends.len() as u32,
            announces: u32::from(self.announces),
            program_bytes: bytes.len() as u32,
            tiles: tiles as u64,
            repeats: repeats as u64,
            tile_bytes: if tiles > 1 { (cut.range(1, 0).start * shape.element_bytes) as u64 } else { 0 },
            unit_elements: unit as u32,
            control: own,
            control_stride: self.arena.control_stride,
            state: own + self.arena.state,
            state_stride: self.arena.state_stride,
            ..records::CallHeader::default()
        };
        Ok(Program { bytes, header, loops })
    }

    pub(crate) fn blocks<'a>(
        &'a self,
        shape: &'a Shape,
        spread: Spread,
        unit: usize,
    ) -> Result<Blocks<'a>, Unfit> {
        // Chunks begin at multiples of 16 bytes where elements allow it.
        let granule = (16 / shape.element_bytes).max(1);
        let elements = |bytes: usize| bytes / shape.element_bytes / granule * granule;
        let limit = match self.arena.slice_bytes_max {
            // Whole units of each slice.
            Some(bytes) => {
                let units = bytes as usize / (unit * shape.element_bytes);
                Some(units * unit * spread.slices as usize / granule * granule)
            }
            None => None,
        };
        let scratch = (self.arena.scratch_stride > 0).then(|| elements(self.arena.scratch_stride as usize));
        let wanted = elements(spread.chunk_bytes).max(granule);
        let chunk_max = limit.into_iter().chain(scratch).fold(wanted, usize::min);
        if chunk_max == 0 {
            return Err(Unfit::Element);
        }
        Ok(Blocks { plan: &self.plan, rank: self.rank, shape, granule, chunk_max: Some(chunk_max) })
    }

    /// This rank's ends of FIFOs, in the order of the device program.
    fn ends(&self) -> Result<BTreeMap<FifoKey, End>, Unfit> {
        let mut ends: BTreeMap<FifoKey, End> = BTreeMap::new();
        for (number, lane) in self.plan.programs[self.rank as usize].lanes.iter().enumerate() {
            let lane_number = u8::try_from(number).map_err(|_| Unfit::Size)?;
            let mut count = |key| {
                ends.entry(key).or_insert(End { key, lane: lane_number, per_tile: 0 }).per_tile += 1;
            };
            for step in steps_of(lane) {
                for input in &step.inputs {
                    if let Input::Received { from } = *input {
                        count((from, self.rank, lane.channel));
                    }
                }
                for output in &step.outputs {
                    if let Output::Sent { to } = *output {
                        count((self.rank, to, lane.channel));
                    }
                }
            }
        }
        let fits = ends.len() <= FIFOS_MAX && self.plan.ranks as usize <= RANKS_MAX;
        if fits { Ok(ends) } else { Err(Unfit::Size) }
    }

    fn fifo(&self, &End { key, lane, per_tile }: &End, arenas: &[u64]) -> records::Fifo {
        let place = &self.arena.fifos[&key];
        let (source, target, _) = key;
        let word = self.arena.fifo_word(place.number);
        records::Fifo {
            slots: arenas[target as usize] + place.slots,
            slice_stride: place.slice_stride,
            slot_bytes: place.slot_bytes as u32,
            slot_mask: slots_for(place.depth) - 1,
            reserved: 0,
            depth: place.depth as u16,
            peer: if source == self.rank { target } else { source } as u8,
            lane,
            per_tile,
            own_word: word,
            peer_word: word,
            state_word: Arena::state_word(place.number),
        }
    }

    /// Whether a step that combines the inputs of this many ranks yields a final result.
    fn completes(&self, step: &Step<u32>, contributions: u32) -> bool {
        let is_all = |promise: &Promise| matches!(promise, Promise::Reduction { below, .. } if *below == self.plan.ranks);
        let (collective, ranks) = (&self.plan.collective, self.plan.ranks);
        let reduces = (0..ranks)
            .find_map(|rank| collective.promise(rank, ranks, 0))
            .is_some_and(|promise| is_all(&promise));
        let is_first = match step.op {
            Op::Reduce => true,
            // The only rank copies its input.
            Op::Copy => {
                ranks == 1 && matches!(step.inputs[..], [Input::Local(Place { buffer: Buffer::Input, .. })])
            }
            Op::Sync => false,
        };
        reduces && is_first && contributions == ranks
    }
}

/// A step before the numbers of its loops are known.
#[derive(Debug)]
struct Draft {
    step: records::Step,
    kind: LoopKind,
    polls: Vec<records::Poll>,
    inputs: Vec<records::Operand>,
    outputs: Vec<records::Operand>,
    posts: Vec<records::Post>,
}

#[derive(Clone, Copy, Debug)]
enum LoopKind {
    Any,
    Vectors(u8, u8, bool),
    Packets(u8),
    ManyPackets,
}

impl Draft {
    fn bytes(&self) -> usize {
        size_of::<records::Step>()
            + size_of_val(&*self.polls)
            + size_of_val(&*self.inputs)
            + size_of_val(&*self.outputs)
            + size_of_val(&*self.posts)
    }

    fn write(&self, to: &mut Vec<u8>, loops: &Loops) {
        let number = match self.kind {
            LoopKind::Any => records::LOOP_ANY,
            LoopKind::ManyPackets => records::LOOP_PACKETS,
            LoopKind::Packets(inputs) => records::LOOP_PACKETS_OF + inputs,
            LoopKind::Vectors(inputs, outputs, slots) => {
                let before = loops.vectors.range(..(inputs, outputs, slots)).count();
                records::LOOP_VECTORS + before as u8
            }
        };
        push(to, &records::Step { bytes: self.bytes() as u16, r#loop: number, ..self.step });
        self.polls.iter().for_each(|poll| push(to, poll));
        self.inputs.iter().chain(&self.outputs).for_each(|operand| push(to, operand));
        self.posts.iter().for_each(|post| push(to, post));
    }
}

struct LaneCompiler<'a> {
    compiler: &'a Compiler,
    blocks: Blocks<'a>,
    tile: usize,
    /// The first tile of its list of steps.
    base: usize,
    number: usize,
    channel: u32,
    ends: &'a BTreeMap<FifoKey, End>,
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

impl LaneCompiler<'_> {
    fn compile(&self, lane: &Lane, loops: &mut Loops) -> Result<Vec<Draft>, Unfit> {
        let mut progress = Progress::default();
        steps_of(lane)
            .enumerate()
            .map(|(ordinal, step)| self.step(ordinal, &step, &mut progress, loops))
            .collect()
    }

    fn step(
        &self,
        ordinal: usize,
        step: &Step<u32>,
        progress: &mut Progress,
        loops: &mut Loops,
    ) -> Result<Draft, Unfit> {
        let compiler = self.compiler;
        let mut polls = Vec::new();
        let mut enter = |polls: &mut Vec<records::Poll>, rank: u32| {
            if rank != compiler.rank && progress.entered.insert(rank) {
                polls.push(records::Poll { kind: records::ENTERED, rank: rank as u8, ..Default::default() });
            }
        };
        for wait in &step.waits {
            match *wait {
                Wait::Entered { rank } => enter(&mut polls, rank),
                Wait::Reached { rank, counter, count } => {
                    // The entry says which call the counter belongs to.
                    enter(&mut polls, rank);
                    polls.push(records::Poll {
                        kind: records::REACHED,
                        rank: rank as u8,
                        index: 0,
                        value: count,
                        per_tile: compiler.per_tile[rank as usize][counter as usize],
                        word: compiler.arena.counter_word(rank, counter),
                    });
                }
            }
        }
        let mut posts = Vec::new();
        let mut inputs = Vec::new();
        let mut outputs = Vec::new();
        for input in &step.inputs {
            inputs.push(match *input {
                Input::Local(Place { buffer, chunk }) => self.memory(compiler.rank, buffer, chunk)?,
                Input::Peer(Remote { rank, buffer, chunk }) => self.memory(rank, buffer, chunk)?,
                Input::Switch(_) => return Err(Unfit::Switch),
                Input::Received { from } => {
                    let (operand, poll, post) = self.message((from, compiler.rank, self.channel), progress);
                    if operand.kind == records::MESSAGE {
                        polls.push(records::Poll { kind: records::ARRIVED, ..poll });
                    }
                    let is_message = operand.kind == records::MESSAGE;
                    let kind = if is_message { records::RELEASE } else { records::RELEASE_PACKETS };
                    posts.push(records::Post { kind, ..post });
                    operand
                }
            });
        }
        for output in &step.outputs {
            outputs.push(match *output {
                Output::Local(Place { buffer, chunk }) => self.memory(compiler.rank, buffer, chunk)?,
                Output::Peer(Remote { rank, buffer, chunk }) => self.memory(rank, buffer, chunk)?,
                Output::Multicast(_) => return Err(Unfit::Switch),
                Output::Sent { to } => {
                    let (operand, poll, post) = self.message((compiler.rank, to, self.channel), progress);
                    polls.push(records::Poll { kind: records::CREDIT, ..poll });
                    if operand.kind == records::MESSAGE {
                        posts.push(records::Post { kind: records::SENT, ..post });
                    }
                    operand
                }
            });
        }
        for &counter in &step.signals {
            let signalled = progress.signals.entry(counter).or_default();
            *signalled += 1;
            for &rank in &compiler.waiters[counter as usize] {
                posts.push(records::Post {
                    kind: records::SIGNAL,
                    rank: rank as u8,
                    index: 0,
                    value: *signalled,
                    per_tile: compiler.per_tile[compiler.rank as usize][counter as usize],
                    word: compiler.arena.counter_word(compiler.rank, counter),
                });
            }
        }
        let elements = match compiler.origins[self.number][ordinal] {
            Some(origin) => self.blocks.length(self.tile, origin).ok_or(Unfit::Length)?,
            None => 0,
        };
        let op = match step.op {
            Op::Sync => records::OP_SYNC,
            Op::Copy => records::OP_COPY,
            Op::Reduce => records::OP_REDUCE,
        };
        // Where there are packets, threads move fewer bytes at a time than the vector loops.
        let is_packets = compiler.has_packets();
        let kind = loops.select(&inputs, &outputs, is_packets);
        let count = |length: usize| u8::try_from(length).map_err(|_| Unfit::Size);
        if inputs.len().max(outputs.len()) > OPERANDS_MAX {
            return Err(Unfit::Size);
        }
        let finishes = compiler.completes(step, compiler.contributions[self.number][ordinal]);
        let step = records::Step {
            bytes: 0,
            op,
            r#loop: 0,
            polls: count(polls.len())?,
            inputs: count(inputs.len())?,
            outputs: count(outputs.len())?,
            posts: count(posts.len())?,
            ordinal: ordinal as u32,
            tile: (self.tile - self.base) as u32,
            finishes: u32::from(finishes),
            enters: u32::from(polls.iter().any(|poll| poll.kind == records::ENTERED)),
            elements: elements as u64,
        };
        let draft = Draft { step, kind, polls, inputs, outputs, posts };
        if draft.bytes() > STEP_BYTES { Err(Unfit::Size) } else { Ok(draft) }
    }

    fn memory(&self, rank: u32, buffer: Buffer, chunk: u32) -> Result<records::Operand, Unfit> {
        let (number, kind, offset) = match buffer {
            Buffer::Scratch => (2, records::MEMORY, u64::from(chunk) * self.compiler.arena.scratch_stride),
            Buffer::Input | Buffer::Output => {
                let start = self.blocks.start(self.tile, rank, buffer, chunk).ok_or(Unfit::Length)?;
                let offset = (start * self.blocks.shape.element_bytes) as u64;
                (u32::from(buffer == Buffer::Output), records::MEMORY_TILED, offset)
            }
        };
        Ok(records::Operand { kind, index: (3 * rank + number) as u16, offset, ..Default::default() })
    }

    /// The next message of a FIFO: its place, and what to poll before and to post after it, without their kinds.
    fn message(
        &self,
        key: FifoKey,
        progress: &mut Progress,
    ) -> (records::Operand, records::Poll, records::Post) {
        let place = &self.compiler.arena.fifos[&key];
        let index = self.ends.range(..key).count() as u16;
        let peer = if key.0 == self.compiler.rank { key.1 } else { key.0 } as u8;
        let next = progress.messages.entry(key).or_default();
        let number = *next;
        *next += 1;
        let kind = if place.is_packets { records::PACKET } else { records::MESSAGE };
        let operand = records::Operand { kind, index, offset: u64::from(number), ..Default::default() };
        let poll = records::Poll { rank: peer, index, value: number, ..Default::default() };
        let post = records::Post { rank: peer, index, value: number, ..Default::default() };
        (operand, poll, post)
    }
}

/// The steps of a lane in the order they run, with loops resolved.
fn steps_of(lane: &Lane) -> impl Iterator<Item = Step<u32>> {
    lane.walk().filter_map(|visit| visit.step.at(&visit.iterations))
}

fn push<T: Pod>(to: &mut Vec<u8>, record: &T) {
    to.extend_from_slice(bytes_of(record));
}
