//! Version 3: NCCL 2.26 and later. There are events of kernels and of networks.

#![allow(unsafe_code)] // Addresses of NCCL.

use std::ffi::{c_char, c_int, c_void};

use weftlink_nccl_plugin::text::Name;

use super::v1::{StateArguments, value};
use super::{Finalize, ProxyOp, StopEvent, event, finalize, named, net, signed, stop_event, words};
use crate::communicator::Identity;
use crate::event::{Kind, Start};

/// `ncclProfilerEventDescr_v3_t`.
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
    pub(super) kernel_ch: KernelCh,
    pub(super) net_plugin: NetPlugin,
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
    pub(super) function: *const c_char,
    pub(super) send: *const c_void,
    pub(super) receive: *mut c_void,
    pub(super) count: usize,
    pub(super) root: c_int,
    pub(super) data_type: *const c_char,
    pub(super) channels: u8,
    pub(super) warps: u8,
    pub(super) algorithm: *const c_char,
    pub(super) protocol: *const c_char,
}

/// A message.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct P2p {
    pub(super) name: *const c_char,
    pub(super) communicator: u64,
    pub(super) function: *const c_char,
    pub(super) buffer: *mut c_void,
    pub(super) data_type: *const c_char,
    pub(super) count: usize,
    pub(super) peer: c_int,
}

/// A kernel on a channel.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct KernelCh {
    pub(super) channel: u8,
}

/// A transfer of a network's plugin.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct NetPlugin {
    pub(super) plugin: i64,
    pub(super) data: *mut c_void,
}

/// `ncclProfiler_v3_t`.
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
static ncclProfiler_v3: Profiler =
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
                    named(coll.function),
                    coll.count as u64,
                    named(coll.data_type),
                    signed(coll.root),
                    coll.sequence,
                    coll.channels.into(),
                    coll.warps.into(),
                    named(coll.algorithm),
                    named(coll.protocol),
                    crate::interned::NONE,
                ]);
                Start { communicator: coll.communicator, ..event(words) }
            }
            Kind::P2p => {
                let p2p = of.p2p;
                let words =
                    words([named(p2p.function), p2p.count as u64, named(p2p.data_type), signed(p2p.peer), 0]);
                Start { communicator: p2p.communicator, ..event(words) }
            }
            Kind::ProxyOp => of.proxy_op.event(parent, rank),
            Kind::ProxyStep => event(words([signed(of.proxy_step)])),
            Kind::Group | Kind::ProxyCtrl => event(words([])),
            Kind::KernelCh => event(words([of.kernel_ch.channel.into(), 0])),
            Kind::NetPlugin => event(net::transfer(of.net_plugin.plugin, of.net_plugin.data)),
            Kind::GroupApi
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
