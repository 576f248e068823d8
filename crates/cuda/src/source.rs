//! The source of the kernel: the files in `device/`, one after the other, below the macros that specialise them.

use weftlink_plan::{DataType, Reduction};

use crate::program::Loops;

const TYPES: [&str; 6] = [
    include_str!("../device/types.h"),
    include_str!("../device/half.h"),
    include_str!("../device/float8.h"),
    include_str!("../device/operations.h"),
    include_str!("../device/pack.h"),
    include_str!("../device/program.h"),
];
const RUN: [&str; 3] =
    [include_str!("../device/wait.h"), include_str!("../device/move.h"), include_str!("../device/run.h")];

/// What a kernel is specialised for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Specialisation {
    pub(crate) data_type: DataType,
    pub(crate) reduction: Reduction,
    pub(crate) loops: Loops,
    /// Whether all ranks are on one GPU, so that flags need not reach further.
    pub(crate) is_one_gpu: bool,
}

impl Specialisation {
    /// The source of the kernel, whose name is `weft_run`.
    pub(crate) fn source(&self) -> String {
        let device = [include_str!("../device/memory.h"), include_str!("../device/kernel.h")];
        self.text(device)
    }

    /// The same as a library of the host, with `weft_host_run`.
    #[cfg(test)]
    pub(crate) fn host_source(&self) -> String {
        let host = [include_str!("../device/host.h"), include_str!("../device/host.cc")];
        "#define WEFT_HOST\n".to_owned() + &self.text(host)
    }

    fn text(&self, [memory, entry]: [&str; 2]) -> String {
        [&self.macros(), &TYPES.concat(), memory, &RUN.concat(), entry].concat()
    }

    fn macros(&self) -> String {
        let scope = if self.is_one_gpu { "#define WEFT_ONE_GPU\n" } else { "" };
        format!(
            "#define WEFT_TYPE {:?}\n#define WEFT_OPERATION {:?}\n{scope}{}",
            self.data_type,
            self.reduction,
            self.loops.macros()
        )
    }
}
