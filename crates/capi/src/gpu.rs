//! The ranks of a communicator on GPUs, from the first call on a stream.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weftlink::bootstrap::Bootstrap;
use weftlink::cuda::{self, Aborter, AddressedBuffers, AddressedRank, Operation, device_of};
use weftlink::{RawBuffers, Reduction, Request};

use crate::error::{Failure, weft_status};

#[derive(Default)]
pub(crate) struct Gpus {
    rank: Mutex<Option<AddressedRank>>,
    /// Beside the lock, which a thread that loads a plan holds.
    abort: Mutex<Abort>,
}

#[derive(Default)]
struct Abort {
    aborter: Option<Aborter>,
    is_aborted: bool,
}

impl Gpus {
    /// Enqueues a call. The first one joins the other ranks, in the group that `group` makes; the first one of a kind loads its plan. Both
    /// wait for the other ranks.
    ///
    /// # Safety
    /// The buffers have the lengths of the request and stay until the call has ended on its stream, which is one of their GPU.
    pub(crate) unsafe fn enqueue(
        &self,
        request: Request<'static, RawBuffers>,
        stream: u64,
        group: impl FnOnce() -> Result<(Bootstrap, Duration), Failure>,
    ) -> Result<(), Failure> {
        let device = device(&request.buffers)?;
        let mut rank = lock(&self.rank);
        if rank.is_none() {
            let (group, timeout) = group()?;
            let joined = AddressedRank::new(group, device, timeout)?;
            let mut abort = lock(&self.abort);
            if abort.is_aborted {
                joined.collectives().abort();
            }
            abort.aborter = Some(joined.collectives().aborter());
            *rank = Some(joined);
        }
        let Some(rank) = &mut *rank else { return Ok(()) };
        let buffers = AddressedBuffers {
            device,
            data_type: request.buffers.data_type,
            input: (request.buffers.input as u64, request.buffers.input_length),
            output: (request.buffers.output as u64, request.buffers.output_length),
        };
        // What a call that combines nothing is compiled with does not matter, as long as all ranks pass the same.
        let reduction = request.operation.as_ref().map_or(Reduction::Sum, |operation| operation.reduction());
        let (call, addresses) = rank.arrange(&request.collective, reduction, &buffers)?;
        rank.check_stream(&call, stream)?;
        if !rank.is_prepared(&call, addresses) {
            let prepared = rank.prepare(call.clone(), addresses, None);
            if let Err(error) = &prepared
                && !matches!(error, cuda::Error::Misuse { .. } | cuda::Error::Failed { .. })
            {
                // The others make the call, and would wait for this rank.
                self.abort();
            }
            prepared?;
        }
        let operation = request.operation.as_ref().and_then(|operation| operation.factor());
        let operation = operation.and_then(Operation::premultiplied_sum).unwrap_or(call.reduction.into());
        // SAFETY: the caller's; `arrange` has checked the lengths.
        Ok(unsafe { rank.enqueue(&call, addresses, stream, None, operation) }?)
    }

    /// Ends the calls of all ranks that wait. Does not wait itself.
    pub(crate) fn abort(&self) {
        let mut abort = lock(&self.abort);
        // A thread that joins looks at it.
        abort.is_aborted = true;
        if let Some(aborter) = &abort.aborter {
            aborter.abort();
        }
    }

    /// Why a call failed, if one has. Does not wait for a thread that loads a plan.
    pub(crate) fn failure(&self) -> Option<Failure> {
        let own = || self.rank.try_lock().ok()?.as_ref()?.collectives().failure();
        own().or_else(|| lock(&self.abort).aborter.as_ref()?.failure()).map(failed)
    }

    /// Leaves the ranks, after this rank's calls. Returns why a call failed, if one has and this rank has not aborted.
    pub(crate) fn leave(&self) -> Option<Failure> {
        let rank = lock(&self.rank).take()?;
        let left = rank.collectives().leave();
        let failure = rank.collectives().failure().or_else(|| left.err().map(|why| why.to_string()));
        // The program may use its buffers for something else now.
        rank.collectives().await_ends();
        failure.filter(|_| !lock(&self.abort).is_aborted).map(failed)
    }
}

fn failed(text: String) -> Failure {
    Failure { status: weft_status::WEFT_CUDA, text, blamed: Vec::new() }
}

/// The GPU that has the buffers.
fn device(buffers: &RawBuffers) -> Result<usize, Failure> {
    let mut found = Vec::new();
    for address in [buffers.input, buffers.output.cast_const()].into_iter().filter(|one| !one.is_null()) {
        let outside = || {
            Failure::misuse(format!(
                "the buffer at {address:p} is not in memory of a GPU: use the function without a stream"
            ))
        };
        found.push(device_of(address as u64)?.ok_or_else(outside)?);
    }
    found.dedup();
    match found[..] {
        [device] => Ok(device),
        [] => Err(Failure::misuse("a call on a stream needs a buffer on every rank")),
        _ => Err(Failure::misuse("the buffers are on different GPUs")),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
