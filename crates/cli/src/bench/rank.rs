//! One rank: joins the others, measures the link between two ranks, then row by row.
//!
//! **The number of calls**, unless given: rank 0 divides the duration of a loop by the time of a warm-up call and broadcasts the
//! result.

use std::sync::Arc;
use std::time::Instant;

use weftlink_comm::{Communicator, Error, Options, PlanId};
use weftlink_plan::domain::hops::hops;
use weftlink_plan::{Aliasing, Ratio, Traffic, Verified, verify};

use super::data::Unit;
use super::job::{Case, Job, Message, RankRow, Work};
use super::measure::{Calls, Row};
use super::slots::{Room, is_float};
use super::{pairs, probe};

/// The fewest and the most calls of a loop.
pub(super) const ITERATIONS_MIN: f64 = 5.0;
pub(super) const ITERATIONS_MAX: f64 = 500_000.0;

/// Receives the messages of a rank.
pub(super) trait Report {
    /// Sends a message.
    fn tell(&mut self, message: Message);

    /// Called by all ranks together between rows, with the communicator that they measure.
    fn gather(&mut self, _comm: &mut Communicator) -> Result<(), Error> {
        Ok(())
    }
}

impl<F: FnMut(Message)> Report for F {
    fn tell(&mut self, message: Message) {
        self(message);
    }
}

/// Runs a job to its end.
pub(super) fn run(mut comm: Communicator, job: &Job, report: &mut impl Report) -> Result<(), Error> {
    let machine = probe::machine(&mut comm)?;
    if comm.rank() == 0 {
        report.tell(Message::Probed(machine));
    }
    if let Some(sizes) = job.pairs {
        pairs::measure(&mut comm, sizes, &mut |message| report.tell(message))?;
    }
    let plans = vec![None; job.plans.len()];
    let clock_ns = machine.clock_ns;
    let mut rank =
        Rank { job, comm, plans, floats: Room::new(), bytes: Room::new(), works: Vec::new(), clock_ns };
    for row in 0..job.rows.len() {
        if rank.comm.rank() == 0 {
            report.tell(Message::Started { row });
        }
        report.tell(Message::Measured(rank.measure(row)?));
        report.gather(&mut rank.comm)?;
    }
    report.tell(Message::Done);
    report.gather(&mut rank.comm)
}

/// The options of the communicator: those of the environment, changed by the command line.
pub(super) fn options(job: &Job) -> Result<Options, Error> {
    let options = Options::from_environment()?;
    let deterministic = job.deterministic || options.deterministic;
    Ok(Options { deadline: job.deadline, spin: Some(job.spin), deterministic, ..options })
}

struct Rank<'j> {
    job: &'j Job,
    comm: Communicator,
    plans: Vec<Option<PlanId>>,
    floats: Room<f32>,
    bytes: Room<u8>,
    /// The costs of the plans so far, by hash.
    works: Vec<(u64, Option<Work>)>,
    clock_ns: f64,
}

impl Rank<'_> {
    fn measure(&mut self, row: usize) -> Result<RankRow, Error> {
        let (case, count) = self.job.rows[row];
        let case = &self.job.cases[case];
        let plan = self.plan(case)?;
        if self.is_out_of_reach(case) {
            let plan = String::new();
            return Ok(RankRow {
                row,
                plan,
                work: None,
                out_of_place: None,
                in_place: None,
                steps: Vec::new(),
            });
        }
        let is_float = is_float(case);
        let Self { job, comm, floats, bytes, clock_ns, .. } = self;
        let row = Row { job, case, count, plan, number: row, clock_ns: *clock_ns };
        let (mut measured, found) =
            if is_float { both(comm, floats, &row)? } else { both(comm, bytes, &row)? };
        measured.work = found.and_then(|plan| self.work(&plan));
        Ok(measured)
    }

    /// The plan of a case, if it has one; loaded when it is first used.
    fn plan(&mut self, case: &Case) -> Result<Option<PlanId>, Error> {
        let Some(at) = case.plan else { return Ok(None) };
        if self.plans[at].is_none() {
            let plan = verify(self.job.plans[at].clone())?;
            self.plans[at] = Some(self.comm.load(plan)?);
        }
        Ok(self.plans[at])
    }

    /// Whether the plan of a case accesses buffers that ranks cannot access. All ranks agree on it.
    fn is_out_of_reach(&self, case: &Case) -> bool {
        let reaches = case.plan.is_some_and(|plan| self.job.plans[plan].needs_windows());
        reaches && !case.symmetric && !self.comm.reads_peers()
    }

    /// The cost of a plan, counted once, on one rank.
    fn work(&mut self, plan: &Verified) -> Option<Work> {
        if self.comm.rank() != 0 {
            return None;
        }
        let hash = plan.hash();
        if let Some((_, work)) = self.works.iter().find(|(known, _)| *known == hash) {
            return *work;
        }
        let islands = vec![0; plan.ranks as usize];
        let share = Traffic::of(plan.well_formed()).most_inside(&islands);
        // A float, because it is a fraction of a large number.
        let parts = 1 << 40;
        let share = Ratio::new(parts, 1).and_then(|all| share.times(all)).map(Ratio::floor);
        let work = hops(plan.well_formed(), &islands)
            .zip(share)
            .map(|(hops, share)| Work { hops: hops.inside, share: share as f64 / parts as f64 });
        self.works.push((hash, work));
        work
    }
}

type Found = (RankRow, Option<Arc<Verified>>);

/// Measures a row out of place and in place, as far as its plan supports it.
fn both<T: Unit>(comm: &mut Communicator, room: &mut Room<T>, row: &Row<'_>) -> Result<Found, Error> {
    let memory = room.memory(comm, row.job, row.case.symmetric)?;
    let mut calls = Calls::new(comm, memory, row)?;
    let mut found = RankRow {
        row: row.number,
        plan: String::new(),
        work: None,
        out_of_place: None,
        in_place: None,
        steps: Vec::new(),
    };
    let mut plan = None;
    for aliasing in Aliasing::BOTH {
        if aliasing == Aliasing::InPlace && !row.job.in_place {
            continue;
        }
        calls.pass(aliasing);
        // All ranks know before the call whether a plan supports this.
        match calls.plan() {
            Ok(chosen) if chosen.aliasing.contains(&aliasing) => plan = Some(chosen),
            Ok(_) | Err(Error::Misuse(_)) => continue,
            Err(error) => return Err(error),
        }
        let timing = Some(calls.measure()?);
        if let Some(plan) = plan.as_ref().filter(|_| row.job.trace && found.steps.is_empty()) {
            found.steps = calls.recorded(plan)?;
        }
        match aliasing {
            Aliasing::OutOfPlace => found.out_of_place = timing,
            Aliasing::InPlace => found.in_place = timing,
        }
    }
    match &plan {
        Some(plan) => found.plan.clone_from(&plan.name),
        None => return Err(Error::Misuse(format!("no plan for {} on such buffers", row.case.collective))),
    }
    Ok((found, plan))
}

/// Broadcasts a number from one rank.
pub(super) fn agree(comm: &mut Communicator, root: usize, number: u64) -> Result<u64, Error> {
    let mut agreed = [number];
    comm.broadcast(&mut agreed, root)?;
    Ok(agreed[0])
}

/// The number of calls that fit, as 1, 2 or 5 times a power of ten, so that two runs mostly agree.
pub(super) fn iterations_in(seconds: f64, call_seconds: f64) -> f64 {
    let fitting = (seconds / call_seconds.max(1e-9)).clamp(ITERATIONS_MIN, ITERATIONS_MAX);
    let power = 10f64.powi(fitting.log10().floor() as i32);
    let round = [5.0, 2.0, 1.0].into_iter().map(|digit| digit * power).find(|&round| round <= fitting);
    round.unwrap_or(fitting).floor()
}

/// The cost of reading the clock: the minimum of many, in nanoseconds.
pub(super) fn clock_ns() -> f64 {
    let read = |_| {
        let started = Instant::now();
        started.elapsed().as_nanos()
    };
    (0..1000).map(read).min().unwrap_or(0) as f64
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
