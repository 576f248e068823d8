//! Communicators
//!
//! A communicator is one rank's end of a group. All ranks make the same calls in the same order. Any
//! thread may use it, but only one may free it, when no other uses it. After fork, only the process
//! that made a communicator may use it.

use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weftlink::plan::Verified;
use weftlink::{Background, Communicator, Error, Identities, PlanId};

use crate::error::{Failure, guard, weft_status};
use crate::gpu::Gpus;
use crate::pointer::{check_not_null, rank, reference, text};
use crate::types::Factors;

/// A communicator.
pub struct weft_comm {
    /// None once it is shrunk.
    background: Mutex<Option<Background>>,
    /// Its ranks on GPUs, from the first call on a stream.
    pub(crate) gpus: Gpus,
    /// Where each rank runs, for errors.
    identities: Identities,
    pub(crate) factors: Mutex<Factors>,
    /// The plans that it has loaded.
    pub(crate) plans: Mutex<Vec<(Arc<Verified>, PlanId)>>,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// The number of each rank in the communicator that this one was made from.
    origins: Vec<usize>,
    process: u32,
}

/// The rank of the caller, from 0.
///
/// # Safety
/// `comm` is null or a communicator, `rank` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_comm_rank(comm: *const weft_comm, rank: *mut c_int) -> weft_status {
    guard(|| {
        check_not_null(rank, "rank")?;
        // SAFETY: the caller's.
        let comm = unsafe { reference(comm, "comm") }?;
        // SAFETY: as above.
        unsafe { rank.write(comm.rank as c_int) };
        Ok(())
    })
}

/// The number of ranks.
///
/// # Safety
/// `comm` is null or a communicator, `size` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_comm_size(comm: *const weft_comm, size: *mut c_int) -> weft_status {
    guard(|| {
        check_not_null(size, "size")?;
        // SAFETY: the caller's.
        let comm = unsafe { reference(comm, "comm") }?;
        // SAFETY: as above.
        unsafe { size.write(comm.size as c_int) };
        Ok(())
    })
}

/// Writes the number that each rank had in the communicator that this one was split or shrunk from.
/// `origins` has weft_comm_size elements.
///
/// # Safety
/// `comm` is null or a communicator, `origins` null or as long as it has ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_comm_origins(comm: *const weft_comm, origins: *mut c_int) -> weft_status {
    guard(|| {
        check_not_null(origins, "origins")?;
        // SAFETY: the caller's.
        let comm = unsafe { reference(comm, "comm") }?;
        for (at, origin) in comm.origins.iter().enumerate() {
            // SAFETY: as above.
            unsafe { origins.add(at).write(*origin as c_int) };
        }
        Ok(())
    })
}

/// Makes communicators of parts of the ranks: ranks that pass the same `part` (color in MPI and NCCL)
/// get one, ordered by `key` and then by rank. A rank that passes a negative part gets none, and *made
/// is null. All ranks call it. Both communicators can be used afterwards.
///
/// # Safety
/// `comm` is null or a communicator, `made` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_comm_split(
    comm: *mut weft_comm,
    part: c_int,
    key: i64,
    made: *mut *mut weft_comm,
) -> weft_status {
    guard(|| {
        check_not_null(made, "made")?;
        // SAFETY: the caller's.
        let comm = unsafe { reference(comm, "comm") }?;
        let part = u32::try_from(part).ok();
        let split = move |comm: &mut Communicator| comm.split(part, key);
        let own = comm.with(split)?.map(weft_comm::new).transpose()?;
        // SAFETY: as above.
        unsafe { made.write(own.map_or(std::ptr::null_mut(), |own| Box::into_raw(Box::new(own)))) };
        Ok(())
    })
}

/// How long a thread that shrinks a communicator waits for others whose calls are ending.
const USERS: Duration = Duration::from_secs(60);
/// How often it looks.
const AGAIN: Duration = Duration::from_millis(1);

/// Makes a communicator of the surviving ranks after a call has failed. All ranks that still live
/// call it; those that have not within the timeout are left out. The old communicator can only be
/// freed afterwards.
///
/// # Safety
/// `comm` is null or a communicator, `made` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_comm_shrink(comm: *mut weft_comm, made: *mut *mut weft_comm) -> weft_status {
    guard(|| {
        check_not_null(made, "made")?;
        // SAFETY: the caller's.
        let comm = unsafe { reference(comm, "comm") }?;
        comm.background()?.check_not_in_call()?;
        let background = comm.take_background()?;
        // The error of a call is why the program shrinks.
        let _ = comm.gpus.leave();
        // Threads whose calls are ending have it, too. A call that does not end within its deadline is stuck.
        let since = Instant::now();
        while background.has_other_users() && since.elapsed() < USERS {
            std::thread::sleep(AGAIN);
        }
        let shrunk = background.close().and_then(Communicator::shrink);
        let shrunk = weft_comm::new(shrunk.map_err(|error| comm.failure(error))?)?;
        // SAFETY: as above.
        unsafe { made.write(Box::into_raw(Box::new(shrunk))) };
        Ok(())
    })
}

/// Aborts the communicator on all ranks, from any thread: their calls end within milliseconds with
/// WEFT_CANCELLED, an error that has the reason (its first 47 bytes on other ranks) and names this
/// rank. Free the communicator afterwards, or shrink it.
///
/// # Safety
/// `comm` is null or a communicator, `reason` null or a text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_comm_abort(comm: *mut weft_comm, reason: *const c_char) -> weft_status {
    guard(|| {
        // SAFETY: the caller's.
        let comm = unsafe { reference(comm, "comm") }?;
        // SAFETY: as above.
        let reason = unsafe { text(reason, "reason") }?;
        comm.background()?.abort(reason);
        comm.gpus.abort();
        Ok(())
    })
}

/// The error of a call on a stream that has failed (ncclCommGetAsyncError), and WEFT_OK if none has.
///
/// # Safety
/// `comm` is null or a communicator.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_comm_check(comm: *const weft_comm) -> weft_status {
    guard(|| {
        // SAFETY: the caller's.
        let comm = unsafe { reference(comm, "comm") }?;
        comm.check_process()?;
        comm.gpus.failure().map_or(Ok(()), Err)
    })
}

/// Waits for all started calls, leaves the group and frees the communicator, whatever the status. Does
/// nothing with a null pointer.
///
/// # Safety
/// `comm` is null or a communicator that nothing else uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weft_comm_free(comm: *mut weft_comm) -> weft_status {
    guard(|| {
        if comm.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's: it came from `Box::into_raw`, and nothing else uses it.
        let comm = unsafe { Box::from_raw(comm) };
        if comm.check_process().is_err() {
            // The threads that this copy belongs to are in the other process.
            std::mem::forget(comm);
            return Ok(());
        }
        let failure = comm.gpus.leave();
        if let Ok(background) = comm.take_background() {
            background.close()?;
        }
        failure.map_or(Ok(()), Err)
    })
}

impl weft_comm {
    /// Moves a communicator to its worker thread.
    pub(crate) fn new(comm: Communicator) -> Result<Self, Error> {
        let (identities, origins) = (comm.identities(), comm.origins().to_vec());
        let (rank, size) = (comm.rank() as u32, comm.size() as u32);
        let background = Mutex::new(Some(comm.into_background()?));
        let (gpus, factors, plans) = (Gpus::default(), Mutex::default(), Mutex::default());
        let process = std::process::id();
        Ok(Self { background, gpus, identities, factors, plans, rank, size, origins, process })
    }

    pub(crate) fn background(&self) -> Result<Background, Failure> {
        self.check_process()?;
        let shrunk =
            || Failure::misuse("the communicator was shrunk: use the one that weft_comm_shrink made");
        lock(&self.background).clone().ok_or_else(shrunk)
    }

    fn take_background(&self) -> Result<Background, Failure> {
        self.check_process()?;
        let shrunk = || Failure::misuse("the communicator was shrunk already");
        lock(&self.background).take().ok_or_else(shrunk)
    }

    /// Runs a function on the communicator after the queued calls, and waits for it.
    pub(crate) fn with<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Communicator) -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Failure> {
        self.background()?.with(work).map_err(|error| self.failure(error))
    }

    /// The failure of a call, whose blamed ranks have their processes.
    pub(crate) fn failure(&self, error: Error) -> Failure {
        let blamed = self.identities.blamed(&error);
        Failure { blamed, ..error.into() }
    }

    pub(crate) fn identities(&self) -> &Identities {
        &self.identities
    }

    /// A number of a rank, which the call checks.
    pub(crate) fn root(number: c_int) -> Result<u32, Failure> {
        rank(number, "root").map(|root| root as u32)
    }

    /// Checked before a lock is taken: after fork, its owner may be a thread of the other process.
    fn check_process(&self) -> Result<(), Failure> {
        let (here, there) = (std::process::id(), self.process);
        if here == there {
            return Ok(());
        }
        Err(Failure::misuse(format!(
            "the communicator belongs to process {there}, from which process {here} was forked: make a new one in this process"
        )))
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
