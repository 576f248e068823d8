//! Compiles one rank's part of a verified plan, for blocks of certain lengths, into flat lists: loops unrolled, chunks
//! turned into offsets and lengths in bytes, peers into indices of FIFO ends. Running it needs no lookup, allocation or
//! arithmetic beyond adding a base address. Compiled once per shape and kept.

mod packets;

use weftlink_kernels::Access;
use weftlink_plan::domain::chunks::Origin;
use weftlink_plan::plan::{Buffer, Input, Lane, Op, Output, Place, Remote, Step, Wait};
use weftlink_plan::{Aliasing, Blocks, Verified};
pub(crate) use weftlink_plan::{Lengths, Shape};

use crate::layout::Layout;
use crate::transport::{Delivery, End};
pub(crate) use packets::{Operand, PacketStep};

/// [`Communicator::load`](crate::Communicator::load) has refused it.
const NO_SWITCH: &str = "a plan with switches is not loaded";

/// If a call reads and writes this many bytes of a rank's buffers, results bypass the caches, unless their place was read
/// before. Set by single runs with 2 ranks: an all-reduce of 2 MiB out of place gains, an all-gather of 2 MiB,
/// which touches 3, loses.
const STREAM_BYTES_MIN: usize = 4 << 20;

/// What one rank does in one call.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) shape: Shape,
    pub(crate) element_bytes: usize,
    pub(crate) tiles: usize,
    /// Bytes of a block in every tile but the last.
    tile_bytes: usize,
    /// Each tile by itself if they are uneven. Otherwise all tiles but the last, whose chunks have the same lengths, and the
    /// last.
    compiled: Vec<Tile>,
    /// The same for small calls.
    pub(crate) packets: Option<Box<[PacketStep]>>,
    /// Whether it moves no elements.
    only_synchronises: bool,
}

impl Program {
    /// Whether no other rank accesses the caller's buffers, and no code of the caller runs.
    pub(crate) fn is_private(&self) -> bool {
        self.packets.is_some() || self.only_synchronises
    }

    /// What is done in a tile.
    #[inline]
    pub(crate) fn tile(&self, tile: usize) -> &Tile {
        let last = self.compiled.len() - 1;
        if tile + 1 == self.tiles { &self.compiled[last] } else { &self.compiled[tile.min(last - 1)] }
    }

    /// Where a tile starts in each block of the user's buffers, in bytes.
    #[inline]
    pub(crate) fn start(&self, tile: usize) -> usize {
        tile * self.tile_bytes
    }
}

/// The program of one rank for one tile.
#[derive(Debug, Default)]
pub(crate) struct Tile {
    pub(crate) lanes: Vec<Vec<Instruction>>,
}

impl Tile {
    /// Writes to users' buffers bypass the caches.
    fn stream(&mut self) {
        self.lanes.iter_mut().flatten().for_each(|step| step.access.streamed = step.user_targets());
    }
}

/// A step.
#[derive(Debug, Clone)]
pub(crate) struct Instruction {
    /// Which of the lane's steps, in the order they run.
    pub(crate) ordinal: u32,
    pub(crate) op: Op,
    pub(crate) access: Access,
    pub(crate) bytes: usize,
    pub(crate) elements: usize,
    /// The needs of the step, in the order in which it waits for them.
    pub(crate) needs: Box<[Need]>,
    pub(crate) sources: Box<[Source]>,
    /// Where the kernel puts the result, users' buffers first. If there are packets, it goes to memory of the rank's own too,
    /// from where they are filled.
    pub(crate) targets: Box<[Target]>,
    /// Ports that send a message when the step is done, those that are carried last.
    pub(crate) sends: Box<[u32]>,
    /// Ports whose message has been read when the step is done, those that are carried last.
    pub(crate) receives: Box<[u32]>,
    /// Ports that send the result as a packet.
    pub(crate) packets_out: Box<[u32]>,
    /// Ports whose packet has been read when the step is done.
    pub(crate) packets_in: Box<[u32]>,
    /// Own counters.
    pub(crate) signals: Box<[u32]>,
    /// Whether a transport carries some of its messages: sent from where they lie, received in place.
    pub(crate) is_carried: bool,
    /// Whether some of those are sent.
    pub(crate) sends_carried: bool,
}

impl Instruction {
    /// How many of its targets are in users' buffers.
    fn user_targets(&self) -> usize {
        self.targets.iter().filter(|target| target.is_user()).count()
    }
}

/// A condition that a step waits for before it touches anything.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Need {
    /// A rank has announced the call.
    Entered {
        rank: u32,
    },
    /// A rank has signalled a counter this often in the tile.
    Reached {
        rank: u32,
        counter: u32,
        count: u32,
        per_tile: u32,
    },
    /// The n-th of the rank's receiving ports has a message.
    Message {
        port: u32,
    },
    /// The n-th of the rank's sending ports takes a message.
    Credit {
        port: u32,
    },
    /// The same of ports of packets.
    Packet {
        port: u32,
    },
    PacketCredit {
        port: u32,
    },
}

/// Where an input is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    Memory(Address),
    /// The message at the n-th of the rank's receiving ports.
    Message(u32),
    /// The packet at the n-th of those of packets.
    Packet(u32),
}

/// Where an output goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    Memory(Address),
    /// The place of the n-th of the rank's sending ports.
    Place(u32),
    /// The same of a port that also sends a message from where it lies, so that its place is needed only if it lies nowhere else.
    Carried(u32),
}

impl Target {
    /// Whether it is in a user's buffer, not in scratch or in a slot.
    fn is_user(&self) -> bool {
        matches!(self, Target::Memory(Address { tiled: true, .. }))
    }
}

/// Memory of some rank: which base address, and bytes from it.
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

/// The inputs of the compiler besides the shape.
pub(crate) struct Compiler<'a> {
    pub(crate) plan: &'a Verified,
    pub(crate) layout: &'a Layout,
    pub(crate) rank: u32,
    /// How often each rank signals each counter in a tile.
    pub(crate) per_tile: &'a [Vec<u32>],
    /// The chunk of each step, by lane and ordinal.
    pub(crate) origins: &'a [Vec<Option<Origin>>],
    /// Whether ranks write into each other's scratch, and most likely what they have just read there.
    pub(crate) returns: bool,
    /// This rank's end of each FIFO, where it has one.
    pub(crate) ends: &'a [Option<End>],
}

/// Why a plan cannot run a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// An element does not fit into a message.
    Element,
    /// A step moves a block whose length only other ranks know.
    Length,
}

impl Compiler<'_> {
    /// The program for blocks of these lengths.
    pub(crate) fn compile(&self, shape: Shape) -> Result<Program, Unfit> {
        let element_bytes = shape.element_bytes;
        let cut = self.blocks(&shape)?.longest();
        let tiles = cut.tiles();
        let tile_bytes = if tiles > 1 { cut.range(1, 0).start * element_bytes } else { 0 };
        let wanted: Vec<usize> = match shape.uneven {
            Some(_) => (0..tiles).collect(),
            None if tiles > 1 => vec![0, tiles - 1],
            None => vec![0],
        };
        let mut compiled =
            wanted.into_iter().map(|tile| self.tile(&shape, tile)).collect::<Result<Vec<_>, _>>()?;
        if self.streams(&shape) {
            compiled.iter_mut().for_each(Tile::stream);
        }
        let packets = match &*compiled {
            [tile] if tiles == 1 => PacketStep::all_of(tile, self.rank),
            _ => None,
        };
        let mut steps = compiled.iter().flat_map(|tile| &tile.lanes).flatten();
        let only_synchronises = steps.all(|step| step.op == Op::Sync);
        Ok(Program { shape, element_bytes, tiles, tile_bytes, compiled, packets, only_synchronises })
    }

    /// Whether results bypass the caches.
    fn streams(&self, shape: &Shape) -> bool {
        let (collective, ranks) = (&self.plan.collective, self.plan.ranks);
        let (gives, gets) = (collective.gives(self.rank, ranks), collective.gets(self.rank, ranks));
        let blocks = match shape.aliasing {
            Aliasing::OutOfPlace => gives + gets,
            Aliasing::InPlace if gives >= gets => 0,
            Aliasing::InPlace => gets,
        };
        blocks as usize * shape.count * shape.element_bytes >= STREAM_BYTES_MIN
    }

    fn tile(&self, shape: &Shape, tile: usize) -> Result<Tile, Unfit> {
        let lanes = &self.plan.programs[self.rank as usize].lanes;
        let compile = |(number, lane): (usize, &Lane)| {
            let steps = lane.walk().filter_map(|visit| visit.step.at(&visit.iterations));
            let step = |(ordinal, step): (usize, Step<u32>)| {
                self.step(shape, tile, lane.channel, self.origins[number][ordinal], ordinal, step)
            };
            steps.enumerate().map(step).collect::<Result<Vec<_>, _>>()
        };
        Ok(Tile { lanes: lanes.iter().enumerate().map(compile).collect::<Result<_, _>>()? })
    }

    fn step(
        &self,
        shape: &Shape,
        tile: usize,
        channel: u32,
        origin: Option<Origin>,
        ordinal: usize,
        step: Step<u32>,
    ) -> Result<Instruction, Unfit> {
        let elements = match origin {
            Some(origin) => self.blocks(shape)?.length(tile, origin).ok_or(Unfit::Length)?,
            None => 0,
        };
        let bytes = elements * shape.element_bytes;
        let address = |rank, buffer, chunk| self.address(shape, tile, rank, buffer, chunk);
        let wait = |wait: &Wait<u32>| match *wait {
            Wait::Entered { rank } => Need::Entered { rank },
            Wait::Reached { rank, counter, count } => {
                let per_tile = self.per_tile[rank as usize][counter as usize];
                Need::Reached { rank, counter, count, per_tile }
            }
        };
        let source = |input: &Input<u32>| {
            Ok(match *input {
                Input::Local(Place { buffer, chunk }) => Source::Memory(address(self.rank, buffer, chunk)?),
                Input::Peer(Remote { rank, buffer, chunk }) => Source::Memory(address(rank, buffer, chunk)?),
                Input::Switch(_) => unreachable!("{NO_SWITCH}"),
                Input::Received { from } => match self.end((from, self.rank, channel)) {
                    End { number, delivery: Delivery::Packet } => Source::Packet(number),
                    End { number, delivery: Delivery::Mapped | Delivery::Carried } => Source::Message(number),
                },
            })
        };
        let (mut targets, mut sends, mut packets_out) = (Vec::new(), Vec::new(), Vec::new());
        for output in &step.outputs {
            match *output {
                Output::Local(Place { buffer, chunk }) => {
                    targets.push(Target::Memory(address(self.rank, buffer, chunk)?));
                }
                Output::Peer(Remote { rank, buffer, chunk }) => {
                    targets.push(Target::Memory(address(rank, buffer, chunk)?));
                }
                Output::Multicast(_) => unreachable!("{NO_SWITCH}"),
                Output::Sent { to } => {
                    let End { number, delivery } = self.end((self.rank, to, channel));
                    match delivery {
                        Delivery::Packet => packets_out.push(number),
                        Delivery::Mapped => targets.push(Target::Place(number)),
                        Delivery::Carried => targets.push(Target::Carried(number)),
                    }
                    if delivery != Delivery::Packet {
                        sends.push((delivery == Delivery::Carried, number));
                    }
                }
            }
        }
        let sources = step.inputs.iter().map(source).collect::<Result<Box<[_]>, Unfit>>()?;
        // Peers that wait in shared memory are served before slower transports.
        let received = |input: &Input<u32>| match *input {
            Input::Received { from } => match self.end((from, self.rank, channel)) {
                End { delivery: Delivery::Packet, .. } => None,
                End { number, delivery } => Some((delivery == Delivery::Carried, number)),
            },
            _ => None,
        };
        let mut receives: Vec<_> = step.inputs.iter().filter_map(received).collect();
        receives.sort_by_key(|(is_carried, _)| *is_carried);
        sends.sort_by_key(|(is_carried, _)| *is_carried);
        let sends_carried = sends.iter().any(|(is_carried, _)| *is_carried);
        let is_carried = sends_carried || receives.iter().any(|(is_carried, _)| *is_carried);
        let packet = |source: &Source| if let Source::Packet(port) = *source { Some(port) } else { None };
        let packets_in: Box<[u32]> = sources.iter().filter_map(packet).collect();
        let is_peers = |address: &Address| address.base / 3 != self.rank;
        let own_scratch = base_of(self.rank, Buffer::Scratch);
        // Of its own scratch a rank has the lines, but for those that peers have changed or looked at since.
        let is_from_peers =
            |address: &Address| is_peers(address) || self.returns && address.base == own_scratch;
        let is_read_by_peers =
            |address: &Address| is_peers(address) || !self.returns && address.base == own_scratch;
        let is_scratch = |address: &Address| address.base % 3 == own_scratch % 3;
        let access = Access {
            streamed: 0,
            from_peers: sources.iter().any(|source| match source {
                Source::Memory(address) => is_from_peers(address),
                Source::Packet(_) => true,
                // This core has just written the message.
                Source::Message(port) => receives.contains(&(false, *port)),
            }),
            to_peers: targets.iter().any(|target| match target {
                Target::Memory(address) => is_read_by_peers(address),
                Target::Place(_) => true,
                Target::Carried(_) => false,
            }),
            migratory: self.returns
                && (sources.iter().any(|source| matches!(source, Source::Memory(it) if is_scratch(it)))
                    || targets.iter().any(|target| matches!(target, Target::Memory(it) if is_scratch(it)))),
        };
        let ports = |ends: &[(bool, u32)]| ends.iter().map(|(_, port)| *port).collect::<Box<[u32]>>();
        let (receives, sends) = (ports(&receives), ports(&sends));
        let needs = step.waits.iter().map(wait);
        let needs = needs.chain(packets_in.iter().map(|&port| Need::Packet { port }));
        let needs = needs.chain(receives.iter().map(|&port| Need::Message { port }));
        let needs = needs.chain(packets_out.iter().map(|&port| Need::PacketCredit { port }));
        let needs = needs.chain(sends.iter().map(|&port| Need::Credit { port })).collect();
        targets.sort_by_key(|target| !target.is_user());
        Ok(Instruction {
            ordinal: ordinal as u32,
            op: step.op,
            access,
            bytes,
            elements,
            needs,
            sources,
            targets: targets.into(),
            sends,
            receives,
            packets_out: packets_out.into(),
            packets_in,
            signals: step.signals.into(),
            is_carried,
            sends_carried,
        })
    }

    /// Where a chunk of a rank's buffer lies from the start of the tile on.
    fn address(
        &self,
        shape: &Shape,
        tile: usize,
        rank: u32,
        buffer: Buffer,
        chunk: u32,
    ) -> Result<Address, Unfit> {
        let base = base_of(rank, buffer);
        if buffer == Buffer::Scratch {
            let stride = self.layout.scratch_stride / (self.plan.chunks.scratch as usize).max(1);
            return Ok(Address { base, offset: chunk as usize * stride, tiled: false });
        }
        let start = self.blocks(shape)?.start(tile, rank, buffer, chunk).ok_or(Unfit::Length)?;
        Ok(Address { base, offset: start * shape.element_bytes, tiled: true })
    }

    fn blocks<'a>(&'a self, shape: &'a Shape) -> Result<Blocks<'a>, Unfit> {
        self.layout.blocks(self.plan, self.rank, shape).ok_or(Unfit::Element)
    }

    /// This rank's end of a FIFO.
    fn end(&self, key: (u32, u32, u32)) -> End {
        let number = self.layout.fifos.get(&key);
        match number.and_then(|&number| self.ends[number]) {
            Some(end) => end,
            None => unreachable!("the layout holds every FIFO of the plan, and its ends are open"),
        }
    }
}

/// The words of a packet of this many bytes.
#[inline]
pub(crate) fn words_of(bytes: usize) -> usize {
    bytes.div_ceil(size_of::<u64>())
}
