//! What ranks measured, put together.

use std::collections::VecDeque;

use weftlink_plan::Collective;

use super::job::{ELEMENT, Job, RankRow, Timing};

/// One size, as measured by all ranks.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) count: usize,
    pub(super) bytes: usize,
    pub(super) plan: String,
    pub(super) out_of_place: Option<Measured>,
    pub(super) in_place: Option<Measured>,
}

impl Row {
    /// What was measured, in the order of the columns.
    pub(super) fn measured(&self) -> impl Iterator<Item = &Measured> {
        [&self.out_of_place, &self.in_place].into_iter().flatten()
    }
}

/// One size with buffers passed one way.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) iterations: u32,
    /// The mean time of a call on each rank.
    pub(super) ranks_us: Vec<f64>,
    /// Over all ranks; unset if nobody looked.
    pub(super) wrong: Option<u64>,
    pub(super) algbw_gb_per_s: f64,
    pub(super) busbw_gb_per_s: f64,
}

impl Measured {
    fn of(timings: &[Timing], collective: &Collective, bytes: usize) -> Option<Self> {
        let first = timings.first()?;
        let ranks_us: Vec<f64> =
            timings.iter().map(|timing| timing.seconds * 1e6 / f64::from(timing.iterations)).collect();
        let wrong = timings.iter().map(|timing| timing.wrong).sum();
        let slowest_s = ranks_us.iter().copied().fold(f64::MIN_POSITIVE, f64::max) / 1e6;
        let algbw_gb_per_s = bytes as f64 / slowest_s / 1e9;
        let busbw_gb_per_s = algbw_gb_per_s * bus_factor(collective, timings.len());
        Some(Self { iterations: first.iterations, ranks_us, wrong, algbw_gb_per_s, busbw_gb_per_s })
    }

    /// The time of a call: a collective is done when its slowest rank is.
    pub(super) fn time_us(&self) -> f64 {
        self.ranks_us.iter().copied().fold(0.0, f64::max)
    }
}

/// What each rank moves at least, as a multiple of the buffer: it makes rates of different numbers of ranks comparable.
fn bus_factor(collective: &Collective, ranks: usize) -> f64 {
    let others = (ranks as f64 - 1.0) / ranks as f64;
    match collective {
        Collective::AllReduce => 2.0 * others,
        Collective::Reduce { .. } | Collective::Broadcast { .. } => 1.0,
        _ => others,
    }
}

/// Puts rows together as ranks report them. Each rank reports all sizes in order.
pub(super) struct Merger {
    collective: Collective,
    waiting: Vec<VecDeque<RankRow>>,
}

impl Merger {
    pub(super) fn new(job: &Job) -> Self {
        Self { collective: job.collective.clone(), waiting: vec![VecDeque::new(); job.ranks] }
    }

    /// Takes what a rank reports, and returns the row that this completes, if any.
    pub(super) fn add(&mut self, rank: usize, row: RankRow) -> Option<Row> {
        self.waiting[rank].push_back(row);
        if self.waiting.iter().any(VecDeque::is_empty) {
            return None;
        }
        let rows: Vec<RankRow> = self.waiting.iter_mut().filter_map(VecDeque::pop_front).collect();
        let RankRow { count, plan, .. } = rows.first()?.clone();
        let bytes = count * ELEMENT.1;
        let merge = |timing: fn(&RankRow) -> Option<Timing>| {
            let timings: Vec<Timing> = rows.iter().filter_map(timing).collect();
            Measured::of(&timings, &self.collective, bytes)
        };
        let (out_of_place, in_place) = (merge(|row| row.out_of_place), merge(|row| row.in_place));
        Some(Row { count, bytes, plan, out_of_place, in_place })
    }
}

/// Elements that were wrong in all of these rows.
pub(super) fn wrong(rows: &[Row]) -> u64 {
    rows.iter().flat_map(Row::measured).filter_map(|measured| measured.wrong).sum()
}

/// The mean over all that was measured, as nccl-tests prints it last; nothing if nothing was.
pub(super) fn average_busbw_gb_per_s(rows: &[Row]) -> Option<f64> {
    let rates: Vec<f64> =
        rows.iter().flat_map(Row::measured).map(|measured| measured.busbw_gb_per_s).collect();
    (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank_row(seconds: f64, wrong: u64) -> RankRow {
        let timing = Timing { iterations: 10, seconds, wrong: Some(wrong) };
        RankRow { count: 250, plan: "ring".to_owned(), out_of_place: Some(timing), in_place: None }
    }

    #[test]
    fn the_slowest_rank_counts() {
        let waiting = vec![VecDeque::new(); 4];
        let mut merger = Merger { collective: Collective::AllReduce, waiting };
        assert!(merger.add(3, rank_row(1e-5, 1)).is_none());
        assert!(merger.add(3, rank_row(9.0, 0)).is_none());
        assert!(merger.add(0, rank_row(2e-5, 0)).is_none());
        assert!(merger.add(1, rank_row(4e-5, 2)).is_none());
        let row = merger.add(2, rank_row(1e-5, 0)).unwrap();
        assert_eq!((row.count, row.bytes), (250, 1000));
        assert!(row.in_place.is_none());
        let measured = row.out_of_place.as_ref().unwrap();
        assert!((measured.time_us() - 4.0).abs() < 1e-9);
        assert!((measured.algbw_gb_per_s - 0.25).abs() < 1e-9);
        assert!((measured.busbw_gb_per_s - 0.375).abs() < 1e-9, "2(n-1)/n of it for 4 ranks");
        assert_eq!(measured.wrong, Some(3));
        let rows = [row];
        assert_eq!(wrong(&rows), 3);
        assert!((average_busbw_gb_per_s(&rows).unwrap() - 0.375).abs() < 1e-9);
        assert_eq!(average_busbw_gb_per_s(&[]), None);
    }

    #[test]
    fn a_rank_alone_has_no_bus() {
        assert_eq!(bus_factor(&Collective::AllReduce, 1), 0.0);
        assert_eq!(bus_factor(&Collective::AllReduce, 2), 1.0);
    }
}
