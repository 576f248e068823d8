//! FIFOs and counters under real threads: many messages, random lengths, sequences that wrap. What loom cannot see,
//! long runs and the machine's own reordering, shows here as a wrong checksum.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::counter::Counter;
use crate::fifo::{self, Receiver, Sender};
use crate::line::{Line, PAYLOAD_WORDS, Poll};
use crate::wait::{WaitPolicy, Waiter};

const MESSAGES: u64 = 200_000;
/// Sending ends early on a machine too busy for all of them.
const SENDING_MAX: Duration = Duration::from_secs(3);
const LINES_PER_SLOT: usize = 3;
const WORDS_MAX: usize = LINES_PER_SLOT * PAYLOAD_WORDS;
/// The sequence wraps soon.
const FIRST: u32 = u32::MAX - 1000;
/// The signature of the message after the last.
const END: u32 = 0;

/// Short enough to yield on a busy machine, long enough to spin where each rank has a core.
fn wait_policy() -> WaitPolicy {
    WaitPolicy { spins: 200, yields: 20, timeout: Duration::from_secs(100) }
}

/// Bits that look random and follow from `number` (the finish of Steele, Lea and Flood's SplitMix64).
fn scrambled(number: u64) -> u64 {
    let mut bits = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// A message, as both ends compute it independently: its call, its protocol, its contents.
struct Message {
    signature: u32,
    is_packet: bool,
    length: usize,
    words: [u64; WORDS_MAX],
}

impl Message {
    fn new(seed: u64, number: u64) -> Message {
        let bits = scrambled(seed << 32 | number);
        let length = (bits >> 32) as usize % (WORDS_MAX + 1);
        let words = std::array::from_fn(|word| bits.wrapping_mul(2 * word as u64 + 1));
        Message { signature: bits as u32 | 1, is_packet: bits >> 63 == 0, length, words }
    }

    fn payload(&self) -> &[u64] {
        &self.words[..self.length]
    }
}

/// One direction's memory. Bulk is relaxed atomics: the FIFO alone orders them.
struct Way {
    slots: Vec<Line>,
    released: Line,
    bulk: Vec<[AtomicU64; WORDS_MAX]>,
    seed: u64,
}

impl Way {
    fn new(depth: usize, seed: u64) -> Way {
        let way = Way {
            slots: (0..depth * LINES_PER_SLOT).map(|_| Line::new()).collect(),
            released: Line::new(),
            bulk: (0..depth).map(|_| Default::default()).collect(),
            seed,
        };
        fifo::start_at(&way.slots, &way.released, FIRST);
        way
    }

    fn send<'a>(&self, sender: &mut Sender<'a>, number: u64) -> &'a Line {
        let message = Message::new(self.seed, number);
        if message.is_packet {
            return sender.publish_packet(message.signature, message.payload());
        }
        let bulk = self.bulk[sender.slot()].iter();
        bulk.zip(message.payload()).for_each(|(cell, word)| cell.store(*word, Ordering::Relaxed));
        sender.publish(message.signature)
    }

    fn receive(&self, receiver: &mut Receiver<'_>, message: &Message) -> Poll {
        let mut words = [0; WORDS_MAX];
        let got = &mut words[..message.length];
        let poll = if message.is_packet {
            receiver.take_packet(message.signature, got)
        } else {
            receiver.poll(message.signature)
        };
        if poll == Poll::Ready {
            if !message.is_packet {
                let bulk = self.bulk[receiver.slot()].iter();
                got.iter_mut().zip(bulk).for_each(|(word, cell)| *word = cell.load(Ordering::Relaxed));
            }
            assert_eq!(got, message.payload());
        }
        poll
    }
}

/// Alternates between sending and receiving as far as possible, so that neither direction waits for the other.
fn exchange(out: &Way, into: &Way, depth: usize, waiter: Waiter<'_>) {
    let mut sender = Sender::new(&out.slots, &out.released, depth).starting_at(FIRST);
    let mut receiver = Receiver::new(&into.slots, &into.released, depth).starting_at(FIRST);
    let began = Instant::now();
    let (mut sent, mut received) = (0, 0);
    let mut to_send = MESSAGES;
    let mut awaited = Some(Message::new(into.seed, 0));
    while sent <= to_send || awaited.is_some() {
        if sent % 1024 == 0 && sent < to_send && began.elapsed() > SENDING_MAX {
            to_send = sent;
        }
        let on = if awaited.is_some() { receiver.arrival_line() } else { sender.credit_line() };
        let attempt = || {
            let mut progress = Poll::Pending;
            if sent <= to_send && sender.has_credit() {
                let line = if sent < to_send { out.send(&mut sender, sent) } else { sender.publish(END) };
                waiter.wake(line);
                sent += 1;
                progress = Poll::Ready;
            }
            let Some(message) = &awaited else { return progress };
            match into.receive(&mut receiver, message) {
                Poll::Pending => return progress,
                Poll::Ready => {
                    received += 1;
                    awaited = Some(Message::new(into.seed, received));
                }
                Poll::Mismatch { found: END } => awaited = None,
                mismatch => return mismatch,
            }
            waiter.wake(receiver.release());
            Poll::Ready
        };
        waiter.wait(on, attempt).unwrap();
    }
    assert!(received > 0);
}

fn both_ways(depth: usize) {
    let ways = [Way::new(depth, 1), Way::new(depth, 2)];
    let (abort, sleepers) = (Line::new(), Line::new());
    let waiter = Waiter::new(&abort, &sleepers, wait_policy());
    std::thread::scope(|scope| {
        scope.spawn(|| exchange(&ways[0], &ways[1], depth, waiter));
        exchange(&ways[1], &ways[0], depth, waiter);
    });
}

#[test]
fn fifos_of_depth_1() {
    both_ways(1);
}

#[test]
fn fifos_of_depth_2() {
    both_ways(2);
}

#[test]
fn fifos_of_depth_7() {
    both_ways(7);
}

/// Each rank announces a number and waits for all others', call after call. A second count after reading is what lets
/// the next announcement overwrite the last.
#[test]
fn counters_of_several_ranks() {
    const RANKS: usize = 4;
    const CALLS: u32 = 5_000;
    let first = u32::MAX - CALLS;
    let lines: [Line; RANKS] = Default::default();
    lines.iter().for_each(|line| Counter::new(line).start_at(first));
    let (abort, sleepers) = (Line::new(), Line::new());
    let waiter = Waiter::new(&abort, &sleepers, WaitPolicy { spins: 0, ..wait_policy() });
    let number = |rank: usize, call: u32| scrambled((rank as u64) << 32 | u64::from(call));
    std::thread::scope(|scope| {
        for rank in 0..RANKS {
            let lines = &lines;
            scope.spawn(move || {
                let mine = Counter::new(&lines[rank]);
                for call in 0..CALLS {
                    let (announced, read) =
                        (first.wrapping_add(2 * call + 1), first.wrapping_add(2 * call + 2));
                    waiter.wake(mine.announce(announced, call, &[number(rank, call); PAYLOAD_WORDS]));
                    for (other, line) in lines.iter().enumerate() {
                        let theirs = Counter::new(line);
                        waiter.wait(line, || theirs.poll(announced, call, read)).unwrap();
                        assert_eq!(theirs.announcement(), [number(other, call); PAYLOAD_WORDS]);
                    }
                    waiter.wake(mine.publish(read, call));
                    for line in lines {
                        waiter.wait(line, || Counter::new(line).poll(read, call, read)).unwrap();
                    }
                }
            });
        }
    });
}
