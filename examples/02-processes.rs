//! Four ranks, which are processes, sum their gradients in shared memory.
//!
//! `cargo run --release -p weftlink --example 02-processes`

use std::error::Error;
use std::os::unix::process::parent_id;
use std::process::Command;
use std::time::Duration;
use std::{env, fs};

use weftlink::bootstrap::{Bootstrap, Meeting, Place, Token};
use weftlink::{Communicator, Options, Reduction};

const RANKS: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    match env::args().nth(1) {
        None => start(),
        Some(rank) => run(rank.parse()?),
    }
}

/// Starts this program once for each rank, and waits for all of them.
fn start() -> Result<(), Box<dyn Error>> {
    // The token keeps other processes out: other users cannot read a process's environment.
    let token = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let spawn = |rank: usize| {
        Command::new(env::current_exe()?).arg(rank.to_string()).env("JOB_TOKEN", &token).spawn()
    };
    let ranks = (0..RANKS).map(spawn).collect::<Result<Vec<_>, _>>()?;
    let ends = ranks.into_iter().map(|mut rank| rank.wait()).collect::<Result<Vec<_>, _>>()?;
    println!("{} of {RANKS} ranks succeeded", ends.iter().filter(|end| end.success()).count());
    if ends.iter().all(|end| end.success()) { Ok(()) } else { Err("a rank failed".into()) }
}

/// A rank: joins the others, allocates a window, reduces.
fn run(rank: usize) -> Result<(), Box<dyn Error>> {
    let (place, token) = (format!("weft-example-{}", parent_id()), Token::new(env::var("JOB_TOKEN")?)?);
    let deadline = Duration::from_secs(30);
    let meeting = Meeting::new(Place::Abstract(place), token, RANKS, deadline);
    let met = if rank == 0 { Bootstrap::listen(&meeting)? } else { Bootstrap::join(&meeting, rank)? };
    let mut comm = Communicator::new(met, Options { deadline, ..Options::default() })?;

    let mut window = comm.window(1_000_000)?;
    window.fill(rank as f32);
    comm.all_reduce(&mut window, Reduction::Sum)?;
    if rank == 0 {
        println!("every rank holds 0 + 1 + 2 + 3 = {}", window[0]);
    }
    Ok(())
}
