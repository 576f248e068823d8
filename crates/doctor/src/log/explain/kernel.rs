//! Errors of GPUs that the kernel's log reports beside the library's lines.

use std::collections::BTreeMap;

use super::{Context, LogCheck, shown_by};
use crate::finding::{Finding, Outcome, Severity};
use crate::log::model::Xid;

pub(super) const CHECKS: &[LogCheck] =
    &[LogCheck { id: "log-xid", finds: "errors of GPUs (Xid) in the same file", run: xids }];

/// What an Xid means, and what to do: the common ones of NVIDIA's list.
fn meaning(code: u32) -> (Severity, &'static str, &'static str) {
    use Severity::{Critical, Warning};
    const RESET: &str = "reset the GPU (`nvidia-smi -r`) or reboot the host; if it returns, run `dcgmi diag -r 3` and replace the GPU";
    const PROGRAM: &str = "run the program under `compute-sanitizer`; if several programs fail on the same GPU, test the GPU with `dcgmi diag -r 3`";
    match code {
        13 => (Warning, "a kernel failed: usually an access out of bounds", PROGRAM),
        31 => (Warning, "a kernel accessed memory that is not mapped", PROGRAM),
        43 => (Warning, "a kernel was stopped by a software fault of the program", PROGRAM),
        45 => (
            Warning,
            "the driver removed the work of a process that was killed; look for an earlier Xid",
            "look at the first Xid of this GPU",
        ),
        48 => (Critical, "an uncorrectable error of the memory (double bit)", RESET),
        63 | 64 => (Critical, "a memory row is to be remapped, or could not be", RESET),
        74 => (
            Critical,
            "an error of an NVLink",
            "run `nvidia-smi nvlink -e` and `nvidia-smi nvlink -s`; reset the GPU, then reseat or replace the GPU or its switch",
        ),
        79 => (
            Critical,
            "the GPU has fallen off the bus",
            "power-cycle the host; check power, heat and the slot (`nvidia-smi -q -d TEMPERATURE,POWER`)",
        ),
        92 | 94 | 95 => (Critical, "an uncorrectable or frequent error of the memory", RESET),
        119 | 120 => (Critical, "the GPU's system processor (GSP) does not answer", RESET),
        _ => (
            Warning,
            "an error that NVIDIA's list of Xid errors explains",
            "look the number up in https://docs.nvidia.com/deploy/xid-errors/",
        ),
    }
}

fn xids(context: &Context<'_>) -> Vec<Outcome> {
    let mut kinds: BTreeMap<(u32, &str), Vec<&Xid>> = BTreeMap::new();
    for xid in &context.log.xids {
        kinds.entry((xid.code, &xid.bus)).or_default().push(xid);
    }
    let found = kinds.into_iter().map(|((code, bus), all)| {
        let (severity, meaning, fix) = meaning(code);
        let what = format!("GPU {bus} reported Xid {code}: {meaning}");
        let finding = Finding::new("log-xid", severity, what);
        Outcome::Found(shown_by(finding, all.iter().map(|xid| &xid.seen)).fixed_by(fix))
    });
    found.collect()
}
