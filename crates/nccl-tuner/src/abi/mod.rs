//! The interface of tuner plugins, versions 2 to 7: a structure per version, which NCCL finds by its name (`ncclTunerPlugin_v5`).
//!
//! NCCL asks for the newest that it knows. Sources: `src/include/plugin/tuner/` and `src/plugin/tuner.cc` of NCCL. Here is what the versions
//! share: from addresses to references, and back.

#![allow(unsafe_code)] // Addresses of NCCL.

mod v2;
mod v3;
mod v4;
mod v5;
mod v6;
mod v7;

use std::ffi::{c_int, c_void};

use weftlink_nccl_plugin::boundary::Boundary;
use weftlink_nccl_plugin::log::{Logger, LoggerFunction, Subsystem};
use weftlink_nccl_plugin::text::Name;

use crate::communicator::{Communicator, Support};
use crate::costs::Costs;

const NAME: Name = Name::new(c"Weft");

static BOUNDARY: Boundary = Boundary::new("weft tuner");

/// Makes a communicator.
///
/// # Safety
/// `context` is null or a place for an address; `logger` is NCCL's.
unsafe fn init(
    context: *mut *mut c_void,
    ranks: usize,
    nodes: usize,
    logger: Option<LoggerFunction>,
) -> c_int {
    // SAFETY: the caller's promise.
    let logger = unsafe { Logger::new(logger, Subsystem::Tuning) };
    if context.is_null() {
        return BOUNDARY
            .run(Some(&logger), || logger.warn("weft tuner: NCCL passed no place for its context"));
    }
    // SAFETY: the caller's promise. If a panic follows, NCCL finds no communicator there.
    unsafe { context.write(std::ptr::null_mut()) };
    BOUNDARY.run(Some(&logger), || {
        let communicator = Box::new(Communicator::new(ranks, nodes, logger));
        // SAFETY: the caller's promise; `end` frees it.
        unsafe { context.write(Box::into_raw(communicator).cast()) };
    })
}

/// Puts the choice for a call into NCCL's costs.
///
/// # Safety
/// `context` is null or one that [`init`] wrote and [`end`] has not freed; `costs` is null or a table of `algorithms` times `protocols`
/// numbers that nothing else uses meanwhile; `channels` is null or a place for a number.
unsafe fn tune(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    (costs, algorithms, protocols): (*mut *mut f32, c_int, c_int),
    channels: *mut c_int,
) -> c_int {
    let Some(entries) =
        Costs::entries(algorithms, protocols).filter(|_| !context.is_null() && !costs.is_null())
    else {
        return BOUNDARY.run(None, || {});
    };
    // SAFETY: the caller's promise: the context is a communicator.
    let communicator = unsafe { &*context.cast_const().cast::<Communicator>() };
    BOUNDARY.run(Some(&communicator.logger), || {
        let Ok(function) = usize::try_from(function) else { return };
        // SAFETY: the caller's promise. The type in NCCL's declaration says otherwise: the address is that of the first number.
        let entries = unsafe { std::slice::from_raw_parts_mut(costs.cast::<f32>(), entries) };
        let mut costs = Costs::new(entries, protocols as usize);
        let chosen = communicator.tune(function, bytes as u64, &mut costs);
        // SAFETY: the caller's promise.
        unsafe { write(channels, chosen.map(|channels| channels as c_int)) };
    })
}

/// Writes the choice for a call of NCCL before 2.22.
///
/// # Safety
/// `context` is null or one that [`init`] wrote and [`end`] has not freed; the others are null or places for a number.
unsafe fn tune_without_costs(
    context: *mut c_void,
    function: c_int,
    bytes: usize,
    support: Support,
    (algorithm, protocol, channels): (*mut c_int, *mut c_int, *mut c_int),
) -> c_int {
    if context.is_null() || algorithm.is_null() || protocol.is_null() {
        return BOUNDARY.run(None, || {});
    }
    // SAFETY: the caller's promise: the context is a communicator.
    let communicator = unsafe { &*context.cast_const().cast::<Communicator>() };
    BOUNDARY.run(Some(&communicator.logger), || {
        let Ok(function) = usize::try_from(function) else { return };
        let Some(choice) = communicator.tune_without_costs(function, bytes as u64, support) else { return };
        // SAFETY: the caller's promise.
        unsafe {
            write(algorithm, Some(choice.way.algorithm as c_int));
            write(protocol, Some(choice.way.protocol as c_int));
            write(channels, choice.channels.map(|channels| channels as c_int));
        }
    })
}

/// # Safety
/// `place` is null or a place for a number.
unsafe fn write(place: *mut c_int, number: Option<c_int>) {
    if let Some(number) = number.filter(|_| !place.is_null()) {
        // SAFETY: the caller's promise.
        unsafe { place.write(number) };
    }
}

/// Frees a communicator.
///
/// # Safety
/// `context` is null or one that [`init`] wrote; nothing uses it any more.
unsafe fn end(context: *mut c_void) -> c_int {
    if context.is_null() {
        return BOUNDARY.run(None, || {});
    }
    // SAFETY: the caller's promise: it is the box that `init` made.
    let communicator = unsafe { Box::from_raw(context.cast::<Communicator>()) };
    BOUNDARY.run(None, || drop(communicator))
}
