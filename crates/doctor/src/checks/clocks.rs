//! Whether something holds the clocks of a GPU down. Low clocks of an idle GPU are normal and no finding.

use super::gpus::{Value, Verdict, each, merge};
use super::nvlinks::active;
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "gpu-slowdown",
        finds: "GPUs slowed down by heat, by the power supply or by the hardware",
        reads: "NVML (`nvidia-smi -q -d PERFORMANCE`)",
        run: slowdown,
    },
    Check {
        id: "power-cap",
        finds: "A power limit below the default",
        reads: "NVML (`nvidia-smi -q -d POWER`)",
        run: power,
    },
    Check {
        id: "application-clocks",
        finds: "Application clocks below the maximum",
        reads: "NVML (`nvidia-smi -q -d CLOCK`)",
        run: application,
    },
];

/// Bits of NVML's clocks event reasons.
const IDLE: u64 = 0x1;
const POWER_CAP: u64 = 0x4;
const HARDWARE: u64 = 0x8;
const SOFTWARE_THERMAL: u64 = 0x20;
const THERMAL: u64 = 0x40;
const POWER_BRAKE: u64 = 0x80;

fn reasons(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

fn slowdown(machine: &Machine<'_>) -> Vec<Outcome> {
    each(machine, "what limits the clocks", "nothing slows the GPU down", |gpu| {
        let reasons = match gpu.text("clocks_event_reasons") {
            Value::Is(text) => match reasons(&text) {
                Some(reasons) => reasons,
                None => return Verdict::Unknown("readable clocks event reasons".to_owned()),
            },
            Value::Unsupported => return Verdict::Skip,
            Value::Unknown(needs) => return Verdict::Unknown(needs),
        };
        let source = format!("NVML, {} ({})", gpu.name, gpu.bus);
        let shown = format!("clocks event reasons {reasons:#x}, {}", temperature(gpu.any("temperature_c")));
        let finding = |severity, what: String| {
            Finding::new("gpu-slowdown", severity, what).shown_by(source.clone(), shown.clone())
        };
        let name = &gpu.name;
        if reasons & THERMAL != 0 {
            let found = finding(
                Severity::Critical,
                format!("{name} runs at half its clocks or less because it is too hot"),
            );
            return Verdict::found(cooled(found, gpu.is_bridgeable() && active(gpu) > 0));
        }
        if reasons & POWER_BRAKE != 0 {
            return Verdict::found(
                finding(Severity::Critical, format!("{name} runs at half its clocks or less because the system asked for it (power brake)"))
                    .fixed_by("Check the power supplies: `ipmitool sdr type \"Power Supply\"`, `ipmitool sel elist`.")
                    .fixed_by("Check the GPU's power cables, and the power limit of the chassis in its management controller."),
            );
        }
        if reasons & SOFTWARE_THERMAL != 0 {
            let found = finding(
                Severity::Warning,
                format!("{name} lowers its clocks because the GPU or its memory is hot"),
            );
            return Verdict::found(cooled(found, gpu.is_bridgeable() && active(gpu) > 0));
        }
        // The driver also sets this bit for a moment when an idle GPU changes its clocks.
        if reasons & HARDWARE != 0 && reasons & IDLE == 0 {
            return Verdict::found(
                finding(Severity::Warning, format!("{name} runs at half its clocks or less (hardware slowdown)"))
                    .fixed_by(format!("Watch it under load: `nvidia-smi -i {} -q -d PERFORMANCE,TEMPERATURE,POWER`.", gpu.bus))
                    .fixed_by("Check cooling and power cables: the GPU does this when it is too hot or draws more than it may."),
            );
        }
        Verdict::Fine
    })
}

fn temperature(celsius: Option<i64>) -> String {
    celsius.map_or("temperature unknown".to_owned(), |celsius| format!("{celsius} °C"))
}

/// Adds what cools a GPU.
pub(super) fn cooled(finding: Finding, is_bridged: bool) -> Finding {
    let finding = finding
        .fixed_by("Check the fans and filters of the chassis (`ipmitool sdr type Fan`) and the temperature of the room.")
        .fixed_by("Cards without a fan need a chassis whose fans blow through them.");
    if is_bridged {
        finding.fixed_by("The cards are bridged: in adjacent slots, one heats the other's intake. If the model has wider bridges, leave a slot free between the cards.")
    } else {
        finding
    }
}

fn power(machine: &Machine<'_>) -> Vec<Outcome> {
    let outcomes = each(machine, "the power limit", "the power limit is the default", |gpu| {
        let (limit, default) =
            (gpu.number::<u64>("power_limit_mw"), gpu.number::<u64>("power_limit_default_mw"));
        let (limit, default) = match (limit, default) {
            (Value::Is(limit), Value::Is(default)) => (limit, default),
            (Value::Unknown(needs), _) | (_, Value::Unknown(needs)) => return Verdict::Unknown(needs),
            _ => return Verdict::Skip,
        };
        if limit as f64 >= 0.99 * default as f64 {
            return Verdict::Fine;
        }
        let capped = gpu
            .any::<String>("clocks_event_reasons")
            .and_then(|text| reasons(&text))
            .is_some_and(|bits| bits & POWER_CAP != 0);
        let severity = if capped { Severity::Warning } else { Severity::Note };
        let effect =
            if capped { "and it lowers the clocks now" } else { "which may lower the clocks under load" };
        let what = format!(
            "{}: the power limit is {} W instead of {} W, {effect}",
            gpu.name,
            limit / 1000,
            default / 1000
        );
        Verdict::found(
            Finding::new("power-cap", severity, what)
                .shown_by(
                    format!("NVML, {} ({})", gpu.name, gpu.bus),
                    format!("power limit {} W, default {} W", limit / 1000, default / 1000),
                )
                .fixed_by(format!(
                    "Unless the limit is meant, as root: `nvidia-smi -pl {}`.",
                    default / 1000
                )),
        )
    });
    merge(outcomes)
}

fn application(machine: &Machine<'_>) -> Vec<Outcome> {
    let outcomes = each(machine, "the application clocks", "the application clocks are the maximum", |gpu| {
        let read = |name: &str| gpu.number::<u64>(name);
        let (set, max) = match (read("clock_graphics_application_mhz"), read("clock_graphics_max_mhz")) {
            (Value::Is(set), Value::Is(max)) => (set, max),
            // Drivers for Blackwell have no application clocks.
            (Value::Unsupported, _) | (_, Value::Unsupported) => return Verdict::Skip,
            (Value::Unknown(needs), _) | (_, Value::Unknown(needs)) => return Verdict::Unknown(needs),
        };
        if set >= max || set == 0 {
            return Verdict::Fine;
        }
        let default: Option<u64> = gpu.any("clock_graphics_default_mhz");
        // The default of some models, such as the A100, is below the maximum.
        let severity =
            if default.is_some_and(|default| set >= default) { Severity::Note } else { Severity::Warning };
        let memory: Option<u64> = gpu.any("clock_memory_max_mhz");
        let what = format!("{}: the application clock is {set} MHz; the maximum is {max} MHz", gpu.name);
        let shown = default.map_or(String::new(), |default| format!(", default {default} MHz"));
        let finding = Finding::new("application-clocks", severity, what).shown_by(
            format!("NVML, {} ({})", gpu.name, gpu.bus),
            format!("application {set} MHz, maximum {max} MHz{shown}"),
        );
        Verdict::found(match memory {
            Some(memory) => finding.fixed_by(format!(
                "As root: `nvidia-smi -ac {memory},{max}`, or back to the default: `nvidia-smi -rac`."
            )),
            None => finding.fixed_by("As root, back to the default: `nvidia-smi -rac`."),
        })
    });
    merge(outcomes)
}
