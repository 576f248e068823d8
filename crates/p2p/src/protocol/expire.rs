//! What ends operations besides their message: deadlines, ranks that leave, connections that fail, the end of the communicator.

use std::time::Instant;

use super::Protocol;
use super::parts::{Gone, Incoming, Message, Peer, Pull, Route};
use crate::durations::{DEATH_VERDICT, LAST_FRAMES};
use crate::frame::Verdict;
use crate::op::{Direction, Outcome, PendingOp};

impl<T> Protocol<T> {
    /// When to call [`Protocol::handle_timeout`] at the latest. It may be earlier than needed, never later.
    #[inline]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.earliest
    }

    /// A peer makes no more calls. Frames that it sent before still count: the driver hands over all that have arrived before
    /// it calls [`Protocol::handle_timeout`].
    pub fn peer_left(&mut self, rank: usize, now: Instant) {
        let peer = &mut self.peers[rank];
        if peer.left.is_none() && peer.route != Route::Own {
            peer.left = Some(now);
            let at = peer.gone_at();
            self.note_timeout(at);
        }
    }

    /// The connection to a peer failed; `is_corrupt` if it carried wrong bytes. Otherwise the peer has most likely died or left,
    /// and the notice follows.
    pub fn link_failed(&mut self, rank: usize, is_corrupt: bool, now: Instant) {
        let peer = &mut self.peers[rank];
        if peer.failed.is_none() {
            peer.failed = Some((now, is_corrupt));
            let at = peer.gone_at();
            self.note_timeout(at);
        }
    }

    /// The communicator was aborted or dropped: every operation ends, except those that the driver is copying for.
    #[cold]
    pub fn end(&mut self) {
        if self.has_ended {
            return;
        }
        self.has_ended = true;
        self.earliest = None;
        let mut all = self.matching.cancel_receives(|_, _| true);
        self.matching.discard_messages(|_, _| true);
        all.extend(self.offered.drain().map(|(_, op)| op));
        all.extend(self.incoming.drain().map(|(_, incoming)| incoming.op));
        all.extend(
            self.pulls
                .drain(..)
                .chain(self.failed_pulls.drain(..).map(|(pull, ..)| pull))
                .map(|pull| pull.op),
        );
        for rank in 0..self.peers.len() {
            self.drop_answers(rank);
            let outbox = &mut self.peers[rank].outbox;
            all.extend(outbox.queued.drain(..).chain(outbox.streams.drain(..).map(|stream| stream.op)));
        }
        all.sort_unstable_by_key(|op| op.id);
        for op in all {
            self.complete(op, Outcome::Ended);
        }
    }

    /// Ends whatever has run out of time.
    #[cold]
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.has_ended || self.earliest.is_none_or(|at| at > now) {
            return;
        }
        self.expire_failed_pulls(now);
        self.expire_operations(now);
        if self.has_ended {
            return;
        }
        let mut newly_gone = false;
        for peer in &mut self.peers {
            if peer.gone.is_none() && peer.gone_at().is_some_and(|at| at <= now) {
                peer.gone = Some(if peer.left.is_some() { Gone::Left } else { Gone::Broken });
                newly_gone = true;
            }
        }
        if newly_gone {
            self.drop_unreachable();
        }
        self.earliest = self.timeouts().min();
    }

    /// How a receive ends whose sources are all gone.
    pub(super) fn unreachable(&self, from: Option<usize>) -> Option<Outcome> {
        match from {
            Some(from) => self.peers[from].gone.map(|gone| gone.outcome(from)),
            None if mutant!("any-source-waits-for-ever") => None,
            None => {
                let mut others = (0..self.peers.len()).filter(|rank| *rank != self.config.rank);
                let mut first = None;
                let all_gone = others.all(|rank| {
                    first = first.clone().or(self.peers[rank].gone.map(|gone| gone.outcome(rank)));
                    self.peers[rank].gone.is_some()
                });
                first.filter(|_| all_gone)
            }
        }
    }

    /// Every timeout that stands.
    fn timeouts(&self) -> impl Iterator<Item = Instant> {
        let of_peer = |peer: &'_ Peer<T>| {
            let queued = peer.outbox.queued.iter().filter_map(|op| op.deadline);
            let streams = peer.outbox.streams.iter().filter_map(|stream| stream.op.deadline);
            let answers = peer.outbox.answers.iter().filter_map(|answer| answer.ends.as_ref()?.0.deadline);
            let gone = if peer.gone.is_none() { peer.gone_at() } else { None };
            queued.chain(streams).chain(answers).chain(gone).min()
        };
        let failed = self.failed_pulls.iter().map(|(pull, _, at)| verdict_at(pull, *at));
        let incoming = self.incoming.values().filter_map(|incoming| incoming.op.deadline);
        (self.peers.iter().filter_map(of_peer))
            .chain(self.matching.receives().filter_map(|op| op.deadline))
            .chain(
                self.offered
                    .values()
                    .filter(|op| !self.is_matched_with_self(op))
                    .filter_map(|op| op.deadline),
            )
            .chain(incoming)
            .chain(failed)
    }

    /// Whether a send to this rank itself has been matched: then it completes with its pull.
    fn is_matched_with_self(&self, op: &PendingOp<T>) -> bool {
        op.direction == Direction::SendTo(self.config.rank)
            && self.pulls.iter().any(|pull| pull.from == self.config.rank && pull.offer == op.id)
    }

    fn expire_operations(&mut self, now: Instant) {
        let mut late =
            self.matching.cancel_receives(|_, op| op.is_late(now) && !mutant!("late-receives-wait"));
        let incoming = self.incoming.extract_if(|_, incoming| incoming.op.is_late(now));
        late.extend(incoming.map(|(_, Incoming { op, .. })| op));
        let mut answered = Vec::new();
        for Peer { outbox, .. } in &mut self.peers {
            // These have their result; only their senders have not heard of it.
            for answer in &mut outbox.answers {
                answered.extend(answer.ends.take_if(|(op, _)| op.is_late(now)));
            }
            if outbox.queued.iter().any(|op| op.is_late(now)) {
                let queued = std::mem::take(&mut outbox.queued).into_iter();
                let (over, kept): (Vec<_>, Vec<_>) = queued.partition(|op| op.is_late(now));
                outbox.queued = kept.into();
                late.extend(over);
            }
        }
        for (op, outcome) in answered {
            self.complete(op, outcome);
        }
        late.extend(self.withdraw_from_self(now));
        late.sort_unstable_by_key(|op| op.id);
        for op in late {
            self.complete(op, Outcome::TimedOut { aborts: false });
        }
        let streams = self.peers.iter().flat_map(|peer| &peer.outbox.streams).map(|stream| &stream.op);
        let to_self = Direction::SendTo(self.config.rank);
        let heard_of = self.offered.values().filter(|op| op.direction != to_self).chain(streams);
        if let Some(first) = heard_of.filter(|op| op.is_late(now)).map(|op| op.id).min() {
            self.abort_for(first);
        }
    }

    /// Ends a late send that its receiver has heard of, and with it the communicator.
    fn abort_for(&mut self, id: u64) {
        let op = self.offered.remove(&id).or_else(|| {
            self.peers.iter_mut().find_map(|Peer { outbox, .. }| {
                let at = outbox.streams.iter().position(|stream| stream.op.id == id)?;
                outbox.streams.remove(at).map(|stream| stream.op)
            })
        });
        if let Some(op) = op {
            self.complete(op, Outcome::TimedOut { aborts: !mutant!("late-offers-do-not-abort") });
            self.end();
        }
    }

    /// Late messages of this rank to itself that no receive has matched.
    fn withdraw_from_self(&mut self, now: Instant) -> Vec<PendingOp<T>> {
        let (me, offered) = (self.config.rank, &self.offered);
        let is_late = |id: &u64| offered.get(id).is_some_and(|op| op.is_late(now));
        let late = self.matching.discard_messages(
            |envelope, message| matches!(message, Message::Offer { id, .. } if envelope.from == me && is_late(id)),
        );
        let id = |message: &Message| if let Message::Offer { id, .. } = message { *id } else { 0 };
        late.iter().filter_map(|message| self.offered.remove(&id(message))).collect()
    }

    /// Ends the operations whose peers are gone.
    fn drop_unreachable(&mut self) {
        let gone: Vec<Option<Outcome>> =
            (0..self.peers.len()).map(|rank| self.unreachable(Some(rank))).collect();
        let from_any = self.unreachable(None);
        let mut over = Vec::new();
        let outcome = |from: Option<usize>| from.map_or(&from_any, |from| &gone[from]).clone();
        for op in self.matching.cancel_receives(|pattern, _| outcome(pattern.from).is_some()) {
            if let Direction::ReceiveFrom(from) = op.direction
                && let Some(outcome) = outcome(from)
            {
                over.push((op, outcome));
            }
        }
        let incoming = self.incoming.extract_if(|_, incoming| gone[incoming.from].is_some());
        over.extend(incoming.filter_map(|(_, Incoming { op, from, .. })| Some((op, gone[from].clone()?))));
        let target = |op: &PendingOp<T>| match op.direction {
            Direction::SendTo(to) => gone[to].clone(),
            Direction::ReceiveFrom(_) => None,
        };
        let offered = self.offered.extract_if(|_, op| target(op).is_some());
        over.extend(offered.filter_map(|(_, op)| target(&op).map(|outcome| (op, outcome))));
        let is_gone = |pull: &Pull<T>| gone[pull.from].is_some();
        let failed = self.failed_pulls.extract_if(.., |(pull, ..)| is_gone(pull));
        over.extend(failed.filter_map(|(pull, ..)| Some((pull.op, gone[pull.from].clone()?))));
        for (rank, outcome) in gone.iter().enumerate() {
            let Some(outcome) = outcome else { continue };
            self.drop_answers(rank);
            let outbox = &mut self.peers[rank].outbox;
            let sends = outbox.queued.drain(..).chain(outbox.streams.drain(..).map(|stream| stream.op));
            over.extend(sends.map(|op| (op, outcome.clone())));
        }
        over.sort_unstable_by_key(|(op, _)| op.id);
        for (op, outcome) in over {
            self.complete(op, outcome);
        }
    }

    /// Reports pulls as failed whose peer nobody has declared dead, or whose deadline has passed.
    fn expire_failed_pulls(&mut self, now: Instant) {
        if mutant!("unread-waits-for-ever") {
            return;
        }
        let over: Vec<_> =
            self.failed_pulls.extract_if(.., |(pull, _, at)| verdict_at(pull, *at) <= now).collect();
        for (Pull { op, from, offer, .. }, errno, _) in over {
            let outcome = Outcome::Unreadable { peer: from, errno: Some(errno) };
            self.close_offer(from, offer, Verdict::Unreadable, op, outcome);
        }
    }

    /// Completes the receives whose senders will not read the answer.
    fn drop_answers(&mut self, rank: usize) {
        for answer in std::mem::take(&mut self.peers[rank].outbox.answers) {
            if let Some((op, outcome)) = answer.ends {
                self.complete(op, outcome);
            }
        }
    }
}

/// When a pull that failed at some time is reported.
pub(super) fn verdict_at<T>(pull: &Pull<T>, failed: Instant) -> Instant {
    let verdict = failed + DEATH_VERDICT;
    let deadline = pull.op.deadline.filter(|_| !mutant!("failed-pulls-outlive-deadlines"));
    deadline.map_or(verdict, |deadline| deadline.clamp(failed, verdict))
}

impl<T> Peer<T> {
    /// When nothing more is expected from it.
    fn gone_at(&self) -> Option<Instant> {
        match (self.route, self.left, self.failed) {
            (Route::Own, ..) => None,
            (Route::Ring { .. }, left, _) => left,
            (Route::Connection { .. }, Some(left), None) => Some(left + LAST_FRAMES),
            // Nothing more can come over the connection.
            (Route::Connection { .. }, Some(left), Some((failed, _))) => Some(left.max(failed)),
            (Route::Connection { .. }, None, Some((failed, true))) => Some(failed),
            (Route::Connection { .. }, None, Some((failed, false))) => Some(failed + DEATH_VERDICT),
            (Route::Connection { .. }, None, None) => None,
        }
    }
}
