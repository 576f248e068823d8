//! The communicator: one rank's end of a group that runs collectives.

// Hands the caller's buffers to the engine, which takes addresses.
#![allow(unsafe_code)]

mod check;
#[cfg(test)]
mod tests;
mod trace;

use std::panic::resume_unwind;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::param::page_size;
use weftlink_plan::{Algorithm, Collective, Cut, DataType, Reduction, Verified};

use check::{check_buffers, check_plan};
use trace::Recorder;
pub use trace::Taken;

use crate::bootstrap::Bootstrap;
use crate::choose;
use crate::counter::Counter;
use crate::engine::{Engine, Silent, Stopped, Tracer, Waiting};
use crate::error::Error;
use crate::failure::{Reached, Reason, Unfinished, reached, take_back};
use crate::header::{Header, What};
use crate::kernels::Kernels;
use crate::layout::LINE;
use crate::memory::SharedMemory;
use crate::shared::{Call, Shared, WindowPlace, lines_at};
use crate::wait::{AbortCode, Patience, Stop, Waiter};
use crate::window::{Buffers, Window};

/// How a communicator behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long a call waits for other ranks, without getting on, before it fails and names them. A call of many steps
    /// may take longer. 300 s unless set.
    pub deadline: Duration,
    /// Whether ranks that wait keep their core: right when each has one of its own. Unset: when there are enough.
    pub spin: Option<bool>,
}

impl Default for Options {
    fn default() -> Self {
        Self { deadline: Duration::from_secs(300), spin: None }
    }
}

/// One rank's end of a group. All ranks make the same calls in the same order; a call that differs is an error on
/// every rank it concerns.
pub struct Communicator {
    rank: usize,
    size: usize,
    options: Options,
    /// Tells this communicator's windows from others'.
    identity: u64,
    calls: u32,
    failed: Option<String>,
    engines: Vec<Engine>,
    /// The engine of each built-in algorithm, once it has been needed.
    built_in: [Option<PlanId>; Algorithm::ALL.len()],
    shared: Shared,
    windows: Vec<Arc<SharedMemory>>,
    bootstrap: Bootstrap,
    /// Unmapped last: headers and flags point into it.
    _control: SharedMemory,
}

/// A plan that a communicator has loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlanId {
    index: usize,
    owner: u64,
}

/// Runs `work` on so many ranks, each a thread of this process, and returns what each gave, by rank. Ranks wait for each
/// other as [`Options::default`] says; [`Communicator::threads`] takes other options.
///
/// # Panics
/// If one of them does.
pub fn on_threads<T: Send>(
    size: usize,
    work: impl Fn(Communicator) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let ranks = Communicator::threads(size, Options::default())?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(|| work(comm))).collect();
        // All are heard before the first error ends it: a rank that panicked is why the others have errors.
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        ended.into_iter().map(|end| end.unwrap_or_else(|panic| resume_unwind(panic))).collect::<Vec<_>>()
    })
    .into_iter()
    .collect()
}

impl Communicator {
    /// A group whose ranks are threads of this process: one end each, to be moved to its thread.
    pub fn threads(size: usize, options: Options) -> Result<Vec<Communicator>, Error> {
        // Meeting needs all ranks at once, so each meets on a thread of its own.
        let meet = |bootstrap| std::thread::spawn(move || Communicator::new(bootstrap, options));
        let meeting: Vec<_> = Bootstrap::threads(size).into_iter().map(meet).collect();
        meeting.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    }

    /// This rank's end of a group that has met. All ranks call it.
    pub fn new(mut bootstrap: Bootstrap, options: Options) -> Result<Communicator, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let (rank, size) = (bootstrap.rank(), bootstrap.size());
        // Neighbouring lines are fetched in pairs, so headers are kept two lines apart.
        let control = bootstrap.share("weft: headers", (2 + 2 * size) * 2 * LINE, options.deadline)?;
        let line = |position: usize| &lines_at(&control, position * 2 * LINE, 1)[0];
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = options.spin.unwrap_or(size <= cores);
        let patience =
            if spin { Patience::dedicated(options.deadline) } else { Patience::crowded(options.deadline) };
        let shared = Shared {
            headers: (0..size).map(|rank| Counter::new(line(2 + rank))).collect(),
            departures: (0..size).map(|rank| Counter::new(line(2 + size + rank))).collect(),
            waiter: Waiter::new(line(0), line(1), patience),
            windows: Vec::new(),
            sum: Kernels::detect().reduction(DataType::F32, Reduction::Sum).expect("every set has it"),
        };
        Ok(Communicator {
            rank,
            size,
            options,
            identity: NEXT.fetch_add(1, Ordering::Relaxed),
            calls: 0,
            failed: None,
            engines: Vec::new(),
            built_in: [None; Algorithm::ALL.len()],
            shared,
            windows: Vec::new(),
            bootstrap,
            _control: control,
        })
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Adds up the buffers of all ranks; every rank ends with the same bits.
    ///
    /// ```
    /// let sums = weftlink_comm::on_threads(2, |mut comm| {
    ///     let mut values = [1.0, comm.rank() as f32];
    ///     comm.all_reduce(&mut values)?;
    ///     Ok(values)
    /// })?;
    /// assert_eq!(sums, [[2.0, 1.0]; 2]);
    /// # Ok::<(), weftlink_comm::Error>(())
    /// ```
    pub fn all_reduce<'a>(&mut self, buffers: impl Into<Buffers<'a>>) -> Result<(), Error> {
        let buffers = buffers.into();
        let algorithm =
            choose::all_reduce(self.size, buffers.output_length * size_of::<f32>(), buffers.is_symmetric());
        let plan = match self.built_in[algorithm as usize] {
            Some(plan) => plan,
            None => self.load_for(algorithm, &buffers)?,
        };
        self.call(plan, buffers, &mut Silent)
    }

    /// The same with a plan of the caller's choice.
    pub fn all_reduce_with<'a>(
        &mut self,
        plan: PlanId,
        buffers: impl Into<Buffers<'a>>,
    ) -> Result<(), Error> {
        self.call(plan, buffers.into(), &mut Silent)
    }

    /// The same, recording each step this rank takes. For tests: every step takes a ticket that all ranks share.
    pub fn all_reduce_traced<'a>(
        &mut self,
        plan: PlanId,
        buffers: impl Into<Buffers<'a>>,
        tickets: &AtomicU64,
    ) -> Result<Vec<Taken>, Error> {
        let mut recorder = Recorder { tickets, taken: Vec::new() };
        self.call(plan, buffers.into(), &mut recorder)?;
        Ok(recorder.taken)
    }

    /// The algorithm that [`Communicator::all_reduce`] takes for so many bytes.
    pub fn choice(&self, bytes: usize, symmetric: bool) -> Algorithm {
        choose::all_reduce(self.size, bytes, symmetric)
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
        if plan.collective != Collective::AllReduce {
            let (name, collective) = (&plan.name, &plan.collective);
            return Err(Error::Misuse(format!(
                "the plan {name:?} computes {collective}; only all-reduce runs so far"
            )));
        }
        if !plan.groups.is_empty() {
            let name = &plan.name;
            return Err(Error::Misuse(format!(
                "the plan {name:?} needs a switch that computes, and ranks on CPUs have none; \
                 `Plan::without_switches` does the same without"
            )));
        }
        self.load_under(Header::allocating(What::Load, plan.hash(), 0), plan)
    }

    /// The plan of a built-in algorithm for this number of ranks, loaded when it is first needed.
    pub fn built_in(&mut self, algorithm: Algorithm) -> Result<PlanId, Error> {
        match self.built_in[algorithm as usize] {
            Some(plan) => Ok(plan),
            None => {
                let plan = self.load(choose::proved(algorithm, self.size as u32)?)?;
                self.built_in[algorithm as usize] = Some(plan);
                Ok(plan)
            }
        }
    }

    /// Allocates symmetric memory of so many elements per rank. All ranks call it with the same length.
    pub fn window(&mut self, length: usize) -> Result<Window, Error> {
        self.usable()?;
        let too_long = || Error::Misuse(format!("a window of {length} elements per rank is too large"));
        let stride = length
            .checked_mul(size_of::<f32>())
            .and_then(|bytes| bytes.checked_next_multiple_of(page_size()));
        let total = stride.and_then(|stride| stride.checked_mul(self.size)).ok_or_else(too_long)?;
        let stride = total / self.size;
        let number = u16::try_from(self.windows.len())
            .map_err(|_| Error::Misuse("a communicator has at most 65536 windows".to_owned()))?;
        let memory = Arc::new(self.share(Header::allocating(What::Window, 0, length), total)?);
        self.shared.windows.push(WindowPlace { base: memory.as_ptr(), stride });
        self.windows.push(Arc::clone(&memory));
        Ok(Window::new(memory, self.rank, stride, length, number, self.identity))
    }

    /// How a plan cuts a buffer of so many elements: what the oracle needs to know to add in the same order.
    pub fn cut(&self, plan: PlanId, count: usize) -> Result<Cut, Error> {
        Ok(self.engines[self.index(plan)?].cut(count))
    }

    /// Loads what a call needs, under the call's own header, so that ranks that make another one see it.
    #[cold]
    fn load_for(&mut self, algorithm: Algorithm, buffers: &Buffers<'_>) -> Result<PlanId, Error> {
        // Loading waits for the others, so a call that cannot be made must not come so far.
        self.usable()?;
        check_buffers(buffers, self.identity)?;
        let plan = choose::proved(algorithm, self.size as u32)?;
        let plan = self.load_under(buffers.header(&plan), plan)?;
        self.built_in[algorithm as usize] = Some(plan);
        Ok(plan)
    }

    /// Loads a plan, unless it is there: two engines of one plan would have FIFOs of their own, and ranks that use
    /// different ones would never meet. All ranks load the same plans in the same order, so all find it.
    fn load_under(&mut self, header: Header, plan: Arc<Verified>) -> Result<PlanId, Error> {
        let owner = self.identity;
        if let Some(index) = self.engines.iter().position(|engine| engine.plan == plan) {
            return Ok(PlanId { index, owner });
        }
        let memory = self.share(header, Engine::bytes(&plan))?;
        self.engines.push(Engine::new(plan, self.rank as u32, memory));
        Ok(PlanId { index: self.engines.len() - 1, owner })
    }

    #[inline]
    fn call(&mut self, plan: PlanId, buffers: Buffers<'_>, tracer: &mut impl Tracer) -> Result<(), Error> {
        self.usable()?;
        let index = self.index(plan)?;
        let engine = &mut self.engines[index];
        check_buffers(&buffers, self.identity)?;
        check_plan(engine, &buffers)?;
        let header = buffers.header(&engine.plan);
        let signature = header.signature();
        self.calls = self.calls.wrapping_add(1);
        let number = self.calls;
        let call = Call { header, signature, number, input: buffers.input, output: buffers.output };
        self.shared.announce(self.rank, &call);
        let reached = reached(engine, &call.header);
        // A communicator that another rank has given up must not look fine to one that comes late.
        if let Some(code) = self.shared.waiter.aborted() {
            let stop = Stop::Aborted { code };
            return Err(self.fail(&call, &Stopped { stop, step: None, waiting: Waiting::Anything }, reached));
        }
        let unfinished = Unfinished {
            rank: self.rank,
            shared: &self.shared,
            windows: &self.windows,
            reached,
            bootstrap: &mut self.bootstrap,
            failed: &mut self.failed,
        };
        // SAFETY: the buffers are borrowed for the call and have `count` elements each, as checked; a pair of borrows
        // cannot overlap, and the plan claims their aliasing, as checked. If the call does not end well, peers may still
        // use them when the borrow is over; those that peers can reach are taken back before, here or by `unfinished`.
        let ran = unsafe { engine.run(&self.shared, &call, tracer) };
        std::mem::forget(unfinished);
        match ran {
            Ok(()) => Ok(()),
            Err(stopped) => Err(self.fail(&call, &stopped, reached)),
        }
    }

    #[inline]
    fn usable(&self) -> Result<(), Error> {
        match &self.failed {
            None => Ok(()),
            Some(why) => Err(Error::Failed(why.clone())),
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
        self.calls = self.calls.wrapping_add(1);
        let number = self.calls;
        let call = Call { header, signature: header.signature(), number, input: null(), output: null_mut() };
        self.shared.announce(self.rank, &call);
        let purpose = format!("weft: call #{number}, {header}");
        self.bootstrap.share(&purpose, bytes, self.options.deadline).map_err(|error| {
            let (rank, reason) = (self.rank as u32, Reason::Memory.code());
            self.shared.waiter.abort(AbortCode { rank, reason });
            let error = self.mismatch(&call).unwrap_or(error.into());
            self.failed = Some(error.to_string());
            error
        })
    }

    /// The error that shows another rank's call of the same number, if it differs.
    fn mismatch(&self, call: &Call) -> Option<Error> {
        let (other, theirs) = self.shared.other_call(call)?;
        let (number, rank) = (call.number, self.rank as u32);
        let (mine, theirs) = (call.header.to_string(), theirs.to_string());
        Some(Error::Mismatch { call: number, rank, mine, other, theirs })
    }

    /// Gives up for all ranks, and tells why.
    #[cold]
    fn fail(&mut self, call: &Call, stopped: &Stopped, reached: Reached) -> Error {
        let rank = self.rank as u32;
        let reason = match stopped.stop {
            Stop::Mismatch { .. } => Reason::Mismatch,
            Stop::Left { .. } => Reason::Left,
            Stop::Deadline { .. } | Stop::Aborted { .. } => Reason::Deadline,
        };
        let first = self.shared.waiter.abort(AbortCode { rank, reason: reason.code() });
        let step = match stopped.step {
            Some((lane, ordinal)) => format!("lane {lane}, step {ordinal}"),
            None => "no lane could go on".to_owned(),
        };
        let name = |rank: u32| format!("rank {rank} (pid {})", self.bootstrap.pids()[rank as usize]);
        let what = match stopped.waiting {
            Waiting::Entered { rank } => format!("{} to make the call", name(rank)),
            Waiting::Reached { rank, counter } => format!("{} to signal counter {counter}", name(rank)),
            Waiting::Message { from } => format!("a message from {}", name(from)),
            Waiting::Slot { to } => format!("{} to receive", name(to)),
            Waiting::Anything => "other ranks".to_owned(),
        };
        let error = match stopped.stop {
            Stop::Deadline { waited } => Error::Deadline { call: call.number, rank, what, step, waited },
            Stop::Left { rank: left } => Error::Left { call: call.number, rank, left },
            Stop::Mismatch { .. } | Stop::Aborted { .. } => self.mismatch(call).unwrap_or_else(|| {
                let reason = Reason::name(first.reason);
                Error::Aborted { call: call.number, rank, by: first.rank, reason }
            }),
        };
        let why = error.to_string();
        take_back(&self.shared, &self.windows, reached, self.rank);
        // Ranks that are not in a call but allocate something hear of it there.
        self.bootstrap.give_up(&why);
        self.failed = Some(why);
        error
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // Whoever waits for this rank from now on waits in vain, and finds out by looking here. Nobody sleeps on it.
        let _ = self.shared.departures[self.rank].publish(1, 0);
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator(rank {} of {}, {} calls)", self.rank, self.size, self.calls)
    }
}
