//! Pulls: messages that the receiver copies out of the sender's memory, without the endpoint's lock. Several threads share a long one
//! where ranks have cores to spare: on 16 cores one thread reads 16 MiB at 10 GB/s, four at 25, eight at 43.

// Copies from other processes, and between buffers of this one.
#![allow(unsafe_code)]

use std::ops::Range;
use std::panic::resume_unwind;
use std::thread;

use super::completion::{Completion, memory};
use crate::transport::cma::Process;

/// A pull checks for an abort after this much.
const PIECE_BYTES: usize = 4 << 20;

/// Another thread, which takes some 20 us to start, is worth it from here on.
const BYTES_PER_THREAD: usize = 1 << 20;

/// Each thread's part is a multiple of this, the size of most systems' pages, so that two seldom read from the same page.
const PAGE: usize = 4 << 10;

/// Which messages are pulled, and by how many threads at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PullPolicy {
    pub(crate) bytes_min: usize,
    pub(crate) threads: usize,
}

/// A message to pull.
pub(super) struct Pull {
    pub(super) pull: weftlink_p2p::Pull<Completion>,
    /// The sender's process; none if the sender is this rank itself.
    process: Option<Process>,
    threads: usize,
    /// The system's error, if it failed.
    pub(super) failed: Option<i32>,
}

impl Pull {
    pub(super) fn new(
        pull: weftlink_p2p::Pull<Completion>,
        process: Option<Process>,
        threads: usize,
    ) -> Pull {
        Pull { pull, process, threads, failed: None }
    }

    /// Copies the message, as long as `goes_on`.
    pub(super) fn run(&mut self, goes_on: impl Fn() -> bool + Sync) {
        let (source, target, bytes) = (self.pull.address, self.pull.op.address, self.pull.op.bytes);
        let Some(process) = &self.process else {
            // SAFETY: both ends belong to callers of this rank, who have promised that as many bytes are there; they may overlap.
            return unsafe { std::ptr::copy(memory(source), memory(target), bytes) };
        };
        let read = |range: Range<usize>| {
            for at in range.clone().step_by(PIECE_BYTES).take_while(|_| goes_on()) {
                let piece = PIECE_BYTES.min(range.end - at);
                // SAFETY: the target is the receive's alone, and the piece lies within.
                unsafe { process.get(source + at as u64, memory(target + at as u64), piece) }?;
            }
            Ok(())
        };
        let mut threads = (bytes / BYTES_PER_THREAD).clamp(1, self.threads.max(1));
        if threads > 1 {
            // This thread may be bound to fewer cores than the rank, and so are threads that it starts. The system call takes 20 us to
            // 40 us, so short messages do without.
            threads = threads.min(thread::available_parallelism().map_or(1, usize::from));
        }
        let read = by_threads(threads, bytes, read);
        let read = read.and(if process.has_ended() { Err(libc::ESRCH) } else { Ok(()) });
        if let Err(error) = read {
            self.failed = Some(error);
        }
    }
}

/// Splits the bytes between threads, of which this one is the first, and returns the first error of any.
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
                // The thread could not be started.
                Err(index) => work(range(index)),
            });
        }
        done
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    use weftlink_p2p::Direction;

    use crate::p2p::completion::{Request, address};

    #[test]
    fn each_byte_belongs_to_one_thread() {
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
    fn an_error_of_any_thread_is_reported() {
        for bad in 0..4 {
            let work = |range: Range<usize>| if range.contains(&(bad * 4096)) { Err(bad) } else { Ok(()) };
            assert_eq!(by_threads(4, 4 * 4096, work), Err(bad));
        }
    }

    /// Reads from this process itself, with this many threads.
    fn read(source: u64, target: &mut [u8], threads: usize) -> Option<i32> {
        let (address, bytes) = (address(target.as_mut_ptr()), target.len());
        let direction = Direction::ReceiveFrom(Some(1));
        let request = Request { direction, tag: 0, address, bytes, data_type: None, timeout: Duration::MAX };
        let pull =
            weftlink_p2p::Pull::new(request.begin(1, Instant::now(), Completion::Waiter), 1, source, 1);
        let mut pull = Pull::new(pull, Some(Process::named(std::process::id())), threads);
        pull.run(|| true);
        pull.failed
    }

    /// A process may read its own memory unless seccomp refuses the system call.
    fn is_refused_here(read: Option<i32>) -> bool {
        let refused = !weftlink_testkit::processes::may_read_memory();
        if refused {
            println!("skipped: process_vm_readv is refused here ({read:?})");
        }
        refused
    }

    #[test]
    fn several_threads_read_the_whole_message() {
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
    fn unmapped_memory_is_an_error() {
        let mut target = vec![0_u8; 4 * BYTES_PER_THREAD];
        let read = read(4096, &mut target, 4);
        if is_refused_here(read) {
            return;
        }
        assert_eq!(read, Some(libc::EFAULT));
    }
}
