//! `weft bench --gpu`: the same rows between ranks on one GPU, threads of this process.
//!
//! By default, calls are nodes of a CUDA graph, which one thread launches several times; without a graph, each rank has a thread. Events on the
//! GPU time each launch. The prediction is a lower limit: the bytes that a collective must read and write, at the rate at which the GPU
//! copies memory.

mod data;
mod limit;
mod measure;
mod report;

use std::io;
use std::time::{Instant, SystemTime};

use anyhow::anyhow;
use weftlink_cuda::driver::{Context, Device, Driver};
use weftlink_cuda::queues;

use super::args::{Args, misuse};
use super::job::{Job, Machine};
use super::table::{self, Form};
use super::{Crew, Files, Outcome, Run, finish, launched};
use crate::progress::Progress;
use crate::{Failure, counted, screen};
pub(super) use measure::CALLS_MAX;
use measure::{Bench, Room};
pub(super) use report::Gpu;

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let launched = launched::of_this_process(args.launcher)?;
    let job = args.gpu_job(launched.as_ref())?;
    let least = args.least_busbw_gb_per_s()?;
    let files = Files::create(args)?;
    let started = SystemTime::now();
    queues::use_all();
    let device = device(args.device())?;
    let context = Context::primary(&device).map_err(Failure::finding)?;
    let room = Room::of(&job, &context).map_err(Failure::finding)?;
    if room.fitting == 0 {
        return Err(Failure::finding(anyhow!(
            "no size fits into the free memory of the GPU: {}. Measure smaller sizes (-e), or free memory (`nvidia-smi` lists processes)",
            room.shortage(&job, 0)
        )));
    }
    let mut gpu = Gpu::of(&device, &room, args.graph_launches());
    let mut out = io::stdout().lock();
    let form = Form::of(screen::terminal_columns());
    let shows_table = args.shows_table();
    if shows_table {
        report::header(&mut out, &job, &gpu)?;
        table::columns(&mut out, &job, &Machine::default(), form)?;
    }
    let mut rows = Vec::new();
    let (mut progress, began) = (Progress::new(), Instant::now());
    let outcome = match Bench::new(&job, &device, &context, &room, args.graph_launches()) {
        Err(error) => Outcome::Failed(error.to_string()),
        Ok(mut bench) => {
            let mut outcome = Outcome::Done;
            let mut before = None;
            for number in 0..job.rows.len() {
                if !room.fits(&job, number) {
                    let note = room.shortage(&job, number);
                    if shows_table {
                        report::skipped(&mut out, &note)?;
                    }
                    gpu.skipped.push(note);
                    continue;
                }
                progress.show(&table::progress(number, &job, began.elapsed()));
                let measured = bench.row(number);
                progress.clear();
                match measured {
                    Ok(row) => {
                        if shows_table {
                            let above = before.replace(row.case);
                            table::row(&mut out, &job, &row, above, form)?;
                        }
                        rows.push(row);
                    }
                    Err(error) => {
                        outcome = Outcome::Failed(error.to_string());
                        break;
                    }
                }
            }
            gpu.weft_bytes = bench.own_bytes().ok();
            outcome
        }
    };
    if shows_table {
        report::memory(&mut out, &gpu)?;
    }
    drop(out);
    let (pids, hosts) = (vec![std::process::id(); job.ranks], vec![0; job.ranks]);
    let crew = Crew { are_threads: true, launcher: None, pids, hosts };
    let machine = Machine::default();
    let run = Run { job: &job, crew, started, machine, rows, matrices: None, outcome, gpu: Some(gpu) };
    finish(args, files, run, least)
}

/// The GPU with a number.
fn device(number: usize) -> Result<Device, Failure> {
    let mut devices = Driver::load().and_then(Driver::devices).map_err(Failure::finding)?;
    match devices.len() {
        0 => Err(Failure::finding(anyhow!(
            "the driver shows no GPU: check `nvidia-smi` and CUDA_VISIBLE_DEVICES"
        ))),
        count if number >= count => misuse(format!(
            "--device {number}: there {} {}, numbered from 0 in the order of CUDA_VISIBLE_DEVICES",
            if count == 1 { "is" } else { "are" },
            counted(count, "GPU")
        )),
        _ => Ok(devices.swap_remove(number)),
    }
}

/// The blocks of a case on the rank that has most, as bytes of its input and output buffer. In place, both are in the output.
fn buffer_bytes(job: &Job, row: usize) -> [usize; 2] {
    let (case, count) = job.rows[row];
    let case = &job.cases[case];
    let (gives, gets) = case.collective.blocks(job.ranks as u32);
    let block = count * case.data_type.bytes();
    [gives as usize * block, gives.max(gets) as usize * block]
}
