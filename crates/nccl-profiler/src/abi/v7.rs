//! Version 7: NCCL 2.31 and later. There are events of phases of kernels, and tags that a program gives its calls.

#![allow(unsafe_code)] // Addresses of NCCL.

use std::ffi::{c_char, c_int, c_void};

use weftlink_nccl_plugin::log::LoggerFunction;
use weftlink_nccl_plugin::text::Name;

use super::{
    Finalize, ProxyOp, StateArguments, StopEvent, event, finalize, named, net, signed, stop_event, value,
    words,
};
use crate::communicator::Identity;
use crate::event::{Kind, Start};

/// `ncclProfilerEventDescr_v7_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Descriptor {
    pub(super) kind: u64,
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
    pub(super) group_api: GroupApi,
    pub(super) coll_api: CollApi,
    pub(super) p2p_api: P2pApi,
    pub(super) kernel_launch: KernelLaunch,
    pub(super) ce_coll: CeColl,
    pub(super) ce_sync: CeSync,
    pub(super) ce_batch: CeBatch,
    pub(super) kernel_phase: KernelPhase,
    pub(super) proxy_op: ProxyOp,
    pub(super) proxy_step: c_int,
}

/// A collective.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Coll {
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
    pub(super) group: *mut c_void,
    pub(super) kernel: *const c_char,
    pub(super) is_symmetric: u8,
    pub(super) tag: u64,
}

/// A message.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct P2p {
    pub(super) function: *const c_char,
    pub(super) buffer: *mut c_void,
    pub(super) data_type: *const c_char,
    pub(super) count: usize,
    pub(super) peer: c_int,
    pub(super) channels: u8,
    pub(super) group: *mut c_void,
    pub(super) tag: u64,
}

/// A kernel on a channel.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct KernelCh {
    pub(super) channel: u8,
    pub(super) gpu_ns: u64,
}

/// A transfer of a network's plugin.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct NetPlugin {
    pub(super) plugin: i64,
    pub(super) data: *mut c_void,
}

/// A group of the program.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct GroupApi {
    pub(super) is_captured: u8,
    pub(super) depth: c_int,
}

/// A call of the program.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CollApi {
    pub(super) function: *const c_char,
    pub(super) count: usize,
    pub(super) data_type: *const c_char,
    pub(super) root: c_int,
    pub(super) stream: *mut c_void,
    pub(super) is_captured: u8,
    pub(super) tag: u64,
}

/// A message of the program.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct P2pApi {
    pub(super) function: *const c_char,
    pub(super) count: usize,
    pub(super) data_type: *const c_char,
    pub(super) stream: *mut c_void,
    pub(super) is_captured: u8,
    pub(super) tag: u64,
}

/// The launch of a kernel.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct KernelLaunch {
    pub(super) stream: *mut c_void,
}

/// A collective of copy engines.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CeColl {
    pub(super) sequence: u64,
    pub(super) function: *const c_char,
    pub(super) send: *const c_void,
    pub(super) receive: *mut c_void,
    pub(super) count: usize,
    pub(super) root: c_int,
    pub(super) data_type: *const c_char,
    pub(super) strategy: *const c_char,
    pub(super) is_synced_inside: u8,
    pub(super) batch_size: u32,
    pub(super) batches: u32,
    pub(super) copy_sequence: u32,
    pub(super) stream: *mut c_void,
    pub(super) tag: u64,
}

/// A synchronisation of copy engines.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CeSync {
    pub(super) is_complete: u8,
    pub(super) ranks: c_int,
}

/// A batch of copies.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CeBatch {
    pub(super) operations: c_int,
    pub(super) bytes: usize,
    pub(super) is_synced_inside: u8,
}

/// A phase of a kernel.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct KernelPhase {
    pub(super) channel: u8,
    pub(super) phase: u8,
    pub(super) name: *const c_char,
    pub(super) gpu_ns: u64,
}

/// `ncclProfiler_v7_t`.
#[repr(C)]
pub(super) struct Profiler {
    pub(super) name: Name,
    pub(super) init: unsafe extern "C" fn(
        *mut *mut c_void,
        u64,
        *mut c_int,
        *const c_char,
        c_int,
        c_int,
        c_int,
        Option<LoggerFunction>,
    ) -> c_int,
    pub(super) start_event: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const Descriptor) -> c_int,
    pub(super) stop_event: StopEvent,
    pub(super) record_event_state: unsafe extern "C" fn(*mut c_void, c_int, *const StateArguments) -> c_int,
    pub(super) finalize: Finalize,
}

#[allow(non_upper_case_globals, reason = "NCCL's name")]
#[unsafe(no_mangle)]
static ncclProfiler_v7: Profiler =
    Profiler { name: super::NAME, init, start_event, stop_event, record_event_state, finalize };

/// # Safety
/// NCCL calls it, with addresses as its interface says.
unsafe extern "C" fn init(
    context: *mut *mut c_void,
    communicator: u64,
    mask: *mut c_int,
    name: *const c_char,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    logger: Option<LoggerFunction>,
) -> c_int {
    // SAFETY: the caller's promise.
    let name = unsafe { weftlink_nccl_plugin::text::name(name) }.map(str::to_owned);
    let identity = Identity { number: communicator, name, rank, ranks, nodes };
    // SAFETY: the caller's promise.
    unsafe { super::init(context, mask, identity, logger) }
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
    let kind = Kind::of_type(kind)?;
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
                    named(coll.kernel),
                ]);
                event(words)
            }
            Kind::P2p => {
                let p2p = of.p2p;
                let words = words([
                    named(p2p.function),
                    p2p.count as u64,
                    named(p2p.data_type),
                    signed(p2p.peer),
                    p2p.channels.into(),
                ]);
                event(words)
            }
            Kind::ProxyOp => of.proxy_op.event(parent, rank),
            Kind::ProxyStep => event(words([signed(of.proxy_step)])),
            Kind::Group | Kind::ProxyCtrl => event(words([])),
            Kind::KernelCh => event(words([of.kernel_ch.channel.into(), of.kernel_ch.gpu_ns])),
            Kind::NetPlugin => event(net::transfer(of.net_plugin.plugin, of.net_plugin.data)),
            Kind::GroupApi => {
                event(words([(of.group_api.is_captured != 0).into(), signed(of.group_api.depth)]))
            }
            Kind::CollApi => {
                let call = of.coll_api;
                event(words([
                    named(call.function),
                    call.count as u64,
                    named(call.data_type),
                    signed(call.root),
                    call.stream.addr() as u64,
                    (call.is_captured != 0).into(),
                    call.tag,
                ]))
            }
            Kind::P2pApi => {
                let call = of.p2p_api;
                event(words([
                    named(call.function),
                    call.count as u64,
                    named(call.data_type),
                    call.stream.addr() as u64,
                    (call.is_captured != 0).into(),
                    call.tag,
                ]))
            }
            Kind::KernelLaunch => event(words([of.kernel_launch.stream.addr() as u64])),
            Kind::CeColl => {
                let coll = of.ce_coll;
                event(words([
                    named(coll.function),
                    coll.count as u64,
                    named(coll.data_type),
                    signed(coll.root),
                    coll.sequence,
                    named(coll.strategy),
                    coll.batch_size.into(),
                    coll.batches.into(),
                    coll.stream.addr() as u64,
                    coll.tag,
                ]))
            }
            Kind::CeSync => event(words([(of.ce_sync.is_complete != 0).into(), signed(of.ce_sync.ranks)])),
            Kind::CeBatch => {
                let batch = of.ce_batch;
                event(words([
                    signed(batch.operations),
                    batch.bytes as u64,
                    (batch.is_synced_inside != 0).into(),
                ]))
            }
            Kind::KernelPhase => {
                let phase = of.kernel_phase;
                event(words([phase.channel.into(), phase.gpu_ns, named(phase.name)]))
            }
        })
    }
}
