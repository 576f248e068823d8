//! What is printed about the GPU of a run.

use std::io::{self, Write};

use serde_json::{Value, json};
use weftlink_cuda::driver::Device;
use weftlink_fabric::bytes::Bytes;

use super::measure::{CALLS_MAX, Room};
use crate::bench::job::Job;
use crate::counted;

/// The GPU of a run.
#[derive(Debug, Default)]
pub(in crate::bench) struct Gpu {
    number: usize,
    name: String,
    pci: String,
    /// As 13000 for CUDA 13.0.
    driver_cuda: Option<u32>,
    total_bytes: usize,
    free_bytes: usize,
    copy_bytes_per_s: Option<f64>,
    graph_launches: u32,
    /// The memory that Weft uses beside the buffers.
    pub(super) weft_bytes: Option<usize>,
    /// Sizes that were not measured, with the reason.
    pub(super) skipped: Vec<String>,
}

impl Gpu {
    pub(super) fn of(device: &Device, room: &Room, graph_launches: u32) -> Self {
        Self {
            number: device.ordinal,
            name: device.name.clone(),
            pci: device.pci.clone(),
            driver_cuda: device.driver().version().ok(),
            total_bytes: room.total_bytes,
            free_bytes: room.free_bytes,
            copy_bytes_per_s: room.copy_bytes_per_s,
            graph_launches,
            weft_bytes: None,
            skipped: Vec::new(),
        }
    }

    pub(in crate::bench) fn json(&self) -> Value {
        json!({
            "number": self.number,
            "name": self.name,
            "pci": self.pci,
            "driver_cuda": self.driver_cuda.map(cuda_version),
            "memory_bytes": self.total_bytes,
            "memory_free_bytes": self.free_bytes,
            "memory_weft_bytes": self.weft_bytes,
            "copy_gb_per_s": self.copy_bytes_per_s.map(|rate| rate / 1e9),
            "graph_launches": self.graph_launches,
            "skipped": self.skipped,
        })
    }
}

/// What stands above the rows.
pub(super) fn header(out: &mut impl Write, job: &Job, gpu: &Gpu) -> io::Result<()> {
    let name = job.cases.first().map_or("nothing", |case| case.collective.name());
    let cuda = gpu.driver_cuda.map_or(String::new(), |version| format!(", CUDA {}", cuda_version(version)));
    writeln!(out, "# weft {}: {name} on GPU {} ({}{cuda})", env!("CARGO_PKG_VERSION"), gpu.number, gpu.name)?;
    writeln!(out, "# {} (threads of one process), device memory", counted(job.ranks, "rank"))?;
    let checked = if job.check { "all elements checked" } else { "nothing checked" };
    let launched = match gpu.graph_launches {
        0 => "launched one by one".to_owned(),
        launches => format!("in a CUDA graph, launched {}", counted(launches, "time")),
    };
    let warmup = counted(job.warmup, "warm-up call");
    let calls = match job.iterations {
        Some(calls) => counted(calls, "timed call"),
        None => format!("up to {CALLS_MAX} timed calls"),
    };
    writeln!(out, "# {warmup}, {calls} {launched}; {checked}")?;
    if let Some((name, lanes, hash)) = job.same_plan() {
        let lanes = if lanes == 1 { String::new() } else { format!(" of {lanes} lanes") };
        writeln!(out, "# plan {name}{lanes}, hash {hash}, at all sizes")?;
    }
    let [free, total] = [gpu.free_bytes, gpu.total_bytes].map(|bytes| Bytes(bytes as u64));
    writeln!(out, "# memory: {free} free of {total}")?;
    match gpu.copy_bytes_per_s {
        Some(rate) => writeln!(
            out,
            "# predict: a lower limit, every input byte read and every output byte written once at the copy rate, {:.0} GB/s",
            rate / 1e9
        ),
        None => writeln!(out, "# predict: N/A, too little memory is free to measure the copy rate"),
    }
}

/// A size that does not fit.
pub(super) fn skipped(out: &mut impl Write, note: &str) -> io::Result<()> {
    writeln!(out, "# skipped {note}")
}

/// Stands below the rows.
pub(super) fn memory(out: &mut impl Write, gpu: &Gpu) -> io::Result<()> {
    match gpu.weft_bytes {
        Some(bytes) => writeln!(out, "# Device memory of Weft : {}", Bytes(bytes as u64)),
        None => Ok(()),
    }
}

fn cuda_version(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::args::tests::gpu_job;
    use crate::bench::job::{Machine, Timing};
    use crate::bench::results::{Average, Measured, Row};
    use crate::bench::table::{self, Form};

    #[test]
    fn the_table() {
        let job = gpu_job("all-reduce --gpu -n 8 --size 1GiB").unwrap();
        let gpu = Gpu {
            name: "NVIDIA H200".to_owned(),
            driver_cuda: Some(13_000),
            total_bytes: 140 << 30,
            free_bytes: 139 << 30,
            copy_bytes_per_s: Some(3.95e12),
            graph_launches: 10,
            weft_bytes: Some(96 << 20),
            ..Gpu::default()
        };
        let timing = Timing { iterations: 50, seconds: 0.222, wrong: Some(0), calls_us: Vec::new() };
        let row = Row {
            case: 0,
            count: 1 << 28,
            bytes: 1 << 30,
            plan: "two-shot".to_owned(),
            predicted_us: Some(4349.3),
            out_of_place: Measured::of(&[&timing], &job.cases[0], 1 << 30, 8, Average::Most),
            in_place: None,
            steps: Vec::new(),
        };
        let mut out = Vec::new();
        header(&mut out, &job, &gpu).unwrap();
        table::columns(&mut out, &job, &Machine::default(), Form::Full).unwrap();
        table::row(&mut out, &job, &row, None, Form::Full).unwrap();
        skipped(&mut out, "8 bytes: why").unwrap();
        memory(&mut out, &gpu).unwrap();
        let text = String::from_utf8(out).unwrap();
        for line in [
            "on GPU 0 (NVIDIA H200, CUDA 13.0)\n",
            "# 8 ranks (threads of one process), device memory\n",
            "# 5 warm-up calls, up to 200 timed calls in a CUDA graph, launched 10 times; all elements checked\n",
            "# memory: 149.3 GB free of 150.3 GB\n",
            "at the copy rate, 3950 GB/s\n",
            "  1073741824    268435456       float          sum      -1   4440.0  241.83  423.21       0        N/A",
            " 4349.3  two-shot\n",
            "# skipped 8 bytes: why\n",
            "# Device memory of Weft : 100.7 MB\n",
        ] {
            assert!(text.contains(line), "{line:?} in\n{text}");
        }
        assert_eq!(gpu.json()["driver_cuda"], "13.0");
        assert_eq!(gpu.json()["copy_gb_per_s"], 3950.0);
    }
}
