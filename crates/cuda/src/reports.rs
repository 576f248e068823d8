//! Host memory that the kernels of a rank write: why the first block failed, and what blocks that have waited for long wait for.

// Reads memory that kernels write.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

use crate::Error;
use crate::driver::{Context, DeviceAddress, PinnedMemory};
use crate::presence;
use crate::records::{self, Report};

/// The failure, and a report of each block.
pub(crate) const REPORTS_MAX: usize = 1024;

#[derive(Debug)]
pub(crate) struct Reports {
    memory: PinnedMemory,
}

impl Reports {
    pub(crate) fn new(context: &Context) -> Result<Reports, Error> {
        let memory = PinnedMemory::new(context, REPORTS_MAX * size_of::<Report>())?;
        // SAFETY: the memory has this many bytes and no kernel uses it yet.
        unsafe { memory.host().write_bytes(0, memory.bytes()) };
        Ok(Reports { memory })
    }

    /// The first report, as kernels address it.
    pub(crate) fn address(&self) -> DeviceAddress {
        self.memory.device()
    }

    /// The report of the first failure.
    pub(crate) fn failure(&self) -> Option<Report> {
        self.read(0)
    }

    /// The reports of blocks that wait.
    pub(crate) fn waits(&self) -> impl Iterator<Item = Report> {
        (1..REPORTS_MAX).filter_map(|at| self.read(at))
    }

    fn read(&self, at: usize) -> Option<Report> {
        let first: *mut Report = self.memory.host().cast();
        // SAFETY: the memory has this many reports. Kernels write the kind last, and the rest before it.
        unsafe {
            let report = first.add(at);
            let kind = AtomicU32::from_ptr((&raw mut (*report).kind).cast()).load(Ordering::Acquire);
            (kind != 0).then(|| Report { kind, ..report.read_volatile() })
        }
    }
}

/// The end of a reason that is the failure of another rank.
pub(crate) const ELSEWHERE: &str = "its own error says why";

/// What a report of this rank says.
pub(crate) fn describe(own: usize, report: &Report) -> String {
    let Report { kind, lane, slice, step, rank, poll, other, tile, .. } = *report;
    let what = match poll as u8 {
        records::ENTERED => "to enter the call",
        records::REACHED => "to signal",
        records::ARRIVED => "to send a message",
        _ => "to release a message",
    };
    let place = format!("step {step} of lane {lane}, slice {slice}, tile {tile}");
    match kind {
        records::WAITING => format!("rank {own} waits for rank {rank} {what}, in {place}"),
        records::TIMED_OUT => format!("timed out: rank {own} waited for rank {rank} {what}, in {place}"),
        records::MISMATCH => format!(
            "rank {rank} is in another call than rank {own}: counts, types or operations differ, in {place}"
        ),
        records::ABORTED => {
            format!(
                "rank {other} aborted the calls while rank {own} waited for rank {rank} {what}, in {place}"
            )
        }
        records::GONE => {
            let gone = presence::describe(other);
            format!("rank {rank} {gone}, and rank {own} waited for it {what}, in {place}")
        }
        records::PEER_FAILED => format!("rank {rank} aborted, or its call failed; {ELSEWHERE}"),
        kind => format!("rank {own} reports a failure of unknown kind {kind}, in {place}"),
    }
}
