//! Two ranks on one GPU, of which one comes late: something for `weft why --attach` to explain.
//!
//!     cargo run --release -p weftlink-cuda --example hang -- 60
//!
//! Both make a call. Then rank 0 makes two more, and rank 1 makes them that many seconds later.
#![allow(clippy::unwrap_used, reason = "an example ends at the first error")]

use std::time::Duration;

use weftlink_cuda::{devices, on_threads, queues};
use weftlink_plan::Reduction;

fn main() {
    let seconds = std::env::args().nth(1).map_or(60, |text| text.parse().unwrap());
    queues::use_all();
    let gpu = &devices().unwrap()[0];
    let sums = on_threads(gpu, 2, |rank| {
        let mut values = rank.buffer_of(&vec![1.0_f32; 1 << 20])?;
        rank.all_reduce(&mut values, Reduction::Sum)?;
        rank.synchronize()?;
        if rank.rank() == 1 {
            println!("rank 1 sleeps for {seconds} s: weft why --attach {}", std::process::id());
            std::thread::sleep(Duration::from_secs(seconds));
        }
        for _ in 0..2 {
            rank.all_reduce(&mut values, Reduction::Sum)?;
        }
        Ok(rank.read(&values)?[0])
    });
    println!("{:?}", sums.unwrap());
}
