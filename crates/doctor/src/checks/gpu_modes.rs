//! Modes of GPUs that delay programs or keep them from sharing a GPU or its memory.

use super::gpus::{Value, Verdict, each, gpus, merge};
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "persistence-mode",
        finds: "Persistence mode that is off, so that the driver initializes the GPU for each program",
        reads: "NVML (`nvidia-smi -q`)",
        run: persistence,
    },
    Check {
        id: "gpu-modes",
        finds: "MIG or compute modes that block sharing and peer access",
        reads: "NVML (`nvidia-smi -q`)",
        run: modes,
    },
];

fn persistence(machine: &Machine<'_>) -> Vec<Outcome> {
    let outcomes = each(machine, "persistence mode", "persistence mode is on", |gpu| {
        match gpu.text("persistence_mode") {
            Value::Is(mode) if mode == "on" => Verdict::Fine,
            Value::Is(mode) => {
                // A desktop keeps the driver initialized by its screen.
                let severity = if gpu.is_data_center() { Severity::Warning } else { Severity::Note };
                let what = format!(
                    "{}: persistence mode is off, so each program waits while the driver initializes the GPU",
                    gpu.name
                );
                Verdict::found(
                    Finding::new("persistence-mode", severity, what)
                        .shown_by(format!("NVML, {} ({})", gpu.name, gpu.bus), format!("persistence mode {}", super::gpus::short(&mode)))
                        .fixed_by("Start the daemon: `systemctl enable --now nvidia-persistenced`, or as root until the next start: `nvidia-smi -pm 1`."),
                )
            }
            Value::Unsupported => Verdict::Skip,
            Value::Unknown(needs) => Verdict::Unknown(needs),
        }
    });
    merge(outcomes)
}

fn modes(machine: &Machine<'_>) -> Vec<Outcome> {
    let several = gpus(machine).len() > 1;
    let outcomes = each(machine, "MIG and compute modes", "no mode blocks sharing", |gpu| {
        let source = format!("NVML, {} ({})", gpu.name, gpu.bus);
        let (mig, compute) = (gpu.text("mig_mode"), gpu.text("compute_mode"));
        if mig == Value::Is("on".to_owned()) {
            let severity = if several { Severity::Warning } else { Severity::Note };
            let what =
                format!("{}: MIG is on, which blocks NVLink, peer access and NCCL between GPUs", gpu.name);
            return Verdict::found(
                Finding::new("gpu-modes", severity, what).shown_by(source, "MIG mode on").fixed_by(format!(
                    "For jobs of several GPUs, as root: `nvidia-smi -i {} -mig 0`, then a reset.",
                    gpu.bus
                )),
            );
        }
        match (compute, mig) {
            (Value::Is(mode), _) if mode != "default" => {
                let (severity, effect) = match mode.as_str() {
                    "prohibited" => (Severity::Critical, "no program can use it"),
                    _ => (
                        Severity::Note,
                        "only one process can use it at a time, so two ranks cannot share it",
                    ),
                };
                let what =
                    format!("{}: the compute mode is {}: {effect}", gpu.name, super::gpus::short(&mode));
                Verdict::found(
                    Finding::new("gpu-modes", severity, what)
                        .shown_by(source, format!("compute mode {}", super::gpus::short(&mode)))
                        .fixed_by(format!("As root: `nvidia-smi -i {} -c DEFAULT`.", gpu.bus)),
                )
            }
            (Value::Is(_), Value::Is(_) | Value::Unsupported | Value::Unknown(_)) => Verdict::Fine,
            (Value::Unknown(needs), _) => Verdict::Unknown(needs),
            (Value::Unsupported, _) => Verdict::Skip,
        }
    });
    merge(outcomes)
}
