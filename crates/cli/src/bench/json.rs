//! The document that `weft bench --json` prints: all of the table, and what each rank measured. Keys end in their unit.

use serde_json::{Value, json};
use weftlink_comm::kernels::Kernels;

use super::job::{ELEMENT, Job};
use super::results::{Measured, Row, average_busbw_gb_per_s, wrong};

/// How the run ended, for the document.
pub(super) struct Ending<'a> {
    pub(super) interrupted: bool,
    pub(super) error: Option<&'a str>,
}

pub(super) fn document(job: &Job, threads: bool, pids: &[u32], rows: &[Row], ending: &Ending) -> Value {
    json!({
        "weft": "bench/1",
        "version": env!("CARGO_PKG_VERSION"),
        "collective": job.collective.to_string(),
        "ranks": job.ranks,
        "ranks_are": if threads { "threads" } else { "processes" },
        "pids": pids,
        "cores": job.cores,
        "buffers": if job.symmetric { "symmetric" } else { "ordinary" },
        "type": ELEMENT.0,
        "redop": "sum",
        "plan": job.same_plan().map(|(name, lanes, hash)| json!({ "name": name, "lanes": lanes, "hash": hash })),
        "kernels": Kernels::detect().name(),
        "warmup_iterations": job.warmup,
        "checked": job.check,
        "deadline_s": job.deadline.as_secs_f64(),
        "rows": rows.iter().map(row).collect::<Vec<_>>(),
        "out_of_bounds": (job.check && !rows.is_empty()).then(|| wrong(rows)),
        "average_busbw_gb_per_s": average_busbw_gb_per_s(rows),
        "interrupted": ending.interrupted,
        "error": ending.error,
    })
}

fn row(row: &Row) -> Value {
    json!({
        "bytes": row.bytes,
        "count": row.count,
        "plan": row.plan,
        "out_of_place": row.out_of_place.as_ref().map(measured),
        "in_place": row.in_place.as_ref().map(measured),
    })
}

fn measured(measured: &Measured) -> Value {
    let ranks_us = &measured.ranks_us;
    json!({
        "iterations": measured.iterations,
        "time_us": measured.time_us(),
        "algbw_gb_per_s": measured.algbw_gb_per_s,
        "busbw_gb_per_s": measured.busbw_gb_per_s,
        "wrong": measured.wrong,
        "ranks_time_us": ranks_us,
        "ranks_time_us_min": ranks_us.iter().copied().fold(f64::INFINITY, f64::min),
        "ranks_time_us_mean": ranks_us.iter().sum::<f64>() / ranks_us.len() as f64,
        "ranks_time_us_max": measured.time_us(),
    })
}
