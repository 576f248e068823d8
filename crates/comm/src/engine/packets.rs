//! Small calls, where every instruction counts: one tile, whose steps only copy or combine the rank's own buffers and packets. They
//! run from a list of their own, without lookups.

// Adds offsets to the addresses of the caller's buffers.
#![allow(unsafe_code)]

use weftlink_kernels::Access;
use weftlink_shm::line::Poll;

use super::ports::Ports;
use super::state::State;
use super::{Run, Stopped, Tracer};
use crate::compile::{Instruction, Need, Operand, PacketStep};

impl State {
    /// Runs a call of such steps.
    #[inline]
    pub(super) fn run_packets(
        &mut self,
        run: &Run<'_>,
        ports: &mut Ports,
        steps: &[PacketStep],
        tracer: &mut impl Tracer,
    ) -> Result<(), Box<Stopped>> {
        let (waiter, signature) = (&run.shared.waiter, run.call.signature);
        for step in steps {
            let instruction = &step.instruction;
            tracer.waiting(0);
            for &port in &instruction.packets_out {
                if ports.packet_senders[port as usize].poll() != Poll::Ready {
                    self.wait_for(run, ports, 0, instruction, &Need::PacketCredit { port })?;
                }
            }
            for &port in &instruction.packets_in {
                if ports.packet_receivers[port as usize].poll(signature, step.words) != Poll::Ready {
                    self.wait_for(run, ports, 0, instruction, &Need::Packet { port })?;
                }
            }
            tracer.step(0, 0, instruction.ordinal);
            // SAFETY: as in `move_elements`: the same step with the same operands.
            unsafe { self.move_packets(run, ports, step) };
            for &port in &instruction.packets_out {
                let words = &ports.packet[..step.words];
                waiter.wake(ports.packet_senders[port as usize].publish(signature, words));
            }
            for &port in &instruction.packets_in {
                waiter.wake(ports.packet_receivers[port as usize].release());
            }
            tracer.done(0, instruction.bytes);
        }
        Ok(())
    }

    /// Moves the elements of a step.
    ///
    /// # Safety
    /// All its needs are met.
    #[inline(always)]
    unsafe fn move_packets(&self, run: &Run<'_>, ports: &mut Ports, step: &PacketStep) {
        let Instruction { bytes, elements, packets_out, .. } = &step.instruction;
        let Ports { sources, targets, packet_receivers, packet, .. } = ports;
        let from = |source: &Operand| match *source {
            Operand::Input(offset) => run.call.input.wrapping_add(offset),
            Operand::Output(offset) => run.call.output.cast_const().wrapping_add(offset),
            Operand::Packet(port) => packet_receivers[port as usize].place(),
        };
        let to = |target: &Operand| from(target).cast_mut();
        let sent = (!packets_out.is_empty()).then(|| packet.as_mut_ptr().cast::<u8>());
        // SAFETY: The caller's promise; as in `move_elements`.
        unsafe {
            if let [source] = &*step.sources {
                let source = from(source);
                for target in step.targets.iter().map(to).chain(sent) {
                    copy(target, source, *bytes);
                }
                return;
            }
            for (place, source) in sources.iter_mut().zip(&step.sources) {
                *place = from(source);
            }
            let mut count = 0;
            for target in step.targets.iter().map(to).chain(sent) {
                targets[count] = target;
                count += 1;
            }
            let sources = &sources[..step.sources.len()];
            run.call.arithmetic.combine(&targets[..count], sources, *elements, Access::default());
        }
    }
}

/// Copies a few bytes, most often one or two numbers, unless source and target are the same.
///
/// # Safety
/// They can be read and written, and do not overlap but for being the same.
#[inline(always)]
unsafe fn copy(target: *mut u8, source: *const u8, bytes: usize) {
    // SAFETY: The caller's promise.
    unsafe {
        match bytes {
            8 => target.cast::<u64>().write_unaligned(source.cast::<u64>().read_unaligned()),
            4 => target.cast::<u32>().write_unaligned(source.cast::<u32>().read_unaligned()),
            _ if std::ptr::eq(target, source) => {}
            _ => std::ptr::copy_nonoverlapping(source, target, bytes),
        }
    }
}
