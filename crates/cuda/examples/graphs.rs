//! All-reduce of several ranks on one GPU, as nodes of a CUDA graph: microseconds of a call by size, checked.
//!
//!     cargo run --release -p weftlink-cuda --example graphs -- 2 4 8
#![allow(clippy::unwrap_used, reason = "an example ends at the first error")]
#![allow(unsafe_code, reason = "passes addresses of device memory")]

use std::time::Duration;

use weftlink_bootstrap::Bootstrap;
use weftlink_cuda::driver::{Context, DeviceBuffer, DeviceMemory, Driver, Event, Stream};
use weftlink_cuda::{Communicator, PlanId, adapted};
use weftlink_plan::plan::Protocol;
use weftlink_plan::{Algorithm, Collective, DataType, Reduction, verify};

const TIMEOUT: Duration = Duration::from_secs(10);
const RUNS: usize = 15;

fn main() {
    let device = Driver::load().unwrap().devices().unwrap().remove(0);
    let context = Context::primary(&device).unwrap();
    let ranks: Vec<usize> = std::env::args().skip(1).map(|number| number.parse().unwrap()).collect();
    println!("plan,ranks,bytes,us");
    for ranks in ranks {
        let groups = Bootstrap::threads(ranks);
        let joined: Vec<(Communicator, [PlanId; 2])> = std::thread::scope(|scope| {
            let join = |group| {
                let device = &device;
                scope.spawn(move || {
                    let mut comm = Communicator::new(group, device, TIMEOUT).unwrap();
                    let small =
                        Algorithm::Exchange.flat_with(&Collective::AllReduce, ranks as u32, 1, Protocol::Ll);
                    let large = Algorithm::TwoShot.flat(&Collective::AllReduce, ranks as u32, 1);
                    let plans = [small, large]
                        .map(|plan| comm.load(verify(adapted(plan.unwrap())).unwrap()).unwrap());
                    (comm, plans)
                })
            };
            let threads: Vec<_> = groups.into_iter().map(join).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        measure(&context, joined);
    }
}

fn measure(context: &Context, mut joined: Vec<(Communicator, [PlanId; 2])>) {
    let ranks = joined.len();
    let largest = 1 << 30;
    let streams: Vec<_> = (0..ranks).map(|_| Stream::new(context).unwrap()).collect();
    let buffers: Vec<[DeviceMemory; 2]> =
        (0..ranks).map(|_| [0; 2].map(|_| DeviceMemory::new(context, largest).unwrap())).collect();
    for (rank, [input, _]) in buffers.iter().enumerate() {
        let value = (rank as f32 + 1.0).to_bits();
        // SAFETY: the memory has this many words.
        unsafe { streams[rank].fill_words(input.address(), value, largest / 4).unwrap() };
        streams[rank].synchronize().unwrap();
    }
    let joins: Vec<_> = (0..ranks).map(|_| Event::new(context).unwrap()).collect();
    let timed = [0; 2].map(|_| Event::with_timing(context).unwrap());
    for bytes in [8, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20, 1 << 30] {
        for which in 0..2 {
            if which == 0 && bytes > 256 << 10 || which == 1 && bytes < 64 << 10 {
                continue;
            }
            let chain = if bytes > 64 << 20 {
                2
            } else if bytes > 1 << 20 {
                10
            } else {
                50
            };
            for ((comm, plans), [input, output]) in std::iter::zip(&mut joined, &buffers) {
                // Compiled before the capture.
                comm.prepare_call(
                    plans[which],
                    [input.address(), output.address()],
                    bytes / 4,
                    DataType::F32,
                    Reduction::Sum,
                )
                .unwrap();
            }
            streams[0].begin_capture().unwrap();
            joins[0].record(&streams[0]).unwrap();
            streams[1..].iter().for_each(|stream| stream.wait_for(&joins[0]).unwrap());
            for _ in 0..chain {
                for (rank, (comm, plans)) in joined.iter_mut().enumerate() {
                    let [input, output] = &buffers[rank];
                    // SAFETY: the buffers live until the graph has run.
                    unsafe {
                        comm.run(
                            plans[which],
                            &streams[rank],
                            [input.address(), output.address()],
                            bytes / 4,
                            DataType::F32,
                            Reduction::Sum,
                        )
                    }
                    .unwrap();
                }
            }
            for rank in 1..ranks {
                joins[rank].record(&streams[rank]).unwrap();
                streams[0].wait_for(&joins[rank]).unwrap();
            }
            let graph = streams[0].end_capture().unwrap();
            let mut times = Vec::new();
            for _ in 0..RUNS {
                timed[0].record(&streams[0]).unwrap();
                graph.launch(&streams[0]).unwrap();
                timed[1].record(&streams[0]).unwrap();
                timed[1].synchronize().unwrap();
                times.push(timed[1].elapsed_since(&timed[0]).unwrap().as_secs_f64() * 1e6 / chain as f64);
            }
            times.sort_by(f64::total_cmp);
            let mut wrong = String::new();
            for (rank, [_, output]) in buffers.iter().enumerate() {
                let mut read = [0; 4];
                for at in [0, bytes / 2, bytes - 4] {
                    output.read(&streams[0], at / 4 * 4, &mut read).unwrap();
                    let expected = (ranks * (ranks + 1) / 2) as f32;
                    if f32::from_le_bytes(read) != expected {
                        wrong += &format!(" WRONG rank {rank} at {at}: {}", f32::from_le_bytes(read));
                    }
                }
                // SAFETY: the memory has this many words.
                unsafe { streams[rank].fill_words(output.address(), 0, bytes / 4).unwrap() };
                streams[rank].synchronize().unwrap();
                wrong += &joined[rank].0.failure().unwrap_or_default();
            }
            println!("{},{ranks},{bytes},{:.2}{wrong}", ["exchange:ll", "two-shot"][which], times[RUNS / 2]);
            if !wrong.is_empty() {
                return;
            }
        }
    }
}
