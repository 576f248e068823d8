//! Compiles one rank's part of a verified plan into a device program: flat records that the kernel in `device/run.h` runs. Pure:
//! addresses are inputs.
//!
//! Lanes are blocks; each lane runs once for each slice of the elements. A program has the addresses of all ranks' control memory, this
//! rank's FIFO ends, and for each lane the steps of a tile and of the last tile. Kernels know the order of steps ([`Sequences`]) where it
//! does not depend on lengths.

mod direct;
mod sequences;
mod steps;
mod switch;

use std::collections::BTreeSet;

use weftlink_plan::collective::Promise;
use weftlink_plan::domain::chunks::{Origin, origins_of_steps};
use weftlink_plan::plan::{Buffer, Input, Lane, Op, Output, Place, Step, Wait};
use weftlink_plan::{Aliasing, Blocks, Collective, DataType, Reduction, Shape, Verified};

use crate::arena::{Arena, FifoKey, slots_for, steps_of};
use crate::contributions::Results;
use crate::records::{self, CALL_BYTES, RANKS_MAX, SHARED_BYTES};
use direct::Direct;
pub(crate) use sequences::Sequences;
use steps::{Draft, LaneCompiler, push};
pub(crate) use switch::{SwitchUse, VECTOR_BYTES, can_sum};

/// What does not change from call to call of a plan.
#[derive(Debug)]
pub(crate) struct Compiler {
    plan: Verified,
    pub(crate) arena: Arena,
    rank: u32,
    origins: Vec<Vec<Option<Origin>>>,
    /// By lane and the order of steps.
    finishing: Vec<Vec<Finishing>>,
    can_finish: bool,
    can_scale: bool,
    /// The ranks that wait for each counter of this rank.
    waiters: Vec<BTreeSet<u32>>,
    /// How often each rank signals each counter in a tile.
    per_tile: Vec<Vec<u32>>,
    /// Whether some rank waits for this rank's entry.
    announces: bool,
    /// Whether ranks access the buffers of others, and not through a switch.
    pub(crate) accesses_buffers: bool,
    pub(crate) switch: Option<SwitchUse>,
}

/// The outputs of a step that get a final result of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finishing {
    None,
    All,
    /// Only this rank's output buffer.
    Output,
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

/// The addresses that this rank uses: of the arenas of all ranks, and of its private memory.
#[derive(Clone, Debug)]
pub(crate) struct Arenas {
    pub(crate) of_ranks: Vec<u64>,
    pub(crate) private: u64,
}

impl Arenas {
    /// The address of a word of a rank's control memory, for slice 0.
    fn word(&self, rank: u32, word: u32) -> u64 {
        self.of_ranks[rank as usize] + 8 * u64::from(word)
    }
}

/// A program for blocks of certain lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// Control memory of all ranks, FIFO ends, lanes and steps.
    pub(crate) bytes: Vec<u8>,
    /// The rest of the parameters, without what the call adds.
    pub(crate) header: records::CallHeader,
    pub(crate) sequences: Sequences,
    /// Whether the program fits into the parameters of a kernel.
    pub(crate) is_in_parameters: bool,
    /// Whether it fits into the shared memory of a block.
    pub(crate) is_in_shared: bool,
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
    /// There are more ranks than a device program can name.
    #[error("the plan has {ranks} ranks, and a device program has at most {RANKS_MAX}")]
    Ranks {
        /// The ranks of the plan.
        ranks: u32,
    },
    /// A step has more operands than a record can count.
    #[error("a step of the plan has {operands} operands, which is too many for a device program")]
    Operands {
        /// The operands of the step.
        operands: usize,
    },
    /// The plan is not made for the operation.
    #[error("the plan reads buffers that {reduction} changes; choose another algorithm")]
    Operation {
        /// The operation.
        reduction: Reduction,
    },
    /// The plan uses a switch as GPUs cannot.
    #[error(
        "GPUs access the buffers of all ranks through a switch, in steps with one input and one output; the plan uses a switch for other \
         memory or for some of the ranks, or sends messages"
    )]
    Switch,
    /// A switch accesses whole vectors.
    #[error("blocks have {bytes} bytes, and a switch accesses multiples of {VECTOR_BYTES}")]
    SwitchLength {
        /// The bytes of a block.
        bytes: usize,
    },
    /// A switch adds few types.
    #[error("a switch adds f32, f16 and bf16, for sums and averages; choose another algorithm for {reduction} of {}", data_type.name())]
    SwitchSum {
        /// The type of elements.
        data_type: DataType,
        /// The operation.
        reduction: Reduction,
    },
}

impl Unfit {
    /// Whether other ranks may be able to run their parts. If not, all ranks refuse the call.
    pub(crate) fn is_of_this_rank(&self) -> bool {
        match self {
            Unfit::Length | Unfit::Operands { .. } => true,
            Unfit::Element
            | Unfit::Ranks { .. }
            | Unfit::Operation { .. }
            | Unfit::Switch
            | Unfit::SwitchLength { .. }
            | Unfit::SwitchSum { .. } => false,
        }
    }
}

/// This rank's end of a FIFO.
#[derive(Clone, Copy, Debug)]
struct End {
    key: FifoKey,
    /// Messages in a tile.
    per_tile: u32,
}

impl Compiler {
    pub(crate) fn new(plan: Verified, rank: u32, slices_max: u32) -> Compiler {
        let arena = Arena::new(&plan, slices_max);
        let own = rank as usize;
        let origins = origins_of_steps(&plan).swap_remove(own);
        let results = Results::of(&plan);
        let lanes = plan.programs[own].lanes.iter().enumerate();
        let finishing = lanes
            .map(|(number, lane)| {
                let steps = steps_of(lane).enumerate();
                steps
                    .map(|(ordinal, step)| finishing_of(&plan, &results, [own, number, ordinal], &step))
                    .collect()
            })
            .collect();
        let (can_finish, can_scale) = (results.can_finish, results.can_scale);
        let switch = SwitchUse::of(&plan);
        let accesses_buffers = plan.needs_windows() && switch.is_none();
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
        Compiler {
            plan,
            arena,
            rank,
            origins,
            finishing,
            can_finish,
            can_scale,
            waiters,
            per_tile,
            announces,
            accesses_buffers,
            switch,
        }
    }

    pub(crate) fn has_packets(&self) -> bool {
        self.arena.fifos.values().any(|place| place.is_packets)
    }

    pub(crate) fn plan(&self) -> &Verified {
        &self.plan
    }

    /// The program for blocks of these lengths.
    pub(crate) fn compile(&self, shape: &Shape, spread: Spread, arenas: &Arenas) -> Result<Program, Unfit> {
        let Spread { slices, threads, .. } = spread;
        let ranks = self.plan.ranks;
        assert!(slices > 0 && slices <= self.arena.slices_max, "the arena has room for {slices} slices");
        if ranks as usize > RANKS_MAX {
            return Err(Unfit::Ranks { ranks });
        }
        self.switch.map_or(Ok(()), |switch| switch.check(shape))?;
        // A thread moves 16 bytes at a time; of packets, 8 bytes or an element.
        let thread_bytes = if self.has_packets() { shape.element_bytes.max(8) } else { 16 };
        if !thread_bytes.is_multiple_of(shape.element_bytes) {
            return Err(Unfit::Element);
        }
        let unit = threads as usize * thread_bytes / shape.element_bytes;
        let blocks = self.blocks(shape, spread, unit)?;
        let cut = blocks.longest();
        let tiles = cut.tiles();
        let ends = self.ends();
        // Tiles are alike except the last, unless blocks differ in length.
        let is_uneven = shape.uneven.is_some();
        let repeats = if is_uneven { 0 } else { tiles - 1 };
        let lanes = &self.plan.programs[self.rank as usize].lanes;
        let drafts = |tiles: std::ops::Range<usize>, base: usize| {
            let lane = |(number, lane): (usize, &Lane)| {
                let (compiler, channel, ends) = (self, lane.channel, &ends[..]);
                let tile =
                    |tile| LaneCompiler { compiler, arenas, blocks, tile, base, number, channel, ends };
                let steps = tiles.clone().map(|at| tile(at).compile(lane)).collect::<Result<Vec<_>, _>>();
                Ok(steps?.into_iter().flatten().collect())
            };
            lanes.iter().enumerate().map(lane).collect::<Result<Vec<Vec<Draft>>, Unfit>>()
        };
        let (first, last) = (drafts(0..repeats.min(1), 0)?, drafts(repeats..tiles, repeats)?);
        let mut sequences =
            if is_uneven { Sequences::none() } else { Sequences::of(&first, &last, repeats, ranks) };
        sequences.has_switch = self.switch.is_some();
        let mut bytes = Vec::new();
        arenas.of_ranks.iter().for_each(|arena| push(&mut bytes, arena));
        let fifos = bytes.len();
        let records: Vec<_> = ends.iter().map(|end| self.fifo(end, arenas)).collect();
        records.iter().for_each(|fifo| push(&mut bytes, fifo));
        let lists = bytes.len();
        let mut steps = Vec::new();
        let mut place = |drafts: &[Draft]| {
            let start = steps.len();
            drafts.iter().for_each(|draft| draft.write(&mut steps));
            ((lists + last.len() * size_of::<records::Lane>() + start) as u32, (steps.len() - start) as u32)
        };
        for (first, last) in std::iter::zip(&first, &last) {
            // Kernels know where the last list is, so it does not depend on the number of tiles.
            let ((last_at, last_bytes), (first_at, first_bytes)) = (place(last), place(first));
            if lanes.len() == 1 && !is_uneven && !self.announces && self.holds_tiles(&ends) {
                let is_preserved = self.plan.aliasing.contains(&Aliasing::OutOfPlace);
                sequences.direct = Direct::of(ranks, &records, fifos, last, last_at as usize, is_preserved);
            }
            let (first, last) = (first_at, last_at);
            push(&mut bytes, &records::Lane { first, first_bytes, last, last_bytes });
        }
        bytes.extend(steps);
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        let own = arenas.of_ranks[self.rank as usize];
        let first = last.first().and_then(|steps| steps.first());
        let first =
            first.filter(|step| step.inputs.first().is_some_and(|input| input.kind == records::INPUT));
        let header = records::CallHeader {
            rank: self.rank,
            ranks,
            lanes: lanes.len() as u32,
            slices,
            announces: u32::from(self.announces),
            combined: self.combined(),
            fifos: fifos as u32,
            lists: lists as u32,
            tiles: tiles as u64,
            first_offset: first.map_or(0, |step| step.inputs[0].offset),
            first_elements: first.map_or(0, |step| u32::try_from(step.step.elements).unwrap_or(0)),
            repeats: repeats as u64,
            tile_bytes: if tiles > 1 { (cut.range(1, 0).start * shape.element_bytes) as u64 } else { 0 },
            unit_elements: unit as u32,
            program_bytes: bytes.len() as u32,
            control: own,
            control_stride: self.arena.control_stride,
            failure: own + self.arena.failure,
            tiles_run: arenas.private,
            has_whole_words: u32::from(has_whole_words(&last, shape.element_bytes)),
            ..records::CallHeader::default()
        };
        // Kernels that know the places of records find them in the parameters.
        let with_views = ranks as usize * size_of::<records::View>() + bytes.len();
        let is_in_parameters = size_of::<records::CallHeader>() + with_views <= CALL_BYTES;
        let is_in_shared = with_views <= SHARED_BYTES;
        sequences.in_parameters = is_in_parameters && !is_uneven;
        if !is_in_parameters || !is_in_shared {
            sequences.direct = None;
        }
        Ok(Program { bytes, header, sequences, is_in_parameters, is_in_shared })
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

    /// This rank's ends of FIFOs, in the order of their first use.
    fn ends(&self) -> Vec<End> {
        let mut ends: Vec<End> = Vec::new();
        let mut count = |key| match ends.iter_mut().find(|end| end.key == key) {
            Some(end) => end.per_tile += 1,
            None => ends.push(End { key, per_tile: 1 }),
        };
        for lane in &self.plan.programs[self.rank as usize].lanes {
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
        ends
    }

    /// Whether each FIFO has room for the messages of a tile.
    fn holds_tiles(&self, ends: &[End]) -> bool {
        ends.iter().all(|end| end.per_tile <= self.arena.fifos[&end.key].depth)
    }

    fn fifo(&self, &End { key, per_tile }: &End, arenas: &Arenas) -> records::Fifo {
        let place = &self.arena.fifos[&key];
        let (source, target, _) = key;
        records::Fifo {
            slots: arenas.of_ranks[target as usize] + place.slots,
            slice_stride: place.slice_stride,
            slot_bytes: place.slot_bytes as u32,
            slot_mask: slots_for(place.depth) - 1,
            per_tile,
            peer: if source == self.rank { target } else { source },
        }
    }

    /// How many ranks' inputs a final result combines; of a scan, that of this rank.
    fn combined(&self) -> u32 {
        match self.plan.collective.promise(self.rank, self.plan.ranks, 0) {
            Some(Promise::Reduction { below, .. }) => below,
            _ => self.plan.ranks,
        }
    }

    /// Whether calls can use an operation on elements of a type.
    pub(crate) fn check(&self, data_type: DataType, reduction: Reduction) -> Result<(), Unfit> {
        if self.switch.is_some_and(|switch| switch.sums) && !can_sum(data_type, reduction) {
            return Err(Unfit::SwitchSum { data_type, reduction });
        }
        let is_fit = match reduction {
            Reduction::PremultipliedSum => self.can_scale,
            Reduction::Average | Reduction::LogicalAnd | Reduction::LogicalOr | Reduction::LogicalXor => {
                self.can_finish
            }
            _ => true,
        };
        if is_fit { Ok(()) } else { Err(Unfit::Operation { reduction }) }
    }
}

/// Whether all parts of buffers begin and end at multiples of 4 bytes, and have whole packets of 8 bytes.
fn has_whole_words(lanes: &[Vec<Draft>], element_bytes: usize) -> bool {
    lanes.iter().flatten().all(|draft| {
        let mut operands = draft.inputs.iter().chain(&draft.outputs);
        (draft.step.elements as usize * element_bytes).is_multiple_of(8)
            && operands.all(|operand| operand.offset.is_multiple_of(4))
    })
}

/// Which outputs of a step of this rank, lane and order get a final result.
fn finishing_of(
    plan: &Verified,
    results: &Results,
    [rank, lane, ordinal]: [usize; 3],
    step: &Step<u32>,
) -> Finishing {
    if results.finals.contains(&(rank as u32, lane as u32, ordinal as u32)) {
        return Finishing::Output;
    }
    let (collective, ranks) = (&plan.collective, plan.ranks);
    let is_scan = matches!(collective, Collective::Scan | Collective::ExclusiveScan);
    let is_first = match step.op {
        Op::Reduce => true,
        // The only rank copies its input; a switch adds up.
        Op::Copy => match step.inputs[..] {
            [Input::Local(Place { buffer: Buffer::Input, .. })] => ranks == 1,
            [Input::Switch(_)] => true,
            _ => false,
        },
        Op::Sync => false,
    };
    let is_final = collective.reduces() && !is_scan && is_first;
    if is_final && results.contributions[rank][lane][ordinal] == ranks {
        Finishing::All
    } else {
        Finishing::None
    }
}
