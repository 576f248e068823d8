//! One row on one rank, with buffers passed one way: check, warm up, time, check again.
//!
//! **Data.** Calls use slots in turn. Before each turn, all its inputs get new data, which is not timed. So no call can be right by
//! chance or because of an old result, and the caches of other ranks do not hold the inputs.
//!
//! **Time** is that of turns: back-to-back calls after a barrier. The clock is read twice per turn.
//!
//! **Checks.** Every element of a first and of a last call, with poisoned outputs; and, between the turns, of all calls of the
//! first, second, fourth, eighth turn and so on.

use std::sync::Arc;
use std::time::Instant;

use weftlink_comm::{Communicator, Error, Operation, PlanId, Request};
use weftlink_plan::collective::Promise;
use weftlink_plan::{Aliasing, Collective, Verified};

use super::data::{Origin, Pattern, Unit, period};
use super::job::{Case, Job, Recorded, Stats, Timing};
use super::rank::{agree, iterations_in};
use super::slots::{Memory, Slots, is_float};
use super::trace;

/// What is measured.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) job: &'a Job,
    pub(super) case: &'a Case,
    /// Elements of a block.
    pub(super) count: usize,
    pub(super) plan: Option<PlanId>,
    pub(super) number: usize,
    pub(super) clock_ns: f64,
}

/// The calls of a row.
pub(super) struct Calls<'a, T> {
    comm: &'a mut Communicator,
    memory: Memory<'a, T>,
    row: Row<'a>,
    operation: Option<Operation<'static>>,
    aliasing: Aliasing,
    slots: Slots,
    /// Units of a block.
    block: usize,
    /// Units that this rank passes in and gets, and their offsets in a slot.
    gives: usize,
    gets: usize,
    input_at: usize,
    output_at: usize,
    /// The number of calls before the current turn, which selects the data.
    before: usize,
    /// By block.
    inputs: Vec<Pattern<T>>,
    outputs: Vec<Pattern<T>>,
}

/// The most calls that are timed one by one, and the largest share of a call that reading the clock may take.
const CALLS_MAX: u32 = 10_000;
const CLOCK_SHARE: f64 = 0.02;
/// The number of calls without a warm-up, as in nccl-tests.
const ITERATIONS_UNKNOWN: f64 = 20.0;

impl<'a, T: Unit> Calls<'a, T> {
    pub(super) fn new(
        comm: &'a mut Communicator,
        memory: Memory<'a, T>,
        row: &Row<'a>,
    ) -> Result<Self, Error> {
        let Row { case, count, .. } = *row;
        let (rank, ranks) = (comm.rank(), comm.size());
        let operation = match case.op {
            None => None,
            Some(op) => Some(op.operation(case.data_type, rank).ok_or_else(|| {
                Error::Misuse(format!("{} is not defined for {}", op.name(), case.data_type.name()))
            })?),
        };
        let gives = case.collective.gives(rank as u32, ranks as u32) as usize;
        let gets = case.collective.gets(rank as u32, ranks as u32) as usize;
        let origin = Origin {
            ranks,
            salt: row.number as u64,
            data_type: case.data_type,
            op: case.op,
            period: period(count, gives.max(gets)),
        };
        let promised =
            |block: usize| match case.collective.promise(rank as u32, ranks as u32, block as u32)? {
                Promise::Copy { rank, block } => Some(Pattern::input(&origin, rank as usize, block as usize)),
                Promise::Reduction { block, below } => {
                    Some(Pattern::reduced(&origin, case.op?, below as usize, block as usize))
                }
            };
        let block = count * case.data_type.bytes() / size_of::<T>();
        Ok(Self {
            operation,
            aliasing: Aliasing::OutOfPlace,
            slots: Slots::of(row.job, case, count, Aliasing::OutOfPlace, size_of::<T>()),
            block,
            gives: gives * block,
            gets: gets * block,
            input_at: 0,
            output_at: 0,
            before: 0,
            inputs: (0..gives).map(|block| Pattern::input(&origin, rank, block)).collect(),
            outputs: if row.job.check { (0..gets).filter_map(promised).collect() } else { Vec::new() },
            row: *row,
            comm,
            memory,
        })
    }

    /// Sets how buffers are passed.
    pub(super) fn pass(&mut self, aliasing: Aliasing) {
        let Row { job, case, count, .. } = self.row;
        self.aliasing = aliasing;
        self.slots = Slots::of(job, case, count, aliasing, size_of::<T>());
        let own = self.comm.rank() * self.block;
        let is_both = aliasing == Aliasing::InPlace && self.gives > 0 && self.gets > 0;
        // The rank's own block of the larger side is the smaller side.
        self.input_at = match case.collective {
            Collective::AllGather | Collective::Gather { .. } if is_both => own,
            _ => 0,
        };
        self.output_at = match case.collective {
            Collective::ReduceScatter | Collective::Scatter { .. } if is_both => own,
            _ => 0,
        };
    }

    /// The plan that calls take. All ranks ask.
    pub(super) fn plan(&mut self) -> Result<Arc<Verified>, Error> {
        let Self { comm, memory, row, operation, .. } = self;
        let (slots, sides) = (self.slots, (self.gives, self.gets));
        let request = request(memory, row, operation.clone(), self.aliasing, slots, sides, 0)?;
        comm.plan_of(request)
    }

    pub(super) fn measure(&mut self) -> Result<Timing, Error> {
        let first = self.check()?;
        let calls = self.warm_up()?;
        let mut timing = self.in_turns(calls)?;
        timing.calls_us = self.one_by_one(&timing)?;
        let last = self.check()?;
        timing.wrong = timing.wrong.zip(first.zip(last)).map(|(within, (first, last))| within + first + last);
        Ok(timing)
    }

    /// One more call, step by step.
    pub(super) fn recorded(&mut self, plan: &Verified) -> Result<Vec<Recorded>, Error> {
        self.fill(1);
        self.comm.barrier()?;
        let Self { comm, memory, row, operation, .. } = self;
        let (slots, sides) = (self.slots, (self.gives, self.gets));
        let steps =
            comm.run_timed(request(memory, row, operation.clone(), self.aliasing, slots, sides, 0)?)?;
        Ok(trace::recorded(plan, comm.rank(), &steps))
    }

    /// Turns of calls, a slot each.
    fn in_turns(&mut self, calls: u32) -> Result<Timing, Error> {
        let (mut seconds, mut wrong, mut left, mut turns) = (0.0, 0, calls as usize, 0_u32);
        while left > 0 {
            let turn = left.min(self.slots.count);
            self.fill(turn);
            self.comm.barrier()?;
            let started = Instant::now();
            for slot in 0..turn {
                self.call(slot)?;
            }
            seconds += started.elapsed().as_secs_f64();
            turns += 1;
            if turns.is_power_of_two() {
                wrong += (0..turn).map(|slot| self.wrong_in(slot)).sum::<u64>();
            }
            left -= turn;
        }
        let wrong = self.row.job.check.then_some(wrong);
        Ok(Timing { iterations: calls, seconds, wrong, calls_us: Vec::new() })
    }

    /// Calls with the clock read at each, less what that takes. Nothing where it would take too large a part.
    fn one_by_one(&mut self, timing: &Timing) -> Result<Vec<f32>, Error> {
        let Some(stats) = self.row.job.stats else { return Ok(Vec::new()) };
        let call_ns = timing.seconds * 1e9 / f64::from(timing.iterations);
        let is_disturbed = self.row.clock_ns > CLOCK_SHARE * call_ns;
        // All ranks must make the same calls, so rank 0 decides.
        if agree(self.comm, 0, u64::from(is_disturbed))? == 1 && stats == Stats::Undisturbed {
            return Ok(Vec::new());
        }
        let calls = timing.iterations.min(CALLS_MAX) as usize;
        let mut times = Vec::with_capacity(calls);
        while times.len() < calls {
            let turn = self.slots.count.min(calls - times.len());
            self.fill(turn);
            self.comm.barrier()?;
            for slot in 0..turn {
                let started = Instant::now();
                self.call(slot)?;
                let nanoseconds = started.elapsed().as_nanos() as f64 - self.row.clock_ns;
                times.push((nanoseconds.max(0.0) / 1e3) as f32);
            }
        }
        Ok(times)
    }

    /// Makes the call once and counts wrong elements; nothing if nobody wants to know.
    fn check(&mut self) -> Result<Option<u64>, Error> {
        if !self.row.job.check {
            return Ok(None);
        }
        self.memory.output(0, self.slots.output).fill(T::POISON);
        self.fill(1);
        self.call(0)?;
        Ok(Some(self.wrong_in(0)))
    }

    /// Makes the calls that are not timed. Returns how many are to be.
    fn warm_up(&mut self) -> Result<u32, Error> {
        // The first call finds cold memory and is left out of the estimate, if there are more.
        let warmup = self.row.job.warmup;
        self.fill(self.slots.count.min(warmup as usize));
        let (mut started, mut slot) = (Instant::now(), 0);
        for call in 0..warmup {
            if call == 1 {
                started = Instant::now();
            }
            self.call(slot)?;
            slot = if slot + 1 < self.slots.count { slot + 1 } else { 0 };
        }
        let timed = warmup.saturating_sub(1).max(warmup.min(1));
        let estimate = match timed {
            0 => ITERATIONS_UNKNOWN,
            calls => {
                iterations_in(self.row.job.loop_seconds, started.elapsed().as_secs_f64() / f64::from(calls))
            }
        };
        match self.row.job.iterations {
            Some(calls) => Ok(calls),
            None => Ok(agree(self.comm, 0, estimate as u64)? as u32),
        }
    }

    #[inline(always)]
    fn call(&mut self, slot: usize) -> Result<(), Error> {
        let Self { comm, memory, row, operation, .. } = self;
        let (slots, sides) = (self.slots, (self.gives, self.gets));
        comm.run(request(memory, row, operation.clone(), self.aliasing, slots, sides, slot)?)
    }

    /// Writes new inputs into the first slots.
    fn fill(&mut self, slots: usize) {
        self.before += self.slots.count;
        let Slots { input_stride, output_stride, output, .. } = self.slots;
        for slot in 0..slots {
            let inputs = match self.aliasing {
                Aliasing::OutOfPlace => self.memory.input(slot * input_stride, self.gives),
                Aliasing::InPlace => {
                    let all = self.memory.output(slot * output_stride, output);
                    // What is only written must not be left over from the call before.
                    if self.gives < output {
                        all.fill(T::POISON);
                    }
                    &mut all[self.input_at..]
                }
            };
            let (blocks, call) = (inputs.chunks_mut(self.block.max(1)), self.before + slot);
            self.inputs.iter().zip(blocks).for_each(|(pattern, block)| pattern.fill(block, call));
        }
    }

    /// The wrong elements that the last call with a slot has left.
    fn wrong_in(&mut self, slot: usize) -> u64 {
        let (at, call) = (slot * self.slots.output_stride + self.output_at, self.before + slot);
        let blocks = self.memory.output(at, self.outputs.len() * self.block).chunks(self.block.max(1));
        self.outputs.iter().zip(blocks).map(|(pattern, block)| pattern.wrong(block, call)).sum()
    }
}

/// What a call asks for.
#[inline(always)]
fn request<'b, T: Unit>(
    memory: &'b mut Memory<'_, T>,
    row: &Row<'b>,
    operation: Option<Operation<'static>>,
    aliasing: Aliasing,
    slots: Slots,
    (gives, gets): (usize, usize),
    slot: usize,
) -> Result<Request<'b>, Error> {
    let case = row.case;
    let buffers = match aliasing {
        Aliasing::InPlace => memory.in_place(slot * slots.output_stride, gives.max(gets)),
        Aliasing::OutOfPlace => {
            memory.buffers(slot * slots.input_stride, gives, slot * slots.output_stride, gets)
        }
    };
    let is_typed = !case.collective.reduces() || is_float(case);
    let buffers = if is_typed { buffers } else { buffers.of_type(case.data_type.0)? };
    let count = if case.collective.reduces() {
        row.count
    } else {
        row.count * case.data_type.bytes() / size_of::<T>()
    };
    let request = Request::new(&case.collective, buffers).count(count);
    Ok(Request { operation, plan: row.plan, ..request })
}
