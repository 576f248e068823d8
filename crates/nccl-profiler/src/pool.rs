//! The events of the process: a ring of slots without locks.
//!
//! An event has a number, which only grows; its slot is the number modulo the length of the ring. A slot has a state, which is the number
//! of its event and one of four phases:
//!
//! ```text
//! empty, ended --(start: compare-and-swap)--> writing --(release)--> running --(stop: compare-and-swap)--> ended
//! ```
//!
//! Only the thread that made a slot `writing` writes its description, before it makes it `running` with release; whoever reads the state with
//! acquire sees the description. Later, any thread may add states and the times of parts: each is a single atomic word. A reader
//! compares the state before and after: if it is the same number, all it read is of that event. Everything is an atomic, so
//! a torn read is a wrong number at worst, and it is discarded.
//!
//! An event that still runs when the ring comes round to it keeps its slot: the new event takes the next one. If many in a row
//! run, the new event is dropped and counted. So NCCL may stop events in any order, late, twice or never.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::event::{Kind, Start, WORDS, Words};

/// States of an event that are kept.
pub(crate) const STATES_MAX: usize = 6;
/// Running events that a new one skips.
const SKIPPED_MAX: usize = 64;

const WRITING: u64 = 1;
const RUNNING: u64 = 2;
const ENDED: u64 = 3;
const PHASE_BITS: u32 = 2;

#[derive(Default)]
struct Slot {
    /// The number of the event, and its phase.
    state: AtomicU64,
    kind: AtomicU64,
    communicator: AtomicU64,
    parent: AtomicU64,
    /// The number of the call in the flight record; 0 is none.
    call: AtomicU64,
    began_ns: AtomicU64,
    ended_ns: AtomicU64,
    /// When the last of its parts ended.
    part_ended_ns: AtomicU64,
    states: AtomicU64,
    state_times_ns: [AtomicU64; STATES_MAX],
    /// The state in the upper eight bits, its value in the others.
    state_values: [AtomicU64; STATES_MAX],
    words: [AtomicU64; WORDS],
}

/// The value of a state is cut to these bits.
const VALUE_BITS: u32 = 56;

/// The events of the process.
pub(crate) struct Pool {
    slots: Box<[Slot]>,
    next: AtomicU64,
    pub(crate) counts: Counts,
}

/// What happened to events that are not in the ring.
#[derive(Default)]
pub(crate) struct Counts {
    /// Too many others were running.
    pub(crate) dropped: AtomicU64,
    /// NCCL stopped or updated an event that had ended, or that is none.
    pub(crate) stale: AtomicU64,
    /// Types that this version does not know.
    pub(crate) unknown: AtomicU64,
    /// States that did not fit.
    pub(crate) states_dropped: AtomicU64,
}

/// An event, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) number: u64,
    pub(crate) kind: Kind,
    pub(crate) communicator: u32,
    pub(crate) parent: u64,
    pub(crate) call: u32,
    pub(crate) is_running: bool,
    pub(crate) began_ns: u64,
    /// When NCCL stopped it; 0 if it runs.
    pub(crate) ended_ns: u64,
    pub(crate) part_ended_ns: u64,
    /// Its states: when, which, and a value.
    pub(crate) states: Vec<(u64, u64, u64)>,
    pub(crate) words: Words,
}

impl Pool {
    /// A pool for that many events, rounded up to a power of two.
    pub(crate) fn new(events: usize) -> Self {
        let slots = (0..events.clamp(64, 1 << 22).next_power_of_two()).map(|_| Slot::default()).collect();
        Self { slots, next: AtomicU64::new(1), counts: Counts::default() }
    }

    fn slot(&self, number: u64) -> &Slot {
        // The length is a power of two.
        &self.slots[(number & (self.slots.len() as u64 - 1)) as usize]
    }

    /// Starts an event; returns its number, or 0 if there was no place.
    pub(crate) fn start(&self, start: &Start, communicator: u32, call: u32, now_ns: u64) -> u64 {
        for _ in 0..SKIPPED_MAX.min(self.slots.len()) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let slot = self.slot(number);
            let before = slot.state.load(Ordering::Relaxed);
            let is_free = before == 0 || before & 3 == ENDED;
            let writing = number << PHASE_BITS | WRITING;
            if !is_free
                || slot.state.compare_exchange(before, writing, Ordering::Acquire, Ordering::Relaxed).is_err()
            {
                continue;
            }
            // Nobody who has read the state of the previous event sees what follows without the new state.
            fence(Ordering::Release);
            for (word, value) in [
                (&slot.kind, start.kind as u64),
                (&slot.communicator, u64::from(communicator)),
                (&slot.parent, start.parent),
                (&slot.call, u64::from(call)),
                (&slot.began_ns, now_ns),
                (&slot.ended_ns, 0),
                (&slot.part_ended_ns, 0),
                (&slot.states, 0),
            ] {
                word.store(value, Ordering::Relaxed);
            }
            for (word, value) in slot.words.iter().zip(start.words) {
                word.store(value, Ordering::Relaxed);
            }
            slot.state.store(number << PHASE_BITS | RUNNING, Ordering::Release);
            return number;
        }
        self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        0
    }

    /// The slot of an event that is in the ring.
    fn found(&self, number: u64) -> Option<(&Slot, u64)> {
        let slot = self.slot(number);
        let state = slot.state.load(Ordering::Acquire);
        let is_it = number != 0 && state >> PHASE_BITS == number && state & 3 != WRITING;
        is_it.then_some((slot, state))
    }

    /// Stops an event; returns its kind, communicator and call.
    pub(crate) fn stop(&self, number: u64, now_ns: u64) -> Option<(Kind, u32, u32)> {
        let running = number << PHASE_BITS | RUNNING;
        let found = self.found(number).filter(|(_, state)| *state == running);
        let Some((slot, _)) = found else {
            self.counts.stale.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let of = (kind(slot)?, word(&slot.communicator) as u32, word(&slot.call) as u32);
        let parent = word(&slot.parent);
        slot.ended_ns.store(now_ns, Ordering::Relaxed);
        let ended = number << PHASE_BITS | ENDED;
        if slot.state.compare_exchange(running, ended, Ordering::Release, Ordering::Relaxed).is_err() {
            self.counts.stale.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        // A part ends late, after what it is a part of; and so on, up to the collective.
        let mut parent = parent;
        for _ in 0..PARENTS_MAX {
            let Some((slot, _)) = self.found(parent) else { break };
            slot.part_ended_ns.fetch_max(now_ns, Ordering::Relaxed);
            parent = word(&slot.parent);
        }
        Some(of)
    }

    /// Adds a state to an event that runs.
    pub(crate) fn add_state(&self, number: u64, state: u64, value: u64, now_ns: u64) {
        let Some((slot, _)) = self.found(number).filter(|(_, state)| state & 3 == RUNNING) else {
            self.counts.stale.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let at = slot.states.load(Ordering::Relaxed) as usize;
        if at >= STATES_MAX {
            self.counts.states_dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        slot.state_times_ns[at].store(now_ns, Ordering::Relaxed);
        let value = value.min((1 << VALUE_BITS) - 1);
        slot.state_values[at].store(state << VALUE_BITS | value, Ordering::Relaxed);
        slot.states.store(at as u64 + 1, Ordering::Release);
    }

    /// The call of an event in the flight record; 0 is none.
    pub(crate) fn call_of(&self, number: u64) -> u32 {
        self.found(number).map_or(0, |(slot, _)| word(&slot.call) as u32)
    }

    /// All events in the ring, the oldest first.
    pub(crate) fn events(&self) -> Vec<Event> {
        let mut events: Vec<Event> = self.slots.iter().filter_map(read).collect();
        events.sort_by_key(|event| event.number);
        events
    }

    /// An event in the ring.
    pub(crate) fn event(&self, number: u64) -> Option<Event> {
        self.found(number).and_then(|(slot, _)| read(slot)).filter(|event| event.number == number)
    }
}

/// How far up the times of parts are passed: step, operation, collective, call, group.
const PARENTS_MAX: usize = 4;

fn word(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

fn kind(slot: &Slot) -> Option<Kind> {
    Kind::ALL.get(word(&slot.kind) as usize).copied()
}

fn read(slot: &Slot) -> Option<Event> {
    let state = slot.state.load(Ordering::Acquire);
    if state == 0 || state & 3 == WRITING {
        return None;
    }
    let states = (slot.states.load(Ordering::Acquire) as usize).min(STATES_MAX);
    let states = slot.state_times_ns.iter().zip(&slot.state_values).take(states).map(|(time, value)| {
        let value = word(value);
        (word(time), value >> VALUE_BITS, value & ((1 << VALUE_BITS) - 1))
    });
    let event = Event {
        number: state >> PHASE_BITS,
        kind: kind(slot)?,
        communicator: word(&slot.communicator) as u32,
        parent: word(&slot.parent),
        call: word(&slot.call) as u32,
        is_running: state & 3 == RUNNING,
        began_ns: word(&slot.began_ns),
        ended_ns: if state & 3 == ENDED { word(&slot.ended_ns) } else { 0 },
        part_ended_ns: word(&slot.part_ended_ns),
        states: states.collect(),
        words: std::array::from_fn(|at| word(&slot.words[at])),
    };
    fence(Ordering::Acquire);
    (slot.state.load(Ordering::Relaxed) >> PHASE_BITS == event.number).then_some(event)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn start(kind: Kind, parent: u64, words: Words) -> Start {
        Start { kind, parent, rank: 0, communicator: 0, words }
    }

    #[test]
    fn events_keep_their_slot_until_they_end() {
        let pool = Pool::new(64);
        let long = pool.start(&start(Kind::Coll, 0, [7; WORDS]), 3, 5, 100);
        for at in 0..1000 {
            let number = pool.start(&start(Kind::ProxyStep, long, [at; WORDS]), 3, 5, 200 + at);
            assert!(number > long);
            pool.add_state(number, 8, 1 << 60, 201 + at);
            assert_eq!(pool.stop(number, 202 + at), Some((Kind::ProxyStep, 3, 5)));
        }
        let event = pool.event(long).unwrap();
        assert_eq!((event.words, event.is_running, event.part_ended_ns), ([7; WORDS], true, 1201));
        assert_eq!(pool.stop(long, 9999), Some((Kind::Coll, 3, 5)));
        assert_eq!(pool.events().len(), 64);
        let last = pool.events().pop().unwrap();
        assert_eq!((last.states, last.ended_ns), (vec![(1200, 8, (1 << 56) - 1)], 1201));
        assert_eq!(pool.counts.dropped.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_ring_of_running_events_drops_new_ones() {
        let pool = Pool::new(64);
        let numbers: Vec<u64> =
            (0..64).map(|_| pool.start(&start(Kind::Coll, 0, [0; WORDS]), 0, 0, 1)).collect();
        assert!(numbers.iter().all(|number| *number > 0));
        assert_eq!(pool.start(&start(Kind::Coll, 0, [0; WORDS]), 0, 0, 1), 0);
        assert_eq!(pool.counts.dropped.load(Ordering::Relaxed), 1);
        // Any order.
        for number in numbers.iter().rev() {
            assert!(pool.stop(*number, 2).is_some());
        }
        assert!(pool.start(&start(Kind::Coll, 0, [0; WORDS]), 0, 0, 1) > 0);
    }

    #[test]
    fn stale_numbers_have_no_effect() {
        let pool = Pool::new(64);
        let number = pool.start(&start(Kind::Coll, 0, [0; WORDS]), 0, 0, 1);
        assert!(pool.stop(number, 2).is_some());
        let before = pool.events();
        for stale in [number, 0, number + 64, u64::MAX, 1 << 62] {
            assert_eq!(pool.stop(stale, 3), None);
            pool.add_state(stale, 1, 1, 3);
            assert_eq!(pool.event(stale).is_some(), stale == number);
        }
        assert_eq!(pool.counts.stale.load(Ordering::Relaxed), 10);
        assert_eq!(pool.events(), before);
        let number = pool.start(&start(Kind::ProxyCtrl, 0, [0; WORDS]), 0, 0, 1);
        for _ in 0..10 {
            pool.add_state(number, 13, 0, 5);
        }
        assert_eq!(pool.event(number).unwrap().states.len(), STATES_MAX);
        assert_eq!(pool.counts.states_dropped.load(Ordering::Relaxed), 4);
    }

    /// Eight threads start and stop events in a small ring, one of them reads: nothing is torn.
    #[test]
    fn readers_see_whole_events() {
        let pool = Pool::new(128);
        let (is_over, pool) = (AtomicBool::new(false), &pool);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut seen = 0;
                while !is_over.load(Ordering::Relaxed) {
                    for event in pool.events() {
                        assert!(event.words.iter().all(|word| *word == event.began_ns), "{event:?}");
                        seen += 1;
                    }
                }
                seen
            });
            let writers: Vec<_> = (1..=7)
                .map(|thread| {
                    scope.spawn(move || {
                        for at in 0..20_000 {
                            let mark = at * 8 + thread;
                            let number = pool.start(&start(Kind::Coll, 0, [mark; WORDS]), 0, 0, mark);
                            if number != 0 {
                                pool.add_state(number, 1, mark, mark);
                                assert!(pool.stop(number, mark + 1).is_some());
                            }
                        }
                    })
                })
                .collect();
            for writer in writers {
                writer.join().unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
        let whole = pool.events();
        assert!(!whole.is_empty() && whole.iter().all(|event| event.ended_ns == event.began_ns + 1));
    }
}
