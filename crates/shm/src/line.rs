//! A cache line in shared memory, the only thing ranks write for each other besides bulk payload.
//!
//! ```text
//! word     0                                    1 .. 7
//!          low half     high half
//!          sequence     signature of the call   payload, where there is any
//! ```
//!
//! Word 0 is the flag. Its halves are read and written as one, so a reader that sees the sequence it waits for sees the
//! signature that goes with it: a wrong signature is a call that does not match, never a torn read.
//!
//! - A line has one writer at a time; which, the protocol on top ([`crate::fifo`], [`crate::counter`]) decides.
//! - The writer stores payload first, relaxed, then the flag with release. A reader loads the flag with acquire, and
//!   reads payload only if the flag is the one it waits for. So payload that is read is payload that was published with
//!   that flag or later, and one cache line travels.
//! - Every word is an atomic. A rank that breaks the protocol causes wrong values, never undefined behaviour.
//! - All zeros is a valid line at sequence 0: fresh memory needs no initialisation, and conversations start at 1.
//!
//! Sequences wrap. They are compared by the sign of their difference, which is right as long as two that meet are less
//! than 2^31 apart; FIFOs and counters keep them within a call or a depth of each other.
//!
//! Deliberately absent: how lines come to lie in mapped memory, and which line is whose.

use crate::sync::{AtomicU64, Edge, Ordering};

/// Words of a line that are payload.
pub const PAYLOAD_WORDS: usize = 7;

/// Sixty-four bytes that two ranks share.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Line {
    words: [AtomicU64; 1 + PAYLOAD_WORDS],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Line>() == 64 && align_of::<Line>() == 64);

impl Line {
    /// A line as fresh memory has it, on this process's heap or stack.
    pub fn new() -> Line {
        Line::default()
    }

    /// The flag.
    #[inline]
    pub fn load(&self, edge: Edge) -> Word {
        Word::unpack(self.flag().load(edge.acquire()))
    }

    /// Publishes the flag; the payload is written before.
    #[inline]
    pub fn store(&self, word: Word, edge: Edge) {
        self.flag().store(word.pack(), edge.release());
    }

    /// Whether the message `awaited` is here. Only that very sequence counts as arrived.
    #[inline]
    pub fn poll(&self, awaited: Word, edge: Edge) -> Poll {
        let found = self.load(edge);
        if found == awaited {
            Poll::Ready
        } else if found.sequence == awaited.sequence {
            Poll::Mismatch { found: found.signature }
        } else {
            Poll::Pending
        }
    }

    /// Stores payload, from word 1 on; what lies behind it keeps its value. Publishes nothing.
    #[inline]
    pub fn write_payload(&self, payload: &[u64]) {
        debug_assert!(payload.len() <= PAYLOAD_WORDS);
        for (word, value) in self.words[1..].iter().zip(payload) {
            word.store(*value, Ordering::Relaxed);
        }
    }

    /// Loads payload, from word 1 on. Meaningful only after the flag has been seen.
    #[inline]
    pub fn read_payload(&self, into: &mut [u64]) {
        debug_assert!(into.len() <= PAYLOAD_WORDS);
        for (word, value) in self.words[1..].iter().zip(into) {
            *value = word.load(Ordering::Relaxed);
        }
    }

    /// Word 0, for other uses than as a flag, and to sleep on.
    #[inline]
    pub fn flag(&self) -> &AtomicU64 {
        &self.words[0]
    }
}

/// A flag: which message, and of which call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// Which message.
    pub sequence: u32,
    /// Of which call.
    pub signature: u32,
}

impl Word {
    /// The flag as it lies in memory.
    #[inline]
    pub fn pack(self) -> u64 {
        u64::from(self.signature) << 32 | u64::from(self.sequence)
    }

    /// The flag from memory.
    #[inline]
    pub fn unpack(bits: u64) -> Word {
        Word { sequence: bits as u32, signature: (bits >> 32) as u32 }
    }
}

/// How far `sequence` is past `other`; negative before it.
#[inline]
pub fn distance(sequence: u32, other: u32) -> i32 {
    sequence.wrapping_sub(other) as i32
}

/// The result of polling shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poll {
    /// Not yet; nothing was changed, poll again.
    Pending,
    /// It is here, with the expected signature.
    Ready,
    /// It is here, and belongs to another call: the ranks are in different calls.
    Mismatch {
        /// The other side's signature.
        found: u32,
    },
    /// It will never be here: its connection failed.
    Broken,
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_word_survives_packing() {
        for (sequence, signature) in [(0, 0), (1, 0), (0, 1), (u32::MAX, 0), (0, u32::MAX), (7, 0xdead_beef)]
        {
            let word = Word { sequence, signature };
            assert_eq!(Word::unpack(word.pack()), word);
        }
        // The futex sleeps on the low half, so that is where the sequence must be.
        assert_eq!(Word { sequence: 3, signature: 5 }.pack(), 5 << 32 | 3);
    }

    #[test]
    fn distance_wraps() {
        assert_eq!(distance(5, 3), 2);
        assert_eq!(distance(3, 5), -2);
        assert_eq!(distance(1, u32::MAX), 2);
        assert_eq!(distance(u32::MAX, 1), -2);
    }

    #[test]
    fn only_the_awaited_sequence_is_compared() {
        let line = Line::new();
        line.store(Word { sequence: 4, signature: 9 }, Edge::Arrival);
        let poll = |sequence, signature| line.poll(Word { sequence, signature }, Edge::Arrival);
        assert_eq!(poll(4, 9), Poll::Ready);
        assert_eq!(poll(4, 8), Poll::Mismatch { found: 9 });
        assert_eq!(poll(5, 9), Poll::Pending);
        assert_eq!(poll(5, 8), Poll::Pending);
    }

    #[test]
    fn payload_is_beside_the_flag() {
        let line = Line::new();
        line.write_payload(&[1, 2, 3]);
        line.store(Word { sequence: 1, signature: 1 }, Edge::Arrival);
        let mut all = [9; PAYLOAD_WORDS];
        line.read_payload(&mut all);
        assert_eq!(all, [1, 2, 3, 0, 0, 0, 0]);
    }
}
