//! A communicator: it turns events into calls of its flight record, and all of them into events of the pool.

mod monitor;
pub(crate) mod process;
mod trace;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use weftlink_nccl_plugin::log::Logger;
use weftlink_recorder::recorder::{Outputs, Owner};
use weftlink_shm::clock::now_ns;

use crate::calls::{Calls, Described};
use crate::event::{Kind, Start, Words};
use crate::settings::settings;
use process::{lock, pool};

/// What NCCL says of a communicator when it is made. Versions 1 to 3 say nothing.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) number: u64,
    pub(crate) name: Option<String>,
    pub(crate) rank: i32,
    pub(crate) ranks: i32,
    pub(crate) nodes: i32,
}

impl Identity {
    /// Of a communicator of which NCCL has said nothing yet.
    pub(crate) const UNKNOWN: Identity = Identity { number: 0, name: None, rank: -1, ranks: 0, nodes: 0 };
}

/// A communicator of NCCL.
pub(crate) struct Communicator {
    /// Its number in the process.
    pub(crate) index: u32,
    pub(crate) name: Option<String>,
    pub(crate) ranks: i32,
    pub(crate) nodes: i32,
    pub(crate) logger: Logger,
    rank: AtomicI32,
    number: AtomicU64,
    has_ended: AtomicBool,
    /// The flight record, until the communicator ends.
    calls: Mutex<Option<Calls>>,
}

impl Communicator {
    /// Makes a communicator.
    pub(crate) fn begin(identity: Identity, logger: Logger) -> Option<&'static Communicator> {
        let settings = settings();
        if let Some(problem) = &settings.problem {
            logger.warn(&format!("weft profiler: {problem}"));
        }
        let mut is_recorded = false;
        let communicator = process::list(|index| {
            let calls = calls(&identity);
            is_recorded = calls.is_some();
            Communicator {
                index,
                name: identity.name,
                ranks: identity.ranks,
                nodes: identity.nodes,
                logger,
                rank: AtomicI32::new(identity.rank),
                number: AtomicU64::new(identity.number),
                has_ended: AtomicBool::new(false),
                calls: Mutex::new(calls),
            }
        });
        if is_recorded {
            monitor::start();
        }
        if settings.mask != 0 {
            // Its memory is made here, and not in the first event.
            pool();
        } else {
            logger.info("weft profiler: neither WEFT_PROFILE nor WEFT_RECORD_DIR is set, or NCCL_PROFILE_EVENT_MASK is 0; nothing is recorded");
        }
        communicator
    }

    /// What NCCL holds of it.
    pub(crate) fn context(&self) -> u64 {
        process::context(self.index)
    }

    /// The rank; negative while NCCL has not said it.
    pub(crate) fn rank(&self) -> i32 {
        self.rank.load(Ordering::Relaxed)
    }

    /// The number of the communicator in the job.
    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    fn start(&self, start: &Start) -> u64 {
        if self.has_ended.load(Ordering::Relaxed) {
            pool().counts.stale.fetch_add(1, Ordering::Relaxed);
            return 0;
        }
        self.learn(start);
        let now_ns = now_ns();
        let call = match start.kind {
            Kind::Coll | Kind::CeColl => self.begin_call(start.kind, &start.words),
            _ => pool().call_of(start.parent),
        };
        if start.kind == Kind::KernelCh {
            self.with_call(call, |calls| calls.kernel_began(call, now_ns));
        }
        process::has_news();
        pool().start(start, self.index, call, now_ns)
    }

    /// Old versions say with events what newer ones say when a communicator is made.
    fn learn(&self, start: &Start) {
        // In other events the rank is not set.
        let has_rank = matches!(start.kind, Kind::Coll | Kind::P2p | Kind::ProxyOp | Kind::ProxyStep);
        if has_rank && start.rank >= 0 && self.rank() < 0 {
            self.rank.store(start.rank, Ordering::Relaxed);
        }
        if start.communicator != 0 && self.number() == 0 {
            self.number.store(start.communicator, Ordering::Relaxed);
        }
    }

    fn begin_call(&self, kind: Kind, words: &Words) -> u32 {
        let mut calls = lock(&self.calls);
        let Some(calls) = calls.as_mut() else { return 0 };
        let [function, count, data_type, root, ..] = *words;
        let (channels, algorithm, protocol) = match kind {
            Kind::Coll => (words[5] as u32, words[7], words[8]),
            _ => (0, crate::interned::NONE, crate::interned::NONE),
        };
        let root = root as i64 as i32;
        calls.begin(Described { function, data_type, algorithm, protocol, count, root, channels })
    }

    fn with_call(&self, call: u32, change: impl FnOnce(&mut Calls)) {
        if call != 0
            && let Some(calls) = lock(&self.calls).as_mut()
        {
            change(calls);
        }
    }

    /// Looks at the flight record, unless NCCL is in it.
    pub(crate) fn with_record<T>(&self, look: impl FnOnce(&mut Calls) -> T) -> Option<T> {
        self.calls.try_lock().ok()?.as_mut().map(look)
    }

    /// Ends the communicator.
    pub(crate) fn end(&self) {
        if self.has_ended.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(calls) = lock(&self.calls).take() {
            calls.end(now_ns());
        }
        process::unlist();
    }
}

/// In place of a communicator of this process: its proxies work for another one, which reaches the network through this one's GPU.
pub(crate) const FOREIGN: u32 = u32::MAX;

/// Starts an event of the communicator that NCCL holds by this number; returns the event's number, or 0.
pub(crate) fn start(context: u64, start: &Start) -> u64 {
    match process::of_context(context) {
        Some(communicator) => communicator.start(start),
        None if matches!(start.kind, Kind::ProxyOp | Kind::ProxyStep | Kind::NetPlugin) => {
            process::has_news();
            pool().start(start, FOREIGN, 0, now_ns())
        }
        None => {
            pool().counts.stale.fetch_add(1, Ordering::Relaxed);
            0
        }
    }
}

/// Stops an event.
pub(crate) fn stop(number: u64) {
    let Some((kind, index, call)) = pool().stop(number, now_ns()) else { return };
    process::has_news();
    if call == 0 || !matches!(kind, Kind::Coll | Kind::CeColl | Kind::KernelCh) {
        return;
    }
    let Some(communicator) = process::communicator(index) else { return };
    communicator.with_call(call, |calls| match kind {
        Kind::KernelCh => calls.kernel_ended(call),
        _ => calls.enqueued(call),
    });
}

/// Adds a state to an event.
pub(crate) fn add_state(number: u64, state: u64, value: u64) {
    pool().add_state(number, state, value, now_ns());
}

/// The flight record, if NCCL says enough of the communicator.
fn calls(identity: &Identity) -> Option<Calls> {
    let settings = settings();
    let is_wanted = settings.mask & (Kind::Coll.bit() | Kind::CeColl.bit()) != 0;
    let size = usize::try_from(identity.ranks).ok()?;
    let rank = usize::try_from(identity.rank).ok().filter(|rank| is_wanted && *rank < size)?;
    let owner = Owner { rank, size, job: identity.number };
    let outputs = Outputs { folder: settings.records.clone(), metrics: None };
    let has_kernels = settings.mask & Kind::KernelCh.bit() != 0;
    Some(Calls::new(owner, settings.record_calls, &outputs, has_kernels))
}
