//! Collectives, and one-sided copies, on typed buffers of a GPU: what a Rust program calls.
//!
//! A [`Rank`] has a stream, on which its calls run one after the other; a call returns once it is enqueued. [`Rank::read`],
//! [`Rank::write`] and [`Rank::synchronize`] wait for the calls before them and return the error of one that failed.
//!
//! It is safe because buffers belong to the rank: their memory is freed after its calls have ended, and never after one that failed, since
//! other ranks may still write.

// Enqueues calls with the addresses of its own buffers.
#![allow(unsafe_code)]

mod arrange;
mod buffer;
mod part;
mod window;

use std::sync::Arc;
use std::time::Duration;

use bytemuck::Pod;
use weftlink_bootstrap::Bootstrap;
use weftlink_plan::{Collective, DataType, Reduction};

use crate::collectives::Collectives;
use crate::communicator::shrunk;
use crate::driver::{Allocation, Capture, Device, DeviceBuffer, Driver, HandleKind, Mapping, Stream};
use crate::pool::{End, Pool};
use crate::window::WindowMemory;
use crate::{Error, Operation};
pub use arrange::{Arranged, Lengths, arrange};
pub use buffer::{Buffer, Buffers};
pub use part::{Part, PartMut};
pub use window::Window;

/// How long the ranks of [`on_threads`] wait for each other when they start and load plans.
const START: Duration = Duration::from_secs(60);

/// The GPUs of this process.
pub fn devices() -> Result<Vec<Device>, Error> {
    Driver::load()?.devices()
}

/// Runs `work` on threads of this process, each with a rank on this GPU. Returns what they return, or the first error. A rank that returns an
/// error, or panics, ends the calls of the others.
///
/// ```no_run
/// use weftlink_cuda::{Error, devices, on_threads};
/// use weftlink_plan::Reduction;
///
/// let gpu = &devices()?[0];
/// let sums = on_threads(gpu, 4, |rank| {
///     let mut gradients = rank.buffer_of(&vec![rank.rank() as f32; 1_000_000])?;
///     rank.all_reduce(&mut gradients, Reduction::Sum)?;
///     Ok(rank.read(&gradients)?[0])
/// })?;
/// assert_eq!(sums, [6.0; 4]);
/// # Ok::<(), Error>(())
/// ```
pub fn on_threads<T: Send>(
    device: &Device,
    ranks: usize,
    work: impl Fn(&mut Rank) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let work = &work;
    let run = |group| {
        let mut rank = Rank::new(group, device, START)?;
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&mut rank)));
        // Calls that the work has not waited for may fail.
        let ended = match ended {
            Ok(Ok(value)) => Ok(rank.synchronize().map(|()| value)),
            ended => ended,
        };
        match ended {
            Ok(Ok(_)) => rank.collectives.leave()?,
            _ => rank.abort(),
        }
        Ok((ended, rank))
    };
    let ended: Vec<Result<_, Error>> = std::thread::scope(|scope| {
        let start = |group| scope.spawn(move || run(group));
        let threads: Vec<_> = Bootstrap::threads(ranks).into_iter().map(start).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let ended = ended.into_iter().collect::<Result<Vec<_>, Error>>()?;
    let (ended, _ranks): (Vec<_>, Vec<_>) = ended.into_iter().unzip();
    let ended = ended.into_iter().map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    let (results, mut errors): (Vec<_>, Vec<_>) = ended.partition(Result::is_ok);
    // The others failed because this one did.
    errors.sort_by_key(|end| matches!(end, Err(Error::Failed { .. } | Error::Group { .. })));
    errors.into_iter().chain(results).collect()
}

/// A rank on a GPU, with a stream of its own.
#[derive(Debug)]
pub struct Rank {
    collectives: Collectives,
    stream: Stream,
    /// The GPUs that other ranks may be on.
    readers: Vec<Device>,
    pool: Arc<Pool<Mapping>>,
    /// Windows that were dropped.
    windows: Arc<Pool<WindowMemory>>,
    /// Memory of buffers has a multiple of this.
    unit_bytes: usize,
}

impl Rank {
    /// Joins the ranks of a group on a GPU. All ranks call it. They wait for each other that long, here and when plans are loaded.
    pub fn new(group: Bootstrap, device: &Device, timeout: Duration) -> Result<Rank, Error> {
        let collectives = Collectives::new(group, device, timeout)?;
        let stream = Stream::new(collectives.context())?;
        let mut readers = devices()?;
        let mut is_linked = Vec::new();
        for reader in &readers {
            is_linked.push(reader.uuid != device.uuid && device.link_to(reader)?.is_some());
        }
        let mut is_linked = is_linked.into_iter();
        readers.retain(|_| is_linked.next() == Some(true));
        let unit_bytes = device.granularity(HandleKind::PosixDescriptor)?.minimum.max(1);
        let (pool, windows) = (Arc::new(Pool::new()), Arc::new(Pool::new()));
        Ok(Rank { collectives, stream, readers, pool, windows, unit_bytes })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.collectives.rank()
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.collectives.ranks() as usize
    }

    /// Its stream: kernels of the program that run there come after the calls before them.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Sets how long a call waits for another rank before it fails, 5 minutes by default.
    pub fn set_call_timeout(&mut self, timeout: Duration) {
        self.collectives.set_call_timeout(timeout);
    }

    /// Ends the calls of all ranks that wait. Later ones are refused.
    pub fn abort(&self) {
        self.collectives.abort();
    }

    /// The rank on the same GPU among those that are left after a failure: the ranks that call this within the timeout, in the order of their
    /// ranks. Buffers of this rank cannot be used there. If this process's context is lost, as after a death under MPS, that is the error, and
    /// the process must restart.
    pub fn shrink(mut self, timeout: Duration) -> Result<Rank, Error> {
        let device = self.collectives.context().device().clone();
        let group = self.collectives.give_up()?;
        // Waits for kernels, which other ranks have ended, too.
        drop(self);
        Rank::new(shrunk(group, timeout)?, &device, timeout)
    }

    /// A buffer of zeros.
    pub fn buffer<T: Pod>(&self, length: usize) -> Result<Buffer<T>, Error> {
        let bytes = length.checked_mul(size_of::<T>());
        let mapped = bytes.and_then(|bytes| bytes.max(1).checked_next_multiple_of(self.unit_bytes));
        let (Some(bytes), Some(mapped_bytes)) = (bytes, mapped) else {
            let why = "they are more than there is memory".to_owned();
            return Err(Error::Misuse { attempt: format!("allocate {length} elements"), why });
        };
        self.check_not_captured()?;
        self.zeros(length, bytes, mapped_bytes).map_err(|error| self.collectives.explained(error))
    }

    fn zeros<T: Pod>(&self, length: usize, bytes: usize, mapped_bytes: usize) -> Result<Buffer<T>, Error> {
        let memory = match self.pool.take(mapped_bytes) {
            Some(memory) => memory,
            None => self.allocate(bytes).or_else(|why| {
                // After a failure, other ranks may still write to idle memory.
                self.synchronize()?;
                if self.pool.free_idle() { self.allocate(bytes) } else { Err(why) }
            })?,
        };
        let buffer = Buffer::new(memory, length, &self.pool);
        buffer.memory().fill(&self.stream, 0, bytes, 0)?;
        Ok(buffer)
    }

    /// A buffer with these elements.
    pub fn buffer_of<T: Pod>(&self, elements: &[T]) -> Result<Buffer<T>, Error> {
        let mut buffer = self.buffer(elements.len())?;
        self.write(&mut buffer, elements)?;
        Ok(buffer)
    }

    fn allocate(&self, bytes: usize) -> Result<Mapping, Error> {
        let context = self.collectives.context();
        let allocation = Allocation::create(context.device(), bytes.max(1), HandleKind::PosixDescriptor)?;
        Mapping::new(context, &[&allocation], &self.readers.iter().collect::<Vec<_>>())
    }

    /// Replaces the elements of a buffer, after the calls so far, and waits until that is done.
    pub fn write<T: Pod>(&self, buffer: &mut Buffer<T>, elements: &[T]) -> Result<(), Error> {
        self.owns(buffer)?;
        if elements.len() != buffer.len() {
            let why = format!("{} elements do not fill it", elements.len());
            return Err(Error::Misuse { attempt: format!("write a buffer of {}", buffer.len()), why });
        }
        let written = buffer.memory().write(&self.stream, 0, bytemuck::cast_slice(elements));
        written.map_err(|error| self.collectives.explained(error))?;
        self.check()
    }

    /// The elements of a buffer after the calls so far, which it waits for.
    pub fn read<T: Pod>(&self, buffer: &Buffer<T>) -> Result<Vec<T>, Error> {
        self.owns(buffer)?;
        let mut elements = vec![T::zeroed(); buffer.len()];
        let read = buffer.memory().read(&self.stream, 0, bytemuck::cast_slice_mut(&mut elements));
        read.map_err(|error| self.collectives.explained(error))?;
        self.check()?;
        Ok(elements)
    }

    /// Waits for the calls so far.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.stream.synchronize().map_err(|error| self.collectives.explained(error))?;
        self.check()?;
        if self.collectives.frees_at_once() {
            self.windows.free_idle();
        }
        Ok(())
    }

    /// A graph could be launched after its buffers are gone.
    fn check_not_captured(&self) -> Result<(), Error> {
        if self.stream.capture().map_err(|error| self.collectives.explained(error))? == Capture::None {
            return Ok(());
        }
        let why = "graphs need `Collectives`, whose callers keep buffers until the last launch".to_owned();
        Err(Error::Misuse { attempt: "capture calls of a rank".to_owned(), why })
    }

    fn check(&self) -> Result<(), Error> {
        self.collectives.check()
    }

    fn owns<T>(&self, buffer: &Buffer<T>) -> Result<(), Error> {
        if buffer.is_from(&self.pool) {
            return Ok(());
        }
        let why = "it belongs to another rank".to_owned();
        Err(Error::Misuse { attempt: format!("use a buffer on rank {}", self.rank()), why })
    }

    /// Combines a buffer of all ranks; each gets the result.
    pub fn all_reduce<'a, T: Pod>(
        &mut self,
        buffers: impl Into<Buffers<'a, T>>,
        operation: impl Into<Operation>,
    ) -> Result<(), Error> {
        self.call(&Collective::AllReduce, buffers, operation)
    }

    /// Combines a buffer of all ranks; the root gets the result.
    pub fn reduce<'a, T: Pod>(
        &mut self,
        buffers: impl Into<Buffers<'a, T>>,
        root: usize,
        operation: impl Into<Operation>,
    ) -> Result<(), Error> {
        let root = self.peer(root)?;
        self.call(&Collective::Reduce { root }, buffers, operation)
    }

    /// Copies the root's buffer to all ranks.
    pub fn broadcast<'a, T: Pod>(
        &mut self,
        buffers: impl Into<Buffers<'a, T>>,
        root: usize,
    ) -> Result<(), Error> {
        let root = self.peer(root)?;
        self.call(&Collective::Broadcast { root }, buffers, Reduction::Sum)
    }

    /// Collects the blocks of all ranks, by rank; each gets them all. In place, the rank's block is its part of the buffer.
    pub fn all_gather<'a, T: Pod>(&mut self, buffers: impl Into<Buffers<'a, T>>) -> Result<(), Error> {
        self.call(&Collective::AllGather, buffers, Reduction::Sum)
    }

    /// Combines a buffer of all ranks; each gets one block of the result. In place, it is the rank's part of the buffer.
    pub fn reduce_scatter<'a, T: Pod>(
        &mut self,
        buffers: impl Into<Buffers<'a, T>>,
        operation: impl Into<Operation>,
    ) -> Result<(), Error> {
        self.call(&Collective::ReduceScatter, buffers, operation)
    }

    /// Sends block `r` of the input to rank `r`, and receives a block from each rank.
    pub fn all_to_all<T: Pod>(&mut self, input: &Buffer<T>, output: &mut Buffer<T>) -> Result<(), Error> {
        self.call(&Collective::AllToAll, (input, output), Reduction::Sum)
    }

    /// Collects the blocks of all ranks on the root. The other ranks pass their input alone.
    pub fn gather<'a, T: Pod>(
        &mut self,
        buffers: impl Into<Buffers<'a, T>>,
        root: usize,
    ) -> Result<(), Error> {
        let root = self.peer(root)?;
        self.call(&Collective::Gather { root }, buffers, Reduction::Sum)
    }

    /// Distributes the blocks of the root's buffer. The other ranks pass their output alone.
    pub fn scatter<'a, T: Pod>(
        &mut self,
        buffers: impl Into<Buffers<'a, T>>,
        root: usize,
    ) -> Result<(), Error> {
        let root = self.peer(root)?;
        self.call(&Collective::Scatter { root }, buffers, Reduction::Sum)
    }

    /// Combines the buffers of the ranks up to this one.
    pub fn scan<'a, T: Pod>(
        &mut self,
        buffers: impl Into<Buffers<'a, T>>,
        operation: impl Into<Operation>,
    ) -> Result<(), Error> {
        self.call(&Collective::Scan, buffers, operation)
    }

    /// Combines the buffers of the ranks before this one. On rank 0, the output does not change.
    pub fn exclusive_scan<'a, T: Pod>(
        &mut self,
        buffers: impl Into<Buffers<'a, T>>,
        operation: impl Into<Operation>,
    ) -> Result<(), Error> {
        self.call(&Collective::ExclusiveScan, buffers, operation)
    }

    /// Later work on this rank's stream begins when all ranks have come here.
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.check_not_captured()?;
        let (none, bytes, any) = ([0; 2], DataType::U8, Reduction::Sum);
        // SAFETY: a barrier accesses no buffers.
        unsafe { self.collectives.call(&Collective::Barrier, &self.stream, none, 0, bytes, any) }
    }

    /// Enqueues a collective. Collectives that do not reduce ignore the operation.
    ///
    /// Windows may take the place of buffers. All ranks pass the same elements of the same windows then, or none does: large calls in
    /// windows of [`Rank::multicast_window`] go through the NVLink switch where it can ([`choose_through_switch`](crate::choose_through_switch)).
    pub fn call<'a, T: Pod>(
        &mut self,
        collective: &Collective,
        buffers: impl Into<Buffers<'a, T>>,
        operation: impl Into<Operation>,
    ) -> Result<(), Error> {
        self.check_not_captured()?;
        let (buffers, operation) = (buffers.into(), operation.into());
        for part in buffers.both() {
            part.check(self)?;
        }
        let misuse = |why: String| Error::Misuse { attempt: format!("enqueue {collective}"), why };
        let (rank, ranks) = (self.rank() as u32, self.size() as u32);
        let Arranged { count, input, output } =
            arrange(collective, rank, ranks, buffers.lengths()).map_err(misuse)?;
        let (data_type, count) = match DataType::of::<T>() {
            Some(data_type) => (data_type, count),
            None if collective.reduces() => {
                return Err(misuse(format!("{} is no type of numbers", std::any::type_name::<T>())));
            }
            None => (DataType::U8, count * size_of::<T>()),
        };
        let [first, last] = buffers.both().map(Part::address);
        let at = |start: u64, elements: usize| start + (elements * size_of::<T>()) as u64;
        let addresses = [at(first, input), at(last, output)];
        let multicast = buffers.both().map(Part::is_multicast);
        let plan =
            self.collectives.plan_through(multicast, collective, count, data_type, operation.reduction)?;
        // SAFETY: `arrange` has checked that the buffers have the blocks of the call. They belong to this rank, whose pools free them, and
        // windows, after its calls, and never after a failure.
        unsafe { self.collectives.run(&plan, &self.stream, addresses, count, data_type, operation) }
    }

    fn peer(&self, rank: usize) -> Result<u32, Error> {
        if rank < self.size() {
            return Ok(rank as u32);
        }
        let why = format!("there are {} ranks", self.size());
        Err(Error::Misuse { attempt: format!("use rank {rank} as the root"), why })
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let is_over = self.stream.synchronize().is_ok() && self.collectives.failure().is_none();
        let end = if is_over { End::Ended } else { End::Failed };
        if is_over && !self.collectives.frees_at_once() {
            // Kernels of other ranks that wait for this one end, and with them the wait for the memory. An error is that of the drop.
            let _ = self.collectives.leave();
        }
        self.pool.end(end);
        self.windows.end(end);
    }
}
