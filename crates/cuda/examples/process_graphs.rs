//! All-reduce of ranks that are processes on one GPU, as nodes of CUDA graphs: microseconds of a call by plan and size, checked. `graphs.rs`
//! is the same for ranks that are threads.
//!
//!     weft run -n 4 --gpus shared --mps -- target/release/examples/process_graphs --bytes 8,64k,1m --runs 7
//!
//! Rank 0 prints CSV: the median, the least and the largest of the runs. A run is `--launches` launches of a graph on
//! every rank (1 by default), after a barrier.
//!
//! With `--rotate 1g`, the calls of a graph use successive parts of buffers of 1 GiB, as those of nccl-tests do: inputs are not in the L2 cache.
#![allow(clippy::unwrap_used, reason = "an example ends at the first error")]
#![allow(unsafe_code, reason = "passes addresses of its buffers")]

use std::time::Duration;

use weftlink_bootstrap::Bootstrap;
use weftlink_cuda::driver::{Context, DeviceBuffer, DeviceMemory, Driver, Event, Stream};
use weftlink_cuda::{Collectives, LoadedPlan, adapted};
use weftlink_knobs::Knobs;
use weftlink_plan::plan::Protocol;
use weftlink_plan::{Algorithm, Collective, DataType, Reduction, verify};

const TIMEOUT: Duration = Duration::from_secs(30);
/// Of each output, the last bytes up to this number are checked.
const CHECKED_MAX: usize = 1 << 20;

/// A rank with its buffers.
struct Rank {
    collectives: Collectives,
    stream: Stream,
    timed: [Event; 2],
    buffers: [DeviceMemory; 2],
    barrier: LoadedPlan,
    /// The bytes through which successive calls step, if they are more than those of a call.
    rotated: usize,
    /// Launches of a graph in a run.
    launches: usize,
}

fn main() {
    let mut bytes = vec![8, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 1 << 30];
    let (mut runs, mut rotated, mut launches) = (7, 0, 1);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let text = arguments.next().unwrap_or_else(|| panic!("{name} needs a value"));
        match &*name {
            "--bytes" => bytes = text.split(',').map(number).collect(),
            "--runs" => runs = number(&text).max(1),
            "--launches" => launches = number(&text).max(1),
            "--rotate" => rotated = number(&text),
            name => panic!("{name}: the options are --bytes, --runs, --launches and --rotate"),
        }
    }
    let group = Bootstrap::from_environment(&Knobs::from_environment().unwrap()).unwrap();
    let mut rank = Rank::new(group, bytes.iter().copied().max().unwrap_or(0), rotated);
    rank.launches = launches;
    let ranks = rank.collectives.ranks();
    let flat = |algorithm: Algorithm, protocol| {
        verify(adapted(algorithm.flat_with(&Collective::AllReduce, ranks, 1, protocol).unwrap())).unwrap()
    };
    let plans = [
        ("exchange:ll", flat(Algorithm::Exchange, Protocol::Ll), 0..=256 << 10),
        ("two-shot", flat(Algorithm::TwoShot, Protocol::Simple), 8 << 10..=usize::MAX),
    ]
    .map(|(name, plan, sizes)| (name, rank.collectives.load(plan).unwrap(), sizes));
    if rank.collectives.rank() == 0 {
        println!("plan,ranks,bytes,us,us_min,us_max");
    }
    for &bytes in &bytes {
        for (name, plan, _) in plans.iter().filter(|(.., sizes)| sizes.contains(&bytes)) {
            let [least, median, largest] = rank.measure(plan, bytes, runs);
            if rank.collectives.rank() == 0 {
                println!("{name},{ranks},{bytes},{median:.2},{least:.2},{largest:.2}");
            }
        }
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

impl Rank {
    fn new(group: Bootstrap, largest: usize, rotated: usize) -> Rank {
        let largest = largest.max(rotated);
        let device = Driver::load().unwrap().devices().unwrap().remove(0);
        let context = Context::primary(&device).unwrap();
        let mut collectives = Collectives::new(group, &device, TIMEOUT).unwrap();
        collectives.set_call_timeout(TIMEOUT);
        let barrier = collectives.plan_of(&Collective::Barrier, 0, DataType::U8).unwrap();
        let buffers = [0; 2].map(|_| DeviceMemory::new(&context, largest.max(16)).unwrap());
        let stream = Stream::new(&context).unwrap();
        let pattern = (collectives.rank() as f32 + 1.0).to_le_bytes().repeat(CHECKED_MAX / 4);
        for at in (0..largest).step_by(pattern.len()) {
            buffers[0].write(&stream, at, &pattern[..pattern.len().min(largest - at)]).unwrap();
        }
        let timed = [0; 2].map(|_| Event::with_timing(&context).unwrap());
        Rank { collectives, stream, timed, buffers, barrier, rotated, launches: 1 }
    }

    /// The least, the median and the largest time of a call.
    fn measure(&mut self, plan: &LoadedPlan, bytes: usize, runs: usize) -> [f64; 3] {
        let checked = bytes.saturating_sub(CHECKED_MAX) / 4 * 4..bytes / 4 * 4;
        self.buffers[1].fill(&self.stream, checked.start, checked.len(), 0).unwrap();
        self.stream.synchronize().unwrap();
        let calls: u32 = match bytes >> 20 {
            0 => 200,
            1..=64 => 20,
            _ => 3,
        };
        let addresses = self.buffers.each_ref().map(DeviceBuffer::address);
        let parts = (self.rotated / bytes.max(1)).max(1);
        let run = |rank: &mut Rank, call: u32| {
            let addresses = addresses.map(|address| address + (bytes * (call as usize % parts)) as u64);
            let (collectives, stream) = (&mut rank.collectives, &rank.stream);
            // SAFETY: the buffers live as long as the rank, which waits for every launch.
            unsafe { collectives.run(plan, stream, addresses, bytes / 4, DataType::F32, Reduction::Sum) }
                .unwrap();
        };
        // Peers map the buffers.
        run(self, 0);
        self.stream.begin_capture().unwrap();
        (0..calls).for_each(|call| run(self, call));
        let graph = self.stream.end_capture().unwrap();
        let mut times: Vec<f64> = (0..=runs)
            .map(|_| {
                let (collectives, stream) = (&mut self.collectives, &self.stream);
                // SAFETY: a barrier has no buffers.
                unsafe { collectives.run(&self.barrier, stream, [0; 2], 0, DataType::U8, Reduction::Sum) }
                    .unwrap();
                self.timed[0].record(stream).unwrap();
                // SAFETY: as above; this waits for its end.
                (0..self.launches).for_each(|_| unsafe { graph.launch(stream) }.unwrap());
                self.timed[1].record(stream).unwrap();
                self.stream.synchronize().unwrap();
                assert_eq!(self.collectives.failure(), None);
                self.timed[1].elapsed_since(&self.timed[0]).unwrap().as_secs_f64() * 1e6
                    / f64::from(calls)
                    / self.launches as f64
            })
            .skip(1)
            .collect();
        let ranks = self.collectives.ranks();
        let expected = ((ranks * (ranks + 1) / 2) as f32).to_le_bytes();
        let mut output = vec![0; checked.len()];
        self.buffers[1].read(&self.stream, checked.start, &mut output).unwrap();
        self.stream.synchronize().unwrap();
        let wrong = output.chunks_exact(4).filter(|value| *value != expected).count();
        assert_eq!(wrong, 0, "wrong elements of {}, {bytes} bytes", plan.name);
        times.sort_by(f64::total_cmp);
        [0, times.len() / 2, times.len() - 1].map(|at| times[at])
    }
}
