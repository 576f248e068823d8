//! The communicator: one rank's end of a group that runs collectives.

// Hands the caller's buffers to the engine, which takes addresses.
#![allow(unsafe_code)]

mod abort;
mod check;
mod collectives;
mod cores;
mod counts;
mod current;
mod diagnose;
mod ended;
mod fail;
mod group;
mod load;
mod mail;
mod multiplied;
mod open;
mod regroup;
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

use weftlink_bootstrap::{Bootstrap, BootstrapError, Failure, Reason, is_on_purpose};
use weftlink_kernels::Finish;
use weftlink_plan::collective::Promise;
use weftlink_plan::{Algorithm, Collective, Cut, DataType, Order, Reduction, Verified};
use weftlink_recorder::header::{BARRIER, Header, What, kind};
use weftlink_recorder::recorder::{Counters, FlightRecorder};
use weftlink_recorder::waiting::Waiting;
use weftlink_shm::memory::SharedMemory;
use weftlink_shm::wait::{Stop, Waiter};

use check::{Caller, Fitted, arithmetic, fit};
use current::Current;
pub(crate) use ended::Ender;
pub use group::Group;
pub use open::{Open, SIGNALS};
pub use start::{Options, on_threads};
use trace::{Recorder, Stopwatch};
pub use trace::{Taken, TimedStep};

use crate::buffers::{Buffers, ORDINARY};
use crate::choose::{self, Choice, Key, Table};
use crate::compile::{Lengths, Unfit};
use crate::data::Elements;
use crate::engine::{Engine, Ports, Silent, Stopped, Tracer};
use crate::error::Error;
use crate::failure::{Unfinished, code_of, reached, windows_of};
use crate::known::Known;
use crate::operation::{Arithmetic, Detail, Operation};
use crate::shared::{Call, Shared, numbered};
use crate::symmetric::Reached;
use crate::symmetric::{Symmetric, TakenBack, Using};

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
                let (ordinary, symmetric) = self.choose(request, &fitted, &header)?;
                if request.buffers.is_symmetric() { symmetric } else { ordinary }
            }
        };
        Ok(Arc::clone(&self.engines[engine].plan))
    }

    /// Loads a verified plan. All ranks load the same plans in the same order; loading allocates shared memory, and a plan
    /// that is there already is not loaded again.
    pub fn load(&mut self, plan: impl Into<Arc<Verified>>) -> Result<PlanId, Error> {
        let plan = plan.into();
        self.usable()?;
        if plan.ranks as usize != self.size {
            let (name, ranks, size) = (&plan.name, plan.ranks, self.size);
            let what = format!("the plan {name:?} is for {ranks} ranks, but this communicator has {size}");
            return Err(Error::Misuse(what));
        }
        if !plan.groups.is_empty() {
            let name = &plan.name;
            return Err(Error::Misuse(format!(
                "the plan {name:?} needs a switch that computes, and ranks on CPUs have none; \
                 `Plan::without_switches` does the same without"
            )));
        }
        if !choose::carries(&plan, &self.hosts) {
            let name = &plan.name;
            return Err(Error::Misuse(format!(
                "the plan {name:?} does more between hosts than send and receive; ring, tree and hierarchical plans do not"
            )));
        }
        let header = Header::allocating(What::Load, plan.hash(), 0, (None, 1));
        let index = self.load_under(header, plan)?;
        Ok(PlanId { index, owner: self.identity })
    }

    /// The plan of a built-in algorithm for a collective of this number of ranks, loaded when it is first needed.
    pub fn built_in(&mut self, algorithm: Algorithm, collective: &Collective) -> Result<PlanId, Error> {
        let choice = Choice { algorithm, packets: false };
        self.load(choose::proved(choice, collective, &self.hosts)?)
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

    fn caller(&self) -> Caller {
        Caller { rank: self.rank as u32, size: self.size as u32, identity: self.identity }
    }

    fn header(&self, request: &Request<'_>, fitted: &Fitted) -> Header {
        let Request { collective, buffers, operation, plan, .. } = request;
        let plan = plan.map_or(0, |plan| self.engines.get(plan.index).map_or(0, |engine| engine.plan.hash()));
        let (elements, count) = announced(request, fitted);
        Header {
            what: What::Collective(kind(collective)),
            plan,
            count: count as u64,
            uneven: fitted.shape.uneven.is_some(),
            aliasing: buffers.aliasing,
            reduction: operation.map(|operation| operation.reduction),
            deterministic: operation.is_some() && self.options.deterministic,
            data_type: elements.data_type,
            element_bytes: elements.code(),
            root: collective.root().unwrap_or(0),
            detail: detail(collective, fitted.shape.uneven.as_deref()) ^ u64::from(request.tag),
            input: fitted.input_location,
            output: fitted.output_location,
        }
    }

    #[inline]
    fn perform(&mut self, request: Request<'_>, tracer: &mut impl Tracer) -> Result<(), Error> {
        self.usable()?;
        if let Some(Operation { detail: Detail::Factor { .. }, .. }) = request.operation {
            return self.perform_multiplied(request, tracer);
        }
        if self.spans_hosts && *request.collective == Collective::Barrier {
            return self.barrier_across(request.tag);
        }
        let longest = match request.counts {
            Some(_) => {
                // What is wrong with this rank's call alone is found before anything is sent.
                self.check(&request)?;
                Some(self.compare_counts(&request)?)
            }
            None => None,
        };
        let arithmetic = match self.current.again(&request) {
            Some(arithmetic) => arithmetic,
            None => self.prepare(&request)?,
        };
        let (number, signature) = self.enter(&request)?;
        let Current { fitted, header, engines, packets, hash, is_new, finishes, finishing, .. } =
            &mut self.current;
        let (input, output, hash) = (fitted.input, fitted.output, *hash);
        let collective = request.collective;
        let call =
            Call { header, signature, hash, number, collective, arithmetic: &arithmetic, input, output };
        let is_in_windows = request.buffers.owner != ORDINARY;
        if let Some(index) = *packets
            && !is_in_windows
        {
            // Nobody else reaches the buffers, and nothing of the caller's is called.
            let engine = &mut self.engines[index];
            // SAFETY: as below, of a call that was made like this before.
            let ran = unsafe { engine.run(&mut self.ports, &self.shared, &call, tracer) };
            if ran.is_ok() {
                if *finishes {
                    finish(collective, fitted, finishing, (self.rank, self.size));
                }
                self.shared.recorder.end();
            }
            return ran.map_err(|stopped| self.fail_current(&request, &stopped, [None; 2]));
        }
        let (mut index, symmetric) = *engines;
        let is_symmetric = index != symmetric && header.is_symmetric();
        if let Some(longest) = longest {
            fitted.shape.count = longest;
        }
        if *is_new || is_symmetric || longest.is_some() {
            match meet(&self.shared, &call) {
                Ok(all) if is_symmetric && all => {
                    index = symmetric;
                    self.shared.recorder.is_symmetric();
                }
                Ok(_) => {}
                Err(stopped) => {
                    let reached = self.reached_by_any();
                    return Err(self.fail_current(&request, &stopped, reached));
                }
            }
            if std::mem::take(is_new) {
                self.known.add(header, hash);
            }
        }
        let engine = &mut self.engines[index];
        if let Err(unfit) = engine.prepare(&fitted.shape, &self.ports) {
            return Err(self.unfit(index, unfit));
        }
        let reached = reached(engine, header);
        let unfinished = Unfinished {
            rank: self.rank,
            identity: self.identity,
            shared: &self.shared,
            windows: &self.windows,
            reached,
            bootstrap: &mut self.bootstrap,
            failed: &mut self.failed,
        };
        let mut run = || {
            // SAFETY: the buffers are borrowed for the call and hold this rank's blocks, as `fit` checked; a pair of borrows
            // cannot overlap, and the plan claims their aliasing, as checked. If the call does not end well, peers may still
            // use them when the borrow is over; those that peers can reach are taken back before, here or by `unfinished`. Those that
            // they read through the kernel need not be: the abort word is set before, and readers look at it after they have read.
            unsafe { engine.run(&mut self.ports, &self.shared, &call, tracer) }?;
            if *finishes {
                finish(collective, fitted, finishing, (self.rank, self.size));
            }
            Ok(())
        };
        let ran = match is_in_windows {
            false => run(),
            true => Using::windows(&self.windows, windows_of(header), &self.shared.waiter, run)
                .unwrap_or_else(|TakenBack| Err(taken_back(&self.shared, self.rank))),
        };
        std::mem::forget(unfinished);
        // Where ranks have to find out about each other first, they do so every time.
        let is_plain = ran.is_ok() && !is_symmetric && engine.is_of_packets();
        self.current.packets = is_plain.then_some(index);
        if ran.is_ok() {
            self.shared.recorder.end_timed();
        }
        ran.map_err(|stopped| self.fail_current(&request, &stopped, reached))
    }

    /// A barrier of ranks on several hosts, which see no counters of each other: whoever has what all gave knows that all came.
    #[cold]
    fn barrier_across(&mut self, tag: u32) -> Result<(), Error> {
        let mut nothing = [0_u8];
        let call = Request::new(&Collective::AllReduce, &mut nothing[..]).with(Reduction::Maximum);
        self.perform(Request { tag: BARRIER | tag, ..call }, &mut Silent)
    }

    /// Announces a call, and gives its number and signature.
    #[inline]
    fn enter(&mut self, request: &Request<'_>) -> Result<(u32, u32), Error> {
        self.calls = self.calls.wrapping_add(1);
        let number = self.calls;
        self.shared.recorder.begin(number);
        if let Err((stop, rank)) = self.shared.look_back(number) {
            let stopped = Stopped { stop, step: None, waiting: Waiting::Entered { rank } };
            return Err(self.fail_current(request, &stopped, [None; 2]));
        }
        let Current { words, signature, .. } = &self.current;
        let signature = numbered(*signature, number);
        self.shared.announce(self.rank, number, signature, words);
        // A communicator that another rank has given up must not look fine to one that comes late.
        if let Some(code) = self.shared.waiter.aborted() {
            let stopped = Stopped {
                stop: Stop::Aborted { code, waited: Duration::ZERO },
                step: None,
                waiting: Waiting::Anything,
            };
            let reached = self.reached_by_any();
            return Err(self.fail_current(request, &stopped, reached));
        }
        Ok((number, signature))
    }

    /// What peers may reach of a call that has been announced, whichever of its plans they run.
    #[cold]
    fn reached_by_any(&self) -> Reached {
        let (ordinary, symmetric) = self.current.engines;
        let reached = |index: usize| reached(&self.engines[index], &self.current.header);
        let ([input, output], [other_input, other_output]) = (reached(ordinary), reached(symmetric));
        [input.or(other_input), output.or(other_output)]
    }

    /// Finds out all about a call that is not the same as before.
    #[inline(never)]
    fn prepare<'a>(&mut self, request: &Request<'a>) -> Result<Arithmetic<'a>, Error> {
        let (fitted, arithmetic, plan) = self.check(request)?;
        let header = self.header(request, &fitted);
        let engines = match plan {
            Some(index) => (index, index),
            None => self.choose(request, &fitted, &header)?,
        };
        let finishing = self.finishing(request, fitted.elements.data_type);
        let Buffers { input_length, output_length, elements, .. } = request.buffers;
        let bytes = input_length.max(output_length) as u64 * elements.bytes as u64;
        self.shared.recorder.describe(self.calls.wrapping_add(1), &header, bytes, Some(engines));
        self.current = Current::new(request, fitted, &arithmetic, header, engines, finishing);
        self.current.compare_with(&self.known);
        if tracing::enabled!(target: "weft::call", tracing::Level::TRACE) {
            self.trace_current();
        }
        Ok(arithmetic)
    }

    /// Checks what concerns this rank alone: its buffers, the operation, and the plan that it names.
    fn check<'a>(&self, request: &Request<'a>) -> Result<(Fitted, Arithmetic<'a>, Option<usize>), Error> {
        let fitted = fit(request, self.caller())?;
        let arithmetic = arithmetic(request.operation.as_ref(), fitted.elements, &self.shared.kernels)?;
        if request.collective.reduces() != request.operation.is_some() {
            return Err(operation_misuse(request));
        }
        let plan = request.plan.map(|plan| self.index(plan)).transpose()?;
        if let Some(index) = plan {
            check_plan(&self.engines[index], request, self.readable, self.order(request))?;
        }
        Ok((fitted, arithmetic, plan))
    }

    /// Tells of the call that is about to be made. While calls are told none is taken for the same again, so that none is
    /// passed over.
    #[cold]
    fn trace_current(&mut self) {
        self.current.forget();
        let Current { header, engines, .. } = &self.current;
        let name = |index: usize| &self.engines[index].plan.name;
        let (number, ordinary, symmetric) = (self.calls.wrapping_add(1), name(engines.0), name(engines.1));
        if engines.0 == engines.1 {
            tracing::trace!(target: "weft::call", rank = self.rank, "#{number}: {header}, by {ordinary}");
        } else {
            tracing::trace!(target: "weft::call", rank = self.rank,
                "#{number}: {header}, by {ordinary}, or {symmetric} if all is symmetric"
            );
        }
    }

    /// Gives up the call that is being made.
    #[cold]
    fn fail_current(&mut self, request: &Request<'_>, stopped: &Stopped, reached: Reached) -> Error {
        let header = self.current.header;
        self.fail(&Call::without_buffers(&header, self.calls, request.collective), stopped, reached)
    }

    /// What will be left to do with the result of a call.
    fn finishing(&self, request: &Request<'_>, data_type: Option<DataType>) -> [Option<Finish>; 2] {
        let (Some(operation), Some(data_type)) = (request.operation, data_type) else { return [None; 2] };
        let (kernels, reduction) = (&self.shared.kernels, operation.reduction);
        let settle = if self.options.deterministic { kernels.settle(data_type, reduction) } else { None };
        [kernels.finish(data_type, reduction), settle]
    }

    #[cold]
    fn unfit(&mut self, index: usize, unfit: Unfit) -> Error {
        let (name, rank) = (&self.engines[index].plan.name, self.rank as u32);
        let what = match unfit {
            Unfit::Element => format!("an element does not fit into a message of the plan {name:?}"),
            Unfit::Length => {
                format!("the plan {name:?} moves blocks through ranks that do not know their lengths")
            }
        };
        let (mine, _) = self.set_abort_word(Reason::Unfit);
        let error = Error::Unfit { call: self.calls, rank, what };
        // Peers have heard of the call, and their plan may fit.
        let reached = self.reached_by_any();
        self.abort(&error, mine, reached);
        error
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

    /// Allocates memory with all ranks, as a call of its own. Ranks that make another call are told of each other, wherever
    /// they wait.
    fn share(&mut self, header: Header, bytes: usize) -> Result<SharedMemory, Error> {
        self.together(header, bytes, |bootstrap, purpose, deadline, ended| {
            bootstrap.share_unless_ended(purpose, bytes, deadline, ended)
        })
    }

    /// All ranks say something and hear what all say, in the same way.
    fn hear_all(&mut self, header: Header, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, Error> {
        self.together(header, 0, |bootstrap, purpose, deadline, ended| {
            bootstrap.exchange_unless_ended(purpose, mine, deadline, ended)
        })
    }

    /// Does something with all ranks, as a call of its own.
    fn together<T>(
        &mut self,
        header: Header,
        bytes: usize,
        work: impl FnOnce(&mut Bootstrap, &str, Duration, Option<Waiter<'static>>) -> Result<T, BootstrapError>,
    ) -> Result<T, Error> {
        self.calls = self.calls.wrapping_add(1);
        let number = self.calls;
        let call = Call::without_buffers(&header, number, &Collective::Barrier);
        // What was described last is no longer what the next call is.
        self.current.forget();
        self.shared.recorder.describe(number, &header, bytes as u64, None);
        self.shared.recorder.begin(number);
        if let Err((stop, rank)) = self.shared.look_back(number) {
            let stopped = Stopped { stop, step: None, waiting: Waiting::Entered { rank } };
            return Err(self.fail(&call, &stopped, [None; 2]));
        }
        self.shared.announce(self.rank, number, call.signature, &header.pack());
        // All ranks say the same, so what differs between ranks of one call is left out.
        let count = if header.uneven { 0 } else { header.count };
        let purpose = format!("weft: call #{number}, {}", Header { count, ..header });
        let ended = Some(self.shared.waiter);
        let began_ns = self.shared.recorder.wait_for_memory_begins(number);
        let shared = work(&mut self.bootstrap, &purpose, self.options.deadline, ended);
        self.shared.recorder.wait_ends(began_ns, 1, shared.is_ok());
        let shared = shared.map_err(|error| {
            let first = self.shared.waiter.abort(Reason::of(&error, self.rank as u32));
            if Reason::is(first, Reason::Mismatch) {
                self.compare(&call);
            }
            let error = match (self.mismatch(&call), Reason::is(first, Reason::Died)) {
                _ if is_on_purpose(&self.shared.waiter) => self.ended(number),
                (Some(mismatch), _) => mismatch,
                (None, true) => self.died(&call, first.rank, Duration::ZERO),
                (None, false) => self.differing(number, &purpose, error),
            };
            self.note_failure(Failure::from(&error));
            error
        })?;
        self.shared.recorder.end_timed();
        Ok(shared)
    }

    /// An error of ranks that did something together, as a call that differs if it is that. Ranks compare what they do in pairs, so the
    /// rank to show is the one of the two that does not do what this one does.
    fn differing(&self, call: u32, purpose: &str, error: BootstrapError) -> Error {
        let BootstrapError::Mismatch { one, other } = &error else { return error.into() };
        let other = match (one.purpose == purpose, other.purpose == purpose) {
            (true, false) => other,
            (false, true) => one,
            _ => return error.into(),
        };
        let described = |purpose: &str| {
            let of_call = purpose.strip_prefix(&format!("weft: call #{call}, "));
            of_call.unwrap_or(purpose.trim_start_matches("weft: ")).to_owned()
        };
        let (mine, theirs) = (described(purpose), described(&other.purpose));
        Error::Mismatch { call, rank: self.rank as u32, mine, other: other.rank as u32, theirs }
    }
}

/// Does what is left to do with the result of a call, which is this rank's alone.
#[cold]
fn finish(
    collective: &Collective,
    fitted: &Fitted,
    finishing: &[Option<Finish>],
    (rank, size): (usize, usize),
) {
    if let Some(Promise::Reduction { block, below }) = collective.promise(rank as u32, size as u32, 0) {
        let length = match &fitted.shape.uneven {
            Some(lengths) => lengths.input.get(block as usize).copied().unwrap_or(0),
            None => fitted.shape.count,
        };
        for finish in finishing.iter().flatten() {
            // SAFETY: the output holds one block of so many elements, as `fit` checked, and the call is over.
            unsafe { finish(fitted.output, length, below) };
        }
    }
}

/// Waits until all ranks of this host have entered the call, makes sure that all of them make the same one, and learns from
/// their headers whether all buffers are symmetric.
#[cold]
fn meet(shared: &Shared, call: &Call<'_>) -> Result<bool, Stopped> {
    let waited = shared.wait_for_all(call.number);
    let differs = shared.differs(call);
    if let Err((stop, rank)) = waited.and(differs.map_or(Ok(()), |stop| Err((stop, 0)))) {
        return Err(Stopped { stop, step: None, waiting: Waiting::Entered { rank } });
    }
    Ok(shared.calls(call.number).all(|header| header.is_symmetric()))
}

/// Why a call stopped whose window was taken back by a call of another communicator, which has aborted this one.
#[cold]
fn taken_back(shared: &Shared, rank: usize) -> Box<Stopped> {
    let stop = Stop::Aborted { code: code_of(shared, rank), waited: Duration::ZERO };
    Box::new(Stopped { stop, step: None, waiting: Waiting::Anything })
}

/// The type and the number of elements that a call announces: the caller's, although what is only moved is moved as bytes, so
/// that a rank does not take integers for floats.
fn announced(request: &Request<'_>, fitted: &Fitted) -> (Elements, usize) {
    let elements = request.buffers.elements;
    // A rank without messages has no type to announce; where lengths are compared, so are the types of those that have some.
    let is_open =
        fitted.shape.uneven.is_some() && matches!(request.collective, Collective::SendReceive { .. });
    // The bytes of an element must fit into a header, or counts could not be compared.
    if is_open || elements.bytes == 0 || usize::from(elements.code()) != elements.bytes {
        return (fitted.elements, fitted.shape.count);
    }
    (elements, fitted.shape.count * fitted.elements.bytes / elements.bytes)
}

/// Whether a plan of the caller's choice can be run on its buffers.
#[inline]
fn check_plan(engine: &Engine, request: &Request<'_>, readable: bool, order: Order) -> Result<(), Error> {
    let buffers = &request.buffers;
    let reachable =
        buffers.is_symmetric() || !engine.reaches_users() || readable && !engine.writes_to_peers();
    let claimed = engine.claims(buffers.aliasing) || request.collective.root().is_some();
    let right = engine.plan.collective == *request.collective;
    let even = request.counts.is_none() || engine.plan.uneven;
    let ordered = engine.plan.order() >= order;
    if claimed && reachable && right && even && ordered {
        return Ok(());
    }
    let (name, collective) = (&engine.plan.name, &engine.plan.collective);
    Err(Error::Misuse(if !right {
        format!("the plan {name:?} computes {collective}, not {}", request.collective)
    } else if !reachable {
        format!("the plan {name:?} reaches into peers' buffers: pass windows (symmetric memory)")
    } else if !even {
        format!("the plan {name:?} is not proved for blocks of different lengths")
    } else if !ordered {
        let why = if order == Order::Ranks { "the operation does not commute" } else { DETERMINISTIC };
        format!("the plan {name:?} {}, and {why}", choose::out_of_order(order))
    } else {
        format!("the plan {name:?} is not proved for buffers that are passed {}", buffers.aliasing)
    }))
}

/// Why a plan is refused whose results are right, and what to do.
const DETERMINISTIC: &str = "this communicator is deterministic: its bits would be others than those of other plans; \
                             let it choose, or name a plan that combines all ranks in one step";

#[cold]
fn operation_misuse(request: &Request<'_>) -> Error {
    let collective = request.collective;
    Error::Misuse(match request.operation {
        Some(_) => format!("a {collective} combines nothing, so it takes no operation"),
        None => format!("a {collective} needs an operation"),
    })
}

/// What else a collective is about, beside its kind and root, in 63 bits. Lengths of blocks count where all ranks know all of
/// them.
fn detail(collective: &Collective, uneven: Option<&Lengths>) -> u64 {
    match (collective, uneven) {
        (Collective::AllGather, Some(uneven)) => hashed(uneven.output.iter().map(|&length| length as u64)),
        (Collective::ReduceScatter, Some(uneven)) => hashed(uneven.input.iter().map(|&length| length as u64)),
        (Collective::SendReceive { messages }, _) => {
            hashed(messages.iter().map(|&(from, to)| u64::from(from) << 32 | u64::from(to)))
        }
        (Collective::Neighbours { torus }, _) => hashed(torus.iter().copied().map(u64::from)),
        _ => 0,
    }
}

fn hashed(words: impl Iterator<Item = u64>) -> u64 {
    let mix = |hash: u64, word: u64| {
        let mixed = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    };
    let hash = words.fold(0xcbf2_9ce4_8422_2325, mix);
    (hash ^ hash >> 32) >> 1
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
