//! One row on one rank, with buffers passed one way: check, warm up, time, check again.
//!
//! **Data.** Every slot holds data of its own, so a call never reads what the one before has read, and its result differs,
//! too. Out of place inputs stay as they are, however often they are used. In place a call overwrites its input, so the
//! slots of one turn are filled again before the next; that is not timed.
//!
//! **Time** is that of stretches of calls without anything between them: a quarter of the loop out of place, a turn in place.
//! A barrier comes before each stretch. The clock is read twice a stretch.
//!
//! **Checks.** Every element of a first and of a last call, with outputs poisoned before; and between stretches what the call
//! before has left: out of place after every one, in place of all slots after the first, second, fourth, eighth turn and
//! so on.

use std::sync::Arc;
use std::time::Instant;

use weftlink_comm::{Communicator, Error, Operation, PlanId, Request};
use weftlink_plan::collective::Promise;
use weftlink_plan::{Aliasing, Collective, Verified};

use super::data::{Origin, Pattern, Unit, period};
use super::job::{Case, Job, Stats, Timing};
use super::rank::{ITERATIONS_MIN, agree, iterations_in};
use super::slots::{Memory, Slots, is_float};

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
    /// Units that this rank passes in, gets, and where they begin in a slot.
    gives: usize,
    gets: usize,
    input_at: usize,
    output_at: usize,
    /// By block.
    inputs: Vec<Pattern<T>>,
    outputs: Vec<Pattern<T>>,
}

/// The slots of a call.
#[derive(Clone, Copy, Default)]
struct Turn {
    input: usize,
    output: usize,
}

impl Turn {
    fn at(slot: usize) -> Self {
        Self { input: slot, output: slot }
    }

    /// The next call's. Without a division, which would take as long as some calls take steps.
    #[inline]
    fn after(self, slots: &Slots) -> Self {
        let next = |slot: usize, of: usize| if slot + 1 < of { slot + 1 } else { 0 };
        Self { input: next(self.input, slots.inputs), output: next(self.output, slots.outputs) }
    }
}

/// Stretches that a loop out of place is cut into.
const STRETCHES: u32 = 4;
/// Calls that are timed one by one at most, and in how many of them the clock may have a part.
const CALLS_MAX: u32 = 10_000;
const CLOCK_SHARE: f64 = 0.02;
/// How many calls when there was no warm-up to tell: as many as nccl-tests.
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
                Error::Misuse(format!("there is no {} of {}", op.name(), case.data_type.name()))
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
            inputs: (0..gives).map(|block| Pattern::input(&origin, rank, block)).collect(),
            outputs: if row.job.check { (0..gets).filter_map(promised).collect() } else { Vec::new() },
            row: *row,
            comm,
            memory,
        })
    }

    /// Passes buffers like this from now on.
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
        let request = request(memory, row, *operation, self.aliasing, slots, sides, Turn::default())?;
        comm.plan_of(&request)
    }

    pub(super) fn measure(&mut self) -> Result<Timing, Error> {
        self.fill();
        let first = self.check()?;
        if self.aliasing == Aliasing::InPlace {
            self.fill();
        }
        let calls = self.warm_up()?;
        let mut timing = match self.aliasing {
            Aliasing::OutOfPlace => self.in_stretches(calls)?,
            Aliasing::InPlace => self.in_turns(calls)?,
        };
        timing.calls_us = self.one_by_one(&timing)?;
        if self.aliasing == Aliasing::InPlace {
            self.fill();
        }
        let last = self.check()?;
        timing.wrong = timing.wrong.zip(first.zip(last)).map(|(within, (first, last))| within + first + last);
        Ok(timing)
    }

    /// Out of place: stretches of calls on inputs in turn.
    fn in_stretches(&mut self, calls: u32) -> Result<Timing, Error> {
        let (mut seconds, mut wrong, mut done) = (0.0, 0, 0);
        let (mut next, mut last) = (Turn::default(), Turn::default());
        for stretch in 0..STRETCHES.min(calls) {
            let end = (u64::from(calls) * u64::from(stretch + 1) / u64::from(STRETCHES.min(calls))) as u32;
            self.comm.barrier()?;
            let started = Instant::now();
            for _ in done..end {
                last = next;
                self.call(last)?;
                next = last.after(&self.slots);
            }
            seconds += started.elapsed().as_secs_f64();
            done = end;
            wrong += self.wrong_of(last);
        }
        Ok(Timing {
            iterations: calls,
            seconds,
            wrong: self.row.job.check.then_some(wrong),
            calls_us: Vec::new(),
        })
    }

    /// In place: turns of calls, a slot each, which is filled again before the next turn.
    fn in_turns(&mut self, calls: u32) -> Result<Timing, Error> {
        let (mut seconds, mut wrong, mut done, mut turns) = (0.0, 0, 0, 0_u32);
        while done < calls {
            let end = calls.min(done.saturating_add(self.slots.turn() as u32));
            self.comm.barrier()?;
            let started = Instant::now();
            for slot in 0..(end - done) as usize {
                self.call(Turn::at(slot))?;
            }
            seconds += started.elapsed().as_secs_f64();
            turns += 1;
            for slot in 0..(end - done) as usize {
                if turns.is_power_of_two() {
                    wrong += self.wrong_of(Turn::at(slot));
                }
                self.fill_slot(slot);
            }
            done = end;
        }
        Ok(Timing {
            iterations: calls,
            seconds,
            wrong: self.row.job.check.then_some(wrong),
            calls_us: Vec::new(),
        })
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
            self.comm.barrier()?;
            let mut next = Turn::default();
            for _ in 0..self.slots.turn().min(calls - times.len()) {
                let started = Instant::now();
                self.call(next)?;
                next = next.after(&self.slots);
                let nanoseconds = started.elapsed().as_nanos() as f64 - self.row.clock_ns;
                times.push((nanoseconds.max(0.0) / 1e3) as f32);
            }
            if self.aliasing == Aliasing::InPlace {
                self.fill();
            }
        }
        Ok(times)
    }

    /// Makes the call once on data that is there, and counts wrong elements; nothing if nobody wants to know.
    fn check(&mut self) -> Result<Option<u64>, Error> {
        if !self.row.job.check {
            return Ok(None);
        }
        let Slots { output, outputs, output_stride, .. } = self.slots;
        if self.aliasing == Aliasing::OutOfPlace {
            (0..outputs).for_each(|slot| self.memory.output(slot * output_stride, output).fill(T::POISON));
        }
        self.call(Turn::default())?;
        Ok(Some(self.wrong_of(Turn::default())))
    }

    /// Makes the calls that are not timed. Returns how many are to be.
    fn warm_up(&mut self) -> Result<u32, Error> {
        // The first call finds cold memory and is left out of the estimate, if there are more.
        let warmup = self.row.job.warmup;
        let (mut started, mut next) = (Instant::now(), Turn::default());
        for call in 0..warmup {
            if call == 1 {
                started = Instant::now();
            }
            self.call(next)?;
            next = next.after(&self.slots);
        }
        let timed = warmup.saturating_sub(1).max(warmup.min(1));
        let estimate = match timed {
            0 => ITERATIONS_UNKNOWN,
            calls => {
                iterations_in(self.row.job.loop_seconds, started.elapsed().as_secs_f64() / f64::from(calls))
            }
        };
        // Caches are only passed by when all slots have been used.
        let estimate = if self.row.case.rotating { estimate.max(ITERATIONS_MIN) } else { estimate };
        let agreed = match self.row.job.iterations {
            Some(calls) => calls,
            None => agree(self.comm, 0, estimate as u64)? as u32,
        };
        if self.aliasing == Aliasing::InPlace {
            self.fill();
        }
        Ok(agreed)
    }

    #[inline]
    fn call(&mut self, turn: Turn) -> Result<(), Error> {
        let Self { comm, memory, row, operation, .. } = self;
        let (slots, sides) = (self.slots, (self.gives, self.gets));
        comm.run(request(memory, row, *operation, self.aliasing, slots, sides, turn)?)
    }

    /// Fills all inputs.
    fn fill(&mut self) {
        for slot in 0..self.slots.turn() {
            self.fill_slot(slot);
        }
    }

    fn fill_slot(&mut self, slot: usize) {
        let Slots { input_stride, output_stride, inputs, outputs, output, .. } = self.slots;
        let (is_in_place, block) = (self.aliasing == Aliasing::InPlace, self.block);
        if is_in_place && slot < outputs {
            let all = self.memory.output(slot * output_stride, output);
            // What is only written must not be left over from the call before.
            if self.gives < output {
                all.fill(T::POISON);
            }
            let blocks = all[self.input_at..].chunks_mut(block.max(1));
            self.inputs.iter().zip(blocks).for_each(|(pattern, block)| pattern.fill(block, slot));
        } else if slot < inputs {
            let length = self.gives;
            let blocks = self.memory.input(slot * input_stride, length).chunks_mut(block.max(1));
            self.inputs.iter().zip(blocks).for_each(|(pattern, block)| pattern.fill(block, slot));
        }
    }

    /// The wrong elements that a call has left, if nothing has been written over them.
    fn wrong_of(&mut self, turn: Turn) -> u64 {
        let data = if self.aliasing == Aliasing::InPlace { turn.output } else { turn.input };
        let (at, block) = (turn.output * self.slots.output_stride + self.output_at, self.block);
        let blocks = self.memory.output(at, self.outputs.len() * block).chunks(block.max(1));
        self.outputs.iter().zip(blocks).map(|(pattern, block)| pattern.wrong(block, data)).sum()
    }
}

/// What a call asks for.
#[inline]
fn request<'b, T: Unit>(
    memory: &'b mut Memory<'_, T>,
    row: &Row<'b>,
    operation: Option<Operation<'static>>,
    aliasing: Aliasing,
    slots: Slots,
    (gives, gets): (usize, usize),
    turn: Turn,
) -> Result<Request<'b>, Error> {
    let case = row.case;
    let buffers = match aliasing {
        Aliasing::InPlace => memory.in_place(turn.output * slots.output_stride, gives.max(gets)),
        Aliasing::OutOfPlace => {
            memory.buffers(turn.input * slots.input_stride, gives, turn.output * slots.output_stride, gets)
        }
    };
    let is_typed = !case.collective.reduces() || is_float(case);
    let buffers = if is_typed { buffers } else { buffers.of_type(case.data_type.0)? };
    let count = if case.collective.reduces() {
        row.count
    } else {
        row.count * case.data_type.bytes() / size_of::<T>()
    };
    Ok(Request {
        collective: &case.collective,
        buffers,
        operation,
        counts: None,
        count: Some(count),
        plan: row.plan,
    })
}
