//! Calls without a GPU, so that the faults and their judge are tested anywhere: each rank writes what it calls to shared memory and waits for
//! the others as kernels do, with the same words, limits and errors. Under "MPS", a death destroys the contexts of all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weftlink_bootstrap::Bootstrap;
use weftlink_shm::memory::SharedMemory;

use super::draw::{Call, Place};
use super::rank::Backend;
use crate::Error;
use crate::communicator::shrunk;
use crate::lost::ContextWatch;
use crate::presence::Words;
use crate::records::{ABORTED, ABORTED_BY, ENTERED, GONE, MISMATCH, PEER_FAILED, Report, TIMED_OUT};
use crate::reports::describe;

const START: Duration = Duration::from_secs(30);
/// Words of a rank: the calls that it has made of each collective, the last signature of each, its failure.
const WORDS: usize = 5;
const FAILED: usize = 4;

pub(super) struct StandIn {
    group: Option<Bootstrap>,
    memory: Arc<SharedMemory>,
    words: Words,
    watch: ContextWatch,
    place: Place,
    rank: usize,
    ranks: usize,
    calls: [u64; 2],
}

impl StandIn {
    fn word(&self, rank: usize, word: usize) -> &AtomicU64 {
        assert!(rank < self.ranks && word < WORDS);
        // SAFETY: the memory has these words of each rank and lives as long as `self`.
        unsafe { AtomicU64::from_ptr(self.memory.as_ptr().cast::<u64>().add(rank * WORDS + word)) }
    }

    /// Ends the calls of all ranks, as kernels do.
    fn fail(&self, report: Report) -> Error {
        for rank in (0..self.ranks).filter(|rank| *rank != self.rank) {
            let failed = 1 + self.rank as u64;
            let _ = self.word(rank, FAILED).compare_exchange(0, failed, Ordering::Release, Ordering::Relaxed);
        }
        let is_elsewhere = report.kind == PEER_FAILED;
        let of_all = self.words.failure().filter(|_| is_elsewhere);
        Error::Failed { why: of_all.unwrap_or_else(|| describe(self.rank, &report)) }
    }

    fn check(&self) -> Result<(), Error> {
        let probe = || match self.place {
            Place::Mps if !self.words.gone().is_empty() => Err(Error::Cuda {
                attempt: "wait for a stream".to_owned(),
                code: 700,
                name: "CUDA_ERROR_ILLEGAL_ADDRESS".to_owned(),
                text: "an illegal memory access was encountered".to_owned(),
                advice: "",
            }),
            _ => Ok(()),
        };
        let failure = self.words.failure().map(|why| self.watch.explained(Error::Failed { why }, probe));
        failure.map_or(Ok(()), Err)
    }

    /// Waits until a rank has made the call.
    fn wait_for(&self, rank: usize, collective: usize, signature: u64) -> Result<(), Error> {
        let begin = Instant::now();
        let report = |kind, other| Report {
            kind,
            rank: rank as u32,
            poll: ENTERED.into(),
            other,
            ..Report::default()
        };
        let mut is_gone = false;
        loop {
            if self.word(rank, collective).load(Ordering::Acquire) >= self.calls[collective] {
                let theirs = self.word(rank, 2 + collective).load(Ordering::Relaxed);
                return if theirs == signature { Ok(()) } else { Err(self.fail(report(MISMATCH, 0))) };
            }
            let state = self.words.state(rank);
            if state >= ABORTED_BY {
                return Err(self.fail(report(ABORTED, state - ABORTED_BY)));
            }
            if state != 0 && is_gone {
                return Err(self.fail(report(GONE, state)));
            }
            is_gone = state != 0;
            if let Some(by) = self.word(self.rank, FAILED).load(Ordering::Acquire).checked_sub(1) {
                return Err(self.fail(Report { rank: by as u32, ..report(PEER_FAILED, 0) }));
            }
            if begin.elapsed() > Self::TIMEOUT {
                return Err(self.fail(report(TIMED_OUT, 0)));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

fn collective_of(call: Call) -> usize {
    usize::from(call == Call::OtherCollective)
}

impl Backend for StandIn {
    const TIMEOUT: Duration = Duration::from_millis(600);
    type Memory = ();

    fn memory() -> Result<(), Error> {
        Ok(())
    }

    fn join(mut group: Bootstrap, (): &(), place: Place) -> Result<StandIn, Error> {
        let words = Words::share(&mut group, START)?;
        let (rank, ranks) = (group.rank(), group.size());
        let shared = group.share("calls", ranks * WORDS * size_of::<u64>(), START);
        let memory = Arc::new(shared.map_err(|why| Error::Group { why: why.to_string() })?);
        let is_mps = place == Place::Mps;
        let watch = ContextWatch::new(words.clone(), place != Place::Threads, is_mps);
        let group = Some(group);
        let mut comm = StandIn { group, memory, words, watch, place, rank, ranks, calls: [0; 2] };
        comm.call(Call::Large)?;
        Ok(comm)
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn start(&mut self, call: Call) -> Result<(), Error> {
        self.check()?;
        let collective = collective_of(call);
        self.calls[collective] += 1;
        self.word(self.rank, 2 + collective).store(call as u64, Ordering::Relaxed);
        self.word(self.rank, collective).store(self.calls[collective], Ordering::Release);
        Ok(())
    }

    fn finish(&mut self, call: Call) -> Result<(), Error> {
        let waited =
            (0..self.ranks).try_for_each(|rank| self.wait_for(rank, collective_of(call), call as u64));
        // As a communicator does, which prefers the reason of a kernel to an abort.
        match (waited, self.check()) {
            (Err(_), Err(lost @ Error::ContextLost { .. })) => Err(lost),
            (waited, checked) => waited.and(checked),
        }
    }

    fn capture(&mut self, _: Call) -> Result<(), Error> {
        Ok(())
    }

    fn launch(&mut self, call: Call) -> Result<(), Error> {
        self.call(call)
    }

    fn aborter(&self) -> impl FnOnce() + Send + 'static {
        let words = self.words.clone();
        move || words.abort()
    }

    fn shrink(mut self, timeout: Duration) -> Result<Bootstrap, Error> {
        self.words.abort();
        let group = self.group.take().ok_or_else(|| Error::Group { why: "no group".to_owned() })?;
        shrunk(group, timeout)
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.words.leave();
    }
}
