//! The ranks of one job in one process, under virtual time and a seed.
//!
//! Ranks of one host have rings, others connections. Frames keep their order on one link, not between links. Ranks are stopped, resumed
//! and killed, leave and abort; connections fail and lose what is in flight. Each rank drives its protocol as `weftlink-comm` does.
//! Memory is simulated too: a sender overwrites its buffer as soon as its send completes, a receiver's buffer must not change
//! any more then, and pulls read one half when they begin and the other when they end.
//!
//! Checked at every completion:
//! - an operation completes once, and by its deadline (or when its rank resumes or its pull ends);
//! - what was received is what was sent, whole, with its length and type, from the rank and tag it was sent with;
//! - no message is delivered twice, and messages of one source and tag match receives in the order in which both were posted;
//! - the outcome is true: a rank that is said to have left has left, a connection that is said to have failed has failed, a
//!   timeout is over, and the death of a rank is reported as the abort that it caused, not as its symptoms.
//!
//! Checked at the end: nothing is pending that has a deadline, a send that was reported as done was delivered or is buffered at its
//! receiver, and without faults everything is done.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use weftlink_p2p::durations::DEATH_VERDICT;
use weftlink_p2p::{
    Config, Direction, Frame, Kind, LocalCopy, Outcome, Payload, PendingOp, Protocol, Pull, Route,
};
use weftlink_plan::DataType;

/// A random number generator (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let number = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        number ^ number >> 31
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    pub(crate) fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// Mostly short, sometimes long.
    fn delay(&mut self) -> Duration {
        let longest = self.pick(&[1, 10, 100, 100, 5_000, 100_000]);
        Duration::from_micros(1 + self.below(longest))
    }
}

/// What all ranks of a world have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) size: usize,
    pub(crate) hosts: usize,
    pub(crate) eager_bytes_max: usize,
    pub(crate) self_bytes_max: usize,
    pub(crate) window_bytes: u32,
    pub(crate) frame_bytes_max: usize,
    pub(crate) pull_bytes_min: Option<usize>,
    /// Frames that fit on a link.
    pub(crate) depth: usize,
    /// Nothing goes wrong, so everything must be done in the end.
    pub(crate) is_calm: bool,
}

/// An operation that some rank will post.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub(crate) rank: usize,
    pub(crate) direction: Direction,
    pub(crate) tag: u64,
    pub(crate) bytes: usize,
    pub(crate) data_type: Option<DataType>,
    pub(crate) timeout: Option<Duration>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    Kill(usize),
    Leave(usize),
    Abort(usize),
    Stop(usize, Duration),
    /// The connection between two ranks fails, by wrong bytes or without.
    Cut(usize, usize, bool),
}

/// Why the communicator ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Died(usize),
    Aborted(usize),
    TimedOut(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Runs,
    Stopped,
    Dead,
    Left,
}

#[derive(Debug)]
enum Happens {
    Post(usize),
    Fault(Fault),
    Turn(usize),
    Resume(usize),
    /// A host hears of the end of the communicator.
    Ended(usize, Cause),
    /// A host hears that a rank has left.
    Departed(usize, usize),
    /// A rank notices that its connection to another failed.
    Failed(usize, usize, bool),
    /// A frame reaches a rank.
    Arrives(usize),
    PullEnds(usize, u64),
}

struct Operation {
    posted: Posted,
    /// Its number among those of its rank, in the order of posting.
    order: u64,
    deadline: Option<Instant>,
    memory: Vec<u8>,
    outcome: Option<Outcome>,
    was_begun: bool,
}

struct Node {
    life: Life,
    protocol: Protocol<usize>,
    turns_at: Option<Instant>,
    posted: u64,
    pulls: BTreeMap<u64, (Pull<usize>, Vec<u8>)>,
    /// Operations may be late by this: the rank was stopped, or was pulling.
    excused: Instant,
    /// Connections that this rank knows to have failed.
    failed: BTreeMap<usize, bool>,
}

#[derive(Default)]
struct Link {
    /// Sent, with the time of arrival if that is to come.
    frames: VecDeque<(Frame, Vec<u8>, Instant)>,
    is_cut: bool,
    /// The receiver's counter of what it has taken, where both share memory.
    taken: u32,
}

/// What became of a schedule.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Summary {
    pub(crate) steps: usize,
    pub(crate) operations: usize,
    pub(crate) done: usize,
    pub(crate) pulled: usize,
    pub(crate) timed_out: usize,
    pub(crate) ended: usize,
    pub(crate) left: usize,
    pub(crate) broken: usize,
    pub(crate) differ: usize,
    pub(crate) unreadable: usize,
}

impl Summary {
    pub(crate) fn add(&mut self, other: &Summary) {
        self.steps += other.steps;
        self.operations += other.operations;
        self.done += other.done;
        self.pulled += other.pulled;
        self.timed_out += other.timed_out;
        self.ended += other.ended;
        self.left += other.left;
        self.broken += other.broken;
        self.differ += other.differ;
        self.unreadable += other.unreadable;
    }

    /// How often each outcome occurred.
    pub(crate) fn parts(&self) -> [(&'static str, usize); 8] {
        [
            ("is done", self.done),
            ("is pulled", self.pulled),
            ("times out", self.timed_out),
            ("ends with the communicator", self.ended),
            ("fails because its peer has left", self.left),
            ("fails with its connection", self.broken),
            ("has a counterpart that differs", self.differ),
            ("cannot be pulled", self.unreadable),
        ]
    }
}

pub(crate) struct World {
    pub(crate) random: Random,
    shape: Shape,
    start: Instant,
    now: Instant,
    nodes: Vec<Node>,
    links: Vec<Link>,
    operations: Vec<Operation>,
    /// By host: the first cause that its abort word was given, and the ranks whose departure it knows.
    ends: Vec<Option<Cause>>,
    departed: Vec<BTreeSet<usize>>,
    queue: BinaryHeap<Reverse<(Instant, u64)>>,
    events: BTreeMap<u64, Happens>,
    sequence: u64,
    delivered: BTreeSet<usize>,
    /// By source, target and tag: which receive got which send, by the order of posting.
    matches: BTreeMap<(usize, usize, u64), BTreeMap<u64, u64>>,
    summary: Summary,
    pub(crate) trace: Option<Vec<String>>,
}

const STEPS_MAX: usize = 100_000;
/// Drained of one link in a turn.
const FRAMES_MAX: usize = 16;
/// Addresses of one operation.
const MEMORY: u64 = 1 << 20;

impl World {
    pub(crate) fn new(seed: u64, shape: Shape) -> World {
        let start = Instant::now();
        let host = |rank: usize| rank * shape.hosts / shape.size;
        let node = |rank: usize| {
            let Shape {
                eager_bytes_max, self_bytes_max, window_bytes, frame_bytes_max, pull_bytes_min, ..
            } = shape;
            let config = Config { rank, eager_bytes_max, self_bytes_max, window_bytes };
            let route = |other: usize| match () {
                () if other == rank => Route::Own,
                () if host(other) == host(rank) => Route::Ring { frame_bytes_max, pull_bytes_min },
                () => Route::Connection { frame_bytes_max },
            };
            let routes: Vec<Route> = (0..shape.size).map(route).collect();
            Node {
                life: Life::Runs,
                protocol: Protocol::new(config, &routes),
                turns_at: None,
                posted: 0,
                pulls: BTreeMap::new(),
                excused: start,
                failed: BTreeMap::new(),
            }
        };
        World {
            random: Random(seed),
            shape,
            start,
            now: start,
            nodes: (0..shape.size).map(node).collect(),
            links: (0..shape.size * shape.size).map(|_| Link::default()).collect(),
            operations: Vec::new(),
            ends: vec![None; shape.hosts],
            departed: vec![BTreeSet::new(); shape.hosts],
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            sequence: 0,
            delivered: BTreeSet::new(),
            matches: BTreeMap::new(),
            summary: Summary::default(),
            trace: None,
        }
    }

    pub(crate) fn fault(&mut self, at: Duration, fault: Fault) {
        self.at(self.start + at, Happens::Fault(fault));
    }

    pub(crate) fn post(&mut self, at: Duration, posted: Posted) {
        let key = self.operations.len();
        let memory = match posted.direction {
            Direction::SendTo(_) => contents(key, posted.bytes),
            Direction::ReceiveFrom(_) => vec![0; posted.bytes],
        };
        let operation =
            Operation { posted, order: 0, deadline: None, memory, outcome: None, was_begun: false };
        self.operations.push(operation);
        self.at(self.start + at, Happens::Post(key));
    }

    fn host(&self, rank: usize) -> usize {
        rank * self.shape.hosts / self.shape.size
    }

    fn link(&mut self, from: usize, to: usize) -> &mut Link {
        &mut self.links[from * self.shape.size + to]
    }

    fn at(&mut self, when: Instant, happens: Happens) {
        self.sequence += 1;
        self.queue.push(Reverse((when.max(self.now), self.sequence)));
        self.events.insert(self.sequence, happens);
    }

    fn after_delay(&mut self, happens: Happens) {
        let delay = self.random.delay();
        self.at(self.now + delay, happens);
    }

    fn turn_at(&mut self, rank: usize, when: Instant) {
        let node = &mut self.nodes[rank];
        if matches!(node.life, Life::Runs | Life::Stopped) && node.turns_at.is_none_or(|at| when < at) {
            node.turns_at = Some(when);
            self.at(when, Happens::Turn(rank));
        }
    }

    fn turn_soon(&mut self, rank: usize) {
        let delay = self.random.delay();
        self.turn_at(rank, self.now + delay);
    }

    /// Runs until nothing happens any more.
    pub(crate) fn run(mut self) -> Result<Summary, String> {
        let result = self.run_all();
        if let (Err(_), Some(trace)) = (&result, &self.trace) {
            trace.iter().for_each(|line| println!("{line}"));
        }
        result.map(|()| self.summary)
    }

    fn run_all(&mut self) -> Result<(), String> {
        while let Some(Reverse((when, number))) = self.queue.pop() {
            self.now = when;
            self.summary.steps += 1;
            if self.summary.steps > STEPS_MAX {
                return Err(format!("it does not end: {STEPS_MAX} steps"));
            }
            let Some(happens) = self.events.remove(&number) else { continue };
            self.note(|| format!("{happens:?}"));
            self.happen(happens)?;
        }
        self.check_end()
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        let at = (self.now - self.start).as_micros();
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{at:>10} {}", what()));
        }
    }

    fn happen(&mut self, happens: Happens) -> Result<(), String> {
        match happens {
            Happens::Post(key) => return self.begin(key),
            Happens::Fault(fault) => return self.begin_fault(fault),
            Happens::Turn(rank) => {
                if self.nodes[rank].turns_at.take_if(|at| *at <= self.now).is_some()
                    && self.nodes[rank].life == Life::Runs
                {
                    return self.turn(rank);
                }
            }
            Happens::Resume(rank) => {
                if self.nodes[rank].life == Life::Stopped {
                    self.nodes[rank].life = Life::Runs;
                    self.nodes[rank].excused = self.now;
                    return self.turn(rank);
                }
            }
            Happens::Ended(host, cause) => {
                self.ends[host].get_or_insert(cause);
                self.wake_host(host);
            }
            Happens::Departed(host, rank) => {
                self.departed[host].insert(rank);
                self.wake_host(host);
            }
            Happens::Failed(rank, peer, is_corrupt) => {
                self.nodes[rank].failed.entry(peer).or_insert(is_corrupt);
                self.turn_soon(rank);
            }
            Happens::Arrives(to) => self.turn_soon(to),
            Happens::PullEnds(rank, number) => match self.nodes[rank].life {
                // A thread that copies goes on while another drops the communicator.
                Life::Runs | Life::Left => return self.end_pull(rank, number),
                Life::Stopped => self.after_delay(Happens::PullEnds(rank, number)),
                Life::Dead => {}
            },
        }
        Ok(())
    }

    fn wake_host(&mut self, host: usize) {
        for rank in (0..self.shape.size).filter(|rank| self.host(*rank) == host).collect::<Vec<_>>() {
            self.turn_soon(rank);
        }
    }

    fn begin(&mut self, key: usize) -> Result<(), String> {
        let posted = self.operations[key].posted;
        let rank = posted.rank;
        match self.nodes[rank].life {
            Life::Runs => {}
            Life::Stopped => {
                self.after_delay(Happens::Post(key));
                return Ok(());
            }
            Life::Dead | Life::Left => return Ok(()),
        }
        self.observe(rank);
        let now = self.now;
        let node = &mut self.nodes[rank];
        let operation = &mut self.operations[key];
        operation.order = node.posted;
        operation.was_begun = true;
        operation.deadline = posted.timeout.map(|timeout| now + timeout);
        node.posted += 1;
        self.summary.operations += 1;
        let op = PendingOp {
            id: node.protocol.begin().ok_or("the protocol refuses an operation")?,
            direction: posted.direction,
            tag: posted.tag,
            address: MEMORY * (key as u64 + 1),
            bytes: posted.bytes,
            data_type: posted.data_type,
            began: now,
            deadline: operation.deadline,
            completion: key,
        };
        let copy = match posted.direction {
            Direction::SendTo(_) => node.protocol.send(op),
            Direction::ReceiveFrom(_) => node.protocol.receive(op),
        };
        match copy {
            LocalCopy::None => {}
            LocalCopy::In { from, to } => to.copy_from_slice(read(&self.operations, from, to.len())?),
            LocalCopy::Out { from, to } => write(&mut self.operations, to, &from)?,
        }
        self.transmit(rank)?;
        self.finish(rank)
    }

    /// What a rank sees of its communicator before it does anything.
    fn observe(&mut self, rank: usize) {
        let (host, now) = (self.host(rank), self.now);
        let node = &mut self.nodes[rank];
        if node.protocol.has_pulls() || !node.pulls.is_empty() {
            // A receive that has matched an offer completes when its pull ends.
            node.excused = now;
        }
        if self.ends[host].is_some() {
            node.protocol.end();
        }
        for peer in &self.departed[host] {
            if *peer != rank {
                node.protocol.peer_left(*peer, now);
            }
        }
        for (peer, is_corrupt) in &node.failed {
            node.protocol.link_failed(*peer, *is_corrupt, now);
        }
    }

    fn turn(&mut self, rank: usize) -> Result<(), String> {
        self.observe(rank);
        self.drain(rank)?;
        if self.random.one_in(2) || self.nodes[rank].protocol.next_timeout().is_some_and(|at| at <= self.now)
        {
            self.nodes[rank].protocol.handle_timeout(self.now);
            if let Some(next) = self.nodes[rank].protocol.next_timeout()
                && next <= self.now
            {
                return Err(format!("rank {rank} has a timeout that is over after it was handled"));
            }
        }
        while self.nodes[rank].pulls.len() < 2
            && let Some(pull) = self.nodes[rank].protocol.poll_pull()
        {
            self.begin_pull(rank, pull);
        }
        self.transmit(rank)?;
        self.finish(rank)
    }

    /// Takes what has arrived: at most so many frames of each link, but everything of ranks that have left.
    fn drain(&mut self, rank: usize) -> Result<(), String> {
        for from in 0..self.shape.size {
            let has_left = self.departed[self.host(rank)].contains(&from);
            let mut frames = 0;
            loop {
                let now = self.now;
                let link = self.link(from, rank);
                if link.frames.front().is_none_or(|(.., at)| *at > now) {
                    break;
                }
                if frames == FRAMES_MAX && !has_left {
                    self.turn_soon(rank);
                    break;
                }
                frames += 1;
                let Some((frame, payload, _)) = link.frames.pop_front() else { break };
                match self.nodes[rank].protocol.handle_frame(from, &frame) {
                    Payload::None => {}
                    Payload::Caller { address, bytes } => {
                        write(&mut self.operations, address, payload.get(..bytes).ok_or("a short payload")?)?;
                    }
                    Payload::Buffer(buffer) => buffer.copy_from_slice(&payload),
                }
            }
            if frames > 0 {
                // There is room again.
                self.turn_soon(from);
            }
        }
        Ok(())
    }

    /// Sends what there is room for, and reports credit.
    fn transmit(&mut self, rank: usize) -> Result<(), String> {
        for to in (0..self.shape.size).filter(|to| *to != rank) {
            let is_ring = self.host(rank) == self.host(to);
            let depth = self.shape.depth;
            while !self.nodes[rank].protocol.is_idle(to) && self.link(rank, to).frames.len() < depth {
                if is_ring && self.nodes[rank].protocol.wants_credit(to) {
                    let taken = self.link(rank, to).taken;
                    self.nodes[rank].protocol.handle_credit(to, taken);
                }
                let Some(transmit) = self.nodes[rank].protocol.poll_transmit(to) else { break };
                let payload = read(&self.operations, transmit.address, transmit.bytes)?.to_vec();
                self.put(rank, to, transmit.frame, payload);
            }
            if let Some(taken) = self.nodes[rank].protocol.credit_due(to) {
                if is_ring {
                    self.link(to, rank).taken = taken;
                } else if self.link(rank, to).frames.len() < depth {
                    self.put(rank, to, Frame::new(Kind::Taken, taken as usize, 0, 0), Vec::new());
                } else {
                    continue;
                }
                self.nodes[rank].protocol.credit_reported(to);
            }
        }
        Ok(())
    }

    fn put(&mut self, from: usize, to: usize, frame: Frame, payload: Vec<u8>) {
        let is_ring = self.host(from) == self.host(to);
        let (now, delay) = (self.now, self.random.delay());
        let link = self.link(from, to);
        let last = link.frames.back().map_or(now, |(.., at)| *at);
        let at = if is_ring { now } else { last.max(now + delay) };
        if !link.is_cut {
            link.frames.push_back((frame, payload, at));
            self.at(at, Happens::Arrives(to));
        }
    }

    fn begin_pull(&mut self, rank: usize, pull: Pull<usize>) {
        self.sequence += 1;
        let (number, bytes) = (self.sequence, pull.op.bytes);
        let first = self.pulled(rank, &pull, 0..bytes / 2).unwrap_or_default();
        self.nodes[rank].pulls.insert(number, (pull, first));
        self.after_delay(Happens::PullEnds(rank, number));
    }

    /// A part of a message in its sender's memory, unless its process is dead.
    fn pulled(&self, rank: usize, pull: &Pull<usize>, range: std::ops::Range<usize>) -> Option<Vec<u8>> {
        if self.nodes[pull.from].life == Life::Dead && pull.from != rank {
            return None;
        }
        let address = pull.address + range.start as u64;
        read(&self.operations, address, range.len()).ok().map(<[u8]>::to_vec)
    }

    fn end_pull(&mut self, rank: usize, number: u64) -> Result<(), String> {
        let Some((pull, mut bytes)) = self.nodes[rank].pulls.remove(&number) else { return Ok(()) };
        let rest = self.pulled(rank, &pull, pull.op.bytes / 2..pull.op.bytes);
        // A process may lose the right to read another at any time.
        let is_refused = !self.shape.is_calm && pull.from != rank && self.random.one_in(50);
        let failed = (rest.is_none() || is_refused).then_some(3);
        bytes.extend(rest.unwrap_or_default());
        if failed.is_none() {
            write(&mut self.operations, pull.op.address, &bytes)?;
            self.summary.pulled += 1;
        }
        self.nodes[rank].excused = self.now;
        // What was read counts only if the sender had not taken its memory back by then.
        self.observe(rank);
        self.nodes[rank].protocol.handle_pull(pull, failed, self.now);
        if self.nodes[rank].life == Life::Left { self.finish(rank) } else { self.turn(rank) }
    }

    fn finish(&mut self, rank: usize) -> Result<(), String> {
        let mut completions = Vec::new();
        self.nodes[rank].protocol.poll_completions(&mut completions);
        for (op, outcome) in completions {
            self.complete(rank, op.completion, outcome)?;
        }
        if let Some(next) = self.nodes[rank].protocol.next_timeout() {
            self.turn_at(rank, next);
        }
        if self.nodes[rank].protocol.has_pulls() {
            self.turn_soon(rank);
        }
        Ok(())
    }

    fn complete(&mut self, rank: usize, key: usize, outcome: Outcome) -> Result<(), String> {
        self.note(|| format!("    rank {rank}: operation {key}: {outcome:?}"));
        let (host, now) = (self.host(rank), self.now);
        let operation = &self.operations[key];
        let Operation { posted, deadline, .. } = operation;
        let (posted, deadline) = (*posted, *deadline);
        let fail = |what: &str| {
            Err(format!("rank {rank}: operation {key} ({posted:?}) ends with {outcome:?}: {what}"))
        };
        if operation.outcome.is_some() {
            return fail("it had ended before");
        }
        if deadline.is_some_and(|deadline| now > deadline.max(self.nodes[rank].excused)) {
            return fail("it is late");
        }
        let has_ended = self.ends[host].is_some() || self.nodes[rank].life == Life::Left;
        match &outcome {
            Outcome::Done(peer) => {
                self.summary.done += 1;
                match posted.direction {
                    Direction::SendTo(to) if to != *peer => return fail("sent to another rank"),
                    Direction::SendTo(_) => {}
                    Direction::ReceiveFrom(_) => self.check_received(key, *peer)?,
                }
            }
            Outcome::TimedOut { aborts } => {
                self.summary.timed_out += 1;
                if deadline.is_none_or(|deadline| now < deadline) {
                    return fail("its deadline has not passed");
                }
                if self.ends[host].is_some() {
                    return fail("the communicator had ended");
                }
                if *aborts {
                    self.abort(rank, Cause::TimedOut(rank));
                }
            }
            Outcome::Left(peer) => {
                self.summary.left += 1;
                if !self.departed[host].contains(peer) {
                    return fail("that rank has not left");
                }
            }
            Outcome::Broken(peer) => {
                self.summary.broken += 1;
                match self.nodes[rank].failed.get(peer) {
                    None => return fail("the connection has not failed"),
                    Some(false) if self.nodes[*peer].life == Life::Dead => {
                        return fail("that rank is dead");
                    }
                    Some(_) => {}
                }
            }
            Outcome::Differs { peer, bytes, data_type } => {
                self.summary.differ += 1;
                if posted.bytes as u64 == *bytes && posted.data_type == *data_type {
                    return fail("nothing differs");
                }
                let of_peer = |operation: &Operation| {
                    let other = operation.posted;
                    other.rank == *peer
                        && other.tag == posted.tag
                        && other.bytes as u64 == *bytes
                        && other.data_type == *data_type
                };
                if !self.operations.iter().any(of_peer) {
                    return fail("that rank has no such operation");
                }
            }
            Outcome::Unreadable { peer, errno } => {
                self.summary.unreadable += 1;
                let is_over = deadline.is_some_and(|deadline| deadline <= now);
                if self.nodes[*peer].life == Life::Dead && errno.is_some() && !is_over {
                    return fail("that rank is dead");
                }
            }
            Outcome::Ended => {
                self.summary.ended += 1;
                if !has_ended {
                    return fail("the communicator has not ended");
                }
            }
        }
        if self.shape.is_calm && !matches!(outcome, Outcome::Done(_)) {
            return fail("nothing went wrong");
        }
        let operation = &mut self.operations[key];
        operation.outcome = Some(outcome);
        if let Direction::SendTo(_) = posted.direction {
            // The caller uses its memory for something else.
            operation.memory.fill(0xee);
        }
        Ok(())
    }

    fn check_received(&mut self, key: usize, from: usize) -> Result<(), String> {
        let Operation { posted, order, memory, .. } = &self.operations[key];
        let (posted, order) = (*posted, *order);
        let fail = |what: &str| Err(format!("operation {key} ({posted:?}) from rank {from}: {what}"));
        let Direction::ReceiveFrom(wanted) = posted.direction else { return fail("a send received") };
        if wanted.is_some_and(|wanted| wanted != from) {
            return fail("that is not the source");
        }
        if posted.bytes < 8 {
            return Ok(());
        }
        let mut number = [0; 8];
        number.copy_from_slice(&memory[..8]);
        let sent = u64::from_le_bytes(number) as usize;
        let Some(send) = self.operations.get(sent) else { return fail("no rank sent this") };
        if *memory != contents(sent, posted.bytes) {
            return fail("the contents are not those of a message");
        }
        if send.posted.rank != from
            || send.posted.direction != Direction::SendTo(posted.rank)
            || send.posted.tag != posted.tag
            || send.posted.data_type != posted.data_type
            || send.posted.bytes != posted.bytes
        {
            return Err(format!("operation {key} ({posted:?}) received {:?}", send.posted));
        }
        let sent_order = send.order;
        if !self.delivered.insert(sent) {
            return fail("the message was delivered before");
        }
        let matches = self.matches.entry((from, posted.rank, posted.tag)).or_default();
        let before = matches.range(..order).next_back().is_none_or(|(_, sent)| *sent < sent_order);
        let after = matches.range(order..).next().is_none_or(|(_, sent)| *sent > sent_order);
        matches.insert(order, sent_order);
        if before && after { Ok(()) } else { fail("out of order") }
    }

    /// A rank sets the abort word of its host; the others hear of it later.
    fn abort(&mut self, rank: usize, cause: Cause) {
        let here = self.host(rank);
        self.ends[here].get_or_insert(cause);
        self.wake_host(here);
        let cause = self.ends[here].unwrap_or(cause);
        for host in (0..self.shape.hosts).filter(|host| *host != here).collect::<Vec<_>>() {
            self.after_delay(Happens::Ended(host, cause));
        }
    }

    fn begin_fault(&mut self, fault: Fault) -> Result<(), String> {
        match fault {
            Fault::Kill(rank) if matches!(self.nodes[rank].life, Life::Runs | Life::Stopped) => {
                self.nodes[rank].life = Life::Dead;
                // Its neighbours notice, well before anybody reports a symptom.
                let notice = DEATH_VERDICT.as_micros() as u64 / 2;
                for host in 0..self.shape.hosts {
                    let delay = Duration::from_micros(1 + self.random.below(notice));
                    self.at(self.now + delay, Happens::Ended(host, Cause::Died(rank)));
                }
                for peer in 0..self.shape.size {
                    self.disconnect(rank, peer, self.random.0.is_multiple_of(2));
                }
            }
            Fault::Leave(rank) if self.nodes[rank].life == Life::Runs => {
                // Messages that the sender believes sent are handed over first.
                self.turn(rank)?;
                self.nodes[rank].life = Life::Left;
                self.nodes[rank].protocol.end();
                self.finish(rank)?;
                let here = self.host(rank);
                self.departed[here].insert(rank);
                self.wake_host(here);
                for host in (0..self.shape.hosts).filter(|host| *host != here) {
                    self.after_delay(Happens::Departed(host, rank));
                }
                for peer in 0..self.shape.size {
                    self.disconnect(rank, peer, false);
                }
            }
            Fault::Abort(rank) if self.nodes[rank].life == Life::Runs => {
                self.abort(rank, Cause::Aborted(rank));
            }
            Fault::Stop(rank, time) if self.nodes[rank].life == Life::Runs => {
                self.nodes[rank].life = Life::Stopped;
                self.at(self.now + time, Happens::Resume(rank));
            }
            Fault::Cut(one, other, is_corrupt) if self.host(one) != self.host(other) => {
                for (from, to) in [(one, other), (other, one)] {
                    let now = self.now;
                    let link = self.link(from, to);
                    link.is_cut = true;
                    link.frames.retain(|(.., at)| *at <= now);
                    self.after_delay(Happens::Failed(to, from, is_corrupt));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The connection of a rank whose process ends is closed after its frames, or loses what is in flight.
    fn disconnect(&mut self, rank: usize, peer: usize, loses: bool) {
        if self.host(rank) == self.host(peer) {
            return;
        }
        let now = self.now;
        let link = self.link(rank, peer);
        link.is_cut = true;
        if loses {
            link.frames.retain(|(.., at)| *at <= now);
        }
        let last = link.frames.back().map_or(now, |(.., at)| *at).max(now);
        let delay = self.random.delay();
        self.link(peer, rank).is_cut = true;
        self.at(last + delay, Happens::Failed(peer, rank, false));
    }

    fn check_end(&self) -> Result<(), String> {
        for (key, operation) in self.operations.iter().enumerate() {
            let Operation { posted, outcome, deadline, was_begun, .. } = operation;
            let life = self.nodes[posted.rank].life;
            if *was_begun && life != Life::Dead && outcome.is_none() && deadline.is_some() {
                return Err(format!("operation {key} ({posted:?}) does not end"));
            }
        }
        if self.ends.iter().any(Option::is_some) {
            return Ok(());
        }
        for from in 0..self.shape.size {
            for to in (0..self.shape.size).filter(|to| self.nodes[*to].life == Life::Runs) {
                self.check_sent(from, to)?;
            }
        }
        Ok(())
    }

    /// What was sent between two ranks, as their sends say, was received or is buffered.
    fn check_sent(&self, from: usize, to: usize) -> Result<(), String> {
        if self.links[from * self.shape.size + to].is_cut {
            return Ok(());
        }
        let buffered: BTreeSet<&[u8]> = self.nodes[to]
            .protocol
            .unexpected()
            .filter(|(source, ..)| *source == from)
            .map(|(.., message)| message)
            .collect();
        let lost = self.operations.iter().enumerate().filter(|(key, operation)| {
            let Operation { posted, outcome, .. } = operation;
            posted.rank == from
                && posted.direction == Direction::SendTo(to)
                && posted.bytes >= 8
                && matches!(outcome, Some(Outcome::Done(_)))
                && !self.delivered.contains(key)
                && !buffered.contains(&contents(*key, posted.bytes)[..])
        });
        let lost: Vec<usize> = lost.map(|(key, _)| key).collect();
        // A receive takes its message along when it does not fit, or times out while pieces of it arrive.
        let takers = self.operations.iter().filter(|operation| {
            let source = match operation.posted.direction {
                Direction::ReceiveFrom(source) => source,
                Direction::SendTo(_) => return false,
            };
            operation.posted.rank == to
                && source.is_none_or(|source| source == from)
                && matches!(
                    operation.outcome,
                    Some(Outcome::Differs { .. } | Outcome::TimedOut { .. } | Outcome::Left(_))
                )
        });
        match lost.len() > takers.count() {
            true => Err(format!("messages {lost:?} from rank {from} to rank {to} were sent and are lost")),
            false => Ok(()),
        }
    }
}

/// What an operation sends: its number, and bytes that depend on it.
fn contents(key: usize, bytes: usize) -> Vec<u8> {
    let number = (key as u64).to_le_bytes().into_iter();
    number.chain((8..).map(|at: usize| (key * 31 + at * 7) as u8)).take(bytes).collect()
}

fn read(operations: &[Operation], address: u64, bytes: usize) -> Result<&[u8], String> {
    if bytes == 0 {
        return Ok(&[]);
    }
    let (key, at) = ((address / MEMORY) as usize, (address % MEMORY) as usize);
    let operation = key.checked_sub(1).and_then(|key| operations.get(key));
    operation
        .and_then(|operation| operation.memory.get(at..at + bytes))
        .ok_or_else(|| format!("{bytes} bytes read at {address:#x}"))
}

fn write(operations: &mut [Operation], address: u64, bytes: &[u8]) -> Result<(), String> {
    if bytes.is_empty() {
        return Ok(());
    }
    let (key, at) = ((address / MEMORY) as usize, (address % MEMORY) as usize);
    let operation = key.checked_sub(1).and_then(|key| operations.get_mut(key)).ok_or("no such memory")?;
    if operation.outcome.is_some() {
        return Err(format!("memory of operation {} is written after it ended", key - 1));
    }
    let target = operation.memory.get_mut(at..at + bytes.len()).ok_or("written past the end")?;
    target.copy_from_slice(bytes);
    Ok(())
}
