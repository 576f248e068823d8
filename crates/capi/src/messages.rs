//! Messages between ranks

use std::ffi::{c_int, c_void};

use weftlink::Communicator;
use weftlink::plan::Collective;

use crate::any::Type;
use crate::call::Call;
use crate::comm::weft_comm;
use crate::error::{Failure, guard, weft_status};
use crate::pointer::{rank, reference, slice};
use crate::request::weft_request;

/// Sender and receiver of a message.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct weft_pair {
    /// The sender.
    pub from: c_int,
    /// The receiver.
    pub to: c_int,
}

/// A message to send in a group.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct weft_outgoing {
    /// The receiver.
    pub to: c_int,
    /// What it gets.
    pub data: *const c_void,
    /// Its length.
    pub bytes: usize,
}

/// A message to receive in a group.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct weft_incoming {
    /// The sender.
    pub from: c_int,
    /// Where its message goes.
    pub data: *mut c_void,
    /// Its length.
    pub bytes: usize,
}

/// Exchanges messages of `count` elements: `messages` lists sender and receiver of each, the same list
/// on all ranks. The input has the messages that this rank sends and the output those that it receives,
/// in the order of the list. They must not overlap.
///
/// # Safety
/// `comm` is null or a communicator; `messages` and the buffers are as long as described, and nothing else uses the buffers during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_send_receive(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    messages: *const weft_pair,
    message_count: usize,
    count: usize,
    data_type: Type,
) -> weft_status {
    guard(|| {
        // SAFETY: the caller's.
        let collective = unsafe { exchange(messages, message_count) }?;
        // SAFETY: as above.
        unsafe { Call::new(collective, input, output, count, data_type).run(comm) }
    })
}

/// Starts weft_send_receive.
///
/// # Safety
/// As for the blocking call, until the call is done. `request` is null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_send_receive_start(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    messages: *const weft_pair,
    message_count: usize,
    count: usize,
    data_type: Type,
    request: *mut *mut weft_request,
) -> weft_status {
    guard(|| {
        // SAFETY: the caller's.
        let collective = unsafe { exchange(messages, message_count) }?;
        // SAFETY: as above.
        unsafe { Call::new(collective, input, output, count, data_type).start(comm, request) }
    })
}

/// Exchanges a block of `count` elements with each neighbour on a torus of the ranks: six blocks in and
/// out, from and to the previous and the next rank in each of three dimensions. A ring is {1, 1, size}.
///
/// # Safety
/// `comm` is null or a communicator; the buffers are as long as described, and nothing else uses them during the call. `torus` has three
/// elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_neighbours(
    comm: *mut weft_comm,
    input: *const c_void,
    output: *mut c_void,
    torus: *const c_int,
    count: usize,
    data_type: Type,
) -> weft_status {
    guard(|| {
        // SAFETY: the caller's.
        let sizes = unsafe { slice(torus, 3, "torus") }?;
        let mut torus = [0; 3];
        for (place, size) in torus.iter_mut().zip(sizes) {
            *place = rank(*size, "torus")? as u32;
        }
        // SAFETY: as above.
        unsafe { Call::new(Collective::Neighbours { torus }, input, output, count, data_type).run(comm) }
    })
}

/// Sends and receives messages as one group (ncclGroupStart, ncclSend, ncclRecv, ncclGroupEnd), and
/// waits for them. All ranks call the first group of a communicator, which opens connections; from then
/// on only ranks that have messages. Messages from one rank to another are received in the order in
/// which they were sent, and a message must be as long as its receive.
///
/// # Safety
/// `comm` is null or a communicator; `sends` and `receives` have these lengths, and nothing else uses their memory during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_group(
    comm: *mut weft_comm,
    sends: *const weft_outgoing,
    send_count: usize,
    receives: *const weft_incoming,
    receive_count: usize,
) -> weft_status {
    guard(|| {
        // SAFETY: the caller's.
        let comm = unsafe { reference(comm, "comm") }?;
        // SAFETY: as above.
        let sends = unsafe { slice(sends, send_count, "sends") }?.iter().map(|message| {
            // SAFETY: as above.
            let data = unsafe { slice(message.data.cast::<u8>(), message.bytes, "data of a message") }?;
            Ok((rank(message.to, "to")?, data))
        });
        let sends = sends.collect::<Result<Vec<_>, Failure>>()?;
        // SAFETY: as above.
        let receives = unsafe { slice(receives, receive_count, "receives") }?.iter().map(|message| {
            // SAFETY: as above.
            unsafe { slice(message.data.cast::<u8>(), message.bytes, "data of a message") }?;
            Ok((rank(message.from, "from")?, Memory(message.data.cast(), message.bytes)))
        });
        let receives = receives.collect::<Result<Vec<_>, Failure>>()?;
        comm.with(move |comm: &mut Communicator| {
            comm.group(|group| {
                sends.into_iter().try_for_each(|(to, data)| group.send(to, data))?;
                receives.into_iter().try_for_each(|(from, memory)| {
                    // SAFETY: the caller's, until the group is done, for which `with` waits.
                    group.receive(from, unsafe { memory.slice() })
                })
            })
        })
    })
}

/// Where a message goes.
struct Memory(*mut u8, usize);

// SAFETY: only the call uses it, until it is done.
unsafe impl Send for Memory {}

impl Memory {
    /// # Safety
    /// Until the slice is dropped, the memory is valid and nothing else uses it.
    unsafe fn slice<'a>(self) -> &'a mut [u8] {
        match self {
            Memory(_, 0) => &mut [],
            // SAFETY: the caller's.
            Memory(address, length) => unsafe { std::slice::from_raw_parts_mut(address, length) },
        }
    }
}

/// # Safety
/// `messages` is null or has this length.
unsafe fn exchange(messages: *const weft_pair, count: usize) -> Result<Collective, Failure> {
    // SAFETY: the caller's.
    let messages = unsafe { slice(messages, count, "messages") }?.iter();
    let pair = |pair: &weft_pair| Ok((rank(pair.from, "from")? as u32, rank(pair.to, "to")? as u32));
    Ok(Collective::SendReceive { messages: messages.map(pair).collect::<Result<_, Failure>>()? })
}
