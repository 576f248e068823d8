//! Ranks on one GPU, as threads and as processes: the cases that every backend must pass. `make gpu-test` runs them; they need a GPU and
//! NVRTC.

// Launches kernels with addresses of buffers.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod compiled;
mod copies;
mod faults;
mod messages;
mod processes;
mod spread;
mod streams;
mod waits;
mod windows;

use std::collections::BTreeMap;
use std::time::Duration;

use weftlink_bootstrap::Bootstrap;
use weftlink_plan::{Collective, Reduction, Verified, verify};
use weftlink_testkit::cases::values::expected;
use weftlink_testkit::cases::{Case, Counts, cases_of};

use crate::cases::{Buffers, adapted, operation_of};
use crate::driver::{Context, DeviceAddress, DeviceBuffer, DeviceMemory, Driver, Stream};
use crate::{Communicator, Memory, PlanId};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Ranks on the first GPU.
struct Ranks {
    comms: Vec<Communicator>,
    streams: Vec<Stream>,
    plans: BTreeMap<String, Vec<PlanId>>,
}

impl Ranks {
    fn new(ranks: u32, memory: Memory) -> Ranks {
        let device = Driver::load().unwrap().devices().unwrap().remove(0);
        let context = Context::primary(&device).unwrap();
        let mut comms = together(Bootstrap::threads(ranks as usize), |group| {
            Communicator::with_memory(group, &device, memory, TIMEOUT).unwrap()
        });
        comms.iter_mut().for_each(|comm| comm.set_call_timeout(TIMEOUT));
        let streams = (0..ranks).map(|_| Stream::new(&context).unwrap()).collect();
        Ranks { comms, streams, plans: BTreeMap::new() }
    }

    fn load(&mut self, name: String, plan: &Verified) -> Vec<PlanId> {
        if !self.plans.contains_key(&name) {
            let comms = self.comms.iter_mut().collect();
            self.plans.insert(name.clone(), together(comms, |comm| comm.load(plan.clone()).unwrap()));
        }
        self.plans[&name].clone()
    }

    /// Makes the call of a case on all ranks, and compares results and the memory around them.
    fn run(&mut self, case: &Case, count: usize, plan: &Verified, seed: u64) {
        let plans = self.load(format!("{:?} {:?}", case.collective, case.by), plan);
        let reduction = case.reduction.unwrap_or(Reduction::Sum);
        let mut buffers: Vec<_> = (0..case.ranks).map(|rank| Buffers::new(case, rank, seed)).collect();
        let context = self.comms[0].context().clone();
        let streams = self.streams.iter();
        let on_gpu: Vec<_> = std::iter::zip(streams, &mut buffers)
            .map(|(stream, buffers)| OnGpu::new(&context, stream, buffers))
            .collect();
        // Ranks may compile kernels of their own, at the same time.
        let prepared = self.comms.iter_mut().zip(&plans).zip(&on_gpu).collect();
        let keys = together(prepared, |((comm, &plan), OnGpu { addresses, .. })| {
            comm.prepare_call(plan, *addresses, count, case.data_type, reduction)
                .unwrap_or_else(|why| panic!("{case}: {why}"))
        });
        for (rank, OnGpu { addresses, .. }) in on_gpu.iter().enumerate() {
            let (comm, stream) = (&mut self.comms[rank], &self.streams[rank]);
            let operation = operation_of(case, rank as u32);
            // SAFETY: the buffers live until all streams are done.
            unsafe { comm.run(plans[rank], stream, *addresses, count, case.data_type, operation).unwrap() };
        }
        self.streams.iter().for_each(|stream| stream.synchronize().unwrap());
        for comm in &self.comms {
            assert_eq!(comm.failure(), None, "{case}");
        }
        let cut = |length, _| self.comms[0].cut(plans[0], &keys[0], length);
        let (outputs, _) = expected(case, plan, cut);
        for (rank, (buffers, output)) in std::iter::zip(&mut buffers, &outputs).enumerate() {
            on_gpu[rank].check(&self.streams[rank], buffers, case, rank as u32, output);
        }
    }
}

/// The buffers of a rank in memory of its GPU.
struct OnGpu {
    copies: [DeviceMemory; 2],
    /// Of input and output.
    addresses: [DeviceAddress; 2],
}

impl OnGpu {
    fn new(context: &Context, stream: &Stream, buffers: &mut Buffers) -> OnGpu {
        let view = buffers.view();
        let bases = buffers.memory.each_ref().map(|memory| memory.as_ptr().addr() as u64);
        let copies = buffers.memory.each_ref().map(|memory| {
            let copy = DeviceMemory::new(context, size_of_val(&memory[..]).max(16)).unwrap();
            copy.write(stream, 0, bytemuck::cast_slice(memory)).unwrap();
            copy
        });
        let there = |address: u64| {
            let which = usize::from(!(bases[0]..=bases[0] + copies[0].bytes() as u64).contains(&address));
            copies[which].address() + (address - bases[which])
        };
        let addresses = [there(view.input), there(view.output)];
        OnGpu { copies, addresses }
    }

    /// Compares the result and the memory around it.
    fn check(&self, stream: &Stream, buffers: &mut Buffers, case: &Case, rank: u32, output: &[u8]) {
        for (copy, memory) in std::iter::zip(&self.copies, &mut buffers.memory) {
            copy.read(stream, 0, bytemuck::cast_slice_mut(memory)).unwrap();
        }
        stream.synchronize().unwrap();
        let differs = std::iter::zip(buffers.output(), output).position(|(one, other)| one != other);
        assert!(differs.is_none(), "{case}, rank {rank}: byte {differs:?}");
        buffers.check(case, rank);
    }
}

/// Calls a function for each, on threads that may wait for each other.
fn together<T: Send, R: Send>(each: Vec<T>, call: impl Fn(T) -> R + Sync) -> Vec<R> {
    let call = &call;
    std::thread::scope(|scope| {
        let threads: Vec<_> = each.into_iter().map(|one| scope.spawn(move || call(one))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Runs the cases of a number of ranks that plans can run with this memory.
fn run_cases(memory: Memory, ranks: u32) {
    let mut all = Ranks::new(ranks, memory);
    let accesses_buffers = all.comms[0].accesses_buffers();
    let calls =
        each_case(ranks, accesses_buffers, |case, count, plan, number| all.run(case, count, plan, number));
    println!("{ranks} ranks, {memory:?} memory: {calls} calls");
}

/// Calls a function with the cases of a number of ranks and their plans, in the same order every time. Returns how many there were.
fn each_case(ranks: u32, accesses_buffers: bool, mut run: impl FnMut(&Case, usize, &Verified, u64)) -> u32 {
    let mut calls = 0;
    for collective in Collective::KINDS.map(|collective| collective.name()) {
        for (number, case) in (0..).zip(cases_of(collective)) {
            let Some(case) = adapted(case).filter(|case| case.ranks == ranks) else { continue };
            let Counts::Even(count) = case.counts else { continue };
            let Some(Ok(plan)) = case.plan() else { continue };
            if plan.needs_windows() && !accesses_buffers {
                continue;
            }
            run(&case, count, &verify(plan).unwrap(), number);
            calls += 1;
        }
    }
    assert!(calls > 20, "{calls} calls");
    calls
}

macro_rules! cases {
    ($($test:ident: $memory:ident, $ranks:literal;)*) => {
        $(#[test]
        #[ignore = "needs a GPU: `make gpu-test`"]
        fn $test() {
            run_cases(Memory::$memory, $ranks);
        })*

        /// The memory and the number of ranks of each test.
        const TESTED: &[(Memory, u32)] = &[$((Memory::$memory, $ranks)),*];
    };
}

cases! {
    cases_of_1_rank: Device, 1;
    cases_of_2_ranks: Device, 2;
    cases_of_3_ranks: Device, 3;
    cases_of_4_ranks: Device, 4;
    cases_of_5_ranks: Device, 5;
    cases_of_8_ranks: Device, 8;
    cases_of_2_ranks_through_the_host: Host, 2;
    cases_of_5_ranks_through_the_host: Host, 5;
}
