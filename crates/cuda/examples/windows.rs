//! Two ranks on one GPU put to each other's window in turn: microseconds of a message one way, by bytes, checked. `host`: copies and signals
//! that the host enqueues; `kernel`: the same in one kernel of the program, with one block.
//!
//!     cargo run --release -p weftlink-cuda --example windows -- --bytes 8,64k,1m --rounds 100 --runs 15
//!
//! The output is CSV: the median, the least and the largest of the runs.
#![allow(unsafe_code)] // Launches a kernel.
#![allow(clippy::unwrap_used, reason = "an example ends at the first error")]

use weftlink_cuda::driver::{Event, Function, Launch, Module, Parameters};
use weftlink_cuda::nvrtc::{Nvrtc, Program};
use weftlink_cuda::{Buffer, Error, Rank, WINDOW_H, Window, cache, devices, on_threads, queues};

const KERNEL: &str = r#"
extern "C" __global__ void ping_pong(weft::Window window, const float *from, unsigned long long bytes, unsigned int rounds) {
    unsigned int peer = 1 - window.rank;
    for (unsigned int round = 0; round < rounds; round++) {
        if (window.rank == 1 && !weft::wait(window, peer)) return;
        weft::put(window, peer, 0, from, bytes);
        weft::signal(window, peer);
        if (window.rank == 0 && !weft::wait(window, peer)) return;
    }
}
"#;
const LAUNCH: Launch = Launch { blocks: 1, threads: 512, shared_bytes: 0, is_cooperative: false };

struct Options {
    bytes: Vec<usize>,
    rounds: u32,
    runs: usize,
}

fn main() {
    let mut options = Options { bytes: vec![8, 4 << 10, 64 << 10, 1 << 20, 16 << 20], rounds: 100, runs: 15 };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let text = arguments.next().unwrap_or_else(|| panic!("{name} needs a value"));
        match &*name {
            "--bytes" => options.bytes = text.split(',').map(number).collect(),
            "--rounds" => options.rounds = number(&text).max(1) as u32,
            "--runs" => options.runs = number(&text).max(1),
            name => panic!("{name}: the options are --bytes, --rounds and --runs"),
        }
    }
    queues::use_all();
    let rows = on_threads(&devices().unwrap()[0], 2, |rank| measure(rank, &options)).unwrap();
    println!("by,bytes,us,us_min,us_max");
    rows[0].iter().for_each(|row| println!("{row}"));
}

/// A number, with `k` or `m` for powers of 1024.
fn number(text: &str) -> usize {
    let (digits, shift) = match text.find(['k', 'm']).map(|at| text.split_at(at)) {
        Some((digits, "k")) => (digits, 10),
        Some((digits, "m")) => (digits, 20),
        _ => (text, 0),
    };
    digits.parse::<usize>().unwrap_or_else(|why| panic!("{text}: {why}")) << shift
}

fn measure(rank: &mut Rank, options: &Options) -> Result<Vec<String>, Error> {
    let ping_pong = ping_pong(rank)?;
    let context = rank.stream().context().clone();
    let [start, end] = [Event::with_timing(&context)?, Event::with_timing(&context)?];
    let mut rows = Vec::new();
    for &bytes in &options.bytes {
        let count = bytes.div_ceil(4);
        let window = rank.window::<f32>(count)?;
        for by in ["host", "kernel"] {
            let mut times = Vec::new();
            for run in 0..=options.runs {
                let value = |rank: usize| (rank + 2 * run) as f32;
                let sent = rank.buffer_of(&vec![value(rank.rank()); count])?;
                rank.barrier()?;
                start.record(rank.stream())?;
                match by {
                    "host" => take_turns(rank, &window, &sent, options.rounds)?,
                    _ => launch(rank, &window, &sent, &ping_pong, options.rounds)?,
                }
                end.record(rank.stream())?;
                let mut got = rank.buffer(count)?;
                rank.get(&window, rank.rank(), 0, &mut got)?;
                let expected = value(1 - rank.rank());
                assert!(rank.read(&got)?.iter().all(|found| *found == expected), "{by}, {bytes} bytes");
                // The first run warms up.
                if run > 0 {
                    times
                        .push(end.elapsed_since(&start)?.as_secs_f64() * 1e6 / f64::from(2 * options.rounds));
                }
            }
            times.sort_by(f64::total_cmp);
            let [least, median, largest] = [0, times.len() / 2, times.len() - 1].map(|at| times[at]);
            rows.push(format!("{by},{bytes},{median:.2},{least:.2},{largest:.2}"));
        }
    }
    Ok(rows)
}

fn take_turns(rank: &mut Rank, window: &Window<f32>, sent: &Buffer<f32>, rounds: u32) -> Result<(), Error> {
    let (own, peer) = (rank.rank(), 1 - rank.rank());
    for _ in 0..rounds {
        if own == 1 {
            rank.wait(window, peer)?;
        }
        rank.put(sent, window, peer, 0)?;
        rank.signal(window, peer)?;
        if own == 0 {
            rank.wait(window, peer)?;
        }
    }
    Ok(())
}

fn launch(
    rank: &mut Rank,
    window: &Window<f32>,
    sent: &Buffer<f32>,
    kernel: &Function,
    rounds: u32,
) -> Result<(), Error> {
    let (window, from) = (rank.device_window(window)?, sent.address());
    let bytes = (sent.len() * size_of::<f32>()) as u64;
    let parameters = [
        (&raw const window).cast(),
        (&raw const from).cast(),
        (&raw const bytes).cast(),
        (&raw const rounds).cast(),
    ];
    // SAFETY: these are the parameters of the kernel; the caller reads results, and so waits, before it drops the buffer and the window.
    unsafe { kernel.launch(rank.stream(), LAUNCH, Parameters::Pointers(&parameters)) }
}

fn ping_pong(rank: &Rank) -> Result<Function, Error> {
    let context = rank.stream().context();
    let device = context.device();
    let nvrtc = Nvrtc::find(device.architecture, device.driver().version().ok())?;
    let architecture = nvrtc.target_for(device.architecture).unwrap_or(device.architecture);
    let source = format!("{WINDOW_H}{KERNEL}");
    let program = Program { name: "ping_pong.cu", source: &source, options: &[], architecture };
    let function = Module::load(context, &cache::cubin(&nvrtc, &program)?.0)?.function("ping_pong")?;
    // Loads it before a kernel waits.
    function.attributes()?;
    Ok(function)
}
