//! Ranks that go on when one is gone: the last one ends in the middle, the others shrink to those who are left.
//!
//! `cargo build -p weftlink --example 06-shrink`, then `weft run -n 4 --keep-going -- target/debug/examples/06-shrink`. With
//! `stay` as an argument the others do not shrink: what they fail with names the rank that panicked.

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
            // Nothing of the old communicator is used by the new one.
            Err(_) => comm = comm.shrink()?,
        }
    }
    if comm.rank() == 0 {
        println!("{} ranks are left, and agree on {}", comm.size(), sum(&mut comm)?);
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
