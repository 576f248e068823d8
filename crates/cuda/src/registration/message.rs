//! Messages between the owner of a buffer and a process that maps it.

use serde::{Deserialize, Serialize};

/// What goes over a link between two ranks, in both directions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// From the owner: map this part. A descriptor comes with it if the handle is one.
    Map { number: u64, part: Part },
    /// The answer: the part's address at the reader, or why it cannot be mapped.
    Mapped { number: u64, address: Result<u64, String> },
    /// From the owner, without an answer: its calls no longer use these parts.
    Release { ids: Vec<u64> },
}

/// Memory of the owner that is mapped as a whole: an allocation, or an allocation that is mapped into reserved addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// No other part of the owner's process ever has the same, not even at the same address.
    pub(crate) id: u64,
    /// The owner's address.
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    pub(crate) handle: Handle,
}

/// How another process gets a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Handle {
    /// By a CUDA IPC handle: memory from `cuMemAlloc`.
    Ipc(Vec<u8>),
    /// By a descriptor: a part of the owner's reserved addresses.
    Descriptor { range: Range },
    /// The same by a fabric handle.
    Fabric { range: Range, handle: Vec<u8> },
}

/// Addresses that the owner has reserved. A reader reserves as many and maps parts at the same offsets, so that what is contiguous for the
/// owner is contiguous for the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

impl Part {
    /// The first address after it, if there is one.
    pub(crate) fn end(&self) -> Option<u64> {
        self.start.checked_add(self.bytes)
    }
}
