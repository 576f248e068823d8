//! The result of the tour, in one sentence.

use super::job::Job;
use super::results::{Measured, Row};
use crate::counted;
use crate::units::size;

/// The sentence; nothing if too little was measured.
pub(super) fn sentence(job: &Job, rows: &[Row]) -> Option<String> {
    let of = |symmetric: bool| {
        rows.iter().filter(move |row| {
            let case = &job.cases[row.case];
            case.symmetric == symmetric && !case.rotating
        })
    };
    let best = |row: &Row| row.measured().map(|measured| measured.time_us).fold(f64::INFINITY, f64::min);
    let largest = of(true).max_by_key(|row| row.bytes)?;
    let ordinary = of(false).find(|row| row.bytes == largest.bytes)?;
    let smallest = rows.iter().map(|row| row.bytes).min()?;
    let least = rows.iter().filter(|row| row.bytes == smallest).map(best).fold(f64::INFINITY, f64::min);
    let busbw = largest.measured().map(|Measured { busbw_gb_per_s, .. }| *busbw_gb_per_s).fold(0.0, f64::max);
    Some(format!(
        "All-reduce of {} between {}: {} in symmetric memory (busbw {busbw:.1} GB/s), {} in ordinary memory; {} in {}.",
        size(largest.bytes as u64),
        counted(job.ranks, "rank"),
        time(best(largest)),
        time(best(ordinary)),
        counted(smallest, "byte"),
        time(least),
    ))
}

/// Microseconds in a suitable unit.
fn time(us: f64) -> String {
    match us {
        ..10.0 => format!("{us:.2} us"),
        ..1000.0 => format!("{us:.0} us"),
        ..10_000.0 => format!("{:.2} ms", us / 1e3),
        ..1_000_000.0 => format!("{:.1} ms", us / 1e3),
        _ => format!("{:.2} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::args::tests::job;

    #[test]
    fn the_sentence() {
        let job = job("-n 2");
        let row = |case: usize, bytes: usize, time_us: f64| Row {
            case,
            count: 0,
            bytes,
            plan: String::new(),
            predicted_us: None,
            in_place: None,
            steps: Vec::new(),
            out_of_place: Some(Measured {
                iterations: 1,
                ranks_us: vec![time_us],
                time_us,
                wrong: None,
                algbw_gb_per_s: 5.5,
                busbw_gb_per_s: 5.5,
                stats: None,
            }),
        };
        let rows = [row(0, 8, 0.33), row(0, 64 << 20, 41_000.0), row(2, 8, 0.35), row(2, 64 << 20, 12_300.0)];
        assert_eq!(
            sentence(&job, &rows).unwrap(),
            "All-reduce of 64 MiB between 2 ranks: 12.3 ms in symmetric memory (busbw 5.5 GB/s), 41.0 ms in ordinary \
             memory; 8 bytes in 0.33 us."
        );
        assert_eq!(sentence(&job, &rows[..2]), None);
    }
}
