//! Which message goes to which receive, by MPI's rules.
//!
//! Posted receives are kept in the order in which they were posted, unexpected messages in the order in which they arrived. A
//! message goes to the first receive that matches it, a receive takes the first message that matches. Messages of one rank with
//! one tag are therefore received in the order in which they were sent; others may overtake each other.

use std::collections::VecDeque;

/// Posted receives and unexpected messages.
pub(crate) struct Matching<R, M> {
    receives: VecDeque<(Pattern, R)>,
    messages: VecDeque<(Envelope, M)>,
}

/// The messages that a receive matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// The sender; any rank if there is none.
    pub(crate) from: Option<usize>,
    /// The tag.
    pub(crate) tag: u64,
}

/// The source and tag of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    /// The sender.
    pub(crate) from: usize,
    /// The tag.
    pub(crate) tag: u64,
}

impl Pattern {
    fn matches(self, envelope: Envelope) -> bool {
        (self.tag == envelope.tag || mutant!("tags-not-compared"))
            && self.from.is_none_or(|from| from == envelope.from || mutant!("senders-not-compared"))
    }
}

impl<R, M> Matching<R, M> {
    /// Nothing posted, nothing arrived.
    pub(crate) fn new() -> Self {
        Self { receives: VecDeque::new(), messages: VecDeque::new() }
    }

    /// Takes the posted receive that a message matches.
    pub(crate) fn receive_for(&mut self, envelope: Envelope) -> Option<R> {
        let at = self.receives.iter().position(|(pattern, _)| pattern.matches(envelope))?;
        let taken = if at == 0 { self.receives.pop_front() } else { self.receives.remove(at) };
        taken.map(|(_, receive)| receive)
    }

    /// Takes the unexpected message that a receive matches.
    pub(crate) fn message_for(&mut self, pattern: Pattern) -> Option<(Envelope, M)> {
        let mut waiting = self.messages.iter();
        let matches = |(envelope, _): &(Envelope, M)| pattern.matches(*envelope);
        let at = if mutant!("messages-overtake") {
            waiting.rposition(matches)?
        } else {
            waiting.position(matches)?
        };
        self.messages.remove(at)
    }

    /// Whether a message of this envelope would go to a receive of its pattern that is posted now: no receive and no message is before it.
    #[inline]
    pub(crate) fn is_next(&self, envelope: Envelope) -> bool {
        let is_receive = |(pattern, _): &(Pattern, R)| pattern.matches(envelope);
        let is_message = |(other, _): &(Envelope, M)| *other == envelope;
        !self.receives.iter().any(is_receive) && !self.messages.iter().any(is_message)
    }

    /// Keeps a receive until its message arrives.
    pub(crate) fn keep_receive(&mut self, pattern: Pattern, receive: R) {
        self.receives.push_back((pattern, receive));
    }

    /// Keeps a message until its receive is posted.
    pub(crate) fn keep_message(&mut self, envelope: Envelope, message: M) -> &mut M {
        self.messages.push_back((envelope, message));
        let last = self.messages.len() - 1;
        &mut self.messages[last].1
    }

    /// The receives that are posted.
    pub(crate) fn receives(&self) -> impl Iterator<Item = &R> {
        self.receives.iter().map(|(_, receive)| receive)
    }

    /// The messages that no receive has taken.
    pub(crate) fn messages(&self) -> impl Iterator<Item = (Envelope, &M)> {
        self.messages.iter().map(|(envelope, message)| (*envelope, message))
    }

    /// Cancels receives.
    pub(crate) fn cancel_receives(&mut self, is_chosen: impl Fn(Pattern, &R) -> bool) -> Vec<R> {
        extract(&mut self.receives, |(pattern, receive)| {
            is_chosen(*pattern, receive) && !mutant!("receives-never-given-up")
        })
    }

    /// Discards messages.
    pub(crate) fn discard_messages(&mut self, is_chosen: impl Fn(Envelope, &M) -> bool) -> Vec<M> {
        extract(&mut self.messages, |(envelope, message)| is_chosen(*envelope, message))
    }
}

fn extract<K, T>(queue: &mut VecDeque<(K, T)>, is_chosen: impl Fn(&(K, T)) -> bool) -> Vec<T> {
    // Most calls find nothing.
    if !queue.iter().any(&is_chosen) {
        return Vec::new();
    }
    let (lost, kept): (Vec<_>, _) = std::mem::take(queue).into_iter().partition(is_chosen);
    *queue = kept.into();
    lost.into_iter().map(|(_, one)| one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope(from: usize, tag: u64) -> Envelope {
        Envelope { from, tag }
    }

    fn pattern(from: impl Into<Option<usize>>, tag: u64) -> Pattern {
        Pattern { from: from.into(), tag }
    }

    #[test]
    fn messages_of_one_rank_and_tag_keep_their_order() {
        let mut matching = Matching::<u32, u32>::new();
        for (from, tag, name) in [(0, 1, 10), (0, 2, 20), (1, 1, 11), (0, 1, 12)] {
            matching.keep_message(envelope(from, tag), name);
        }
        assert_eq!(matching.message_for(pattern(1, 2)), None);
        assert_eq!(matching.message_for(pattern(0, 2)), Some((envelope(0, 2), 20)));
        assert_eq!(matching.message_for(pattern(0, 1)), Some((envelope(0, 1), 10)));
        assert_eq!(matching.message_for(pattern(None, 1)), Some((envelope(1, 1), 11)));
        assert_eq!(matching.message_for(pattern(None, 1)), Some((envelope(0, 1), 12)));
        assert_eq!(matching.message_for(pattern(None, 1)), None);
    }

    #[test]
    fn a_message_goes_to_the_first_matching_receive() {
        let mut matching = Matching::<u32, u32>::new();
        for (from, tag, name) in [(Some(1), 1, 1), (None, 1, 2), (Some(0), 1, 3), (None, 5, 4)] {
            matching.keep_receive(Pattern { from, tag }, name);
        }
        assert_eq!(matching.receive_for(envelope(0, 1)), Some(2));
        assert_eq!(matching.receive_for(envelope(0, 1)), Some(3));
        assert_eq!(matching.receive_for(envelope(0, 1)), None);
        assert_eq!(matching.receive_for(envelope(7, 5)), Some(4));
        assert_eq!(matching.cancel_receives(|pattern, _| pattern.from == Some(1)), [1]);
        assert_eq!(matching.receive_for(envelope(1, 1)), None);
    }
}
