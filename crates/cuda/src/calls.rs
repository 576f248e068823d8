//! The calls of a rank in its flight recorder: what the program has enqueued. The kernels themselves report what they wait for (`reports.rs`).

use std::sync::{Mutex, PoisonError};

use weftlink_bootstrap::{Bootstrap, Failure};
use weftlink_knobs::Knobs;
use weftlink_plan::Verified;
use weftlink_recorder::gpu::BlockReport;
use weftlink_recorder::header::{CallKind, Header, Location, kind};
use weftlink_recorder::recorder::{Outputs, Owner, Recorder};

use crate::call::Key;
use crate::records::Report;

/// The bits of a communicator's number in records.
const JOB_BITS: u64 = (1 << 48) - 1;
/// Calls that are kept if the setting is wrong.
const CALLS: u32 = 1024;

/// The recorder of a rank. All ranks number their calls alike.
pub(crate) struct Calls {
    /// Any thread may notice a failure.
    recorder: Mutex<Recorder>,
    /// Of the last call.
    number: u32,
    /// The plan and the arguments that the recorder knows.
    described: Option<(usize, Key)>,
}

/// The rank of a group, as its records name it.
pub(crate) fn owner_of(group: &Bootstrap) -> Owner {
    Owner { rank: group.rank(), size: group.size(), job: group.id() & JOB_BITS }
}

impl Calls {
    pub(crate) fn new(owner: Owner) -> Calls {
        let capacity = Knobs::from_variable("WEFT_RECORD").map_or(CALLS, |knobs| knobs.record);
        let recorder = Recorder::new(owner, capacity, 0, &Outputs::from_environment(owner.rank));
        Calls { recorder: Mutex::new(recorder), number: 0, described: None }
    }

    /// Records that this rank loads a plan, and waits until all ranks do; returns what [`Calls::loaded`] needs.
    pub(crate) fn loads(&mut self, plan: &Verified) -> u64 {
        self.number = self.number.wrapping_add(1);
        self.described = None;
        let header = Header::allocating(CallKind::Load, plan.hash(), 0, (None, 1));
        let number = self.number;
        let recorder = self.recorder();
        recorder.describe(number, &header, 0, None);
        recorder.begin(number);
        recorder.wait_for_memory_begins(number)
    }

    /// Records that loading has ended, with the plan's name and index if it succeeded.
    pub(crate) fn loaded(&mut self, began_ns: u64, plan: Option<(usize, &str)>) {
        let recorder = self.recorder();
        recorder.wait_ends(began_ns, 0, true);
        match plan {
            Some((index, name)) => {
                recorder.name_plan(index, name);
                recorder.end_timed();
            }
            None => recorder.end_failed(),
        }
    }

    /// Records that this rank is about to enqueue a call, and returns its number.
    pub(crate) fn begin(&mut self, index: usize, plan: &Verified, key: &Key, rank: u32) -> u32 {
        self.number = self.number.wrapping_add(1);
        let number = self.number;
        let is_described = self.described.as_ref().is_some_and(|(plan, last)| *plan == index && last == key);
        if !is_described {
            let (header, bytes) = described(plan, key, rank);
            self.recorder().describe(number, &header, bytes, Some((index, index)));
            self.described = Some((index, key.clone()));
        }
        self.recorder().begin(number);
        number
    }

    /// Records that the call is on its stream, or in a graph.
    pub(crate) fn enqueued(&mut self, is_captured: bool) {
        self.recorder().enqueued(is_captured);
    }

    /// Records the failure of a kernel, of which there is a report, or of another rank.
    pub(crate) fn failed(&self, group: &Bootstrap, why: &str, report: Option<Report>) {
        let report = report.and_then(|report| BlockReport::of_bytes(bytemuck::bytes_of(&report)));
        let (blamed, aborted_by) = report.map(|report| report.blamed()).unwrap_or_default();
        let blamed = blamed.into_iter().map(|blame| group.identified(blame)).collect();
        self.fail(&Failure { why: why.to_owned(), blamed, aborted_by });
    }

    /// Records the failure of the communicator, unless one was recorded before.
    pub(crate) fn fail(&self, failure: &Failure) {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner).fail(failure);
    }

    fn recorder(&mut self) -> &mut Recorder {
        self.recorder.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Calls(the last is #{})", self.number)
    }
}

/// What a call is, and the bytes of the larger of this rank's buffers.
fn described(plan: &Verified, key: &Key, rank: u32) -> (Header, u64) {
    let collective = &plan.collective;
    let element_bytes = key.data_type.bytes();
    let blocks = collective.gives(rank, plan.ranks).max(collective.gets(rank, plan.ranks));
    let header = Header {
        what: CallKind::Collective(kind(collective)),
        plan: 0,
        count: key.count as u64,
        uneven: false,
        aliasing: key.aliasing,
        reduction: collective.reduces().then_some(key.reduction),
        deterministic: false,
        // Data that only moves has no type: ranks may call it differently.
        data_type: collective.reduces().then_some(key.data_type),
        element_bytes: element_bytes as u16,
        root: collective.root().unwrap_or(0),
        // Ranks with different plans are in different calls.
        detail: plan.hash() >> 1,
        input: Location::NONE,
        output: Location::NONE,
    };
    (header, u64::from(blocks) * (key.count * element_bytes) as u64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use weftlink_plan::{Algorithm, Collective, DataType, Reduction, verify};
    use weftlink_recorder::recorder::{CallState, RankState};

    use super::*;

    fn plan(collective: Collective) -> Verified {
        verify(Algorithm::Exchange.flat(&collective, 2, 1).unwrap()).unwrap()
    }

    fn key(plan: &Verified, count: usize) -> Key {
        Key::new(plan, 0, [4096, 1 << 20], count, DataType::F32, Reduction::Sum).unwrap()
    }

    #[test]
    fn calls_are_in_the_record() {
        let mut calls = Calls::new(Owner { rank: 0, size: 2, job: 5 });
        let [sums, gathered] = [Collective::AllReduce, Collective::AllGather].map(plan);
        for (index, plan) in [&sums, &gathered].into_iter().enumerate() {
            let began = calls.loads(plan);
            calls.loaded(began, Some((index, &*plan.name)));
        }
        for (index, plan, count, is_captured) in
            [(0, &sums, 16, false), (0, &sums, 16, false), (1, &gathered, 8, false), (0, &sums, 16, true)]
        {
            calls.begin(index, plan, &key(plan, count), 0);
            calls.enqueued(is_captured);
        }
        let began = calls.loads(&sums);
        calls.loaded(began, None);
        assert_eq!(calls.begin(0, &sums, &key(&sums, 16), 0), 8);
        let record = calls.recorder().reader().record();
        let found: Vec<_> =
            record.calls.iter().map(|call| (call.number, call.state, call.what.as_str())).collect();
        let sum = "all-reduce of 16 f32 (sum) out of place";
        let [first, second] = [&sums, &gathered].map(|plan| format!("load of plan {:016x}", plan.hash()));
        assert_eq!(
            found,
            [
                (1, CallState::Done, &*first),
                (2, CallState::Done, &*second),
                (3, CallState::Enqueued, sum),
                (4, CallState::Enqueued, sum),
                (5, CallState::Enqueued, "all-gather of 8 elements of 4 bytes out of place"),
                (6, CallState::Captured, sum),
                (7, CallState::Failed, &*first),
                (8, CallState::Running, sum),
            ]
        );
        assert_eq!((record.calls[4].plan.as_str(), record.calls[4].bytes), (&*gathered.name, 64));
        assert!(record.is_on_gpu() && record.waiting.is_none());
        calls.fail(&Failure { why: "it broke".to_owned(), blamed: Vec::new(), aborted_by: None });
        let record = calls.recorder().reader().record();
        assert_eq!((record.state, record.error.as_deref()), (RankState::Failed, Some("it broke")));
        assert_eq!(record.calls[7].state, CallState::Failed);
    }
}
