//! Ranks that continue after one dies: the last rank panics halfway, the others shrink the communicator.
//!
//! `cargo build -p weftlink --example 06-shrink`, then `weft run -n 4 --keep-going -- target/debug/examples/06-shrink`. With
//! the argument `stay` the others do not shrink, and fail with an error that names the rank that panicked.

use std::error::Error;
use std::process::ExitCode;

use weftlink::{Communicator, Reduction};

fn sum(comm: &mut Communicator) -> Result<f32, weftlink::Error> {
    let mut ones = [1.0; 8];
    comm.all_reduce(&mut ones, Reduction::Sum)?;
    Ok(ones[0])
}

fn run() -> Result<(), Box<dyn Error>> {
    let stays = std::env::args().nth(1).is_some_and(|word| word == "stay");
    let mut comm = Communicator::from_environment()?;
    let is_last = comm.rank() + 1 == comm.size();
    for round in 0..100 {
        assert!(!(is_last && round == 50), "this rank has a bug");
        match sum(&mut comm) {
            Ok(_) => {}
            Err(error) if stays => return Err(error.into()),
            // The new communicator shares nothing with the old one.
            Err(_) => comm = comm.shrink()?,
        }
    }
    if comm.rank() == 0 {
        println!("{} ranks are left; the sum is {}", comm.size(), sum(&mut comm)?);
    } else {
        sum(&mut comm)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let Err(error) = run() else { return ExitCode::SUCCESS };
    eprintln!("{error}");
    ExitCode::FAILURE
}
