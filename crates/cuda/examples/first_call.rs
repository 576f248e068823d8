//! What the first call of ranks on a GPU costs, step by step, as CSV in milliseconds. `WEFT_CACHE` has the kernels of earlier runs; with an empty
//! folder there, they are compiled.
//!
//!     WEFT_CACHE=$(mktemp -d) target/release/examples/first_call
//!     target/release/examples/first_call
#![allow(clippy::unwrap_used, reason = "an example ends at the first error")]

use std::time::Instant;

use weftlink_cuda::{devices, on_threads};
use weftlink_plan::Reduction;

const RANKS: usize = 4;
const COUNT: usize = 1_000_000;

fn main() {
    let mut began = Instant::now();
    let mut ended = |what: &str| {
        println!("{what},{:.3}", began.elapsed().as_secs_f64() * 1e3);
        began = Instant::now();
    };
    println!("step,ms");
    let gpu = devices().unwrap().remove(0);
    ended("driver");
    let steps = on_threads(&gpu, RANKS, |rank| {
        let mut times = vec![("ranks joined", Instant::now())];
        let mut buffer = rank.buffer_of(&vec![1_f32; COUNT])?;
        times.push(("buffer written", Instant::now()));
        for what in ["first call", "second call", "third call"] {
            rank.all_reduce(&mut buffer, Reduction::Sum)?;
            rank.synchronize()?;
            times.push((what, Instant::now()));
        }
        Ok(times)
    });
    for (what, at) in &steps.unwrap()[0] {
        println!("{what},{:.3}", (*at - began).as_secs_f64() * 1e3);
        began = *at;
    }
}
