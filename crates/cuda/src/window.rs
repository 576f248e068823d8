//! Windows: memory of the same length on every rank's GPU, which all ranks read and write by copies on a stream or in kernels of the program,
//! and signals between them. `device/window.h` has the protocol.
//!
//! Each rank's memory is shared as an arena is: the data, then the words that peers write. The counters of the rank, and its table of
//! addresses, are private.

// Plain memory, which kernels take as bytes; a copy to the GPU.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use weftlink_bootstrap::Bootstrap;

use crate::Error;
use crate::driver::{DeviceAddress, Stream};
use crate::multicast::{Listed, MulticastMapping, MulticastRanges};
use crate::sharing::{Shared, Sharing};

/// CUDA C++ for kernels that use windows: `weft::Window`, which a kernel takes as a parameter, and `peer_pointer`, `put`, `get`, `signal` and
/// `wait`. It needs no header; put it before the source of a kernel, for NVRTC or nvcc. Its first lines have an example.
pub const WINDOW_H: &str = concat!(
    include_str!("../device/window_begin.h"),
    include_str!("../device/memory.h"),
    include_str!("../device/program.h"),
    include_str!("../device/wait.h"),
    include_str!("../device/window.h"),
);

/// The source of the kernels `weft_signal` and `weft_wait`.
pub(crate) const KERNELS: [&str; 2] = [WINDOW_H, include_str!("../device/window_kernels.h")];

/// The same code for a CPU.
#[cfg(test)]
pub(crate) const HOST: [&str; 6] = [
    include_str!("../device/fibers.h"),
    include_str!("../device/window_begin.h"),
    include_str!("../device/host.h"),
    include_str!("../device/program.h"),
    include_str!("../device/wait.h"),
    include_str!("../device/window.h"),
];

/// From the word of a rank to the next.
const SIGNAL_BYTES: u64 = 32;
const WORD_BYTES: u64 = 8;
const PAGE: u64 = 4096;
/// The counters of a rank for each peer.
const COUNTERS: u64 = 3;

/// Where everything lies in a rank's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    bytes: u64,
    signals: u64,
    failure: u64,
    ranks: u64,
}

impl Layout {
    /// The layout of a window, unless it is longer than any memory.
    pub(crate) fn new(bytes: usize, ranks: usize) -> Option<Layout> {
        let (bytes, ranks) = (bytes as u64, ranks as u64);
        let signals = bytes.checked_next_multiple_of(PAGE)?;
        let failure = signals.checked_add(ranks * SIGNAL_BYTES)?;
        failure.checked_add(PAGE).filter(|end| *end < 1 << 60)?;
        Some(Layout { bytes, signals, failure, ranks })
    }

    /// The bytes of a rank that peers map, and its private ones.
    pub(crate) fn sizes(self) -> [usize; 2] {
        let shared = (self.failure + WORD_BYTES).next_multiple_of(PAGE);
        [shared as usize, ((1 + COUNTERS) * self.ranks * WORD_BYTES) as usize]
    }

    /// Why a part of a rank's memory is not in the window, if so.
    fn check(self, rank: usize, offset: usize, bytes: usize) -> Result<(), String> {
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end as u64 <= self.bytes);
        match (rank as u64) < self.ranks {
            false => Err(format!("there are {} ranks", self.ranks)),
            true if !is_inside => Err(format!("it has {} bytes", self.bytes)),
            true => Ok(()),
        }
    }

    /// Where the words of signals begin.
    #[cfg(test)]
    pub(crate) fn signals_at(self) -> usize {
        self.signals as usize
    }

    /// What kernels of a rank get, with its private memory.
    pub(crate) fn for_kernels(self, rank: usize, number: u32, private: DeviceAddress) -> DeviceWindow {
        let Layout { bytes, signals, failure, ranks } = self;
        DeviceWindow {
            rank: rank as u32,
            ranks: ranks as u32,
            number,
            bytes,
            peers: private,
            signals,
            failure,
            counters: private + ranks * WORD_BYTES,
            ..DeviceWindow::zeroed()
        }
    }
}

/// A window of bytes, as [`Communicator::window`](crate::Communicator::window) makes it. It is unmapped when it is dropped: no work may use
/// it any more. The memory of a rank is freed when all ranks have dropped theirs.
#[derive(Debug)]
pub struct WindowMemory {
    /// Removed from a list, then unmapped, before the memory that is bound to it.
    multicast: Option<(Listed, MulticastMapping)>,
    shared: Shared,
    layout: Layout,
    number: u32,
    rank: usize,
    /// Of the communicator, in this process.
    communicator: usize,
}

impl WindowMemory {
    /// Writes the table of addresses.
    pub(crate) fn new(
        shared: Shared,
        layout: Layout,
        [rank, communicator]: [usize; 2],
        number: u32,
        stream: &Stream,
    ) -> Result<WindowMemory, Error> {
        let window = WindowMemory { multicast: None, shared, layout, number, rank, communicator };
        let arenas = &window.shared.arenas;
        let table: &[u8] = bytemuck::cast_slice(&arenas.of_ranks);
        // SAFETY: private memory begins with room for it, and the copy is over before the borrow ends.
        let copied = unsafe { stream.copy_from_host(arenas.private, table.as_ptr().cast(), table.len()) };
        stream.synchronize().and(copied)?;
        Ok(window)
    }

    /// Binds this rank's memory to a multicast object of all ranks, and adds it to a list. All ranks call it.
    pub(crate) fn bind(
        &mut self,
        sharing: &Sharing<'_>,
        group: &mut Bootstrap,
        list: &Arc<MulticastRanges>,
    ) -> Result<(), Error> {
        let own = self.own_address();
        let mapping = MulticastMapping::new(sharing, group, own)?;
        let listed = list.add(self.number, own, self.layout.bytes, mapping.address());
        self.multicast = Some((listed, mapping));
        Ok(())
    }

    /// The address of all ranks' memory for `multimem` instructions, if the window was made for it.
    pub fn multicast_address(&self) -> Option<DeviceAddress> {
        self.multicast.as_ref().map(|(_, mapping)| mapping.address())
    }

    /// The length of each rank's memory.
    pub fn bytes(&self) -> usize {
        self.layout.bytes as usize
    }

    /// The device memory that this rank has allocated for it.
    pub(crate) fn device_bytes(&self) -> usize {
        self.shared.device_bytes
    }

    /// Where a rank's memory begins, for this rank's GPU.
    pub fn address(&self, rank: usize) -> Option<DeviceAddress> {
        self.shared.arenas.of_ranks.get(rank).copied()
    }

    /// Where this rank's memory begins.
    pub(crate) fn own_address(&self) -> DeviceAddress {
        self.shared.arenas.of_ranks[self.rank]
    }

    /// The address of a part of a rank's memory, if it lies inside.
    pub(crate) fn place(&self, rank: usize, offset: usize, bytes: usize) -> Result<DeviceAddress, Error> {
        self.layout.check(rank, offset, bytes).map_err(|why| {
            let attempt = format!("access {bytes} bytes at offset {offset} of rank {rank}'s window");
            Error::Misuse { attempt, why }
        })?;
        Ok(self.shared.arenas.of_ranks[rank] + offset as u64)
    }

    pub(crate) fn is_of(&self, communicator: usize) -> bool {
        self.communicator == communicator
    }

    /// What kernels get, apart from the memory of the communicator.
    pub(crate) fn for_kernels(&self) -> DeviceWindow {
        let window = self.layout.for_kernels(self.rank, self.number, self.shared.arenas.private);
        window.with_multicast(self.multicast_address().unwrap_or(0))
    }
}

/// A window as a kernel takes it by value: `weft::Window` of [`WINDOW_H`]. The window must live until the kernel has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct DeviceWindow {
    rank: u32,
    ranks: u32,
    number: u32,
    reserved: u32,
    bytes: u64,
    peers: u64,
    signals: u64,
    failure: u64,
    counters: u64,
    presence: u64,
    reports: u64,
    timeout_ns: u64,
    multicast: u64,
}

impl DeviceWindow {
    /// With an address of the memory of all ranks.
    pub(crate) fn with_multicast(self, multicast: DeviceAddress) -> DeviceWindow {
        DeviceWindow { multicast, ..self }
    }

    /// With the memory of the communicator and the time limit of a wait.
    pub(crate) fn with(
        self,
        presence: DeviceAddress,
        reports: DeviceAddress,
        timeout: Duration,
    ) -> DeviceWindow {
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        DeviceWindow { presence, reports, timeout_ns, ..self }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::records;

    #[test]
    fn the_words_of_peers_follow_the_data() {
        let layout = Layout::new(5000, 3).unwrap();
        assert_eq!((layout.signals, layout.failure), (8192, 8192 + 3 * 32));
        assert_eq!(layout.sizes(), [12288, 4 * 3 * 8]);
        assert_eq!(Layout::new(0, 1).unwrap().sizes(), [4096, 32]);
        assert_eq!(Layout::new(usize::MAX, 2), None);
        assert_eq!(Layout::new(1 << 61, 2), None);
    }

    #[test]
    fn parts_outside_of_a_window_are_refused() {
        let layout = Layout::new(100, 2).unwrap();
        for (rank, offset, bytes) in [(0, 0, 100), (1, 99, 1), (1, 100, 0)] {
            assert_eq!(layout.check(rank, offset, bytes), Ok(()));
        }
        for (rank, offset, bytes, why) in [
            (2, 0, 0, "there are 2 ranks"),
            (0, 1, 100, "it has 100 bytes"),
            (0, 101, 0, "it has 100 bytes"),
            (1, usize::MAX, 2, "it has 100 bytes"),
        ] {
            assert_eq!(layout.check(rank, offset, bytes), Err(why.to_owned()));
        }
    }

    #[test]
    fn the_header_has_the_constants_of_the_records() {
        for (name, value) in [
            ("WEFT_FAILED_AT", records::FAILED_AT),
            ("WEFT_ABORTED_BY", records::ABORTED_BY),
            ("WEFT_REPORTS_MAX", crate::reports::REPORTS_MAX as u32),
        ] {
            let line = format!("#define {name} {value}\n");
            assert!(WINDOW_H.contains(&line), "{line}");
        }
        assert!(!WINDOW_H.contains("#include"));
        let [signalled, spacing] = [
            format!("constexpr u32 SIGNALLED = {};", records::SIGNALLED),
            format!("constexpr u64 SIGNAL_BYTES = {SIGNAL_BYTES};"),
        ];
        assert!(WINDOW_H.contains(&signalled) && WINDOW_H.contains(&spacing));
    }
}
