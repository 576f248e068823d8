//! Memory that is known by its address, which somebody answers for: the program that passes an array to a call leaves it alone until
//! the call is over. If it does not, what is sent or read is a mixture of old and new, as with any library that lets other threads
//! run.

#![allow(unsafe_code)] // Addresses become slices.

use std::ptr::NonNull;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use pyo3::prelude::*;
use weftlink::{Background, RawRequest, while_waiting};

use crate::error::raised;
use crate::wait::signals;

/// A request whose memory somebody answers for.
pub(crate) struct Vouched(pub(crate) Box<RawRequest>);

/// Memory of a message.
pub(crate) struct Bytes {
    pub(crate) address: *mut u8,
    pub(crate) length: usize,
}

// SAFETY: the memory may be used from any thread; whoever uses it answers for when.
unsafe impl Send for Bytes {}

impl Bytes {
    /// # Safety
    /// The memory is there and nobody writes it for that long.
    pub(crate) unsafe fn read<'a>(&self) -> &'a [u8] {
        // SAFETY: the caller's promise.
        unsafe { from_raw_parts(self.here(), self.length) }
    }

    /// # Safety
    /// The memory is there and nobody else touches it for that long.
    pub(crate) unsafe fn write<'a>(&self) -> &'a mut [u8] {
        // SAFETY: the caller's promise.
        unsafe { from_raw_parts_mut(self.here(), self.length) }
    }

    /// What has no elements needs no address, but slices do.
    fn here(&self) -> *mut u8 {
        if self.length == 0 { NonNull::dangling().as_ptr() } else { self.address }
    }
}

/// Makes a call on this thread if no other is being made, or gives it back. An interrupt ends the communicator, because a call
/// cannot be taken back on one rank.
///
/// # Safety
/// As for [`Background::run_raw`].
pub(crate) unsafe fn run_here(
    py: Python<'_>,
    background: &Background,
    request: Vouched,
    operation: &'static str,
) -> Result<PyResult<()>, Vouched> {
    let (ran, interrupt) = py.detach(move || {
        let Vouched(request) = { request };
        let (interrupt, look) = signals(vec![background.clone()]);
        // SAFETY: the caller's promise.
        let ran = while_waiting(look, || unsafe { background.run_raw(*request) });
        (ran.map_err(Vouched), interrupt.take())
    });
    let ran = ran?;
    Ok(match interrupt {
        Some(interrupt) => Err(interrupt),
        None => ran.map_err(|error| raised(py, &error, Some(operation))),
    })
}
