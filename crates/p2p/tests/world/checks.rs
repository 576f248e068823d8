//! What must hold whenever an operation completes, and at the end.

use std::collections::BTreeSet;
use std::time::Duration;

use weftlink_p2p::{Direction, MESSAGE_COST, Outcome};

use super::faults::Cause;
use super::memory::contents;
use super::{Life, Operation, Posted, World};

/// A message that was received this long ago must have been answered.
const ANSWER: Duration = Duration::from_secs(5);

impl World {
    pub(super) fn complete(&mut self, rank: usize, key: usize, outcome: Outcome) -> Result<(), String> {
        self.queue.note(|| format!("    rank {rank}: operation {key}: {outcome:?}"));
        let (host, now) = (self.host(rank), self.queue.now());
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
                    Direction::SendTo(_) if self.is_unreceived_offer(key) => {
                        return fail("its message was not received");
                    }
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
                if *aborts && self.is_unanswered(key) {
                    return fail("its message was received long ago");
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
        if self.delivered.insert(sent, self.queue.now()).is_some() {
            return fail("the message was delivered before");
        }
        let matches = self.matches.entry((from, posted.rank, posted.tag)).or_default();
        let before = matches.range(..order).next_back().is_none_or(|(_, sent)| *sent < sent_order);
        let after = matches.range(order..).next().is_none_or(|(_, sent)| *sent > sent_order);
        matches.insert(order, sent_order);
        if before && after { Ok(()) } else { fail("out of order") }
    }

    pub(super) fn check_end(&self) -> Result<(), String> {
        for (key, operation) in self.operations.iter().enumerate() {
            let Operation { posted, outcome, deadline, was_begun, .. } = operation;
            let life = self.nodes[posted.rank].life;
            if *was_begun
                && life != Life::Dead
                && outcome.is_none()
                && (deadline.is_some()
                    || self.ends[self.host(posted.rank)].is_some()
                    || self.is_hopeless(posted))
            {
                return Err(format!("operation {key} ({posted:?}) does not end"));
            }
        }
        if self.ends.iter().any(Option::is_some) {
            return Ok(());
        }
        for from in 0..self.shape.size {
            for to in (0..self.shape.size).filter(|to| self.nodes[*to].life == Life::Runs) {
                self.check_sent(from, to)?;
                self.check_credit(from, to)?;
            }
        }
        Ok(())
    }

    /// Whether an operation waits only for ranks that its own knows to be gone.
    fn is_hopeless(&self, posted: &Posted) -> bool {
        let rank = posted.rank;
        let is_gone = |peer: usize| {
            peer != rank
                && (self.departed[self.host(rank)].contains(&peer)
                    || self.nodes[rank].failed.contains_key(&peer))
        };
        match posted.direction {
            Direction::SendTo(peer) | Direction::ReceiveFrom(Some(peer)) => is_gone(peer),
            Direction::ReceiveFrom(None) => (0..self.shape.size).filter(|peer| *peer != rank).all(is_gone),
        }
    }

    /// Whether a send that its receiver reported as over has a message that no receive got.
    fn is_unreceived_offer(&self, key: usize) -> bool {
        self.offered.contains(&key)
            && !self.streamed.contains(&key)
            && self.operations[key].posted.bytes >= 8
            && !self.delivered.contains_key(&key)
    }

    /// Whether the receiver of a message has had ample time to report that it is over.
    fn is_unanswered(&self, key: usize) -> bool {
        let Operation { posted, .. } = &self.operations[key];
        let (Direction::SendTo(to), Some(received)) = (posted.direction, self.delivered.get(&key)) else {
            return false;
        };
        let (from, size) = (posted.rank, self.shape.size);
        let [sender, receiver] = [from, to].map(|rank| &self.nodes[rank]);
        let is_cut = self.links[from * size + to].is_cut || self.links[to * size + from].is_cut;
        let latest = *[received, &sender.excused, &receiver.excused].into_iter().max().unwrap_or(received);
        receiver.life == Life::Runs && !is_cut && latest + ANSWER < self.queue.now()
    }

    /// Ranks of one host have reported what they took, up to a quarter of a window.
    fn check_credit(&self, from: usize, to: usize) -> Result<(), String> {
        let link = &self.links[from * self.shape.size + to];
        if from == to
            || self.host(from) != self.host(to)
            || self.nodes[from].life != Life::Runs
            || !link.frames.is_empty()
        {
            return Ok(());
        }
        let unexpected = self.nodes[to].protocol.unexpected().filter(|(source, ..)| *source == from);
        let buffered: u32 = unexpected.map(|(.., message)| message.len() as u32 + MESSAGE_COST).sum();
        let missing = link.eager.wrapping_sub(link.taken).wrapping_sub(buffered);
        match missing < (self.shape.window_bytes / 4).max(1) {
            true => Ok(()),
            false => Err(format!("rank {to} has not returned credit of {missing} bytes to rank {from}")),
        }
    }

    /// What was sent between two ranks, as their sends say, was received or is buffered.
    fn check_sent(&self, from: usize, to: usize) -> Result<(), String> {
        if self.links[from * self.shape.size + to].is_cut {
            return Ok(());
        }
        let unexpected = self.nodes[to].protocol.unexpected().filter(|(source, ..)| *source == from);
        // A rank without operations leaves frames on its links.
        let link = &self.links[from * self.shape.size + to];
        let arrived = link.frames.iter().map(|(_, payload, _)| &payload[..]);
        let buffered: BTreeSet<&[u8]> = unexpected.map(|(.., message)| message).chain(arrived).collect();
        let lost = self.operations.iter().enumerate().filter(|(key, operation)| {
            let Operation { posted, outcome, .. } = operation;
            posted.rank == from
                && posted.direction == Direction::SendTo(to)
                && posted.bytes >= 8
                && matches!(outcome, Some(Outcome::Done(_)))
                && !self.delivered.contains_key(key)
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
