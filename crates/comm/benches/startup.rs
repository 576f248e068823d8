//! Start-up time of ranks that are processes: from the start of the first until the last runs (*started*), has joined (*met*),
//! has a communicator (*ready*) and has completed a first all-reduce of eight bytes (*called*), which includes proving and
//! compiling its plan. For comparison, the time to start as many idle processes and to wait for their end (*floor*).
//!
//! `cargo bench -p weftlink-comm --bench startup -- --ranks 256` measures 2, 4, ..., 256 ranks on this machine, which join over
//! an abstract socket and over TCP; `--repetitions` sets the number of repetitions. The table shows medians.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::time::{ClockId, clock_gettime};
use weftlink_comm::bootstrap::{Bootstrap, Rendezvous, RendezvousAddress, Token};
use weftlink_comm::{Communicator, Error, Options, Reduction};
use weftlink_testkit::ports::reserved;

/// Set for a rank process: its rank, the number of ranks, and the rendezvous address.
const ROLE: &str = "WEFT_STARTUP_ROLE";
const TOKEN: &str = "WEFT_STARTUP_TOKEN";
const STAGES: [&str; 5] = ["floor", "started", "met", "ready", "called"];
/// The role of a process that does nothing.
const IDLE: &str = "idle";
const DEADLINE: Duration = Duration::from_secs(120);
const RANKS: usize = 16;
const REPETITIONS: usize = 5;

fn main() -> ExitCode {
    let done = match std::env::var(ROLE) {
        Ok(role) if role == IDLE => Ok(()),
        Ok(role) => rank(&role).map_err(|error| format!("{role}: {error}")),
        Err(_) => options().and_then(|(ranks, repetitions)| measure(ranks, repetitions)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("startup: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The most ranks and the repetitions. Cargo adds `--bench`.
fn options() -> Result<(usize, usize), String> {
    let (mut ranks, mut repetitions) = (RANKS, REPETITIONS);
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(word) = words.next() {
        let number = words.next().and_then(|number| number.parse().ok()).filter(|number| *number > 0);
        match (word.as_str(), number) {
            ("--ranks", Some(number)) => ranks = number,
            ("--repetitions", Some(number)) => repetitions = number,
            _ => return Err(format!("{word}: say --ranks RANKS or --repetitions TIMES")),
        }
    }
    Ok((ranks, repetitions))
}

fn measure(most: usize, repetitions: usize) -> Result<(), String> {
    println!("ms until all ranks have, median of {repetitions}");
    println!("{:>5}  {:<8}{}", "ranks", "place", STAGES.map(|stage| format!("{stage:>10}")).concat());
    for ranks in std::iter::successors(Some(2), |ranks| Some(2 * ranks)).take_while(|ranks| *ranks <= most) {
        for place in ["abstract", "tcp"] {
            let mut samples: Vec<[f64; 5]> = Vec::new();
            for repetition in 0..repetitions {
                let floor = floor(ranks)?;
                let [started, met, ready, called] = once(ranks, place, repetition)?;
                samples.push([floor, started, met, ready, called]);
            }
            let median = |stage: usize| {
                let mut times: Vec<f64> = samples.iter().map(|sample| sample[stage]).collect();
                times.sort_by(f64::total_cmp);
                format!("{:>10.2}", times[times.len() / 2])
            };
            println!("{ranks:>5}  {place:<8}{}", [0, 1, 2, 3, 4].map(median).concat());
        }
    }
    Ok(())
}

/// Ranks that are killed when this is dropped.
struct Ranks(Vec<Child>);

impl Drop for Ranks {
    fn drop(&mut self) {
        // Both fail only for processes that have ended already.
        self.0.iter_mut().for_each(|rank| drop(rank.kill()));
        self.0.iter_mut().for_each(|rank| drop(rank.wait()));
    }
}

/// The milliseconds to start this many processes that exit at once, and to wait for them.
fn floor(processes: usize) -> Result<f64, String> {
    let failed = |error: std::io::Error| format!("{processes} processes that do nothing: {error}");
    let program = std::env::current_exe().map_err(failed)?;
    let began = now();
    let mut started = Ranks(Vec::new());
    for _ in 0..processes {
        let child = Command::new(&program).env(ROLE, IDLE).stdout(Stdio::piped()).spawn();
        started.0.push(child.map_err(failed)?);
    }
    started.0.iter_mut().try_for_each(|child| child.wait().map(drop)).map_err(failed)?;
    Ok(now() - began)
}

/// Starts the ranks once: the milliseconds until the last has reached each stage.
fn once(ranks: usize, place: &str, repetition: usize) -> Result<[f64; 4], String> {
    let failed = |error: &dyn std::fmt::Display| format!("{ranks} ranks by {place}: {error}");
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let token = format!("startup {} {}", std::process::id(), now());
    let place = match place {
        "tcp" => format!("tcp {}", reserved()),
        _ => format!("abstract weft-startup-{}-{ranks}-{repetition}", std::process::id()),
    };
    let began = now();
    let mut started = Ranks(Vec::new());
    for rank in 0..ranks {
        let child = Command::new(&program)
            .env(ROLE, format!("{rank} {ranks} {place}"))
            .env(TOKEN, &token)
            .stdout(Stdio::piped())
            .spawn();
        started.0.push(child.map_err(|error| failed(&error))?);
    }
    let mut latest = [began; 4];
    for child in &mut started.0 {
        let mut line = String::new();
        let output = child.stdout.take().ok_or_else(|| failed(&"no output"))?;
        BufReader::new(output).read_line(&mut line).map_err(|error| failed(&error))?;
        let times: Vec<f64> = line.split_whitespace().filter_map(|time| time.parse().ok()).collect();
        if times.len() != latest.len() {
            return Err(failed(&"a rank failed"));
        }
        latest.iter_mut().zip(times).for_each(|(latest, time)| *latest = latest.max(time));
    }
    Ok(latest.map(|time| time - began))
}

fn rank(role: &str) -> Result<(), String> {
    let mut times = vec![now()];
    // Ranks end if the benchmark is interrupted.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| error.to_string())?;
    let bad = |what: &str| format!("{what} is missing");
    let words: Vec<&str> = role.split_whitespace().collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<usize>().ok());
    let (rank, size) = number(0).zip(number(1)).ok_or_else(|| bad("the rank"))?;
    let place = match words[2..] {
        ["tcp", port] => {
            let port = port.parse().map_err(|_| bad("the port"))?;
            RendezvousAddress::Tcp { host: "127.0.0.1".to_owned(), ports: port..=port }
        }
        [_, name] => RendezvousAddress::Abstract(name.to_owned()),
        _ => return Err(bad("the place")),
    };
    let work = || -> Result<(), Error> {
        let token = Token::new(std::env::var(TOKEN).unwrap_or_default())?;
        let meeting = Rendezvous::new(place, token, size, DEADLINE);
        let met = if rank == 0 { Bootstrap::listen(&meeting)? } else { Bootstrap::join(&meeting, rank)? };
        times.push(now());
        let mut comm = Communicator::new(met, Options { deadline: DEADLINE, ..Options::default() })?;
        times.push(now());
        let mut sum = [1.0_f64];
        comm.all_reduce(&mut sum, Reduction::Sum)?;
        times.push(now());
        // No rank leaves while others still start.
        comm.barrier()
    };
    work().map_err(|error| error.to_string())?;
    let line = times.iter().map(|time| format!("{time:.3} ")).collect::<String>();
    writeln!(std::io::stdout(), "{line}").map_err(|error| error.to_string())
}

/// Milliseconds of the clock that all processes share.
fn now() -> f64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 * 1e3 + now.tv_nsec as f64 / 1e6
}
