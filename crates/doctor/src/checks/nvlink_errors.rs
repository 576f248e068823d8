//! Error counters of NVLinks. The driver counts since it was loaded, so one look cannot tell whether a counter still rises.

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
        let (mut bad, mut known) = (Vec::new(), false);
        let mut severity = Severity::Note;
        for index in links.keys() {
            let Some(counters) = gpu.any::<String>(&format!("nvlink_errors/{index}")) else { continue };
            let counts = counts(&counters);
            known |= !counts.is_empty();
            let wrong: Vec<String> = counts
                .iter()
                .filter(|(_, count)| *count > 0)
                .map(|(name, count)| format!("{count} {}", words(name)))
                .collect();
            if !wrong.is_empty() {
                bad.push((*index, wrong.join(", ")));
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
        let indices: Vec<String> = bad.iter().map(|(index, _)| index.to_string()).collect();
        let what =
            format!("{}: NVLink {} had errors since the driver was loaded", gpu.name, indices.join(", "));
        let mut finding = Finding::new("nvlink-errors", severity, what);
        for (index, wrong) in bad {
            finding = finding.shown_by(format!("NVML, {} ({}), link {index}", gpu.name, gpu.bus), wrong);
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
