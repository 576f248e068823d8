//! Four ranks, which are threads, sum their gradients: first in ordinary memory, then in symmetric memory without a copy.
//!
//! `cargo run --release -p weftlink --example 01-all-reduce`

use weftlink::Reduction;

fn main() -> Result<(), weftlink::Error> {
    let sums = weftlink::on_threads(4, |mut comm| {
        let mut gradients = vec![comm.rank() as f32; 1_000_000];
        comm.all_reduce(&mut gradients, Reduction::Sum)?;

        let mut window = comm.window::<f32>(1_000_000)?;
        window.fill(comm.rank() as f32);
        comm.all_reduce(&mut window, Reduction::Sum)?;

        assert_eq!(gradients[..], window[..]);
        Ok(gradients[0])
    })?;
    println!("every rank holds 0 + 1 + 2 + 3 = {sums:?}");
    Ok(())
}
