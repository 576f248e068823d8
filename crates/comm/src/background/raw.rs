//! Calls on memory that is known by its address, for other languages.

// The buffers are addresses, which are the caller's to vouch for.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::time::Duration;

use weftlink_plan::{Collective, DataType};

use super::handle::Handle;
use super::request::OwnedOperation;
use super::task::Load;
use super::{Background, Ended};
use crate::buffers::Buffers;
use crate::communicator::{Communicator, Request};
use crate::error::Error;

/// A call on memory that is known by its address.
#[derive(Clone, Debug)]
pub struct RawRequest {
    /// What is to be done.
    pub collective: Collective,
    /// On which memory.
    pub buffers: RawBuffers,
    /// With what elements are combined: for those that reduce, and only for those.
    pub operation: Option<OwnedOperation>,
    /// The lengths of this rank's blocks, in and out, in elements, if they differ.
    pub counts: Option<(Vec<usize>, Vec<usize>)>,
    /// The elements of a block, for ranks that have none of their own.
    pub count: Option<usize>,
    /// How long the call waits for other ranks, without getting on, before it fails.
    pub deadline: Option<Duration>,
    /// Whether the worker leaves its core to others while it waits in this call, because its caller computes meanwhile.
    pub makes_way: bool,
}

/// What a call reads and writes, by address. It is one buffer, in place, if both addresses are the same and there is an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawBuffers {
    /// What the elements are. They need not be aligned.
    pub data_type: DataType,
    /// What is read.
    pub input: *const u8,
    /// How many elements.
    pub input_length: usize,
    /// What is written; null if nothing is.
    pub output: *mut u8,
    /// How many elements.
    pub output_length: usize,
}

impl RawBuffers {
    /// The memory as buffers of a call.
    ///
    /// # Safety
    /// As for [`Background::start_raw`], for as long as the buffers are there.
    unsafe fn lend<'a>(self) -> Result<Buffers<'a>, Error> {
        let RawBuffers { data_type, input, input_length, output, output_length } = self;
        let bytes = |length: usize| {
            let bytes = length.checked_mul(data_type.bytes()).filter(|bytes| *bytes <= isize::MAX as usize);
            bytes.ok_or_else(|| Error::Misuse(format!("{length} elements are more than any memory holds")))
        };
        let (input_bytes, output_bytes) = (bytes(input_length)?, bytes(output_length)?);
        if (input.is_null() && input_bytes > 0) || (output.is_null() && output_bytes > 0) {
            return Err(Error::Misuse("a buffer with elements has no address".to_owned()));
        }
        let in_place = !output.is_null() && input == output.cast_const();
        // What has no elements needs no address, but slices do.
        let here = |address: *mut u8| if address.is_null() { NonNull::dangling().as_ptr() } else { address };
        if in_place && input_length != output_length {
            return Err(Error::Misuse(format!(
                "one buffer, in place, has one length, but it is given with {input_length} and {output_length} elements"
            )));
        }
        // SAFETY: the caller's promise: so many bytes are there, what is written is this call's alone, and nobody writes what is
        // read.
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

// SAFETY: these are addresses. Nobody uses what is there but calls, whose makers promise that this may be done from any thread.
unsafe impl Send for RawBuffers {}

/// A call whose memory has been vouched for: only [`Background::start_raw`] and [`Background::run_raw`] make them.
struct Lent(RawRequest);

impl Load for Lent {
    type Back = ();

    fn run(&mut self, comm: &mut Communicator) -> Result<(), Error> {
        let RawRequest { collective, buffers, operation, counts, count, deadline, makes_way: _ } = &self.0;
        // SAFETY: vouched for, until the call is over.
        let buffers = comm.located(unsafe { buffers.lend() }?);
        let request = Request {
            operation: operation.as_ref().map(OwnedOperation::lend),
            counts: counts.as_ref().map(|(input, output)| (&input[..], &output[..])),
            count: *count,
            ..Request::new(collective, buffers)
        };
        match *deadline {
            None => comm.run(request),
            Some(deadline) => comm.run_within(request, deadline),
        }
    }

    fn back(self) -> Option<()> {
        Some(())
    }

    fn makes_way(&self) -> bool {
        self.0.makes_way
    }
}

/// A call that was started by [`Background::start_raw`]. Dropping it does not cancel the call, and it does not keep the
/// communicator.
#[derive(Debug)]
pub struct RawHandle(Handle<()>);

impl Clone for RawHandle {
    fn clone(&self) -> Self {
        Self(self.0.twin())
    }
}

impl RawHandle {
    /// The place of the call among all that were submitted on this rank, from 1; 0 if it was not taken.
    pub fn number(&self) -> u64 {
        self.0.number()
    }

    /// Whether the call is over, well or not. It may be before `done` has been called.
    pub fn is_done(&self) -> bool {
        self.0.is_done()
    }

    /// Cancels the call, as [`Handle::cancel`] does.
    pub fn cancel(&self) -> bool {
        self.0.cancel()
    }

    /// Makes the next call on this thread, if it is this one or one before it and nobody else makes one: whether it did. For those who
    /// are about to wait for this one: waking the worker, and being woken by it, takes longer than most calls.
    pub fn help(&self) -> Result<bool, Error> {
        self.0.help()
    }

    /// Ends the communicator, as [`Background::abort`] does.
    pub fn abort(&self, reason: &str) {
        self.0.abort(reason);
    }
}

impl Background {
    /// Submits a call on memory that is known by its address. `done` is called when it is over, as by [`Handle::on_done`].
    /// It never blocks. Memory that lies in this rank's part of a [`Window`](crate::Window) counts as symmetric.
    ///
    /// # Safety
    /// From now on until `done` has been called, the output is this call's alone, nobody writes the input, and both may be used
    /// from any thread. They hold as many elements as they say, all of them initialised, and do not overlap unless they are one.
    /// What the collective writes are values of the type that the memory has elsewhere.
    pub unsafe fn start_raw(
        &self,
        request: RawRequest,
        done: impl FnOnce(Result<(), Error>) + Send + 'static,
    ) -> RawHandle {
        let name = request.collective.name();
        let handle = self.submit(name, Lent(request));
        let kept = RawHandle(handle.twin());
        handle.on_done(|ended: Ended<()>| done(ended.result));
        kept
    }

    /// Makes a call on this thread, at once, if no other is being made or waits to be; otherwise the request comes back, to be
    /// submitted. This saves the way to the worker and back, and waits as the communicator's own caller would.
    ///
    /// # Safety
    /// As for [`Background::start_raw`], until it returns.
    pub unsafe fn run_raw(&self, request: RawRequest) -> Result<Result<(), Error>, Box<RawRequest>> {
        match self.inner().borrow() {
            Err(error) => Ok(Err(error)),
            Ok(None) => Err(Box::new(request)),
            Ok(Some(mut borrowed)) => Ok(borrowed.make(|comm| Lent(request).run(comm))),
        }
    }
}
