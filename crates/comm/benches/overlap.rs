//! The part of an all-reduce that overlaps with its caller's computation.
//!
//!     cargo bench -p weftlink-comm --bench overlap -- [--ranks 2] [--bytes 67108864] [--repetitions 15] [--processes] [--window]
//!
//! All ranks start together and measure three times: the call alone, the computation alone, and both, with the call started before the
//! computation and awaited after it. The data of the computation fits into a core's cache, and it takes about 1.3 times as long as the call, so
//! that all of the call could be hidden. The slowest rank of each repetition counts. The output has the medians, and
//!
//!     hidden = 1 - (both - computing) / call
//!
//! A rank needs two cores, one for each of its threads; with fewer cores the result shows that shortage.

use std::process::Command;
use std::time::{Duration, Instant};

use weftlink_comm::bootstrap::{Bootstrap, Rendezvous, RendezvousAddress, Token};
use weftlink_comm::{Background, Communicator, Error, Options, OwnedBuffers, Reduction};

const DEADLINE: Duration = Duration::from_secs(60);
const RANK: &str = "WEFT_BENCH_RANK";
const WARM_UPS: usize = 3;
/// Floats that are computed with: 128 KiB.
const CACHED: usize = 32 << 10;

#[derive(Clone, Copy)]
struct Wanted {
    ranks: usize,
    bytes: usize,
    repetitions: usize,
    processes: bool,
    window: bool,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let wanted = Wanted::asked()?;
    let Wanted { ranks, bytes, repetitions, .. } = wanted;
    let times = if !wanted.processes {
        let options = Options { deadline: DEADLINE, ..Options::default() };
        let ends = Communicator::threads(ranks, options)?;
        let times: Result<Vec<_>, Error> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                ends.into_iter().map(|comm| scope.spawn(move || measure(comm, wanted))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a rank runs through")).collect()
        });
        times?.remove(0)
    } else if let Ok(rank) = std::env::var(RANK) {
        // Another process's rank: rank 0 prints.
        measure(meet(wanted, rank.parse()?)?, wanted)?;
        return Ok(());
    } else {
        let others = (1..ranks).map(|rank| {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(std::env::args().skip(1)).env(RANK, rank.to_string()).env(PARENT, id()).spawn()
        });
        let others = others.collect::<Result<Vec<_>, _>>()?;
        let times = measure(meet(wanted, 0)?, wanted)?;
        for mut other in others {
            other.wait()?;
        }
        times
    };
    let [call, compute, both] = [0, 1, 2].map(|kind| median(times.iter().map(|of| of[kind]).collect()));
    let hidden = 1.0 - (both - compute) / call;
    let kind = if wanted.processes { "processes" } else { "threads" };
    let memory = if wanted.window { "symmetric" } else { "ordinary" };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("all-reduce of {bytes} bytes in {memory} memory, {ranks} ranks ({kind}) on {cores} cores");
    println!("medians of {repetitions}: call {call:.3} ms, computing {compute:.3} ms, both {both:.3} ms");
    println!("hidden: {:.1} %", 100.0 * hidden);
    Ok(())
}

const PARENT: &str = "WEFT_BENCH_PARENT";

fn id() -> String {
    std::env::var(PARENT).unwrap_or_else(|_| std::process::id().to_string())
}

fn meet(wanted: Wanted, rank: usize) -> Result<Communicator, Error> {
    let place = RendezvousAddress::Abstract(format!("weft-overlap-{}", id()));
    let meeting = Rendezvous::new(place, Token::new(id())?, wanted.ranks, DEADLINE);
    let met = if rank == 0 { Bootstrap::listen(&meeting)? } else { Bootstrap::join(&meeting, rank)? };
    Communicator::new(met, Options { deadline: DEADLINE, ..Options::default() })
}

/// Milliseconds of the slowest rank, by repetition: the call, the computing, both.
fn measure(mut comm: Communicator, wanted: Wanted) -> Result<Vec<[f64; 3]>, Error> {
    let length = wanted.bytes / size_of::<f32>();
    if wanted.window {
        let window = comm.window::<f32>(length)?;
        times(&comm.into_background()?, window, wanted)
    } else {
        times(&comm.into_background()?, vec![0.0_f32; length], wanted)
    }
}

fn times<B: OwnedBuffers>(
    background: &Background,
    mut buffers: B,
    wanted: Wanted,
) -> Result<Vec<[f64; 3]>, Error> {
    let mut cached = vec![1.0_f32; CACHED];
    let mut rounds = 1;
    let mut all = Vec::new();
    for repetition in 0..WARM_UPS + wanted.repetitions {
        let mut mine = [0.0; 3];
        for (kind, milliseconds) in mine.iter_mut().enumerate() {
            background.barrier().wait()?;
            let began = Instant::now();
            if kind == 1 {
                compute(&mut cached, rounds);
            } else {
                let call = background.all_reduce(buffers, Reduction::Sum);
                if kind == 2 {
                    compute(&mut cached, rounds);
                }
                buffers = call.wait()?;
            }
            *milliseconds = began.elapsed().as_secs_f64() * 1e3;
        }
        let slowest = background.all_reduce(mine.to_vec(), Reduction::Maximum).wait()?;
        let slowest = [slowest[0], slowest[1], slowest[2]];
        if repetition < WARM_UPS {
            // All ranks have the same numbers, so all compute as long.
            let wanted_ms = 1.3 * slowest[0];
            rounds = ((rounds as f64 * wanted_ms / slowest[1].max(1e-6)) as usize).clamp(1, 1 << 30);
        } else {
            all.push(slowest);
        }
    }
    // Keeps the computation.
    assert!(cached.iter().all(|value| value.is_finite()));
    Ok(all)
}

fn compute(values: &mut [f32], rounds: usize) {
    for _ in 0..rounds {
        values.iter_mut().for_each(|value| *value = *value * 0.999 + 0.001);
        std::hint::black_box(&mut *values);
    }
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

impl Wanted {
    fn asked() -> Result<Self, String> {
        let mut wanted =
            Wanted { ranks: 2, bytes: 64 << 20, repetitions: 15, processes: false, window: false };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut number = || {
                let value = arguments.next().and_then(|value| value.parse::<usize>().ok());
                value.filter(|value| *value > 0).ok_or(format!("{argument} needs a number"))
            };
            match argument.as_str() {
                "--ranks" => wanted.ranks = number()?,
                "--bytes" => wanted.bytes = number()?,
                "--repetitions" => wanted.repetitions = number()?,
                "--processes" => wanted.processes = true,
                "--window" => wanted.window = true,
                // Cargo's own.
                "--bench" => {}
                other => return Err(format!("{other} is not known; the head of the file tells what is")),
            }
        }
        Ok(wanted)
    }
}
