//! How many bytes a sender may have at a receiver that has not asked for them.
//!
//! The receiver takes every frame off its link at once, so that nothing queues behind a message that has no receive yet. Unexpected
//! messages occupy the receiver's memory; the sender bounds it. It sends at most one window of bytes ahead of what the receiver
//! has reported as taken, and offers everything beyond that. Both ends count modulo 2^32.

/// What a message costs besides its bytes.
pub const MESSAGE_COST: u32 = 64;

/// Both directions of one link.
#[derive(Clone, Copy, Debug)]
pub struct Credit {
    window: u32,
    /// Sent ahead by this rank, and taken by the peer as last reported.
    sent: u32,
    taken_by_peer: u32,
    /// Taken by this rank, and as last reported to the peer.
    taken: u32,
    reported: u32,
}

impl Credit {
    /// A link whose ends may each be `window` bytes ahead of the other.
    pub fn new(window: u32) -> Credit {
        Credit { window, sent: 0, taken_by_peer: 0, taken: 0, reported: 0 }
    }

    /// Whether a message of this length may be sent eagerly.
    #[inline]
    pub fn covers(&self, bytes: usize) -> bool {
        let ahead = self.sent.wrapping_sub(self.taken_by_peer);
        (bytes as u64) + u64::from(MESSAGE_COST) + u64::from(ahead) <= u64::from(self.window)
    }

    /// Counts a message as sent.
    #[inline]
    pub fn spend(&mut self, bytes: usize) {
        self.sent = self.sent.wrapping_add(bytes as u32 + MESSAGE_COST);
    }

    /// The peer reports what it has taken in all.
    pub fn heard(&mut self, taken: u32) {
        self.taken_by_peer = taken;
    }

    /// An eager message has left this rank's memory.
    #[inline]
    pub fn took(&mut self, bytes: usize) {
        self.taken = self.taken.wrapping_add(bytes as u32 + MESSAGE_COST);
    }

    /// What to report to the peer, once it is a quarter of a window.
    #[inline]
    pub fn due(&self) -> Option<u32> {
        (self.taken.wrapping_sub(self.reported) >= self.window / 4 && self.taken != self.reported)
            .then_some(self.taken)
    }

    /// The peer has been sent what was [due](Credit::due).
    pub fn reported(&mut self) {
        self.reported = self.taken;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_spent_and_returned() {
        let (mut sender, mut receiver) = (Credit::new(1000), Credit::new(1000));
        let mut sent = 0;
        while sender.covers(36) {
            sender.spend(36);
            sent += 1;
        }
        assert_eq!(sent, 10);
        assert_eq!(receiver.due(), None);
        for _ in 0..2 {
            receiver.took(36);
        }
        assert_eq!(receiver.due(), None);
        receiver.took(36);
        let taken = receiver.due().unwrap_or(0);
        receiver.reported();
        assert_eq!((taken, receiver.due()), (300, None));
        sender.heard(taken);
        assert!(sender.covers(236) && !sender.covers(237));
    }

    #[test]
    fn counts_wrap() {
        let mut sender = Credit { sent: u32::MAX - 10, taken_by_peer: u32::MAX - 10, ..Credit::new(1000) };
        sender.spend(36);
        assert!(sender.covers(836) && !sender.covers(837));
        sender.heard(89);
        assert!(sender.covers(936));
    }
}
