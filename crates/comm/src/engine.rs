//! Runs one rank's part of a plan: its ends of the plan's FIFOs, its counters, its compiled programs, and the loop
//! that takes their steps.
//!
//! A step waits for everything it needs (counters, messages, free slots), then moves its elements in one pass of a
//! kernel from all sources to all targets, then publishes: messages and signals first, then the slots it has read.
//! With one lane, which is the usual case on a CPU, steps are taken in order and each wait is a wait. With several,
//! the rank's one thread goes from lane to lane, takes what is ready, and waits only when nothing is.
//!
//! Nothing here allocates, locks or calls the kernel once a count has been compiled, except to sleep in a long wait.

// Kernels take raw addresses, because sources and targets may be the same memory or a peer's; lines and slots are
// places in mapped memory.
#![allow(unsafe_code)]

use weftlink_plan::Verified;
use weftlink_plan::domain::chunks::chunks_of_steps;
use weftlink_plan::plan::{Buffer, Op};

use crate::compile::{Address, Compiler, Instruction, Program, Source, Target, WaitFor, base_of};
use crate::counter::Counter;
use crate::fifo::{Receiver, Sender};
use crate::header::{Header, Location};
use crate::kernels::Kernels;
use crate::layout::{LINE, Layout};
use crate::line::{Line, PAYLOAD_WORDS, Poll};
use crate::memory::SharedMemory;
use crate::wait::{Stop, Waiter};

/// How many counts are kept compiled. A training job has as many as it has gradient buckets.
const PROGRAMS_MAX: usize = 64;

/// What a rank shares with the others of its communicator, whatever the plan.
pub(crate) struct Shared {
    /// Every rank's header.
    pub(crate) headers: Vec<Counter<'static>>,
    /// Every rank's word that it makes no more calls.
    pub(crate) departures: Vec<Counter<'static>>,
    pub(crate) waiter: Waiter<'static>,
    pub(crate) windows: Vec<WindowPlace>,
    pub(crate) kernels: Kernels,
}

/// A window of symmetric memory: rank r's part is at `base + r * stride`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowPlace {
    pub(crate) base: *mut u8,
    pub(crate) stride: usize,
}

/// A call as its rank makes it.
pub(crate) struct Call {
    pub(crate) header: Header,
    pub(crate) signature: u32,
    /// The number of the call in its communicator.
    pub(crate) number: u32,
    pub(crate) input: *const f32,
    pub(crate) output: *mut f32,
}

/// Where and why a call stopped.
#[derive(Debug)]
pub(crate) struct Stopped {
    pub(crate) stop: Stop,
    /// The lane and its step, if one step was waiting.
    pub(crate) step: Option<(u32, u32)>,
    pub(crate) waiting: Waiting,
}

/// What was waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waiting {
    Entered {
        rank: u32,
    },
    Reached {
        rank: u32,
        counter: u32,
    },
    Message {
        from: u32,
    },
    Slot {
        to: u32,
    },
    /// Any of several lanes.
    Anything,
}

/// Is told each step when its inputs are there and nothing has been published. A test's ear; costs nothing else.
pub(crate) trait Tracer {
    fn step(&mut self, lane: u32, tile: u32, ordinal: u32);
}

/// Hears nothing.
pub(crate) struct Silent;

impl Tracer for Silent {
    #[inline(always)]
    fn step(&mut self, _lane: u32, _tile: u32, _ordinal: u32) {}
}

/// A plan ready to run on one rank.
pub(crate) struct Engine {
    pub(crate) plan: Verified,
    layout: Layout,
    per_tile: Vec<Vec<u32>>,
    chunks: Vec<Vec<Option<u32>>>,
    sends: Vec<usize>,
    receives: Vec<usize>,
    programs: Vec<Program>,
    /// The program that ran last, which most often runs next.
    current: usize,
    ends: Ends,
    /// Unmapped last: everything above points into it.
    _memory: SharedMemory,
}

/// What changes while a program runs.
struct Ends {
    rank: u32,
    senders: Vec<SendEnd>,
    receivers: Vec<ReceiveEnd>,
    counters: Vec<Counter<'static>>,
    counters_per_rank: usize,
    /// The values of this rank's own counters.
    signalled: Vec<u32>,
    /// Tiles done since the plan was loaded; wraps, as all sequences do.
    round: u32,
    /// Base addresses, three to a rank; those of peers' user buffers are null until they are first needed.
    bases: Vec<*mut f32>,
    reaches_users: bool,
    sources: Vec<*const f32>,
    targets: Vec<*mut f32>,
    /// A packet on its way out.
    packet: Vec<u64>,
    lanes: Vec<Cursor>,
}

struct SendEnd {
    fifo: Sender<'static>,
    to: u32,
    bulk: *mut f32,
    slot_elements: usize,
}

struct ReceiveEnd {
    fifo: Receiver<'static>,
    from: u32,
    bulk: *mut f32,
    slot_elements: usize,
    /// The packet that has arrived.
    packet: Vec<u64>,
}

/// Where a lane is.
#[derive(Clone, Copy, Default)]
struct Cursor {
    tile: usize,
    next: usize,
}

// SAFETY: the raw addresses point into memory mapped for the engine's lifetime or, during a call, into the caller's
// buffers; no thread but the one that owns the engine uses them from here.
unsafe impl Send for Engine {}
// SAFETY: the windows' addresses are valid for the communicator's lifetime, from any thread.
unsafe impl Send for Shared {}

impl Engine {
    /// The bytes of shared memory that all ranks need together to run a plan.
    pub(crate) fn bytes(plan: &Verified) -> usize {
        Layout::new(plan).bytes
    }

    /// Prepares a plan in fresh memory of [`Engine::bytes`], which all its ranks have mapped.
    pub(crate) fn new(plan: Verified, rank: u32, memory: SharedMemory) -> Self {
        let layout = Layout::new(&plan);
        assert!(memory.len() >= layout.bytes, "the plan needs {} bytes", layout.bytes);
        let per_tile: Vec<_> =
            (0..plan.ranks).map(|rank| plan.well_formed().signals_per_tile(rank)).collect();
        let chunks = chunks_of_steps(&plan).swap_remove(rank as usize);
        let mine = |is_mine: &dyn Fn(&crate::layout::FifoPlace) -> bool| {
            (0..layout.fifos.len()).filter(|&at| is_mine(&layout.fifos[at])).collect::<Vec<_>>()
        };
        let sends = mine(&|fifo| fifo.source == rank);
        let receives = mine(&|fifo| fifo.target == rank);
        let ends = Ends::new(&plan, &layout, rank, &sends, &receives, &memory);
        let programs = Vec::with_capacity(PROGRAMS_MAX);
        Self { plan, layout, per_tile, chunks, sends, receives, programs, current: 0, ends, _memory: memory }
    }

    /// Whether the plan reaches into peers' buffers, so that these must be symmetric.
    #[inline]
    pub(crate) fn needs_windows(&self) -> bool {
        self.ends.reaches_users
    }

    /// How a buffer of so many elements is cut.
    pub(crate) fn cut(&self, count: usize) -> weftlink_plan::Cut {
        self.layout.cut(&self.plan, count)
    }

    /// Runs a call to its end. The caller has announced it.
    ///
    /// # Safety
    /// `call.input` and `call.output` are valid for `call.header.count` elements, the same memory or disjoint as the
    /// header's aliasing says, the plan claims that aliasing, and nobody else uses them but peers of the same call.
    #[inline]
    pub(crate) unsafe fn run(
        &mut self,
        shared: &Shared,
        call: &Call,
        tracer: &mut impl Tracer,
    ) -> Result<(), Box<Stopped>> {
        let count = call.header.count as usize;
        if self.programs.get(self.current).is_none_or(|program| program.count != count) {
            self.current = self.program(count);
        }
        self.ends.begin(call);
        let program = &self.programs[self.current];
        let ran = if program.tile(0).lanes.len() == 1 {
            self.ends.run_lane(shared, call, program, tracer)
        } else {
            self.ends.run_lanes(shared, call, program, tracer)
        };
        self.ends.round = self.ends.round.wrapping_add(program.tiles as u32);
        ran
    }

    /// The position of the program for a count, compiled if need be.
    #[cold]
    fn program(&mut self, count: usize) -> usize {
        if let Some(found) = self.programs.iter().position(|program| program.count == count) {
            return found;
        }
        let Self { plan, layout, per_tile, chunks, sends, receives, .. } = &*self;
        let compiler = Compiler { plan, layout, rank: self.ends.rank, per_tile, chunks, sends, receives };
        let program = compiler.compile(count);
        if self.programs.len() == PROGRAMS_MAX {
            self.programs.remove(0);
        }
        self.programs.push(program);
        self.programs.len() - 1
    }
}

impl Ends {
    fn new(
        plan: &Verified,
        layout: &Layout,
        rank: u32,
        sends: &[usize],
        receives: &[usize],
        memory: &SharedMemory,
    ) -> Self {
        let lines = |at: usize, count: usize| lines_at(memory, at, count);
        let bulk = |at: usize| {
            // SAFETY: the layout lies within the memory.
            unsafe { memory.as_ptr().add(at) }.cast::<f32>()
        };
        let packet = vec![0; crate::layout::PACKET_WORDS];
        let send = |&at: &usize| {
            let place = &layout.fifos[at];
            let (slots, released) =
                (lines(place.slots, place.depth * place.slot_lines), lines(place.released, 1));
            SendEnd {
                fifo: Sender::new(slots, &released[0], place.depth),
                to: place.target,
                bulk: bulk(place.bulk),
                slot_elements: place.bulk_stride / size_of::<f32>(),
            }
        };
        let receive = |&at: &usize| {
            let place = &layout.fifos[at];
            let (slots, released) =
                (lines(place.slots, place.depth * place.slot_lines), lines(place.released, 1));
            ReceiveEnd {
                fifo: Receiver::new(slots, &released[0], place.depth),
                from: place.source,
                bulk: bulk(place.bulk),
                slot_elements: place.bulk_stride / size_of::<f32>(),
                packet: packet.clone(),
            }
        };
        let (ranks, counters_per_rank) = (plan.ranks as usize, plan.counters as usize);
        let mut bases = vec![std::ptr::null_mut(); 3 * ranks];
        for owner in 0..plan.ranks {
            bases[base_of(owner, Buffer::Scratch) as usize] =
                bulk(layout.scratch + owner as usize * layout.scratch_stride);
        }
        let operands = ranks + 1;
        Self {
            rank,
            senders: sends.iter().map(send).collect(),
            receivers: receives.iter().map(receive).collect(),
            counters: lines(layout.counters, ranks * counters_per_rank).iter().map(Counter::new).collect(),
            counters_per_rank,
            signalled: vec![0; counters_per_rank],
            round: 0,
            bases,
            reaches_users: plan.needs_windows(),
            sources: Vec::with_capacity(operands),
            targets: Vec::with_capacity(operands),
            packet,
            lanes: vec![Cursor::default(); plan.programs[rank as usize].lanes.len()],
        }
    }

    /// Points at this call's buffers.
    #[inline]
    fn begin(&mut self, call: &Call) {
        if self.reaches_users {
            self.bases.chunks_exact_mut(3).for_each(|bases| bases[..2].fill(std::ptr::null_mut()));
        }
        self.bases[base_of(self.rank, Buffer::Input) as usize] = call.input.cast_mut();
        self.bases[base_of(self.rank, Buffer::Output) as usize] = call.output;
    }

    /// The only lane: each wait is a wait.
    #[inline]
    fn run_lane(
        &mut self,
        shared: &Shared,
        call: &Call,
        program: &Program,
        tracer: &mut impl Tracer,
    ) -> Result<(), Box<Stopped>> {
        for tile in 0..program.tiles {
            let start = program.start(tile);
            for instruction in &program.tile(tile).lanes[0] {
                self.wait_for_step(shared, call, program, tile, instruction)?;
                tracer.step(0, tile as u32, instruction.ordinal);
                self.take_step(shared, call, instruction, start);
            }
        }
        Ok(())
    }

    /// Several lanes: takes from each what is ready, and waits when nothing is.
    fn run_lanes(
        &mut self,
        shared: &Shared,
        call: &Call,
        program: &Program,
        tracer: &mut impl Tracer,
    ) -> Result<(), Box<Stopped>> {
        self.lanes.fill(Cursor::default());
        loop {
            let mut running = false;
            let waited = shared.waiter.wait_doubting(
                None,
                || {
                    let mut progress = Poll::Pending;
                    running = false;
                    for lane in 0..self.lanes.len() {
                        match self.run_ready(shared, call, program, lane, tracer) {
                            Poll::Pending => {}
                            Poll::Ready => progress = Poll::Ready,
                            mismatch => return mismatch,
                        }
                        running |= self.lanes[lane].tile < program.tiles;
                    }
                    if running { progress } else { Poll::Ready }
                },
                || shared.doubt(call),
            );
            waited.map_err(|stop| Box::new(Stopped { stop, step: None, waiting: Waiting::Anything }))?;
            if !running {
                return Ok(());
            }
        }
    }

    /// Takes the steps of a lane that need not wait.
    fn run_ready(
        &mut self,
        shared: &Shared,
        call: &Call,
        program: &Program,
        lane: usize,
        tracer: &mut impl Tracer,
    ) -> Poll {
        let mut progress = Poll::Pending;
        while self.lanes[lane].tile < program.tiles {
            let Cursor { tile, next } = self.lanes[lane];
            let Some(instruction) = program.tile(tile).lanes[lane].get(next) else {
                self.lanes[lane] = Cursor { tile: tile + 1, next: 0 };
                progress = Poll::Ready;
                continue;
            };
            match self.poll_step(shared, call, program, tile, instruction) {
                Poll::Ready => {}
                Poll::Pending => return progress,
                mismatch => return mismatch,
            }
            tracer.step(lane as u32, tile as u32, instruction.ordinal);
            self.take_step(shared, call, instruction, program.start(tile));
            self.lanes[lane].next += 1;
            progress = Poll::Ready;
        }
        progress
    }

    /// Waits for everything a step needs, one after the other.
    #[inline]
    fn wait_for_step(
        &mut self,
        shared: &Shared,
        call: &Call,
        program: &Program,
        tile: usize,
        instruction: &Instruction,
    ) -> Result<(), Box<Stopped>> {
        let stopped =
            |stop, waiting| Box::new(Stopped { stop, step: Some((0, instruction.ordinal)), waiting });
        for wait in &instruction.waits {
            let (counter, waiting) = self.awaited(shared, wait);
            let poll = || self.poll_wait(shared, call, program, tile, wait);
            let doubt = || shared.doubt(call);
            let waited = shared.waiter.wait_doubting(Some(counter.line()), poll, doubt);
            waited.map_err(|stop| stopped(stop, waiting))?;
        }
        for source in &instruction.sources {
            let (Source::Slot(end) | Source::Packet(end)) = *source else { continue };
            let receiver = &mut self.receivers[end as usize];
            let (line, from) = (receiver.fifo.arrival_line(), receiver.from);
            let poll = || receiver.poll(source, call.signature, instruction.length);
            let waited = shared.waiter.wait_doubting(Some(line), poll, || shared.doubt(call));
            waited.map_err(|stop| stopped(stop, Waiting::Message { from }))?;
        }
        for target in &instruction.targets {
            let (Target::Slot(end) | Target::Packet(end)) = *target else { continue };
            let sender = &mut self.senders[end as usize];
            let (line, to) = (sender.fifo.credit_line(), sender.to);
            let poll = || if sender.fifo.has_credit() { Poll::Ready } else { Poll::Pending };
            let waited = shared.waiter.wait_doubting(Some(line), poll, || shared.doubt(call));
            waited.map_err(|stop| stopped(stop, Waiting::Slot { to }))?;
        }
        Ok(())
    }

    /// Whether everything a step needs is there.
    fn poll_step(
        &mut self,
        shared: &Shared,
        call: &Call,
        program: &Program,
        tile: usize,
        instruction: &Instruction,
    ) -> Poll {
        for wait in &instruction.waits {
            match self.poll_wait(shared, call, program, tile, wait) {
                Poll::Ready => {}
                other => return other,
            }
        }
        for source in &instruction.sources {
            let (Source::Slot(end) | Source::Packet(end)) = *source else { continue };
            match self.receivers[end as usize].poll(source, call.signature, instruction.length) {
                Poll::Ready => {}
                other => return other,
            }
        }
        for target in &instruction.targets {
            let (Target::Slot(end) | Target::Packet(end)) = *target else { continue };
            if !self.senders[end as usize].fifo.has_credit() {
                return Poll::Pending;
            }
        }
        Poll::Ready
    }

    #[inline]
    fn poll_wait(
        &self,
        shared: &Shared,
        call: &Call,
        program: &Program,
        tile: usize,
        wait: &WaitFor,
    ) -> Poll {
        match *wait {
            WaitFor::Entered { rank } => {
                shared.headers[rank as usize].poll(call.number, call.signature, call.number)
            }
            WaitFor::Reached { rank, counter, count, per_tile } => {
                // Sequences wrap, and products of wrapped numbers are the wrapped products.
                let at = |tiles: usize| self.round.wrapping_add(tiles as u32).wrapping_mul(per_tile);
                let counter = self.counters[rank as usize * self.counters_per_rank + counter as usize];
                counter.poll(at(tile).wrapping_add(count), call.signature, at(program.tiles))
            }
        }
    }

    fn awaited(&self, shared: &Shared, wait: &WaitFor) -> (Counter<'static>, Waiting) {
        match *wait {
            WaitFor::Entered { rank } => (shared.headers[rank as usize], Waiting::Entered { rank }),
            WaitFor::Reached { rank, counter, .. } => {
                let position = rank as usize * self.counters_per_rank + counter as usize;
                (self.counters[position], Waiting::Reached { rank, counter })
            }
        }
    }

    /// Moves a step's elements and publishes what it has done. Everything it needs is there.
    #[inline]
    fn take_step(&mut self, shared: &Shared, call: &Call, instruction: &Instruction, start: usize) {
        if instruction.op != Op::Sync {
            self.move_elements(shared, call, instruction, start);
        }
        for target in &instruction.targets {
            match *target {
                Target::Memory(_) => {}
                Target::Slot(end) => {
                    shared.waiter.wake(self.senders[end as usize].fifo.publish(call.signature));
                }
                Target::Packet(end) => {
                    let words = &self.packet[..words_of(instruction.length)];
                    shared.waiter.wake(self.senders[end as usize].fifo.publish_packet(call.signature, words));
                }
            }
        }
        for &signal in &instruction.signals {
            let value = &mut self.signalled[signal as usize];
            *value = value.wrapping_add(1);
            let counter = self.counters[self.rank as usize * self.counters_per_rank + signal as usize];
            shared.waiter.wake(counter.publish(*value, call.signature));
        }
        for source in &instruction.sources {
            if let Source::Slot(end) | Source::Packet(end) = *source {
                shared.waiter.wake(self.receivers[end as usize].fifo.release());
            }
        }
    }

    #[inline]
    fn move_elements(&mut self, shared: &Shared, call: &Call, instruction: &Instruction, start: usize) {
        self.sources.clear();
        for source in &instruction.sources {
            let address = match *source {
                Source::Memory(address) => self.resolve(shared, call, address, start),
                Source::Slot(end) => self.receivers[end as usize].slot(),
                Source::Packet(end) => self.receivers[end as usize].packet.as_mut_ptr().cast(),
            };
            self.sources.push(address.cast_const());
        }
        self.targets.clear();
        for target in &instruction.targets {
            let address = match *target {
                Target::Memory(address) => self.resolve(shared, call, address, start),
                Target::Slot(end) => self.senders[end as usize].slot(),
                Target::Packet(_) => continue,
            };
            self.targets.push(address);
        }
        if instruction.sends_packets {
            self.targets.push(self.packet.as_mut_ptr().cast());
        }
        // SAFETY: every source and target holds `length` elements: user buffers by the caller's promise and by
        // `resolve`, slots, packets and scratch because a chunk is at most `chunk_max`. A target is either one of the
        // sources exactly or disjoint from all of them, because chunks are. Nobody else writes the sources or touches
        // the targets meanwhile: that is what the verifier has proved.
        unsafe {
            shared.kernels.sum_f32(&self.targets, &self.sources, instruction.length, instruction.store)
        };
    }

    /// The address behind a place in memory.
    #[inline]
    fn resolve(&mut self, shared: &Shared, call: &Call, address: Address, start: usize) -> *mut f32 {
        let mut base = self.bases[address.base as usize];
        if base.is_null() {
            self.find_peer(shared, call, address.base / 3);
            base = self.bases[address.base as usize];
        }
        // SAFETY: the offset is within the buffer, whose `count` elements start at the base.
        unsafe { base.add(address.offset + if address.tiled { start } else { 0 }) }
    }

    /// Finds a peer's buffers by its header. It has entered this call: a step that touches them comes after that.
    fn find_peer(&mut self, shared: &Shared, call: &Call, peer: u32) {
        let header = Header::unpack(shared.headers[peer as usize].announcement());
        let bytes = call.header.count as usize * size_of::<f32>();
        for (buffer, location) in [(Buffer::Input, header.input), (Buffer::Output, header.output)] {
            let Location::Window { number, offset } = location else {
                unreachable!("signatures tell symmetric calls from others")
            };
            let window = shared.windows[usize::from(number)];
            assert!(
                offset as usize + bytes <= window.stride,
                "rank {peer} announced a buffer outside its window"
            );
            // SAFETY: rank `peer`'s part of the window has `stride` bytes, and the buffer lies within it.
            let address = unsafe { window.base.add(peer as usize * window.stride + offset as usize) };
            self.bases[base_of(peer, buffer) as usize] = address.cast();
        }
    }
}

impl ReceiveEnd {
    /// Whether the next message is there; takes a packet's payload out of its lines if it is.
    #[inline]
    fn poll(&mut self, source: &Source, signature: u32, length: usize) -> Poll {
        match source {
            Source::Packet(_) => self.fifo.take_packet(signature, &mut self.packet[..words_of(length)]),
            _ => self.fifo.poll(signature),
        }
    }

    fn slot(&self) -> *mut f32 {
        // SAFETY: the bulk memory has `slot_elements` for each slot.
        unsafe { self.bulk.add(self.fifo.slot() * self.slot_elements) }
    }
}

impl SendEnd {
    fn slot(&self) -> *mut f32 {
        // SAFETY: as for receivers.
        unsafe { self.bulk.add(self.fifo.slot() * self.slot_elements) }
    }
}

impl Shared {
    /// Why a wait will never end: a rank that is in a call of the same number but not in the same call, or that has left
    /// before it made the call.
    #[cold]
    fn doubt(&self, call: &Call) -> Option<Stop> {
        let ranks = || self.headers.iter().zip(&self.departures);
        let mismatch = ranks().find_map(|(header, _)| {
            header.signature_at(call.number).filter(|&found| found != call.signature)
        });
        let left = || {
            // A rank's departure is looked at first: its last call was announced before it.
            let gone = |(header, departure): (&Counter<'_>, &Counter<'_>)| {
                departure.poll(1, 0, 1) == Poll::Ready
                    && header.poll(call.number, call.signature, call.number) == Poll::Pending
            };
            (0..).zip(ranks()).find(|&(_, rank)| gone(rank)).map(|(rank, _)| rank)
        };
        mismatch.map(|found| Stop::Mismatch { found }).or_else(|| left().map(|rank| Stop::Left { rank }))
    }

    /// A rank whose call of the same number is another one, and what it calls.
    pub(crate) fn other_call(&self, call: &Call) -> Option<(u32, Header)> {
        let differs = |header: &Counter<'_>| {
            header.signature_at(call.number).is_some_and(|found| found != call.signature)
        };
        let (rank, header) = (0..).zip(&self.headers).find(|(_, header)| differs(header))?;
        Some((rank, Header::unpack(header.announcement())))
    }
}

/// Lines in mapped memory, for as long as the engine keeps it mapped.
pub(crate) fn lines_at(memory: &SharedMemory, at: usize, count: usize) -> &'static [Line] {
    assert!(at.is_multiple_of(LINE) && at + count * LINE <= memory.len(), "lines lie within the memory");
    // SAFETY: the range is mapped and aligned, and all bit patterns are lines. The engine and the communicator drop what
    // they make of these lines before the memory.
    unsafe { std::slice::from_raw_parts(memory.as_ptr().add(at).cast::<Line>(), count) }
}

/// Words that a packet of so many elements takes.
#[inline]
fn words_of(elements: usize) -> usize {
    elements.div_ceil(size_of::<u64>() / size_of::<f32>())
}

const _: () = assert!(PAYLOAD_WORDS * size_of::<u64>() == LINE - size_of::<u64>());
