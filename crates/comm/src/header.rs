//! What a call announces: one line per rank, published before anything moves.
//!
//! The flag of the line counts the rank's calls and carries the call's signature; the payload says what the call is
//! and where its buffers lie. Peers that wait for the rank to enter find all of it in the cache line they wait for.
//! A wait that takes long compares headers: two ranks whose calls of the same number have different signatures will
//! never meet, and both are shown.

use std::fmt;

use weftlink_plan::{Aliasing, Verified};

use crate::line::PAYLOAD_WORDS;

/// What one rank calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) what: What,
    /// The hash of the plan.
    pub(crate) plan: u64,
    /// Elements.
    pub(crate) count: u64,
    pub(crate) aliasing: Aliasing,
    pub(crate) input: Location,
    pub(crate) output: Location,
}

/// The things all ranks do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    AllReduce,
    Window,
    Load,
}

impl What {
    const ALL: [What; 3] = [What::AllReduce, What::Window, What::Load];
}

/// Where a buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    /// In memory of its own rank only.
    Private,
    /// In symmetric memory: the number of the window, and bytes from the start of the rank's part.
    Window { number: u16, offset: u64 },
}

/// The reserved word for memory that peers cannot reach.
const PRIVATE: u64 = u64::MAX;
const OFFSET_BITS: u32 = 48;

impl Location {
    fn pack(self) -> u64 {
        match self {
            Location::Private => PRIVATE,
            Location::Window { number, offset } => u64::from(number) << OFFSET_BITS | offset,
        }
    }

    fn unpack(word: u64) -> Self {
        match word {
            PRIVATE => Location::Private,
            _ => Location::Window {
                number: (word >> OFFSET_BITS) as u16,
                offset: word & ((1 << OFFSET_BITS) - 1),
            },
        }
    }

    fn is_symmetric(self) -> bool {
        self != Location::Private
    }
}

impl Header {
    pub(crate) fn new(
        plan: &Verified,
        count: usize,
        aliasing: Aliasing,
        input: Location,
        output: Location,
    ) -> Self {
        Self { what: What::AllReduce, plan: plan.hash(), count: count as u64, aliasing, input, output }
    }

    /// A call that moves nothing: it allocates a window of so many elements, or loads a plan.
    pub(crate) fn allocating(what: What, plan: u64, count: usize) -> Self {
        let (aliasing, private) = (Aliasing::OutOfPlace, Location::Private);
        Self { what, plan, count: count as u64, aliasing, input: private, output: private }
    }

    /// Whether peers can reach both buffers.
    pub(crate) fn is_symmetric(&self) -> bool {
        self.input.is_symmetric() && self.output.is_symmetric()
    }

    /// What all ranks of a call must agree on, in 32 bits. Where the buffers lie in their windows is each rank's own
    /// affair; how they are passed is not, since plans are proved for all ranks passing them alike.
    ///
    /// Counts are what programs get wrong: two that differ by less than 2^32 are never confused. Plans and kinds are
    /// hashed.
    pub(crate) fn signature(&self) -> u32 {
        let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let hash = mix(mix(mix(0, self.plan), self.count >> 32), self.kind());
        ((hash ^ hash >> 32) as u32).wrapping_add(self.count as u32)
    }

    pub(crate) fn pack(&self) -> [u64; PAYLOAD_WORDS] {
        [self.plan, self.count, self.kind(), self.input.pack(), self.output.pack(), 0, 0]
    }

    pub(crate) fn unpack(words: [u64; PAYLOAD_WORDS]) -> Self {
        let aliasing = if words[2] & 1 == 0 { Aliasing::OutOfPlace } else { Aliasing::InPlace };
        let [plan, count, kind, input, output, ..] = words;
        let what = What::ALL.into_iter().find(|what| *what as u64 == kind >> 2).unwrap_or(What::AllReduce);
        Self { what, plan, count, aliasing, input: Location::unpack(input), output: Location::unpack(output) }
    }

    fn kind(&self) -> u64 {
        u64::from(self.aliasing == Aliasing::InPlace)
            | u64::from(self.is_symmetric()) << 1
            | (self.what as u64) << 2
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, aliasing, plan, .. } = self;
        let memory = if self.is_symmetric() { "symmetric" } else { "ordinary" };
        match self.what {
            What::AllReduce => {
                write!(f, "all-reduce of {count} f32 {aliasing} in {memory} memory (plan {plan:016x})")
            }
            What::Window => write!(f, "window of {count} f32"),
            What::Load => write!(f, "load of plan {plan:016x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_packing() {
        let window = Location::Window { number: 3, offset: 4096 };
        let header = Header {
            what: What::AllReduce,
            plan: 7,
            count: 9,
            aliasing: Aliasing::InPlace,
            input: window,
            output: window,
        };
        assert_eq!(Header::unpack(header.pack()), header);
        let private = Header { input: Location::Private, ..header };
        assert_eq!(Header::unpack(private.pack()), private);
        let allocating = Header::allocating(What::Load, 7, 0);
        assert_eq!(Header::unpack(allocating.pack()), allocating);
        assert!(header.is_symmetric() && !private.is_symmetric());
    }

    #[test]
    fn signatures_tell_calls_apart_but_not_offsets() {
        let at = |offset| Location::Window { number: 0, offset };
        let header = Header {
            what: What::AllReduce,
            plan: 7,
            count: 9,
            aliasing: Aliasing::InPlace,
            input: at(0),
            output: at(0),
        };
        assert_eq!(header.signature(), Header { input: at(64), output: at(64), ..header }.signature());
        let others = [
            Header { what: What::Window, ..header },
            Header { plan: 8, ..header },
            Header { count: 10, ..header },
            Header { aliasing: Aliasing::OutOfPlace, ..header },
            Header { input: Location::Private, output: Location::Private, ..header },
        ];
        assert!(others.iter().all(|other| other.signature() != header.signature()));
    }

    #[test]
    fn counts_are_never_confused() {
        let header = |count| Header {
            what: What::AllReduce,
            plan: 7,
            count,
            aliasing: Aliasing::InPlace,
            input: Location::Private,
            output: Location::Private,
        };
        let signatures: std::collections::HashSet<_> =
            (0..200_000).map(|count| header(count).signature()).collect();
        assert_eq!(signatures.len(), 200_000);
        assert_ne!(header(5).signature(), header(5 + (1 << 32)).signature());
    }
}
