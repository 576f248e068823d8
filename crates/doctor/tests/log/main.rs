//! Logs of each version, what is read of them, and each finding: where it must fire, where it must not, and where it is unknown.

mod any_text;
mod findings;
mod formats;
mod hangs;

use weftlink_doctor::log::{self, Log};
use weftlink_doctor::{Finding, Report};
use weftlink_fabric::{Fabric, resolve};

/// A log of testdata.
macro_rules! testdata {
    ($name:literal) => {
        include_str!(concat!("../../../../testdata/logs/", $name))
    };
}

pub(crate) const HEALTHY: &str = testdata!("nccl-2.28-healthy.log");
pub(crate) const SOCKETS: &str = testdata!("nccl-2.8-sockets.log");
pub(crate) const SHARED_MEMORY: &str = testdata!("nccl-2.12-shared-memory.log");
pub(crate) const INFINIBAND: &str = testdata!("nccl-2.16-infiniband.log");
pub(crate) const MISSING_NVLINKS: &str = testdata!("nccl-2.18-missing-nvlinks.log");
pub(crate) const NO_GPUDIRECT: &str = testdata!("nccl-2.21-no-gpudirect.log");
pub(crate) const CALLS: &str = testdata!("nccl-2.23-calls.log");
pub(crate) const RANK_MISSING: &str = testdata!("nccl-2.26-rank-missing.log");
pub(crate) const WARNINGS: &str = testdata!("nccl-2.28-warnings.log");
pub(crate) const PLUGIN: &str = testdata!("nccl-2.30-plugin.log");
pub(crate) const RCCL: &str = testdata!("rccl-2.21.log");
pub(crate) const TIMEOUT: &str = testdata!("pytorch-timeout.log");

/// What is wrong by a log.
pub(crate) fn report(text: &str) -> Report {
    log::explain(&log::read(text), None)
}

/// What is wrong by a log of a machine.
pub(crate) fn report_on(text: &str, fabric: &str) -> Report {
    log::explain(&log::read(text), Some(&fabric_of(fabric)))
}

pub(crate) fn fabric_of(name: &str) -> Fabric {
    resolve(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The findings of a check.
pub(crate) fn found<'r>(report: &'r Report, id: &str) -> Vec<&'r Finding> {
    report.findings.iter().filter(|finding| finding.id == id).collect()
}

/// The sentence of the one finding of a check.
pub(crate) fn sentence(report: &Report, id: &str) -> String {
    let found = found(report, id);
    assert_eq!(found.len(), 1, "{id}: {:#?}", report.findings);
    assert!(!found[0].evidence.is_empty() && !found[0].fixes.is_empty(), "{:#?}", found[0]);
    found[0].what.clone()
}

pub(crate) fn is_fine(report: &Report, id: &str) -> bool {
    found(report, id).is_empty() && report.fine.iter().any(|(check, _)| *check == id)
}

pub(crate) fn is_unknown(report: &Report, id: &str) -> bool {
    found(report, id).is_empty() && report.uninspected.iter().any(|unknown| unknown.id == id)
}

/// A log's rings in the text of drawings.
pub(crate) fn rings(log: &Log, fabric: Option<&Fabric>) -> Vec<String> {
    let largest = log.largest().expect("a communicator");
    log::wires(log, largest, fabric).rings.iter().map(ToString::to_string).collect()
}
