//! Which ranks are there: host memory that all ranks share and every GPU maps, with a word for each rank. A kernel that waits for a rank for
//! long polls its word.
//!
//! A rank sets its own word when it leaves, after its calls have ended, and all words when it aborts. The monitor thread of the group sets the
//! word of a rank that has died.

// Reads and writes shared memory.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use weftlink_bootstrap::{Bootstrap, Event, EventHandler};
use weftlink_shm::memory::SharedMemory;

use crate::Error;
use crate::driver::{Context, DeviceAddress, Registration};
use crate::records::{ABORTED_BY, DIED, LEFT, LOST};

/// The words as kernels see them. The registration ends before the memory is unmapped.
#[derive(Debug)]
pub(crate) struct Presence {
    registration: Registration,
    words: Words,
}

/// The words of all ranks.
#[derive(Clone, Debug)]
struct Words {
    memory: Arc<SharedMemory>,
    ranks: usize,
    own: usize,
}

impl Presence {
    /// Shares the words. All ranks call it.
    pub(crate) fn new(
        context: &Context,
        group: &mut Bootstrap,
        timeout: Duration,
    ) -> Result<Presence, Error> {
        let (own, ranks) = (group.rank(), group.size());
        let memory = group
            .share("presence of ranks", ranks * size_of::<u32>(), timeout)
            .map_err(|why| Error::Group { why: why.to_string() })?;
        // SAFETY: fields are dropped in order, so the memory is unmapped after the registration has ended.
        let registration = unsafe { Registration::new(context, memory.as_ptr(), memory.len())? };
        let presence = Presence { registration, words: Words { memory: Arc::new(memory), ranks, own } };
        group.set_event_handler(presence.words.handler());
        Ok(presence)
    }

    /// The first word, as kernels address it.
    pub(crate) fn address(&self) -> DeviceAddress {
        self.registration.device()
    }

    /// This rank leaves: its calls have ended.
    pub(crate) fn leave(&self) {
        self.words.set(self.words.own, LEFT);
    }

    /// Ends the calls of all ranks that wait.
    pub(crate) fn abort(&self) {
        self.words.abort();
    }

    /// Aborts from any thread.
    pub(crate) fn aborter(&self) -> Aborter {
        Aborter(self.words.clone())
    }

    /// Why no call can succeed any more, if so.
    pub(crate) fn failure(&self) -> Option<String> {
        self.words.failure()
    }
}

/// Ends the calls of all ranks, from any thread, also while another one uses the communicator.
#[derive(Clone, Debug)]
pub struct Aborter(Words);

impl Aborter {
    /// Ends calls that wait. Later ones are refused.
    pub fn abort(&self) {
        self.0.abort();
    }

    /// Why no call can succeed any more, if a rank has aborted or died.
    pub fn failure(&self) -> Option<String> {
        self.0.failure()
    }
}

impl Words {
    fn word(&self, rank: usize) -> &AtomicU32 {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        // SAFETY: the memory begins with a word for each rank, is aligned to a page, and lives as long as `self`.
        unsafe { AtomicU32::from_ptr(self.memory.as_ptr().cast::<u32>().add(rank)) }
    }

    /// Sets the word of a rank that was there.
    fn set(&self, rank: usize, state: u32) {
        let _ = self.word(rank).compare_exchange(0, state, Ordering::Release, Ordering::Relaxed);
    }

    fn abort(&self) {
        for rank in 0..self.ranks {
            self.set(rank, ABORTED_BY + self.own as u32);
        }
    }

    fn failure(&self) -> Option<String> {
        (0..self.ranks).find_map(|rank| match self.word(rank).load(Ordering::Acquire) {
            0 | LEFT => None,
            word if word >= ABORTED_BY => Some(format!("rank {} aborted the calls", word - ABORTED_BY)),
            word => Some(format!("rank {rank} {}", describe(word))),
        })
    }

    /// Sets the words of ranks that the group reports as dead or lost.
    fn handler(&self) -> EventHandler {
        let words = self.clone();
        Box::new(move |event| {
            let (rank, state) = match *event {
                Event::Died { rank } => (rank, DIED),
                Event::Lost { rank, .. } => (rank, LOST),
                Event::Left { rank, .. } => (rank, LEFT),
                _ => return None,
            };
            // Peers name the rank, which may not exist.
            if (rank as usize) < words.ranks {
                words.set(rank as usize, state);
            }
            None
        })
    }
}

/// What a word says of a rank that is gone.
pub(crate) fn describe(word: u32) -> &'static str {
    match word {
        LEFT => "has left the communicator",
        DIED => "has died; to continue, restart the job",
        _ => "cannot be reached",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn words(own: usize, memory: &Arc<SharedMemory>) -> Words {
        Words { memory: Arc::clone(memory), ranks: 3, own }
    }

    fn memory() -> Arc<SharedMemory> {
        Arc::new(SharedMemory::create("presence", 4096).unwrap().0)
    }

    #[test]
    fn deaths_and_aborts_are_failures_and_departures_are_not() {
        let memory = memory();
        let [first, second] = [0, 1].map(|own| words(own, &memory));
        second.set(1, LEFT);
        assert_eq!(first.failure(), None);
        let handler = first.handler();
        assert!(handler(&Event::Died { rank: 7 }).is_none());
        assert_eq!(first.failure(), None);
        assert!(handler(&Event::Died { rank: 2 }).is_none());
        assert_eq!(second.failure().unwrap(), "rank 2 has died; to continue, restart the job");
        // The first cause stays.
        second.abort();
        assert_eq!(first.word(2).load(Ordering::Relaxed), DIED);
        assert_eq!(first.failure().unwrap(), "rank 1 aborted the calls");
    }
}
