//! Rows as a picture: a line for each case. Out of place, or in place where nothing else was measured.

use super::job::{Case, Job};
use super::results::{Measured, Row};
use super::table::{cache_name, memory_kind, op_name};
use crate::counted;
use crate::plot::{self, Line};

pub(super) fn svg(job: &Job, rows: &[Row]) -> String {
    let name = job.cases.first().map_or("nothing", |case| case.collective.name());
    plot::svg(&format!("{name}, {}", counted(job.ranks, "rank")), &lines(job, rows))
}

/// A line for each case that was measured.
fn lines(job: &Job, rows: &[Row]) -> Vec<Line> {
    let mut lines = Vec::new();
    for (at, case) in job.cases.iter().enumerate() {
        let point = |row: &Row| {
            let Measured { time_us, busbw_gb_per_s, .. } = row.measured().next()?;
            (row.bytes > 0).then_some((row.bytes as f64, *time_us, *busbw_gb_per_s))
        };
        let points: Vec<_> = rows.iter().filter(|row| row.case == at).filter_map(point).collect();
        if !points.is_empty() {
            lines.push(Line { name: name(job, case), points });
        }
    }
    lines
}

fn name(job: &Job, case: &Case) -> String {
    let root = case.collective.root().map_or(String::new(), |root| format!(", root {root}"));
    let (kind, op) = (case.data_type.name(), op_name(case));
    format!("{} memory, {}, {kind} {op}{root}", memory_kind(job, case), cache_name(case))
}
