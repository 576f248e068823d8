//! Rows on a GPU: check, warm up, time, check again, out of place and in place.

use weftlink_cuda::driver::{Context, Device};
use weftlink_cuda::ranks::{Call, Ranks, copy_bytes_per_s};
use weftlink_cuda::{Error, LoadedPlan, adapted};
use weftlink_fabric::bytes::Bytes;
use weftlink_plan::{Aliasing, Reduction, verify};

use super::data::Data;
use super::{buffer_bytes, limit};
use crate::bench::encode::{self, Number};
use crate::bench::job::{Case, Job, Timing};
use crate::bench::names::factor;
use crate::bench::rank::iterations_in;
use crate::bench::results::{Average, Measured, Row};
use crate::counted;

/// Of the buffers between which the copy rate is measured.
const COPY_BYTES: usize = 256 << 20;
/// Device memory that is left to kernels, and to the plans of each rank.
const RESERVE_BYTES: usize = 512 << 20;
const RESERVE_RANK_BYTES: usize = 64 << 20;
/// The driver allocates in such units.
const ALLOCATION_BYTES: usize = 2 << 20;
/// The most calls of a graph or of a loop, unless the user wants more.
pub(in crate::bench) const CALLS_MAX: u32 = 200;
/// Calls without a warm-up, as in nccl-tests.
const CALLS_UNKNOWN: f64 = 20.0;

/// The memory of the GPU before a run, and what fits.
pub(super) struct Room {
    pub(super) total_bytes: usize,
    pub(super) free_bytes: usize,
    pub(super) copy_bytes_per_s: Option<f64>,
    /// Of all ranks together.
    most_bytes: usize,
    /// The rows that fit.
    pub(super) fitting: usize,
    /// The largest input and output buffer of these.
    buffers: [usize; 2],
}

impl Room {
    pub(super) fn of(job: &Job, context: &Context) -> Result<Self, Error> {
        let copy_bytes_per_s = copy_bytes_per_s(context, COPY_BYTES)?;
        let (free_bytes, total_bytes) = context.memory_info()?;
        Ok(Self::with(job, free_bytes, total_bytes, copy_bytes_per_s))
    }

    pub(super) fn with(
        job: &Job,
        free_bytes: usize,
        total_bytes: usize,
        copy_bytes_per_s: Option<f64>,
    ) -> Self {
        let most_bytes = free_bytes.saturating_sub(RESERVE_BYTES + job.ranks * RESERVE_RANK_BYTES);
        let mut room =
            Self { total_bytes, free_bytes, copy_bytes_per_s, most_bytes, fitting: 0, buffers: [0; 2] };
        for row in 0..job.rows.len() {
            let [input, output] = buffer_bytes(job, row);
            // Rows share buffers, so the largest of each side must fit together.
            let wanted = [room.buffers[0].max(input), room.buffers[1].max(output)];
            if needed(job, wanted) <= most_bytes {
                room.buffers = wanted;
                room.fitting += 1;
            }
        }
        room
    }

    /// Whether a row is measured.
    pub(super) fn fits(&self, job: &Job, row: usize) -> bool {
        let [input, output] = buffer_bytes(job, row);
        input <= self.buffers[0] && output <= self.buffers[1]
    }

    /// Why a row is not.
    pub(super) fn shortage(&self, job: &Job, row: usize) -> String {
        let (case, count) = job.rows[row];
        let size = job.cases[case].bytes(count, job.ranks);
        let [needed, free] =
            [needed(job, buffer_bytes(job, row)), self.most_bytes].map(|bytes| Bytes(bytes as u64));
        format!(
            "{size} bytes: the buffers of {} need {needed}, and {free} are free",
            counted(job.ranks, "rank")
        )
    }
}

/// The bytes of all ranks' buffers.
fn needed(job: &Job, buffers: [usize; 2]) -> usize {
    let rank: usize = buffers.map(|bytes| bytes.next_multiple_of(ALLOCATION_BYTES)).iter().sum();
    rank.saturating_mul(job.ranks)
}

/// The ranks of a job.
pub(super) struct Bench<'j> {
    job: &'j Job,
    room: &'j Room,
    /// 0: calls are launched one by one.
    graph_launches: u32,
    ranks: Ranks,
    /// The job's own plans, once loaded.
    plans: Vec<Option<LoadedPlan>>,
    /// The case whose kernels are compiled.
    prepared: Option<usize>,
}

impl<'j> Bench<'j> {
    pub(super) fn new(
        job: &'j Job,
        device: &Device,
        context: &Context,
        room: &'j Room,
        graph_launches: u32,
    ) -> Result<Self, Error> {
        context.make_current()?;
        let ranks = Ranks::new(device, job.ranks, room.buffers, job.deadline)?;
        let plans = vec![None; job.plans.len()];
        Ok(Self { job, room, graph_launches, ranks, plans, prepared: None })
    }

    pub(super) fn row(&mut self, number: usize) -> Result<Row, Error> {
        let (at, count) = self.job.rows[number];
        let case = &self.job.cases[at];
        if self.prepared != Some(at) {
            self.prepare(at)?;
            self.prepared = Some(at);
        }
        let (bytes, plan) = (case.bytes(count, self.job.ranks), self.plan_of(case, count)?);
        let mut data = Data::new(case, count, self.job.ranks, number as u64);
        let mut measure = |aliasing: Aliasing| -> Result<Option<Measured>, Error> {
            if !plan.aliasing.contains(&aliasing) {
                return Ok(None);
            }
            let timing = self.timing(&call(case, self.job.ranks, &plan, count, aliasing), &mut data)?;
            Ok(Measured::of(&[&timing], case, bytes, self.job.ranks, Average::Most))
        };
        Ok(Row {
            case: at,
            count,
            bytes,
            out_of_place: measure(Aliasing::OutOfPlace)?,
            in_place: measure(Aliasing::InPlace)?,
            predicted_us: self.room.copy_bytes_per_s.map(|rate| limit::us(case, count, self.job.ranks, rate)),
            plan: plan.name,
            steps: Vec::new(),
        })
    }

    /// The device memory that Weft uses beside the buffers.
    pub(super) fn own_bytes(&self) -> Result<usize, Error> {
        let (free, _) = self.ranks.context().memory_info()?;
        let buffers = needed(self.job, self.room.buffers);
        Ok(self.room.free_bytes.saturating_sub(free).saturating_sub(buffers))
    }

    /// Loads and compiles what all rows of a case need.
    fn prepare(&mut self, case: usize) -> Result<(), Error> {
        let mut calls = Vec::new();
        for (number, &(at, count)) in self.job.rows.iter().enumerate() {
            if at != case || !self.room.fits(self.job, number) {
                continue;
            }
            let plan = self.plan_of(&self.job.cases[case], count)?;
            let (ways, ranks) = (plan.aliasing.clone(), self.job.ranks);
            calls.extend(ways.into_iter().map(|way| call(&self.job.cases[case], ranks, &plan, count, way)));
        }
        self.ranks.prepare(&calls)
    }

    fn plan_of(&mut self, case: &Case, count: usize) -> Result<LoadedPlan, Error> {
        let Some(at) = case.plan else {
            return self.ranks.plan_of(&case.collective, count, case.data_type.0);
        };
        if let Some(known) = &self.plans[at] {
            return Ok(known.clone());
        }
        let plan = self.job.plans[at].clone();
        let attempt = format!("adapt the plan {:?} to a GPU", plan.name);
        let plan = verify(adapted(plan)).map_err(|why| Error::Misuse { attempt, why: why.to_string() })?;
        Ok(self.plans[at].insert(self.ranks.load(&plan)?).clone())
    }

    fn timing(&mut self, call: &Call, data: &mut Data) -> Result<Timing, Error> {
        let mut wrong = self.check(call, data, |ranks| ranks.run(call, 1).map(|_| ()))?;
        let estimate = match self.job.warmup {
            0 => None,
            calls => Some(self.ranks.run(call, calls)?.as_secs_f64() / f64::from(calls)),
        };
        let calls = self.job.iterations.unwrap_or_else(|| {
            let seconds = self.job.loop_seconds / f64::from(self.graph_launches.max(1));
            let fitting = estimate.map_or(CALLS_UNKNOWN, |estimate| iterations_in(seconds, estimate));
            fitting.min(f64::from(CALLS_MAX)) as u32
        });
        if self.graph_launches == 0 {
            let seconds = self.ranks.run(call, calls)?.as_secs_f64();
            let last = self.check(call, data, |ranks| ranks.run(call, 1).map(|_| ()))?;
            add(&mut wrong, last);
            return Ok(Timing { iterations: calls, seconds, wrong, calls_us: Vec::new() });
        }
        let graph = self.ranks.capture(call, calls)?;
        // The first launch also uploads the graph.
        self.ranks.launch(&graph)?;
        let mut seconds = 0.0;
        for _ in 0..self.graph_launches {
            seconds += self.ranks.launch(&graph)?.as_secs_f64();
        }
        // In place, each call of the graph changes the inputs of the next, so a single call is checked.
        let last = match call.aliasing {
            Aliasing::OutOfPlace => self.check(call, data, |ranks| ranks.launch(&graph).map(|_| ())),
            Aliasing::InPlace => self.check(call, data, |ranks| ranks.run(call, 1).map(|_| ())),
        };
        add(&mut wrong, last?);
        let iterations = calls.saturating_mul(self.graph_launches);
        Ok(Timing { iterations, seconds, wrong, calls_us: Vec::new() })
    }

    /// Fills the buffers, runs calls and counts wrong elements; nothing without checks.
    fn check(
        &mut self,
        call: &Call,
        data: &mut Data,
        run: impl FnOnce(&mut Ranks) -> Result<(), Error>,
    ) -> Result<Option<u64>, Error> {
        if !self.job.check {
            return Ok(None);
        }
        data.fill(&mut self.ranks, call)?;
        run(&mut self.ranks)?;
        data.wrong(&mut self.ranks, call).map(Some)
    }
}

fn add(sum: &mut Option<u64>, more: Option<u64>) {
    *sum = sum.zip(more).map(|(sum, more)| sum + more);
}

fn call(case: &Case, ranks: usize, plan: &LoadedPlan, count: usize, aliasing: Aliasing) -> Call {
    let (data_type, reduction) = (case.data_type.0, case.op.map_or(Reduction::Sum, |op| op.0));
    let factor = |rank: usize| {
        let mut bytes = Vec::new();
        encode::push(&mut bytes, data_type, Number::Whole(factor(rank)));
        bytes
    };
    let factors =
        if reduction == Reduction::PremultipliedSum { (0..ranks).map(factor).collect() } else { Vec::new() };
    Call { plan: plan.clone(), count, data_type, reduction, factors, aliasing }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::args::tests::gpu_job;

    #[test]
    fn sizes_that_do_not_fit_are_left_out() {
        let job = gpu_job("all-reduce --gpu -n 8 --sizes 1MiB..1GiB").unwrap();
        let room = Room::with(&job, 3 << 30, 4 << 30, None);
        let fitting: Vec<bool> = (0..job.rows.len()).map(|row| room.fits(&job, row)).collect();
        assert_eq!(fitting, [true, true, true, false], "1, 8, 64 and 512 MiB");
        assert_eq!((room.fitting, room.buffers), (3, [64 << 20, 64 << 20]));
        assert_eq!(
            room.shortage(&job, 3),
            "536870912 bytes: the buffers of 8 ranks need 8.6 GB, and 2.1 GB are free"
        );
        assert_eq!(Room::with(&job, 1 << 30, 4 << 30, None).fitting, 0);
    }
}
