//! The records of a device program, as the kernel reads them: the same layout as `device/program.h`, which a test compares.

// Plain memory, which is copied as bytes.
#![allow(unsafe_code)]

use bytemuck::{Pod, Zeroable};

/// All parameters of a kernel.
pub(crate) const CALL_BYTES: usize = 4096;
/// The largest step.
pub(crate) const STEP_BYTES: usize = 4096;
/// The largest tables: peers, FIFO ends and lanes. Steps need the rest of the shared memory.
pub(crate) const TABLES_BYTES: usize = 8192;
pub(crate) const RANKS_MAX: usize = 128;
pub(crate) const FIFOS_MAX: usize = 128;
pub(crate) const OPERANDS_MAX: usize = 64;
/// Words of a rank's entry in control memory.
pub(crate) const ENTRY_WORDS: u32 = 8;

pub(crate) const OP_SYNC: u8 = 0;
pub(crate) const OP_COPY: u8 = 1;
pub(crate) const OP_REDUCE: u8 = 2;

pub(crate) const MEMORY: u8 = 0;
pub(crate) const MEMORY_TILED: u8 = 1;
pub(crate) const MESSAGE: u8 = 2;
pub(crate) const PACKET: u8 = 3;

pub(crate) const ENTERED: u8 = 0;
pub(crate) const REACHED: u8 = 1;
pub(crate) const ARRIVED: u8 = 2;
pub(crate) const CREDIT: u8 = 3;

pub(crate) const SIGNAL: u8 = 0;
pub(crate) const SENT: u8 = 1;
pub(crate) const RELEASE: u8 = 2;
pub(crate) const RELEASE_PACKETS: u8 = 3;

pub(crate) const LOOP_ANY: u8 = 0;
pub(crate) const LOOP_PACKETS: u8 = 1;
pub(crate) const LOOP_PACKETS_OF: u8 = 2;
pub(crate) const LOOP_VECTORS: u8 = 32;

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
    struct Operand { kind: u8, reserved: u8, index: u16, reserved2: u32, offset: u64 }
    struct Poll { kind: u8, rank: u8, index: u16, value: u32, per_tile: u32, word: u32 }
    struct Post { kind: u8, rank: u8, index: u16, value: u32, per_tile: u32, word: u32 }
    struct Step {
        bytes: u16, op: u8, r#loop: u8, polls: u8, inputs: u8, outputs: u8, posts: u8,
        ordinal: u32, tile: u32, finishes: u32, enters: u32, elements: u64,
    }
    struct Fifo {
        slots: u64, slice_stride: u64, slot_bytes: u32, slot_mask: u32, reserved: u32, depth: u16, peer: u8, lane: u8,
        per_tile: u32, own_word: u32, peer_word: u32, state_word: u32,
    }
    struct Peer { control: u64, scratch: u64 }
    struct View { input: u64, output: u64 }
    struct Lane { first: u32, first_bytes: u32, last: u32, last_bytes: u32 }
    struct CallHeader {
        rank: u32, ranks: u32, lanes: u32, slices: u32,
        fifos: u32, signature: u32, announces: u32, program_bytes: u32,
        tiles: u64, repeats: u64, tile_bytes: u64,
        unit_elements: u32, entry_word: u32,
        program: u64,
        control: u64, control_stride: u64,
        state: u64, state_stride: u64,
        abort: u64, reports: u64, timeout_ns: u64, trace: u64,
    }
    /// What a block that waits long writes to host memory.
    struct Report {
        kind: u32, signature: u32, lane: u32, slice: u32, step: u32, rank: u32, poll: u32, other: u32,
        tile: u64, epoch: u64, reserved: [u64; 2],
    }
    struct Trace { rank: u16, lane: u16, slice: u32, step: u32, tile: u32 }
}
