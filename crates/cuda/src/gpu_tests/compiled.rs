//! The kernels of the cases, and of all-reduces of every type and operation, compiled before the tests that need them: on all cores, and on a machine without a GPU, too, whose cache
//! (`WEFT_CACHE`) then travels.

use std::collections::{BTreeMap, HashSet};
use std::sync::Mutex;

use weftlink_plan::{Aliasing, Collective, DataType, Reduction, Verified};

use super::{TESTED, each_case};
use crate::cache::{self, Origin};
use crate::call::Key;
use crate::communicator::{HOST_BLOCKS_MAX, SLICES_MAX, shape_of, spread};
use crate::driver::{DeviceAddress, Driver};
use crate::nvrtc::{Architecture, Nvrtc, Program};
use crate::program::{Arenas, Compiler};
use crate::residency::blocks_of_rank;
use crate::source::Specialisation;
use crate::{Memory, choose, is_for_gpus};

/// The GPU for which kernels are compiled where there is none: an H200.
const ABSENT: (Architecture, usize) = (Architecture(90), 132);

/// The operations of nccl-tests.
const OPERATIONS: [Reduction; 6] = [
    Reduction::Sum,
    Reduction::Product,
    Reduction::Maximum,
    Reduction::Minimum,
    Reduction::Average,
    Reduction::PremultipliedSum,
];
/// Where buffers begin: no kernel depends on it.
const BUFFER: DeviceAddress = 1 << 40;

#[test]
#[ignore = "compiles hundreds of kernels into the cache: `make gpu-test`"]
fn kernels_of_all_cases() {
    let device =
        Driver::load().and_then(|driver| driver.devices()).ok().and_then(|all| all.into_iter().next());
    let (architecture, multiprocessors) =
        device.as_ref().map_or(ABSENT, |device| (device.architecture, device.multiprocessors));
    let mut wanted = HashSet::new();
    for &(memory, ranks) in TESTED {
        let is_one_gpu = memory != Memory::Host;
        let mut plans = BTreeMap::new();
        each_case(ranks, is_one_gpu, |case, count, plan, _| {
            let name = format!("{:?} {:?}", case.collective, case.by);
            let ranks = plans.entry(name).or_insert_with(|| Ranks::new(plan, multiprocessors, is_one_gpu));
            for rank in 0..case.ranks {
                let (input, output, _) = case.in_one_buffer(rank);
                let at = |elements: usize| BUFFER + (elements * case.data_type.bytes()) as u64;
                let buffers = match case.aliasing {
                    Aliasing::InPlace => [at(input), at(output)],
                    Aliasing::OutOfPlace => [BUFFER, 2 * BUFFER],
                };
                let operation = case.reduction.unwrap_or(Reduction::Sum);
                wanted.insert(ranks.kernel(rank, buffers, count, case.data_type, operation));
            }
        });
    }
    for (ranks, bytes) in [(2, 8), (2, 1 << 20)] {
        let plan =
            choose(&Collective::AllReduce, bytes, ranks, true).plan(&Collective::AllReduce, ranks as u32);
        let of_plan = Ranks::new(&plan.unwrap(), multiprocessors, true);
        for data_type in DataType::ALL {
            let operations = OPERATIONS
                .into_iter()
                .filter(|operation| operation.is_for(data_type.kind()) && is_for_gpus(*operation, data_type));
            for (operation, rank) in operations.flat_map(|one| (0..ranks as u32).map(move |rank| (one, rank)))
            {
                let count = (bytes / data_type.bytes()).max(1);
                wanted.insert(of_plan.kernel(rank, [BUFFER, 2 * BUFFER], count, data_type, operation));
            }
        }
    }
    let version = device.and_then(|device| device.driver().version().ok());
    let nvrtc = Nvrtc::find(architecture, version).unwrap();
    let compiled =
        compile(&nvrtc, nvrtc.target_for(architecture).unwrap(), &wanted.into_iter().collect::<Vec<_>>());
    println!("{architecture}: {compiled}");
}

/// The ranks of a plan on one GPU.
struct Ranks {
    compilers: Vec<Compiler>,
    blocks: usize,
    is_one_gpu: bool,
}

impl Ranks {
    fn new(plan: &Verified, multiprocessors: usize, is_one_gpu: bool) -> Ranks {
        let compilers = (0..plan.ranks).map(|rank| Compiler::new(plan.clone(), rank, SLICES_MAX)).collect();
        let share = blocks_of_rank(multiprocessors, plan.ranks as usize, 0);
        // Ranks without a scope of one GPU are those whose data goes through host memory.
        let blocks = if is_one_gpu { share } else { share.min(HOST_BLOCKS_MAX) };
        Ranks { compilers, blocks, is_one_gpu }
    }

    fn kernel(
        &self,
        rank: u32,
        buffers: [DeviceAddress; 2],
        count: usize,
        data_type: DataType,
        reduction: Reduction,
    ) -> Specialisation {
        let compiler = &self.compilers[rank as usize];
        let key = Key::new(compiler.plan(), rank, buffers, count, data_type, reduction).unwrap();
        let of_ranks = (1..=self.compilers.len() as u64).map(|rank| rank << 32).collect();
        let spread = spread(compiler, &key, self.blocks);
        let program =
            compiler.compile(&shape_of(&key), spread, &Arenas { of_ranks, private: 1 << 48 }).unwrap();
        Specialisation {
            data_type: key.data_type,
            reduction: key.reduction,
            sequences: program.sequences,
            is_in_shared: program.is_in_shared,
            is_one_gpu: self.is_one_gpu,
        }
    }
}

/// Compiles what is not in the cache, on all cores. Returns how many kernels there are, and how many were compiled.
fn compile(nvrtc: &Nvrtc, architecture: Architecture, wanted: &[Specialisation]) -> String {
    println!("{architecture}: {} kernels", wanted.len());
    let (next, compiled) = (Mutex::new(wanted.iter()), Mutex::new(0));
    let take = || next.lock().unwrap().next();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(kernel) = take() {
                    let source = kernel.source();
                    let program = Program { name: "weft.cu", source: &source, options: &[], architecture };
                    let (_, origin) = cache::cubin(nvrtc, &program).unwrap();
                    *compiled.lock().unwrap() += usize::from(origin == Origin::Compiler);
                }
            });
        }
    });
    format!("{} kernels, {} of them compiled", wanted.len(), compiled.into_inner().unwrap())
}
