//! FIFOs and counters under real threads: many messages, random lengths, sequences that wrap. What loom cannot see,
//! long runs and the machine's own reordering, shows here as a wrong checksum.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::counter::Counter;
use crate::fifo::{self, Receiver, Sender};
use crate::line::{Line, PAYLOAD_WORDS, Poll};
use crate::wait::{Patience, Waiter};

const MESSAGES: u32 = 200_000;
const LINES_PER_SLOT: usize = 3;
/// Half of the messages come before the sequence wraps.
const FIRST: u32 = u32::MAX - MESSAGES / 2;

/// Short enough to make way on a busy machine, long enough to spin where there is a core for each.
fn patience() -> Patience {
    Patience { spins: 50, yields: 20, timeout: Duration::from_secs(100) }
}

/// A small generator of our own, so that both ends draw the same lengths and contents (Steele, Lea and Flood's
/// SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// One direction's memory. Bulk is relaxed atomics: the FIFO alone orders them.
struct Way {
    slots: Vec<Line>,
    released: Line,
    bulk: Vec<Vec<AtomicU64>>,
    seed: u64,
}

impl Way {
    fn new(depth: usize, seed: u64) -> Way {
        let way = Way {
            slots: (0..depth * LINES_PER_SLOT).map(|_| Line::new()).collect(),
            released: Line::new(),
            bulk: (0..depth).map(|_| (0..64).map(|_| AtomicU64::new(0)).collect()).collect(),
            seed,
        };
        fifo::start_at(&way.slots, &way.released, FIRST);
        way
    }

    /// What message after message is: packet or bulk, and its contents.
    fn messages(&self) -> impl Iterator<Item = (u32, bool, Vec<u64>)> {
        let mut random = Random(self.seed);
        (0..MESSAGES).map(move |message| {
            let packet = random.below(2) == 0;
            let words =
                if packet { random.below(LINES_PER_SLOT * PAYLOAD_WORDS + 1) } else { random.below(64) + 1 };
            let mut contents = Random(random.next());
            (message.wrapping_mul(0x9e37_79b9), packet, (0..words).map(|_| contents.next()).collect())
        })
    }
}

/// Sends and receives by turns as far as each gets, so that neither way waits for the other to be done.
fn exchange(out: &Way, into: &Way, depth: usize, waiter: Waiter<'_>) {
    let mut sender = Sender::new(&out.slots, &out.released, depth).starting_at(FIRST);
    let mut receiver = Receiver::new(&into.slots, &into.released, depth).starting_at(FIRST);
    let (mut to_send, mut to_receive) = (out.messages().peekable(), into.messages().peekable());
    let mut got = Vec::new();
    while to_send.peek().is_some() || to_receive.peek().is_some() {
        let attempt = || {
            let mut progress = Poll::Pending;
            if let Some((signature, packet, words)) = to_send.next_if(|_| sender.has_credit()) {
                waiter.wake(if packet {
                    sender.publish_packet(signature, &words)
                } else {
                    let bulk = &out.bulk[sender.slot()];
                    bulk.iter().zip(&words).for_each(|(cell, word)| cell.store(*word, Ordering::Relaxed));
                    sender.publish(signature)
                });
                progress = Poll::Ready;
            }
            if let Some((signature, packet, words)) = to_receive.peek() {
                got.clear();
                got.resize(words.len(), 0);
                let poll = if *packet {
                    receiver.take_packet(*signature, &mut got)
                } else {
                    receiver.poll(*signature)
                };
                match poll {
                    Poll::Pending => return progress,
                    Poll::Mismatch { .. } => return poll,
                    Poll::Ready => {}
                }
                if !packet {
                    let bulk = &into.bulk[receiver.slot()];
                    got.iter_mut().zip(bulk).for_each(|(word, cell)| *word = cell.load(Ordering::Relaxed));
                }
                assert_eq!(&got, words);
                waiter.wake(receiver.release());
                to_receive.next();
                progress = Poll::Ready;
            }
            progress
        };
        waiter.wait_any(None, attempt).unwrap();
    }
}

fn both_ways(depth: usize) {
    let ways = [Way::new(depth, 1), Way::new(depth, 2)];
    let (abort, sleepers) = (Line::new(), Line::new());
    let waiter = Waiter::new(&abort, &sleepers, patience());
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
    let waiter = Waiter::new(&abort, &sleepers, Patience { spins: 0, ..patience() });
    let number = |rank: usize, call: u32| Random((rank as u64) << 32 | u64::from(call)).next();
    std::thread::scope(|scope| {
        for rank in 0..RANKS {
            let lines = &lines;
            scope.spawn(move || {
                let mine = Counter::new(&lines[rank]);
                for call in 0..CALLS {
                    let (announced, read) =
                        (first.wrapping_add(2 * call + 1), first.wrapping_add(2 * call + 2));
                    waiter.wake(mine.announce(announced, call, [number(rank, call); PAYLOAD_WORDS]));
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
