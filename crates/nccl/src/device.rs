//! Calls on memory of a GPU: enqueued on the program's stream. Between hosts data is staged through host memory, and the function returns when it is
//! done.

// Passes addresses and streams of the program on.
#![allow(unsafe_code)]

use std::sync::Arc;

use weftlink::Reduction;
use weftlink::cuda::driver::{Capture, Context, Stream};
use weftlink::cuda::{self, AddressedCall, AddressedRank, Message, device_of};
use weftlink::plan::Collective;

use crate::comm::Comm;
use crate::failure::Failure;
use crate::gpu::context;
use crate::host;
use crate::lock::lock;
use crate::open::Open;
use crate::operations::Operation;
use crate::work::{Call, What, Work};

/// Enqueues calls in their order, then all messages as one group.
pub(crate) fn run(comm: &Comm, open: &Open, works: &[Work]) -> Result<(), Failure> {
    let Some(first) = works.first() else { return Ok(()) };
    let (collectives, messages): (Vec<_>, Vec<_>) =
        works.iter().cloned().partition(|work| matches!(work.what, What::Collective { .. }));
    if open.spans_hosts {
        return staged(open, &collectives).and_then(|()| staged(open, &messages));
    }
    let has_joined = lock(&open.gpu).is_some();
    if !has_joined && collectives.is_empty() {
        // Ranks join together, and only some of them may have messages.
        return staged(open, &messages);
    }
    if !has_joined {
        join(comm, open, address_of(first))?;
    }
    let mut gpu = lock(&open.gpu);
    let gpu = gpu.as_mut().ok_or_else(|| Failure::usage("the communicator is closed"))?;
    collectives.iter().try_for_each(|work| enqueue(gpu, work))?;
    exchange(gpu, &messages)
}

/// Enqueues messages as one group, on their stream.
fn exchange(gpu: &mut AddressedRank, messages: &[Work]) -> Result<(), Failure> {
    let Some(first) = messages.first() else { return Ok(()) };
    if messages.iter().any(|work| work.stream != first.stream) {
        return Err(Failure::usage(
            "the messages of a group are on several streams: use one stream for each communicator",
        ));
    }
    let message = |peer: usize, address: u64, work: &Work| Message { peer, address, bytes: work.bytes() };
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    for work in messages {
        match work.what {
            What::Collective { .. } => {}
            What::Send { to, from } => sends.push(message(to, from, work)),
            What::Receive { from, into } => receives.push(message(from, into, work)),
        }
    }
    // SAFETY: the program keeps the buffers until the messages have been exchanged on its stream, as it must with NCCL.
    Ok(unsafe { gpu.exchange(first.stream, &sends, &receives) }?)
}

/// Joins the ranks on GPUs, in the first call on memory of one, or with the first window there. All ranks call it.
pub(crate) fn join(comm: &Comm, open: &Open, address: u64) -> Result<(), Failure> {
    let device = match comm.device {
        Some(device) => device,
        None => device_of(address)?.unwrap_or(0),
    };
    let group = open.background()?.with(weftlink::Communicator::duplicate_group)?;
    let joined = open.joined(group, device, open.timeout)?;
    *lock(&open.gpu) = Some(joined);
    Ok(())
}

fn address_of(work: &Work) -> u64 {
    match work.what {
        What::Collective { input, output, .. } => {
            if input == 0 {
                output
            } else {
                input
            }
        }
        What::Send { from, .. } => from,
        What::Receive { into, .. } => into,
    }
}

fn enqueue(gpu: &mut AddressedRank, work: &Work) -> Result<(), Failure> {
    let What::Collective { collective, input, output, operation } = &work.what else { return Ok(()) };
    let call = call_of(work, collective, operation.as_ref());
    gpu.check_stream(&call, work.stream)?;
    let operation = match operation {
        None => Reduction::Sum.into(),
        Some(Operation::Named(reduction)) => (*reduction).into(),
        Some(Operation::Scaled(factor)) => {
            let bytes = factor.bytes(work.stream)?;
            let long = || Failure::argument("the factor is longer than 8 bytes");
            cuda::Operation::premultiplied_sum(&bytes).ok_or_else(long)?
        }
    };
    let addresses = both(*input, *output);
    if !gpu.is_prepared(&call, addresses) {
        gpu.prepare(call.clone(), addresses, None)?;
    }
    // SAFETY: the program keeps the buffers until the call has ended on its stream, as it must with NCCL.
    Ok(unsafe { gpu.enqueue(&call, addresses, work.stream, None, operation) }?)
}

/// The addresses of a call. A side that the rank does not use has none of its own.
fn both(input: u64, output: u64) -> [u64; 2] {
    [if input == 0 { output } else { input }, if output == 0 { input } else { output }]
}

fn call_of(work: &Work, collective: &Collective, operation: Option<&Operation>) -> AddressedCall {
    let reduction = match operation {
        None => Reduction::Sum,
        Some(Operation::Named(reduction)) => *reduction,
        Some(Operation::Scaled(_)) => Reduction::PremultipliedSum,
    };
    AddressedCall { collective: collective.clone(), count: work.count, data_type: work.data_type, reduction }
}

/// Whether the calls of several communicators can be enqueued one after the other: none of them waits for another rank, which this thread may
/// be, too.
pub(crate) fn are_ready(by_comm: &[(Arc<Comm>, Vec<Call>)]) -> bool {
    by_comm.iter().all(|(comm, works)| {
        let Ok(open) = comm.open() else { return false };
        let gpu = lock(&open.gpu);
        let Some(gpu) = &*gpu else { return false };
        gpu.collectives().is_in_one_process() && works.iter().all(|call| is_prepared(gpu, call))
    })
}

fn is_prepared(gpu: &AddressedRank, call: &Call) -> bool {
    let Call::Work(work) = call else { return false };
    let What::Collective { collective, input, output, operation } = &work.what else { return false };
    let call = call_of(work, collective, operation.as_ref());
    work.is_on_gpu() && gpu.is_prepared(&call, both(*input, *output))
}

/// Copies inputs to the host, makes the calls there, and copies outputs back. Waits for the stream before, and for the calls.
fn staged(open: &Open, works: &[Work]) -> Result<(), Failure> {
    let mut copies = Vec::new();
    for work in works {
        copies.push(Copy::of(open, work)?);
    }
    let on_host: Vec<Work> =
        std::iter::zip(works, &mut copies).map(|(work, copy)| copy.in_place_of(work)).collect();
    host::run(open, &on_host)?;
    copies.iter().try_for_each(Copy::back)
}

/// Host memory in place of a call's buffers.
struct Copy {
    context: Context,
    stream: u64,
    input: (u64, Vec<u8>),
    output: (u64, Vec<u8>),
}

impl Copy {
    fn of(open: &Open, work: &Work) -> Result<Copy, Failure> {
        let device = device_of(address_of(work))?.unwrap_or(0);
        let context = context(device)?;
        let (rank, size) = (open.rank as u32, open.size as u32);
        let bytes = work.bytes();
        let (input, output) = match &work.what {
            What::Collective { collective, input, output, .. } => {
                let [gives, gets] = [collective.gives(rank, size), collective.gets(rank, size)];
                ((*input, gives as usize * bytes), (*output, gets as usize * bytes))
            }
            What::Send { from, .. } => ((*from, bytes), (0, 0)),
            What::Receive { into, .. } => ((0, 0), (*into, bytes)),
        };
        let mut copy = Copy {
            context,
            stream: work.stream,
            input: (input.0, vec![0; input.1]),
            output: (output.0, vec![0; output.1]),
        };
        copy.fetch()?;
        Ok(copy)
    }

    fn stream(&self) -> Result<Stream, Failure> {
        // SAFETY: the program's stream, of this GPU.
        let stream = unsafe { Stream::borrowed(&self.context, self.stream as *mut _) };
        match stream.capture()? {
            Capture::None => Ok(stream),
            _ => Err(Failure::usage(
                "calls between hosts go through host memory and cannot be captured in a graph",
            )),
        }
    }

    fn fetch(&mut self) -> Result<(), Failure> {
        let stream = self.stream()?;
        let (address, bytes) = &mut self.input;
        if !bytes.is_empty() {
            // SAFETY: the program's buffer has these bytes, and the stream is waited for.
            unsafe { stream.copy_to_host(bytes.as_mut_ptr().cast(), *address, bytes.len()) }?;
        }
        Ok(stream.synchronize()?)
    }

    /// The same call on host memory.
    fn in_place_of(&mut self, work: &Work) -> Work {
        let [input, output] = [&mut self.input.1, &mut self.output.1].map(|bytes| bytes.as_mut_ptr() as u64);
        let what = match &work.what {
            What::Collective { collective, operation, .. } => What::Collective {
                collective: collective.clone(),
                input,
                output,
                operation: operation.clone(),
            },
            What::Send { to, .. } => What::Send { to: *to, from: input },
            What::Receive { from, .. } => What::Receive { from: *from, into: output },
        };
        Work { what, on_gpu: false, ..work.clone() }
    }

    fn back(&self) -> Result<(), Failure> {
        let (address, bytes) = &self.output;
        if bytes.is_empty() {
            return Ok(());
        }
        let stream = self.stream()?;
        // SAFETY: the program's buffer has these bytes, and the stream is waited for.
        unsafe { stream.copy_from_host(*address, bytes.as_ptr().cast(), bytes.len()) }?;
        Ok(stream.synchronize()?)
    }
}
