//! What the built-in networks of NCCL say of a transfer. The upper half of a plugin's number is its kind, the lower half the version of the
//! structure. Sources: `src/include/plugin/profiler/net_ib_v1.h`, `net_socket_v1.h`.

#![allow(unsafe_code)] // Addresses of NCCL.

use std::ffi::{c_int, c_void};

use super::{signed, words};
use crate::event::Words;

const INFINIBAND_V1: i64 = 0x1_0001;
const SOCKET_V1: i64 = 0x2_0001;

/// `ncclProfilerNetIbDescr_v1_t`, of a queue pair.
#[repr(C)]
pub(super) struct QueuePair {
    pub(super) kind: u8,
    pub(super) of: OfQueuePair,
}

/// The member of its union.
#[repr(C)]
pub(super) struct OfQueuePair {
    pub(super) device: c_int,
    pub(super) request: u64,
    pub(super) opcode: c_int,
    pub(super) queue_pair: c_int,
    pub(super) bytes: usize,
}

/// `ncclProfilerNetSockDescr_v1_t`, of a socket.
#[repr(C)]
pub(super) struct Socket {
    pub(super) kind: u8,
    pub(super) of: OfSocket,
}

/// The member of its union.
#[repr(C)]
pub(super) struct OfSocket {
    pub(super) descriptor: c_int,
    pub(super) operation: c_int,
    pub(super) bytes: usize,
}

/// The only kind of both.
const TRANSFER: u8 = 1;

/// The numbers of a transfer.
///
/// # Safety
/// `data` is null or the structure that belongs to the plugin.
pub(super) unsafe fn transfer(plugin: i64, data: *const c_void) -> Words {
    let unknown = words([plugin as u64, signed(-1), signed(-1), signed(-1), 0, 0, signed(-1)]);
    if data.is_null() {
        return unknown;
    }
    match plugin {
        INFINIBAND_V1 => {
            // SAFETY: the caller's promise.
            let QueuePair { kind, of } = unsafe { &*data.cast::<QueuePair>() };
            match *kind {
                TRANSFER => words([
                    plugin as u64,
                    signed(of.device),
                    signed(of.queue_pair),
                    signed(of.opcode),
                    of.bytes as u64,
                    of.request,
                    signed(-1),
                ]),
                _ => unknown,
            }
        }
        SOCKET_V1 => {
            // SAFETY: the caller's promise.
            let Socket { kind, of } = unsafe { &*data.cast::<Socket>() };
            match *kind {
                TRANSFER => words([
                    plugin as u64,
                    signed(-1),
                    signed(-1),
                    signed(of.operation),
                    of.bytes as u64,
                    0,
                    signed(of.descriptor),
                ]),
                _ => unknown,
            }
        }
        _ => unknown,
    }
}
