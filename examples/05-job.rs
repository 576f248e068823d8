//! A rank of a job: the launcher passes the rank and the rendezvous in the environment.
//!
//! `cargo build --release -p weftlink --example 05-job`, then `weft run -n 4 -- target/release/examples/05-job`; torchrun,
//! mpirun and srun work too. The optional argument is the number of calls.

use std::error::Error;
use std::process::ExitCode;

use weftlink::{Communicator, Reduction};

fn run() -> Result<(), Box<dyn Error>> {
    let rounds: u64 = std::env::args().nth(1).map_or(Ok(1), |rounds| rounds.parse())?;
    let mut comm = Communicator::from_environment()?;
    let mut sums = vec![0.0; 1000];
    for _ in 0..rounds {
        sums.fill(comm.rank() as f32);
        comm.all_reduce(&mut sums, Reduction::Sum)?;
    }
    if comm.rank() == 0 {
        println!("each of {} ranks holds {}", comm.size(), sums[0]);
    }
    Ok(())
}

fn main() -> ExitCode {
    let Err(error) = run() else { return ExitCode::SUCCESS };
    eprintln!("{error}");
    ExitCode::FAILURE
}
