//! Error counters of NVLinks. The driver counts since it was loaded, so one look cannot tell whether a counter still rises.

use std::collections::BTreeMap;

use weftlink_probe::cpu_ranges;

use super::gpus::{Verdict, each};
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

pub(super) const CHECKS: &[Check] = &[Check {
    id: "nvlink-errors",
    finds: "NVLinks with recoveries, replays or CRC errors since the driver was loaded",
    reads: "NVML (`nvidia-smi nvlink -e`)",
    run: errors,
}];

/// A link corrects single errors by sending again. From this count on, somebody should look.
const MANY: u64 = 100;

fn errors(machine: &Machine<'_>) -> Vec<Outcome> {
    each(machine, "the errors of the NVLinks", "no NVLink has errors", |gpu| {
        let links = gpu.links();
        if !links.values().any(|state| state.starts_with("up")) {
            return Verdict::Skip;
        }
        let (mut bad, mut known) = (BTreeMap::<String, Vec<usize>>::new(), false);
        let mut severity = Severity::Note;
        for index in links.keys() {
            let Some(counters) = gpu.any::<String>(&format!("nvlink_errors/{index}")) else { continue };
            let counts = counts(&counters);
            known |= !counts.is_empty();
            let wrong = counts.iter().filter(|(_, count)| *count > 0);
            let wrong: Vec<String> = wrong.map(|(name, count)| format!("{}: {count}", words(name))).collect();
            if !wrong.is_empty() {
                bad.entry(wrong.join(", ")).or_default().push(*index as usize);
            }
            if counts.iter().any(|(name, count)| *count >= MANY || (*name == "recovery" && *count > 0)) {
                severity = Severity::Warning;
            }
        }
        if !known {
            return Verdict::Unknown("a driver that reports error counters of links".to_owned());
        }
        if bad.is_empty() {
            return Verdict::Fine;
        }
        let mut all: Vec<usize> = bad.values().flatten().copied().collect();
        all.sort_unstable();
        let what =
            format!("{}: NVLink {} had errors since the driver was loaded", gpu.name, cpu_ranges(&all));
        let mut finding = Finding::new("nvlink-errors", severity, what);
        for (wrong, indices) in bad {
            let source = format!("NVML, {} ({}), link {}", gpu.name, gpu.bus, cpu_ranges(&indices));
            finding = finding.shown_by(source, wrong);
        }
        Verdict::found(
            finding
                .fixed_by(format!("See whether they rise under load: `nvidia-smi nvlink -e -i {}` before and after a job.", gpu.bus))
                .fixed_by("If they rise, reseat the bridge or the module with the power off; if they rise again, have it replaced."),
        )
    })
}

/// `replay=0 recovery=2` as names and counts.
fn counts(text: &str) -> Vec<(&str, u64)> {
    let pairs = text.split_whitespace().filter_map(|word| word.split_once('='));
    pairs.filter_map(|(name, count)| Some((name, count.parse().ok()?))).collect()
}

fn words(name: &str) -> &str {
    match name {
        "replay" => "replays",
        "recovery" => "recoveries",
        "crc_flit" => "CRC errors of flits",
        "crc_data" => "CRC errors of data",
        other => other,
    }
}
