//! The multicast windows of a communicator by this rank's addresses, so that a call finds the multicast addresses of its buffers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::driver::DeviceAddress;

/// The windows that are mapped.
#[derive(Debug, Default)]
pub(crate) struct MulticastRanges {
    ranges: Mutex<Vec<Range>>,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    /// The number of its window, the same on all ranks.
    window: u32,
    start: DeviceAddress,
    bytes: u64,
    multicast: DeviceAddress,
}

/// A buffer in a multicast window. Window and offset are the same on all ranks that make the same call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InWindow {
    pub(crate) window: u32,
    pub(crate) offset: u64,
    /// As this rank addresses the memory of all.
    pub(crate) multicast: DeviceAddress,
}

/// Removes a window when it is dropped.
#[derive(Debug)]
pub(crate) struct Listed {
    ranges: Arc<MulticastRanges>,
    window: u32,
}

impl MulticastRanges {
    /// Adds a window: this rank's memory, and its address for all ranks' memory.
    pub(crate) fn add(
        self: &Arc<Self>,
        window: u32,
        start: DeviceAddress,
        bytes: u64,
        multicast: DeviceAddress,
    ) -> Listed {
        self.ranges().push(Range { window, start, bytes, multicast });
        Listed { ranges: Arc::clone(self), window }
    }

    /// The window that has these bytes.
    pub(crate) fn find(&self, address: DeviceAddress, bytes: u64) -> Option<InWindow> {
        let of = |range: &Range| {
            let offset = address.checked_sub(range.start)?;
            let is_inside = offset.checked_add(bytes)? <= range.bytes;
            let multicast = range.multicast + offset;
            is_inside.then_some(InWindow { window: range.window, offset, multicast })
        };
        self.ranges().iter().find_map(of)
    }

    fn ranges(&self) -> MutexGuard<'_, Vec<Range>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.ranges.ranges().retain(|range| range.window != self.window);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_found_while_their_window_is_mapped() {
        let ranges = Arc::new(MulticastRanges::default());
        let first = ranges.add(3, 1000, 100, 50_000);
        let second = ranges.add(4, 2000, 100, 60_000);
        let found = |address, bytes| {
            ranges
                .find(address, bytes)
                .map(|InWindow { window, offset, multicast }| (window, offset, multicast))
        };
        assert_eq!(found(1000, 100), Some((3, 0, 50_000)));
        assert_eq!(found(2016, 84), Some((4, 16, 60_016)));
        for (address, bytes) in [(1000, 101), (999, 1), (1099, 2), (1500, 0), (2016, u64::MAX)] {
            assert_eq!(found(address, bytes), None, "{bytes} bytes at {address}");
        }
        drop(first);
        assert_eq!((found(1000, 100), found(2000, 100)), (None, Some((4, 0, 60_000))));
        drop(second);
        assert_eq!(found(2000, 100), None);
    }
}
