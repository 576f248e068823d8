//! Cross-memory attach (`process_vm_readv`): reading the memory of another process through the kernel, one copy instead of two, where
//! that is allowed.
//!
//! The memory may be changing or gone meanwhile; then the bytes are old, new or missing (an error), and nothing worse happens. A
//! peer that fails and frees its buffer in the middle of a call therefore does no harm. Threads of this process are read in the
//! same way, for the same reason.
//!
//! Whether it is allowed depends on the system (ptrace scope, seccomp in containers, user and PID namespaces), so ranks try
//! it on each other when they start: each reads a random number at an address that the peer sent. Whether it is faster
//! depends on the kernel (some sandboxes are slow): rank 0 times it against two copies through shared memory, and its result
//! holds for all ranks, so that all choose the same plans.
//!
//! The kernel reuses the number of a process that has ended. So ranks hold a pidfd of each peer's process, opened before the first
//! read: until that process has ended, the number is its own. The pidfd is polled after every read, and bytes read from a process
//! that has ended by then are an error.
//!
//! Deliberately absent: writing, which could not be undone after a failed call.

#![allow(unsafe_code)] // A system call that takes addresses.

use std::hint::black_box;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, getrlimit, pidfd_open};
use weftlink_shm::memory::SharedMemory;

use weftlink_bootstrap::{Bootstrap, BootstrapError};

use super::Capabilities;

/// Reading any memory of a peer.
pub(super) const CAPABILITIES: Capabilities = Capabilities { get: true, ..Capabilities::NONE };

/// A process whose memory can be read.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Nothing for this process, or if the kernel has no pidfds.
    pinned: Option<Arc<OwnedFd>>,
}

impl Process {
    /// A process without a pidfd.
    pub(crate) fn named(pid: u32) -> Process {
        Process { pid, pinned: None }
    }

    /// A process with a pidfd; nothing if it has ended, or if descriptors are scarce.
    fn pinned(pid: u32) -> Option<Process> {
        if pid == std::process::id() {
            return Some(Process::named(pid));
        }
        match pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()) {
            Ok(descriptor) => {
                let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
                let are_plenty = u64::try_from(descriptor.as_raw_fd()).is_ok_and(|number| number < limit / 2);
                are_plenty.then(|| Process { pid, pinned: Some(Arc::new(descriptor)) })
            }
            Err(Errno::NOSYS) => Some(Process::named(pid)),
            Err(_) => None,
        }
    }

    /// Reads bytes at an address of the process. They count only if the process has not ended afterwards.
    ///
    /// # Safety
    /// `target` is writable for `bytes`, and nothing else uses it.
    pub(crate) unsafe fn get(&self, address: u64, target: *mut u8, bytes: usize) -> Result<(), i32> {
        let pid = self.pid;
        let mut done = 0;
        while done < bytes {
            let local = libc::iovec { iov_base: target.wrapping_add(done).cast(), iov_len: bytes - done };
            let remote = libc::iovec { iov_base: (address as usize + done) as *mut _, iov_len: bytes - done };
            // SAFETY: the local range is the caller's to write; the kernel checks the remote one.
            let read = unsafe {
                libc::process_vm_readv(pid as libc::pid_t, &raw const local, 1, &raw const remote, 1, 0)
            };
            match read {
                0 => return Err(libc::EFAULT),
                read if read > 0 => done += read as usize,
                _ => {
                    let error = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EFAULT);
                    if error != libc::EINTR {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether it has ended, so that its number may belong to another.
    pub(crate) fn has_ended(&self) -> bool {
        let Some(descriptor) = &self.pinned else { return false };
        let mut watched = [PollFd::new(&**descriptor, PollFlags::IN)];
        let polled = poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        !matches!(polled, Ok(0) | Err(Errno::INTR))
    }
}

/// The bytes of a timed read: much less than caches hold, but worth much more than a system call.
const SAMPLE_BYTES: usize = 256 << 10;
const SAMPLES: usize = 5;

/// The processes of all ranks, if all of them can read each other's memory. All ranks call this.
pub(crate) fn probe(
    bootstrap: &mut Bootstrap,
    wanted: Option<bool>,
    deadline: Duration,
) -> Result<Option<Vec<Process>>, BootstrapError> {
    let (rank, size) = (bootstrap.rank(), bootstrap.size());
    let sample = vec![rank as u8 + 1; SAMPLE_BYTES];
    let secret = Box::new(secret(rank));
    let mine =
        Placed { secret_at: (&raw const *secret) as u64, secret: *secret, sample_at: sample.as_ptr() as u64 };
    let all = bootstrap.exchange("weft: cma, addresses", mine.to_bytes(), deadline)?;
    let placed: Vec<Option<Placed>> = all.iter().map(|bytes| Placed::from_bytes(bytes)).collect();
    let can_read = |(peer, process): (usize, &Process)| {
        let Some(Placed { secret_at, secret, .. }) = placed[peer] else { return false };
        let mut found = 0_u64;
        // SAFETY: the target is a local variable.
        let read = unsafe { process.get(secret_at, (&raw mut found).cast(), size_of::<u64>()) };
        read.is_ok() && found == secret && !process.has_ended()
    };
    let pinned = || bootstrap.pids().iter().map(|pid| Process::pinned(*pid)).collect::<Option<Vec<_>>>();
    let processes = if wanted != Some(false) { pinned() } else { None };
    let processes = processes.filter(|processes| processes.iter().enumerate().all(can_read));
    let allowed = processes.is_some();
    let is_faster = || match (placed.get(1).copied().flatten(), processes.as_ref().and_then(|all| all.get(1)))
    {
        (Some(peer), Some(process)) => is_faster(process, peer.sample_at),
        _ => true,
    };
    let is_worth_it = wanted == Some(true) || rank != 0 || allowed && is_faster();
    let verdict = vec![u8::from(allowed && is_worth_it)];
    let verdicts = bootstrap.exchange("weft: cma, results", verdict, deadline)?;
    // Until here peers may have been reading them.
    drop((secret, sample));
    Ok(processes.filter(|_| size > 1 && verdicts.iter().all(|verdict| verdict[..] == [1])))
}

/// The addresses that peers try to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Placed {
    secret_at: u64,
    secret: u64,
    sample_at: u64,
}

impl Placed {
    fn to_bytes(self) -> Vec<u8> {
        [self.secret_at, self.secret, self.sample_at].into_iter().flat_map(u64::to_le_bytes).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Placed> {
        let mut words = bytes.chunks(8).map(|word| word.try_into().map(u64::from_le_bytes).ok());
        let mut next = || words.next().flatten();
        Some(Placed { secret_at: next()?, secret: next()?, sample_at: next()? })
    }
}

/// Whether one read by the kernel takes less time than two copies, one of them into shared memory.
fn is_faster(process: &Process, sample_at: u64) -> bool {
    // If memory is short, the next allocation reports it.
    let Ok((memory, _descriptor)) = SharedMemory::create("weft: cma", SAMPLE_BYTES) else { return false };
    let mut target = vec![0_u8; SAMPLE_BYTES];
    let staging = memory.as_ptr();
    let least = |work: &mut dyn FnMut()| {
        let time = |_| {
            let began = Instant::now();
            work();
            began.elapsed()
        };
        (0..SAMPLES).map(time).min().unwrap_or(Duration::MAX)
    };
    let mut failed = false;
    let by_kernel = least(&mut || {
        // SAFETY: the target has room for a sample.
        failed |= unsafe { process.get(sample_at, target.as_mut_ptr(), SAMPLE_BYTES) }.is_err();
    });
    let by_staging = least(&mut || {
        // SAFETY: both are a sample long, and no other thread knows of this memory.
        unsafe {
            std::ptr::copy_nonoverlapping(target.as_ptr(), staging, SAMPLE_BYTES);
            std::ptr::copy_nonoverlapping(staging, target.as_mut_ptr(), SAMPLE_BYTES);
        }
        black_box(&mut target);
    });
    // Copies within one core's cache are faster than those between ranks, so twice as fast counts as a tie.
    !failed && by_kernel < 2 * by_staging
}

/// A number that memory does not contain by chance.
fn secret(rank: usize) -> u64 {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (time.as_nanos() as u64 ^ u64::from(std::process::id()) << 32 ^ (rank as u64) << 17)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reused_pids_are_detected() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let Some(process) = Process::pinned(child.id()) else {
            child.kill().unwrap();
            child.wait().unwrap();
            return println!("skipped: the kernel has no pidfds");
        };
        assert!(!process.has_ended());
        child.kill().unwrap();
        child.wait().unwrap();
        // As if this process had got the number of the one that has ended: its memory can be read, but is the wrong one.
        let reused = Process { pid: std::process::id(), ..process };
        let (number, mut found) = (4711_u64, 0_u64);
        // SAFETY: the target is a local variable.
        let read =
            unsafe { reused.get((&raw const number) as u64, (&raw mut found).cast(), size_of::<u64>()) };
        assert_eq!((read, found, reused.has_ended()), (Ok(()), 4711, true));
    }
}
