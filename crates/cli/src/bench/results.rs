//! Merges the measurements of all ranks.

use std::collections::VecDeque;

use weftlink_plan::Collective;
use weftlink_sim::Constants;

use super::job::{Case, Job, Machine, RankRow, Recorded, Timing};
use super::predict::predicted_us;

/// One row, as measured by all ranks.
#[derive(Debug)]
pub(super) struct Row {
    /// Its case, in the job.
    pub(super) case: usize,
    pub(super) count: usize,
    pub(super) bytes: usize,
    pub(super) plan: String,
    pub(super) predicted_us: Option<f64>,
    pub(super) out_of_place: Option<Measured>,
    pub(super) in_place: Option<Measured>,
    /// Of each rank, if they were recorded.
    pub(super) steps: Vec<Vec<Recorded>>,
}

impl Row {
    /// The measurements, in the order of the columns.
    pub(super) fn measured(&self) -> impl Iterator<Item = &Measured> {
        [&self.out_of_place, &self.in_place].into_iter().flatten()
    }
}

/// One row with buffers passed one way.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) iterations: u32,
    /// The mean time of a call on each rank.
    pub(super) ranks_us: Vec<f64>,
    /// The one that is shown.
    pub(super) time_us: f64,
    /// Over all ranks; unset without a check.
    pub(super) wrong: Option<u64>,
    pub(super) algbw_gb_per_s: f64,
    pub(super) busbw_gb_per_s: f64,
    pub(super) stats: Option<Spread>,
}

/// The distribution of calls that were timed one by one; a call is done when its slowest rank is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) calls: usize,
    pub(super) min_us: f64,
    pub(super) p50_us: f64,
    pub(super) p95_us: f64,
    pub(super) p99_us: f64,
    pub(super) max_us: f64,
}

/// The time to print, by the numbers of nccl-tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Average {
    First,
    Mean,
    Least,
    Most,
}

impl Average {
    fn of(self, times: &[f64]) -> f64 {
        match self {
            Average::First => times.first().copied().unwrap_or(0.0),
            Average::Mean => times.iter().sum::<f64>() / times.len().max(1) as f64,
            Average::Least => times.iter().copied().fold(f64::INFINITY, f64::min),
            Average::Most => times.iter().copied().fold(0.0, f64::max),
        }
    }
}

impl Measured {
    pub(super) fn of(
        timings: &[&Timing],
        case: &Case,
        bytes: usize,
        ranks: usize,
        average: Average,
    ) -> Option<Self> {
        let first = timings.first()?;
        let ranks_us: Vec<f64> =
            timings.iter().map(|timing| timing.seconds * 1e6 / f64::from(timing.iterations)).collect();
        let wrong = timings.iter().map(|timing| timing.wrong).sum();
        let time_us = average.of(&ranks_us);
        let algbw_gb_per_s = bytes as f64 / time_us.max(f64::MIN_POSITIVE) / 1e3;
        let busbw_gb_per_s = algbw_gb_per_s * bus_factor(&case.collective, ranks);
        let stats = Spread::of(timings);
        Some(Self {
            iterations: first.iterations,
            ranks_us,
            time_us,
            wrong,
            algbw_gb_per_s,
            busbw_gb_per_s,
            stats,
        })
    }
}

impl Spread {
    fn of(timings: &[&Timing]) -> Option<Self> {
        let calls = timings.iter().map(|timing| timing.calls_us.len()).min().filter(|calls| *calls > 0)?;
        let slowest = |call: usize| timings.iter().map(|timing| timing.calls_us[call]).fold(0.0, f32::max);
        let mut times: Vec<f64> = (0..calls).map(|call| f64::from(slowest(call))).collect();
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times[((calls - 1) as f64 * share).round() as usize];
        let [min_us, p50_us, p95_us, p99_us, max_us] = [0.0, 0.5, 0.95, 0.99, 1.0].map(at);
        Some(Self { calls, min_us, p50_us, p95_us, p99_us, max_us })
    }
}

/// The bytes that each rank must move, as a multiple of the size: it makes rates of different numbers of ranks comparable.
pub(super) fn bus_factor(collective: &Collective, ranks: usize) -> f64 {
    let others = (ranks as f64 - 1.0) / ranks as f64;
    match collective {
        Collective::AllReduce => 2.0 * others,
        Collective::AllGather
        | Collective::ReduceScatter
        | Collective::AllToAll
        | Collective::Gather { .. }
        | Collective::Scatter { .. } => others,
        Collective::Reduce { .. }
        | Collective::Broadcast { .. }
        | Collective::Scan
        | Collective::ExclusiveScan
        | Collective::SendReceive { .. }
        | Collective::Neighbours { .. }
        | Collective::Barrier => 1.0,
    }
}

/// Merges rows as ranks report them. Each rank reports all rows in order.
pub(super) struct Merger<'j> {
    job: &'j Job,
    average: Average,
    is_one_host: bool,
    constants: Constants,
    waiting: Vec<VecDeque<RankRow>>,
    pub(super) machine: Machine,
}

impl<'j> Merger<'j> {
    pub(super) fn new(job: &'j Job, average: Average, is_one_host: bool, constants: Constants) -> Self {
        Self {
            job,
            average,
            is_one_host,
            constants,
            waiting: vec![VecDeque::new(); job.ranks],
            machine: Machine::default(),
        }
    }

    /// Adds the report of a rank; returns the row that it completes, if any.
    pub(super) fn add(&mut self, rank: usize, row: RankRow) -> Option<Row> {
        self.waiting[rank].push_back(row);
        if self.waiting.iter().any(VecDeque::is_empty) {
            return None;
        }
        let rows: Vec<RankRow> = self.waiting.iter_mut().filter_map(VecDeque::pop_front).collect();
        let RankRow { row: number, plan, work, .. } = rows.first()?.clone();
        let &(at, count) = self.job.rows.get(number)?;
        let case = &self.job.cases[at];
        let bytes = case.bytes(count, self.job.ranks);
        let merge = |timing: fn(&RankRow) -> Option<&Timing>| {
            let timings: Vec<&Timing> = rows.iter().filter_map(timing).collect();
            Measured::of(&timings, case, bytes, self.job.ranks, self.average)
        };
        let out_of_place = merge(|row| row.out_of_place.as_ref());
        let in_place = merge(|row| row.in_place.as_ref());
        let predicted_us = predicted_us(
            &self.constants,
            self.job,
            case,
            &self.machine,
            work.as_ref(),
            bytes,
            self.is_one_host,
        );
        let steps = rows.into_iter().map(|row| row.steps).collect();
        Some(Row { steps, case: at, count, bytes, plan, predicted_us, out_of_place, in_place })
    }
}

/// The wrong elements of all rows.
pub(super) fn wrong(rows: &[Row]) -> u64 {
    rows.iter().flat_map(Row::measured).filter_map(|measured| measured.wrong).sum()
}

/// The mean over all measurements, as nccl-tests prints it last; nothing if there are none.
pub(super) fn average_busbw_gb_per_s(rows: &[Row]) -> Option<f64> {
    let rates: Vec<f64> =
        rows.iter().flat_map(Row::measured).map(|measured| measured.busbw_gb_per_s).collect();
    (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::args::tests::job;

    fn rank_row(seconds: f64, wrong: u64) -> RankRow {
        let calls_us = vec![seconds as f32 * 1e5; 3];
        let timing = Timing { iterations: 10, seconds, wrong: Some(wrong), calls_us };
        RankRow {
            row: 0,
            plan: "ring".to_owned(),
            work: None,
            out_of_place: Some(timing),
            in_place: None,
            steps: Vec::new(),
        }
    }

    #[test]
    fn the_slowest_rank_counts() {
        let job = job("all-reduce -n 4 -b 1000 -e 1000");
        let mut merger = Merger::new(&job, Average::Most, true, Constants::shipped());
        assert!(merger.add(3, rank_row(1e-5, 1)).is_none());
        assert!(merger.add(3, rank_row(9.0, 0)).is_none());
        assert!(merger.add(0, rank_row(2e-5, 0)).is_none());
        assert!(merger.add(1, rank_row(4e-5, 2)).is_none());
        let row = merger.add(2, rank_row(1e-5, 0)).unwrap();
        assert_eq!((row.count, row.bytes), (250, 1000));
        assert!(row.in_place.is_none());
        let measured = row.out_of_place.as_ref().unwrap();
        assert!((measured.time_us - 4.0).abs() < 1e-9);
        assert!((measured.algbw_gb_per_s - 0.25).abs() < 1e-9);
        assert!((measured.busbw_gb_per_s - 0.375).abs() < 1e-9, "2(n-1)/n of it for 4 ranks");
        assert_eq!(measured.wrong, Some(3));
        let stats = measured.stats.unwrap();
        assert_eq!(stats.calls, 3);
        assert!((stats.p50_us - 4.0).abs() < 1e-6);
        let rows = [row];
        assert_eq!(wrong(&rows), 3);
        assert!((average_busbw_gb_per_s(&rows).unwrap() - 0.375).abs() < 1e-9);
        assert_eq!(average_busbw_gb_per_s(&[]), None);
    }

    #[test]
    fn averages_have_nccl_tests_meanings() {
        let times = [3.0, 1.0, 5.0];
        for (average, time) in
            [(Average::First, 3.0), (Average::Mean, 3.0), (Average::Least, 1.0), (Average::Most, 5.0)]
        {
            assert_eq!(average.of(&times), time);
        }
    }

    #[test]
    fn a_rank_alone_has_no_bus() {
        assert_eq!(bus_factor(&Collective::AllReduce, 1), 0.0);
        assert_eq!(bus_factor(&Collective::AllReduce, 2), 1.0);
        assert_eq!(bus_factor(&Collective::AllGather, 4), 0.75);
        assert_eq!(bus_factor(&Collective::Broadcast { root: 0 }, 4), 1.0);
    }
}
