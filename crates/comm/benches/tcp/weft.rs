//! The same between ranks: messages from one to another beside the bare loops, and all-reduces by every algorithm.

use std::time::{Duration, Instant};

use weftlink_comm::bootstrap::{Bootstrap, Network, Rendezvous, RendezvousAddress, Token};
use weftlink_comm::{Communicator, Error, Options as Ways, Reduction, Request};
use weftlink_plan::{Algorithm, Collective};
use weftlink_testkit::ports::reserved_range;

use crate::samples::{CHECKED, PLAIN, POLLED, STREAM, Samples, THERE_AND_BACK, WEFT};
use crate::{Options, bare, pin};

const DEADLINE: Duration = Duration::from_secs(60);
/// The least bytes of a sample, unless that takes too many calls.
const SAMPLE_BYTES: usize = 32 << 20;
const CALLS_MAX: usize = 2000;
const ROUND_TRIPS: usize = 2000;
const ALL_REDUCE_BYTES: usize = 8 << 20;
const ALL_REDUCES_MAX: usize = 200;

/// One sample: group, way, bytes, nanoseconds.
type Sample = (&'static str, String, usize, f64);

/// Messages between two ranks, in turn with the bare loops, on the same two threads.
pub(crate) fn messages(options: &Options, samples: &mut Samples) -> Result<(), String> {
    let sides = bare::connected(options.streams, options.bytes_max).map_err(|error| error.to_string())?;
    let sides: Vec<_> = sides.into_iter().map(|side| std::sync::Mutex::new(Some(side))).collect();
    let results = on_hosts(2, 1, options, |comm| {
        let rank = comm.rank();
        pin(rank, 2);
        let side = sides[rank].lock().map(|mut side| side.take());
        let Ok(Some(mut side)) = side else { return Err("a side of the bare loop is missing".to_owned()) };
        exchange(comm, &mut side, options)
    })?;
    // The sender's samples, which include the answer.
    for (group, way, bytes, ns) in results.into_iter().next().unwrap_or_default() {
        samples.add(group, &way, bytes, ns);
    }
    Ok(())
}

fn exchange(mut comm: Communicator, side: &mut bare::Side, options: &Options) -> Result<Vec<Sample>, String> {
    let is_first = comm.rank() == 0;
    let mut samples = Vec::new();
    let failed = |error: std::io::Error| error.to_string();
    let message = |error: Error| error.to_string();
    let mut buffer = vec![1_u8; options.bytes_max.max(8)];
    for _ in 0..=options.repetitions {
        for (way, polls) in [(PLAIN, false), (POLLED, true)] {
            let ns = side.there_and_back(is_first, polls, ROUND_TRIPS).map_err(failed)?;
            samples.push((THERE_AND_BACK, way.to_owned(), 8, ns));
        }
        let began = Instant::now();
        for _ in 0..ROUND_TRIPS {
            send(&mut comm, &mut buffer[..8], 0)
                .and_then(|()| send(&mut comm, &mut buffer[..8], 1))
                .map_err(message)?;
        }
        let ns = began.elapsed().as_nanos() as f64 / ROUND_TRIPS as f64;
        samples.push((THERE_AND_BACK, WEFT.to_owned(), 8, ns));
    }
    for bytes in sizes(1 << 10, 4, options.bytes_max) {
        let times = (SAMPLE_BYTES / bytes).clamp(1, CALLS_MAX);
        for _ in 0..=options.repetitions {
            for (way, checks) in [(PLAIN, false), (CHECKED, true)] {
                let ns = side.stream(is_first, checks, bytes, times).map_err(failed)?;
                samples.push((STREAM, way.to_owned(), bytes, ns));
            }
            let began = Instant::now();
            for _ in 0..times {
                send(&mut comm, &mut buffer[..bytes], 0).map_err(message)?;
            }
            send(&mut comm, &mut buffer[..1], 1).map_err(message)?;
            let ns = began.elapsed().as_nanos() as f64 / times as f64;
            samples.push((STREAM, WEFT.to_owned(), bytes, ns));
        }
    }
    Ok(warm(samples))
}

/// A message from one of two ranks to the other.
fn send(comm: &mut Communicator, buffer: &mut [u8], from: u32) -> Result<(), Error> {
    let (messages, bytes) = ([(from, 1 - from)], buffer.len());
    match comm.rank() as u32 == from {
        true => comm.send_receive((&buffer[..], &mut [][..]), &messages, bytes),
        false => comm.send_receive((&[][..], &mut buffer[..]), &messages, bytes),
    }
}

/// All-reduces on simulated hosts, by every algorithm that crosses them. Returns the chosen algorithm by bytes.
pub(crate) fn all_reduces(
    options: &Options,
    hosts: usize,
    per_host: usize,
    group: &str,
    samples: &mut Samples,
) -> Result<Vec<(usize, String)>, String> {
    let results = on_hosts(hosts * per_host, per_host, options, |comm| {
        pin(comm.rank(), comm.size());
        reduce(comm, options).map_err(|error| error.to_string())
    })?;
    let chosen = results.first().map(|(chosen, _)| chosen.clone()).unwrap_or_default();
    // A call ends when the last rank has finished.
    let ranks: Vec<Vec<Sample>> = results.into_iter().map(|(_, samples)| samples).collect();
    for (at, (_, way, bytes, _)) in
        ranks.iter().flat_map(|samples| samples.iter().enumerate()).take(ranks[0].len())
    {
        let latest = ranks.iter().map(|samples| samples[at].3).fold(0.0, f64::max);
        samples.add(group, way, *bytes, latest);
    }
    Ok(chosen)
}

type Reduced = (Vec<(usize, String)>, Vec<Sample>);

fn reduce(mut comm: Communicator, options: &Options) -> Result<Reduced, Error> {
    let collective = Collective::AllReduce;
    let mut plans = Vec::new();
    for algorithm in Algorithm::doing(&collective) {
        match comm.built_in(algorithm, &collective) {
            Ok(plan) => plans.push((algorithm.to_string(), plan)),
            // Algorithms that access peers' memory stay inside a host.
            Err(Error::Misuse(_)) => {}
            Err(error) => return Err(error),
        }
    }
    let (mut chosen, mut samples) = (Vec::new(), Vec::new());
    let mut values = vec![1.0_f32; options.bytes_max / 4];
    for bytes in sizes(8, 8, options.bytes_max) {
        let times = (ALL_REDUCE_BYTES / bytes).clamp(1, ALL_REDUCES_MAX);
        let values = &mut values[..bytes / 4];
        let request = Request::new(&collective, &mut values[..]).operation(Reduction::Maximum);
        chosen.push((bytes, comm.plan_of(request)?.name.clone()));
        for _ in 0..=options.repetitions {
            for (name, plan) in &plans {
                comm.barrier()?;
                let began = Instant::now();
                for _ in 0..times {
                    comm.run(
                        Request::new(&collective, &mut values[..]).operation(Reduction::Maximum).plan(*plan),
                    )?;
                }
                let ns = began.elapsed().as_nanos() as f64 / times as f64;
                samples.push(("", name.clone(), bytes, ns));
            }
        }
    }
    Ok((chosen, warm(samples)))
}

/// Without the first sample of each kind, for which plans are compiled and memory is touched first.
fn warm(samples: Vec<Sample>) -> Vec<Sample> {
    let mut seen: Vec<(&str, String, usize)> = Vec::new();
    let is_known = |(group, way, bytes, _): &Sample| {
        let key = (*group, way.clone(), *bytes);
        let known = seen.contains(&key);
        if !known {
            seen.push(key);
        }
        known
    };
    samples.into_iter().filter(is_known).collect()
}

fn sizes(from: usize, by: usize, to: usize) -> impl Iterator<Item = usize> {
    let last = std::iter::once(to).filter(move |to| *to > from);
    let before = std::iter::successors(Some(from), move |bytes| bytes.checked_mul(by));
    before.take_while(move |bytes| *bytes < to).chain(last)
}

/// Runs the work on ranks that are threads on simulated hosts. Returns the results by rank.
fn on_hosts<T: Send>(
    size: usize,
    per_host: usize,
    options: &Options,
    work: impl Fn(Communicator) -> Result<T, String> + Sync,
) -> Result<Vec<T>, String> {
    let place = RendezvousAddress::Tcp { host: "127.0.0.1".to_owned(), ports: reserved_range() };
    let token = Token::random().map_err(|error| error.to_string())?;
    let meeting = Rendezvous::new(place, token, size, DEADLINE);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // Each takes itself for the only rank of its host.
    let spin = Some(size <= cores);
    let ways = Ways { deadline: DEADLINE, spin, streams: options.streams as u32, ..Ways::default() };
    let rank = |rank: usize| {
        let network = Network { pretended_host: Some(1 + (rank / per_host) as u64), ..Network::default() };
        let meeting = Rendezvous { network, ..meeting.clone() };
        let met = if rank == 0 { Bootstrap::listen(&meeting) } else { Bootstrap::join(&meeting, rank) };
        let comm = met.map_err(Error::from).and_then(|met| Communicator::new(met, ways));
        work(comm.map_err(|error| format!("rank {rank}: {error}"))?)
    };
    std::thread::scope(|scope| {
        let rank = &rank;
        let ranks: Vec<_> = (0..size).map(|number| scope.spawn(move || rank(number))).collect();
        ranks.into_iter().map(|rank| rank.join().map_err(|_| "a rank panicked".to_owned())?).collect()
    })
}
