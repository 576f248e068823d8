//! The links between two ranks: rings on one host, connections to others.

use std::collections::VecDeque;
use std::time::Instant;

use weftlink_p2p::{Direction, Frame, Kind, MESSAGE_COST, Payload};

use super::memory::{MEMORY, key_of, read, write};
use super::{DELAYS_US, Happens, World};

/// Drained of one link in a turn.
const FRAMES_MAX: usize = 16;

#[derive(Default)]
pub(super) struct Link {
    /// Sent, with the time of arrival if that is to come.
    pub(super) frames: VecDeque<(Frame, Vec<u8>, Instant)>,
    pub(super) is_cut: bool,
    /// What the receiver has reported as taken of eager messages. The sender reads it where both share memory.
    pub(super) taken: u32,
    /// Sent eagerly, counted as credit counts it.
    pub(super) eager: u32,
}

impl World {
    pub(super) fn link(&mut self, from: usize, to: usize) -> &mut Link {
        &mut self.links[from * self.shape.size + to]
    }

    /// Receives up to `FRAMES_MAX` frames of each link, and all frames of ranks that have left.
    pub(super) fn drain(&mut self, rank: usize) -> Result<(), String> {
        for from in 0..self.shape.size {
            let has_left = self.departed[self.host(rank)].contains(&from);
            let mut frames = 0;
            loop {
                let now = self.queue.now();
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
    pub(super) fn transmit(&mut self, rank: usize) -> Result<(), String> {
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
                match transmit.frame.kind {
                    Kind::Eager => {
                        let cost = transmit.bytes as u32 + MESSAGE_COST;
                        let link = self.link(rank, to);
                        link.eager = link.eager.wrapping_add(cost);
                    }
                    Kind::Offer => self.offered.extend(key_of(transmit.frame.inline[0])),
                    Kind::Piece => self.streamed.extend(key_of(transmit.address)),
                    Kind::Accept | Kind::Over | Kind::Taken => {}
                }
                self.put(rank, to, transmit.frame, payload);
            }
            if let Some(taken) = self.nodes[rank].protocol.credit_due(to) {
                if !is_ring && self.link(rank, to).frames.len() >= depth {
                    continue;
                }
                if !is_ring {
                    self.put(rank, to, Frame::new(Kind::Taken, taken as usize, 0, 0), Vec::new());
                }
                self.link(to, rank).taken = taken;
                self.nodes[rank].protocol.credit_reported(to);
            }
        }
        Ok(())
    }

    /// Sends or receives a message without posting an operation, if the protocol lets it. Returns the peer.
    pub(super) fn complete_now(&mut self, key: usize) -> Result<Option<usize>, String> {
        match self.operations[key].posted.direction {
            Direction::SendTo(to) => Ok(self.send_now(key, to)?.then_some(to)),
            Direction::ReceiveFrom(Some(from)) => Ok(self.receive_now(key, from)?.then_some(from)),
            Direction::ReceiveFrom(None) => Ok(None),
        }
    }

    fn receive_now(&mut self, key: usize, from: usize) -> Result<bool, String> {
        let (posted, now) = (self.operations[key].posted, self.queue.now());
        let next = self.link(from, posted.rank).frames.front();
        let Some(frame) = next.filter(|(.., at)| *at <= now).map(|(frame, ..)| *frame) else {
            return Ok(false);
        };
        let protocol = &mut self.nodes[posted.rank].protocol;
        if !protocol.receive_now(from, posted.tag, posted.bytes, posted.data_type, &frame) {
            return Ok(false);
        }
        if let Some((_, payload, _)) = self.link(from, posted.rank).frames.pop_front() {
            write(&mut self.operations, MEMORY * (key as u64 + 1), &payload)?;
        }
        self.turn_soon(from);
        Ok(true)
    }

    fn send_now(&mut self, key: usize, to: usize) -> Result<bool, String> {
        let posted = self.operations[key].posted;
        let (rank, bytes, depth) = (posted.rank, posted.bytes, self.shape.depth);
        if to == rank || self.link(rank, to).frames.len() >= depth {
            return Ok(false);
        }
        let protocol = &mut self.nodes[rank].protocol;
        let Some(frame) = protocol.send_now(to, posted.tag, bytes, posted.data_type) else {
            return Ok(false);
        };
        let payload = read(&self.operations, MEMORY * (key as u64 + 1), bytes)?.to_vec();
        let link = self.link(rank, to);
        link.eager = link.eager.wrapping_add(bytes as u32 + MESSAGE_COST);
        self.put(rank, to, frame, payload);
        Ok(true)
    }

    fn put(&mut self, from: usize, to: usize, frame: Frame, payload: Vec<u8>) {
        let is_ring = self.host(from) == self.host(to);
        let (now, delay) = (self.queue.now(), self.random.delay(&DELAYS_US));
        let link = self.link(from, to);
        let last = link.frames.back().map_or(now, |(.., at)| *at);
        let at = if is_ring { now } else { last.max(now + delay) };
        if !link.is_cut {
            link.frames.push_back((frame, payload, at));
            self.queue.at(at, Happens::Arrives(to));
        }
    }
}
