//! Memory that the ranks of a communicator share independently of plans: headers, departures, the lines that waits use, windows.
//!
//! Every rank keeps the headers of its last calls, so that peers that are behind can still read them. Before a rank writes a
//! header it checks that no peer is so far behind that it still needs the one it overwrites ([`Shared::look_back`]).

// Lines and windows are places in mapped memory.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::time::{Duration, Instant};

use weftlink_bootstrap::{Chain, NOTE_AFTER, Reason};
use weftlink_kernels::{Kernel, Kernels};
use weftlink_plan::Collective;
use weftlink_recorder::header::{Header, Key};
use weftlink_recorder::recorder::Recorder;
use weftlink_recorder::waiting::Waiting;
use weftlink_shm::counter::Counter;
use weftlink_shm::line::{PAYLOAD_WORDS, Poll, distance};
use weftlink_shm::wait::{Park, Stop, Waiter};

use crate::durations::SHOW_CALL;
use crate::operation::Arithmetic;
use crate::signatures;
use crate::transport::Signature;
use crate::transport::cma::Process;

/// The number of headers that a rank keeps.
pub(crate) const HEADERS: usize = 64;
/// How often ranks check that none is far behind, in calls. A rank that passes the check knows that all ranks have made the
/// call `LOOK_BACK - 1` before it, so with half of the headers it never overwrites one that a peer may still read.
const LOOK_BACK: u32 = HEADERS as u32 / 2;

/// One rank's view of the shared state.
pub(crate) struct Shared {
    /// The headers of all ranks.
    pub(crate) headers: Vec<Counter<'static>>,
    /// Set by a rank that makes no more calls.
    pub(crate) departures: Vec<Counter<'static>>,
    pub(crate) waiter: Waiter<'static>,
    pub(crate) windows: Vec<WindowPlace>,
    pub(crate) kernels: Kernels,
    pub(crate) copy: Kernel,
    /// The process of each rank.
    pub(crate) processes: Vec<Process>,
    pub(crate) recorder: Recorder,
    /// Which ranks are on this host.
    pub(crate) here: Vec<bool>,
    pub(crate) stall_reporter: StallReporter,
}

/// Reports stalled calls: to other hosts, which may be in a different call, and in the log.
pub(crate) struct StallReporter {
    pub(crate) rank: u32,
    /// The interval between warnings.
    pub(crate) warn_after: Duration,
    /// The ranks as messages name them.
    pub(crate) names: Vec<String>,
    /// The last call whose header was sent to other hosts.
    sent: Cell<u32>,
    /// The last call with a warning, and how long it had waited then.
    warned: Cell<(u32, Duration)>,
    /// The chain of waits: the rank that this one last registered there, and when it last queried the chain.
    chain: Chain,
    registered: Cell<Option<u32>>,
    queried: Cell<Option<Instant>>,
    /// Sends the header of a call to other hosts.
    pub(crate) send_header: Option<Box<dyn Fn(u32) + Send>>,
}

/// A window of symmetric memory: rank r's part is at `base + r * stride`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowPlace {
    pub(crate) base: *mut u8,
    pub(crate) stride: usize,
}

// SAFETY: the windows' addresses are valid for the communicator's lifetime, from any thread.
unsafe impl Send for Shared {}

/// A call as its rank makes it.
pub(crate) struct Call<'a> {
    pub(crate) header: &'a Header,
    pub(crate) signature: u32,
    /// The header's hash, for messages to other hosts.
    pub(crate) hash: u64,
    /// The number of the call in its communicator.
    pub(crate) number: u32,
    pub(crate) collective: &'a Collective,
    pub(crate) arithmetic: &'a Arithmetic<'a>,
    pub(crate) input: *const u8,
    pub(crate) output: *mut u8,
}

/// The signature of a call with its number mixed in, so that what is left over from a call that only some ranks made never
/// passes for the next one.
#[inline]
pub(crate) fn numbered(signature: u32, number: u32) -> u32 {
    signature.wrapping_add(number.wrapping_mul(0x9e37_79b1))
}

impl<'a> Call<'a> {
    /// A call that moves no data, or none any more.
    pub(crate) fn without_buffers(header: &'a Header, number: u32, collective: &'a Collective) -> Self {
        let (input, output) = (std::ptr::null(), std::ptr::null_mut());
        let signature = numbered(signatures::unnumbered(header), number);
        let hash = header.hash();
        Self { header, signature, hash, number, collective, arithmetic: &Arithmetic::None, input, output }
    }

    /// What distinguishes its messages from those of other calls.
    #[inline]
    pub(crate) fn signatures(&self) -> Signature {
        Signature { short: self.signature, hash: self.hash, number: self.number }
    }
}

impl Shared {
    /// The number of ranks.
    #[inline]
    pub(crate) fn size(&self) -> u32 {
        self.departures.len() as u32
    }

    /// Where a rank announces the call of a number.
    #[inline]
    pub(crate) fn header(&self, rank: usize, number: u32) -> Counter<'static> {
        self.headers[rank * HEADERS + number as usize % HEADERS]
    }

    /// Where all ranks announce the call of a number.
    fn headers_of(&self, number: u32) -> impl Iterator<Item = Counter<'static>> {
        (0..self.size() as usize).map(move |rank| self.header(rank, number))
    }

    /// Publishes the header of this rank's call, packed in `words`.
    #[inline]
    pub(crate) fn announce(&self, rank: usize, number: u32, signature: u32, words: &[u64; PAYLOAD_WORDS]) {
        self.waiter.wake(self.header(rank, number).announce(number, signature, words));
    }

    /// Every [`LOOK_BACK`] calls, waits until all ranks are close enough that a header may be overwritten. An error names the rank that
    /// is not.
    #[inline]
    pub(crate) fn look_back(&self, number: u32) -> Result<(), (Stop, u32)> {
        if number.is_multiple_of(LOOK_BACK) {
            self.recorder.anchor();
            self.wait_for_all(number.wrapping_sub(LOOK_BACK - 1))
        } else {
            Ok(())
        }
    }

    /// Whether a rank is on this host.
    #[inline]
    pub(crate) fn is_here(&self, rank: u32) -> bool {
        self.here[rank as usize]
    }

    /// Waits until all ranks of this host have made the call of a number.
    pub(crate) fn wait_for_all(&self, number: u32) -> Result<(), (Stop, u32)> {
        for (rank, header) in (0..).zip(self.headers_of(number)).filter(|(rank, _)| self.is_here(*rank)) {
            let arrived = || if header.has_reached(number) { Poll::Ready } else { Poll::Pending };
            let left = || {
                let gone = self.departures[rank as usize].poll(1, 0, 1) == Poll::Ready;
                (gone && !header.has_reached(number) && self.may_leave()).then_some(Stop::Left { rank })
            };
            let record = WaitRecord::new(self, number, None, Waiting::Entered { rank });
            let waited = self.waiter.wait_with_check(Park::Line(header.line()), arrived, |waited| {
                record.poll(waited);
                left()
            });
            record.end(waited.is_ok());
            waited.map_err(|stop| (stop, rank))?;
        }
        Ok(())
    }

    /// The calls of all ranks with this number. All have announced theirs.
    pub(crate) fn calls(&self, number: u32) -> impl Iterator<Item = Header> {
        self.headers_of(number).map(|header| Header::unpack(header.announcement()))
    }

    /// Why a wait will never end: a rank makes another call with the same number, or left before it made the call.
    #[cold]
    pub(crate) fn check_peers(&self, call: &Call<'_>, waited: Duration) -> Option<Stop> {
        self.stall_reporter.share(call.number, waited);
        let left = || self.left(call).filter(|_| self.may_leave() && !mutant!("departures-not-noticed"));
        self.differs(call)
            .filter(|_| !mutant!("differences-not-noticed"))
            .or_else(|| left().map(|rank| Stop::Left { rank }))
    }

    /// A rank that left before it made the call.
    #[cold]
    pub(crate) fn left(&self, call: &Call<'_>) -> Option<u32> {
        // The departure is read first: a rank announces its last call before it departs.
        let gone = |rank: u32, header: Counter<'_>, departure: &Counter<'_>| {
            // A rank on another host leaves the number of its last call.
            let made = match self.is_here(rank) {
                true => header.poll(call.number, call.signature, call.number) != Poll::Pending,
                false => distance(departure.announcement()[0] as u32, call.number) >= 0,
            };
            departure.poll(1, 0, 1) == Poll::Ready && !made
        };
        let mut ranks = (0..).zip(self.headers_of(call.number).zip(&self.departures));
        ranks.find(|&(rank, (header, departure))| gone(rank, header, departure)).map(|(rank, _)| rank)
    }

    /// Whether a departure explains why a wait cannot end. It does not if another rank aborted before, say because of a death: then
    /// the abort is the cause, and the departure its consequence.
    fn may_leave(&self) -> bool {
        mutant!("departure-hides-abort")
            || self.waiter.aborted().is_none_or(|code| Reason::is(code, Reason::Left))
    }

    /// Whether the headers show a rank that makes another call with the same number. Headers of this host are compared whole.
    pub(crate) fn differs(&self, call: &Call<'_>) -> Option<Stop> {
        let key = call.header.key();
        let other = |(rank, header): (u32, Counter<'_>)| {
            let found = header.signature_at(call.number)?;
            let differs = found != call.signature || self.is_here(rank) && key_at(header) != key;
            differs.then_some(Stop::Mismatch { found })
        };
        (0..).zip(self.headers_of(call.number)).find_map(other)
    }

    /// The last call, this one or one before it, in which another rank differs according to the headers: its number, this rank's
    /// header, the other rank and its header.
    #[cold]
    pub(crate) fn difference(&self, rank: usize, call: &Call<'_>) -> Option<(u32, Header, u32, Header)> {
        (0..HEADERS as u32 - 1).find_map(|back| {
            let number = call.number.wrapping_sub(back);
            let mine = self.header(rank, number);
            let signature = mine.signature_at(number)?;
            let differs = |header: &Counter<'_>| {
                let found = header.signature_at(number);
                found.is_some_and(|found| found != signature || key_at(*header) != key_at(mine))
            };
            let (other, theirs) = (0..).zip(self.headers_of(number)).find(|(_, header)| differs(header))?;
            let unpack = |header: Counter<'_>| Header::unpack(header.announcement());
            Some((number, unpack(mine), other, unpack(theirs)))
        })
    }
}

/// The key of the call that a header announces.
fn key_at(header: Counter<'_>) -> Key {
    Header::unpack(header.announcement()).key()
}

impl StallReporter {
    pub(crate) fn new(rank: u32, warn_after: Duration, names: Vec<String>, chain: Chain) -> Self {
        let warned = Cell::new((0, Duration::ZERO));
        let (sent, registered, queried) = (Cell::new(0), Cell::new(None), Cell::new(None));
        Self { rank, warn_after, names, sent, warned, chain, registered, queried, send_header: None }
    }

    /// Sends the header of a stalled call to other hosts, once.
    fn share(&self, number: u32, waited: Duration) {
        if let Some(send_header) = &self.send_header
            && waited >= SHOW_CALL
            && self.sent.replace(number) != number
        {
            send_header(number);
        }
    }

    /// Logs a warning for a stalled call.
    pub(crate) fn warn(&self, number: u32, waited: Duration, waiting: &Waiting) {
        let (last, when) = self.warned.get();
        let next = if last == number && waited >= when { when + self.warn_after } else { self.warn_after };
        if waited >= NOTE_AFTER.min(self.warn_after / 4)
            && self.registered.replace(waiting.rank()) != waiting.rank()
        {
            self.chain.note(waiting.rank());
        }
        if waited >= Chain::asks_at(next) && self.queried.get().is_none() {
            self.queried.set(Some(Instant::now()));
            self.chain.ask();
        }
        if let Some(queried) = self.queried.get().filter(|_| waited >= next) {
            self.queried.set(None);
            self.warned.set((number, waited));
            let roots = self.chain.roots(queried);
            let (awaited_ranks, seconds) =
                (awaited_ranks(&self.names, waiting.rank(), &roots), waited.as_secs_f64());
            tracing::warn!(target: "weft::fault", rank = self.rank as usize, "call #{number} has waited {seconds:.1} s for {awaited_ranks}");
        }
    }

    /// A wait has ended successfully.
    pub(crate) fn clear(&self) {
        if self.registered.take().is_some() {
            self.chain.note(None);
        }
        self.queried.set(None);
    }
}

/// Names the ranks that a call waits for at the end of the chain of waits, and the rank between if there is one.
pub(crate) fn awaited_ranks(names: &[String], direct: Option<u32>, roots: &[u32]) -> String {
    let name = |rank: &u32| names.get(*rank as usize).map_or("an unknown rank", String::as_str);
    match (direct, roots) {
        (Some(direct), _) if mutant!("blame-stops-at-the-next") => name(&direct).to_owned(),
        (None, []) => "other ranks".to_owned(),
        (Some(direct), roots) if roots.is_empty() || roots.contains(&direct) => name(&direct).to_owned(),
        (direct, roots) => {
            let names = roots.iter().map(name).collect::<Vec<_>>().join(" and ");
            let between = direct.map_or(String::new(), |rank| format!(", which rank {rank} is waiting for"));
            format!("{names}{between}")
        }
    }
}

/// A wait enters the recorder after this many polls beyond spinning. Where ranks share cores and do not spin, most waits are over before.
pub(crate) const RECORDED_POLLS: u32 = 4;

/// A wait, which enters the recorder once it takes long.
pub(crate) struct WaitRecord<'a> {
    shared: &'a Shared,
    call: u32,
    step: Option<(u32, u32)>,
    waiting: Cell<Waiting>,
    polls: Cell<u32>,
    began_ns: Cell<u64>,
}

impl<'a> WaitRecord<'a> {
    /// A wait in a call, at a lane's step, for something.
    pub(crate) fn new(shared: &'a Shared, call: u32, step: Option<(u32, u32)>, waiting: Waiting) -> Self {
        Self { shared, call, step, waiting: Cell::new(waiting), polls: Cell::new(0), began_ns: Cell::new(0) }
    }

    /// Sets what the wait is for at the moment, of several things.
    pub(crate) fn is_for(&self, waiting: Waiting) {
        self.waiting.set(waiting);
    }

    /// Whether the wait has taken so long that [`WaitRecord::is_for`] should be set.
    pub(crate) fn is_long(&self) -> bool {
        self.polls.get().is_multiple_of(RECORDED_POLLS / 2) && self.polls.get() > 0
    }

    /// Called at every poll beyond spinning.
    #[cold]
    pub(crate) fn poll(&self, waited: Duration) {
        self.shared.stall_reporter.warn(self.call, waited, &self.waiting.get());
        self.polls.set(self.polls.get().saturating_add(1));
        if self.polls.get() == RECORDED_POLLS {
            let began = self.shared.recorder.wait_begins(self.call, self.step, self.waiting.get());
            self.began_ns.set(began);
        }
    }

    /// The wait is over, successfully or not.
    #[inline]
    pub(crate) fn end(&self, came: bool) {
        if self.polls.get() >= RECORDED_POLLS {
            if came {
                self.shared.stall_reporter.clear();
            }
            self.shared.recorder.wait_ends(self.began_ns.get(), self.polls.get(), came);
        }
    }
}
