//! `weft doctor --measure`: the rates of this machine's paths, beside those that the wiring should give, with the data of each checked.

mod cpu;
mod gpu;

use std::io::{self, Write};

use serde::Serialize;
use weftlink_doctor::{Finding, Outcome, Report, Severity};
use weftlink_fabric::{DeviceKind, Fabric};

use crate::progress::Progress;
use crate::screen::say;
use crate::table::Table;

/// A path that reaches less than this part of what it should is a finding. Predicted rates of copies are fractions of line rates that
/// idle machines reach within a few percent.
const LEAST_PART: f64 = 0.75;

/// A measured path.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    /// From where to where: `host memory to gpu0`.
    pub(super) path: String,
    /// In GB/s.
    pub(super) gb_per_s: f64,
    /// What the wiring should give, in GB/s, if that is known.
    pub(super) expected_gb_per_s: Option<f64>,
    /// Where the expectation comes from.
    pub(super) basis: &'static str,
    /// Whether the data arrived unchanged.
    pub(super) is_right: bool,
}

/// Everything that was measured.
#[derive(Debug, Default, Serialize)]
pub(super) struct Measurements {
    pub(super) paths: Vec<Measured>,
    /// One way between two cores: the pair and microseconds for 8 bytes.
    pub(super) core_latencies_us: Vec<(String, f64)>,
}

/// Measures, and adds what is wrong to the report.
pub(super) fn run(fabric: &Fabric, report: &mut Report) -> Measurements {
    let mut progress = Progress::new();
    let mut measured = Measurements::default();
    progress.show("measuring memory and cores");
    cpu::measure(&mut measured, report);
    progress.show("measuring copies of GPUs");
    gpu::measure(fabric, &mut measured, report);
    report.add("slow-path", measured.paths.iter().filter_map(slow).collect());
    report.add("wrong-data", measured.paths.iter().map(wrong).collect());
    let has_nics = fabric.devices_where(|kind| matches!(kind, DeviceKind::Nic(_))).next().is_some();
    if has_nics {
        let (what, needs) = ("the rates of NICs", "a second host: weft run --hosts a,b -- weft bench p2p");
        report.add("nic-rate", vec![Outcome::Unknown { what: what.to_owned(), needs: needs.to_owned() }]);
    }
    measured
}

fn slow(path: &Measured) -> Option<Outcome> {
    let (measured, expected) = (path.gb_per_s, path.expected_gb_per_s?);
    let text = format!("{measured:.1} GB/s; {expected:.1} GB/s expected ({})", path.basis);
    if measured >= LEAST_PART * expected {
        return Some(Outcome::Fine(format!("{}: {text}", path.path)));
    }
    let what = format!(
        "{}: {measured:.1} GB/s, {:.0} % of what the wiring should give",
        path.path,
        100.0 * measured / expected
    );
    let finding = Finding::new("slow-path", Severity::Warning, what)
        .shown_by("measured", text)
        .fixed_by("stop other programs that use the path, and measure again")
        .fixed_by("compare the wiring with the machine's manual: weft topo --tree, weft links");
    Some(Outcome::Found(finding))
}

fn wrong(path: &Measured) -> Outcome {
    match path.is_right {
        true => Outcome::Fine(format!("{}: the data arrived unchanged", path.path)),
        false => Outcome::Found(
            Finding::new("wrong-data", Severity::Critical, format!("{}: the data arrived changed", path.path))
                .shown_by("measured", "a pattern was copied and compared")
                .fixed_by("do not use the path: NCCL_P2P_DISABLE=1 avoids copies between GPUs over PCIe")
                .fixed_by("disable ACS and the IOMMU, or set it to pass-through (weft doctor shows both), and measure again"),
        ),
    }
}

pub(super) fn print(out: &mut impl Write, measured: &Measurements) -> io::Result<()> {
    let mut table =
        Table::new(["measured", "GB/s", "expected", "data", "expectation"]).optional(&["expectation"]);
    for path in &measured.paths {
        table.row([
            path.path.clone(),
            if path.gb_per_s < 1.0 {
                format!("{:.3}", path.gb_per_s)
            } else {
                format!("{:.1}", path.gb_per_s)
            },
            path.expected_gb_per_s.map_or("-".to_owned(), |rate| format!("{rate:.1}")),
            if path.is_right { "right" } else { "WRONG" }.to_owned(),
            path.basis.to_owned(),
        ]);
    }
    writeln!(out, "{table}")?;
    let times = || measured.core_latencies_us.iter().map(|(_, us)| *us);
    if let (Some(least), Some(most)) = (times().reduce(f64::min), times().reduce(f64::max)) {
        say!(out, "8 bytes from core to core: {least:.2} to {most:.2} us.")?;
    }
    Ok(())
}
