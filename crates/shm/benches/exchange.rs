//! The cost of eight bytes each way between two ranks: FIFO packets with their credits, signatures and bounded waits,
//! compared with a bare flag in a cache line, the lower bound of the machine. Two threads, each pinned to a core.
//!
//! Prints one row per method: the median and the minimum of many short repetitions, in alternation. On a busy machine the
//! median includes other work; the minimum is the cost of the code.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use weftlink_shm::fifo::{Receiver, Sender};
use weftlink_shm::line::{Line, Poll};
use weftlink_shm::wait::{WaitPolicy, Waiter};

const REPETITIONS: usize = 101;
const ROUNDS: u64 = 2_000;
const DEPTHS: [usize; 5] = [1, 2, 4, 8, 16];
const CALL: u32 = 0xca11;

fn main() {
    let mut rows: Vec<Row> =
        DEPTHS[1..].iter().map(|lines| Row::new("bare flags, lines", bare, *lines)).collect();
    rows.extend(DEPTHS.iter().map(|depth| Row::new("FIFO, depth", fifo, *depth)));
    rows.extend(DEPTHS.iter().map(|depth| Row::new("no peer, depth", alone, *depth)));
    for _ in 0..REPETITIONS {
        for row in &mut rows {
            row.samples_ns.push((row.measure)(row.lines));
        }
    }
    println!("8 bytes each way, ns    median    least");
    for Row { name, lines, mut samples_ns, .. } in rows {
        samples_ns.sort_by(f64::total_cmp);
        println!("{name:<19}{lines:>2}  {:>7.1}  {:>7.1}", samples_ns[samples_ns.len() / 2], samples_ns[0]);
    }
}

struct Row {
    name: &'static str,
    measure: fn(usize) -> f64,
    lines: usize,
    samples_ns: Vec<f64>,
}

impl Row {
    fn new(name: &'static str, measure: fn(usize) -> f64, lines: usize) -> Row {
        Row { name, measure, lines, samples_ns: Vec::with_capacity(REPETITIONS) }
    }
}

/// Value and sequence in one line, alternating between `lines` lines. No checks and no abort; two ranks that answer each other need no
/// credits.
fn bare(lines: usize) -> f64 {
    #[repr(align(64))]
    #[derive(Default)]
    struct Flag {
        sequence: AtomicU64,
        value: AtomicU64,
    }
    let flags = [0, 1].map(|_| (0..lines).map(|_| Flag::default()).collect::<Vec<_>>());
    timed(|rank| {
        let (mut sum, mut turn) = (0, 0);
        for round in 1..=ROUNDS {
            let (mine, theirs) = (&flags[rank][turn], &flags[1 - rank][turn]);
            mine.value.store(round, Ordering::Relaxed);
            mine.sequence.store(round, Ordering::Release);
            while theirs.sequence.load(Ordering::Acquire) < round {
                std::hint::spin_loop();
            }
            sum += mine.value.load(Ordering::Relaxed) + theirs.value.load(Ordering::Relaxed);
            turn = if turn + 1 == lines { 0 } else { turn + 1 };
        }
        sum
    })
}

fn fifo(depth: usize) -> f64 {
    let shared = Shared::new(depth);
    timed(|rank| {
        let mut end = shared.end(rank, 1 - rank);
        (1..=ROUNDS).map(|round| end.exchange(round)).sum()
    })
}

/// Both ends of a FIFO in one hand: no line travels, so what is left is the instructions.
fn alone(depth: usize) -> f64 {
    let shared = Shared::new(depth);
    let mut end = shared.end(0, 0);
    let began = Instant::now();
    let sum: u64 = (1..=ROUNDS).map(|round| end.exchange(round)).sum();
    let elapsed = began.elapsed();
    assert_eq!(sum, ROUNDS * (ROUNDS + 1));
    elapsed.as_nanos() as f64 / ROUNDS as f64
}

struct Shared {
    slots: [Vec<Line>; 2],
    released: [Line; 2],
    abort: Line,
    sleepers: Line,
}

impl Shared {
    fn new(depth: usize) -> Shared {
        let slots = [0, 1].map(|_| (0..depth).map(|_| Line::new()).collect());
        Shared { slots, released: Default::default(), abort: Line::new(), sleepers: Line::new() }
    }

    fn end(&self, out: usize, into: usize) -> End<'_> {
        let depth = self.slots[out].len();
        End {
            waiter: Waiter::new(&self.abort, &self.sleepers, WaitPolicy::dedicated(Duration::from_secs(10))),
            sender: Sender::new(&self.slots[out], &self.released[out], depth),
            receiver: Receiver::new(&self.slots[into], &self.released[into], depth),
        }
    }
}

struct End<'a> {
    waiter: Waiter<'a>,
    sender: Sender<'a>,
    receiver: Receiver<'a>,
}

impl End<'_> {
    /// Sends `mine`, and gives the sum of it and what came.
    #[inline]
    fn exchange(&mut self, mine: u64) -> u64 {
        let End { waiter, sender, receiver } = self;
        let credit_line = sender.credit_line();
        waiter
            .wait(credit_line, || if sender.has_credit() { Poll::Ready } else { Poll::Pending })
            .expect("a credit comes");
        waiter.wake(sender.publish_packet(CALL, &[mine]));
        let mut theirs = [0];
        waiter
            .wait(receiver.arrival_line(), || receiver.take_packet(CALL, &mut theirs))
            .expect("a packet comes");
        waiter.wake(receiver.release());
        mine + theirs[0]
    }
}

/// Nanoseconds a round, where `rank` runs all rounds as rank 0 or 1 and gives the sum over both.
fn timed(rank: impl Fn(usize) -> u64 + Sync) -> f64 {
    let ready = Barrier::new(2);
    let run = |core: usize| {
        let mut cores = CpuSet::new();
        cores.set(core);
        // Where there is one core only, the numbers say so themselves.
        let _ = sched_setaffinity(None, &cores);
        ready.wait();
        let began = Instant::now();
        let sum = rank(core);
        let elapsed = began.elapsed();
        assert_eq!(sum, ROUNDS * (ROUNDS + 1));
        elapsed
    };
    let elapsed = std::thread::scope(|scope| {
        let ranks = [0, 1].map(|core| scope.spawn(move || run(core)));
        ranks.map(|rank| rank.join().expect("a rank runs through"))
    });
    elapsed[0].max(elapsed[1]).as_nanos() as f64 / ROUNDS as f64
}
