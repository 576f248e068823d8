//! The memory of GPUs: uncorrected errors, rows that wait to be remapped, and the window through which others reach it.

use super::gpus::{Value, Verdict, each, gpus, merge};
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "gpu-ecc",
        finds: "Uncorrected memory errors",
        reads: "NVML (`nvidia-smi -q -d ECC`)",
        run: ecc,
    },
    Check {
        id: "row-remapping",
        finds: "Memory rows or pages whose replacement failed or waits for a reset",
        reads: "NVML (`nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT`)",
        run: rows,
    },
    Check {
        id: "bar1-small",
        finds: "A BAR1 that is smaller than the GPU's memory, among several GPUs",
        reads: "NVML (`nvidia-smi -q -d MEMORY`)",
        run: bar1,
    },
];

fn ecc(machine: &Machine<'_>) -> Vec<Outcome> {
    each(machine, "uncorrected memory errors", "no uncorrected memory error", |gpu| {
        if gpu.any::<String>("ecc_mode").as_deref() == Some("off") {
            return Verdict::Skip;
        }
        let (now, ever) =
            (gpu.number::<u64>("ecc_volatile_uncorrected"), gpu.number::<u64>("ecc_aggregate_uncorrected"));
        let source = format!("NVML, {} ({})", gpu.name, gpu.bus);
        match (now, ever) {
            (Value::Is(0), Value::Is(0) | Value::Unsupported | Value::Unknown(_)) | (Value::Unsupported, Value::Is(0)) => Verdict::Fine,
            (Value::Is(0) | Value::Unsupported, Value::Is(ever)) => Verdict::found(
                Finding::new("gpu-ecc", Severity::Note, format!("{} had {ever} uncorrected memory errors in its life, none since the driver was loaded", gpu.name))
                    .shown_by(source, format!("aggregate uncorrected: {ever}"))
                    .fixed_by("Nothing while they do not grow; the rows with errors have been replaced (see row-remapping)."),
            ),
            (Value::Is(now), _) => Verdict::found(
                Finding::new("gpu-ecc", Severity::Critical, format!("{} has {now} uncorrected memory errors since the driver was loaded", gpu.name))
                    .shown_by(source, format!("volatile uncorrected: {now}"))
                    .fixed_by(format!("End the jobs on it and reset it, so that the rows are replaced: `nvidia-smi --gpu-reset -i {}`.", gpu.bus))
                    .fixed_by(format!("Test it: `dcgmi diag -r 3 -i {}`; if errors come back, have it replaced.", gpu.number)),
            ),
            (Value::Unknown(needs), _) | (Value::Unsupported, Value::Unknown(needs)) => Verdict::Unknown(needs),
            (Value::Unsupported, Value::Unsupported) => Verdict::Skip,
        }
    })
}

fn rows(machine: &Machine<'_>) -> Vec<Outcome> {
    each(machine, "the replacement of memory rows", "no memory row waits to be replaced", |gpu| {
        let values = ["remapped_rows_failed", "remapped_rows_pending", "retired_pages_pending"]
            .map(|name| (name, gpu.number::<u64>(name)));
        let is_set = |at: usize| matches!(values[at].1, Value::Is(count) if count > 0);
        let source = format!("NVML, {} ({})", gpu.name, gpu.bus);
        let shown =
            |finding: Finding, at: usize| finding.shown_by(source.clone(), format!("{}: yes", values[at].0));
        if is_set(0) {
            let what = format!("{}: a memory row with errors could not be replaced", gpu.name);
            return Verdict::found(
                shown(Finding::new("row-remapping", Severity::Critical, what), 0).fixed_by(
                    "Take the GPU out of service and have it replaced: its spare rows are used up or failed.",
                ),
            );
        }
        if is_set(1) || is_set(2) {
            let what = format!("{}: memory with errors waits to be replaced at the next reset", gpu.name);
            return Verdict::found(
                shown(Finding::new("row-remapping", Severity::Warning, what), if is_set(1) { 1 } else { 2 })
                    .fixed_by(format!(
                        "Reset the GPU when no job uses it: `nvidia-smi --gpu-reset -i {}`.",
                        gpu.bus
                    )),
            );
        }
        if values.iter().any(|(_, value)| matches!(value, Value::Is(_))) {
            return Verdict::Fine;
        }
        let reason = values.into_iter().find_map(|(_, value)| match value {
            Value::Unknown(reason) => Some(reason),
            _ => None,
        });
        reason.map_or(Verdict::Skip, Verdict::Unknown)
    })
}

/// BAR1 of GPUs of desktops without Resizable BAR.
const SMALLEST: u64 = 256 << 20;

fn bar1(machine: &Machine<'_>) -> Vec<Outcome> {
    // One GPU alone is reached by NICs only, which map what they need.
    if gpus(machine).len() == 1 {
        return Vec::new();
    }
    let outcomes = each(machine, "the size of BAR1", "BAR1 covers the memory", |gpu| {
        // Over C2C, the CPU reaches all memory without BAR1.
        if gpu.any::<u32>("c2c_links").is_some_and(|links| links > 0) {
            return Verdict::Skip;
        }
        let bar1 = match gpu.number::<u64>("bar1_bytes") {
            Value::Is(bytes) => bytes,
            Value::Unsupported => return Verdict::Skip,
            Value::Unknown(needs) => return Verdict::Unknown(needs),
        };
        let Some(memory) = gpu.any::<u64>("memory_bytes") else {
            return Verdict::Unknown("the size of the GPU's memory".to_owned());
        };
        // Memory that ECC or the driver keeps is not part of what it reports.
        if bar1 >= memory - memory / 8 {
            return Verdict::Fine;
        }
        let mib = |bytes: u64| bytes >> 20;
        let has_links = gpu.links().values().any(|state| state.starts_with("up"));
        let severity = if gpu.is_data_center() && bar1 <= SMALLEST && !has_links {
            Severity::Warning
        } else {
            Severity::Note
        };
        let what = format!(
            "{}: BAR1 is {} MiB for {} MiB of memory; peers and NICs reach only that much at a time",
            gpu.name,
            mib(bar1),
            mib(memory)
        );
        Verdict::found(
            Finding::new("bar1-small", severity, what)
                .shown_by(format!("NVML, {} ({})", gpu.name, gpu.bus), format!("BAR1 {} MiB", mib(bar1)))
                .fixed_by("Enable `Above 4G Decoding` and `Resizable BAR` in the firmware settings, then `nvidia-smi -q -d MEMORY`.")
                .fixed_by("Some cards have a mode for displays with a small BAR1: NVIDIA's `displaymodeselector` changes it; a few (T4) have no other."),
        )
    });
    merge(outcomes)
}
