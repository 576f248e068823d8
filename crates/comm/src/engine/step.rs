//! Running a step: moving its elements in one pass of a kernel, and publishing the result.

// Kernels take raw addresses, because sources and targets may be the same memory or a peer's.
#![allow(unsafe_code)]

use std::time::Duration;

use weftlink_plan::plan::{Buffer, Op};
use weftlink_recorder::header::{Header, Location};
use weftlink_shm::sync;
use weftlink_shm::wait::Stop;

use super::Run;
use super::ports::Ports;
use super::state::{Base, State};
use crate::compile::{Address, Instruction, Need, Source, Target, base_of, words_of};
use crate::transport::Message;

/// Pieces in which peers' memory is read and combined: they stay in a core's own cache.
const PIECE_BYTES: usize = 64 << 10;

impl State {
    /// Moves a step's elements and publishes the result. All its needs are met.
    #[inline]
    pub(super) fn take_step(
        &mut self,
        run: &Run<'_>,
        ports: &mut Ports,
        instruction: &Instruction,
        start: usize,
    ) -> Result<(), Stop> {
        let sent_from = match instruction.op != Op::Sync && instruction.bytes > 0 {
            true => self.move_elements(run, ports, instruction, start)?,
            false => None,
        };
        let (waiter, signature) = (&run.shared.waiter, run.call.signature);
        // Blocks of different lengths take whole slots.
        let taken = if run.program.shape.uneven.is_some() { usize::MAX } else { instruction.bytes };
        for &port in &instruction.packets_out {
            let words = &ports.packet[..words_of(instruction.bytes)];
            waiter.wake(ports.packet_senders[port as usize].publish(signature, words));
        }
        // Before peers see that the step is done, and may change its operands.
        for &port in &instruction.sends {
            let (signature, bytes) = (run.call.signatures(), instruction.bytes);
            let message = Message { signature, bytes, taken, from: sent_from };
            // SAFETY: a message that lies elsewhere is an operand of the step, which holds all its bytes.
            if let Some(line) = unsafe { ports.senders[port as usize].publish(message) } {
                waiter.wake(line);
            }
        }
        for &signal in &instruction.signals {
            let value = &mut self.signalled[signal as usize];
            *value = value.wrapping_add(1);
            let value = *value;
            waiter.wake(self.counter(self.rank, signal).publish(value, signature));
        }
        let is_kept = mutant!("release-not-published");
        for &port in instruction.packets_in.iter().filter(|_| !is_kept) {
            waiter.wake(ports.packet_receivers[port as usize].release());
        }
        for &port in instruction.receives.iter().filter(|_| !is_kept) {
            if let Some(line) = ports.receivers[port as usize].release(taken) {
                waiter.wake(line);
            }
        }
        if instruction.is_carried {
            ports.transports.flush();
        }
        Ok(())
    }

    /// Moves a step's elements. Returns where carried messages lie, unless they are in their ports' places.
    #[inline]
    fn move_elements(
        &mut self,
        run: &Run<'_>,
        ports: &mut Ports,
        instruction: &Instruction,
        start: usize,
    ) -> Result<Option<*const u8>, Stop> {
        let mut foreign = false;
        let mut sources = 0;
        let goes_out = instruction.sends_carried;
        for source in &instruction.sources {
            let address = match *source {
                Source::Memory(address) => match self.resolve(run, address, start)? {
                    Base::Mapped(address) => address,
                    _ => {
                        foreign = true;
                        std::ptr::null_mut()
                    }
                },
                Source::Message(port) => ports.receivers[port as usize].place(),
                Source::Packet(port) => ports.packet_receivers[port as usize].place().cast_mut(),
            };
            ports.sources[sources] = address.cast_const();
            sources += 1;
        }
        let sends_source = instruction.is_carried && instruction.op == Op::Copy && sources == 1 && !foreign;
        let mut sent_from = sends_source.then(|| ports.sources[0]);
        let mut targets = 0;
        for target in &instruction.targets {
            let address = match *target {
                Target::Carried(_) if sent_from.is_some() => continue,
                Target::Memory(address) => match self.resolve(run, address, start)? {
                    Base::Mapped(address) => address,
                    _ => unreachable!("a plan that writes to peers runs in windows only"),
                },
                Target::Place(port) | Target::Carried(port) => ports.senders[port as usize].place(),
            };
            // Results that bypass the caches would have to be fetched again.
            let is_kept = instruction.access.streamed == 0 && matches!(target, Target::Memory(_));
            sent_from = sent_from.or(Some(address.cast_const()).filter(|_| is_kept && goes_out && !foreign));
            // A message that was received in place.
            if sends_source && std::ptr::eq(address, ports.sources[0]) {
                continue;
            }
            ports.targets[targets] = address;
            targets += 1;
        }
        if !instruction.packets_out.is_empty() {
            ports.targets[targets] = ports.packet.as_mut_ptr().cast();
            targets += 1;
        }
        if foreign {
            return self.move_foreign(run, ports, instruction, start, targets).map(|()| None);
        }
        let sent_from = sent_from.filter(|_| goes_out);
        if targets == 0 {
            return Ok(sent_from);
        }
        // SAFETY: every source and target holds `bytes`: user buffers by the caller's promise and by `resolve`, slots,
        // packets and scratch because a chunk is at most `chunk_bytes_max`. A target is either one of the sources exactly or
        // disjoint from all of them, because chunks are. No other rank writes the sources or accesses the targets during the step:
        // that is what the verifier has proved.
        unsafe {
            let Instruction { bytes, elements, .. } = *instruction;
            run.combine(instruction, &ports.targets[..targets], &ports.sources[..sources], bytes, elements);
        }
        Ok(sent_from)
    }

    /// Receives a carried message straight to where the step would copy it, if the step only copies.
    /// All earlier needs of the step are met.
    pub(super) fn expect(
        &mut self,
        run: &Run<'_>,
        ports: &mut Ports,
        tile: usize,
        instruction: &Instruction,
        need: &Need,
    ) {
        let (true, Op::Copy, Need::Message { port }, bytes @ 1..) =
            (instruction.is_carried, instruction.op, *need, instruction.bytes)
        else {
            return;
        };
        let ([_], Some(Target::Memory(address))) = (&*instruction.sources, instruction.targets.first())
        else {
            return;
        };
        let place = self.resolve(run, *address, run.program.start(tile));
        if let Ok(Base::Mapped(place)) = place {
            // SAFETY: the step would write there next, so nothing else does, and there are as many bytes. If the step never runs, the
            // place is withdrawn.
            unsafe { ports.receivers[port as usize].expect(run.call.signatures(), bytes, place) };
        }
    }

    /// The same with sources in other processes, which the kernel reads: piece by piece, so that a piece is still in the cache
    /// when it is combined.
    ///
    /// A peer whose call fails reuses its buffer, and has set the abort word before. So bytes that were read count only if the
    /// abort word is still clear afterwards: every read is followed by a load of it, before its bytes are combined or the step
    /// publishes anything.
    #[cold]
    #[inline(never)]
    fn move_foreign(
        &mut self,
        run: &Run<'_>,
        ports: &mut Ports,
        instruction: &Instruction,
        start: usize,
        targets: usize,
    ) -> Result<(), Stop> {
        let foreign = |state: &mut Self, source: &Source| match *source {
            Source::Memory(address) => match state.resolve(run, address, start) {
                Ok(Base::Foreign(at)) => Some((address.base / 3, at)),
                _ => None,
            },
            Source::Message(_) | Source::Packet(_) => None,
        };
        let read = |(rank, at): (u32, u64), target: *mut u8, bytes: usize| {
            // SAFETY: the target is this rank's, with room for as many bytes, and nothing else accesses it.
            let read = unsafe { run.shared.processes[rank as usize].get(at, target, bytes) };
            // A peer that aborted may have freed its buffer, which explains the error too.
            run.still_lent().and(read.map_err(|error| Stop::Unreadable { rank, error }))
        };
        // The bytes are the peer's if its process has not ended since.
        let confirm = |rank: u32| match run.shared.processes[rank as usize].has_ended() {
            true => Err(Stop::Unreadable { rank, error: libc::ESRCH }),
            false => Ok(()),
        };
        if let ([source], [target]) = (&*instruction.sources, &ports.targets[..targets])
            && let Some(from) = foreign(self, source)
        {
            return read(from, *target, instruction.bytes).and_then(|()| confirm(from.0));
        }
        let element_bytes = run.program.element_bytes;
        let piece = (PIECE_BYTES / element_bytes).max(1) * element_bytes;
        ports.pieces.resize(instruction.sources.len() * piece, 0);
        let mut at = 0;
        while at < instruction.bytes {
            let bytes = piece.min(instruction.bytes - at);
            ports.piece_sources.clear();
            for (number, source) in instruction.sources.iter().enumerate() {
                ports.piece_sources.push(match foreign(self, source) {
                    Some((rank, from)) => {
                        // SAFETY: there is a piece for every source.
                        let target = unsafe { ports.pieces.as_mut_ptr().add(number * piece) };
                        read(
                            (rank, if mutant!("piece-offset-lost") { from } else { from + at as u64 }),
                            target,
                            bytes,
                        )?;
                        target.cast_const()
                    }
                    // SAFETY: every source holds all bytes of the step.
                    None => unsafe { ports.sources[number].add(at) },
                });
            }
            ports.piece_targets.clear();
            // SAFETY: every target holds all bytes of the step.
            ports
                .piece_targets
                .extend(ports.targets[..targets].iter().map(|target| unsafe { target.add(at) }));
            // SAFETY: as in `move_elements`, for this part of the elements; pieces are ours.
            unsafe {
                let elements = bytes / element_bytes;
                run.combine(instruction, &ports.piece_targets, &ports.piece_sources, bytes, elements);
            }
            at += bytes;
        }
        instruction
            .sources
            .iter()
            .filter_map(|source| foreign(self, source))
            .try_for_each(|(rank, _)| confirm(rank))
    }

    /// Where a place in memory is.
    #[inline]
    fn resolve(&mut self, run: &Run<'_>, address: Address, start: usize) -> Result<Base, Stop> {
        let offset = address.offset + if address.tiled { start } else { 0 };
        if let Base::Unset = self.bases[address.base as usize] {
            self.find_peer(run, address.base / 3)?;
        }
        Ok(match self.bases[address.base as usize] {
            // An empty chunk may lie behind the end; it is not touched.
            Base::Mapped(base) => Base::Mapped(base.wrapping_add(offset)),
            Base::Foreign(base) => Base::Foreign(base + offset as u64),
            Base::Unset => unreachable!("it was found"),
        })
    }

    /// Finds a peer's buffers in its header. The peer has entered this call, since steps that touch its buffers wait for that. Where
    /// peers access each other's memory, the whole call is compared once more, and a buffer must lie within its window.
    #[cold]
    fn find_peer(&mut self, run: &Run<'_>, peer: u32) -> Result<(), Stop> {
        let header = Header::unpack(run.shared.header(peer as usize, run.call.number).announcement());
        let differs = Stop::Mismatch { found: header.signature() };
        if header.key() != run.call.header.key() {
            return Err(differs);
        }
        for (buffer, location) in [(Buffer::Input, header.input), (Buffer::Output, header.output)] {
            self.bases[base_of(peer, buffer) as usize] = match location {
                Location::Private { address } => Base::Foreign(address),
                Location::Window { number, offset } => {
                    let window = run.shared.windows.get(usize::from(number)).ok_or(differs)?;
                    let end = (offset as usize).checked_add(run.room(peer, buffer));
                    if end.is_none_or(|end| end > window.stride) {
                        return Err(differs);
                    }
                    // SAFETY: rank `peer`'s part of the window has `stride` bytes, and the buffer lies within it.
                    Base::Mapped(unsafe { window.base.add(peer as usize * window.stride + offset as usize) })
                }
            };
        }
        Ok(())
    }
}

impl Run<'_> {
    /// Combines `bytes` of all sources into all targets.
    ///
    /// # Safety
    /// As for [`Kernel::combine`](weftlink_kernels::Kernel::combine).
    #[inline]
    unsafe fn combine(
        &self,
        instruction: &Instruction,
        targets: &[*mut u8],
        sources: &[*const u8],
        bytes: usize,
        elements: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match instruction.op {
                Op::Reduce => self.call.arithmetic.combine(targets, sources, elements, instruction.access),
                Op::Copy | Op::Sync => self.shared.copy.combine(targets, sources, bytes, instruction.access),
            }
        }
    }

    /// Whether peers' ordinary memory that was just read was still lent to the call: no rank had aborted.
    fn still_lent(&self) -> Result<(), Stop> {
        sync::after_reading();
        match self.shared.waiter.aborted().filter(|_| !mutant!("reads-after-an-abort-count")) {
            None => Ok(()),
            Some(code) => Err(Stop::Aborted { code, waited: Duration::ZERO }),
        }
    }

    /// The bytes that a peer's buffer must have for this call: of uneven blocks those that this rank knows of, since it
    /// reaches no further.
    fn room(&self, peer: u32, buffer: Buffer) -> usize {
        let (collective, ranks, shape) = (self.call.collective, self.shared.size(), &self.program.shape);
        let blocks = match buffer {
            Buffer::Input => collective.gives(peer, ranks),
            Buffer::Output => collective.gets(peer, ranks),
            Buffer::Scratch => 0,
        };
        let elements = match &shape.uneven {
            None => blocks as usize * shape.count,
            Some(lengths) => {
                let known = |block| lengths.of(collective, ranks, self.rank, (peer, buffer, block));
                (0..blocks).map_while(known).sum()
            }
        };
        elements * self.program.element_bytes
    }
}
