//! Messages that are read where they lie, by the thread whose turn it is, outside of the lock. Long ones are read by several, where
//! ranks have cores to spare: on 16 cores one reads 16 MiB at 10 GB/s, four together at 25, eight at 43.

// Copies from other processes, and between buffers of this one.
#![allow(unsafe_code)]

use std::ops::Range;
use std::panic::resume_unwind;
use std::thread;
use std::time::Instant;

use weftlink_shm::sync;

use super::asked::Asked;
use super::frame::Verdict;
use super::state::State;
use crate::transport::cma::Process;

/// After so much it is looked whether there is still a reason to go on.
const PIECE_BYTES: usize = 4 << 20;

/// What is worth a thread of its own, which takes some 20 us to start.
const BYTES_PER_THREAD: usize = 1 << 20;

/// What a thread reads is a multiple of this, as most systems' pages are: two seldom read from the same.
const PAGE: usize = 4 << 10;

/// Which messages are read where they lie, and by how many threads at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readers {
    pub(crate) bytes_min: usize,
    pub(crate) threads: usize,
}

/// An offer that is to be read.
pub(super) struct Reading {
    pub(super) asked: Asked,
    pub(super) from: usize,
    /// The sender's process; none if that is this rank itself.
    process: Option<Process>,
    /// The send, as its rank numbers them, and where its message lies.
    pub(super) offer: u64,
    address: u64,
    threads: usize,
    /// Why and when it could not be read.
    pub(super) failed: Option<(i32, Instant)>,
}

impl Reading {
    pub(super) fn new(
        asked: Asked,
        from: usize,
        process: Option<Process>,
        (offer, address): (u64, u64),
        threads: usize,
    ) -> Reading {
        Reading { asked, from, process, offer, address, threads, failed: None }
    }

    /// Reads it, as long as `goes_on`.
    pub(super) fn read(&mut self, goes_on: impl Fn() -> bool + Sync) {
        let (target, bytes) = (self.asked.address, self.asked.bytes);
        let Some(process) = &self.process else {
            // SAFETY: both ends are of callers of this rank, who have promised that so many bytes are there; the same place
            // may be sent and received.
            return unsafe { std::ptr::copy(self.address as *const u8, target, bytes) };
        };
        let (source, target) = (self.address, target as usize);
        let read = |range: Range<usize>| {
            for at in range.clone().step_by(PIECE_BYTES).take_while(|_| goes_on()) {
                let piece = PIECE_BYTES.min(range.end - at);
                // SAFETY: the target is the receive's alone, and the piece lies within.
                unsafe { process.get(source + at as u64, (target + at) as *mut u8, piece) }?;
            }
            Ok(())
        };
        let mut threads = (bytes / BYTES_PER_THREAD).clamp(1, self.threads.max(1));
        if threads > 1 {
            // Whoever has its turn may be bound to fewer cores than the rank, and threads that it starts are bound with it. To ask takes
            // some 20 us to 40 us, so short messages do not.
            threads = threads.min(thread::available_parallelism().map_or(1, usize::from));
        }
        let read = by_threads(threads, bytes, read);
        let read = read.and(if process.has_ended() { Err(libc::ESRCH) } else { Ok(()) });
        if let Err(error) = read {
            self.failed = Some((error, Instant::now()));
        }
    }
}

/// Does something to all bytes, each thread to a part, this one to the first. The error of any, if there is one.
fn by_threads<E: Send>(
    threads: usize,
    bytes: usize,
    work: impl Fn(Range<usize>) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let part = bytes.div_ceil(threads).next_multiple_of(PAGE);
    let range = |index: usize| {
        (index * part).min(bytes)
            ..((index + 1) * part).min(bytes - usize::from(bytes > 0 && mutant!("last-byte-not-read")))
    };
    thread::scope(|scope| {
        let start = |index| {
            let part = range(index);
            let work = &work;
            thread::Builder::new().spawn_scoped(scope, move || work(part)).map_err(|_| index)
        };
        let others: Vec<_> = (1..threads).map(start).collect();
        let mut done = work(range(0));
        for other in others {
            done = done.and(match other {
                Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                // There was no thread for it.
                Err(index) => work(range(index)),
            });
        }
        done
    })
}

impl State {
    /// The next that is to be read, which is done without the lock. A message of this rank to itself is read straight from its sender's
    /// memory, so its send is not over before that, whatever else happens.
    pub(super) fn next_reading(&mut self) -> Option<Reading> {
        let reading = self.readings.pop_front()?;
        if reading.process.is_none() {
            self.being_read.extend(self.offered.remove_entry(&reading.offer));
        }
        Some(reading)
    }

    /// A reading has ended.
    pub(super) fn has_read(&mut self, reading: Reading) {
        if reading.process.is_none() {
            self.offered.extend(self.being_read.remove_entry(&reading.offer));
        }
        // What has been read means something only if nobody has taken it back by now, as the header of `state.rs` tells.
        sync::after_reading();
        if self.fate.is_over() && !mutant!("reading-outlives-abort") {
            let send = if reading.process.is_none() { self.offered.remove(&reading.offer) } else { None };
            for asked in send.into_iter().chain([reading.asked]) {
                let error = self.fate.end_of(&asked);
                self.finish(asked, Err(error));
            }
            return;
        }
        if reading.process.is_some() && self.fate.has_left(reading.from) {
            let error = self.fate.left(&reading.asked, reading.from);
            return self.finish(reading.asked, Err(error));
        }
        if reading.failed.is_some() {
            return self.unread.push(reading);
        }
        let Reading { asked, from, offer, .. } = reading;
        self.close_offer(from, offer, Verdict::Received, asked, Ok(from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use crate::p2p::asked::{Tell, Way};

    #[test]
    fn every_byte_is_one_threads() {
        for (threads, bytes) in [(1, 1), (3, 12_288), (4, 100_001), (8, 4097), (5, 0)] {
            let touched: Vec<AtomicU32> = (0..bytes).map(|_| AtomicU32::new(0)).collect();
            let done = by_threads(threads, bytes, |range| {
                for byte in &touched[range] {
                    byte.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<(), ()>(())
            });
            assert!(done.is_ok() && touched.iter().all(|byte| byte.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn what_any_thread_cannot_read_is_an_error() {
        for bad in 0..4 {
            let work = |range: Range<usize>| if range.contains(&(bad * 4096)) { Err(bad) } else { Ok(()) };
            assert_eq!(by_threads(4, 4 * 4096, work), Err(bad));
        }
    }

    /// Reads from this process itself, with so many threads.
    fn read(source: u64, target: &mut [u8], threads: usize) -> Option<i32> {
        let (address, bytes) = (target.as_mut_ptr(), target.len());
        let asked = Asked::new(1, Way::From(Some(1)), 0, address, bytes, Duration::MAX, Tell::Waiting);
        let mut reading =
            Reading::new(asked, 1, Some(Process::named(std::process::id())), (1, source), threads);
        reading.read(|| true);
        reading.failed.map(|(error, _)| error)
    }

    /// A process may read its own memory unless seccomp refuses the system call, of whatever memory.
    fn is_refused_here(read: Option<i32>) -> bool {
        let refused = !weftlink_testkit::processes::may_read_memory();
        if refused {
            println!("skipped: process_vm_readv is refused here ({read:?})");
        }
        refused
    }

    #[test]
    fn several_threads_read_all_of_it() {
        let bytes = 5 * BYTES_PER_THREAD + 4567;
        let source: Vec<u8> = (0..bytes).map(|at| ((at * 31) >> 7) as u8).collect();
        let mut target = vec![0_u8; bytes + 3];
        let read = read(source.as_ptr() as u64, &mut target[3..], 4);
        if is_refused_here(read) {
            return;
        }
        assert_eq!(read, None);
        assert!(target[3..] == source[..]);
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        let mut target = vec![0_u8; 4 * BYTES_PER_THREAD];
        let read = read(4096, &mut target, 4);
        if is_refused_here(read) {
            return;
        }
        assert_eq!(read, Some(libc::EFAULT));
    }
}
