//! The communicator: one rank's end of a group that runs collectives.

mod abort;
mod abort_handle;
mod announce;
mod check;
mod choose;
mod collectives;
mod cores;
mod counts;
mod current;
mod diagnose;
mod endpoint;
mod fail;
mod finish;
mod group;
mod load;
mod open;
mod perform;
mod premultiply;
mod regroup;
mod run;
mod setup_call;
mod start;
#[cfg(test)]
mod tests;
mod trace;
mod windows;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use weftlink_bootstrap::{BlameKind, Bootstrap, Failure};
use weftlink_plan::{Cut, Verified};
use weftlink_recorder::recorder::{Counters, FlightRecorder};
use weftlink_shm::memory::SharedMemory;

pub(crate) use abort_handle::AbortHandle;
use check::fit;
use current::Current;
pub use group::Group;
pub use open::{Open, SIGNALS};
pub use start::{Options, on_threads};
use trace::{Recorder, Stopwatch};
pub use trace::{TimedStep, TracedStep};

use crate::buffers::Buffers;
use crate::choose::{Key, Table};
use crate::engine::{Engine, Ports, Silent, Tracer};
use crate::error::Error;
use crate::identities::Identities;
use crate::operation::Operation;
use crate::request::{CallArgs, Counts, PlanId, Request};
use crate::shared::Shared;
use crate::signatures::SignatureTable;
use crate::symmetric::Symmetric;

/// One rank's end of a group. All ranks make the same calls in the same order; a call that differs is an error on
/// every rank it concerns.
pub struct Communicator {
    rank: usize,
    size: usize,
    options: Options,
    /// Distinguishes this communicator's windows from others'.
    identity: u64,
    /// The process that made it. A forked process has another.
    pid: u32,
    calls: u32,
    failed: Option<Failure>,
    engines: Vec<Engine>,
    ports: Ports,
    /// The host of each rank, and whether there are several.
    hosts: Vec<u32>,
    spans_hosts: bool,
    table: Table,
    /// Whether single-copy reads of peers' memory are allowed and fast.
    readable: bool,
    /// Cores that this rank has for itself.
    own_cores: usize,
    /// The engine for each kind of call so far.
    chosen: Vec<(Key, usize)>,
    current: Current,
    /// The calls that ranks have compared whole.
    signatures: SignatureTable,
    shared: Shared,
    windows: Vec<Arc<Symmetric>>,
    bootstrap: Bootstrap,
    /// Scratch for the inputs of pre-multiplied sums.
    multiplied: Vec<u8>,
    signals: Option<Box<open::Signals>>,
    /// Opened by the first group.
    messages: Option<group::Messages>,
    /// Unmapped last: headers and flags point into it.
    control: Arc<SharedMemory>,
}

impl Communicator {
    /// This rank.
    #[inline]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How it behaves.
    pub fn options(&self) -> Options {
        self.options
    }

    /// The number of ranks.
    #[inline]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Makes a call, and waits until it is over.
    #[inline(always)]
    pub fn run<'a>(&mut self, request: Request<'a, impl Into<Buffers<'a>>>) -> Result<(), Error> {
        self.run_with(request.erased(), &mut Silent)
    }

    /// Makes a call and records the steps of this rank, each with a ticket from a counter that all ranks share: the order of all steps of a
    /// job.
    pub fn run_traced<'a>(
        &mut self,
        request: Request<'a, impl Into<Buffers<'a>>>,
        tickets: &AtomicU64,
    ) -> Result<Vec<TracedStep>, Error> {
        let mut recorder = Recorder { tickets, steps: Vec::new() };
        self.run_with(request.erased(), &mut recorder)?;
        Ok(recorder.steps)
    }

    /// Makes a call and records when each step of this rank began to wait, started and ended. This is slower: reading the clock takes
    /// longer than some steps.
    pub fn run_timed<'a>(
        &mut self,
        request: Request<'a, impl Into<Buffers<'a>>>,
    ) -> Result<Vec<TimedStep>, Error> {
        let mut stopwatch = Stopwatch::new();
        self.run_with(request.erased(), &mut stopwatch)?;
        Ok(stopwatch.steps)
    }

    /// Taken apart, the fields of a request that is built in place stay in registers, and those without a value cost nothing.
    #[inline(always)]
    fn run_with(&mut self, request: Request<'_>, tracer: &mut impl Tracer) -> Result<(), Error> {
        let Request { collective, buffers, operation, counts, count, plan, deadline, yields_core } = request;
        let args = CallArgs {
            collective: &collective,
            buffers,
            operation: operation.as_ref().map(Operation::borrow),
            counts: counts.as_ref().map(Counts::borrow),
            count,
            plan,
            tag: 0,
        };
        match (deadline, yields_core) {
            (None, false) => self.perform(args, tracer),
            _ => self.waiting_as(deadline, yields_core, |comm| comm.perform(args, tracer)),
        }
    }

    /// Makes a call whose arguments are borrowed.
    #[inline]
    pub(crate) fn call(&mut self, args: CallArgs<'_>) -> Result<(), Error> {
        self.perform(args, &mut Silent)
    }

    /// Makes a call with a deadline of its own.
    pub(crate) fn call_within(
        &mut self,
        args: CallArgs<'_>,
        deadline: Option<Duration>,
    ) -> Result<(), Error> {
        match deadline {
            None => self.call(args),
            Some(_) => self.waiting_as(deadline, false, |comm| comm.call(args)),
        }
    }

    /// The plan that [`Communicator::run`] would use for a call if all ranks pass the same kind of memory. All ranks ask for the
    /// same call.
    pub fn plan_of<'a>(
        &mut self,
        request: Request<'a, impl Into<Buffers<'a>>>,
    ) -> Result<Arc<Verified>, Error> {
        let mut request = request.erased();
        let args = request.args();
        let fitted = fit(&args, self.caller())?;
        let header = self.header(&args, &fitted);
        let engine = match args.plan {
            Some(plan) => self.index(plan)?,
            None => {
                let (ordinary, symmetric) = self.engines_for(&args, &fitted, &header)?;
                if args.buffers.is_symmetric() { symmetric } else { ordinary }
            }
        };
        Ok(Arc::clone(&self.engines[engine].plan))
    }

    /// How a plan cuts a block of `count` elements, which determines the order in which they are combined. `None` if not even one element
    /// fits into a message of the plan.
    pub fn cut(&self, plan: PlanId, count: usize, element_bytes: usize) -> Result<Option<Cut>, Error> {
        Ok(self.engines[self.index(plan)?].cut(count, element_bytes))
    }

    /// Whether its ranks are on several hosts.
    pub fn spans_hosts(&self) -> bool {
        self.spans_hosts
    }

    /// Whether the kernel reads peers' ordinary memory where that is faster.
    pub fn reads_peers(&self) -> bool {
        self.readable
    }

    /// The flight recorder: the last calls, the current wait, counters. Any thread may read it, also while a call is stuck.
    pub fn flight_recorder(&self) -> FlightRecorder {
        self.shared.recorder.reader()
    }

    /// The counters of this communicator.
    pub fn counters(&self) -> Counters {
        self.flight_recorder().counters()
    }

    /// Writes the flight recorder's record into a folder, for `weft why`, and returns its path.
    pub fn dump(&self, folder: &Path) -> io::Result<PathBuf> {
        self.flight_recorder().dump(folder)
    }

    /// Where each rank runs, to report it beside an error.
    pub fn identities(&self) -> Identities {
        (0..self.size as u32).map(|rank| self.bootstrap.blame(rank, BlameKind::Failed)).collect()
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
        // A forked process has the same memory and is not this rank.
        if self.pid != std::process::id() {
            return;
        }
        // A panic between calls is recorded here.
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
        // Sends what its groups believe sent, while this rank counts as present.
        self.messages = None;
        // Ranks that wait for this one poll this line; none sleeps on it, so none has to be woken.
        let _ = self.shared.departures[self.rank].publish(1, 0);
        self.bootstrap.calls = self.calls;
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator(rank {} of {}, {} calls)", self.rank, self.size, self.calls)
    }
}
