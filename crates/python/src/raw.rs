//! Raw calls: on memory that is known by its address. The program that passes an array to a call must not touch it until the call is
//! done. If it does, the call sends or stores a mixture of old and new values, as with any library that releases the GIL.

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

// SAFETY: the memory may be used from any thread; `read` and `write` say when.
unsafe impl Send for Bytes {}

impl Bytes {
    /// # Safety
    /// The memory is valid, and nobody writes it, for the lifetime of the slice.
    pub(crate) unsafe fn read<'a>(&self) -> &'a [u8] {
        // SAFETY: the caller's promise.
        unsafe { from_raw_parts(self.non_null(), self.length) }
    }

    /// # Safety
    /// The memory is valid, and nobody else uses it, for the lifetime of the slice.
    pub(crate) unsafe fn write<'a>(&self) -> &'a mut [u8] {
        // SAFETY: the caller's promise.
        unsafe { from_raw_parts_mut(self.non_null(), self.length) }
    }

    /// An empty array may have no address, but a slice needs one.
    fn non_null(&self) -> *mut u8 {
        if self.length == 0 { NonNull::dangling().as_ptr() } else { self.address }
    }
}

/// Runs a call on this thread with the first of these communicators, or returns the request if that one is busy. An interrupt aborts all of
/// them, because one rank cannot undo a call that has begun.
///
/// # Safety
/// As for [`Background::run_raw`].
pub(crate) unsafe fn run_on_caller(
    py: Python<'_>,
    backgrounds: &[Background],
    request: RawRequest,
) -> PyResult<Result<Result<(), Error>, Box<RawRequest>>> {
    let all = backgrounds.to_vec();
    let abort = move || all.iter().for_each(|background| background.abort("interrupted"));
    // SAFETY: the caller's promise.
    with_signals(py, abort, || unsafe { backgrounds[0].run_raw(request) })
}
