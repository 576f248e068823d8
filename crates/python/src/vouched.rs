//! Memory that is known by its address, which somebody answers for: the program that passes an array to a call leaves it alone until
//! the call is over. If it does not, what is sent or read is a mixture of old and new, as with any library that lets other threads
//! run.

#![allow(unsafe_code)] // Addresses become slices.

use std::ptr::NonNull;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use pyo3::prelude::*;
use weftlink::{Background, Error, RawBuffers, Request};

use crate::wait::with_signals;

/// A call on memory that is known by its address.
pub(crate) type RawRequest = Request<'static, RawBuffers>;

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

/// Makes a call on this thread, with the first of these, if that makes no other; or gives it back. An interrupt ends all of them, because
/// a call that has begun cannot be taken back on one rank.
///
/// # Safety
/// As for [`Background::run_raw`].
pub(crate) unsafe fn run_here(
    py: Python<'_>,
    backgrounds: &[Background],
    request: RawRequest,
) -> PyResult<Result<Result<(), Error>, Box<RawRequest>>> {
    let all = backgrounds.to_vec();
    let end = move || all.iter().for_each(|background| background.abort("interrupted"));
    // SAFETY: the caller's promise.
    with_signals(py, end, || unsafe { backgrounds[0].run_raw(request) })
}
