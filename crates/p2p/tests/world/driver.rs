//! What each rank does: it posts operations, makes turns and pulls, as `weftlink-comm` does.

use weftlink_p2p::{Direction, LocalCopy, Outcome, PendingOp, Pull};

use super::memory::{MEMORY, read, write};
use super::{Happens, Life, Operation, World};

impl World {
    pub(super) fn begin(&mut self, key: usize) -> Result<(), String> {
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
        let now = self.queue.now();
        let node = &mut self.nodes[rank];
        let operation = &mut self.operations[key];
        operation.order = node.posted;
        operation.was_begun = true;
        operation.deadline = posted.timeout.map(|timeout| now + timeout);
        node.posted += 1;
        self.summary.operations += 1;
        if key.is_multiple_of(2)
            && let Some(peer) = self.complete_now(key)?
        {
            self.complete(rank, key, Outcome::Done(peer))?;
            self.transmit(rank)?;
            return self.finish(rank);
        }
        let node = &mut self.nodes[rank];
        let op = PendingOp {
            id: node.protocol.begin().ok_or("the protocol refuses an operation")?,
            direction: posted.direction,
            tag: posted.tag,
            address: MEMORY * (key as u64 + 1),
            bytes: posted.bytes,
            data_type: posted.data_type,
            began: now,
            deadline: self.operations[key].deadline,
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
        // Its message may have arrived while the rank had nothing to do.
        self.turn_soon(rank);
        self.finish(rank)
    }

    /// Whether a thread of a rank drives: for an operation, or for an answer that found no room.
    pub(super) fn has_work(&self, rank: usize) -> bool {
        let is_pending = |operation: &Operation| {
            operation.posted.rank == rank && operation.was_begun && operation.outcome.is_none()
        };
        self.nodes[rank].protocol.has_answers() || self.operations.iter().any(is_pending)
    }

    /// What a rank sees of its communicator before it does anything.
    fn observe(&mut self, rank: usize) {
        let (host, now) = (self.host(rank), self.queue.now());
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

    pub(super) fn turn(&mut self, rank: usize) -> Result<(), String> {
        self.observe(rank);
        self.drain(rank)?;
        if self.random.one_in(2)
            || self.nodes[rank].protocol.next_timeout().is_some_and(|at| at <= self.queue.now())
        {
            self.nodes[rank].protocol.handle_timeout(self.queue.now());
            if let Some(next) = self.nodes[rank].protocol.next_timeout()
                && next <= self.queue.now()
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

    fn begin_pull(&mut self, rank: usize, pull: Pull<usize>) {
        let (number, bytes) = (self.queue.number(), pull.op.bytes);
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

    pub(super) fn end_pull(&mut self, rank: usize, number: u64) -> Result<(), String> {
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
        self.nodes[rank].excused = self.queue.now();
        // What was read counts only if the sender had not taken its memory back by then.
        self.observe(rank);
        self.nodes[rank].protocol.handle_pull(pull, failed, self.queue.now());
        if self.nodes[rank].life == Life::Left { self.finish(rank) } else { self.turn(rank) }
    }

    pub(super) fn finish(&mut self, rank: usize) -> Result<(), String> {
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
}
