//! Which message goes to which receive, as MPI has it.
//!
//! Receives that wait are kept in the order in which they were made, messages in the order in which they came. A message goes to
//! the first receive that takes it, a receive takes the first message that it can. So messages of one rank with one tag are
//! received in the order in which they were sent, and others pass each other.

use std::collections::VecDeque;

/// What is waiting for its counterpart.
pub(super) struct Matching<R, M> {
    receives: VecDeque<(Wanted, R)>,
    messages: VecDeque<(Found, M)>,
}

/// What a receive takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The sender, or anybody.
    pub(super) from: Option<usize>,
    pub(super) tag: u64,
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) from: usize,
    pub(super) tag: u64,
}

impl Wanted {
    fn takes(self, found: Found) -> bool {
        (self.tag == found.tag || mutant!("tags-not-compared"))
            && self.from.is_none_or(|from| from == found.from || mutant!("senders-not-compared"))
    }
}

impl<R, M> Matching<R, M> {
    pub(super) fn new() -> Self {
        Self { receives: VecDeque::new(), messages: VecDeque::new() }
    }

    /// The receive that takes a message, if one is waiting for it.
    pub(super) fn receive_for(&mut self, found: Found) -> Option<R> {
        let at = self.receives.iter().position(|(wanted, _)| wanted.takes(found))?;
        self.receives.remove(at).map(|(_, receive)| receive)
    }

    /// The message that a receive takes, if there is one.
    pub(super) fn message_for(&mut self, wanted: Wanted) -> Option<(Found, M)> {
        let mut waiting = self.messages.iter();
        let takes = |(found, _): &(Found, M)| wanted.takes(*found);
        let at =
            if mutant!("messages-overtake") { waiting.rposition(takes)? } else { waiting.position(takes)? };
        self.messages.remove(at)
    }

    /// A receive waits for its message.
    pub(super) fn keep_receive(&mut self, wanted: Wanted, receive: R) {
        self.receives.push_back((wanted, receive));
    }

    /// A message waits for its receive.
    pub(super) fn keep_message(&mut self, found: Found, message: M) {
        self.messages.push_back((found, message));
    }

    /// Takes receives away that will get nothing.
    pub(super) fn give_up_receives(&mut self, is_lost: impl Fn(Wanted, &R) -> bool) -> Vec<R> {
        extract(&mut self.receives, |(wanted, receive)| {
            is_lost(*wanted, receive) && !mutant!("receives-never-given-up")
        })
    }

    /// Takes messages away that nobody will get.
    pub(super) fn give_up_messages(&mut self, is_lost: impl Fn(Found, &M) -> bool) -> Vec<M> {
        extract(&mut self.messages, |(found, message)| is_lost(*found, message))
    }
}

fn extract<K, T>(queue: &mut VecDeque<(K, T)>, is_lost: impl Fn(&(K, T)) -> bool) -> Vec<T> {
    // Mostly there is nothing to take.
    if !queue.iter().any(&is_lost) {
        return Vec::new();
    }
    let (lost, kept): (Vec<_>, _) = std::mem::take(queue).into_iter().partition(is_lost);
    *queue = kept.into();
    lost.into_iter().map(|(_, one)| one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(from: usize, tag: u64) -> Found {
        Found { from, tag }
    }

    fn wanted(from: impl Into<Option<usize>>, tag: u64) -> Wanted {
        Wanted { from: from.into(), tag }
    }

    #[test]
    fn messages_of_a_rank_and_tag_keep_their_order_and_others_pass() {
        let mut matching = Matching::<u32, u32>::new();
        for (from, tag, name) in [(0, 1, 10), (0, 2, 20), (1, 1, 11), (0, 1, 12)] {
            matching.keep_message(found(from, tag), name);
        }
        assert_eq!(matching.message_for(wanted(1, 2)), None);
        assert_eq!(matching.message_for(wanted(0, 2)), Some((found(0, 2), 20)));
        assert_eq!(matching.message_for(wanted(0, 1)), Some((found(0, 1), 10)));
        assert_eq!(matching.message_for(wanted(None, 1)), Some((found(1, 1), 11)));
        assert_eq!(matching.message_for(wanted(None, 1)), Some((found(0, 1), 12)));
        assert_eq!(matching.message_for(wanted(None, 1)), None);
    }

    #[test]
    fn a_message_goes_to_the_first_receive_that_takes_it() {
        let mut matching = Matching::<u32, u32>::new();
        for (from, tag, name) in [(Some(1), 1, 1), (None, 1, 2), (Some(0), 1, 3), (None, 5, 4)] {
            matching.keep_receive(Wanted { from, tag }, name);
        }
        assert_eq!(matching.receive_for(found(0, 1)), Some(2));
        assert_eq!(matching.receive_for(found(0, 1)), Some(3));
        assert_eq!(matching.receive_for(found(0, 1)), None);
        assert_eq!(matching.receive_for(found(7, 5)), Some(4));
        assert_eq!(matching.give_up_receives(|wanted, _| wanted.from == Some(1)), [1]);
        assert_eq!(matching.receive_for(found(1, 1)), None);
    }
}
