//! Messages of a communicator: their memory, and the kernels of their groups on streams.

// Launches kernels with addresses.
#![allow(unsafe_code)]

use super::Communicator;
use crate::Error;
use crate::driver::{Capture, DeviceAddress, Function, Launch, Parameters, RelaxedCapture, Stream};
use crate::messages::{
    GROUP_BYTES, Group, GroupHeader, Message, MessageLayout, PART_RECORDS_MAX, RECORD_BYTES, TablePartHeader,
};
use crate::sharing::agree;
use crate::window::WindowMemory;

/// Copies a part of a table.
const TABLE_THREADS: u32 = 256;

/// Messages between the ranks of a communicator. Dropped when no work uses it any more, it gives its memory back as a window does.
#[derive(Debug)]
pub struct Messages {
    window: WindowMemory,
    layout: MessageLayout,
}

impl Messages {
    /// Allocates slots for messages, up to 8 MiB on each rank. All ranks call it.
    pub fn new(communicator: &mut Communicator) -> Result<Messages, Error> {
        communicator.new_messages()
    }

    /// Enqueues a group of sends and receives on a stream. They proceed together, so their order matters only between messages of the same two
    /// ranks in the same direction: the first send meets the first receive, and so on, over all groups. A rank that has no message in a group
    /// takes no part in it. The host does not wait. Groups and collectives of a communicator run one after the other, also on different
    /// streams. So do those that are captured in one graph; graphs and other calls run as the caller orders them. A captured group may be
    /// launched again.
    ///
    /// A send may end before its receive has begun, up to the slots of its peer: do not rely on it. A send to this rank itself needs a receive
    /// of the same group.
    ///
    /// If a receive has another length than its send, it fails: [`Communicator::failure`] names both. So does a wait for a rank that is gone or
    /// late. After a failure, all ranks' messages fail.
    ///
    /// # Safety
    /// The addresses are device memory of this rank's GPU that is valid until the stream has executed the group, and until the last launch of
    /// a graph that has it; so are this value and the communicator. No receive overlaps another message of the group.
    pub unsafe fn run(
        &mut self,
        communicator: &mut Communicator,
        stream: &Stream,
        sends: &[Message],
        receives: &[Message],
    ) -> Result<(), Error> {
        // SAFETY: the caller's.
        unsafe { communicator.run_messages(self, stream, sends, receives) }
    }
}

impl Messages {
    /// Their memory, in which ranks also signal each other.
    pub(crate) fn window(&self) -> &WindowMemory {
        &self.window
    }
}

impl Communicator {
    fn new_messages(&mut self) -> Result<Messages, Error> {
        let checked = self.check();
        self.check_for_all(checked)?;
        let layout = MessageLayout::new(self.in_process.len());
        // A thread may capture a graph.
        let ready = RelaxedCapture::begin(self.context.driver());
        let (relaxed, _) = agree(&mut self.group, "messages", ready, |_| Vec::new(), self.timeout)?;
        // Loading waits for kernels: all ranks have launched their calls, and launch no more before all have loaded theirs.
        let loaded = self.resources.kernels.messages(self.is_one_gpu).map(|_| ());
        agree(&mut self.group, "kernels of messages", loaded, |()| Vec::new(), self.timeout)?;
        drop(relaxed);
        Ok(Messages { window: self.window(layout.bytes())?, layout })
    }

    /// # Safety
    /// As for [`Messages::run`].
    unsafe fn run_messages(
        &mut self,
        messages: &Messages,
        stream: &Stream,
        sends: &[Message],
        receives: &[Message],
    ) -> Result<(), Error> {
        match self.check_recorded() {
            // It has ended the calls of all if the reason is this rank's.
            Err(error @ Error::Failed { .. }) => return Err(error),
            checked => checked.map_err(|error| self.failed(error))?,
        }
        let misuse = |why: String| Error::Misuse { attempt: "enqueue a group of messages".to_owned(), why };
        let group = Group::new(messages.layout, self.rank(), sends, receives).map_err(misuse)?;
        let window = self.device_window(&messages.window)?;
        let [blocks, threads] = group.spread(self.share);
        let table = messages.window.own_address() + messages.layout.table() as u64;
        let header = GroupHeader::new(messages.layout, window, &group, table, blocks);
        let launch = Launch { blocks, threads, shared_bytes: 0, is_cooperative: false };
        // SAFETY: the caller's.
        let enqueued = unsafe { self.enqueue_group(&group, header, table, launch, stream) };
        enqueued.map_err(|error| self.failed(error))
    }

    /// `table`: where that of a large group is.
    ///
    /// # Safety
    /// As for [`Messages::run`].
    unsafe fn enqueue_group(
        &mut self,
        group: &Group,
        header: GroupHeader,
        table: DeviceAddress,
        launch: Launch,
        stream: &Stream,
    ) -> Result<(), Error> {
        let is_captured = match stream.capture()? {
            Capture::None => false,
            Capture::Active => true,
            Capture::Invalidated => {
                let why = "the capture of its stream has failed".to_owned();
                return Err(Error::Misuse { attempt: "enqueue a group of messages".to_owned(), why });
            }
        };
        self.has_captured |= is_captured;
        let mut graph = None;
        if is_captured {
            graph = self.order_captured(stream)?;
        } else {
            self.order(stream)?;
        }
        for [sent, received] in group.copies.iter().filter(|[sent, _]| sent.bytes > 0) {
            // SAFETY: as the caller promises.
            unsafe { stream.copy(received.address, sent.address, sent.bytes) }?;
        }
        if group.pairs() > 0 {
            let kernels = self.resources.kernels.messages(self.is_one_gpu)?;
            let mut rows = group.table();
            if group.is_long() {
                // SAFETY: the table has room for the largest group, and the group before has ended when this is executed.
                unsafe { copy_table(&kernels.table, stream, table, &rows) }?;
                rows.clear();
            }
            let call = parameters(bytemuck::bytes_of(&header), &rows);
            // SAFETY: the parameters are those of the kernel; the addresses are valid as the caller promises, and the communicator's own
            // memory lives until it is dropped.
            unsafe { kernels.group.launch(stream, launch, Parameters::Buffer(&call)) }?;
        }
        if is_captured { self.follow_captured(stream, graph) } else { self.follow(stream) }
    }
}

/// Copies a table to device memory, in the parameters of kernels: so it may be captured, and the host need not keep it.
///
/// # Safety
/// The address has room for the table until the stream has executed it.
unsafe fn copy_table(
    kernel: &Function,
    stream: &Stream,
    to: DeviceAddress,
    rows: &[u8],
) -> Result<(), Error> {
    let launch = Launch { blocks: 1, threads: TABLE_THREADS, shared_bytes: 0, is_cooperative: false };
    for (number, part) in rows.chunks(PART_RECORDS_MAX * RECORD_BYTES).enumerate() {
        let at = (number * PART_RECORDS_MAX * RECORD_BYTES) as u64;
        let header =
            TablePartHeader { to: to + at, records: (part.len() / RECORD_BYTES) as u32, reserved: 0 };
        let call = parameters(bytemuck::bytes_of(&header), part);
        // SAFETY: the parameters are those of the kernel; the rest is the caller's.
        unsafe { kernel.launch(stream, launch, Parameters::Buffer(&call)) }?;
    }
    Ok(())
}

fn parameters(header: &[u8], rest: &[u8]) -> [u8; GROUP_BYTES] {
    let mut call = [0; GROUP_BYTES];
    let (first, after) = call.split_at_mut(header.len());
    first.copy_from_slice(header);
    after[..rest.len()].copy_from_slice(rest);
    call
}
