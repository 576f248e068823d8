//! Calls on memory that is known by its address, and on streams of the program: what bindings to other languages make.

// Enqueues calls with addresses and streams of the caller.
#![allow(unsafe_code)]

mod signals;

use std::collections::HashSet;
use std::time::Duration;

use weftlink_bootstrap::Bootstrap;
use weftlink_plan::{Aliasing, Collective, DataType, Reduction};

use crate::call::aliasing_of;
use crate::collectives::Collectives;
use crate::driver::{Device, DeviceAddress, Driver, Stream};
use crate::rank::{Arranged, Lengths, arrange, devices};
use crate::{Error, Memory, Message, Messages, Operation};

/// Calls that are remembered as prepared.
const PREPARED_MAX: usize = 1024;
/// The handles of the default stream: null and 1.
const DEFAULT_STREAMS_MAX: u64 = 1;

/// A rank on a GPU that is known by its number.
#[derive(Debug)]
pub struct AddressedRank {
    device: usize,
    collectives: Collectives,
    /// Of calls that have none of their own.
    timeout: Duration,
    /// Calls whose plans are loaded and compiled.
    prepared: HashSet<(AddressedCall, Option<Aliasing>)>,
    /// Dropped after the communicator, which waits for its groups.
    messages: Option<Messages>,
}

/// A call, except its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AddressedCall {
    /// What it computes.
    pub collective: Collective,
    /// The elements of a block.
    pub count: usize,
    /// Their type.
    pub data_type: DataType,
    /// How they are combined, if they are.
    pub reduction: Reduction,
}

/// The buffers of a call: where they are on which GPU, and their elements. A side that the rank does not use has neither; a call in place
/// has the same on both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressedBuffers {
    /// The number of the GPU.
    pub device: usize,
    /// The type of the elements.
    pub data_type: DataType,
    /// What it reads.
    pub input: (DeviceAddress, usize),
    /// What it writes.
    pub output: (DeviceAddress, usize),
}

impl AddressedRank {
    /// Joins the ranks of a group, on a GPU of this process. All ranks call it. They wait for each other that long, here and in calls.
    pub fn new(group: Bootstrap, device: usize, timeout: Duration) -> Result<AddressedRank, Error> {
        let collectives = Collectives::new(group, &numbered(device)?, timeout)?;
        Ok(AddressedRank::of(collectives, device, timeout))
    }

    /// The same, with the memory for what ranks send each other.
    pub fn with_memory(
        group: Bootstrap,
        device: usize,
        memory: Memory,
        timeout: Duration,
    ) -> Result<AddressedRank, Error> {
        let collectives = Collectives::with_memory(group, &numbered(device)?, memory, timeout)?;
        Ok(AddressedRank::of(collectives, device, timeout))
    }

    fn of(mut collectives: Collectives, device: usize, timeout: Duration) -> AddressedRank {
        collectives.set_call_timeout(timeout);
        AddressedRank { device, collectives, timeout, prepared: HashSet::new(), messages: None }
    }

    /// The number of its GPU.
    pub fn device(&self) -> usize {
        self.device
    }

    /// Its communicator.
    pub fn collectives(&self) -> &Collectives {
        &self.collectives
    }

    /// Its communicator.
    pub fn collectives_mut(&mut self) -> &mut Collectives {
        &mut self.collectives
    }

    /// A call on these buffers, and where its blocks begin in them; or why it is refused.
    pub fn arrange(
        &self,
        collective: &Collective,
        reduction: Reduction,
        buffers: &AddressedBuffers,
    ) -> Result<(AddressedCall, [DeviceAddress; 2]), Error> {
        let &AddressedBuffers { device, data_type, input, output } = buffers;
        let refused = |why: String| Error::Misuse { attempt: format!("enqueue {collective}"), why };
        if self.device != device {
            let own = self.device;
            return Err(refused(format!("this rank is on GPU {own}, and its buffers on GPU {device}")));
        }
        let lengths = match (input, output) {
            ((first, _), (last, length)) if first == last || first == 0 => Lengths::InPlace(length),
            ((_, length), (0, _)) => Lengths::Input(length),
            ((_, input), (_, output)) => Lengths::Separate(input, output),
        };
        let (rank, ranks) = (self.collectives.rank() as u32, self.collectives.ranks());
        let Arranged { count, input: input_at, output: output_at } =
            arrange(collective, rank, ranks, lengths).map_err(refused)?;
        // A side that the rank does not use has no address of its own.
        let at = |own: DeviceAddress, other: DeviceAddress, elements: usize| {
            (if own == 0 { other } else { own }) + (elements * data_type.bytes()) as u64
        };
        let addresses = [at(input.0, output.0, input_at), at(output.0, input.0, output_at)];
        let collective = collective.clone();
        Ok((AddressedCall { collective, count, data_type, reduction }, addresses))
    }

    /// Refuses streams that the calls of other ranks would wait for.
    pub fn check_stream(&self, call: &AddressedCall, stream: u64) -> Result<(), Error> {
        self.check_own_stream(stream, || call.collective.to_string())
    }

    fn check_own_stream(&self, stream: u64, what: impl FnOnce() -> String) -> Result<(), Error> {
        if !self.collectives.shares_context() || stream > DEFAULT_STREAMS_MAX {
            return Ok(());
        }
        let why = "ranks that are threads of one process need a stream each, because a call waits for those of the others; in \
                   PyTorch: with torch.cuda.stream(torch.cuda.Stream())";
        Err(Error::Misuse { attempt: format!("enqueue {}", what()), why: why.to_owned() })
    }

    /// Whether a call like this was prepared.
    pub fn is_prepared(&self, call: &AddressedCall, addresses: [DeviceAddress; 2]) -> bool {
        self.prepared.contains(&self.kind_of(call.clone(), addresses))
    }

    /// What the programs of calls depend on.
    fn kind_of(
        &self,
        call: AddressedCall,
        addresses: [DeviceAddress; 2],
    ) -> (AddressedCall, Option<Aliasing>) {
        let (rank, ranks) = (self.collectives.rank() as u32, self.collectives.ranks());
        let block_bytes = (call.count as u64).saturating_mul(call.data_type.bytes() as u64);
        let aliasing = aliasing_of(&call.collective, rank, ranks, block_bytes, addresses);
        (call, aliasing)
    }

    /// Loads the plan of a call and compiles its kernel. Waits for the other ranks, which do so too.
    pub fn prepare(
        &mut self,
        call: AddressedCall,
        addresses: [DeviceAddress; 2],
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        self.collectives.set_call_timeout(timeout.unwrap_or(self.timeout));
        let AddressedCall { collective, count, data_type, reduction } = &call;
        let plan = self.collectives.plan_of(collective, *count, *data_type)?;
        self.collectives.prepare_call(&plan, addresses, *count, *data_type, *reduction)?;
        if self.prepared.len() >= PREPARED_MAX {
            // They are prepared again, which finds their plans and most programs.
            self.prepared.clear();
        }
        let kind = self.kind_of(call, addresses);
        self.prepared.insert(kind);
        Ok(())
    }

    /// Enqueues a call on a stream of the program. One that is not prepared is prepared first.
    ///
    /// # Safety
    /// As for [`Communicator::run`](crate::Communicator::run). The stream is one of this rank's GPU.
    pub unsafe fn enqueue(
        &mut self,
        call: &AddressedCall,
        addresses: [DeviceAddress; 2],
        stream: u64,
        timeout: Option<Duration>,
        operation: Operation,
    ) -> Result<(), Error> {
        self.collectives.set_call_timeout(timeout.unwrap_or(self.timeout));
        // SAFETY: the caller's.
        let stream = unsafe { Stream::borrowed(self.collectives.context(), stream as *mut _) };
        let AddressedCall { collective, count, data_type, .. } = call;
        // SAFETY: the caller's.
        unsafe { self.collectives.call(collective, &stream, addresses, *count, *data_type, operation) }
    }

    /// Allocates what [`AddressedRank::exchange`] needs, unless it is there. All ranks call it, before the first of them sends a message.
    pub fn enable_messages(&mut self) -> Result<(), Error> {
        self.messages().map(|_| ())
    }

    /// Its messages, allocated at the first call, which all ranks make.
    pub fn messages(&mut self) -> Result<&mut Messages, Error> {
        let messages = match self.messages.take() {
            Some(messages) => messages,
            None => Messages::new(self.collectives.communicator())?,
        };
        Ok(self.messages.insert(messages))
    }

    /// Enqueues a group of sends and receives on a stream of the program. Only ranks that have messages in it take part.
    ///
    /// # Safety
    /// As for [`Messages::run`]. The stream is one of this rank's GPU.
    pub unsafe fn exchange(
        &mut self,
        stream: u64,
        sends: &[Message],
        receives: &[Message],
    ) -> Result<(), Error> {
        self.check_own_stream(stream, || "messages".to_owned())?;
        let messages = self.messages.as_mut().ok_or_else(not_enabled)?;
        self.collectives.set_call_timeout(self.timeout);
        // SAFETY: the caller's.
        let stream = unsafe { Stream::borrowed(self.collectives.context(), stream as *mut _) };
        // SAFETY: the caller's.
        unsafe { messages.run(self.collectives.communicator(), &stream, sends, receives) }
    }
}

fn not_enabled() -> Error {
    let why = "all ranks call `enable_messages` first".to_owned();
    Error::Misuse { attempt: "enqueue messages or signals".to_owned(), why }
}

fn numbered(device: usize) -> Result<Device, Error> {
    let mut all = devices()?;
    if device < all.len() {
        return Ok(all.swap_remove(device));
    }
    let why = format!("this process sees {} GPUs", all.len());
    Err(Error::Misuse { attempt: format!("use GPU {device}"), why })
}

/// The number of the GPU that has the memory at an address; nothing if it is not memory of a GPU.
pub fn device_of(address: DeviceAddress) -> Result<Option<usize>, Error> {
    Ok(Driver::load()?.pointer(address)?.map(|pointer| pointer.device))
}
