//! The communicator: one rank's end of a group that runs collectives.

mod abort;
mod announce;
mod check;
mod choose;
mod collectives;
mod cores;
mod counts;
mod current;
mod diagnose;
mod ended;
mod endpoint;
mod fail;
mod finish;
mod group;
mod identities;
mod load;
mod multiplied;
mod open;
mod perform;
mod regroup;
mod run;
mod start;
#[cfg(test)]
mod tests;
mod together;
mod trace;
mod windows;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use weftlink_bootstrap::{Bootstrap, Failure};
use weftlink_plan::{Collective, Cut, Verified};
use weftlink_recorder::recorder::{Counters, FlightRecorder};
use weftlink_shm::memory::SharedMemory;

use check::fit;
use current::Current;
pub(crate) use ended::Ender;
pub use group::Group;
pub use identities::Identities;
pub use open::{Open, SIGNALS};
pub use start::{Options, on_threads};
use trace::{Recorder, Stopwatch};
pub use trace::{Taken, TimedStep};

use crate::buffers::Buffers;
use crate::choose::{Key, Table};
use crate::engine::{Engine, Ports, Silent};
use crate::error::Error;
use crate::known::Known;
use crate::operation::Operation;
use crate::shared::Shared;
use crate::symmetric::Symmetric;

/// One rank's end of a group. All ranks make the same calls in the same order; a call that differs is an error on
/// every rank it concerns.
pub struct Communicator {
    rank: usize,
    size: usize,
    options: Options,
    /// Tells this communicator's windows from others'.
    identity: u64,
    /// The process that made it, which a process that was forked is not.
    pid: u32,
    calls: u32,
    failed: Option<Failure>,
    engines: Vec<Engine>,
    ports: Ports,
    /// The host of each rank, and whether there are several.
    hosts: Vec<u32>,
    spans_hosts: bool,
    table: Table,
    /// Whether the kernel reads peers' memory for us, and fast.
    readable: bool,
    /// Cores that this rank has for itself.
    own_cores: usize,
    /// The engine for each kind of call there was.
    chosen: Vec<(Key, usize)>,
    current: Current,
    /// The calls that ranks have compared whole.
    known: Known,
    shared: Shared,
    windows: Vec<Arc<Symmetric>>,
    bootstrap: Bootstrap,
    /// Where inputs are multiplied before they are added up.
    multiplied: Vec<u8>,
    signals: Option<Box<open::Signals>>,
    /// The ways of messages for which groups have a plan.
    patterns: Vec<Vec<(u32, u32)>>,
    /// Unmapped last: headers and flags point into it.
    control: Arc<SharedMemory>,
}

/// A plan that a communicator has loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlanId {
    index: usize,
    owner: u64,
}

/// A collective call with everything that belongs to it. The methods of [`Communicator`] that are named after collectives
/// make one; this is for those who know only at run time what they call.
#[derive(Debug)]
pub struct Request<'a> {
    /// What is to be done.
    pub collective: &'a Collective,
    /// On which buffers.
    pub buffers: Buffers<'a>,
    /// With what elements are combined: for those that reduce, and only for those.
    pub operation: Option<Operation<'a>>,
    /// The lengths of this rank's blocks, in and out, in elements, if they differ.
    pub counts: Option<(&'a [usize], &'a [usize])>,
    /// The elements of a block, for ranks that have none of their own.
    pub count: Option<usize>,
    /// A plan of the caller's choice.
    pub plan: Option<PlanId>,
    /// Tells calls apart that are alike but for their purpose. 0 is none.
    #[doc(hidden)]
    pub tag: u32,
}

impl<'a> Request<'a> {
    /// A call that combines nothing, with blocks of one length.
    #[inline]
    pub fn new(collective: &'a Collective, buffers: impl Into<Buffers<'a>>) -> Self {
        Self {
            collective,
            buffers: buffers.into(),
            operation: None,
            counts: None,
            count: None,
            plan: None,
            tag: 0,
        }
    }

    /// The same, combining elements.
    #[inline]
    pub fn with(mut self, operation: impl Into<Operation<'a>>) -> Self {
        self.operation = Some(operation.into());
        self
    }

    /// The same by a plan that was loaded.
    pub fn by(mut self, plan: PlanId) -> Self {
        self.plan = Some(plan);
        self
    }
}

impl Communicator {
    /// This rank.
    #[inline]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    #[inline]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Makes a call.
    #[inline]
    pub fn run(&mut self, request: Request<'_>) -> Result<(), Error> {
        self.perform(request, &mut Silent)
    }

    /// The same, recording each step this rank takes. For tests: every step takes a ticket that all ranks share.
    pub fn run_traced(&mut self, request: Request<'_>, tickets: &AtomicU64) -> Result<Vec<Taken>, Error> {
        let mut recorder = Recorder { tickets, taken: Vec::new() };
        self.perform(request, &mut recorder)?;
        Ok(recorder.taken)
    }

    /// The same, recording when each step of this rank waited, began and was done. For people who look at it: reading the
    /// clock takes longer than some steps.
    pub fn run_timed(&mut self, request: Request<'_>) -> Result<Vec<TimedStep>, Error> {
        let mut stopwatch = Stopwatch::new();
        self.perform(request, &mut stopwatch)?;
        Ok(stopwatch.steps)
    }

    /// The plan that a call takes, as [`Communicator::run`] would find it if all ranks pass the same kind of memory. All
    /// ranks ask for the same.
    pub fn plan_of(&mut self, request: &Request<'_>) -> Result<Arc<Verified>, Error> {
        let fitted = fit(request, self.caller())?;
        let header = self.header(request, &fitted);
        let engine = match request.plan {
            Some(plan) => self.index(plan)?,
            None => {
                let (ordinary, symmetric) = self.engines_for(request, &fitted, &header)?;
                if request.buffers.is_symmetric() { symmetric } else { ordinary }
            }
        };
        Ok(Arc::clone(&self.engines[engine].plan))
    }

    /// How a plan cuts a block of so many elements: what the oracle needs to know to combine in the same order. Nothing if
    /// not even one element fits into its messages.
    pub fn cut(&self, plan: PlanId, count: usize, element_bytes: usize) -> Result<Option<Cut>, Error> {
        Ok(self.engines[self.index(plan)?].cut(count, element_bytes))
    }

    /// Whether ordinary memory is read by the kernel where that is faster.
    pub fn reads_peers(&self) -> bool {
        self.readable
    }

    /// The flight recorder: the last calls, what is waited for, counters. It may be read from any thread, also while a call
    /// is stuck.
    pub fn flight_recorder(&self) -> FlightRecorder {
        self.shared.recorder.reader()
    }

    /// What has been counted so far.
    pub fn counters(&self) -> Counters {
        self.flight_recorder().counters()
    }

    /// Writes the flight recorder's present record into a folder, for `weft why`, and tells where.
    pub fn dump(&self, folder: &Path) -> io::Result<PathBuf> {
        self.flight_recorder().dump(folder)
    }

    #[inline]
    fn usable(&self) -> Result<(), Error> {
        match &self.failed {
            None => Ok(()),
            Some(failure) => Err(Error::again(failure)),
        }
    }

    #[inline]
    fn index(&self, plan: PlanId) -> Result<usize, Error> {
        if plan.owner == self.identity {
            Ok(plan.index)
        } else {
            Err(Error::Misuse("this plan was loaded into another communicator".to_owned()))
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // A process that was forked has the same memory and is not this rank.
        if self.pid != std::process::id() {
            return;
        }
        // What ended by a panic is noted here: nobody was there to do it.
        let panicked = || {
            let why = || format!("rank {} panicked between calls", self.rank);
            std::thread::panicking().then(|| Failure::own(self.rank as u32, why()))
        };
        if !self.shared.recorder.has_failed()
            && let Some(failure) = self.failed.take().or_else(panicked)
        {
            self.note_failure(failure);
        }
        self.windows.iter().for_each(|window| window.leave(self.identity));
        // Whoever waits for this rank from now on waits in vain, and finds out by looking here. Nobody sleeps on it.
        let _ = self.shared.departures[self.rank].publish(1, 0);
        self.bootstrap.calls = self.calls;
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator(rank {} of {}, {} calls)", self.rank, self.size, self.calls)
    }
}
