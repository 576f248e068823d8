//! Every interleaving of the shipped FIFO, counter and wait, as far as loom's bound on preemptions goes:
//!
//! ```console
//! $ RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test -p weftlink-shm --release --target-dir target/loom loom
//! ```
//!
//! Bulk memory is loom's `UnsafeCell`, which fails the test when one side touches it while the other may. That these
//! tests can fail is tested too: each is run again with one side of one edge weakened to relaxed, and must be caught.

// Bulk memory is shared without a lock here, which is what is tested.
#![allow(unsafe_code)]

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::thread;

use crate::counter::Counter;
use crate::fifo::{Receiver, Sender};
use crate::line::{Line, PAYLOAD_WORDS, Poll};
use crate::slot::Slot;
use crate::sync::weakened::{self, Side};
use crate::sync::{Edge, yield_now};
use crate::wait::{AbortCode, Stop, WaitPolicy, Waiter};

const CALL: u32 = 0xca11;

/// A value that tells which message it belongs to and where it stands in it, and that fresh memory does not have.
fn value(message: u64, word: usize) -> u64 {
    1000 * (message + 1) + word as u64
}

fn until(mut done: impl FnMut() -> bool) {
    while !done() {
        yield_now();
    }
}

fn until_ready(mut poll: impl FnMut() -> Poll) {
    until(|| match poll() {
        Poll::Pending => false,
        Poll::Ready => true,
        Poll::Mismatch { found } => panic!("found {found:#x}"),
        Poll::Broken => panic!("nothing here breaks"),
    });
}

/// Polls a few times. Loom would let two threads that wait for a third alternate forever, so with three threads an execution in which the
/// polls fail ends early; other executions cover success.
fn is_seen(mut poll: impl FnMut() -> Poll) -> bool {
    (0..3).any(|_| match poll() {
        Poll::Pending => {
            yield_now();
            false
        }
        Poll::Ready => true,
        Poll::Mismatch { found } => panic!("found {found:#x}"),
        Poll::Broken => panic!("nothing here breaks"),
    })
}

/// Memory that its owner, by the protocol, accesses without atomics.
#[derive(Default)]
struct Bulk(UnsafeCell<u64>);

// SAFETY: this is the claim under test; loom reports an access that is not exclusive before it happens.
unsafe impl Sync for Bulk {}
// SAFETY: a number.
unsafe impl Send for Bulk {}

impl Bulk {
    fn write(&self, value: u64) {
        // SAFETY: loom has checked that no other thread is in the cell.
        self.0.with_mut(|cell| unsafe { *cell = value });
    }

    fn read(&self) -> u64 {
        // SAFETY: loom has checked that no thread writes the cell.
        self.0.with(|cell| unsafe { *cell })
    }
}

/// One FIFO's memory.
struct Fifo {
    slots: Vec<Line>,
    released: Line,
    bulk: Vec<Bulk>,
}

impl Fifo {
    fn new(depth: usize, lines_per_slot: usize) -> Fifo {
        Fifo {
            slots: (0..depth * lines_per_slot).map(|_| Line::new()).collect(),
            released: Line::new(),
            bulk: (0..depth).map(|_| Bulk::default()).collect(),
        }
    }

    fn ends(&self) -> (Sender<'_>, Receiver<'_>) {
        let depth = self.bulk.len();
        (Sender::new(&self.slots, &self.released, depth), Receiver::new(&self.slots, &self.released, depth))
    }

    fn send(&self, sender: &mut Sender<'_>, message: u64) {
        until(|| sender.has_credit());
        self.bulk[sender.slot()].write(value(message, 0));
        let _ = sender.publish(CALL);
    }

    fn receive(&self, receiver: &mut Receiver<'_>, message: u64) {
        until_ready(|| receiver.poll(CALL));
        assert_eq!(self.bulk[receiver.slot()].read(), value(message, 0));
        let _ = receiver.release();
    }
}

fn simple(depth: usize, messages: u64) {
    loom::model(move || {
        let fifo = Arc::new(Fifo::new(depth, 1));
        let sending = thread::spawn({
            let fifo = fifo.clone();
            move || {
                let (mut sender, _) = fifo.ends();
                (0..messages).for_each(|message| fifo.send(&mut sender, message));
            }
        });
        let (_, mut receiver) = fifo.ends();
        (0..messages).for_each(|message| fifo.receive(&mut receiver, message));
        assert_eq!(receiver.poll(CALL), Poll::Pending);
        sending.join().unwrap();
    });
}

/// Payload beside the flag, `words` a message. It is atomic, so what would be wrong is what is read.
fn packets(depth: usize, words: usize, messages: u64) {
    loom::model(move || {
        let fifo = Arc::new(Fifo::new(depth, words.div_ceil(PAYLOAD_WORDS)));
        let sending = thread::spawn({
            let fifo = fifo.clone();
            move || {
                let (mut sender, _) = fifo.ends();
                for message in 0..messages {
                    let payload: Vec<u64> = (0..words).map(|word| value(message, word)).collect();
                    until(|| sender.has_credit());
                    let _ = sender.publish_packet(CALL, &payload);
                }
            }
        });
        let (_, mut receiver) = fifo.ends();
        for message in 0..messages {
            let mut payload = vec![0; words];
            until_ready(|| receiver.take_packet(CALL, &mut payload));
            let intact = (0..words).all(|word| payload[word] == value(message, word));
            assert!(intact, "torn packet: {payload:?}");
            let _ = receiver.release();
        }
        sending.join().unwrap();
    });
}

/// Both ranks send, then receive, as an all-reduce between two does.
fn exchange(depth: usize, rounds: u64) {
    loom::model(move || {
        let ways = Arc::new([Fifo::new(depth, 1), Fifo::new(depth, 1)]);
        let rank = move |ways: Arc<[Fifo; 2]>, rank: usize| {
            let (mut sender, _) = ways[rank].ends();
            let (_, mut receiver) = ways[1 - rank].ends();
            for round in 0..rounds {
                ways[rank].send(&mut sender, round);
                ways[1 - rank].receive(&mut receiver, round);
            }
        };
        let other = thread::spawn({
            let ways = ways.clone();
            move || rank(ways, 1)
        });
        rank(ways, 0);
        other.join().unwrap();
    });
}

/// A writer announces one call after another, each counted in two steps; the reader checks header and bulk, and reports
/// when it is done, after which the writer may overwrite them.
fn announcements(calls: u32) {
    fn header(call: u32) -> [u64; PAYLOAD_WORDS] {
        [u64::from(call) + 10; PAYLOAD_WORDS]
    }
    loom::model(move || {
        let shared = Arc::new((Line::new(), Line::new(), Bulk::default()));
        let reader = thread::spawn({
            let shared = shared.clone();
            move || {
                let (counted, through) = (Counter::new(&shared.0), Counter::new(&shared.1));
                for call in 1..=calls {
                    until_ready(|| counted.poll(2 * call - 1, CALL + call, 2 * call));
                    assert_eq!(counted.announcement(), header(call), "the header of another call");
                    until_ready(|| counted.poll(2 * call, CALL + call, 2 * call));
                    assert_eq!(shared.2.read(), u64::from(call));
                    let _ = through.publish(call, CALL + call);
                }
            }
        });
        let (counted, through) = (Counter::new(&shared.0), Counter::new(&shared.1));
        for call in 1..=calls {
            let _ = counted.announce(2 * call - 1, CALL + call, &header(call));
            shared.2.write(u64::from(call));
            let _ = counted.publish(2 * call, CALL + call);
            until_ready(|| through.poll(call, CALL + call, call));
        }
        reader.join().unwrap();
    });
}

/// Two readers of one number with bulk behind it, and no way back.
fn count() {
    let most = Arc::new(AtomicUsize::new(0));
    let seen = most.clone();
    loom::model(move || {
        let shared = Arc::new((Line::new(), Bulk::default()));
        let readers = [0, 1].map(|_| {
            let shared = shared.clone();
            thread::spawn(move || {
                let counter = Counter::new(&shared.0);
                let is_seen = is_seen(|| counter.poll(1, CALL, 2));
                if is_seen {
                    assert_eq!(shared.1.read(), 5);
                    assert_eq!(counter.announcement(), [7; PAYLOAD_WORDS]);
                }
                usize::from(is_seen)
            })
        });
        shared.1.write(5);
        let _ = Counter::new(&shared.0).announce(1, CALL, &[7; PAYLOAD_WORDS]);
        let _ = Counter::new(&shared.0).publish(2, CALL);
        seen.fetch_max(readers.into_iter().map(|reader| reader.join().unwrap()).sum(), Ordering::Relaxed);
    });
    assert_eq!(most.load(Ordering::Relaxed), 2, "no execution in which both readers saw the count");
}

fn asleep_at_once() -> WaitPolicy {
    WaitPolicy { spins: 0, yields: 0, timeout: Duration::from_secs(3600) }
}

/// One rank waits for a message that never arrives, two abort: all three name the same rank, whose message can be read.
fn abort() {
    #[derive(Default)]
    struct Shared {
        abort: Line,
        sleepers: Line,
        awaited: Line,
        exit_report: [Bulk; 2],
    }
    loom::model(|| {
        let shared = Arc::new(Shared::default());
        let giving_up = [0, 1].map(|rank| {
            let shared = shared.clone();
            thread::spawn(move || {
                shared.exit_report[rank].write(77);
                let code = AbortCode { rank: rank as u32, reason: NonZeroU32::MIN };
                Waiter::new(&shared.abort, &shared.sleepers, asleep_at_once()).abort(code)
            })
        });
        let waiter = Waiter::new(&shared.abort, &shared.sleepers, asleep_at_once());
        let counter = Counter::new(&shared.awaited);
        match waiter.wait(counter.line(), || counter.poll(1, CALL, 1)) {
            Err(Stop::Aborted { code, .. }) => {
                assert_eq!(shared.exit_report[code.rank as usize].read(), 77);
                assert!(giving_up.into_iter().all(|rank| rank.join().unwrap() == code));
            }
            other => panic!("{other:?}"),
        }
    });
}

/// One thread writes a slot repeatedly, one reads it at any time: values read under a tag were written under it, and after a tag no older one
/// is read.
fn slot(writes: u64) {
    let most = Arc::new(AtomicUsize::new(0));
    let seen = most.clone();
    loom::model(move || {
        let slot = Arc::new(Slot::<2>::new());
        let reader = thread::spawn({
            let slot = slot.clone();
            move || {
                let mut last = 0;
                for _ in 0..2 {
                    if let Some((tag, values)) = slot.read() {
                        assert_eq!(values, [value(tag, 0), value(tag, 1)], "torn slot");
                        assert!(tag >= last, "an older tag");
                        last = tag;
                    }
                }
                last as usize
            }
        });
        (1..=writes).for_each(|tag| slot.write(tag, [value(tag, 0), value(tag, 1)]));
        seen.fetch_max(reader.join().unwrap(), Ordering::Relaxed);
    });
    assert_eq!(most.load(Ordering::Relaxed), writes as usize, "no execution in which the last was read");
}

/// One takes its memory back and writes to it, one reads it and then looks whether it was still there to be read: what it
/// takes for good is what was there before.
fn taken_back(before_writing: fn(), after_reading: fn()) {
    loom::model(move || {
        let [memory, withdrawn] = [(); 2].map(|()| Arc::new(crate::sync::AtomicU64::new(0)));
        let reader = thread::spawn({
            let (memory, withdrawn) = (memory.clone(), withdrawn.clone());
            move || {
                let read = memory.load(crate::sync::Ordering::Relaxed);
                after_reading();
                let is_good = withdrawn.load(crate::sync::Ordering::Relaxed) == 0;
                assert!(!is_good || read == 0, "what was written later was taken for good");
            }
        });
        withdrawn.store(1, crate::sync::Ordering::Relaxed);
        before_writing();
        memory.store(1, crate::sync::Ordering::Relaxed);
        reader.join().unwrap();
    });
}

#[test]
fn loom_memory_taken_back() {
    taken_back(crate::sync::before_writing, crate::sync::after_reading);
}

#[test]
fn loom_slot_of_a_recorder() {
    slot(2);
}

#[test]
fn loom_simple_depth_1() {
    simple(1, 4);
}

#[test]
fn loom_simple_depth_2() {
    simple(2, 4);
}

#[test]
fn loom_packets_of_one_line() {
    packets(1, 2, 3);
    packets(2, 2, 4);
}

#[test]
fn loom_packets_of_two_lines() {
    packets(1, PAYLOAD_WORDS + 1, 3);
    packets(2, PAYLOAD_WORDS + 1, 3);
}

#[test]
fn loom_exchange() {
    exchange(1, 3);
    exchange(2, 3);
}

#[test]
fn loom_counter_and_announcement() {
    count();
    announcements(3);
}

#[test]
fn loom_abort_reaches_a_waiter() {
    abort();
}

/// The waiter's own path over a FIFO: looks, sleeps and wakes between sender and receiver.
#[test]
fn loom_waits_over_a_fifo() {
    loom::model(|| {
        let shared = Arc::new((Fifo::new(1, 1), Line::new(), Line::new()));
        let sending = thread::spawn({
            let shared = shared.clone();
            move || {
                let (fifo, waiter) = (&shared.0, Waiter::new(&shared.1, &shared.2, asleep_at_once()));
                let (mut sender, _) = fifo.ends();
                for message in 0..2 {
                    let credit = || if sender.has_credit() { Poll::Ready } else { Poll::Pending };
                    waiter.wait(&fifo.released, credit).unwrap();
                    fifo.bulk[sender.slot()].write(message);
                    waiter.wake(sender.publish(CALL));
                }
            }
        });
        let (fifo, waiter) = (&shared.0, Waiter::new(&shared.1, &shared.2, asleep_at_once()));
        let (_, mut receiver) = fifo.ends();
        for message in 0..2 {
            waiter.wait(receiver.arrival_line(), || receiver.poll(CALL)).unwrap();
            assert_eq!(fifo.bulk[receiver.slot()].read(), message);
            waiter.wake(receiver.release());
        }
        sending.join().unwrap();
    });
}

#[test]
#[should_panic(expected = "taken for good")]
fn loom_memory_taken_back_without_a_fence() {
    taken_back(|| (), || ());
}

/// Both sides of every edge, weakened one at a time: what must be caught, and by which of the tests above.
mod weakened_is_caught {
    use super::*;

    macro_rules! caught {
        ($($name:ident: $edge:ident, $side:ident, $test:expr, $how:literal;)*) => {$(
            #[test]
            #[should_panic(expected = $how)]
            fn $name() {
                weakened::set(Edge::$edge, Side::$side);
                $test;
            }
        )*};
    }

    caught! {
        arrival_writer: Arrival, Writer, simple(1, 1), "Causality violation";
        arrival_reader: Arrival, Reader, simple(1, 1), "Causality violation";
        packet_writer: Arrival, Writer, packets(1, 1, 1), "torn packet";
        packet_reader: Arrival, Reader, packets(1, 1, 1), "torn packet";
        packet_of_two_lines_writer: Arrival, Writer, packets(1, PAYLOAD_WORDS + 1, 1), "torn packet";
        packet_of_two_lines_reader: Arrival, Reader, packets(1, PAYLOAD_WORDS + 1, 1), "torn packet";
        credit_writer: Credit, Writer, simple(1, 2), "Causality violation";
        credit_reader: Credit, Reader, simple(1, 2), "Causality violation";
        count_writer: Count, Writer, count(), "Causality violation";
        count_reader: Count, Reader, count(), "Causality violation";
        announcement_writer: Count, Writer, announcements(1), "header";
        announcement_reader: Count, Reader, announcements(1), "header";
        slot_writer: Record, Writer, slot(2), "torn slot";
        slot_reader: Record, Reader, slot(2), "torn slot";
        abort_writer: Abort, Writer, abort(), "Causality violation";
        abort_reader: Abort, Reader, abort(), "Causality violation";
    }
}
