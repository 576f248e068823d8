//! What a rank shares with the others of its communicator, whatever the plan: headers, departures, the lines waits
//! need, windows.
//!
//! Every rank keeps the headers of its last calls, so that peers that are behind can still read what it called. That no
//! rank gets so far ahead that it overwrites one is seen to before a header is written ([`Shared::look_back`]).

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
use crate::known;
use crate::operation::Arithmetic;
use crate::transport::Signature;
use crate::transport::cma::Process;

/// How many of its headers a rank keeps.
pub(crate) const HEADERS: usize = 64;
/// How often ranks make sure that none is far behind, in calls. Whoever passes such a call knows that all have made the one
/// this many and one more before it; with half of the headers that is enough to never overwrite one that is still read.
const LOOK_BACK: u32 = HEADERS as u32 / 2;

/// One rank's view of what all share.
pub(crate) struct Shared {
    /// Every rank's headers.
    pub(crate) headers: Vec<Counter<'static>>,
    /// Every rank's word that it makes no more calls.
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
    /// Whom to tell when a call waits for long.
    pub(crate) crier: Crier,
}

/// Tells people and other hosts of a call that waits for long.
pub(crate) struct Crier {
    pub(crate) rank: u32,
    /// After how long people are told whom it waits for, and every so often again.
    pub(crate) warn_after: Duration,
    /// How a rank is called.
    pub(crate) names: Vec<String>,
    /// The call whose header other hosts know, and how long this rank had waited when it last told people.
    cried: Cell<u32>,
    warned: Cell<(u32, Duration)>,
    /// Who waits for whom: what this rank has noted there, and when it last asked.
    chain: Chain,
    noted: Cell<Option<u32>>,
    asked: Cell<Option<Instant>>,
    /// Tells other hosts what this rank calls.
    pub(crate) tell: Option<Box<dyn Fn(u32) + Send>>,
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

/// The signature of a call: two that are alike have different ones if their numbers differ, so that what is left over from a
/// call that only some ranks made is never taken for the next.
#[inline]
pub(crate) fn numbered(signature: u32, number: u32) -> u32 {
    signature.wrapping_add(number.wrapping_mul(0x9e37_79b1))
}

impl<'a> Call<'a> {
    /// A call that moves nothing, or nothing more.
    pub(crate) fn without_buffers(header: &'a Header, number: u32, collective: &'a Collective) -> Self {
        let (input, output) = (std::ptr::null(), std::ptr::null_mut());
        let signature = numbered(known::unnumbered(header), number);
        let hash = header.hash();
        Self { header, signature, hash, number, collective, arithmetic: &Arithmetic::None, input, output }
    }

    /// What tells its messages from those of other calls, by kind and by number.
    #[inline]
    pub(crate) fn signatures(&self) -> Signature {
        Signature { short: self.signature, hash: self.hash, number: self.number }
    }
}

impl Shared {
    /// How many ranks there are.
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

    /// Publishes what this rank calls; `words` is the call's header, packed.
    #[inline]
    pub(crate) fn announce(&self, rank: usize, number: u32, signature: u32, words: &[u64; PAYLOAD_WORDS]) {
        self.waiter.wake(self.header(rank, number).announce(number, signature, words));
    }

    /// Waits, now and then, until all ranks are near enough that the header of a call may be written. Who is not, if that
    /// takes too long.
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
            let noted = Noted::new(self, number, None, Waiting::Entered { rank });
            let waited = self.waiter.wait_doubting(Park::Line(header.line()), arrived, |waited| {
                noted.again(waited);
                left()
            });
            noted.over(waited.is_ok());
            waited.map_err(|stop| (stop, rank))?;
        }
        Ok(())
    }

    /// What all ranks call under a number, once they have.
    pub(crate) fn calls(&self, number: u32) -> impl Iterator<Item = Header> {
        self.headers_of(number).map(|header| Header::unpack(header.announcement()))
    }

    /// Why a wait will never end: a rank that is in a call of the same number but not in the same call, or that has left
    /// before it made the call.
    #[cold]
    pub(crate) fn doubt(&self, call: &Call<'_>, waited: Duration) -> Option<Stop> {
        self.crier.cry(call.number, waited);
        let left = || self.left(call).filter(|_| self.may_leave() && !mutant!("departures-not-noticed"));
        self.differs(call)
            .filter(|_| !mutant!("differences-not-noticed"))
            .or_else(|| left().map(|rank| Stop::Left { rank }))
    }

    /// A rank that has left before it made a call.
    #[cold]
    pub(crate) fn left(&self, call: &Call<'_>) -> Option<u32> {
        // A rank's departure is looked at first: its last call was announced before it.
        let gone = |rank: u32, header: Counter<'_>, departure: &Counter<'_>| {
            // Of ranks elsewhere it is known how many calls they made.
            let made = match self.is_here(rank) {
                true => header.poll(call.number, call.signature, call.number) != Poll::Pending,
                false => distance(departure.announcement()[0] as u32, call.number) >= 0,
            };
            departure.poll(1, 0, 1) == Poll::Ready && !made
        };
        let mut ranks = (0..).zip(self.headers_of(call.number).zip(&self.departures));
        ranks.find(|&(rank, (header, departure))| gone(rank, header, departure)).map(|(rank, _)| rank)
    }

    /// Whether a rank that has left is itself the reason why others cannot go on. If not, somebody has given up before it left,
    /// and that is told instead: a rank that hears of a death first is gone when others still wait for it.
    fn may_leave(&self) -> bool {
        mutant!("departure-hides-abort")
            || self.waiter.aborted().is_none_or(|code| Reason::is(code, Reason::Left))
    }

    /// Whether a rank makes another call under the same number, as far as headers tell. Those of this host are compared whole.
    pub(crate) fn differs(&self, call: &Call<'_>) -> Option<Stop> {
        let key = call.header.key();
        let other = |(rank, header): (u32, Counter<'_>)| {
            let found = header.signature_at(call.number)?;
            let differs = found != call.signature || self.is_here(rank) && key_at(header) != key;
            differs.then_some(Stop::Mismatch { found })
        };
        (0..).zip(self.headers_of(call.number)).find_map(other)
    }

    /// A call in which ranks differ: this one, or else the last one before it that headers still tell of. Its number, what this
    /// rank calls, another that calls something else, and what that is.
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

impl Crier {
    pub(crate) fn new(rank: u32, warn_after: Duration, names: Vec<String>, chain: Chain) -> Self {
        let warned = Cell::new((0, Duration::ZERO));
        let (cried, noted, asked) = (Cell::new(0), Cell::new(None), Cell::new(None));
        Self { rank, warn_after, names, cried, warned, chain, noted, asked, tell: None }
    }

    /// Tells other hosts of a call, once.
    fn cry(&self, number: u32, waited: Duration) {
        if let Some(tell) = &self.tell
            && waited >= SHOW_CALL
            && self.cried.replace(number) != number
        {
            tell(number);
        }
    }

    /// Tells people of a call that waits for long.
    fn warn(&self, number: u32, waited: Duration, waiting: &Waiting) {
        let (last, when) = self.warned.get();
        let next = if last == number && waited >= when { when + self.warn_after } else { self.warn_after };
        if waited >= NOTE_AFTER.min(self.warn_after / 4)
            && self.noted.replace(waiting.rank()) != waiting.rank()
        {
            self.chain.note(waiting.rank());
        }
        if waited >= Chain::asks_at(next) && self.asked.get().is_none() {
            self.asked.set(Some(Instant::now()));
            self.chain.ask();
        }
        if let Some(asked) = self.asked.get().filter(|_| waited >= next) {
            self.asked.set(None);
            self.warned.set((number, waited));
            let roots = self.chain.roots(asked);
            let (whom, seconds) = (whom(&self.names, waiting.rank(), &roots), waited.as_secs_f64());
            tracing::warn!(target: "weft::fault", rank = self.rank as usize, "call #{number} has waited {seconds:.1} s for {whom}");
        }
    }

    /// A wait is over that may have been noted, and what was awaited came.
    fn over(&self) {
        if self.noted.take().is_some() {
            self.chain.note(None);
        }
        self.asked.set(None);
    }
}

/// Names the ranks that a call waits for in the end, and the rank between if it waits for that one itself.
pub(crate) fn whom(names: &[String], direct: Option<u32>, roots: &[u32]) -> String {
    let name = |rank: &u32| names.get(*rank as usize).map_or("an unknown rank", String::as_str);
    match (direct, roots) {
        (Some(direct), _) if mutant!("blame-stops-at-the-next") => name(&direct).to_owned(),
        (None, []) => "other ranks".to_owned(),
        (Some(direct), roots) if roots.is_empty() || roots.contains(&direct) => name(&direct).to_owned(),
        (direct, roots) => {
            let names = roots.iter().map(name).collect::<Vec<_>>().join(" and ");
            let between = direct.map_or(String::new(), |rank| format!(", for whom rank {rank} waits"));
            format!("{names}{between}")
        }
    }
}

/// With so many looks beyond spinning a wait is noted. Where ranks share cores and do not spin, most are over before.
const NOTED_LOOKS: u32 = 4;

/// A wait that is noted in the recorder once it takes long.
pub(crate) struct Noted<'a> {
    shared: &'a Shared,
    call: u32,
    step: Option<(u32, u32)>,
    waiting: Cell<Waiting>,
    looks: Cell<u32>,
    began_ns: Cell<u64>,
}

impl<'a> Noted<'a> {
    /// A wait in a call, at a lane's step, for something.
    pub(crate) fn new(shared: &'a Shared, call: u32, step: Option<(u32, u32)>, waiting: Waiting) -> Self {
        Self { shared, call, step, waiting: Cell::new(waiting), looks: Cell::new(0), began_ns: Cell::new(0) }
    }

    /// It is this that is waited for just now, of several things.
    pub(crate) fn is_for(&self, waiting: Waiting) {
        self.waiting.set(waiting);
    }

    /// Whether it has taken so long that it should be known what it is for.
    pub(crate) fn is_long(&self) -> bool {
        self.looks.get().is_multiple_of(NOTED_LOOKS / 2) && self.looks.get() > 0
    }

    /// To be called at every look beyond spinning.
    #[cold]
    pub(crate) fn again(&self, waited: Duration) {
        self.shared.crier.warn(self.call, waited, &self.waiting.get());
        self.looks.set(self.looks.get().saturating_add(1));
        if self.looks.get() == NOTED_LOOKS {
            let began = self.shared.recorder.wait_begins(self.call, self.step, self.waiting.get());
            self.began_ns.set(began);
        }
    }

    /// The wait is over, and what was awaited came or did not.
    #[inline]
    pub(crate) fn over(&self, came: bool) {
        if self.looks.get() >= NOTED_LOOKS {
            if came {
                self.shared.crier.over();
            }
            self.shared.recorder.wait_ends(self.began_ns.get(), self.looks.get(), came);
        }
    }
}
