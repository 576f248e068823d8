//! Memory of our own in place of a caller's buffers that other processes cannot map: managed memory, memory of pools, memory without a handle,
//! and memory of `cudaMalloc` where a container forbids CUDA IPC; or that other GPUs of this process may not access; or that are one, in a call of
//! a plan that is not proved for calls in place. It is shared as arenas are, by descriptors. A call copies its input there before and its output
//! back afterwards, in the order of its stream. The other ranks notice nothing.

// Copies between addresses of the caller and of its own.
#![allow(unsafe_code)]

use crate::Error;
use crate::driver::{Allocation, Context, Device, DeviceAddress, DeviceBuffer, HandleKind, Mapping, Stream};

/// The most bytes of a buffer.
const BYTES_MAX: u64 = 1 << 30;
const BYTES_MIN: u64 = 1 << 21;
/// A buffer's place differs from the caller's by a multiple of this, so that kernels move it alike.
const ALIGNMENT: u64 = 256;

/// A buffer: its address and length.
pub(crate) type Buffer = (DeviceAddress, u64);

/// Memory that stands in for buffers, kept for later calls.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    /// For inputs, or both if they are one; and for outputs. Graphs and calls under way may use all but the last, too.
    memory: [Vec<Mapping>; 2],
}

/// The buffers of a call and what stands in for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Staged {
    callers: [Buffer; 2],
    /// Input and output.
    pub(crate) buffers: [DeviceAddress; 2],
}

impl Staging {
    /// Memory for the buffers of a call. `why` says why it is needed.
    pub(crate) fn stage(
        &mut self,
        context: &Context,
        peers: &[Device],
        callers: [Buffer; 2],
        is_in_place: bool,
        why: &str,
    ) -> Result<Staged, Error> {
        let bytes = needed(callers, is_in_place);
        if let Some(bytes) = bytes.iter().find(|bytes| **bytes > BYTES_MAX + ALIGNMENT) {
            let attempt = format!("copy a buffer of {bytes} bytes");
            return Err(Error::Misuse {
                attempt,
                why: format!("at most {BYTES_MAX} bytes are copied, and {why}"),
            });
        }
        if !self.is_used() {
            tracing::warn!(target: "weft::plan", "calls copy their buffers: {why}");
        }
        let mut bases = [0; 2];
        for (which, bytes) in bytes.into_iter().enumerate().filter(|(_, bytes)| *bytes > 0) {
            let memory = &mut self.memory[which];
            bases[which] = match memory.last().filter(|last| last.bytes() as u64 >= bytes) {
                Some(last) => last.address(),
                None => {
                    let (device, bytes) = (context.device(), bytes_for(bytes));
                    let new = Allocation::create(device, bytes as usize, HandleKind::PosixDescriptor)?;
                    let new = Mapping::new(context, &[&new], &peers.iter().collect::<Vec<_>>())?;
                    let address = new.address();
                    memory.push(new);
                    address
                }
            };
        }
        Ok(Staged { callers, buffers: places(callers, is_in_place, bases) })
    }

    /// How much there is.
    pub(crate) fn bytes(&self) -> usize {
        self.memory.iter().flatten().map(DeviceBuffer::bytes).sum()
    }

    /// Whether a call has needed it.
    pub(crate) fn is_used(&self) -> bool {
        self.memory.iter().any(|memory| !memory.is_empty())
    }
}

impl Staged {
    /// Copies the input.
    ///
    /// # Safety
    /// The caller's buffers are valid until the stream has executed the copy.
    pub(crate) unsafe fn copy_in(&self, stream: &Stream) -> Result<(), Error> {
        let (address, bytes) = self.callers[0];
        // SAFETY: as the caller promises; the memory for it is as long and lives as long as the communicator.
        if bytes > 0 { unsafe { stream.copy(self.buffers[0], address, bytes as usize) } } else { Ok(()) }
    }

    /// Copies the output back.
    ///
    /// # Safety
    /// As for [`Staged::copy_in`].
    pub(crate) unsafe fn copy_out(&self, stream: &Stream) -> Result<(), Error> {
        let (address, bytes) = self.callers[1];
        // SAFETY: as above.
        if bytes > 0 { unsafe { stream.copy(address, self.buffers[1], bytes as usize) } } else { Ok(()) }
    }
}

/// How long the memory must be: in place, the first for both buffers.
fn needed(buffers: [Buffer; 2], is_in_place: bool) -> [u64; 2] {
    if is_in_place {
        let [start, end] = span(buffers);
        [end - start + ALIGNMENT, 0]
    } else {
        buffers.map(|(_, bytes)| if bytes > 0 { bytes + ALIGNMENT } else { 0 })
    }
}

/// The length of new memory: each is at least twice as long as the one before, so all are at most twice as long as the last.
fn bytes_for(needed: u64) -> u64 {
    (needed - ALIGNMENT).next_power_of_two().max(BYTES_MIN) + ALIGNMENT
}

/// Where buffers lie in memory of that length. An empty buffer stays where it is.
fn places(buffers: [Buffer; 2], is_in_place: bool, bases: [u64; 2]) -> [DeviceAddress; 2] {
    let place = |base: u64, start: u64, address: u64| base + start % ALIGNMENT + (address - start);
    let [input, output] = buffers;
    if is_in_place {
        let [start, _] = span(buffers);
        return [place(bases[0], start, input.0), place(bases[0], start, output.0)];
    }
    let alone = |base: u64, (address, bytes): Buffer| match bytes {
        0 => address,
        _ => place(base, address, address),
    };
    [alone(bases[0], input), alone(bases[1], output)]
}

/// The first address of both buffers, and the first after them.
fn span(buffers: [Buffer; 2]) -> [u64; 2] {
    let [input, output] = buffers;
    [input.0.min(output.0), (input.0 + input.1).max(output.0 + output.1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASES: [u64; 2] = [0x10_0000, 0x20_0000];

    #[test]
    fn buffers_apart_get_memory_of_their_own() {
        let buffers = [(0x7777_7008, 64), (0x8888_8110, 128)];
        assert_eq!(needed(buffers, false), [64 + 256, 128 + 256]);
        assert_eq!(places(buffers, false, BASES), [0x10_0008, 0x20_0010]);
        let empty = [(0x7777_7008, 64), (0, 0)];
        assert_eq!(needed(empty, false), [64 + 256, 0]);
        assert_eq!(places(empty, false, BASES), [0x10_0008, 0]);
    }

    #[test]
    fn buffers_in_place_keep_their_distance() {
        // An all-gather: the input is a block of the output.
        let buffers = [(0x7777_7048, 64), (0x7777_7008, 256)];
        assert_eq!(needed(buffers, true), [256 + 256, 0]);
        assert_eq!(places(buffers, true, BASES), [0x10_0048, 0x10_0008]);
        assert_eq!(
            [512, (4 << 20) + 256, (4 << 20) + 257].map(bytes_for),
            [2, 4, 8].map(|mib| (mib << 20) + 256)
        );
        let same = [(0x1000, 64); 2];
        assert_eq!((needed(same, true), places(same, true, BASES)), ([64 + 256, 0], [0x10_0000; 2]));
    }
}
