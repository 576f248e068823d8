//! The collectives of a communicator as calls of its flight record.
//!
//! All ranks number them alike: the first collective that a rank enqueues on a communicator is #1. A call runs from then until NCCL has
//! reported the end of its kernel on every channel; without events of kernels, until it was enqueued. NCCL runs the collectives of a
//! communicator in order, so the end of one is also that of all before it.
//!
//! NCCL does not report reductions, and ranks may differ in whether a call is in place: neither is in the record.

use std::collections::VecDeque;

use weftlink_bootstrap::Failure;
use weftlink_nccl_plugin::names::{ALGORITHMS, PROTOCOLS, number};
use weftlink_plan::{Collective, DataType};
use weftlink_recorder::header::{CallKind, Header};
use weftlink_recorder::recorder::{Outputs, Owner, Recorder};
use weftlink_recorder::waiting::Waiting;

use crate::interned;

/// A wait that is shorter is not noted.
pub(crate) const STUCK_NS: u64 = 10_000_000_000;
/// Calls that are under way; older ones are no longer watched.
const RUNNING_MAX: usize = 1 << 14;

/// What NCCL says of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    /// Names, interned.
    pub(crate) function: u64,
    pub(crate) data_type: u64,
    pub(crate) algorithm: u64,
    pub(crate) protocol: u64,
    pub(crate) count: u64,
    pub(crate) root: i32,
    pub(crate) channels: u32,
}

/// A call that has not ended.
struct Running {
    number: u32,
    channels: u32,
    kernels_ended: u32,
    is_enqueued: bool,
    /// When its kernel began on the first channel; before, other work of its stream may run.
    began_ns: Option<u64>,
}

/// The calls of a communicator.
pub(crate) struct Calls {
    recorder: Recorder,
    ranks: usize,
    next: u32,
    described: Option<Described>,
    running: VecDeque<Running>,
    /// Whether NCCL reports kernels.
    has_kernels: bool,
    /// The call whose wait is in the record, and since when.
    waits: Option<(u32, u64)>,
}

impl Calls {
    /// The calls of a communicator with a flight record, in a file if `outputs` has a folder.
    pub(crate) fn new(owner: Owner, capacity: u32, outputs: &Outputs, has_kernels: bool) -> Self {
        let recorder = Recorder::new(owner, capacity, 0, outputs);
        for (algorithm, algorithm_name) in ALGORITHMS.iter().enumerate() {
            for (protocol, protocol_name) in PROTOCOLS.iter().enumerate() {
                let name = format!("{algorithm_name} {protocol_name}");
                recorder.name_plan(plan(Some(algorithm), Some(protocol)), &name);
            }
        }
        recorder.name_plan(UNKNOWN_PLAN, "NCCL");
        let running = VecDeque::new();
        Self { recorder, ranks: owner.size, next: 1, described: None, running, has_kernels, waits: None }
    }

    /// A call begins; returns its number.
    pub(crate) fn begin(&mut self, described: Described) -> u32 {
        let number = self.next;
        // Other code marks "no call" by 0.
        self.next = self.next.wrapping_add(1).max(1);
        if self.described != Some(described) {
            self.describe(number, described);
        }
        self.recorder.begin(number);
        if self.running.len() == RUNNING_MAX {
            self.running.pop_front();
        }
        let channels = if self.has_kernels { described.channels } else { 0 };
        self.running.push_back(Running {
            number,
            channels,
            kernels_ended: 0,
            is_enqueued: false,
            began_ns: None,
        });
        number
    }

    #[cold]
    fn describe(&mut self, number: u32, described: Described) {
        self.described = Some(described);
        let data_type = data_type(described.data_type);
        let element_bytes = data_type.map_or(1, DataType::bytes);
        let kind = kind(described.function);
        let what = CallKind::Collective(kind);
        let mut header = Header::allocating(what, 0, described.count as usize, (data_type, element_bytes));
        header.root = described.root.max(0) as u32;
        // The larger buffer has a block for each rank, except where all ranks have the same buffer.
        let blocks = if matches!(
            Collective::NAMES.get(usize::from(kind)),
            Some(&("all-reduce" | "reduce" | "broadcast"))
        ) {
            1
        } else {
            self.ranks as u64
        };
        let bytes = described.count.saturating_mul(element_bytes as u64).saturating_mul(blocks);
        let named = |names: &[&str], interned: u64| number_of(names, interned);
        let at = plan(named(&ALGORITHMS, described.algorithm), named(&PROTOCOLS, described.protocol));
        self.recorder.describe(number, &header, bytes, Some((at, at)));
    }

    /// NCCL has enqueued a call.
    pub(crate) fn enqueued(&mut self, number: u32) {
        self.change(number, |running| running.is_enqueued = true);
    }

    /// The kernel of a call has begun on a channel.
    pub(crate) fn kernel_began(&mut self, number: u32, now_ns: u64) {
        self.change(number, |running| {
            running.began_ns.get_or_insert(now_ns);
        });
    }

    /// The kernel of a call has ended on a channel.
    pub(crate) fn kernel_ended(&mut self, number: u32) {
        self.change(number, |running| running.kernels_ended += 1);
    }

    fn change(&mut self, number: u32, change: impl FnOnce(&mut Running)) {
        let Some(first) = self.running.front().map(|running| running.number) else { return };
        // Numbers are consecutive, except where they wrap.
        let at = number.wrapping_sub(first) as usize;
        let Some(running) = self.running.get_mut(at).filter(|running| running.number == number) else {
            return;
        };
        change(running);
        if !running.is_enqueued || running.kernels_ended < running.channels {
            return;
        }
        for ended in self.running.drain(..=at) {
            self.recorder.end_of(ended.number);
            if self.waits.is_some_and(|(call, _)| call == ended.number) {
                self.waits = None;
                self.recorder.wait_of_group_ends();
            }
        }
    }

    /// The oldest call that has not ended, if its kernel began long ago, and how long.
    pub(crate) fn stuck(&self, now_ns: u64) -> Option<(u32, u64)> {
        let oldest = self.running.front()?;
        let since_ns = now_ns.saturating_sub(oldest.began_ns?);
        (since_ns >= STUCK_NS).then_some((oldest.number, since_ns))
    }

    /// Notes what a rank waits for in a call. Returns whether that is new.
    pub(crate) fn note(&mut self, call: u32, waiting: Waiting) -> bool {
        if self.waits.is_some_and(|(noted, _)| noted == call) {
            return false;
        }
        self.waits = Some((call, self.recorder.wait_begins(call, None, waiting)));
        true
    }

    /// Keeps the clocks of the record in step.
    pub(crate) fn anchor(&self) {
        self.recorder.anchor();
    }

    /// The communicator ends: its record stays if a call was stuck.
    pub(crate) fn end(mut self, now_ns: u64) {
        if let Some((call, since_ns)) = self.stuck(now_ns) {
            let seconds = since_ns as f64 / 1e9;
            self.recorder.fail(&Failure::plain(format!(
                "NCCL ended the communicator {seconds:.0} s after the kernel of call #{call} began, which had not ended"
            )));
        }
    }
}

/// The plan of calls whose algorithm is not known.
const UNKNOWN_PLAN: usize = ALGORITHMS.len() * PROTOCOLS.len();

/// In place of a plan: the algorithm and the protocol.
fn plan(algorithm: Option<usize>, protocol: Option<usize>) -> usize {
    match (algorithm, protocol) {
        (Some(algorithm), Some(protocol)) => algorithm * PROTOCOLS.len() + protocol,
        _ => UNKNOWN_PLAN,
    }
}

fn number_of(names: &[&str], interned: u64) -> Option<usize> {
    number(names, interned::name(interned)?)
}

/// The collective's kind, as in a header.
fn kind(function: u64) -> u8 {
    let known = interned::name(function).and_then(|name| number(&Collective::NAMES, name));
    known.map_or(u8::MAX, |kind| kind as u8)
}

fn data_type(name: u64) -> Option<DataType> {
    let name = interned::name(name)?;
    let name = name.strip_prefix("nccl").unwrap_or(name).to_ascii_lowercase();
    match name.as_str() {
        "float8e4m3" => Some(DataType::F8E4m3),
        "float8e5m2" => Some(DataType::F8E5m2),
        _ => name.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use weftlink_recorder::recorder::{CallState, RankState};

    use super::*;

    fn described(function: &str, count: u64, channels: u32) -> Described {
        let interned = |name: &str| interned::number(Some(name));
        Described {
            function: interned(function),
            data_type: interned("ncclBfloat16"),
            algorithm: interned("NVLS_TREE"),
            protocol: interned("SIMPLE"),
            count,
            root: -1,
            channels,
        }
    }

    fn calls(has_kernels: bool) -> Calls {
        Calls::new(Owner { rank: 1, size: 4, job: 0x5eed }, 64, &Outputs::default(), has_kernels)
    }

    fn states(calls: &Calls) -> Vec<CallState> {
        calls.recorder.reader().record().calls.iter().map(|call| call.state).collect()
    }

    #[test]
    fn a_call_is_described_as_weft_describes_its_own() {
        let mut calls = calls(true);
        calls.begin(described("AllReduce", 1000, 2));
        calls.begin(described("AllGather", 1000, 2));
        calls.begin(described("Broadcast", 7, 2));
        calls.begin(described("SomethingNew", 7, 2));
        let record = calls.recorder.reader().record();
        let seen: Vec<_> =
            record.calls.iter().map(|call| (call.what.as_str(), call.bytes, call.plan.as_str())).collect();
        assert_eq!(
            seen,
            [
                ("all-reduce of 1000 bf16 out of place", 2000, "NVLSTree Simple"),
                ("all-gather of 1000 bf16 out of place", 8000, "NVLSTree Simple"),
                ("broadcast of 7 bf16 from rank 0", 14, "NVLSTree Simple"),
                ("unknown call of 7 bf16 out of place", 56, "NVLSTree Simple"),
            ]
        );
    }

    #[test]
    fn a_call_ends_with_its_last_kernel_and_so_do_those_before_it() {
        let mut calls = calls(true);
        let numbers: Vec<u32> = (0..3).map(|_| calls.begin(described("AllReduce", 8, 2))).collect();
        assert_eq!(numbers, [1, 2, 3]);
        calls.kernel_ended(2);
        calls.kernel_ended(2);
        assert_eq!(states(&calls), [CallState::Running; 3], "#2 is not enqueued");
        calls.enqueued(2);
        assert_eq!(states(&calls), [CallState::Done, CallState::Done, CallState::Running]);
        calls.kernel_ended(1);
        calls.enqueued(99);
        calls.enqueued(3);
        assert_eq!(states(&calls)[2], CallState::Running);
        let mut calls = self::calls(false);
        let number = calls.begin(described("AllReduce", 8, 2));
        calls.enqueued(number);
        assert_eq!(states(&calls), [CallState::Done], "without events of kernels");
    }

    #[test]
    fn a_call_is_stuck_long_after_its_kernel_began() {
        let mut calls = calls(true);
        let number = calls.begin(described("AllReduce", 8, 1));
        calls.enqueued(number);
        assert_eq!(calls.stuck(u64::MAX), None, "its stream may have other work");
        calls.kernel_began(number, 1000);
        calls.kernel_began(number, 5000);
        assert_eq!(calls.stuck(STUCK_NS), None);
        assert_eq!(calls.stuck(STUCK_NS + 1000), Some((number, STUCK_NS)));
        assert!(calls.note(number, Waiting::Message { from: 3 }));
        assert!(!calls.note(number, Waiting::Anything));
        let reader = calls.recorder.reader();
        let waiting = reader.record().waiting.unwrap();
        assert_eq!((waiting.call, waiting.rank, waiting.what.as_str()), (number, Some(3), "a message"));
        calls.kernel_ended(number);
        assert_eq!(reader.record().waiting, None);
        calls.end(u64::MAX);
        assert_eq!(reader.record().state, RankState::Left);
    }

    #[test]
    fn a_communicator_that_ends_with_a_stuck_call_has_failed() {
        let mut calls = calls(true);
        let number = calls.begin(described("AllReduce", 8, 1));
        calls.kernel_began(number, 0);
        let reader = calls.recorder.reader();
        calls.end(2 * STUCK_NS);
        let record = reader.record();
        assert_eq!(record.state, RankState::Failed);
        assert!(record.error.unwrap().contains("20 s after the kernel of call #1 began"));
    }
}
