//! The examination of a whole machine.

use weftlink_probe::{GpuSource, ProbeError, Tree, probe};

use crate::check::{Machine, examine};
use crate::checks;
use crate::finding::Report;

/// Probes a machine and runs all checks on it. An [`Inspection`](weftlink_probe::Inspection) of this machine and a
/// [`Recording`](weftlink_probe::Recording) of another are both a tree and a source of GPUs.
///
/// ```
/// let recording: weftlink_probe::Recording = "# weft recording 1
/// proc/cpuinfo = vendor_id : AuthenticAMD
/// ".parse().unwrap();
/// let report = weftlink_doctor::examine_machine(&recording, &recording).unwrap();
/// assert!(report.findings.is_empty());
/// ```
pub fn examine_machine(tree: &dyn Tree, gpus: &dyn GpuSource) -> Result<Report, ProbeError> {
    let fabric = probe(tree, gpus)?;
    Ok(examine(&Machine { tree, fabric: &fabric }, checks::all()))
}
