//! A number that one rank counts up and many poll: one line, one writer.
//!
//! The writer publishes values that only grow, each with the signature of the call it is in; readers wait for *at least*
//! a value, fixed by the plan. Because the value never falls, a late reader still finds the condition true, and it does not
//! matter which of the intermediate values it saw. So there is nothing to acknowledge and nothing to reset.
//!
//! Why it is sound: the flag is stored with release and loaded with acquire (`Edge::Count`). Whatever the writer did
//! before it published a value is visible to every rank that has seen that value or a later one, since the writer's later
//! stores to the same line come after in its own order.
//!
//! A call owns a range of values that ends with `last_of_call`. A reader that finds a value of its own call compares
//! signatures. If it finds a later one, the writer has left the call, which it could do only by completing it; its
//! signature is then another call's and says nothing, so it is not compared.
//!
//! **Announcements** put seven words beside the flag: the header a call shows to its peers, in the same cache line as
//! the value that says it is there. [`Counter::announcement`] is exact when the writer cannot announce again before the
//! reader has finished. A plan that uses announcements has an edge from every reader's last load to the writer's next
//! announcement, and the verifier proves that it does; within one call, [`Counter::publish`] leaves the words alone, so
//! they can be read until the next announcement. Without such an edge a reader may see words of two announcements mixed;
//! never anything worse, because they are relaxed atomics.
//!
//! Deliberately absent: waiting ([`crate::wait`]), and counting by more than one rank. A sum of arrivals is as many
//! counters, each on a line of its own.

use crate::line::{Line, PAYLOAD_WORDS, Poll, Word, distance};
use crate::sync::Edge;

/// A counter, as its writer or a reader holds it. Only one rank may publish, announce or start it.
#[derive(Clone, Copy, Debug)]
pub struct Counter<'a> {
    line: &'a Line,
}

impl<'a> Counter<'a> {
    /// The counter on `line`; it stands at 0 in fresh memory.
    pub fn new(line: &'a Line) -> Counter<'a> {
        Counter { line }
    }

    /// Makes the counter what fresh memory would be if counters started at `value`. Call it before any rank reads the counter.
    pub fn start_at(&self, value: u32) {
        self.line.store(Word { sequence: value, signature: 0 }, Edge::Count);
    }

    /// Copies the counter of a writer on another host: its `value` and these words.
    pub fn follow(&self, value: u32, signature: u32, words: &[u64; PAYLOAD_WORDS]) {
        self.line.write_payload(words);
        self.line.store(Word { sequence: value, signature }, Edge::Count);
    }

    /// Counts up to `value`: everything that it stands for is done.
    ///
    /// Returns the line on which readers may be asleep, for [`crate::wait::Waiter::wake`].
    #[inline]
    #[must_use = "readers may be asleep on this line"]
    pub fn publish(&self, value: u32, signature: u32) -> &'a Line {
        debug_assert!(
            distance(value, self.line.load(Edge::Count).sequence) > 0,
            "counter set to {value}, which is not past its value"
        );
        self.line.store(Word { sequence: value, signature }, Edge::Count);
        self.line
    }

    /// Counts up to `value` and shows `words` with it.
    ///
    /// Returns the line on which readers may be asleep, for [`crate::wait::Waiter::wake`].
    #[inline]
    #[must_use = "readers may be asleep on this line"]
    pub fn announce(&self, value: u32, signature: u32, words: &[u64; PAYLOAD_WORDS]) -> &'a Line {
        self.line.write_payload(words);
        self.publish(value, signature)
    }

    /// Whether the counter has reached `at_least`, in a call that ends with `last_of_call`.
    #[inline]
    pub fn poll(&self, at_least: u32, signature: u32, last_of_call: u32) -> Poll {
        debug_assert!(
            distance(last_of_call, at_least) >= 0,
            "{at_least} is not in a call that ends at {last_of_call}"
        );
        let found = self.line.load(Edge::Count);
        if distance(found.sequence, at_least) < 0 {
            Poll::Pending
        } else if found.signature == signature || distance(found.sequence, last_of_call) > 0 {
            Poll::Ready
        } else {
            Poll::Mismatch { found: found.signature }
        }
    }

    /// Whether the counter has reached `at_least`, in any call.
    #[inline]
    pub fn has_reached(&self, at_least: u32) -> bool {
        distance(self.line.load(Edge::Count).sequence, at_least) >= 0
    }

    /// The counter's value.
    #[inline]
    pub fn value(&self) -> u32 {
        self.line.load(Edge::Count).sequence
    }

    /// The last announcement. Read it after [`Self::poll`] returned that the announced value is there; the module's header
    /// says when it is exact.
    #[inline]
    pub fn announcement(&self) -> [u64; PAYLOAD_WORDS] {
        let mut words = [0; PAYLOAD_WORDS];
        self.line.read_payload(&mut words);
        words
    }

    /// The signature that goes with `value`, if that is the counter's value now.
    pub fn signature_at(&self, value: u32) -> Option<u32> {
        let word = self.line.load(Edge::Count);
        (word.sequence == value).then_some(word.signature)
    }

    /// The line that changes when the counter does: what to sleep on.
    #[inline]
    pub fn line(&self) -> &'a Line {
        self.line
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    const CALL: u32 = 0xca11;
    const OTHER: u32 = 0x0bad;

    #[test]
    fn polls_by_the_value_across_the_wrap() {
        for base in [0_u32, u32::MAX - 3, u32::MAX - 1, u32::MAX] {
            let line = Line::new();
            let counter = Counter::new(&line);
            let at = |step: u32| base.wrapping_add(step);
            counter.start_at(base);
            // The call owns 1 to 4.
            assert_eq!(counter.poll(at(1), CALL, at(4)), Poll::Pending);
            let _ = counter.publish(at(1), CALL);
            assert_eq!(counter.poll(at(1), CALL, at(4)), Poll::Ready);
            assert_eq!(counter.poll(at(2), CALL, at(4)), Poll::Pending);
            let _ = counter.publish(at(4), CALL);
            assert_eq!(counter.poll(at(2), CALL, at(4)), Poll::Ready);
            assert_eq!(counter.poll(at(4), CALL, at(4)), Poll::Ready);
        }
    }

    #[test]
    fn signatures_are_compared_within_the_call_only() {
        let line = Line::new();
        let counter = Counter::new(&line);
        assert_eq!(counter.poll(1, CALL, 3), Poll::Pending, "not here yet, whatever it is");
        let _ = counter.publish(2, OTHER);
        assert_eq!(counter.poll(1, CALL, 3), Poll::Mismatch { found: OTHER });
        let _ = counter.publish(3, OTHER);
        assert_eq!(counter.poll(1, CALL, 3), Poll::Mismatch { found: OTHER });
        let _ = counter.publish(4, OTHER);
        assert_eq!(counter.poll(1, CALL, 3), Poll::Ready, "the writer is in a later call");
    }

    #[test]
    fn announcements_survive_publishing() {
        let line = Line::new();
        let counter = Counter::new(&line);
        let _ = counter.announce(1, CALL, &[1, 2, 3, 4, 5, 6, 7]);
        let _ = counter.publish(2, CALL);
        assert_eq!(counter.announcement(), [1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "not past its value")]
    fn decreasing_counters_are_caught() {
        let line = Line::new();
        let _ = Counter::new(&line).publish(5, CALL);
        let _ = Counter::new(&line).publish(4, CALL);
    }
}
