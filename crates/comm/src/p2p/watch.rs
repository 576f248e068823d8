//! What ends messages that do not come through: time, ranks that leave, and the end of the communicator.

use std::time::Instant;

use weftlink_shm::sync;

use super::asked::{Asked, Way};
use super::fate::{BURIAL_LIMIT, LAST_WORDS_LIMIT};
use super::frame::Verdict;
use super::link::Link;
use super::state::{Incoming, Message, State};
use super::wire::Wire;
use crate::error::Error;
use crate::transport::Fault;

impl State {
    /// Ends what has no hope. To be called now and then by whoever waits.
    #[cold]
    pub(super) fn look_after(&mut self, now: Instant) {
        let left: Vec<bool> = (0..self.links.len()).map(|rank| self.has_gone(rank, now)).collect();
        self.turn();
        // What a rank sent before it left counts, and there is no more of it than that.
        for (rank, has_left) in left.iter().enumerate() {
            if !mutant!("last-messages-dropped") {
                while self.drain(rank) && *has_left {}
            }
        }
        if self.fate.is_over() {
            return self.end_all();
        }
        self.end_late(now);
        if left.contains(&true) {
            self.end_ways(&left, |state, asked, rank| state.fate.left(asked, rank));
        }
        self.end_broken(now);
        self.end_unread(now);
    }

    /// Whether a rank has left and nothing more can come of it. What it sent to another host may come later than the word that it
    /// has left.
    fn has_gone(&mut self, rank: usize, now: Instant) -> bool {
        if !self.fate.has_left(rank) {
            return false;
        }
        let wire = self.links[rank].as_ref().and_then(Link::wire);
        wire.is_none_or(|wire| {
            let since = *self.partings.entry(rank).or_insert(now);
            wire.fault().is_some() || now.saturating_duration_since(since) >= LAST_WORDS_LIMIT
        })
    }

    /// Ends what goes over connections that are of no more use. Mostly their rank is dead or has left, and that is told in a
    /// moment.
    fn end_broken(&mut self, now: Instant) {
        for rank in 0..self.links.len() {
            let Some(fault) = self.links[rank].as_ref().and_then(Link::wire).and_then(Wire::fault) else {
                continue;
            };
            let since = *self.partings.entry(rank).or_insert(now);
            let is_over = now.saturating_duration_since(since) >= BURIAL_LIMIT;
            if is_over || matches!(fault, Fault::Corrupt(_)) {
                let mut broken = vec![false; self.links.len()];
                broken[rank] = true;
                self.end_ways(&broken, |state, asked, rank| state.fate.broken(asked, rank, &fault));
            }
        }
    }

    /// Everything ends with the communicator. What is being read ends when that is noticed there.
    #[cold]
    pub(super) fn end_all(&mut self) {
        // Callers have their memory back now.
        sync::before_writing();
        let mut all = self.matching.give_up_receives(|_, _| true);
        self.matching.give_up_messages(|_, _| true);
        all.extend(self.offered.drain().map(|(_, asked)| asked));
        all.extend(self.incoming.drain().map(|(_, incoming)| incoming.asked));
        all.extend(self.readings.drain(..).chain(self.unread.drain(..)).map(|reading| reading.asked));
        for rank in 0..self.outboxes.len() {
            self.end_answers(rank);
            let outbox = &mut self.outboxes[rank];
            all.extend(outbox.queued.drain(..).chain(outbox.streams.drain(..).map(|stream| stream.asked)));
        }
        for asked in all {
            let error = self.fate.end_of(&asked);
            self.finish(asked, Err(error));
        }
    }

    /// Ends what has taken too long. A send that its receiver knows of cannot be taken back by one side alone, so that ends the
    /// communicator.
    fn end_late(&mut self, now: Instant) {
        let mut late =
            self.matching.give_up_receives(|_, asked| asked.is_late(now) && !mutant!("late-receives-wait"));
        let incoming = self.incoming.iter().filter(|(_, incoming)| incoming.asked.is_late(now));
        let incoming: Vec<u64> = incoming.map(|(id, _)| *id).collect();
        late.extend(
            incoming.iter().filter_map(|id| self.incoming.remove(id)).map(|Incoming { asked, .. }| asked),
        );
        let mut known = Vec::new();
        for outbox in &mut self.outboxes {
            // What has become of these is known, only not to their senders.
            for answer in &mut outbox.answers {
                known.extend(answer.ends.take_if(|(asked, _)| asked.is_late(now)));
            }
            let queued = std::mem::take(&mut outbox.queued).into_iter();
            let (over, kept): (Vec<_>, Vec<_>) = queued.partition(|asked| asked.is_late(now));
            outbox.queued = kept.into();
            late.extend(over);
        }
        known.into_iter().for_each(|end| self.finish_with(Some(end)));
        late.extend(self.withdrawn_from_self(now));
        for asked in late {
            let error = self.fate.late(&asked, now);
            self.finish(asked, Err(error));
        }
        let streams = self.outboxes.iter().flat_map(|outbox| &outbox.streams).map(|stream| &stream.asked);
        let known = self.offered.values().filter(|asked| asked.way != Way::To(self.fate.rank)).chain(streams);
        let Some(first) = known.filter(|asked| asked.is_late(now)).map(|asked| asked.id).min() else {
            return;
        };
        self.end_known(first, now);
    }

    /// Ends a send that its receiver knows of, and with it the communicator.
    fn end_known(&mut self, id: u64, now: Instant) {
        let asked = self.offered.remove(&id).or_else(|| {
            let of_stream = |outbox: &mut super::outbox::Outbox| {
                let at = outbox.streams.iter().position(|stream| stream.asked.id == id)?;
                outbox.streams.remove(at).map(|stream| stream.asked)
            };
            self.outboxes.iter_mut().find_map(of_stream)
        });
        let Some(asked) = asked else { return };
        let error = self.fate.late(&asked, now);
        self.fate.give_up(&error);
        self.finish(asked, Err(error));
        self.end_all();
    }

    /// Long messages of this rank to itself that it has not received in time, and is not just receiving.
    fn withdrawn_from_self(&mut self, now: Instant) -> Vec<Asked> {
        let (me, offered) = (self.fate.rank, &self.offered);
        let is_late = |id: &u64| offered.get(id).is_some_and(|asked| asked.is_late(now));
        let late = self.matching.give_up_messages(
            |found, message| matches!(message, Message::Offer { id, .. } if found.from == me && is_late(id)),
        );
        let id = |message: &Message| if let Message::Offer { id, .. } = message { *id } else { 0 };
        late.iter().filter_map(|message| self.offered.remove(&id(message))).collect()
    }

    /// Ends what goes to and from ranks that are out of reach. All that they sent has been taken.
    fn end_ways(&mut self, left: &[bool], error: impl Fn(&State, &Asked, usize) -> Error) {
        let me = self.fate.rank;
        let others_left = (0..left.len()).all(|rank| rank == me || left[rank] || self.links[rank].is_none());
        let first = left.iter().position(|left| *left).unwrap_or(me);
        let mut over: Vec<(Asked, usize)> = Vec::new();
        let receives = self.matching.give_up_receives(|wanted, _| {
            wanted.from.map_or(others_left && !mutant!("any-source-waits-for-ever"), |from| left[from])
        });
        over.extend(receives.into_iter().map(|asked| match asked.way {
            Way::From(Some(from)) => (asked, from),
            _ => (asked, first),
        }));
        let incoming: Vec<u64> =
            self.incoming.iter().filter(|(_, one)| left[one.from]).map(|(id, _)| *id).collect();
        let incoming = incoming.iter().filter_map(|id| self.incoming.remove(id));
        over.extend(incoming.map(|Incoming { asked, from, .. }| (asked, from)));
        let is_lost = |asked: &Asked| matches!(asked.way, Way::To(to) if left[to]);
        let offered: Vec<u64> =
            self.offered.iter().filter(|(_, asked)| is_lost(asked)).map(|(id, _)| *id).collect();
        let offered: Vec<Asked> = offered.iter().filter_map(|id| self.offered.remove(id)).collect();
        for to in (0..left.len()).filter(|to| left[*to]) {
            self.end_answers(to);
            let outbox = &mut self.outboxes[to];
            let queued = outbox.queued.drain(..);
            over.extend(
                queued.chain(outbox.streams.drain(..).map(|stream| stream.asked)).map(|asked| (asked, to)),
            );
        }
        over.extend(offered.into_iter().map(|asked| match asked.way {
            Way::To(to) => (asked, to),
            Way::From(_) => (asked, first),
        }));
        for (asked, rank) in over {
            let error = error(self, &asked, rank);
            self.finish(asked, Err(error));
        }
    }

    /// A rank whose memory is gone is most likely dead, and whoever watches it says so in a moment. If nobody does, that it
    /// could not be read is all there is to say.
    fn end_unread(&mut self, now: Instant) {
        let is_over = |failed: &Option<(i32, Instant)>| {
            failed.is_some_and(|(_, at)| {
                now.saturating_duration_since(at) >= BURIAL_LIMIT && !mutant!("unread-waits-for-ever")
            })
        };
        while let Some(at) = self.unread.iter().position(|reading| is_over(&reading.failed)) {
            let reading = self.unread.swap_remove(at);
            let error = reading.failed.map_or(libc::EFAULT, |(error, _)| error);
            let error = self.fate.unreadable(&reading.asked, reading.from, error);
            self.close_offer(reading.from, reading.offer, Verdict::Unreadable, reading.asked, Err(error));
        }
    }

    /// Nobody will hear these answers. What has become of their receives stays.
    fn end_answers(&mut self, rank: usize) {
        for answer in std::mem::take(&mut self.outboxes[rank].answers) {
            self.finish_with(answer.ends);
        }
    }
}
