//! Drives the [protocol](Protocol) of an endpoint: hands it what arrives, sends what it has to send, makes its copies and reports
//! its completions. All of it happens under the endpoint's lock, except for [pulls](Pull), which may take long.
//!
//! A sender whose message is pulled gets its memory back only when it has heard that the pull is over, or when the communicator has
//! ended; and the receiver uses what it has pulled only if the communicator had not ended by then. So no receiver takes for a
//! message what the sender may have written since.

// Copies between callers' memory, links and buffers.
#![allow(unsafe_code)]

use std::rc::Rc;
use std::time::Instant;

use weftlink_p2p::{Config, Direction, LocalCopy, MESSAGES_MAX, Outcome, Payload, Protocol, Route, Transmit};
use weftlink_shm::sync;

use super::completion::{Callback, Completion, GroupProgress, Op, Request, memory};
use super::link::Link;
use super::peer_status::PeerStatus;
use super::pull::{Pull, PullPolicy};
use super::wire::Wires;
use crate::error::Error;
use crate::transport::Fault;
use crate::transport::cma::Process;

/// The longest message that is sent eagerly. Two short copies cost less than having the kernel read.
const EAGER_BYTES_MAX: usize = 16 << 10;
/// The longest message of a rank to itself that is buffered.
const SELF_BYTES_MAX: usize = 256;
/// How far a sender may be ahead of what its receiver has taken.
const WINDOW_BYTES: u32 = 1 << 20;
/// Frames that are taken from one rank before the others have their turn.
const FRAMES_MAX: usize = 16;

/// Whether a send or a receive could complete without an operation.
pub(super) enum Now {
    /// It has, with this rank.
    Done(usize),
    /// Its message has not arrived.
    NotYet,
    /// It has to be posted.
    Never,
}

/// Everything of an endpoint that its lock guards.
pub(super) struct State {
    pub(super) status: PeerStatus,
    protocol: Protocol<Completion>,
    /// By rank; none to this one itself.
    links: Vec<Option<Link>>,
    /// The connections, if there are ranks on other hosts.
    pub(super) wires: Option<Rc<Wires>>,
    /// The processes of all ranks, and how many threads pull a long message out of them.
    processes: Vec<Process>,
    pull_threads: usize,
    /// Callbacks to call as soon as the lock is released.
    pub(super) callbacks: Vec<(Callback, Result<usize, Error>)>,
    /// Results that waiting threads will fetch.
    results: Vec<(u64, Result<usize, Error>)>,
    /// The group that a thread waits for.
    pub(super) group: GroupProgress,
    /// Pending operations that no thread waits for.
    pub(super) unattended: usize,
    /// Frames were sent, taken or released since peers were woken.
    has_news: bool,
    /// Always empty between calls; kept for its capacity.
    completed: Vec<(Op, Outcome)>,
}

// SAFETY: the addresses are of mapped memory, which may be used from any thread, and of callers who have promised the same of
// theirs. Connections are referred to from nowhere else, so all references to them move between threads together.
unsafe impl Send for State {}

impl State {
    pub(super) fn new(
        status: PeerStatus,
        (links, wires): (Vec<Option<Link>>, Option<Rc<Wires>>),
        pulls: Option<PullPolicy>,
        processes: Vec<Process>,
    ) -> State {
        let route = |link: &Option<Link>| match link {
            None => Route::Own,
            Some(link) if link.wire().is_some() => {
                Route::Connection { frame_bytes_max: link.frame_bytes_max() }
            }
            Some(link) => Route::Ring {
                frame_bytes_max: link.frame_bytes_max(),
                pull_bytes_min: pulls.map(|pulls| pulls.bytes_min),
            },
        };
        let config = Config {
            rank: status.rank,
            eager_bytes_max: EAGER_BYTES_MAX,
            self_bytes_max: SELF_BYTES_MAX,
            window_bytes: WINDOW_BYTES,
        };
        let routes: Vec<Route> = links.iter().map(route).collect();
        State {
            status,
            protocol: Protocol::new(config, &routes),
            links,
            wires,
            processes,
            pull_threads: pulls.map_or(1, |pulls| pulls.threads),
            callbacks: Vec::new(),
            results: Vec::new(),
            group: GroupProgress::default(),
            unattended: 0,
            has_news: false,
            completed: Vec::new(),
        }
    }

    /// Posts a send or a receive, and returns its number. A thread waits for it, unless it has a callback, which is taken if it was posted.
    pub(super) fn post(&mut self, request: Request, callback: &mut Option<Callback>) -> Result<u64, Error> {
        let id = self.begin()?;
        let completion = callback.take().map_or(Completion::Waiter, Completion::Callback);
        self.unattended += usize::from(matches!(completion, Completion::Callback(_)));
        self.post_op(request.begin(id, Instant::now(), completion));
        Ok(id)
    }

    /// Posts a send or a receive of a group, which began when `began` says.
    #[inline]
    pub(super) fn post_in_group(&mut self, request: Request, began: impl FnOnce() -> Instant) {
        match self.begin() {
            Ok(id) => {
                self.group.pending += 1;
                self.post_op(request.begin(id, began(), Completion::Group));
            }
            Err(error) => drop(self.group.error.get_or_insert(error)),
        }
    }

    /// Sends or receives a short message without posting an operation, if that can be done now. Returns the peer.
    #[inline]
    pub(super) fn complete_now(&mut self, request: &Request) -> Now {
        let &Request { direction, tag, address, bytes, data_type, .. } = request;
        let (Direction::SendTo(peer) | Direction::ReceiveFrom(Some(peer))) = direction else {
            return Now::Never;
        };
        let Some(link) = self.links[peer].as_mut() else { return Now::Never };
        if self.status.is_over() {
            return Now::Never;
        }
        if let Direction::SendTo(to) = direction {
            if self.status.has_left(to) || !link.has_room() {
                return Now::Never;
            }
            let Some(frame) = self.protocol.send_now(to, tag, bytes, data_type) else { return Now::Never };
            // SAFETY: the sender's memory has as many bytes there, which are no more than a frame carries.
            unsafe { link.send(frame, memory(address), bytes) };
        } else {
            let Some(frame) = link.arrived() else { return Now::NotYet };
            let Some(frame) =
                frame.filter(|frame| self.protocol.receive_now(peer, tag, bytes, data_type, frame))
            else {
                return Now::Never;
            };
            if bytes > 0 {
                // SAFETY: the receiver's memory has as many bytes there.
                unsafe { link.payload(&frame, memory(address), bytes) };
            }
            link.next();
        }
        self.has_news = true;
        Now::Done(peer)
    }

    /// Whether no operation is pending.
    #[inline]
    pub(super) fn is_at_rest(&self) -> bool {
        self.protocol.is_at_rest()
    }

    fn begin(&mut self) -> Result<u64, Error> {
        self.protocol.begin().ok_or(Error::QueueFull { limit: MESSAGES_MAX })
    }

    fn post_op(&mut self, op: Op) {
        if self.status.is_over() {
            self.protocol.end();
        }
        match op.direction {
            Direction::SendTo(to) => {
                if self.links[to].is_some() && self.status.has_left(to) {
                    self.protocol.peer_left(to, op.began);
                }
                make(self.protocol.send(op));
                self.flush(to);
            }
            Direction::ReceiveFrom(from) => {
                make(self.protocol.receive(op));
                // It may have taken a message that is here, or answered an offer.
                self.has_news = true;
                match from {
                    Some(from) => self.flush(from),
                    None => self.flush_all(),
                }
            }
        }
        self.collect();
    }

    /// The result of a send or a receive that a thread waits for.
    pub(super) fn result(&mut self, id: u64) -> Option<Result<usize, Error>> {
        let at = self.results.iter().position(|(of, _)| *of == id)?;
        Some(self.results.swap_remove(at).1)
    }

    /// Whether there are results that other threads may be asleep for.
    pub(super) fn has_results(&self) -> bool {
        !self.results.is_empty()
    }

    /// Takes what has arrived from all ranks, and sends what can be sent to them.
    #[inline]
    pub(super) fn turn(&mut self) {
        if let Some(wires) = &self.wires {
            wires.progress();
        }
        for rank in 0..self.links.len() {
            self.drain(rank);
            if !self.protocol.is_idle(rank) {
                self.flush(rank);
            }
        }
        self.collect();
    }

    /// Ends operations that have run out of time, or whose peers are gone. Called now and then by waiting threads.
    #[cold]
    pub(super) fn check(&mut self, now: Instant) {
        let others: Vec<usize> = (0..self.links.len()).filter(|rank| self.links[*rank].is_some()).collect();
        for rank in &others {
            if self.status.has_left(*rank) {
                self.protocol.peer_left(*rank, now);
            }
            if let Some(fault) = self.fault(*rank) {
                self.protocol.link_failed(*rank, matches!(fault, Fault::Corrupt(_)), now);
            }
        }
        self.turn();
        // What a rank sent before it left counts, and there is a bounded amount of it.
        for rank in &others {
            let has_left = self.status.has_left(*rank);
            if !mutant!("last-messages-dropped") {
                while self.drain(*rank) && has_left {}
            }
        }
        if self.status.is_over() {
            self.protocol.end();
        } else {
            self.protocol.handle_timeout(now);
        }
        self.collect();
    }

    /// Reports credit, and wakes ranks for which something has changed.
    #[inline]
    pub(super) fn wake_peers(&mut self) {
        if !std::mem::take(&mut self.has_news) && self.wires.is_none() {
            return;
        }
        for (rank, link) in self.links.iter_mut().enumerate() {
            let Some(link) = link else { continue };
            if let Some(taken) = self.protocol.credit_due(rank)
                && link.report_credit(taken)
            {
                self.protocol.credit_reported(rank);
            }
            link.wake_peer(&self.status.waiter);
        }
        if let Some(wires) = &self.wires {
            wires.flush();
        }
    }

    /// Whether frames to ranks on other hosts are still to be handed to the kernel. Their senders believe them sent.
    pub(super) fn is_carrying(&self) -> bool {
        self.wires.as_ref().is_some_and(|wires| wires.is_carrying()) && !self.status.is_over()
    }

    /// Whether something is still to be sent to other ranks, or to be answered by them.
    pub(super) fn is_sending(&self) -> bool {
        self.protocol.is_sending() || self.is_carrying()
    }

    /// Whether answers wait for room.
    pub(super) fn has_answers(&self) -> bool {
        self.protocol.has_answers()
    }

    /// A rank that a pending operation waits for.
    pub(super) fn awaited(&self) -> Option<Direction> {
        self.protocol.awaited()
    }

    /// Whether there are messages to pull.
    pub(super) fn has_pulls(&self) -> bool {
        self.protocol.has_pulls()
    }

    /// The next message to pull, without the lock.
    pub(super) fn next_pull(&mut self) -> Option<Pull> {
        let pull = self.protocol.poll_pull()?;
        let process = (pull.from != self.status.rank).then(|| self.processes[pull.from].clone());
        Some(Pull::new(pull, process, self.pull_threads))
    }

    /// A pull has ended.
    pub(super) fn end_pull(&mut self, pull: Pull) {
        let (now, from) = (Instant::now(), pull.pull.from);
        // In this order: what was pulled counts only if its sender had not taken the memory back, as the header says.
        sync::after_reading();
        if self.status.is_over() && !mutant!("reading-outlives-abort") {
            self.protocol.end();
        }
        if from != self.status.rank && self.status.has_left(from) {
            self.protocol.peer_left(from, now);
        }
        self.protocol.handle_pull(pull.pull, pull.failed, now);
        self.flush(from);
        self.collect();
    }

    /// Takes frames from a rank, up to [`FRAMES_MAX`], and says whether there may be more.
    fn drain(&mut self, from: usize) -> bool {
        let Some(link) = &mut self.links[from] else { return false };
        for _ in 0..FRAMES_MAX {
            let Some(frame) = link.arrived() else { return false };
            // A frame that no rank of this version can have written is skipped.
            if let Some(frame) = frame {
                let (target, room) = match self.protocol.handle_frame(from, &frame) {
                    Payload::None => (std::ptr::null_mut(), 0),
                    Payload::Caller { address, bytes } => (memory(address), bytes),
                    Payload::Buffer(buffer) => (buffer.as_mut_ptr(), buffer.len()),
                };
                if room > 0 {
                    // SAFETY: the protocol names memory of a receive that has not completed, or a buffer, with that much room.
                    unsafe { link.payload(&frame, target, room) };
                }
            }
            link.next();
            self.has_news = true;
        }
        true
    }

    /// Sends what there is room for.
    fn flush(&mut self, to: usize) {
        let Some(link) = &mut self.links[to] else { return };
        while !self.protocol.is_idle(to) && link.has_room() {
            if self.protocol.wants_credit(to)
                && let Some(taken) = link.taken_by_peer()
            {
                self.protocol.handle_credit(to, taken);
            }
            let Some(Transmit { frame, address, bytes }) = self.protocol.poll_transmit(to) else { return };
            // SAFETY: the sender's memory has as many bytes there, which are no more than a frame carries.
            unsafe { link.send(frame, memory(address), bytes) };
            self.has_news = true;
        }
    }

    fn flush_all(&mut self) {
        for rank in 0..self.links.len() {
            if !self.protocol.is_idle(rank) {
                self.flush(rank);
            }
        }
    }

    /// Reports completions.
    #[inline]
    fn collect(&mut self) {
        if self.protocol.has_completions() {
            self.report_completions();
        }
    }

    fn report_completions(&mut self) {
        let mut completed = std::mem::take(&mut self.completed);
        self.protocol.poll_completions(&mut completed);
        for (op, outcome) in completed.drain(..) {
            let result = match outcome {
                Outcome::Done(peer) => Ok(peer),
                // The group has its error, and may have aborted the communicator for it.
                Outcome::Ended
                    if matches!(op.completion, Completion::Group) && self.group.error.is_some() =>
                {
                    sync::before_writing();
                    Err(Error::gone("the group failed"))
                }
                outcome => Err(self.error(&op, &outcome)),
            };
            match op.completion {
                Completion::Waiter => self.results.push((op.id, result)),
                Completion::Group => {
                    self.group.pending -= 1;
                    if let Err(error) = result {
                        self.group.error.get_or_insert(error);
                    }
                }
                Completion::Callback(callback) => {
                    self.unattended -= 1;
                    self.callbacks.push((callback, result));
                }
            }
        }
        self.completed = completed;
    }

    /// The error of an operation that failed. Aborts the communicator if the outcome asks for it.
    #[cold]
    fn error(&self, op: &Op, outcome: &Outcome) -> Error {
        match *outcome {
            Outcome::Done(peer) | Outcome::Left(peer) => self.status.left(op, peer),
            Outcome::TimedOut { aborts } => {
                let error = self.status.late(op, Instant::now());
                if aborts {
                    self.status.abort(&error);
                }
                error
            }
            Outcome::Broken(peer) => self.status.broken(op, peer, &self.fault(peer).unwrap_or(Fault::Ended)),
            Outcome::Differs { peer, bytes, data_type } => self.status.differs(op, peer, (bytes, data_type)),
            Outcome::Unreadable { peer, errno } => {
                self.status.unreadable(op, peer, errno.unwrap_or(libc::EFAULT))
            }
            Outcome::Ended => {
                // The caller gets its memory back, from which a peer may be pulling.
                sync::before_writing();
                self.status.end_of(op)
            }
        }
    }

    fn fault(&self, rank: usize) -> Option<Fault> {
        self.links[rank].as_ref()?.wire()?.fault()
    }
}

/// Makes a copy between a caller's memory and a buffer.
fn make(copy: LocalCopy<'_>) {
    match copy {
        LocalCopy::None => {}
        LocalCopy::In { from, to } => {
            // SAFETY: the memory is that of a send that the protocol has just handled, and has as many bytes as the buffer.
            unsafe { std::ptr::copy_nonoverlapping(memory(from), to.as_mut_ptr(), to.len()) };
        }
        LocalCopy::Out { from, to } => {
            // SAFETY: the memory is that of a receive that the protocol has just handled, and has as many bytes as the buffer.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), memory(to), from.len()) };
        }
    }
}
