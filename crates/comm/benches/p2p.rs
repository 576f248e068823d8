//! Latency of a message between two processes, by its length: half a round trip, with pulls and through rings; beside it, the time of
//! a copy of as many bytes.
//!
//! `cargo bench -p weftlink-comm --bench p2p` prints the median of short repetitions, and the minimum.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use weftlink_comm::bootstrap::{Bootstrap, Rendezvous, RendezvousAddress, Token};
use weftlink_comm::{Communicator, Endpoint, Error, Options};

/// Set for the process of rank 1: the rendezvous address.
const ROLE: &str = "WEFT_BENCH_P2P";
const LENGTHS: [usize; 12] =
    [0, 8, 32, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20];
const REPETITIONS: usize = 15;
const TIME: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let done = match std::env::var(ROLE) {
        Ok(place) => rank(1, &place),
        Err(_) => [true, false].into_iter().try_for_each(measure),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("p2p: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(single_copy: bool) -> Result<(), String> {
    let place = format!("weft-bench-endpoint-{}-{single_copy}", std::process::id());
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut other = Command::new(program).env(ROLE, &place).spawn().map_err(|error| error.to_string())?;
    println!("{}", if single_copy { "pulled" } else { "through rings" });
    println!("{:>10}  {:>12}  {:>12}  {:>12}", "bytes", "median, us", "min, us", "copy, us");
    let done = rank(0, &place);
    let ended = other.wait().map_err(|error| error.to_string())?;
    done?;
    if ended.success() { Ok(()) } else { Err(format!("rank 1: {ended}")) }
}

fn rank(rank: usize, place: &str) -> Result<(), String> {
    pin(rank);
    let single_copy = Some(place.ends_with("true"));
    let options = Options { deadline: TIME, single_copy, ..Options::default() };
    let token = Token::new("endpoint").map_err(|error| error.to_string())?;
    let meeting = Rendezvous::new(RendezvousAddress::Abstract(place.to_owned()), token, 2, TIME);
    let met = if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, rank) };
    let comm = met.map_err(Error::from).and_then(|met| Communicator::new(met, options));
    let mut comm = comm.map_err(|error| error.to_string())?;
    let endpoint = comm.endpoint().map_err(|error| error.to_string())?;
    let done =
        LENGTHS.into_iter().try_for_each(|bytes| exchange(&endpoint, bytes)).and_then(|()| comm.barrier());
    done.map_err(|error| error.to_string())
}

/// Round trips of messages of one length.
fn exchange(endpoint: &Endpoint, bytes: usize) -> Result<(), Error> {
    let rounds = (4 << 20) / (bytes + 2048) + 1;
    let (mine, mut theirs) = (vec![1_u8; bytes], vec![0_u8; bytes]);
    let mut samples_us = Vec::new();
    // The first repetition warms the caches.
    for _ in 0..=REPETITIONS {
        let began = Instant::now();
        for _ in 0..rounds {
            if endpoint.rank() == 0 {
                endpoint.send(1, 0, &mine, TIME)?;
                endpoint.receive(Some(1), 0, &mut theirs, TIME)?;
            } else {
                endpoint.receive(Some(0), 0, &mut theirs, TIME)?;
                endpoint.send(0, 0, &mine, TIME)?;
            }
        }
        samples_us.push(began.elapsed().as_secs_f64() * 1e6 / (2 * rounds) as f64);
    }
    if endpoint.rank() == 0 {
        let copy_us = copy(&mine, &mut theirs, rounds);
        let samples_us = &mut samples_us[1..];
        samples_us.sort_by(f64::total_cmp);
        let (median, least) = (samples_us[samples_us.len() / 2], samples_us[0]);
        println!("{bytes:>10}  {median:>12.2}  {least:>12.2}  {copy_us:>12.2}");
    }
    Ok(())
}

/// The minimum time of a copy.
fn copy(from: &[u8], to: &mut [u8], rounds: usize) -> f64 {
    let time = |_| {
        let began = Instant::now();
        for _ in 0..rounds {
            std::hint::black_box(&mut *to).copy_from_slice(std::hint::black_box(from));
        }
        began.elapsed().as_secs_f64() * 1e6 / rounds as f64
    };
    (0..REPETITIONS).map(time).fold(f64::INFINITY, f64::min)
}

/// Pins each rank to a core of its own.
fn pin(rank: usize) {
    let mut cores = CpuSet::new();
    cores.set(rank);
    // Without permission, the system chooses.
    let _ = sched_setaffinity(None, &cores);
}
