//! Taking a step: moving its elements in one pass of a kernel, and publishing what it has done.

// Kernels take raw addresses, because sources and targets may be the same memory or a peer's.
#![allow(unsafe_code)]

use weftlink_plan::plan::{Buffer, Op};

use super::Run;
use super::ends::Ends;
use crate::compile::{Address, Instruction, Source, Target, base_of};
use crate::header::{Header, Location};

impl Ends {
    /// Moves a step's elements and publishes what it has done. Everything it needs is there.
    #[inline]
    pub(super) fn take_step(&mut self, run: &Run<'_>, instruction: &Instruction, start: usize) {
        if instruction.op != Op::Sync {
            self.move_elements(run, instruction, start);
        }
        for target in &instruction.targets {
            match *target {
                Target::Memory(_) => {}
                Target::Slot(end) => {
                    run.shared.waiter.wake(self.senders[end as usize].fifo.publish(run.call.signature));
                }
                Target::Packet(end) => {
                    let words = &self.packet[..words_of(instruction.length)];
                    run.shared
                        .waiter
                        .wake(self.senders[end as usize].fifo.publish_packet(run.call.signature, words));
                }
            }
        }
        for &signal in &instruction.signals {
            let value = &mut self.signalled[signal as usize];
            *value = value.wrapping_add(1);
            let value = *value;
            run.shared.waiter.wake(self.counter(self.rank, signal).publish(value, run.call.signature));
        }
        for source in &instruction.sources {
            if let Source::Slot(end) | Source::Packet(end) = *source {
                run.shared.waiter.wake(self.receivers[end as usize].fifo.release());
            }
        }
    }

    #[inline]
    fn move_elements(&mut self, run: &Run<'_>, instruction: &Instruction, start: usize) {
        self.sources.clear();
        for source in &instruction.sources {
            let address = match *source {
                Source::Memory(address) => self.resolve(run, address, start),
                Source::Slot(end) => self.receivers[end as usize].slot(),
                Source::Packet(end) => self.receivers[end as usize].packet.as_mut_ptr().cast(),
            };
            self.sources.push(address.cast_const().cast());
        }
        self.targets.clear();
        for target in &instruction.targets {
            let address = match *target {
                Target::Memory(address) => self.resolve(run, address, start),
                Target::Slot(end) => self.senders[end as usize].slot(),
                Target::Packet(_) => continue,
            };
            self.targets.push(address.cast());
        }
        if instruction.sends_packets {
            self.targets.push(self.packet.as_mut_ptr().cast());
        }
        // SAFETY: every source and target holds `length` elements: user buffers by the caller's promise and by
        // `resolve`, slots, packets and scratch because a chunk is at most `chunk_max`. A target is either one of the
        // sources exactly or disjoint from all of them, because chunks are. Nobody else writes the sources or touches
        // the targets meanwhile: that is what the verifier has proved.
        unsafe {
            run.shared.sum.combine(&self.targets, &self.sources, instruction.length, instruction.store)
        };
    }

    /// The address behind a place in memory.
    #[inline]
    fn resolve(&mut self, run: &Run<'_>, address: Address, start: usize) -> *mut f32 {
        let mut base = self.bases[address.base as usize];
        if base.is_null() {
            self.find_peer(run, address.base / 3);
            base = self.bases[address.base as usize];
        }
        // SAFETY: the offset is within the buffer, whose `count` elements start at the base.
        unsafe { base.add(address.offset + if address.tiled { start } else { 0 }) }
    }

    /// Finds a peer's buffers by its header. It has entered this call: a step that touches them comes after that.
    fn find_peer(&mut self, run: &Run<'_>, peer: u32) {
        let header = Header::unpack(run.shared.headers[peer as usize].announcement());
        let mine = &run.call.header;
        // A signature is a hash. Where peers reach into each other's memory, chance is not enough.
        assert!(
            (header.plan, header.count, header.aliasing) == (mine.plan, mine.count, mine.aliasing),
            "this is an {mine}, but rank {peer} makes an {header}, whose signature is the same by chance"
        );
        let bytes = mine.count as usize * size_of::<f32>();
        for (buffer, location) in [(Buffer::Input, header.input), (Buffer::Output, header.output)] {
            let Location::Window { number, offset } = location else {
                unreachable!("signatures tell symmetric calls from others")
            };
            let window = run.shared.windows[usize::from(number)];
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

/// Words that a packet of so many elements takes.
#[inline]
pub(super) fn words_of(elements: usize) -> usize {
    elements.div_ceil(size_of::<u64>() / size_of::<f32>())
}
