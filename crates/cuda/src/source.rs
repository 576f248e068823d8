//! The source of the kernel: the files in `device/`, one after the other, below the macros that specialise them.

use weftlink_plan::{DataType, Reduction};

use crate::program::Sequences;
use crate::records;

const TYPES: [&str; 6] = [
    include_str!("../device/types.h"),
    include_str!("../device/half.h"),
    include_str!("../device/float8.h"),
    include_str!("../device/operations.h"),
    include_str!("../device/pack.h"),
    include_str!("../device/program.h"),
];
const RUN: [&str; 9] = [
    include_str!("../device/wait.h"),
    include_str!("../device/vectors.h"),
    include_str!("../device/shape.h"),
    include_str!("../device/packets.h"),
    include_str!("../device/switch.h"),
    include_str!("../device/entries.h"),
    include_str!("../device/steps.h"),
    include_str!("../device/direct.h"),
    include_str!("../device/run.h"),
];

/// What a kernel is specialised for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Specialisation {
    pub(crate) data_type: DataType,
    pub(crate) reduction: Reduction,
    pub(crate) sequences: Sequences,
    /// Whether blocks copy the program to shared memory.
    pub(crate) is_in_shared: bool,
    /// Whether all ranks are on one GPU, so that flags need not reach further.
    pub(crate) is_one_gpu: bool,
}

impl Specialisation {
    /// The source of the kernel, whose name is `weft_run`.
    pub(crate) fn source(&self) -> String {
        let device = [include_str!("../device/memory.h"), include_str!("../device/kernel.h")];
        self.text(device)
    }

    /// The same as a library of the host, with `weft_host_enter`.
    #[cfg(test)]
    pub(crate) fn host_source(&self, is_traced: bool) -> String {
        let memory = [include_str!("../device/fibers.h"), include_str!("../device/host.h")].concat();
        let host = [&memory, include_str!("../device/host.cc")];
        let trace = if is_traced { "#define WEFT_TRACE\n" } else { "" };
        format!("#define WEFT_HOST\n{trace}{}", self.text(host))
    }

    fn text(&self, [memory, entry]: [&str; 2]) -> String {
        [&self.macros(), &TYPES.concat(), memory, &RUN.concat(), entry].concat()
    }

    fn macros(&self) -> String {
        let define =
            |is_set: bool, name: &str| if is_set { format!("#define {name}\n") } else { String::new() };
        format!(
            "#define WEFT_TYPE {:?}\n#define WEFT_OPERATION {:?}\n{}{}{}{}",
            self.data_type,
            self.reduction,
            define(self.is_one_gpu, "WEFT_ONE_GPU"),
            define(self.is_in_shared, "WEFT_IN_SHARED"),
            records::macros(),
            self.sequences.macros()
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::path::Path;

    use super::*;
    use crate::nvrtc::{self, Architecture, Nvrtc};
    use crate::program::{Arenas, Compiler, Program, Spread};
    use weftlink_plan::plan::Protocol;
    use weftlink_plan::{Algorithm, Aliasing, Collective, Plan, Shape, verify};

    /// As in `tests/architectures.rs`: 12.9 is the last NVRTC for sm_70.
    const COMPILED: [(&str, &[u32]); 2] =
        [("12.9.86", &[70]), ("13.0.88", &[75, 80, 86, 89, 90, 100, 103, 120])];

    fn nvrtc(version: &str) -> Nvrtc {
        let folder =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/nvrtc").join(version).join("nvidia");
        let folders = std::fs::read_dir(folder).unwrap().map(|part| part.unwrap().path().join("lib"));
        let files = folders.flat_map(|lib| std::fs::read_dir(lib).unwrap()).map(|file| file.unwrap().path());
        let is_library = |name: &str| name.starts_with("libnvrtc.so.");
        let mut libraries = files.filter(|file| is_library(file.file_name().unwrap().to_str().unwrap()));
        Nvrtc::open(&libraries.next().unwrap()).unwrap()
    }

    /// The program of rank 0 for 100,000 elements.
    fn program(plan: Plan, element_bytes: usize) -> Program {
        let compiler = Compiler::new(verify(plan).unwrap(), 0, 4);
        let shape = Shape { aliasing: Aliasing::InPlace, element_bytes, count: 100_000, uneven: None };
        let spread = Spread { slices: 4, threads: 512, chunk_bytes: 1 << 16 };
        let of_ranks = (0..u64::from(compiler.plan().ranks)).map(|rank| rank << 32).collect();
        compiler.compile(&shape, spread, &Arenas { of_ranks, private: 1 << 48 }).unwrap()
    }

    fn compile(nvrtc: &Nvrtc, architecture: Architecture, kernel: &Specialisation) {
        let program =
            nvrtc::Program { name: "weft.cu", source: &kernel.source(), options: &[], architecture };
        let cubin = nvrtc.compile(&program).unwrap_or_else(|why| panic!("{why}"));
        assert!(cubin.bytes().windows(8).any(|part| part == b"weft_run"), "{architecture}");
    }

    #[test]
    #[ignore = "needs NVRTC, which `make cuda` downloads"]
    fn the_kernel_compiles_for_every_architecture() {
        let plans = [
            Algorithm::Exchange.flat_with(&Collective::AllReduce, 4, 1, Protocol::Ll),
            Algorithm::TwoShot.flat(&Collective::AllReduce, 8, 1),
            Algorithm::Ring.flat(&Collective::AllReduce, 4, 2),
        ];
        let programs = plans.map(|plan| program(plan.unwrap(), 4));
        for (version, architectures) in COMPILED {
            let nvrtc = nvrtc(version);
            for &number in architectures {
                let (source, architecture) = (crate::window::KERNELS.concat(), Architecture(number));
                let windows =
                    nvrtc::Program { name: "window.cu", source: &source, options: &[], architecture };
                let cubin = nvrtc.compile(&windows).unwrap_or_else(|why| panic!("{why}"));
                assert!(cubin.bytes().windows(11).any(|part| part == b"weft_signal"), "{architecture}");
                let source = crate::messages::kernels(number == 90);
                let messages =
                    nvrtc::Program { name: "messages.cu", source: &source, options: &[], architecture };
                let cubin = nvrtc.compile(&messages).unwrap_or_else(|why| panic!("{why}"));
                assert!(
                    cubin.bytes().windows(19).any(|part| part == b"weft_messages_table"),
                    "{architecture}"
                );
                let (data_type, reduction) = match number % 20 {
                    0 => (DataType::Bf16, Reduction::Average),
                    9 => (DataType::F64, Reduction::PremultipliedSum),
                    _ => (DataType::F32, Reduction::Sum),
                };
                let is_one_gpu = number != 90;
                for program in &programs {
                    let Program { sequences, is_in_shared, .. } = program.clone();
                    let kernel = Specialisation { data_type, reduction, sequences, is_in_shared, is_one_gpu };
                    compile(&nvrtc, architecture, &kernel);
                }
            }
        }
    }

    #[test]
    #[ignore = "needs NVRTC, which `make cuda` downloads"]
    fn the_kernel_compiles_with_a_switch() {
        let root = 0;
        let cases = [
            (Collective::AllReduce, DataType::F32, Reduction::Sum),
            (Collective::AllReduce, DataType::Bf16, Reduction::Average),
            (Collective::ReduceScatter, DataType::F16, Reduction::Sum),
            (Collective::Reduce { root }, DataType::F32, Reduction::Average),
            (Collective::AllGather, DataType::U8, Reduction::Sum),
            (Collective::Broadcast { root }, DataType::Complex128, Reduction::Sum),
        ];
        let kernels = cases.map(|(collective, data_type, reduction)| {
            let plan = Algorithm::Nvls.flat(&collective, 8, 1).unwrap();
            let Program { sequences, is_in_shared, .. } = program(plan, data_type.bytes());
            Specialisation { data_type, reduction, sequences, is_in_shared, is_one_gpu: false }
        });
        let (version, architectures) = COMPILED[1];
        let nvrtc = nvrtc(version);
        // Multicasts need sm_90.
        for number in architectures.iter().filter(|number| **number >= 90) {
            kernels.iter().for_each(|kernel| compile(&nvrtc, Architecture(*number), kernel));
        }
        for kernel in kernels {
            let any = Specialisation { sequences: Sequences::with_switch(), ..kernel };
            compile(&nvrtc, Architecture(90), &any);
        }
    }
}
