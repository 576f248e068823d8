//! Host memory that the kernels of a rank write: why the first block failed, and what blocks that have waited for long wait for.
//!
//! Other processes read it, too (`weft why --attach`), so it is shared memory that is registered with the driver. If the driver refuses that, it
//! is memory of the driver, which only this process can read.

// Reads memory that kernels write.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

use weftlink_recorder::gpu::{REPORT_BYTES, ReportMemory};
use weftlink_recorder::recorder::Owner;

use crate::Error;
use crate::driver::{Context, DeviceAddress, PinnedMemory, Registration};
use crate::presence;
use crate::records::{self, Report};

/// The failure, and a report of each block.
pub(crate) const REPORTS_MAX: usize = 1024;

const _: () = assert!(size_of::<Report>() == REPORT_BYTES);

#[derive(Debug)]
pub(crate) struct Reports {
    memory: Memory<Registration, PinnedMemory>,
}

/// Memory of reports. The registration ends before the memory is unmapped.
#[derive(Debug)]
enum Memory<Registered, Pinned> {
    Shared { registration: Registered, memory: ReportMemory },
    Private(Pinned),
}

impl Reports {
    pub(crate) fn new(context: &Context, owner: Owner) -> Result<Reports, Error> {
        let register = |memory: &ReportMemory| {
            // SAFETY: fields are dropped in order, so the memory is unmapped after the registration has ended.
            unsafe { Registration::new(context, memory.start(), memory.bytes()) }
        };
        let allocate = || {
            let memory = PinnedMemory::new(context, REPORTS_MAX * size_of::<Report>())?;
            // SAFETY: the memory has this many bytes and no kernel uses it yet.
            unsafe { memory.host().write_bytes(0, memory.bytes()) };
            Ok(memory)
        };
        Ok(Reports { memory: Memory::new(owner, register, allocate)? })
    }

    /// The first report, as kernels address it.
    pub(crate) fn address(&self) -> DeviceAddress {
        match &self.memory {
            Memory::Shared { registration, memory } => registration.device() + memory.reports_at() as u64,
            Memory::Private(memory) => memory.device(),
        }
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
        let first: *mut Report = match &self.memory {
            Memory::Shared { memory, .. } => memory.start().wrapping_add(memory.reports_at()),
            Memory::Private(memory) => memory.host(),
        }
        .cast();
        // SAFETY: the memory has this many reports. Kernels write the kind last, and the rest before it.
        unsafe {
            let report = first.add(at);
            let kind = AtomicU32::from_ptr((&raw mut (*report).kind).cast()).load(Ordering::Acquire);
            (kind != 0).then(|| Report { kind, ..report.read_volatile() })
        }
    }
}

impl<Registered, Pinned> Memory<Registered, Pinned> {
    /// Shared memory if the driver registers it, and memory of the driver if not.
    fn new(
        owner: Owner,
        register: impl FnOnce(&ReportMemory) -> Result<Registered, Error>,
        allocate: impl FnOnce() -> Result<Pinned, Error>,
    ) -> Result<Self, Error> {
        let shared =
            ReportMemory::create(owner, REPORTS_MAX).map_err(|why| why.to_string()).and_then(|memory| {
                let registration = register(&memory).map_err(|why| why.to_string())?;
                Ok(Memory::Shared { registration, memory })
            });
        shared.or_else(|why| {
            tracing::warn!(
                target: "weft::fault",
                rank = owner.rank,
                "`weft why --attach` will show the calls of this rank, but not what its kernels wait for: {why}"
            );
            allocate().map(Memory::Private)
        })
    }
}

/// The end of a reason that is the failure of another rank.
pub(crate) const ELSEWHERE: &str = "its own error says why";

/// What a report of this rank says.
pub(crate) fn describe(own: usize, report: &Report) -> String {
    let Report { kind, signature, lane, slice, step, rank, poll, other, tile, .. } = *report;
    let what = match poll as u8 {
        records::ENTERED => "to enter the call",
        records::REACHED | records::SIGNALLED => "to signal",
        records::ARRIVED | records::MESSAGE_SENT => "to send a message",
        records::MESSAGE_TAKEN => "to receive a message",
        _ => "to release a message",
    };
    let place = match poll as u8 {
        records::SIGNALLED => format!("signal {tile} of window {lane}"),
        records::MESSAGE_SENT | records::MESSAGE_TAKEN => {
            format!("chunk {tile} of channel {slice} between them")
        }
        _ => format!("step {step} of lane {lane}, slice {slice}, tile {tile}"),
    };
    match kind {
        records::WAITING => format!("rank {own} waits for rank {rank} {what}, in {place}"),
        records::TIMED_OUT => format!("timed out: rank {own} waited for rank {rank} {what}, in {place}"),
        // The kernel has put the two lengths into fields that steps of plans use.
        records::MISMATCH if poll as u8 == records::MESSAGE_SENT => {
            let [sent, expected] =
                [[other, slice], [signature, step]].map(|[low, high]| u64::from(high) << 32 | u64::from(low));
            format!(
                "rank {rank} sent a message of {sent} bytes, and rank {own} received one of {expected} bytes from it; both must pass the same length"
            )
        }
        records::MISMATCH => format!(
            "rank {rank} is in another call than rank {own}: counts, types, operations or offsets in windows differ, in {place}"
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
        records::OUTSIDE if other > 0 => format!(
            "a kernel of rank {own} multicast in window {lane}, which needs a multicast window and multiples of 16 bytes; correct the kernel"
        ),
        records::OUTSIDE => {
            format!(
                "a kernel of rank {own} accessed rank {rank} outside of window {lane}; correct the kernel"
            )
        }
        records::PEER_FAILED => format!("rank {rank} aborted, or its call failed; {ELSEWHERE}"),
        kind => format!("rank {own} reports a failure of unknown kind {kind}, in {place}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::*;

    /// The level and the text of what is logged.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<(Level, String)>>>);

    impl Subscriber for Log {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            let mut text = Text(String::new());
            event.record(&mut text);
            self.0.lock().unwrap().push((*event.metadata().level(), text.0));
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    struct Text(String);

    impl Visit for Text {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            self.0 += &format!("{field}={value:?} ");
        }
    }

    const OWNER: Owner = Owner { rank: 1, size: 2, job: 7 };

    #[test]
    fn memory_that_cannot_be_registered_is_replaced() {
        let refuse = |_: &ReportMemory| -> Result<(), Error> {
            Err(Error::Misuse { attempt: "register".to_owned(), why: "the driver refused".to_owned() })
        };
        let log = Log::default();
        let memory = tracing::subscriber::with_default(log.clone(), || {
            Memory::new(OWNER, refuse, || Ok("pinned")).unwrap()
        });
        assert!(matches!(memory, Memory::Private("pinned")), "{memory:?}");
        let logged = log.0.lock().unwrap().clone();
        let [(Level::WARN, text)] = &logged[..] else { panic!("{logged:?}") };
        assert!(text.contains("rank=1 ") && text.contains("not what its kernels wait for: "), "{text}");
        assert!(text.contains("the driver refused"), "{text}");
        let memory =
            Memory::new(OWNER, |_| Ok(()), || -> Result<(), Error> { panic!("not needed") }).unwrap();
        let Memory::Shared { memory, .. } = memory else { panic!("{memory:?}") };
        assert_eq!(memory.bytes() - memory.reports_at(), REPORTS_MAX * size_of::<Report>());
        let fail = || Err(Error::Misuse { attempt: "allocate".to_owned(), why: "no memory".to_owned() });
        assert!(Memory::<(), ()>::new(OWNER, refuse, fail).is_err());
    }
}
