//! The document that `weft bench --json` prints: all of the table, and what each rank measured. Keys end in their unit.

use std::time::UNIX_EPOCH;

use serde_json::{Value, json};
use weftlink_kernels::Kernels;
use weftlink_plan::Algorithm;

use super::Run;
use super::job::Job;
use super::results::{Measured, Row, Spread, average_busbw_gb_per_s, wrong};
use super::table::{cache_name, memory_kind, op_name, root, same_memory};

pub(super) fn document(run: &Run<'_>) -> Value {
    let Run { job, rows, machine, .. } = run;
    let first = job.cases.first();
    json!({
        "weft": "bench/1",
        "version": env!("CARGO_PKG_VERSION"),
        "started_unix_s": run.started.duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_secs()),
        "environment": environment(run),
        "collective": first.map_or("p2p".to_owned(), |case| case.collective.to_string()),
        "ranks": job.ranks,
        "ranks_are": if run.crew.are_threads { "threads" } else { "processes" },
        "launcher": run.crew.launcher,
        "pids": run.crew.pids,
        "hosts": run.crew.hosts,
        "cores": job.cores,
        "buffers": same_memory(job).and(first).map(|case| memory_kind(job, case)),
        "type": first.map(|case| case.data_type.name()),
        "redop": first.map(op_name),
        "plan": job.same_plan().map(|(name, lanes, hash)| json!({ "name": name, "lanes": lanes, "hash": hash })),
        "kernels": (!job.on_gpu).then(|| Kernels::detect().name()),
        "gpu": run.gpu.as_ref().map(super::gpu::Gpu::json),
        "latency_us": machine.latency_us,
        "bandwidth_gb_per_s": machine.bandwidth_gb_per_s,
        "clock_ns": machine.clock_ns,
        "warmup_iterations": job.warmup,
        "checked": job.check,
        "deterministic": job.deterministic,
        "deadline_s": job.deadline.as_secs_f64(),
        "rows": rows.iter().map(|found| row(job, found)).collect::<Vec<_>>(),
        "pairs": run.matrices.as_ref().zip(job.pairs).map(|(matrices, sizes)| matrices.json(sizes)),
        "out_of_bounds": (job.check && !rows.is_empty()).then(|| wrong(rows)),
        "average_busbw_gb_per_s": average_busbw_gb_per_s(rows),
        "interrupted": run.outcome.signal().is_some(),
        "error": run.outcome.error(),
    })
}

/// The properties of the machine that affect results; no names of hosts or people.
fn environment(run: &Run<'_>) -> Value {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let processor = read("/proc/cpuinfo").and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    json!({
        "processor": processor,
        "cores_allowed": std::thread::available_parallelism().map_or(1, usize::from),
        "kernel": read("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()),
        "last_level_cache_bytes": run.job.cache_bytes,
        "reads_peers": run.machine.reads_peers,
    })
}

fn row(job: &Job, row: &Row) -> Value {
    let case = &job.cases[row.case];
    json!({
        "collective": case.collective.name(),
        "type": case.data_type.name(),
        "redop": op_name(case),
        "root": root(case),
        "buffers": memory_kind(job, case),
        "cache": cache_name(case),
        "bytes": row.bytes,
        "count": row.count,
        "plan": row.plan,
        "algorithm": row.plan.parse::<Algorithm>().ok().map(Algorithm::name),
        "predicted_us": row.predicted_us,
        "out_of_place": row.out_of_place.as_ref().map(measured),
        "in_place": row.in_place.as_ref().map(measured),
    })
}

fn measured(measured: &Measured) -> Value {
    let ranks_us = &measured.ranks_us;
    json!({
        "iterations": measured.iterations,
        "time_us": measured.time_us,
        "algbw_gb_per_s": measured.algbw_gb_per_s,
        "busbw_gb_per_s": measured.busbw_gb_per_s,
        "wrong": measured.wrong,
        "stats": measured.stats.as_ref().map(stats),
        "ranks_time_us": ranks_us,
        "ranks_time_us_min": ranks_us.iter().copied().fold(f64::INFINITY, f64::min),
        "ranks_time_us_mean": ranks_us.iter().sum::<f64>() / ranks_us.len() as f64,
        "ranks_time_us_max": ranks_us.iter().copied().fold(0.0, f64::max),
    })
}

fn stats(stats: &Spread) -> Value {
    json!({
        "calls": stats.calls,
        "min_us": stats.min_us,
        "p50_us": stats.p50_us,
        "p95_us": stats.p95_us,
        "p99_us": stats.p99_us,
        "max_us": stats.max_us,
    })
}
