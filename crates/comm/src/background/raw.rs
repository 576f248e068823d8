//! Calls on raw addresses, for bindings to other languages.

// The caller promises what the addresses refer to.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::sync::Arc;

use weftlink_plan::{DataType, Verified};

use super::handle::Handle;
use super::task::Load;
use super::{Background, Completion};
use crate::buffers::Buffers;
use crate::communicator::Communicator;
use crate::error::Error;
use crate::request::{CallArgs, Request};

/// The addresses that a call reads and writes. The call is in place if both addresses are the same and there is an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawBuffers {
    /// The type of the elements, which need not be aligned.
    pub data_type: DataType,
    /// The input.
    pub input: *const u8,
    /// The number of elements of the input.
    pub input_length: usize,
    /// The output; null if there is none.
    pub output: *mut u8,
    /// The number of elements of the output.
    pub output_length: usize,
}

impl RawBuffers {
    /// The buffers of a call.
    ///
    /// # Safety
    /// As for [`Background::start_raw`], for as long as the buffers are there.
    unsafe fn lend<'a>(self) -> Result<Buffers<'a>, Error> {
        let RawBuffers { data_type, input, input_length, output, output_length } = self;
        let bytes = |length: usize| {
            let bytes = length.checked_mul(data_type.bytes()).filter(|bytes| *bytes <= isize::MAX as usize);
            bytes.ok_or_else(|| {
                Error::Misuse(format!("a buffer of {length} elements is larger than the address space"))
            })
        };
        let (input_bytes, output_bytes) = (bytes(input_length)?, bytes(output_length)?);
        if (input.is_null() && input_bytes > 0) || (output.is_null() && output_bytes > 0) {
            return Err(Error::Misuse("a buffer with elements has a null address".to_owned()));
        }
        let in_place = !output.is_null() && input == output.cast_const();
        // An empty slice needs an address too.
        let here = |address: *mut u8| if address.is_null() { NonNull::dangling().as_ptr() } else { address };
        if in_place && input_length != output_length {
            return Err(Error::Misuse(format!(
                "an in-place buffer has one length, but its input has {input_length} elements and its output {output_length}"
            )));
        }
        // SAFETY: the caller's promise: the buffers have these lengths, the output is this call's alone, and nothing else writes the
        // input.
        let buffers: Buffers<'a> = unsafe {
            let output = from_raw_parts_mut(here(output), output_bytes);
            match in_place {
                true => output.into(),
                false => (from_raw_parts(here(input.cast_mut()), input_bytes), output).into(),
            }
        };
        buffers.of_type(data_type)
    }
}

// SAFETY: only calls use the addresses, and their callers promise that this may happen on any thread.
unsafe impl Send for RawBuffers {}

/// A call whose memory the caller has promised: only [`Background::start_raw`] and [`Background::run_raw`] make one.
struct Lent(Request<'static, RawBuffers>);

impl Load for Lent {
    type Back = ();

    fn run(&mut self, comm: &mut Communicator) -> Result<(), Error> {
        let deadline = self.0.deadline;
        let (buffers, args) = self.0.split();
        // SAFETY: the caller's promise, until the call is over.
        let buffers = comm.located(unsafe { buffers.lend() }?);
        comm.call_within(CallArgs { buffers, ..args }, deadline)
    }

    fn back(self) -> Option<()> {
        Some(())
    }

    fn yields_core(&self) -> bool {
        self.0.yields_core
    }
}

/// A call submitted by [`Background::start_raw`], whose result goes to its callback. Dropping the handle does not cancel the call.
#[derive(Debug)]
pub struct RawHandle(Handle<()>);

impl Clone for RawHandle {
    fn clone(&self) -> Self {
        Self(self.0.twin())
    }
}

impl RawHandle {
    /// The number of the call among those submitted on this rank, from 1; 0 if it was refused.
    pub fn number(&self) -> u64 {
        self.0.number()
    }

    /// Whether the call is over, successful or not. It may be before `done` runs.
    pub fn is_done(&self) -> bool {
        self.0.is_done()
    }

    /// Cancels the call, as [`Handle::cancel`] does.
    pub fn cancel(&self) -> bool {
        self.0.cancel()
    }

    /// Runs the next queued call on this thread, if it is this one or one before it and no call is running. Returns whether it did. For
    /// a caller that is about to wait for this one: waking the worker, and being woken by it, takes longer than most calls.
    pub fn help(&self) -> Result<bool, Error> {
        self.0.help()
    }

    /// Aborts the communicator, as [`Background::abort`] does.
    pub fn abort(&self, reason: &str) {
        self.0.abort(reason);
    }
}

impl Background {
    /// Submits a call on raw addresses, without blocking. `done` runs when the call is over, as by [`Handle::on_done`]. Memory in this
    /// rank's part of a [`Window`](crate::Window) counts as symmetric.
    ///
    /// # Safety
    /// Until `done` runs, the output is this call's alone, nothing writes the input, and both may be used from any thread. The buffers
    /// have the stated lengths, are initialised, and do not overlap unless they are the same. The results are valid values of
    /// the type that the caller reads there.
    pub unsafe fn start_raw(
        &self,
        request: Request<'static, RawBuffers>,
        done: impl FnOnce(Result<(), Error>) + Send + 'static,
    ) -> RawHandle {
        let name = request.collective.name();
        let handle = self.submit(name, Lent(request));
        let kept = RawHandle(handle.twin());
        handle.on_done(|completion: Completion<()>| done(completion.result));
        kept
    }

    /// Runs a call on this thread if no other is running or queued; otherwise returns the request, to be submitted. This saves the
    /// way to the worker and back.
    ///
    /// # Safety
    /// As for [`Background::start_raw`], until it returns.
    pub unsafe fn run_raw(
        &self,
        request: Request<'static, RawBuffers>,
    ) -> Result<Result<(), Error>, Box<Request<'static, RawBuffers>>> {
        match self.inner().borrow() {
            Err(error) => Ok(Err(error)),
            Ok(None) => Err(Box::new(request)),
            Ok(Some(mut borrowed)) => Ok(borrowed.run(|comm| Lent(request).run(comm))),
        }
    }

    /// The plan that a call would use, as [`Communicator::plan_of`]. It waits for the calls before it. All ranks ask for the same call.
    ///
    /// # Safety
    /// As for [`Background::start_raw`], until it returns.
    pub unsafe fn plan_of_raw(&self, request: Request<'static, RawBuffers>) -> Result<Arc<Verified>, Error> {
        self.with(move |comm| {
            let Request { collective, buffers, operation, counts, count, plan, deadline, yields_core } =
                request;
            // SAFETY: the caller's promise, until the closure returns.
            let buffers = comm.located(unsafe { buffers.lend() }?);
            comm.plan_of(Request {
                collective,
                buffers,
                operation,
                counts,
                count,
                plan,
                deadline,
                yields_core,
            })
        })
    }
}
