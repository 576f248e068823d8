//! Calls on host memory: an extension, which needs no GPU. They are done when the function returns, or the group ends, and ignore the stream.

// Passes addresses of the program on.
#![allow(unsafe_code)]

use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::mpsc::channel;

use weftlink::plan::Collective;
use weftlink::{Background, Error, RawBuffers, Request};

use crate::failure::Failure;
use crate::messages::{Messages, tag};
use crate::open::Open;
use crate::operations::Operation;
use crate::work::{What, Work};

/// Of the program's messages.
const TAG: u64 = tag::PROGRAM;

/// Runs calls in their order, then all messages at once.
pub(crate) fn run(open: &Open, works: &[Work]) -> Result<(), Failure> {
    if works.is_empty() {
        return Ok(());
    }
    let background = open.background()?;
    for work in works {
        if let What::Collective { collective, input, output, operation } = &work.what {
            let mut request =
                Request::new(collective.clone(), buffers(open, work, collective, [*input, *output]));
            request.operation = match operation {
                None => None,
                Some(Operation::Named(reduction)) => Some((*reduction).into()),
                Some(Operation::Scaled(factor)) => Some(factor.on_host(work.stream)?),
            };
            // A rank without blocks says how many elements there are, too.
            request.count = Some(work.count).filter(|_| gives_and_gets(open, collective) == [0, 0]);
            call(&background, request)?;
        }
    }
    exchange(open, works)
}

fn call(background: &Background, request: Request<'static, RawBuffers>) -> Result<(), Failure> {
    // SAFETY: the program does not touch the buffers until the function returns.
    let request = match unsafe { background.run_raw(request) } {
        Ok(ran) => return Ok(ran?),
        Err(request) => *request,
    };
    let (sender, receiver) = channel();
    // SAFETY: as above; it is waited for.
    let _handle = unsafe { background.start_raw(request, move |ended| drop(sender.send(ended))) };
    let lost = || Failure::system("the thread of the communicator has ended");
    Ok(receiver.recv().map_err(|_| lost())??)
}

/// The blocks that this rank gives and gets.
fn gives_and_gets(open: &Open, collective: &Collective) -> [u32; 2] {
    let (rank, size) = (open.rank as u32, open.size as u32);
    [collective.gives(rank, size), collective.gets(rank, size)]
}

/// The buffers of a collective. Where NCCL passes a rank's own block of a larger buffer, the call is in place, in that buffer.
fn buffers(open: &Open, work: &Work, collective: &Collective, [input, output]: [u64; 2]) -> RawBuffers {
    let [gives, gets] = gives_and_gets(open, collective).map(|blocks| blocks as usize);
    let block = work.bytes() as u64;
    let own = open.rank as u64 * block;
    let is_in_place = match collective {
        _ if gives == 0 || gets == 0 => false,
        Collective::AllGather | Collective::Gather { .. } => input == output + own,
        Collective::ReduceScatter | Collective::Scatter { .. } => output == input + own,
        _ => input == output,
    };
    let side = |address: u64, blocks: usize| match blocks {
        0 => (null_mut(), 0),
        _ => (address as *mut u8, blocks * work.count),
    };
    let (input, output) = match is_in_place {
        true if gives > gets => (side(input, gives), side(input, gives)),
        true => (side(output, gets), side(output, gets)),
        // A rank that only receives passes its output alone.
        false if gives == 0 => (side(output, gets), side(output, gets)),
        false => (side(input, gives), side(output, gets)),
    };
    RawBuffers {
        data_type: work.data_type,
        input: if input.1 == 0 { null() } else { input.0.cast_const() },
        input_length: input.1,
        output: output.0,
        output_length: output.1,
    }
}

/// Sends and receives all messages of a group. Each has a deadline, so this ends.
fn exchange(open: &Open, works: &[Work]) -> Result<(), Failure> {
    let peer = |work: &Work| match work.what {
        What::Collective { .. } => None,
        What::Send { to: peer, .. } | What::Receive { from: peer, .. } => Some(peer),
    };
    let messages: Vec<&Work> = works.iter().filter(|work| peer(work).is_some()).collect();
    if messages.is_empty() {
        return Ok(());
    }
    let (own, others): (Vec<&Work>, Vec<&Work>) =
        messages.into_iter().partition(|work| peer(work) == Some(open.rank));
    copy_own(&own)?;
    let state = Messages::new(others.len());
    for work in others {
        let (endpoint, bytes, state) =
            (open.endpoint.of_type(work.data_type), work.bytes(), Arc::clone(&state));
        match work.what {
            What::Collective { .. } => {}
            What::Send { to, from } => {
                // SAFETY: the program does not touch the memory until the function returns, which is after `done`.
                unsafe {
                    endpoint.start_send(to, TAG, from as *const u8, bytes, open.timeout, move |ended| {
                        state.done(ended)
                    });
                }
            }
            What::Receive { from, into } => {
                let done = move |ended: Result<usize, Error>| state.done(ended.map(drop));
                // SAFETY: as above.
                unsafe {
                    endpoint.start_receive(Some(from), TAG, into as *mut u8, bytes, open.timeout, done)
                };
            }
        }
    }
    state.wait(&open.endpoint)
}

/// Copies what this rank sends to itself, in order.
fn copy_own(messages: &[&Work]) -> Result<(), Failure> {
    let sends = messages.iter().filter_map(|work| match work.what {
        What::Send { from, .. } => Some((from, work.bytes())),
        _ => None,
    });
    let receives = messages.iter().filter_map(|work| match work.what {
        What::Receive { into, .. } => Some((into, work.bytes())),
        _ => None,
    });
    let (sends, receives): (Vec<_>, Vec<_>) = (sends.collect(), receives.collect());
    if sends.len() != receives.len() {
        let (sent, received) = (sends.len(), receives.len());
        return Err(Failure::usage(format!(
            "the group has {sent} messages of this rank to itself, and receives {received}: both must be in one group"
        )));
    }
    for ((from, sent), (into, received)) in sends.into_iter().zip(receives) {
        if sent != received {
            return Err(Failure::usage(format!(
                "this rank sends itself {sent} bytes, and receives {received}"
            )));
        }
        // SAFETY: the program's buffers of this length, which may overlap.
        unsafe { std::ptr::copy(from as *const u8, into as *mut u8, sent) };
    }
    Ok(())
}
