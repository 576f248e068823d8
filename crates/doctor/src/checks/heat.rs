//! GPUs that are about to be slowed down by heat.

use super::clocks::cooled;
use super::gpus::{Value, Verdict, each};
use super::nvlinks::active;
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

pub(super) const CHECKS: &[Check] = &[Check {
    id: "gpu-heat",
    finds: "GPUs within 5 °C of the temperature at which they slow down",
    reads: "NVML, `nvidia-smi --query-gpu=temperature.gpu.tlimit`",
    run: heat,
}];

/// Degrees below the slowdown.
const NEAR: i64 = 5;

fn heat(machine: &Machine<'_>) -> Vec<Outcome> {
    each(
        machine,
        "the margin to the slowdown temperature",
        "the temperature is far from the slowdown",
        |gpu| {
            let now = gpu.number::<i64>("temperature_c");
            // From Ada on, the driver reports the margin instead of the threshold.
            let margin = gpu.any::<i64>("temperature_margin_c");
            let threshold = gpu.any::<i64>("temperature_slowdown_c");
            let from_threshold = match (&now, threshold) {
                (Value::Is(now), Some(threshold)) if threshold > 0 => Some(threshold.saturating_sub(*now)),
                _ => None,
            };
            let Some(left) = margin.or(from_threshold) else {
                return match now {
                    Value::Unsupported => Verdict::Skip,
                    Value::Unknown(needs) => Verdict::Unknown(needs),
                    Value::Is(_) => Verdict::Unknown(
                        "the slowdown temperature (`nvidia-smi -q -d TEMPERATURE`)".to_owned(),
                    ),
                };
            };
            if left > NEAR {
                return Verdict::Fine;
            }
            let celsius = if let Value::Is(now) = now { format!("{now} °C, ") } else { String::new() };
            let what = match left {
                ..=0 => format!(
                    "{} is {} °C above the temperature at which it slows down",
                    gpu.name,
                    left.saturating_neg()
                ),
                _ => format!("{} is {left} °C below the temperature at which it slows down", gpu.name),
            };
            let found = Finding::new("gpu-heat", Severity::Warning, what)
                .shown_by(format!("NVML, {} ({})", gpu.name, gpu.bus), format!("{celsius}{left} °C left"));
            Verdict::found(cooled(found, gpu.is_bridgeable() && active(gpu) > 0))
        },
    )
}
