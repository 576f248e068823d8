//! What each rank does: meet the others, then for each size check, warm up, time and check again.
//!
//! **Checks.** Buffers are filled with [`data`], the output of an out-of-place call with what no sum can be, the call is
//! made once and every element compared. After the timed loop again: out of place without filling the input anew, so
//! that a call which damages its input shows.
//!
//! **The timed loop** makes the same call over and over, on buffers that are as warm as their size allows. Out of place
//! it adds the data of the check. In place that would grow beyond all bounds, so it adds zeros, which take as long as
//! any other numbers.
//!
//! **How many calls**, unless it was said: rank 0 divides [`LOOP_SECONDS`] by what the warm-up took, and tells the others
//! by an all-reduce to which it alone contributes. That is the barrier before the loop, too.

use std::time::Instant;

use weftlink_comm::{Buffers, Communicator, Error, Options, PlanId, Reduction, Request, Window};
use weftlink_plan::{Aliasing, verify};

use super::data;
use super::job::{Job, Message, RankRow, Timing};

/// How long a loop of calls should take, and how many calls it has at least and at most.
pub(super) const LOOP_SECONDS: f64 = 0.15;
pub(super) const ITERATIONS_MIN: f64 = 5.0;
pub(super) const ITERATIONS_MAX: f64 = 500_000.0;
/// How many when there was no warm-up to tell: as many as nccl-tests.
const ITERATIONS_UNKNOWN: f64 = 20.0;

/// Runs a job to its end. `tell` takes what the rank has to say.
pub(super) fn run(comm: Communicator, job: &Job, tell: &mut impl FnMut(Message)) -> Result<(), Error> {
    let mut rank = Rank::new(comm, job)?;
    for (row, &count) in (0..).zip(&job.counts) {
        if rank.comm.rank() == 0 {
            tell(Message::Started { count });
        }
        tell(Message::Measured(rank.measure_both(count, row)?));
    }
    Ok(())
}

/// How the ranks' communicator behaves.
pub(super) fn options(job: &Job) -> Options {
    Options { deadline: job.deadline, spin: Some(job.spin), ..Options::default() }
}

struct Rank<'j> {
    job: &'j Job,
    comm: Communicator,
    plan: Option<PlanId>,
    memory: Memory,
}

impl<'j> Rank<'j> {
    fn new(mut comm: Communicator, job: &'j Job) -> Result<Self, Error> {
        let plan = match &job.plan {
            Some(plan) => Some(comm.load(verify(plan.clone())?)?),
            None => None,
        };
        let memory = Memory::new(&mut comm, job)?;
        Ok(Self { job, comm, plan, memory })
    }

    fn measure_both(&mut self, count: usize, row: u64) -> Result<RankRow, Error> {
        let job = self.job;
        let claims = |aliasing| job.plan.as_ref().is_none_or(|plan| plan.aliasing.contains(&aliasing));
        let mut measure =
            |aliasing, salt| claims(aliasing).then(|| self.measure(count, aliasing, salt)).transpose();
        let out_of_place = measure(Aliasing::OutOfPlace, 3 * row)?;
        let in_place = measure(Aliasing::InPlace, 3 * row + 1)?;
        let plan = match &job.plan {
            Some(plan) => plan.name.clone(),
            None => {
                let buffers = self.memory.buffers(count, Aliasing::InPlace);
                let request = Request::new(&job.collective, buffers).with(Reduction::Sum);
                self.comm.plan_of(&request)?.name.clone()
            }
        };
        Ok(RankRow { count, plan, out_of_place, in_place })
    }

    fn measure(&mut self, count: usize, aliasing: Aliasing, salt: u64) -> Result<Timing, Error> {
        let rank = self.comm.rank();
        data::fill(self.memory.source(count, aliasing), rank, salt);
        let before = self.check(count, aliasing, salt)?;
        if aliasing == Aliasing::InPlace {
            self.memory.output(count).fill(0.0);
        }
        let iterations = self.warm_up(count, aliasing)?;
        let started = Instant::now();
        for _ in 0..iterations {
            self.call(count, aliasing)?;
        }
        let seconds = started.elapsed().as_secs_f64();
        let salt = match aliasing {
            Aliasing::OutOfPlace => salt,
            Aliasing::InPlace => salt + 1,
        };
        if aliasing == Aliasing::InPlace {
            data::fill(self.memory.source(count, aliasing), rank, salt);
        }
        let after = self.check(count, aliasing, salt)?;
        let wrong = before.zip(after).map(|(before, after)| before + after);
        Ok(Timing { iterations, seconds, wrong })
    }

    /// Makes the call once on data that is in place, and counts wrong elements; nothing if nobody wants to know.
    fn check(&mut self, count: usize, aliasing: Aliasing, salt: u64) -> Result<Option<u64>, Error> {
        if !self.job.check {
            return Ok(None);
        }
        if aliasing == Aliasing::OutOfPlace {
            data::poison(self.memory.output(count));
        }
        self.call(count, aliasing)?;
        Ok(Some(data::wrong(self.memory.output(count), self.job.ranks, salt)))
    }

    /// Makes the calls that are not timed. Returns how many are to be, as soon as all ranks know.
    fn warm_up(&mut self, count: usize, aliasing: Aliasing) -> Result<u32, Error> {
        // The first call finds cold memory and is left out of the estimate, if there are more.
        let mut started = Instant::now();
        for call in 0..self.job.warmup {
            if call == 1 {
                started = Instant::now();
            }
            self.call(count, aliasing)?;
        }
        let timed = self.job.warmup.saturating_sub(1).max(self.job.warmup.min(1));
        let estimate = match timed {
            0 => ITERATIONS_UNKNOWN,
            calls => iterations_in(LOOP_SECONDS, started.elapsed().as_secs_f64() / f64::from(calls)),
        };
        // Whole numbers below 2^24 pass through a sum of f32 unharmed.
        let mut agreed = [if self.comm.rank() == 0 { estimate as f32 } else { 0.0 }];
        self.comm.all_reduce(&mut agreed, Reduction::Sum)?;
        Ok(self.job.iterations.unwrap_or(agreed[0] as u32))
    }

    #[inline]
    fn call(&mut self, count: usize, aliasing: Aliasing) -> Result<(), Error> {
        let buffers = self.memory.buffers(count, aliasing);
        let request = Request::new(&self.job.collective, buffers).with(Reduction::Sum);
        self.comm.run(Request { plan: self.plan, ..request })
    }
}

/// How many calls fit, as 1, 2 or 5 times a power of ten, so that two runs mostly make the same number.
fn iterations_in(seconds: f64, call_seconds: f64) -> f64 {
    let fitting = (seconds / call_seconds.max(1e-9)).clamp(ITERATIONS_MIN, ITERATIONS_MAX);
    let power = 10f64.powi(fitting.log10().floor() as i32);
    let round = [5.0, 2.0, 1.0].into_iter().map(|digit| digit * power).find(|&round| round <= fitting);
    round.unwrap_or(fitting).floor()
}

/// The two buffers of a rank, as long as the largest size needs. Both kinds begin at a page, so that they compare.
enum Memory {
    Ordinary { input: Vec<f32>, output: Vec<f32> },
    Symmetric { input: Window<f32>, output: Window<f32> },
}

impl Memory {
    fn new(comm: &mut Communicator, job: &Job) -> Result<Self, Error> {
        let length = job.count_max();
        if job.symmetric {
            return Ok(Memory::Symmetric { input: comm.window(length)?, output: comm.window(length)? });
        }
        let spacious = || vec![0.0; length + PAGE / size_of::<f32>()];
        Ok(Memory::Ordinary { input: spacious(), output: spacious() })
    }

    /// What a call passes.
    #[inline]
    fn buffers(&mut self, count: usize, aliasing: Aliasing) -> Buffers<'_> {
        match (self, aliasing) {
            (Memory::Symmetric { input, output }, Aliasing::OutOfPlace) => {
                (input.part(0..count), output.part_mut(0..count)).into()
            }
            (Memory::Symmetric { output, .. }, Aliasing::InPlace) => output.part_mut(0..count).into(),
            (Memory::Ordinary { input, output }, Aliasing::OutOfPlace) => {
                (&*at_page(input, count), at_page(output, count)).into()
            }
            (Memory::Ordinary { output, .. }, Aliasing::InPlace) => at_page(output, count).into(),
        }
    }

    /// Where a call takes its data from: the input, or in place the only buffer there is.
    fn source(&mut self, count: usize, aliasing: Aliasing) -> &mut [f32] {
        match (self, aliasing) {
            (memory, Aliasing::InPlace) => memory.output(count),
            (Memory::Symmetric { input, .. }, _) => &mut input[..count],
            (Memory::Ordinary { input, .. }, _) => at_page(input, count),
        }
    }

    /// Where a call puts its result.
    fn output(&mut self, count: usize) -> &mut [f32] {
        match self {
            Memory::Symmetric { output, .. } => &mut output[..count],
            Memory::Ordinary { output, .. } => at_page(output, count),
        }
    }
}

const PAGE: usize = 4096;

/// So many elements from the first page boundary on.
#[inline]
fn at_page(buffer: &mut [f32], count: usize) -> &mut [f32] {
    let first = buffer.as_ptr().align_offset(PAGE);
    &mut buffer[first..first + count]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_are_of_round_lengths_within_bounds() {
        for (call_seconds, calls) in [
            (1e-9, 500_000.0),
            (0.0, 500_000.0),
            (1e-4, 1000.0),
            (2e-4, 500.0),
            (0.012, 10.0),
            (0.03, 5.0),
            (9.0, 5.0),
        ] {
            assert_eq!(iterations_in(0.15, call_seconds), calls, "{call_seconds} s");
        }
    }
}
