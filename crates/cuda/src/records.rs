//! The records of a device program, as the kernel reads them: the same layout as `device/program.h`, which a test compares.

// Plain memory, which is copied as bytes.
#![allow(unsafe_code)]

use bytemuck::{Pod, Zeroable};

/// All parameters of a kernel.
pub(crate) const CALL_BYTES: usize = 4096;
pub(crate) const RANKS_MAX: usize = 128;
/// Inputs or outputs of a step.
pub(crate) const OPERANDS_MAX: usize = 64;
/// Views and a program that a block copies to its shared memory.
pub(crate) const SHARED_BYTES: usize = 16 << 10;
/// Words of a rank's entry in control memory.
pub(crate) const ENTRY_WORDS: u32 = 8;
/// The head of a message in its slot.
pub(crate) const HEAD_BYTES: u64 = 16;

pub(crate) const INPUT: u8 = 0;
pub(crate) const OUTPUT: u8 = 1;
pub(crate) const PEER_INPUT: u8 = 2;
pub(crate) const PEER_OUTPUT: u8 = 3;
pub(crate) const SCRATCH: u8 = 4;
pub(crate) const MESSAGE: u8 = 5;
pub(crate) const PACKET: u8 = 6;
pub(crate) const SWITCH: u8 = 7;

pub(crate) const ENTERED: u8 = 0;
pub(crate) const REACHED: u8 = 1;
pub(crate) const ARRIVED: u8 = 2;
pub(crate) const CREDIT: u8 = 3;
/// A signal of a window.
pub(crate) const SIGNALLED: u8 = 4;
/// A chunk of a message between two ranks, and room for one.
pub(crate) const MESSAGE_SENT: u8 = 5;
pub(crate) const MESSAGE_TAKEN: u8 = 6;

pub(crate) const WAITING: u32 = 1;
pub(crate) const TIMED_OUT: u32 = 2;
pub(crate) const MISMATCH: u32 = 3;
pub(crate) const ABORTED: u32 = 4;
pub(crate) const PEER_FAILED: u32 = 5;
pub(crate) const GONE: u32 = 6;
pub(crate) const OUTSIDE: u32 = 7;

/// Presence words: a rank has left, its process has ended, or the connection to it was lost.
pub(crate) const LEFT: u32 = 1;
pub(crate) const DIED: u32 = 2;
pub(crate) const LOST: u32 = 3;
/// In the presence words of all ranks, with the rank that aborted.
pub(crate) const ABORTED_BY: u32 = 16;

/// A failure word has this and the rank whose call failed.
pub(crate) const FAILED_AT: u32 = 2;

pub(crate) const MOVES: u8 = 1;
pub(crate) const PACKETS: u8 = 2;
pub(crate) const MESSAGES: u8 = 4;
pub(crate) const FINISHES: u8 = 8;
pub(crate) const RELAXED: u8 = 16;
pub(crate) const FINISHES_FIRST: u8 = 32;
pub(crate) const BY_SWITCH: u8 = 64;

/// The constants of both languages, as the macros that `device/program.h` expects.
pub(crate) fn macros() -> String {
    format!(
        "#define WEFT_RANKS_MAX {RANKS_MAX}\n#define WEFT_OPERANDS_MAX {OPERANDS_MAX}\n#define WEFT_ENTRY_WORDS {ENTRY_WORDS}\n#define WEFT_SHARED_BYTES {SHARED_BYTES}\n#define WEFT_FAILED_AT {FAILED_AT}\n#define WEFT_ABORTED_BY {ABORTED_BY}\n"
    )
}

macro_rules! records {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident: $kind:ty),+ $(,)? })+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
            #[repr(C)]
            pub(crate) struct $name { $(pub(crate) $field: $kind),+ }
        )+

        /// The size of each record and the offset of each field, by name.
        #[cfg(test)]
        pub(crate) fn layouts() -> Vec<(&'static str, usize, Vec<(&'static str, usize)>)> {
            vec![$((
                stringify!($name),
                size_of::<$name>(),
                vec![$((stringify!($field), std::mem::offset_of!($name, $field))),+],
            )),+]
        }
    };
}

records! {
    struct Operand { kind: u8, reserved: u8, index: u16, number: u32, offset: u64 }
    struct Poll { word: u32, per_tile: u32, value: i32, kind: u8, rank: u8, reserved: u16 }
    struct Post { word: u64, per_tile: u32, value: i32 }
    struct Step {
        bytes: u16, entries: u8, polls: u8, inputs: u8, outputs: u8, posts: u8, flags: u8,
        ordinal: u32, tile: u32, elements: u64,
    }
    struct Fifo { slots: u64, slice_stride: u64, slot_bytes: u32, slot_mask: u32, per_tile: u32, peer: u32 }
    struct View { input: u64, output: u64 }
    struct Lane { first: u32, first_bytes: u32, last: u32, last_bytes: u32 }
    struct CallHeader {
        tiles_run: u64, failure: u64, control: u64, control_stride: u64, program: u64,
        rank: u32, ranks: u32, lanes: u32, slices: u32,
        program_bytes: u32, unit_elements: u32,
        input: u64, output: u64,
        tiles: u64, first_offset: u64, first_elements: u32,
        signature: u32, announces: u32, fifos: u32, lists: u32, combined: u32,
        repeats: u64, tile_bytes: u64,
        presence: u64, reports: u64, timeout_ns: u64, trace: u64,
        has_whole_words: u32, number: u32, reserved: [u32; 2],
        factor: u64,
    }
    /// What a block that waits long writes to host memory.
    struct Report {
        kind: u32, signature: u32, lane: u32, slice: u32, step: u32, rank: u32, poll: u32, other: u32,
        tile: u32, call: u32, waited_ms: u32, started: u32, reserved: [u32; 4],
    }
    struct Trace { rank: u16, lane: u16, slice: u32, step: u32, tile: u32 }
}
