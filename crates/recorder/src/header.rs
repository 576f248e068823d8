//! The header of a call: one cache line that a rank publishes before it moves data.
//!
//! The flag of the line counts the rank's calls and has the call's signature; the payload describes the call and the location of its
//! buffers. Peers that wait for the rank to enter poll the same cache line. A long wait compares headers: two ranks whose calls of the
//! same number have different signatures would wait forever, and the error shows both calls.
//!
//! A signature is 32 bits, too few to tell all calls apart by a hash. `signatures.rs` describes how ranks compare whole calls
//! ([`Header::key`]) the first time and number them, so that signatures of different calls differ from then on.

use std::fmt;

use weftlink_plan::{Aliasing, Collective, DataType, Reduction};
use weftlink_shm::line::PAYLOAD_WORDS;

/// Marks a barrier between hosts; tags of the caller's own calls are smaller.
pub const BARRIER: u32 = 1 << 31;
/// Marks a call that compares counts; the last byte is the kind of the collective. 'cou'
pub const COUNTS: u32 = 0x636f_7500;

/// The call of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of call.
    pub what: CallKind,
    /// The hash of the plan that the caller chose; 0 for any.
    pub plan: u64,
    /// Elements of a block; of the longest one that this rank knows if blocks differ in length.
    pub count: u64,
    /// Whether blocks may differ in length.
    pub uneven: bool,
    /// Whether the call is in place.
    pub aliasing: Aliasing,
    /// None if elements are only moved.
    pub reduction: Option<Reduction>,
    /// Whether it reduces in the fixed order of deterministic communicators.
    pub deterministic: bool,
    /// The type of the elements, if known.
    pub data_type: Option<DataType>,
    /// The bytes of an element.
    pub element_bytes: u16,
    /// The root, if the collective has one.
    pub root: u32,
    /// Other arguments of the collective, hashed to 63 bits.
    pub detail: u64,
    /// The location of the input.
    pub input: Location,
    /// The location of the output.
    pub output: Location,
}

/// The arguments that all ranks must agree on: plan, count, kind, detail and root.
pub type Key = [u64; 5];

/// The kinds of calls that all ranks make together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// A collective, by its [kind](Collective::kind).
    Collective(u8),
    /// Allocating a window.
    Window,
    /// Loading a plan.
    Load,
    /// Splitting the communicator.
    Split,
    /// Making an endpoint for messages between two ranks.
    Endpoint,
}

/// The kind of a collective, as in a header.
#[inline]
pub fn kind(collective: &Collective) -> u8 {
    collective.kind() as u8
}

/// The location of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// In private memory of its rank.
    Private {
        /// The address in the process of the rank.
        address: u64,
    },
    /// In symmetric memory.
    Window {
        /// The number of the window.
        number: u16,
        /// Bytes from the start of the rank's part.
        offset: u64,
    },
}

/// In place of a window's number: private memory.
const PRIVATE: u16 = u16::MAX;
const OFFSET_BITS: u32 = 48;

impl Location {
    /// No buffer.
    pub const NONE: Location = Location::Private { address: 0 };

    #[inline]
    fn pack(self) -> u64 {
        let (number, offset) = match self {
            Location::Private { address } => (PRIVATE, address),
            Location::Window { number, offset } => (number, offset),
        };
        u64::from(number) << OFFSET_BITS | offset & ((1 << OFFSET_BITS) - 1)
    }

    fn unpack(word: u64) -> Self {
        let (number, offset) = ((word >> OFFSET_BITS) as u16, word & ((1 << OFFSET_BITS) - 1));
        if number == PRIVATE {
            Location::Private { address: offset }
        } else {
            Location::Window { number, offset }
        }
    }

    /// The same buffer, advanced by `bytes`.
    #[inline]
    pub fn after(self, bytes: usize) -> Self {
        match self {
            Location::Private { address } => Location::Private { address: address + bytes as u64 },
            Location::Window { number, offset } => Location::Window {
                number,
                offset: if mutant!("window-offset-lost") { offset } else { offset + bytes as u64 },
            },
        }
    }

    /// Whether peers have mapped it, or there is no buffer.
    #[inline]
    pub fn is_symmetric(self) -> bool {
        matches!(self, Location::Window { .. } | Location::NONE)
    }
}

impl Header {
    /// A call that moves no data: it allocates a window of `count` elements, or loads a plan. `element_bytes` is capped at 65,535.
    pub fn allocating(
        what: CallKind,
        plan: u64,
        count: usize,
        (data_type, element_bytes): (Option<DataType>, usize),
    ) -> Self {
        Self {
            what,
            plan,
            count: count as u64,
            uneven: false,
            aliasing: Aliasing::OutOfPlace,
            reduction: None,
            deterministic: false,
            data_type,
            element_bytes: element_bytes.min(u16::MAX as usize) as u16,
            root: 0,
            detail: 0,
            input: Location::NONE,
            output: Location::NONE,
        }
    }

    /// Whether peers can access all its buffers.
    #[inline]
    pub fn is_symmetric(&self) -> bool {
        self.input.is_symmetric() && self.output.is_symmetric()
    }

    /// The arguments that all ranks must agree on: calls are the same if and only if their keys are. Locations of buffers may differ
    /// between ranks. Whether the call is in place may not, since plans are verified for one way on all ranks, except in rooted
    /// collectives, where only the root has two buffers.
    #[inline]
    pub fn key(&self) -> Key {
        let count = if self.uneven || mutant!("signature-without-count") { 0 } else { self.count };
        [self.plan, count, self.kind(), self.detail, u64::from(self.root)]
    }

    /// The key in 64 bits, for messages to other hosts.
    #[inline]
    pub fn hash(&self) -> u64 {
        self.key().into_iter().fold(0, |hash, word| {
            let mixed = (hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ mixed >> 31
        })
    }

    /// The key in 32 bits.
    ///
    /// Counts are the most frequent mistake: two that differ by less than 2^32 always have different signatures. The rest is hashed.
    #[inline]
    pub fn signature(&self) -> u32 {
        let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let count = if self.uneven || mutant!("signature-without-count") { 0 } else { self.count };
        let hash = mix(mix(mix(0, self.plan ^ self.detail), count >> 32), self.kind());
        ((hash ^ hash >> 32) as u32).wrapping_add(count as u32)
    }

    /// The payload of a line.
    #[inline]
    pub fn pack(&self) -> [u64; PAYLOAD_WORDS] {
        let aliasing = u64::from(self.aliasing == Aliasing::InPlace);
        let detail = self.detail << 1 | aliasing;
        [
            self.plan,
            self.count,
            self.kind(),
            self.input.pack(),
            self.output.pack(),
            detail,
            u64::from(self.root),
        ]
    }

    /// Updates packed words with the current locations of the buffers.
    #[inline]
    pub fn pack_locations(&self, words: &mut [u64; PAYLOAD_WORDS]) {
        (words[3], words[4]) = (self.input.pack(), self.output.pack());
    }

    /// Reads the payload of a line.
    pub fn unpack(words: [u64; PAYLOAD_WORDS]) -> Self {
        let [plan, count, kind, input, output, detail, root] = words;
        let what = match kind as u8 {
            WINDOW => CallKind::Window,
            LOAD => CallKind::Load,
            SPLIT => CallKind::Split,
            ENDPOINT => CallKind::Endpoint,
            code => CallKind::Collective(code),
        };
        let reduction = match (kind >> 16) as u8 {
            0 => None,
            USER => Some(Reduction::UserDefined { commutes: kind & USER_COMMUTES != 0 }),
            code => Reduction::NAMED.get(usize::from(code) - 1).copied(),
        };
        let in_place = detail & 1 == 1;
        Self {
            what,
            plan,
            count,
            uneven: kind & UNEVEN != 0,
            aliasing: if in_place { Aliasing::InPlace } else { Aliasing::OutOfPlace },
            reduction,
            deterministic: kind & DETERMINISTIC != 0,
            data_type: DataType::ALL.get(usize::from((kind >> 24) as u8).wrapping_sub(1)).copied(),
            element_bytes: (kind >> 32) as u16,
            root: root as u32,
            detail: detail >> 1,
            input: Location::unpack(input),
            output: Location::unpack(output),
        }
    }

    /// All arguments that must be equal, except counts and plan, in one word.
    #[inline]
    fn kind(&self) -> u64 {
        let what = match self.what {
            CallKind::Collective(code) => code,
            CallKind::Window => WINDOW,
            CallKind::Load => LOAD,
            CallKind::Split => SPLIT,
            CallKind::Endpoint => ENDPOINT,
        };
        let (reduction, commutes) = match self.reduction {
            None => (0, false),
            Some(Reduction::UserDefined { commutes }) => (USER, commutes),
            Some(named) => {
                (Reduction::NAMED.iter().position(|one| *one == named).unwrap_or(0) as u8 + 1, false)
            }
        };
        let data_type = self
            .data_type
            .filter(|_| !mutant!("signature-without-type"))
            .map_or(0, |data_type| data_type as u64 + 1);
        let in_place = self.aliasing == Aliasing::InPlace && !self.is_rooted();
        let flags = [
            (self.uneven, UNEVEN),
            (in_place, IN_PLACE),
            (commutes, USER_COMMUTES),
            (self.deterministic, DETERMINISTIC),
        ];
        let flags = flags.into_iter().map(|(is_set, flag)| u64::from(is_set) * flag).sum::<u64>();
        u64::from(what)
            | flags
            | u64::from(reduction) << 16
            | data_type << 24
            | u64::from(self.element_bytes) << 32
            | u64::from(if mutant!("signature-without-root") { 0 } else { self.root as u16 }) << 48
    }

    fn is_rooted(&self) -> bool {
        matches!(self.what, CallKind::Collective(1 | 2 | 6 | 7))
    }
}

const WINDOW: u8 = 100;
const LOAD: u8 = 101;
const SPLIT: u8 = 102;
const ENDPOINT: u8 = 103;
const USER: u8 = 255;
const UNEVEN: u64 = 1 << 8;
const IN_PLACE: u64 = 1 << 9;
const USER_COMMUTES: u64 = 1 << 10;
const DETERMINISTIC: u64 = 1 << 11;

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, aliasing, plan, root, .. } = self;
        let element = match (self.data_type, self.element_bytes) {
            (Some(data_type), _) => data_type.name().to_owned(),
            (None, 1) => "bytes".to_owned(),
            (None, bytes) => format!("elements of {bytes} bytes"),
        };
        match self.what {
            CallKind::Collective(code) => {
                if code == 12 && self.detail != 0 {
                    let what = if self.detail & 3 == 1 { "opening" } else { "closing" };
                    return write!(f, "{what} of window {}", self.detail >> 2);
                }
                // Between hosts, a barrier is an all-reduce of one maximum.
                let is_maximum = code == 0 && self.count == 1 && self.reduction == Some(Reduction::Maximum);
                if is_maximum && self.detail == u64::from(BARRIER) {
                    return write!(f, "barrier");
                }
                let named =
                    |code: u8| Collective::NAMES.get(usize::from(code)).copied().unwrap_or("unknown call");
                // Ranks compare the lengths of blocks before a call with uneven blocks.
                if !self.uneven && self.reduction.is_none() && self.detail & !0xff == u64::from(COUNTS) {
                    return write!(f, "counts of {}", named(self.detail as u8));
                }
                let name = named(code);
                write!(f, "{name}")?;
                if name != "barrier" {
                    match (self.uneven, count) {
                        (false, _) => write!(f, " of {count} {element}")?,
                        (true, 0) => write!(f, " of blocks of {element}")?,
                        (true, _) => write!(f, " of blocks of up to {count} {element}")?,
                    }
                }
                if let Some(reduction) = self.reduction {
                    let how = if self.deterministic { ", deterministic" } else { "" };
                    write!(f, " ({reduction}{how})")?;
                }
                match code {
                    1 | 6 => write!(f, " to rank {root}")?,
                    2 | 7 => write!(f, " from rank {root}")?,
                    12 => {}
                    _ => write!(f, " {aliasing}")?,
                }
                if *plan == 0 { Ok(()) } else { write!(f, " (plan {plan:016x})") }
            }
            CallKind::Window => write!(f, "window of {count} {element}"),
            CallKind::Load => write!(f, "load of plan {plan:016x}"),
            CallKind::Split => write!(f, "split"),
            CallKind::Endpoint => write!(f, "endpoint"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let at = Location::Window { number: 3, offset: 4096 };
        Header {
            what: CallKind::Collective(0),
            plan: 7,
            count: 9,
            uneven: false,
            aliasing: Aliasing::InPlace,
            reduction: Some(Reduction::Maximum),
            deterministic: false,
            data_type: Some(DataType::Bf16),
            element_bytes: 2,
            root: 0,
            detail: 5,
            input: at,
            output: at,
        }
    }

    #[test]
    fn headers_survive_packing() {
        let private = Location::Private { address: 0x7fff_1234_5678 };
        let user = Some(Reduction::UserDefined { commutes: true });
        let headers = [
            header(),
            Header { input: private, output: Location::NONE, ..header() },
            Header { what: CallKind::Collective(12), reduction: None, data_type: None, ..header() },
            Header { reduction: user, data_type: None, element_bytes: 12, uneven: true, ..header() },
            Header { deterministic: true, ..header() },
            Header { what: CallKind::Collective(6), root: 1000, aliasing: Aliasing::OutOfPlace, ..header() },
            Header::allocating(CallKind::Load, 7, 0, (None, 1)),
            Header::allocating(CallKind::Endpoint, 0, 0, (None, 1)),
        ];
        for header in headers {
            assert_eq!(Header::unpack(header.pack()), header);
        }
        assert!(header().is_symmetric() && !headers[1].is_symmetric());
    }

    #[test]
    fn signatures_differ_by_call_but_not_by_location() {
        let elsewhere = Location::Private { address: 64 };
        assert_eq!(
            header().signature(),
            Header { input: elsewhere, output: elsewhere, ..header() }.signature()
        );
        let others = [
            Header { what: CallKind::Window, ..header() },
            Header { what: CallKind::Collective(8), ..header() },
            Header { plan: 8, ..header() },
            Header { count: 10, ..header() },
            Header { uneven: true, ..header() },
            Header { aliasing: Aliasing::OutOfPlace, ..header() },
            Header { reduction: Some(Reduction::Sum), ..header() },
            Header { deterministic: true, ..header() },
            Header { data_type: Some(DataType::F16), ..header() },
            Header { root: 1, ..header() },
            Header { detail: 6, ..header() },
        ];
        assert!(others.iter().all(|other| other.signature() != header().signature()));
    }

    #[test]
    fn rooted_calls_need_not_agree_on_being_in_place() {
        let gather = Header { what: CallKind::Collective(6), ..header() };
        assert_eq!(gather.signature(), Header { aliasing: Aliasing::OutOfPlace, ..gather }.signature());
    }

    #[test]
    fn different_counts_have_different_signatures() {
        let header = |count| Header { count, ..header() };
        let signatures: std::collections::HashSet<_> =
            (0..200_000).map(|count| header(count).signature()).collect();
        assert_eq!(signatures.len(), 200_000);
        assert_ne!(header(5).signature(), header(5 + (1 << 32)).signature());
    }
}
