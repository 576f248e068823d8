//! Which ranks are there: host memory that all ranks share and every GPU maps, with a word for each rank. A kernel that waits for a rank for
//! long polls its word.
//!
//! A rank sets its own word when it leaves, after its calls have ended, and all words when it aborts. The monitor thread of the group sets the
//! word of a rank that has died.
//!
//! Behind the words, each rank has room for the reason of its abort: a length, then text. A rank writes its own once, text first, before it sets
//! words; others read it once the length is there.

// Reads and writes shared memory.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use weftlink_bootstrap::{Bootstrap, Event, EventHandler, generation};
use weftlink_shm::memory::SharedMemory;

use crate::Error;
use crate::driver::{Context, DeviceAddress, Registration};
use crate::records::{ABORTED_BY, DIED, LEFT, LOST};

/// How often a wait for the report of a death polls.
const POLL: Duration = Duration::from_millis(1);

/// The room of a rank's reason, and its text.
const REASON_BYTES: usize = 512;
const TEXT_BYTES: usize = REASON_BYTES - size_of::<u32>();
/// A length: a thread of the rank writes the text.
const WRITING: u32 = u32::MAX;

/// The words as kernels see them. The registration ends before the memory is unmapped.
#[derive(Debug)]
pub(crate) struct Presence {
    registration: Registration,
    words: Words,
}

/// The words of all ranks.
#[derive(Clone, Debug)]
pub(crate) struct Words {
    memory: Arc<SharedMemory>,
    ranks: usize,
    own: usize,
    /// Of the process that joined: a forked one shares the memory, and is not this rank.
    generation: u32,
}

impl Presence {
    /// Shares the words. All ranks call it.
    pub(crate) fn new(
        context: &Context,
        group: &mut Bootstrap,
        timeout: Duration,
    ) -> Result<Presence, Error> {
        let words = Words::share(group, timeout)?;
        let memory = &words.memory;
        // SAFETY: fields are dropped in order, so the memory is unmapped after the registration has ended.
        let registration = unsafe { Registration::new(context, memory.as_ptr(), memory.len())? };
        Ok(Presence { registration, words })
    }

    /// The words, which live on after the registration.
    pub(crate) fn words(&self) -> &Words {
        &self.words
    }

    /// The first word, as kernels address it.
    pub(crate) fn address(&self) -> DeviceAddress {
        self.registration.device()
    }

    /// This rank leaves: its calls have ended.
    pub(crate) fn leave(&self) {
        self.words.leave();
    }

    /// Ends the calls of all ranks that wait.
    pub(crate) fn abort(&self) {
        self.words.abort();
    }

    /// Aborts from any thread.
    pub(crate) fn aborter(&self) -> Aborter {
        Aborter(self.words.clone())
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
    /// Shares the words and has the monitor thread of the group maintain them. All ranks call it.
    pub(crate) fn share(group: &mut Bootstrap, timeout: Duration) -> Result<Words, Error> {
        let (own, ranks) = (group.rank(), group.size());
        let memory = group
            .share("presence of ranks", reasons_at(ranks) + ranks * REASON_BYTES, timeout)
            .map_err(|why| Error::Group { why: why.to_string() })?;
        let words = Words::new(Arc::new(memory), ranks, own);
        group.set_event_handler(words.handler());
        Ok(words)
    }

    fn new(memory: Arc<SharedMemory>, ranks: usize, own: usize) -> Words {
        Words { memory, ranks, own, generation: generation() }
    }

    /// Whether this process was forked from the one that joined.
    pub(crate) fn is_forked(&self) -> bool {
        generation() != self.generation
    }

    fn word(&self, rank: usize) -> &AtomicU32 {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        // SAFETY: the memory begins with a word for each rank, is aligned to a page, and lives as long as `self`.
        unsafe { AtomicU32::from_ptr(self.memory.as_ptr().cast::<u32>().add(rank)) }
    }

    /// Sets the word of a rank that was there.
    fn set(&self, rank: usize, state: u32) {
        if self.is_forked() {
            return;
        }
        let _ = self.word(rank).compare_exchange(0, state, Ordering::Release, Ordering::Relaxed);
    }

    /// Sets the word of a rank that is gone, also if a rank has aborted: survivors of a death abort, and the death is the reason.
    fn set_gone(&self, rank: usize, state: u32) {
        if self.is_forked() {
            return;
        }
        let replaced = |word: u32| (word == 0 || word >= ABORTED_BY).then_some(state);
        let _ = self.word(rank).fetch_update(Ordering::Release, Ordering::Relaxed, replaced);
    }

    /// As if the monitor thread had noticed the death of a rank.
    #[cfg(test)]
    pub(crate) fn report_death(&self, rank: usize) {
        self.handler()(&Event::Died { rank: rank as u32 });
    }

    /// Ends the calls of all ranks that wait.
    pub(crate) fn abort(&self) {
        for rank in 0..self.ranks {
            self.set(rank, ABORTED_BY + self.own as u32);
        }
    }

    /// The same, with the reason for the others. The first one stays.
    pub(crate) fn abort_because(&self, why: &str) {
        self.explain(why);
        self.abort();
    }

    /// The length and the text of a rank's reason.
    fn reason(&self, rank: usize) -> (&AtomicU32, *mut u8) {
        assert!(rank < self.ranks, "rank {rank} of {}", self.ranks);
        let at = reasons_at(self.ranks) + rank * REASON_BYTES;
        // SAFETY: behind the words, the memory has this room for each rank, aligned as they are, and lives as long as `self`.
        unsafe {
            let length = self.memory.as_ptr().add(at);
            (AtomicU32::from_ptr(length.cast()), length.add(size_of::<u32>()))
        }
    }

    fn explain(&self, why: &str) {
        let (length, text) = self.reason(self.own);
        if self.is_forked()
            || length.compare_exchange(0, WRITING, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        let end = (0..=why.len().min(TEXT_BYTES)).rev().find(|end| why.is_char_boundary(*end)).unwrap_or(0);
        // SAFETY: the room has this many bytes. This thread alone writes there, and others read after the length.
        unsafe { text.copy_from_nonoverlapping(why.as_ptr(), end) };
        length.store(end as u32, Ordering::Release);
    }

    /// Why a rank has aborted, if it has said so.
    pub(crate) fn reason_of(&self, rank: usize) -> Option<String> {
        let (length, text) = (rank < self.ranks).then(|| self.reason(rank))?;
        let bytes = length.load(Ordering::Acquire) as usize;
        // SAFETY: the room has this many bytes, and once there is a length nothing writes there any more.
        let text =
            (1..=TEXT_BYTES).contains(&bytes).then(|| unsafe { std::slice::from_raw_parts(text, bytes) })?;
        Some(String::from_utf8_lossy(text).into_owned())
    }

    /// This rank leaves.
    pub(crate) fn leave(&self) {
        self.set(self.own, LEFT);
    }

    /// The word of a rank.
    #[cfg(test)]
    pub(crate) fn state(&self, rank: usize) -> u32 {
        self.word(rank).load(Ordering::Acquire)
    }

    fn each(&self) -> impl Iterator<Item = (usize, u32)> {
        (0..self.ranks).map(|rank| (rank, self.word(rank).load(Ordering::Acquire)))
    }

    /// The ranks that have died or cannot be reached.
    pub(crate) fn gone(&self) -> Vec<usize> {
        self.each().filter(|(_, word)| [DIED, LOST].contains(word)).map(|(rank, _)| rank).collect()
    }

    /// The same, as soon as there is one, or after a time limit.
    pub(crate) fn await_gone(&self, limit: Duration) -> Vec<usize> {
        let begin = Instant::now();
        loop {
            let gone = self.gone();
            if !gone.is_empty() || begin.elapsed() >= limit {
                return gone;
            }
            std::thread::sleep(POLL);
        }
    }

    /// Why no call can succeed any more: a death, or else an abort.
    pub(crate) fn failure(&self) -> Option<String> {
        let of_death = |(rank, word)| match word {
            DIED => Some(format!("rank {rank} {}. {SHRINK}", describe(word))),
            LOST => Some(format!("rank {rank} {}", describe(word))),
            _ => None,
        };
        let of_abort = |(_, word): (usize, u32)| {
            let rank = word.checked_sub(ABORTED_BY)?;
            let why = self.reason_of(rank as usize).map(|why| format!(": {why}")).unwrap_or_default();
            Some(format!("rank {rank} aborted the calls{why}"))
        };
        // In this order: a survivor aborts after its monitor thread has reported a death.
        let aborted = self.each().find_map(of_abort);
        self.each().find_map(of_death).or(aborted)
    }

    /// Sets the words of ranks that the group reports as dead or lost.
    fn handler(&self) -> EventHandler {
        let words = self.clone();
        Box::new(move |event| {
            // Peers name the rank, which may not exist.
            let is_there = |rank: u32| (rank as usize) < words.ranks;
            match *event {
                Event::Died { rank } if is_there(rank) => words.set_gone(rank as usize, DIED),
                Event::Lost { rank, .. } if is_there(rank) => words.set_gone(rank as usize, LOST),
                Event::Left { rank, .. } if is_there(rank) => words.set(rank as usize, LEFT),
                _ => {}
            }
            None
        })
    }
}

/// Where reasons begin.
fn reasons_at(ranks: usize) -> usize {
    (ranks * size_of::<u32>()).next_multiple_of(64)
}

/// What to do after a death.
pub(crate) const SHRINK: &str = "To continue without it, call shrink";

/// What a word says of a rank that is gone.
pub(crate) fn describe(word: u32) -> &'static str {
    match word {
        LEFT => "has left the communicator",
        DIED => "has died",
        _ => "cannot be reached",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn words(own: usize, memory: &Arc<SharedMemory>) -> Words {
        Words::new(Arc::clone(memory), 3, own)
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
        assert_eq!(second.failure().unwrap(), "rank 2 has died. To continue without it, call shrink");
        assert_eq!(second.gone(), [2]);
        // An abort does not hide it.
        second.abort();
        assert_eq!(first.word(2).load(Ordering::Relaxed), DIED);
        assert_eq!(first.word(0).load(Ordering::Relaxed), ABORTED_BY + 1);
        assert_eq!(first.failure().unwrap(), "rank 2 has died. To continue without it, call shrink");
    }

    /// A survivor whose context is lost aborts before the monitor thread of another one has noticed the death.
    #[test]
    fn a_death_after_an_abort_is_the_reason() {
        let memory = memory();
        let [first, second] = [0, 1].map(|own| words(own, &memory));
        second.set(1, LEFT);
        second.abort();
        assert_eq!(first.failure().unwrap(), "rank 1 aborted the calls");
        assert!(first.await_gone(Duration::ZERO).is_empty());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                first.handler()(&Event::Died { rank: 2 });
            });
            assert_eq!(first.await_gone(Duration::from_secs(60)), [2]);
        });
        assert_eq!(second.failure().unwrap(), "rank 2 has died. To continue without it, call shrink");
        // A rank that has left in good order is not dead.
        first.handler()(&Event::Died { rank: 1 });
        assert_eq!(first.gone(), [2]);
    }

    #[test]
    fn an_abort_says_why() {
        let memory = memory();
        let [first, second] = [0, 1].map(|own| words(own, &memory));
        assert_eq!(second.reason_of(0), None);
        first.abort_because("it ran out of memory");
        first.abort_because("another reason");
        assert_eq!(second.failure().unwrap(), "rank 0 aborted the calls: it ran out of memory");
        assert_eq!((second.reason_of(1), second.reason_of(7)), (None, None));
        // It is cut, between characters.
        second.abort_because(&"é".repeat(TEXT_BYTES));
        assert_eq!(first.reason_of(1).unwrap(), "é".repeat(TEXT_BYTES / 2));
    }

    /// A child that drops its copy of a communicator, as the worker of a data loader does, must not end the calls of the ranks.
    #[test]
    fn a_forked_process_sets_no_word() {
        let memory = memory();
        let words = words(1, &memory);
        // SAFETY: the child makes calls without locks or allocations only, and ends.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "{}", std::io::Error::last_os_error());
        if child == 0 {
            words.leave();
            words.abort_because("it was dropped");
            words.set_gone(2, DIED);
            // SAFETY: nothing of the parent's is dropped.
            unsafe { libc::_exit(i32::from(!words.is_forked())) };
        }
        let mut status = -1;
        // SAFETY: it is the child of this process, which nothing else waits for.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(words.each().all(|(_, word)| word == 0) && words.reason_of(1).is_none());
        assert!(!words.is_forked());
        words.abort();
        assert_eq!(words.failure().unwrap(), "rank 1 aborted the calls");
    }
}
