//! Reading the memory of another process through the kernel: one copy instead of two, where that is allowed.
//!
//! What is read may be changing or gone; then the bytes are old, new or missing (an error), and nothing else happens. So a
//! peer that fails and frees its buffer in the middle of a call does no harm here. Threads of this process are read in the
//! same way, for the same reason.
//!
//! Whether it is allowed depends on the system (ptrace scope, seccomp in containers, user and PID namespaces), so ranks try
//! it on each other when they start: a number that only the peer knows the place of must come back. Whether it is worth it
//! depends on the kernel (some sandboxes answer slowly): rank 0 times it against two copies through shared memory. Rank
//! 0's word counts for all, so that all choose the same plans.
//!
//! Deliberately absent: writing, which could not be taken back after a call that failed.

#![allow(unsafe_code)] // A system call that takes addresses.

use std::hint::black_box;
use std::io;
use std::time::{Duration, Instant};

use crate::bootstrap::{Bootstrap, BootstrapError};
use crate::memory::SharedMemory;

/// Reads bytes at an address of a process.
///
/// # Safety
/// `target` has room for `bytes`, and nobody else touches them.
pub(crate) unsafe fn read(pid: u32, address: u64, target: *mut u8, bytes: usize) -> Result<(), i32> {
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

/// What is read to see how fast it is: much less than caches hold, much more than a system call takes.
const SAMPLE_BYTES: usize = 256 << 10;
const SAMPLES: usize = 5;

/// Whether all ranks read each other's memory through the kernel. All ranks call it.
pub(crate) fn probe(
    bootstrap: &mut Bootstrap,
    wanted: Option<bool>,
    deadline: Duration,
) -> Result<bool, BootstrapError> {
    let (rank, size) = (bootstrap.rank(), bootstrap.size());
    let sample = vec![rank as u8 + 1; SAMPLE_BYTES];
    let secret = Box::new(secret(rank));
    let mine =
        Placed { secret_at: (&raw const *secret) as u64, secret: *secret, sample_at: sample.as_ptr() as u64 };
    let told = bootstrap.exchange("weft: reach, where secrets are", mine.to_bytes(), deadline)?;
    let placed: Vec<Option<Placed>> = told.iter().map(|told| Placed::from_bytes(told)).collect();
    let can_read = |peer: usize| {
        let Some(Placed { secret_at, secret, .. }) = placed[peer] else { return false };
        let mut found = 0_u64;
        // SAFETY: the target is a number of ours.
        let read =
            unsafe { read(bootstrap.pids()[peer], secret_at, (&raw mut found).cast(), size_of::<u64>()) };
        read.is_ok() && found == secret
    };
    let allowed = wanted != Some(false) && (0..size).all(can_read);
    let is_faster = || match placed.get(1).copied().flatten() {
        Some(peer) => is_faster(bootstrap.pids()[1], peer.sample_at),
        None => true,
    };
    let worth = wanted == Some(true) || rank != 0 || allowed && is_faster();
    let verdict = vec![u8::from(allowed && worth)];
    let verdicts = bootstrap.exchange("weft: reach, all have tried", verdict, deadline)?;
    // Until here others may have been reading them.
    drop((secret, sample));
    Ok(size > 1 && verdicts.iter().all(|verdict| verdict[..] == [1]))
}

/// Where a rank has put what others try to read.
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
fn is_faster(pid: u32, sample_at: u64) -> bool {
    // A shortage is told by whoever needs memory next.
    let Ok((memory, _descriptor)) = SharedMemory::create("weft: reach", SAMPLE_BYTES) else { return false };
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
        failed |= unsafe { read(pid, sample_at, target.as_mut_ptr(), SAMPLE_BYTES) }.is_err();
    });
    let by_staging = least(&mut || {
        // SAFETY: both are a sample long, and nobody else knows of this memory.
        unsafe {
            std::ptr::copy_nonoverlapping(target.as_ptr(), staging, SAMPLE_BYTES);
            std::ptr::copy_nonoverlapping(staging, target.as_mut_ptr(), SAMPLE_BYTES);
        }
        black_box(&mut target);
    });
    // Copies of one core that stay in its cache are faster than what ranks see of each other: twice as fast is a tie.
    !failed && by_kernel < 2 * by_staging
}

/// A number that is not found by chance.
fn secret(rank: usize) -> u64 {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (time.as_nanos() as u64 ^ u64::from(std::process::id()) << 32 ^ (rank as u64) << 17)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
