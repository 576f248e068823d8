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
//! - a send that was offered and not sent in pieces is done only if its message was received, and does not time out long after that.
//!
//! Checked at the end: nothing is pending that has a deadline, that waits for ranks that are gone only, or after the communicator has
//! ended; a send that was reported as done was delivered or is buffered at its receiver; receivers have returned the credit of what
//! they took; and without faults everything is done.

mod checks;
mod driver;
mod faults;
mod links;
mod memory;
mod summary;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use faults::Cause;
pub(crate) use faults::Fault;
use links::Link;
use memory::contents;
pub(crate) use summary::Summary;
use weftlink_p2p::{Config, Direction, Outcome, Protocol, Pull, Route};
use weftlink_plan::DataType;
use weftlink_testkit::random::Random;
use weftlink_testkit::schedules::Queue;

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Runs,
    Stopped,
    Dead,
    Left,
}

#[derive(Debug)]
pub(crate) enum Happens {
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

pub(crate) struct World {
    pub(crate) random: Random,
    shape: Shape,
    nodes: Vec<Node>,
    links: Vec<Link>,
    operations: Vec<Operation>,
    /// By host: the first cause that its abort word was given, and the ranks whose departure it knows.
    ends: Vec<Option<Cause>>,
    departed: Vec<BTreeSet<usize>>,
    pub(crate) queue: Queue<Happens>,
    /// Sends whose message was received, and when.
    delivered: BTreeMap<usize, Instant>,
    /// Sends that were offered, and those of them that went in pieces.
    offered: BTreeSet<usize>,
    streamed: BTreeSet<usize>,
    /// By source, target and tag: which receive got which send, by the order of posting.
    matches: BTreeMap<(usize, usize, u64), BTreeMap<u64, u64>>,
    summary: Summary,
}

const STEPS_MAX: usize = 100_000;
/// Delays are up to one of these: mostly short, sometimes long.
const DELAYS_US: [u64; 6] = [1, 10, 100, 100, 5_000, 100_000];

impl World {
    pub(crate) fn new(seed: u64, shape: Shape) -> World {
        let queue = Queue::new(STEPS_MAX);
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
                excused: queue.start(),
                failed: BTreeMap::new(),
            }
        };
        World {
            random: Random(seed),
            shape,
            nodes: (0..shape.size).map(node).collect(),
            links: (0..shape.size * shape.size).map(|_| Link::default()).collect(),
            operations: Vec::new(),
            ends: vec![None; shape.hosts],
            departed: vec![BTreeSet::new(); shape.hosts],
            queue,
            delivered: BTreeMap::new(),
            offered: BTreeSet::new(),
            streamed: BTreeSet::new(),
            matches: BTreeMap::new(),
            summary: Summary::default(),
        }
    }

    pub(crate) fn fault(&mut self, at: Duration, fault: Fault) {
        self.queue.at(self.queue.start() + at, Happens::Fault(fault));
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
        self.queue.at(self.queue.start() + at, Happens::Post(key));
    }

    fn host(&self, rank: usize) -> usize {
        rank * self.shape.hosts / self.shape.size
    }

    fn after_delay(&mut self, happens: Happens) {
        let delay = self.random.delay(&DELAYS_US);
        self.queue.at(self.queue.now() + delay, happens);
    }

    fn turn_at(&mut self, rank: usize, when: Instant) {
        let node = &mut self.nodes[rank];
        if matches!(node.life, Life::Runs | Life::Stopped) && node.turns_at.is_none_or(|at| when < at) {
            node.turns_at = Some(when);
            self.queue.at(when, Happens::Turn(rank));
        }
    }

    fn turn_soon(&mut self, rank: usize) {
        let delay = self.random.delay(&DELAYS_US);
        self.turn_at(rank, self.queue.now() + delay);
    }

    /// Runs until nothing happens any more.
    pub(crate) fn run(mut self) -> Result<Summary, String> {
        let result = self.run_all();
        if result.is_err() {
            self.queue.print_trace();
        }
        self.summary.steps = self.queue.steps();
        result.map(|()| self.summary)
    }

    fn run_all(&mut self) -> Result<(), String> {
        while let Some(happens) = self.queue.pop()? {
            self.happen(happens)?;
        }
        self.check_end()
    }

    fn happen(&mut self, happens: Happens) -> Result<(), String> {
        match happens {
            Happens::Post(key) => return self.begin(key),
            Happens::Fault(fault) => return self.begin_fault(fault),
            Happens::Turn(rank) => {
                if self.nodes[rank].turns_at.take_if(|at| *at <= self.queue.now()).is_some()
                    && self.nodes[rank].life == Life::Runs
                    && self.has_work(rank)
                {
                    return self.turn(rank);
                }
            }
            Happens::Resume(rank) => {
                if self.nodes[rank].life == Life::Stopped {
                    self.nodes[rank].life = Life::Runs;
                    self.nodes[rank].excused = self.queue.now();
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
}
