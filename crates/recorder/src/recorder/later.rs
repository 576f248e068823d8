//! Calls that end while later ones have begun: those of a library that enqueues them, and learns later that they ended.

use super::Recorder;
use super::ring::{self, add};

impl Recorder {
    /// Records the success of an earlier call and its time, if the call is still in the ring and runs.
    pub fn end_of(&self, number: u32) {
        let slot = &self.calls[number as usize & (self.calls.len() - 1)];
        let Some((tag, _)) = slot.read() else { return };
        if (tag >> ring::NUMBER_SHIFT) as u32 != number || tag & ring::STATE_BITS != ring::RUNNING {
            return;
        }
        slot.set(1, self.clock.ticks());
        slot.retag((tag + (ring::DONE - ring::RUNNING)) | ring::TIMED);
        let at = (tag >> ring::DESCRIPTION_SHIFT) as usize & (self.ring.descriptions.len() - 1);
        if let Some((_, [_, _, kind, bytes, ..])) = self.ring.descriptions[at].read() {
            let counted = &self.ring.head.counters[usize::from(kind as u8).min(ring::KINDS - 3)];
            add(&counted.calls, 1);
            add(&counted.bytes, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use weftlink_plan::DataType;

    use crate::header::{CallKind, Header};
    use crate::recorder::{CallState, Outputs, Owner, Recorder};

    #[test]
    fn calls_end_in_any_order() {
        let mut recorder = Recorder::new(Owner { rank: 0, size: 2, job: 7 }, 16, 0, &Outputs::default());
        for number in 1..=20 {
            let count = 10 * number as usize;
            let header = Header::allocating(CallKind::Collective(0), 0, count, (Some(DataType::F32), 4));
            recorder.describe(number, &header, 4 * count as u64, Some((0, 0)));
            recorder.begin(number);
        }
        // The ring has forgotten call 2; calls 18 and 40 are not there, or have ended.
        for number in [2, 19, 18, 18, 40] {
            recorder.end_of(number);
        }
        let record = recorder.reader().record();
        let ended: Vec<u32> = record
            .calls
            .iter()
            .filter(|call| call.state == CallState::Done)
            .map(|call| call.number)
            .collect();
        assert_eq!(ended, [18, 19]);
        assert!(record.calls.iter().all(|call| (call.state == CallState::Done) == call.end_ns.is_some()));
        let counters = recorder.reader().counters();
        let all_reduce = counters.by_collective.iter().find(|one| one.calls > 0).unwrap();
        assert_eq!((all_reduce.calls, all_reduce.bytes), (2, 4 * (180 + 190)));
    }
}
