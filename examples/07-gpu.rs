//! Four ranks on one NVIDIA GPU, each a thread, sum their gradients and exchange the results. Without a GPU it says so and ends.
//!
//! `cargo run --release -p weftlink --example 07-gpu`

use weftlink::Reduction;
use weftlink::cuda::{Error, devices, on_threads};

fn main() -> Result<(), Error> {
    let Some(gpu) = devices().inspect_err(|why| println!("{why}")).unwrap_or_default().into_iter().next()
    else {
        println!("no GPU");
        return Ok(());
    };
    let sums = on_threads(&gpu, 4, |rank| {
        let mut gradients = rank.buffer_of(&vec![rank.rank() as f32; 1_000_000])?;
        rank.all_reduce(&mut gradients, Reduction::Sum)?;

        // Enqueued behind the first call, on the same stream.
        let mut all = rank.buffer(4_000_000)?;
        rank.all_gather((&gradients, &mut all))?;

        // Waits for both, and returns their errors.
        let all = rank.read(&all)?;
        assert!(all.iter().all(|sum| *sum == all[0]));
        Ok(all[0])
    })?;
    println!("{}: every rank holds 0 + 1 + 2 + 3 = {sums:?}", gpu.name);
    Ok(())
}
