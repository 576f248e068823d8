//! Whether kernels on other GPUs of this process can access a buffer. Never run: no machine with several GPUs was available.
//!
//! Peer access between contexts covers memory of `cuMemAlloc` only. Memory of `cuMemCreate` (PyTorch's expandable segments) needs the access of each
//! GPU, and memory of pools (`cudaMallocAsync`) that of its pool. A kernel that accesses other memory destroys the context.

use crate::Error;
use crate::driver::{Context, Device, DeviceAddress, MemoryKind, Pointer};
use crate::staging::Buffer;

/// What the driver knows.
pub(super) trait Lookup {
    fn pointer(&self, address: DeviceAddress) -> Result<Option<Pointer>, Error>;
    /// Start and length of the mapped allocation at an address.
    fn allocation(&self, address: DeviceAddress) -> Result<(DeviceAddress, usize), Error>;
    /// A GPU without access to the mapped allocation at an address.
    fn without_access(&self, address: DeviceAddress) -> Option<usize>;
}

/// The other GPUs of this process.
pub(super) struct Peers<'a> {
    pub(super) context: &'a Context,
    pub(super) devices: &'a [Device],
}

impl Lookup for Peers<'_> {
    fn pointer(&self, address: DeviceAddress) -> Result<Option<Pointer>, Error> {
        self.context.driver().pointer(address)
    }

    fn allocation(&self, address: DeviceAddress) -> Result<(DeviceAddress, usize), Error> {
        self.context.allocation_of(address)
    }

    fn without_access(&self, address: DeviceAddress) -> Option<usize> {
        self.devices.iter().find(|device| !device.has_access(address)).map(|device| device.ordinal)
    }
}

/// Why a GPU cannot access a buffer, if so.
pub(super) fn obstacle(memory: &impl Lookup, (address, bytes): Buffer) -> Result<Option<String>, Error> {
    let end = address.saturating_add(bytes);
    let mut at = address;
    while at < end {
        match memory.pointer(at)? {
            Some(Pointer { kind: MemoryKind::Device, has_legacy_ipc: false, .. }) => {}
            // Of `cuMemAlloc`, or memory that every GPU can access.
            _ => return Ok(None),
        }
        if let Some(gpu) = memory.without_access(at) {
            return Ok(Some(format!(
                "GPU {gpu} of this process may not access the buffer at {address:#x}. Allocate it with cudaMalloc, or give the GPU access \
                 (cuMemSetAccess)"
            )));
        }
        let (start, bytes) = memory.allocation(at)?;
        at = start.saturating_add(bytes as u64).max(at + 1);
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    const PART: u64 = 1 << 21;

    /// Mapped parts of 2 MiB, some of which GPU 1 may not access.
    struct Memory {
        kind: MemoryKind,
        has_legacy_ipc: bool,
        without: &'static [u64],
    }

    impl Lookup for Memory {
        fn pointer(&self, address: DeviceAddress) -> Result<Option<Pointer>, Error> {
            let Memory { kind, has_legacy_ipc, .. } = *self;
            let (start, bytes) = (0, 64 * PART as usize);
            Ok(Some(Pointer { kind, device: 0, buffer_id: address / PART, start, bytes, has_legacy_ipc }))
        }

        fn allocation(&self, address: DeviceAddress) -> Result<(DeviceAddress, usize), Error> {
            Ok((address / PART * PART, PART as usize))
        }

        fn without_access(&self, address: DeviceAddress) -> Option<usize> {
            self.without.contains(&(address / PART)).then_some(1)
        }
    }

    #[test]
    fn every_part_of_a_buffer_must_be_accessible() {
        let mapped = Memory { kind: MemoryKind::Device, has_legacy_ipc: false, without: &[3] };
        let of = |memory: &Memory, first: u64, parts: u64| {
            obstacle(memory, (first * PART + 64, parts * PART)).unwrap()
        };
        assert_eq!(of(&mapped, 0, 2), None);
        assert_eq!(of(&mapped, 3, 0), None, "an empty buffer");
        for (first, parts) in [(3, 1), (0, 3), (1, 9)] {
            let why = of(&mapped, first, parts).unwrap();
            assert!(why.starts_with("GPU 1 of this process may not access the buffer at 0x"), "{why}");
        }
        // Peer access covers memory of cuMemAlloc; managed memory moves.
        assert_eq!(of(&Memory { has_legacy_ipc: true, ..mapped }, 0, 9), None);
        assert_eq!(of(&Memory { kind: MemoryKind::Managed, ..mapped }, 0, 9), None);
    }
}
