//! All-reduce of several ranks on one GPU, as nodes of a CUDA graph: microseconds of a call by plan and size, checked. `weft bench --gpu`
//! measures what a user gets; this measures two plans and their kernels, and is small enough that `bench/gpu/compare.py` can run builds
//! of different kernels in turn.
//!
//!     cargo run --release -p weftlink-cuda --example graphs -- --ranks 2,4,8 --bytes 8,64k,1m --runs 15
//!
//! The output is CSV: the median, the least and the largest of the runs.
#![allow(clippy::unwrap_used, reason = "an example ends at the first error")]

use std::time::Duration;

use weftlink_cuda::driver::{Device, Driver};
use weftlink_cuda::ranks::{Call, Ranks, Side};
use weftlink_cuda::{adapted, queues};
use weftlink_plan::plan::Protocol;
use weftlink_plan::{Algorithm, Aliasing, Collective, DataType, Reduction, verify};

const TIMEOUT: Duration = Duration::from_secs(10);
/// Of each output, the last bytes up to this number are checked.
const CHECKED_MAX: usize = 1 << 20;

struct Options {
    ranks: Vec<usize>,
    bytes: Vec<usize>,
    runs: usize,
}

fn main() {
    let mut options = Options {
        ranks: vec![2, 4, 8],
        bytes: vec![8, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20, 1 << 30],
        runs: 15,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let text = arguments.next().unwrap_or_else(|| panic!("{name} needs a value"));
        let numbers = || text.split(',').map(number).collect();
        match &*name {
            "--ranks" => options.ranks = numbers(),
            "--bytes" => options.bytes = numbers(),
            "--runs" => options.runs = number(&text).max(1),
            name => panic!("{name}: the options are --ranks, --bytes and --runs"),
        }
    }
    queues::use_all();
    let device = Driver::load().unwrap().devices().unwrap().remove(0);
    println!("plan,ranks,bytes,us,us_min,us_max");
    for &ranks in &options.ranks {
        measure(&device, ranks, &options);
    }
}

/// A number, with `k`, `m` or `g` for powers of 1024.
fn number(text: &str) -> usize {
    let (digits, shift) = match text.find(['k', 'm', 'g']).map(|at| text.split_at(at)) {
        Some((digits, "k")) => (digits, 10),
        Some((digits, "m")) => (digits, 20),
        Some((digits, "g")) => (digits, 30),
        _ => (text, 0),
    };
    digits.parse::<usize>().unwrap_or_else(|why| panic!("{text}: {why}")) << shift
}

fn measure(device: &Device, count: usize, options: &Options) {
    let largest = options.bytes.iter().copied().max().unwrap();
    let mut ranks = Ranks::new(device, count, [largest; 2], TIMEOUT).unwrap();
    for rank in 0..count {
        ranks.fill(rank, Side::Input, 0, largest, &(rank as f32 + 1.0).to_le_bytes()).unwrap();
    }
    let flat = |algorithm: Algorithm, protocol| {
        algorithm.flat_with(&Collective::AllReduce, count as u32, 1, protocol).unwrap()
    };
    let plans = [
        ("exchange:ll", flat(Algorithm::Exchange, Protocol::Ll), 0..=256 << 10),
        ("two-shot", flat(Algorithm::TwoShot, Protocol::Simple), 8 << 10..=usize::MAX),
    ]
    .map(|(name, plan, sizes)| (name, ranks.load(&verify(adapted(plan)).unwrap()).unwrap(), sizes));
    for &bytes in &options.bytes {
        for (name, plan, _) in plans.iter().filter(|(.., sizes)| sizes.contains(&bytes)) {
            let call = Call {
                plan: plan.clone(),
                count: bytes / 4,
                data_type: DataType::F32,
                reduction: Reduction::Sum,
                factors: Vec::new(),
                aliasing: Aliasing::OutOfPlace,
            };
            let checked = bytes.saturating_sub(CHECKED_MAX) / 4 * 4..bytes / 4 * 4;
            for rank in 0..count {
                ranks.fill(rank, Side::Output, checked.start, checked.len(), &[0; 4]).unwrap();
            }
            let calls = match bytes >> 20 {
                0..=1 => 50,
                2..=64 => 10,
                _ => 2,
            };
            let graph = ranks.capture(&call, calls).unwrap();
            ranks.launch(&graph).unwrap();
            let us = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(calls);
            let mut times: Vec<f64> = (0..options.runs).map(|_| us(ranks.launch(&graph).unwrap())).collect();
            times.sort_by(f64::total_cmp);
            let expected = ((count * (count + 1) / 2) as f32).to_le_bytes();
            let wrong = |_: usize, _: usize, part: &[u8]| {
                part.chunks_exact(4).filter(|value| *value != expected).count() as u64
            };
            let wrong = ranks.read(&vec![checked; count], 4, wrong).unwrap();
            assert_eq!(wrong, 0, "wrong elements of {name}, {count} ranks, {bytes} bytes");
            let [least, median, largest] = [0, times.len() / 2, times.len() - 1].map(|at| times[at]);
            println!("{name},{count},{bytes},{median:.2},{least:.2},{largest:.2}");
        }
    }
}
