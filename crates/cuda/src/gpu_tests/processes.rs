//! Ranks as processes: the test runs itself again for each rank. Kernels of different processes run at once under MPS only; without it
//! they take turns, and the tests take longer.

use std::process::Child;
use std::time::Instant;

use weftlink_bootstrap::{Rendezvous, RendezvousAddress, Token};
use weftlink_plan::{Algorithm, DataType};
use weftlink_testkit::processes::this_program;

use super::*;
use crate::driver::{Allocation, HandleKind, Mapping, Reservation};

const RANK: &str = "WEFT_TEST_ROLE";
const PLACE: &str = "WEFT_TEST_PLACE";
/// For all processes of a test: compiling takes most of it.
const TEST_TIMEOUT: Duration = Duration::from_secs(400);
/// For the others after one has failed.
const GRACE: Duration = Duration::from_secs(5);
/// For a call: the other ranks may compile.
const CALL_TIMEOUT: Duration = Duration::from_secs(100);

/// Runs a function as each rank, in a process of its own. `is_copied`: whether its calls copy buffers because peers cannot map them.
fn as_processes(test: &str, ranks: usize, is_copied: bool, run: impl FnOnce(&mut Rank)) {
    each_process(&format!("gpu_tests::processes::{test}"), ranks, |group| {
        let mut rank = Rank::new(group);
        run(&mut rank);
        assert_eq!(rank.comm.has_copied(), is_copied, "whether peers could map the buffers");
    });
}

/// Runs a function in a process for each rank. `test` is the name of the calling test.
pub(super) fn each_process(test: &str, ranks: usize, run: impl FnOnce(Bootstrap)) {
    let meeting = |place| {
        let token = Token::new("gpu tests").unwrap();
        Rendezvous::new(RendezvousAddress::Abstract(place), token, ranks, CALL_TIMEOUT)
    };
    if let (Ok(rank), Ok(place)) = (std::env::var(RANK), std::env::var(PLACE)) {
        let group = match rank.parse().unwrap() {
            0 => Bootstrap::listen(&meeting(place)).unwrap(),
            rank => Bootstrap::join(&meeting(place), rank).unwrap(),
        };
        return run(group);
    }
    let place = format!("weft-test-{}-gpu", std::process::id());
    let start = |rank: usize| {
        let mut program = this_program();
        program.args(["--exact", test, "--ignored", "--nocapture"]);
        program.env(RANK, rank.to_string()).env(PLACE, &place).spawn().unwrap()
    };
    let mut children: Vec<Child> = (0..ranks).map(start).collect();
    let begin = Instant::now();
    let mut failed = Vec::new();
    let mut running: Vec<usize> = (0..ranks).collect();
    let mut limit = TEST_TIMEOUT;
    while !running.is_empty() && begin.elapsed() < limit {
        running.retain(|&rank| match children[rank].try_wait().unwrap() {
            Some(status) if !status.success() => {
                failed.push((rank, status));
                // The others may wait for it.
                limit = limit.min(begin.elapsed() + GRACE);
                false
            }
            status => status.is_none(),
        });
        std::thread::sleep(Duration::from_millis(20));
    }
    for &rank in &running {
        children[rank].kill().unwrap();
        children[rank].wait().unwrap();
    }
    assert!(failed.is_empty() && running.is_empty(), "failed: {failed:?}, not ended: {running:?}");
}

/// A rank on the first GPU, in a process of its own.
struct Rank {
    comm: Communicator,
    context: Context,
    stream: Stream,
    plans: BTreeMap<String, PlanId>,
    ranks: u32,
}

impl Rank {
    fn new(group: Bootstrap) -> Rank {
        let device = Driver::load().unwrap().devices().unwrap().remove(0);
        let (context, ranks) = (Context::primary(&device).unwrap(), group.size() as u32);
        let mut comm = Communicator::new(group, &device, CALL_TIMEOUT).unwrap();
        comm.set_call_timeout(CALL_TIMEOUT);
        assert!(comm.accesses_buffers());
        Rank { comm, stream: Stream::new(&context).unwrap(), context, plans: BTreeMap::new(), ranks }
    }

    fn load(&mut self, name: String, plan: &Verified) -> PlanId {
        let load = || self.comm.load(plan.clone()).unwrap();
        *self.plans.entry(name).or_insert_with(load)
    }

    /// Waits for a call.
    fn wait(&self, what: &str) {
        self.stream.synchronize().unwrap();
        assert_eq!(self.comm.failure(), None, "{what}");
    }

    /// Makes this rank's call of a case, with buffers that are freed afterwards, and compares its result.
    fn run(&mut self, case: &Case, count: usize, plan: &Verified, seed: u64) {
        let id = self.load(format!("{:?} {:?}", case.collective, case.by), plan);
        let rank = self.comm.rank() as u32;
        let reduction = case.reduction.unwrap_or(Reduction::Sum);
        let operation = operation_of(case, rank);
        let mut buffers = Buffers::new(case, rank, seed);
        let on_gpu = OnGpu::new(&self.context, &self.stream, &mut buffers);
        let key = self
            .comm
            .prepare_call(id, on_gpu.addresses, count, case.data_type, reduction)
            .unwrap_or_else(|why| panic!("{case}: {why}"));
        // SAFETY: the buffers live until the call has ended here, and so for the other ranks.
        let run =
            unsafe { self.comm.run(id, &self.stream, on_gpu.addresses, count, case.data_type, operation) };
        run.unwrap_or_else(|why| panic!("{case}, rank {rank}: {why}"));
        self.wait(&case.to_string());
        let cut = |length, _| self.comm.cut(id, &key, length);
        let (outputs, _) = expected(case, plan, cut);
        on_gpu.check(&self.stream, &mut buffers, case, rank, &outputs[rank as usize]);
    }

    /// The plan by which ranks write to each other's outputs and read each other's inputs.
    fn all_reduce(&mut self) -> PlanId {
        let ranks = self.ranks;
        let plan = Algorithm::TwoShot.flat(&Collective::AllReduce, ranks, 1).unwrap();
        assert!(plan.needs_windows());
        self.load("all-reduce".to_owned(), &verify(plan).unwrap())
    }

    /// The value of an element of a rank's input.
    fn value(rank: u32, round: u32, at: usize) -> f32 {
        (at % 97) as f32 + (rank * 7 + round * 3) as f32
    }

    fn inputs(&self, round: u32, count: usize) -> Vec<f32> {
        (0..count).map(|at| Rank::value(self.comm.rank() as u32, round, at)).collect()
    }

    fn check(&self, round: u32, output: &[f32]) {
        let ranks = self.ranks;
        for (at, found) in output.iter().enumerate() {
            let sum: f32 = (0..ranks).map(|rank| Rank::value(rank, round, at)).sum();
            assert_eq!(*found, sum, "round {round}, element {at}");
        }
    }

    /// Makes an all-reduce between two places of this rank.
    fn reduce(&mut self, plan: PlanId, buffers: [DeviceAddress; 2], count: usize) {
        // SAFETY: the callers keep the buffers until the call, or the graph that holds it, has ended.
        unsafe { self.comm.run(plan, &self.stream, buffers, count, DataType::F32, Reduction::Sum).unwrap() };
    }
}

macro_rules! cases {
    ($($test:ident: $ranks:literal;)*) => {
        $(#[test]
        #[ignore = "needs a GPU: `make gpu-test`"]
        fn $test() {
            as_processes(stringify!($test), $ranks, false, |rank| {
                let calls = each_case($ranks, true, |case, count, plan, number| rank.run(case, count, plan, number));
                println!("rank {} of {}: {calls} calls", rank.comm.rank(), $ranks);
            });
        })*
    };
}

cases! {
    cases_of_2_processes: 2;
    cases_of_3_processes: 3;
    cases_of_4_processes: 4;
    cases_of_5_processes: 5;
    cases_of_8_processes: 8;
}

/// A peer that used memory that was freed would read another rank's input of an earlier round, or leave the poison in the output.
#[test]
#[ignore = "needs a GPU: `make gpu-test`"]
fn buffers_that_were_allocated_again() {
    as_processes("buffers_that_were_allocated_again", 3, false, |rank| {
        let plan = rank.all_reduce();
        let (mut seen, mut again) = (std::collections::BTreeSet::new(), 0);
        for round in 0..24 {
            let count = (1 << 16) << (round % 3);
            let bytes = count * size_of::<f32>();
            let buffers = [0; 2].map(|_| DeviceMemory::new(&rank.context, bytes).unwrap());
            again += buffers.iter().filter(|buffer| !seen.insert(buffer.address())).count();
            buffers[0].write(&rank.stream, 0, bytemuck::cast_slice(&rank.inputs(round, count))).unwrap();
            buffers[1].fill(&rank.stream, 0, bytes, 0xa5).unwrap();
            let mut output = vec![0_f32; count];
            // The second call finds the buffers mapped.
            for _ in 0..2 {
                rank.reduce(plan, buffers.each_ref().map(DeviceBuffer::address), count);
                rank.wait("all-reduce");
                buffers[1].read(&rank.stream, 0, bytemuck::cast_slice_mut(&mut output)).unwrap();
                rank.check(round, &output);
                buffers[1].fill(&rank.stream, 0, bytes, 0xa5).unwrap();
                rank.stream.synchronize().unwrap();
            }
        }
        println!("rank {}: {again} of 48 buffers had the address of one before", rank.comm.rank());
        assert!(again > 0, "no address came again, so this tested nothing");
    });
}

/// Memory as of PyTorch's expandable segments: parts that are mapped into reserved addresses, of which some are replaced.
#[test]
#[ignore = "needs a GPU: `make gpu-test`"]
fn buffers_of_mapped_parts() {
    const PARTS: usize = 6;
    as_processes("buffers_of_mapped_parts", 2, false, |rank| {
        let plan = rank.all_reduce();
        let device = rank.context.device().clone();
        let part_bytes = device.granularity(HandleKind::PosixDescriptor).unwrap().recommended;
        let mut segment = Reservation::new(&rank.context, 1 << 36).unwrap();
        // Buffers begin and end inside parts.
        let count = (part_bytes * PARTS / 2 - 8192) / size_of::<f32>();
        let places = [4096, part_bytes * PARTS / 2 + 4096].map(|offset| segment.address() + offset as u64);
        let bytes = count * size_of::<f32>();
        for round in 0..6 {
            for part in (0..PARTS).filter(|part| round == 0 || part % 3 == round as usize % 3) {
                segment.unmap(part * part_bytes);
                let memory = Allocation::create(&device, part_bytes, HandleKind::PosixDescriptor).unwrap();
                segment.map(part * part_bytes, &memory).unwrap();
                segment.allow(part * part_bytes, part_bytes, &[]).unwrap();
            }
            let (input, mut output) = (rank.inputs(round, count), vec![0_f32; count]);
            // SAFETY: the places are mapped, and host memory lives until the stream is idle.
            unsafe {
                rank.stream.copy_from_host(places[0], input.as_ptr().cast(), bytes).unwrap();
                rank.stream.fill_bytes(places[1], 0xa5, bytes).unwrap();
            }
            rank.reduce(plan, places, count);
            // SAFETY: as above.
            unsafe { rank.stream.copy_to_host(output.as_mut_ptr().cast(), places[1], bytes).unwrap() };
            rank.wait("all-reduce");
            rank.check(round, &output);
        }
    });
}

/// Memory that other processes cannot map: calls copy it.
#[test]
#[ignore = "needs a GPU: `make gpu-test`"]
fn buffers_without_handles() {
    as_processes("buffers_without_handles", 2, true, |rank| {
        let (plan, count) = (rank.all_reduce(), 1 << 17);
        let bytes = count * size_of::<f32>();
        let device = rank.context.device().clone();
        let buffers = [0; 2].map(|_| {
            let memory = Allocation::create(&device, bytes, HandleKind::None).unwrap();
            Mapping::new(&rank.context, &[&memory], &[]).unwrap()
        });
        let [input, output] = buffers.each_ref().map(DeviceBuffer::address);
        for (round, places) in [[input, output], [output, output], [input, output]].into_iter().enumerate() {
            let source = &buffers[usize::from(places[0] == output)];
            buffers[1].fill(&rank.stream, 0, bytes, 0xa5).unwrap();
            source.write(&rank.stream, 0, bytemuck::cast_slice(&rank.inputs(round as u32, count))).unwrap();
            rank.reduce(plan, places, count);
            rank.wait("all-reduce");
            let mut found = vec![0_f32; count];
            buffers[1].read(&rank.stream, 0, bytemuck::cast_slice_mut(&mut found)).unwrap();
            rank.check(round as u32, &found);
        }
    });
}

/// Peers map buffers while their owner captures the first call with them.
#[test]
#[ignore = "needs a GPU: `make gpu-test`"]
fn graphs_of_processes() {
    as_processes("graphs_of_processes", 2, false, |rank| {
        let (plan, count) = (rank.all_reduce(), 1 << 17);
        let bytes = count * size_of::<f32>();
        let buffers = [0; 2].map(|_| DeviceMemory::new(&rank.context, bytes).unwrap());
        let addresses = buffers.each_ref().map(DeviceBuffer::address);
        rank.stream.begin_capture().unwrap();
        rank.reduce(plan, addresses, count);
        let graph = rank.stream.end_capture().unwrap();
        for round in 0..3 {
            buffers[0].write(&rank.stream, 0, bytemuck::cast_slice(&rank.inputs(round, count))).unwrap();
            buffers[1].fill(&rank.stream, 0, bytes, 0xa5).unwrap();
            // SAFETY: the buffers and the communicator live until the end.
            unsafe { graph.launch(&rank.stream) }.unwrap();
            rank.wait("all-reduce in a graph");
            let mut output = vec![0_f32; count];
            buffers[1].read(&rank.stream, 0, bytemuck::cast_slice_mut(&mut output)).unwrap();
            rank.check(round, &output);
            // Another buffer is mapped, and closed, between launches of the graph.
            let other = DeviceMemory::new(&rank.context, bytes).unwrap();
            rank.reduce(plan, [addresses[0], other.address()], count);
            rank.wait("all-reduce");
        }
    });
}
