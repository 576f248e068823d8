//! The cost of TCP between hosts, beside a bare loop over the same loopback: ranks are threads on simulated hosts.
//!
//! `cargo bench -p weftlink-comm --bench tcp` measures messages between two ranks (eight bytes there and back, and streams from
//! 1 KiB to 64 MiB, with 2 connections or as many as `--streams` says) and all-reduces on 2 hosts of 1, 2 hosts of 2 and 4 hosts
//! of 1, by every algorithm that can cross hosts and by the chosen one. `--part messages` or `--part all-reduce` measures
//! one of them, `--repetitions` sets how often (tables show medians), `--bytes-max` the largest size, `--csv FILE` writes every
//! sample. Variants are measured in turn, so that other load on the machine affects all alike.
//!
//! Ranks are pinned to a core each if there are enough; otherwise they yield to each other.

mod bare;
mod samples;
mod weft;

use std::process::ExitCode;

use samples::Samples;

const REPETITIONS: usize = 9;

/// What is measured.
#[derive(Clone, Debug)]
struct Options {
    messages: bool,
    all_reduce: bool,
    streams: usize,
    repetitions: usize,
    bytes_max: usize,
    csv: Option<String>,
}

fn main() -> ExitCode {
    match options().and_then(|options| measure(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tcp: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The command line. Cargo adds `--bench`.
fn options() -> Result<Options, String> {
    let mut options = Options {
        messages: true,
        all_reduce: true,
        streams: 2,
        repetitions: REPETITIONS,
        bytes_max: 64 << 20,
        csv: None,
    };
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        let value = words.next().unwrap_or_default();
        let number = || match value.parse::<usize>() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("{word} takes a number from 1, not {value:?}")),
        };
        match word.as_str() {
            "--part" => match value.as_str() {
                "messages" => options.all_reduce = false,
                "all-reduce" => options.messages = false,
                _ => return Err(format!("--part takes messages or all-reduce, not {value:?}")),
            },
            "--streams" => options.streams = number()?.min(16),
            "--repetitions" => options.repetitions = number()?,
            "--bytes-max" => options.bytes_max = number()?,
            "--csv" if !value.is_empty() => options.csv = Some(value),
            _ => {
                let known = "--part PART, --streams N, --repetitions TIMES, --bytes-max BYTES and --csv FILE";
                return Err(format!("{word}: there are {known}"));
            }
        }
    }
    Ok(options)
}

fn measure(options: &Options) -> Result<(), String> {
    let mut samples = Samples::default();
    if options.messages {
        weft::messages(options, &mut samples)?;
        samples.print_messages();
    }
    if options.all_reduce {
        for (hosts, per_host) in [(2, 1), (2, 2), (4, 1)] {
            let group = format!("{hosts} x {per_host}");
            let chosen = weft::all_reduces(options, hosts, per_host, &group, &mut samples)?;
            samples.print_all_reduces(&group, &chosen);
        }
    }
    match &options.csv {
        Some(file) => std::fs::write(file, samples.csv()).map_err(|error| format!("{file}: {error}")),
        None => Ok(()),
    }
}

/// Pins the calling thread to a core, if there is one for each.
fn pin(number: usize, of: usize) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if of <= cores {
        let mut set = rustix::thread::CpuSet::new();
        set.set(number);
        // Without permission, the numbers are only less steady.
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}
