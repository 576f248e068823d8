//! The memory of a recorder: the last calls of a rank, its current wait, and its counters.
//!
//! ```text
//! head                rank, times, current wait, error, counters, names of plans
//! descriptions [n]    what a call is: written when it differs from the previous call
//! calls [n]           number, description, times: written by every call
//! ```
//!
//! It is a memfd, which other processes find by its name ([`crate::attach`]), or, with `WEFT_RECORD_DIR`, a mapped file, which outlives
//! the process. If both fail, it is on the heap. One thread at a time writes, the one that makes the calls; any thread may read, also in
//! another process (`weftlink_shm::slot` explains why that is sound). The same code reads the bytes of a file, so it trusts nothing: any
//! bits are a valid ring.
//!
//! There are as many descriptions as calls, and a call writes at most one. So the description of a call in the ring is still there; it
//! has the number of its first call, and a reader ignores one with a later number.

#![allow(unsafe_code)] // References into the memory.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::process::{Resource, getrlimit};

use weftlink_shm::line::Line;
use weftlink_shm::memory::{MemoryError, SharedMemory};
use weftlink_shm::slot::Slot;
use weftlink_shm::sync::{AtomicU64, Edge, Ordering};

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"weftring");
pub(super) const VERSION: u64 = 2;
/// The name of the memory among the mappings of a process.
pub(crate) const NAME: &str = "weft: record";
/// Space for the ranks that an error blames: at least eight.
pub(super) const BLAME_WORDS: usize = 96;
/// Plans whose names are kept.
pub(super) const PLANS_MAX: usize = 64;
/// Collectives, windows and plans that are loaded.
pub(super) const KINDS: usize = 15;
pub(crate) const CAPACITY_MIN: usize = 16;
pub(crate) const CAPACITY_MAX: usize = 1 << 16;

/// States of a call, in the low bits of its tag.
pub(super) const RUNNING: u64 = 1;
pub(super) const DONE: u64 = 2;
pub(super) const FAILED: u64 = 3;
/// It is on a stream of a GPU.
pub(super) const ENQUEUED: u64 = 4;
/// It is in a graph of a GPU.
pub(super) const CAPTURED: u64 = 5;
pub(super) const STATE_BITS: u64 = 0b111;
/// It used the plan for symmetric memory.
pub(super) const SYMMETRIC: u64 = 0b1000;
/// The time of its end is recorded.
pub(super) const TIMED: u64 = 0b1_0000;
/// It waited beyond spinning, and the time is recorded.
pub(super) const WAITED: u64 = 0b10_0000;
/// In place of a call's plans: it allocates memory for other calls.
pub(super) const NO_PLANS: u64 = u64::MAX;
pub(super) const DESCRIPTION_SHIFT: u32 = 8;
pub(super) const NUMBER_SHIFT: u32 = 32;

/// States of a rank.
pub(super) const RANK_FAILED: u64 = 1;
pub(super) const RANK_LEFT: u64 = 2;

/// A call: when it began, when it ended, how long it waited.
pub(super) type CallSlot = Slot<3>;
/// What a call is: the words of its header, with bytes and plans in place of the buffers' locations.
pub(super) type DescriptionSlot = Slot<7>;

#[repr(C)]
pub(super) struct Head {
    pub(super) magic: AtomicU64,
    pub(super) version: AtomicU64,
    pub(super) capacity: AtomicU64,
    pub(super) rank: AtomicU64,
    pub(super) size: AtomicU64,
    pub(super) pid: AtomicU64,
    pub(super) job: AtomicU64,
    /// The start time of the process and its PID namespace, to find out whether it still exists.
    pub(super) process_start: AtomicU64,
    pub(super) pid_namespace: AtomicU64,
    pub(super) realtime_offset_ns: AtomicU64,
    pub(super) first_anchor: Slot<2>,
    pub(super) last_anchor: Slot<2>,
    pub(super) state: AtomicU64,
    /// Kind and rank, lane and step, start time; the upper half of the tag is the call.
    pub(super) waiting: Slot<3>,
    pub(super) counters: [CounterWords; KINDS],
    pub(super) host: Text<8>,
    pub(super) settings: Text<64>,
    pub(super) error: Text<64>,
    /// The ranks that the error blames, as JSON.
    pub(super) blame: Text<BLAME_WORDS>,
    pub(super) plans: [Text<8>; PLANS_MAX],
}

/// The counters of a kind of call.
#[repr(C)]
pub(super) struct CounterWords {
    pub(super) calls: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) errors: AtomicU64,
    pub(super) waits: AtomicU64,
    pub(super) slept: AtomicU64,
    pub(super) waited_ns: AtomicU64,
}

/// Text, cut to fit.
#[repr(C)]
pub(super) struct Text<const WORDS: usize> {
    /// In bytes; 0 until the text is written.
    length: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl<const WORDS: usize> Text<WORDS> {
    pub(super) fn write(&self, text: &str) {
        let length = text.floor_char_boundary(text.len().min(8 * WORDS));
        self.length.store(0, Ordering::Relaxed);
        for (word, bytes) in self.words.iter().zip(text.as_bytes()[..length].chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(padded), Edge::Record.release());
        }
        self.length.store(length as u64, Edge::Record.release());
    }

    pub(super) fn read(&self) -> String {
        let length = (self.length.load(Edge::Record.acquire()) as usize).min(8 * WORDS);
        let bytes = self.words.iter().flat_map(|word| word.load(Edge::Record.acquire()).to_le_bytes());
        let bytes: Vec<u8> = bytes.take(length).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Adds to a word that only this thread writes.
#[inline]
pub(super) fn add(to: &AtomicU64, more: u64) {
    to.store(to.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// The memory, by its parts.
pub(super) struct Ring {
    pub(super) head: &'static Head,
    pub(super) descriptions: &'static [DescriptionSlot],
    pub(super) calls: &'static [CallSlot],
    /// Freed last: the rest points into it.
    _memory: Memory,
}

#[allow(dead_code, reason = "kept, not read")]
enum Memory {
    Heap(Vec<Line>),
    File(SharedMemory),
    Shared(SharedMemory, Option<OwnedFd>),
}

/// The descriptor of memory that readers find by its name, unless descriptors are scarce: then it is closed.
///
/// The kernel lets any process of the same user read the memory through its descriptor, even where reading memory needs a debugger's rights.
pub(crate) fn kept_open(descriptor: OwnedFd) -> Option<OwnedFd> {
    // Miri does not support the call.
    let limit = if cfg!(miri) { None } else { getrlimit(Resource::Nofile).current }.unwrap_or(u64::MAX);
    let is_plenty = u64::try_from(descriptor.as_raw_fd()).is_ok_and(|number| number < limit / 2);
    is_plenty.then_some(descriptor)
}

const LINE: usize = 64;

/// The offset of the descriptions.
const HEAD_BYTES: usize = size_of::<Head>().next_multiple_of(LINE);

/// The bytes of a ring for `capacity` calls.
pub(crate) fn bytes_of(capacity: usize) -> usize {
    HEAD_BYTES + capacity * (size_of::<DescriptionSlot>() + size_of::<CallSlot>())
}

impl Ring {
    /// Zeroed memory of this process.
    pub(super) fn on_heap(capacity: usize) -> Self {
        let mut lines: Vec<Line> = Vec::new();
        lines.resize_with(bytes_of(capacity).div_ceil(LINE), Line::new);
        let base = lines.as_ptr().cast();
        // SAFETY: the lines have that many bytes, of atomics, at a line's boundary; the vector is kept and never grows.
        unsafe { Self::at(base, capacity, Memory::Heap(lines)) }
    }

    /// Zeroed memory of this process that others find by its name.
    pub(super) fn in_memfd(capacity: usize) -> Result<Self, MemoryError> {
        let (memory, descriptor) = SharedMemory::create(NAME, bytes_of(capacity))?;
        let base = memory.as_ptr().cast_const();
        // SAFETY: that many bytes are mapped, at a page's boundary, and any bits are valid atomics; the mapping is kept.
        Ok(unsafe { Self::at(base, capacity, Memory::Shared(memory, kept_open(descriptor))) })
    }

    /// A mapped file of at least [`bytes_of`] bytes.
    pub(super) fn in_file(memory: SharedMemory, capacity: usize) -> Self {
        assert!(memory.len() >= bytes_of(capacity), "the file is long enough");
        let base = memory.as_ptr().cast_const();
        // SAFETY: that many bytes are mapped, at a page's boundary, and any bits are valid atomics; the mapping is kept.
        unsafe { Self::at(base, capacity, Memory::File(memory)) }
    }

    /// A copy of a file's bytes; nothing if they are not a ring.
    pub(super) fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| {
            let bytes = bytes.get(8 * at..8 * at + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let capacity = usize::try_from(word(2)?).ok()?;
        let is_ring = word(0)? == MAGIC
            && word(1)? == VERSION
            && (CAPACITY_MIN..=CAPACITY_MAX).contains(&capacity)
            && capacity.is_power_of_two()
            && bytes.len() >= bytes_of(capacity);
        if !is_ring {
            return None;
        }
        let ring = Self::on_heap(capacity);
        let Memory::Heap(lines) = &ring._memory else { return None };
        for (line, bytes) in lines.iter().zip(bytes[..bytes_of(capacity)].chunks(LINE)) {
            let mut words = [0; 8];
            for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            }
            line.flag().store(words[0], Ordering::Relaxed);
            line.write_payload(&words[1..]);
        }
        Some(ring)
    }

    /// A ring that was copied while it was written: the middle of three copies, made one after the other, without the slots whose tags
    /// differ in the others. Nothing if the copies are of different rings.
    pub(super) fn of_copies(copies: [&[u8]; 3]) -> Option<Self> {
        let [before, ring, after] = copies.map(Self::of_bytes);
        let (before, ring, after) = (before?, ring?, after?);
        let is_one = |other: &Self| {
            let job = |ring: &Self| ring.head.job.load(Ordering::Relaxed);
            other.calls.len() == ring.calls.len() && job(other) == job(&ring)
        };
        if !is_one(&before) || !is_one(&after) {
            return None;
        }
        // The error is written before the state.
        ring.head.state.store(before.head.state.load(Ordering::Relaxed), Ordering::Relaxed);
        let (first, head, last) = (before.head, ring.head, after.head);
        head.first_anchor.settle(&first.first_anchor, &last.first_anchor);
        head.last_anchor.settle(&first.last_anchor, &last.last_anchor);
        head.waiting.settle(&first.waiting, &last.waiting);
        for ((before, slot), after) in
            before.descriptions.iter().zip(ring.descriptions).zip(after.descriptions)
        {
            slot.settle(before, after);
        }
        for ((before, slot), after) in before.calls.iter().zip(ring.calls).zip(after.calls) {
            slot.settle(before, after);
        }
        Some(ring)
    }

    /// # Safety
    /// At `base`, aligned to a line, are [`bytes_of`] bytes that `memory` keeps in place, and that are only used as atomics.
    unsafe fn at(base: *const u8, capacity: usize, memory: Memory) -> Self {
        let descriptions_bytes = capacity * size_of::<DescriptionSlot>();
        // SAFETY: the caller's promise; the parts are adjacent within it, aligned, and consist of atomics only. They are
        // borrowed for no longer than this value lives, which keeps the memory.
        unsafe {
            let descriptions = base.add(HEAD_BYTES);
            Self {
                head: &*base.cast::<Head>(),
                descriptions: std::slice::from_raw_parts(descriptions.cast(), capacity),
                calls: std::slice::from_raw_parts(descriptions.add(descriptions_bytes).cast(), capacity),
                _memory: memory,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap() {
        let ring = Ring::on_heap(16);
        let address = |start: *const u8| start as usize;
        let head = address((ring.head as *const Head).cast());
        let descriptions = address(ring.descriptions.as_ptr().cast());
        let calls = address(ring.calls.as_ptr().cast());
        assert!(head.is_multiple_of(LINE) && descriptions.is_multiple_of(LINE) && calls.is_multiple_of(LINE));
        assert!(head + size_of::<Head>() <= descriptions);
        assert!(descriptions + size_of_val(ring.descriptions) <= calls);
        assert_eq!(calls + size_of_val(ring.calls) - head, bytes_of(16));
    }

    #[test]
    fn text_is_cut_between_characters() {
        let ring = Ring::on_heap(16);
        ring.head.host.write(&format!("{}é", "x".repeat(63)));
        assert_eq!(ring.head.host.read(), "x".repeat(63));
        ring.head.host.write("short");
        assert_eq!(ring.head.host.read(), "short");
    }

    #[test]
    fn copies_of_different_rings_are_refused() {
        let bytes = |job: u64, capacity: u64| {
            let mut bytes = vec![0; bytes_of(capacity as usize)];
            for (at, word) in [MAGIC, VERSION, capacity, 0, 2, 1, job].into_iter().enumerate() {
                bytes[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
            }
            bytes
        };
        let (one, other, longer) = (bytes(1, 16), bytes(2, 16), bytes(1, 32));
        assert!(Ring::of_copies([&one, &one, &one]).is_some());
        assert!(Ring::of_copies([&one, &one, &other]).is_none());
        assert!(Ring::of_copies([&longer, &one, &one]).is_none());
        assert!(Ring::of_copies([&one, b"", &one]).is_none());
    }

    #[test]
    fn private_rings_are_found_by_name() {
        let ring = Ring::in_memfd(16).unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let address = format!("{:x}-", (ring.head as *const Head) as usize);
        assert!(maps.lines().any(|line| line.starts_with(&address) && line.contains(NAME)), "{maps}");
    }

    #[test]
    fn invalid_bytes_are_not_a_ring() {
        assert!(Ring::of_bytes(b"").is_none());
        assert!(Ring::of_bytes(&[0; 100_000]).is_none());
        let mut bytes = vec![0xff; bytes_of(16)];
        for (at, word) in [MAGIC, VERSION, 16].into_iter().enumerate() {
            bytes[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
        }
        assert!(Ring::of_bytes(&bytes).is_some());
        assert!(Ring::of_bytes(&bytes[..bytes.len() - 1]).is_none());
        bytes[16] = 17;
        assert!(Ring::of_bytes(&bytes).is_none());
    }
}
