//! Typed windows of a rank: one-sided copies and signals on its stream.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use bytemuck::Pod;

use super::Rank;
use super::part::{Part, PartMut};
use crate::driver::DeviceAddress;
use crate::pool::Pool;
use crate::window::{DeviceWindow, WindowMemory};
use crate::{Communicator, Error};

/// The same number of elements on every rank's GPU, which all ranks read and write.
///
/// A window that is dropped stays mapped until the rank's next [`Rank::synchronize`], or until the rank is dropped. In host memory, and with other
/// ranks of the process on the GPU, it always stays that long.
#[derive(Debug)]
pub struct Window<T> {
    /// The pool frees it when the rank's calls have ended.
    memory: ManuallyDrop<WindowMemory>,
    length: usize,
    pool: Arc<Pool<WindowMemory>>,
    of: PhantomData<T>,
}

impl<T> Window<T> {
    /// How many elements each rank has.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The address of a rank's first element, for kernels of the program on this rank's GPU.
    pub fn address(&self, rank: usize) -> Option<DeviceAddress> {
        self.memory.address(rank)
    }

    pub(super) fn own_address(&self) -> DeviceAddress {
        self.memory.own_address()
    }

    pub(super) fn is_multicast(&self) -> bool {
        self.memory.multicast_address().is_some()
    }
}

impl<T> Drop for Window<T> {
    fn drop(&mut self) {
        // SAFETY: it is taken once.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        self.pool.give(memory.bytes(), memory);
    }
}

impl Rank {
    /// A window of zeros. All ranks call it, with the same length.
    ///
    /// ```no_run
    /// use weftlink_cuda::{Error, devices, on_threads};
    ///
    /// on_threads(&devices()?[0], 4, |rank| {
    ///     let (next, before) = ((rank.rank() + 1) % 4, (rank.rank() + 3) % 4);
    ///     let window = rank.window::<f32>(1000)?;
    ///     let mut numbers = rank.buffer_of(&vec![rank.rank() as f32; 1000])?;
    ///     rank.put(&numbers, &window, next, 0)?;
    ///     rank.signal(&window, next)?;
    ///     rank.wait(&window, before)?;
    ///     rank.get(&window, rank.rank(), 0, &mut numbers)?;
    ///     assert_eq!(rank.read(&numbers)?, vec![before as f32; 1000]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn window<T: Pod>(&mut self, length: usize) -> Result<Window<T>, Error> {
        self.new_window(length, Communicator::window)
    }

    /// The same, for collectives through the NVLink switch and for kernels that use `multimem` instructions: see
    /// [`Communicator::multicast_window`].
    ///
    /// ```no_run
    /// use weftlink_cuda::{Error, Rank};
    /// use weftlink_plan::Reduction;
    ///
    /// fn sum(rank: &mut Rank) -> Result<(), Error> {
    ///     let mut gradients = rank.multicast_window::<f32>(1 << 20)?;
    ///     rank.all_reduce(&mut gradients, Reduction::Sum)?;
    ///     rank.broadcast(gradients.part_mut(0..1 << 16), 0)
    /// }
    /// ```
    pub fn multicast_window<T: Pod>(&mut self, length: usize) -> Result<Window<T>, Error> {
        self.new_window(length, Communicator::multicast_window)
    }

    fn new_window<T: Pod>(
        &mut self,
        length: usize,
        make: fn(&mut Communicator, usize) -> Result<WindowMemory, Error>,
    ) -> Result<Window<T>, Error> {
        self.check_not_captured()?;
        let Some(bytes) = length.checked_mul(size_of::<T>()) else {
            let why = "they are more than there is memory".to_owned();
            return Err(Error::Misuse { attempt: format!("allocate a window of {length} elements"), why });
        };
        let memory = ManuallyDrop::new(make(self.collectives.communicator(), bytes)?);
        Ok(Window { memory, length, pool: Arc::clone(&self.windows), of: PhantomData })
    }

    /// Copies elements to a peer's window, from its element `offset` on. The peer may read them after it has waited for a signal that follows.
    pub fn put<'a, T: Pod>(
        &mut self,
        from: impl Into<Part<'a, T>>,
        window: &Window<T>,
        peer: usize,
        offset: usize,
    ) -> Result<(), Error> {
        let [local, remote, bytes] = self.places(&from.into(), window, peer, offset)?;
        self.copy(remote, local, bytes)
    }

    /// Copies elements of a peer's window, from its element `offset` on.
    pub fn get<'a, T: Pod>(
        &mut self,
        window: &Window<T>,
        peer: usize,
        offset: usize,
        into: impl Into<PartMut<'a, T>>,
    ) -> Result<(), Error> {
        let [local, remote, bytes] = self.places(into.into().as_part(), window, peer, offset)?;
        self.copy(local, remote, bytes)
    }

    /// Signals a peer, after the calls so far.
    pub fn signal<T: Pod>(&mut self, window: &Window<T>, peer: usize) -> Result<(), Error> {
        self.check_window(window)?;
        // SAFETY: the pool keeps the window until the rank's stream has executed it. Calls of ranks are not captured.
        unsafe { self.collectives.communicator().signal(&window.memory, &self.stream, peer) }
    }

    /// Later work on this rank's stream begins when a peer has sent its next signal: the first wait is for its first signal, and so on. A peer
    /// that is gone or late ends the wait, and [`Rank::synchronize`] returns the error; calls that were enqueued behind the wait still run.
    pub fn wait<T: Pod>(&mut self, window: &Window<T>, peer: usize) -> Result<(), Error> {
        self.check_window(window)?;
        // SAFETY: as for a signal.
        unsafe { self.collectives.communicator().wait(&window.memory, &self.stream, peer) }
    }

    /// The window as kernels of the program take it: `weft::Window` of [`WINDOW_H`](crate::WINDOW_H).
    pub fn device_window<T: Pod>(&mut self, window: &Window<T>) -> Result<DeviceWindow, Error> {
        self.check_window(window)?;
        self.collectives.communicator().device_window(&window.memory)
    }

    pub(super) fn check_window<T>(&self, window: &Window<T>) -> Result<(), Error> {
        self.check_not_captured()?;
        if Arc::ptr_eq(&window.pool, &self.windows) {
            return Ok(());
        }
        let why = "it belongs to another rank".to_owned();
        Err(Error::Misuse { attempt: format!("use a window on rank {}", self.rank()), why })
    }

    /// The addresses of elements and of their copy in a window, and their bytes.
    fn places<T>(
        &self,
        part: &Part<'_, T>,
        window: &Window<T>,
        peer: usize,
        offset: usize,
    ) -> Result<[u64; 3], Error> {
        self.check()?;
        part.check(self)?;
        self.check_window(window)?;
        let (bytes, at) = (part.len() * size_of::<T>(), offset.checked_mul(size_of::<T>()));
        let Some(at) = at else {
            let why = format!("it has {} elements", window.len());
            return Err(Error::Misuse { attempt: format!("use element {offset} of a window"), why });
        };
        Ok([part.address(), window.memory.place(peer, at, bytes)?, bytes as u64])
    }

    fn copy(&self, target: DeviceAddress, source: DeviceAddress, bytes: u64) -> Result<(), Error> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both lie inside a buffer or a window of this rank, which their pools keep until its stream has executed the copy.
        let copied = unsafe { self.stream.copy(target, source, bytes as usize) };
        if copied.is_err() {
            self.abort();
        }
        copied
    }
}
