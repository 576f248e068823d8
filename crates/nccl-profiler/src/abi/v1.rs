//! Version 1: NCCL 2.23 and later. Functions, types, algorithms and protocols are numbers; NCCL says nothing of a communicator when it is made.

#![allow(unsafe_code)] // Addresses of NCCL.

use std::ffi::{c_char, c_int, c_void};

use weftlink_nccl_plugin::names::{ALGORITHMS, DATA_TYPES, FUNCTIONS, PROTOCOLS, name};
use weftlink_nccl_plugin::text::Name;

use super::{Finalize, ProxyOp, StopEvent, event, finalize, signed, stop_event, words};
use crate::communicator::Identity;
use crate::event::{Kind, Start};
use crate::interned;

/// `ncclProfilerEventDescr_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Descriptor {
    pub(super) kind: u8,
    pub(super) parent: *mut c_void,
    pub(super) rank: c_int,
    pub(super) of: Of,
}

/// The member that belongs to the kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union Of {
    pub(super) coll: Coll,
    pub(super) p2p: P2p,
    pub(super) proxy_op: ProxyOp,
    pub(super) proxy_step: c_int,
}

/// A collective.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Coll {
    pub(super) name: *const c_char,
    pub(super) communicator: u64,
    pub(super) sequence: u64,
    pub(super) function: u8,
    pub(super) send: *const c_void,
    pub(super) receive: *mut c_void,
    pub(super) count: usize,
    pub(super) root: c_int,
    pub(super) data_type: u8,
    pub(super) operation: u32,
    pub(super) traffic_bytes: usize,
    pub(super) channels: u8,
    pub(super) warps: u8,
    pub(super) algorithm: u8,
    pub(super) protocol: u8,
    pub(super) is_collnet: c_int,
    pub(super) is_nvls: c_int,
}

/// A message.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct P2p {
    pub(super) name: *const c_char,
    pub(super) communicator: u64,
    pub(super) function: u8,
    pub(super) buffer: *mut c_void,
    pub(super) data_type: u8,
    pub(super) count: usize,
    pub(super) peer: c_int,
}

/// `ncclProfilerEventStateArgs_v1_t`, the same in versions 1 to 3.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union StateArguments {
    pub(super) proxy_op: Transferred,
    pub(super) appended: c_int,
}

/// What an operation of a proxy has transferred.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Transferred {
    pub(super) bytes: usize,
    pub(super) steps: c_int,
}

/// `ncclProfiler_v1_t`.
#[repr(C)]
pub(super) struct Profiler {
    pub(super) name: Name,
    pub(super) init: unsafe extern "C" fn(*mut *mut c_void, *mut c_int) -> c_int,
    pub(super) start_event: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const Descriptor) -> c_int,
    pub(super) stop_event: StopEvent,
    pub(super) record_event_state: unsafe extern "C" fn(*mut c_void, c_int, *const StateArguments) -> c_int,
    pub(super) finalize: Finalize,
}

#[allow(non_upper_case_globals, reason = "NCCL's name")]
#[unsafe(no_mangle)]
static ncclProfiler_v1: Profiler =
    Profiler { name: super::NAME, init, start_event, stop_event, record_event_state, finalize };

/// # Safety
/// NCCL calls it, with addresses as its interface says.
unsafe extern "C" fn init(context: *mut *mut c_void, mask: *mut c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { super::init(context, mask, Identity::UNKNOWN, None) }
}

/// # Safety
/// NCCL calls it, with addresses as its interface says.
unsafe extern "C" fn start_event(
    context: *mut c_void,
    handle: *mut *mut c_void,
    descriptor: *const Descriptor,
) -> c_int {
    if descriptor.is_null() {
        // SAFETY: the caller's promise.
        return unsafe { super::start(std::ptr::null_mut(), handle, None) };
    }
    // SAFETY: the caller's promise.
    unsafe { super::start(context, handle, start(&*descriptor)) }
}

/// # Safety
/// NCCL calls it, with addresses as its interface says.
unsafe extern "C" fn record_event_state(
    handle: *mut c_void,
    state: c_int,
    arguments: *const StateArguments,
) -> c_int {
    // SAFETY: the caller's promise.
    super::add_state(handle, state, unsafe { value(state, arguments) })
}

/// The value of a state in versions 1 to 3.
///
/// # Safety
/// The address is null or that of arguments, in which NCCL has set the member that belongs to the state.
pub(super) unsafe fn value(state: c_int, arguments: *const StateArguments) -> u64 {
    if arguments.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise; the members are numbers, for which any bits are valid.
    unsafe {
        match state {
            0..=7 => (*arguments).proxy_op.bytes as u64,
            13..=18 => (*arguments).appended.max(0) as u64,
            _ => 0,
        }
    }
}

/// The event that NCCL describes; nothing if its kind is of another version.
///
/// # Safety
/// The member that belongs to the kind is set, and its texts are terminated.
unsafe fn start(descriptor: &Descriptor) -> Option<Start> {
    let Descriptor { kind, parent, rank, of } = *descriptor;
    let kind = Kind::of_type(kind.into())?;
    let event = |words| event(kind, parent, rank, words);
    // SAFETY: the caller's promise: each arm reads the member of its kind.
    unsafe {
        Some(match kind {
            Kind::Coll => {
                let coll = of.coll;
                let words = words([
                    named(&FUNCTIONS, coll.function),
                    coll.count as u64,
                    named(&DATA_TYPES, coll.data_type),
                    signed(coll.root),
                    coll.sequence,
                    coll.channels.into(),
                    coll.warps.into(),
                    named(&ALGORITHMS, coll.algorithm),
                    named(&PROTOCOLS, coll.protocol),
                    interned::NONE,
                ]);
                Start { communicator: coll.communicator, ..event(words) }
            }
            Kind::P2p => {
                let p2p = of.p2p;
                let words = words([
                    named(&FUNCTIONS, p2p.function),
                    p2p.count as u64,
                    named(&DATA_TYPES, p2p.data_type),
                    signed(p2p.peer),
                    0,
                ]);
                Start { communicator: p2p.communicator, ..event(words) }
            }
            Kind::ProxyOp => of.proxy_op.event(parent, rank),
            Kind::ProxyStep => event(words([signed(of.proxy_step)])),
            Kind::Group | Kind::ProxyCtrl => event(words([])),
            Kind::KernelCh
            | Kind::NetPlugin
            | Kind::GroupApi
            | Kind::CollApi
            | Kind::P2pApi
            | Kind::KernelLaunch
            | Kind::CeColl
            | Kind::CeSync
            | Kind::CeBatch
            | Kind::KernelPhase => return None,
        })
    }
}

/// The number of the name that belongs to a number of NCCL.
fn named(names: &'static [&'static str], number: u8) -> u64 {
    interned::number(Some(name(names, number.into(), "unknown")))
}
