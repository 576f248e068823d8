//! The interface of profiler plugins, versions 1 to 7: structures per version, which NCCL finds by their names (`ncclProfiler_v5`).
//!
//! NCCL asks for the newest that it knows. Sources: `src/include/plugin/profiler/`, `src/include/plugin/nccl_profiler.h` and
//! `src/plugin/profiler.cc` of NCCL. Here is what the versions share: from addresses to references, and back.

#![allow(unsafe_code)] // Addresses of NCCL.

#[cfg(test)]
mod layout;
mod net;
mod v1;
mod v2;
mod v3;
mod v4;
mod v5;
mod v6;
mod v7;

use std::ffi::{c_char, c_int, c_void};
use std::sync::Once;

use weftlink_nccl_plugin::boundary::Boundary;
use weftlink_nccl_plugin::log::{Logger, LoggerFunction, Subsystem};
use weftlink_nccl_plugin::text::{self, Name};

use crate::communicator::process::{self, Now};
use crate::communicator::{self, Communicator, Identity};
use crate::event::{Kind, Start, WORDS, Words};
use crate::interned;
use crate::settings::settings;

const NAME: Name = Name::new(c"Weft");

static BOUNDARY: Boundary = Boundary::new("weft profiler");

type Finalize = extern "C" fn(*mut c_void) -> c_int;
type StopEvent = extern "C" fn(*mut c_void) -> c_int;

/// Makes a communicator, and tells NCCL which events to report.
///
/// # Safety
/// `context` and `mask` are null or places for an address and a number; `logger` is NCCL's.
unsafe fn init(
    context: *mut *mut c_void,
    mask: *mut c_int,
    identity: Identity,
    logger: Option<LoggerFunction>,
) -> c_int {
    // SAFETY: the caller's promise.
    let logger = unsafe { Logger::new(logger, Subsystem::Profile) };
    if context.is_null() || mask.is_null() {
        return BOUNDARY
            .run(Some(&logger), || logger.warn("weft profiler: NCCL passed no place for its context"));
    }
    // SAFETY: the caller's promise. If a panic follows, NCCL reports nothing.
    unsafe {
        context.write(std::ptr::null_mut());
        mask.write(0);
    }
    BOUNDARY.run(Some(&logger), || {
        write_trace_at_exit();
        let Some(communicator) = Communicator::begin(identity, logger) else { return };
        // SAFETY: the caller's promise. The address is a number: nobody reads what is there.
        unsafe {
            context.write(std::ptr::without_provenance_mut(communicator.context() as usize));
            mask.write(settings().mask as c_int);
        }
    })
}

/// A program may end without ending its communicators.
fn write_trace_at_exit() {
    extern "C" fn at_exit() {
        BOUNDARY.run(None, || process::write_trace(Now::Exiting));
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function stays: the library is never unloaded (build.rs).
        unsafe { libc::atexit(at_exit) };
    });
}

/// Starts an event. The context is a number, and any number is allowed: NCCL lets the proxy of one process work for another, and passes on
/// the context of that one.
///
/// # Safety
/// `handle` is null or a place for an address.
unsafe fn start(context: *mut c_void, handle: *mut *mut c_void, start: Option<Start>) -> c_int {
    if handle.is_null() {
        return BOUNDARY.run(None, || {});
    }
    // SAFETY: the caller's promise. Without an event, NCCL reports no end.
    unsafe { handle.write(std::ptr::null_mut()) };
    if context.is_null() {
        return BOUNDARY.run(None, || {});
    }
    BOUNDARY.run(None, || {
        let Some(start) = start else {
            process::pool().counts.unknown.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            return;
        };
        let number = communicator::start(context.addr() as u64, &start);
        // SAFETY: the caller's promise. The address is a number: nobody reads what is there.
        unsafe { handle.write(std::ptr::without_provenance_mut(number as usize)) };
    })
}

/// Stops an event. The handle is a number, and any number is allowed.
extern "C" fn stop_event(handle: *mut c_void) -> c_int {
    BOUNDARY.run(None, || {
        if !handle.is_null() {
            communicator::stop(handle.addr() as u64);
        }
    })
}

/// Adds a state to an event. The handle is a number, and any number is allowed.
fn add_state(handle: *mut c_void, state: c_int, value: u64) -> c_int {
    BOUNDARY.run(None, || {
        if !handle.is_null() {
            communicator::add_state(handle.addr() as u64, u64::from(state as u8), value);
        }
    })
}

/// Ends a communicator. The context is a number, and any number is allowed.
extern "C" fn finalize(context: *mut c_void) -> c_int {
    BOUNDARY.run(None, || {
        if let Some(communicator) = process::of_context(context.addr() as u64) {
            communicator.end();
        }
    })
}

/// The number of an event from its handle.
fn number(handle: *mut c_void) -> u64 {
    handle.addr() as u64
}

/// The number of a name.
///
/// # Safety
/// The address is null or that of a terminated text.
unsafe fn named(name: *const c_char) -> u64 {
    // SAFETY: the caller's promise.
    interned::number(unsafe { text::name(name) })
}

/// Numbers of an event, and zeros.
fn words<const COUNT: usize>(given: [u64; COUNT]) -> Words {
    let mut words = [0; WORDS];
    words[..COUNT].copy_from_slice(&given);
    words
}

/// An event with these numbers.
fn event(kind: Kind, parent: *mut c_void, rank: c_int, words: Words) -> Start {
    Start { kind, parent: number(parent), rank, communicator: 0, words }
}

/// An operation of a proxy, the same in all versions. The proxy of another process may have made it: what it is a part of is unknown here.
#[repr(C)]
#[derive(Clone, Copy)]
struct ProxyOp {
    pid: c_int,
    channel: u8,
    peer: c_int,
    steps: c_int,
    chunk_bytes: c_int,
    is_send: c_int,
}

impl ProxyOp {
    fn event(&self, parent: *mut c_void, rank: c_int) -> Start {
        let words = words([
            self.channel.into(),
            (self.is_send != 0).into(),
            signed(self.peer),
            signed(self.steps),
            signed(self.chunk_bytes),
            signed(self.pid),
        ]);
        let is_own = self.pid as u32 == std::process::id();
        Start { parent: if is_own { number(parent) } else { 0 }, ..event(Kind::ProxyOp, parent, rank, words) }
    }
}

/// A number that may be negative.
fn signed(number: c_int) -> u64 {
    i64::from(number) as u64
}

/// What NCCL passes with a state since version 4.
#[repr(C)]
#[derive(Clone, Copy)]
union StateArguments {
    bytes: usize,
    appended: c_int,
    data: *mut c_void,
    gpu_ns: u64,
}

/// The value of a state since version 4.
///
/// # Safety
/// The address is null or that of arguments, in which NCCL has set the member that belongs to the state.
unsafe fn value(state: c_int, arguments: *const StateArguments) -> u64 {
    if arguments.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise; the members are numbers, for which any bits are valid.
    unsafe {
        match state {
            8..=12 | 20 => (*arguments).bytes as u64,
            13..=18 => (*arguments).appended.max(0) as u64,
            22 | 31 => (*arguments).gpu_ns,
            // The data of networks' plugins is only theirs.
            _ => 0,
        }
    }
}
