//! Four ranks sum their gradients bucket by bucket, each while they compute the next one.
//!
//! `cargo run --release -p weftlink --example 04-overlap`

use weftlink::{Error, Reduction};

const BUCKETS: usize = 8;
const ELEMENTS: usize = 250_000;

fn main() -> Result<(), Error> {
    let sums = weftlink::on_threads(4, |comm| {
        let rank = comm.rank();
        let background = comm.into_background()?;

        // The buckets of a backward pass, last layer first. Each is reduced while the next is computed.
        let pending: Vec<_> = (0..BUCKETS)
            .rev()
            .map(|layer| background.all_reduce(gradients(rank, layer), Reduction::Sum))
            .collect();

        // The buffers come back with the sums in them.
        let sums = pending.into_iter().map(|call| Ok(call.wait()?.buffers[ELEMENTS - 1]));
        sums.collect::<Result<Vec<f32>, Error>>()
    })?;
    assert!(sums.iter().all(|of_rank| *of_rank == sums[0]));
    println!("every rank holds {:?}", sums[0]);
    Ok(())
}

/// A substitute for the backward pass of a layer.
fn gradients(rank: usize, layer: usize) -> Vec<f32> {
    (0..ELEMENTS).map(|element| (element % 100 * (rank + 1)) as f32 + layer as f32).collect()
}
