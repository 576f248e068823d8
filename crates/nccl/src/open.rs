//! A communicator whose ranks have met: Weft's own, on the host and on a GPU.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weftlink::bootstrap::Bootstrap;
use weftlink::cuda::{Aborter, AddressedRank, Memory};
use weftlink::{Background, Communicator, Endpoint, Reduction};

use crate::abi::ResultCode;
use crate::failure::Failure;
use crate::lock::lock;
use crate::log;
use crate::settings::knobs;
use crate::signals::Signals;

/// How long a rank that leaves waits for the messages that it has sent.
const FLUSH: Duration = Duration::from_secs(1);
/// How often a thread that takes a communicator looks whether others have it.
const AGAIN: Duration = Duration::from_millis(1);

/// A communicator whose ranks have met.
pub(crate) struct Open {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) spans_hosts: bool,
    /// How long calls wait for other ranks.
    pub(crate) timeout: Duration,
    /// Of calls on host memory. Taken out when it is closed or shrunk.
    background: Mutex<Option<Background>>,
    /// Of messages on host memory.
    pub(crate) endpoint: Endpoint,
    /// Puts and signals on host memory.
    pub(crate) signals: Arc<Signals>,
    /// The rank on a GPU: from the start if all ranks have one, otherwise from the first call on memory of a GPU.
    pub(crate) gpu: Mutex<Option<AddressedRank>>,
    aborter: Mutex<Option<Aborter>>,
    /// The first error of a call that ended the communicator.
    failed: Mutex<Option<Failure>>,
}

impl Open {
    /// Opens what a communicator needs. All ranks call it.
    pub(crate) fn new(mut comm: Communicator, device: Option<usize>) -> Result<Open, Failure> {
        let (rank, size) = (comm.rank(), comm.size());
        let endpoint = comm.endpoint()?;
        let mut have_gpu = [u32::from(device.is_some())];
        comm.all_reduce(&mut have_gpu, Reduction::Minimum)?;
        let spans_hosts = comm.spans_hosts();
        let joined = match device {
            Some(device) if have_gpu == [1] && !spans_hosts => Some((comm.duplicate_group()?, device)),
            _ => None,
        };
        let timeout = comm.options().deadline;
        let open = Open {
            rank,
            size,
            spans_hosts,
            timeout,
            background: Mutex::new(Some(comm.into_background()?)),
            signals: Signals::new(endpoint.clone()),
            endpoint,
            gpu: Mutex::new(None),
            aborter: Mutex::new(None),
            failed: Mutex::new(None),
        };
        if let Some((group, device)) = joined {
            *lock(&open.gpu) = Some(open.joined(group, device, timeout)?);
        }
        Ok(open)
    }

    /// Joins the ranks on GPUs. All ranks call it.
    pub(crate) fn joined(
        &self,
        group: Bootstrap,
        device: usize,
        timeout: Duration,
    ) -> Result<AddressedRank, Failure> {
        let settings = knobs().map_err(|error| Failure::argument(error.to_string()))?;
        let memory = if settings.peer_access { Memory::Device } else { Memory::Host };
        let mut rank = AddressedRank::with_memory(group, device, memory, timeout)?;
        // Later, only some ranks may have messages.
        rank.enable_messages()?;
        *lock(&self.aborter) = Some(rank.collectives().aborter());
        let shared =
            if rank.collectives().shares_context() { ", which other ranks of the process share" } else { "" };
        log::info(Some(device), &format!("rank {} of {} is on GPU {device}{shared}", self.rank, self.size));
        Ok(rank)
    }

    /// What runs calls on host memory.
    pub(crate) fn background(&self) -> Result<Background, Failure> {
        let closed = || Failure::usage("the communicator is closed");
        lock(&self.background).clone().ok_or_else(closed)
    }

    /// Whether ranks can write to each other's windows, on a GPU if there is one.
    pub(crate) fn has_puts(&self, device: Option<usize>) -> bool {
        match &mut *lock(&self.gpu) {
            Some(gpu) => gpu.collectives_mut().communicator().accesses_buffers(),
            None => device.is_none() || !self.spans_hosts,
        }
    }

    /// Rows of the same length of all ranks, in their order. All ranks call it.
    pub(crate) fn gathered(&self, own: Vec<u64>) -> Result<Vec<Vec<u64>>, Failure> {
        let length = own.len();
        let mut all = vec![0; length * self.size];
        let all = self.background()?.with(move |comm| {
            comm.all_gather((&own[..], &mut all[..]))?;
            Ok(all)
        })?;
        Ok(all.chunks(length).map(<[u64]>::to_vec).collect())
    }

    /// The communicator itself, for good, once no other thread is in a call of it.
    pub(crate) fn take(&self) -> Result<Communicator, Failure> {
        let gpu = lock(&self.gpu).take();
        drop(gpu);
        let closed = || Failure::usage("the communicator is closed");
        let background = lock(&self.background).take().ok_or_else(closed)?;
        // Threads whose calls are ending have it, too.
        let since = Instant::now();
        while background.has_other_users() && since.elapsed() < self.timeout {
            std::thread::sleep(AGAIN);
        }
        Ok(background.close()?)
    }

    /// Why calls fail from now on, if that is known without a call of the driver.
    pub(crate) fn known_failure(&self) -> Option<Failure> {
        let recorded = lock(&self.failed).clone();
        recorded.or_else(|| lock(&self.background).as_ref().and_then(Background::failure).map(Failure::from))
    }

    /// Why calls fail from now on, if they do. Waits for no call.
    pub(crate) fn failure(&self) -> Option<Failure> {
        // A thread that loads a plan has the rank.
        let on_gpu = || match self.gpu.try_lock() {
            Ok(gpu) => gpu.as_ref()?.collectives().check().err().map(Failure::from),
            Err(_) => {
                let text = lock(&self.aborter).as_ref()?.failure()?;
                Some(Failure { code: ResultCode::RemoteError, text })
            }
        };
        let failure = self.known_failure().or_else(on_gpu)?;
        self.record(&failure);
        Some(failure)
    }

    /// Remembers an error that ended the communicator. Wrong arguments do not.
    /// Returns whether it is one.
    pub(crate) fn record(&self, failure: &Failure) -> bool {
        use ResultCode::{InProgress, InvalidArgument};
        let is_final = ![InvalidArgument, InProgress].contains(&failure.code);
        if is_final {
            lock(&self.failed).get_or_insert_with(|| failure.clone());
        }
        is_final
    }

    /// Ends all calls, of the other ranks too.
    pub(crate) fn abort(&self, why: &str) {
        if let Some(background) = &*lock(&self.background) {
            background.abort(why);
        }
        if let Some(aborter) = &*lock(&self.aborter) {
            aborter.abort();
        }
    }

    /// Puts to a window are dropped from now on. Returns when none writes to it.
    pub(crate) fn end_window(&self, number: u64) -> Result<(), Failure> {
        let ended = self.signals.remove(number, self.timeout);
        if let Err(late) = &ended {
            // The put must end, because the program may free the memory next.
            self.record(late);
            self.abort(&late.text);
            self.stop_puts();
        }
        ended
    }

    /// Waits until no put of another rank writes to this one's windows, which the program may free next. The communicator has ended, so all have,
    /// or do so at once.
    pub(crate) fn stop_puts(&self) {
        if let Err(late) = self.signals.close(self.timeout) {
            log::warn(&late.text);
        }
    }

    /// Waits for this rank's calls, and leaves.
    pub(crate) fn leave(&self) -> Result<(), Failure> {
        let gpu = lock(&self.gpu).take();
        let left = gpu.as_ref().map_or(Ok(()), |gpu| {
            let left = gpu.collectives().leave();
            gpu.collectives().await_ends();
            left
        });
        drop(gpu);
        // A put that takes longer ends with the communicator.
        let _ = self.signals.close(FLUSH);
        self.endpoint.flush(FLUSH);
        // The process may end next: the others must have heard by then that this rank has left, and not died. A thread that is still in a call keeps it.
        let background = lock(&self.background).take();
        drop(background.map(Background::close));
        self.stop_puts();
        Ok(left?)
    }
}
