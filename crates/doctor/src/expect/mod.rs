//! The machine as it is against the machine as it should be: `weft doctor --expect hgx-h100`.
//!
//! Devices are matched host by host, by kind, order and place in the wiring, never by name. What the found machine has beyond the
//! expected one (drives, management NICs, faster links) is no finding. Links to other hosts are compared where both sides describe them; a
//! probe sees the ports of its own NICs only.
//!
//! Deliberately absent: comparing CPUs, memory and drives.

mod gpus;
mod links;
mod nics;
mod pcie;
mod switches;
mod view;

use weftlink_fabric::Fabric;

use crate::cost;
use crate::finding::{Finding, Outcome, Report, Severity};
use view::{Pair, View};

/// Compares a machine with what it should be.
///
/// The cost of a finding is that of all differences together: the all-reduce on the found and on the expected fabric. It is left out
/// where the found fabric has fewer hosts, such as one host of a cluster.
pub fn expect(found: &Fabric, expected: &Fabric) -> Report {
    let mut report = differences(found, expected);
    let costs = |finding: &Finding| finding.severity > Severity::Note && finding.id != NUMA;
    if found.hosts().len() == expected.hosts().len() && report.findings.iter().any(costs) {
        let cost = cost::of_all_reduce(found, expected);
        report
            .findings
            .iter_mut()
            .filter(|finding| costs(finding))
            .for_each(|finding| finding.cost = cost.clone());
    }
    report
}

/// The same without costs, which take a prediction on each fabric.
pub fn differences(found: &Fabric, expected: &Fabric) -> Report {
    let mut report = Report::new(format!("{} compared with {}", found.name(), expected.name()));
    let hosts = found.hosts().len().min(expected.hosts().len());
    for host in 0..hosts {
        let pair = Pair::of(View::of_host(found, host), View::of_host(expected, host));
        compare(&mut report, &pair);
    }
    let (found_hosts, expected_hosts) = (found.hosts().len(), expected.hosts().len());
    if found_hosts == expected_hosts {
        // Devices between hosts, such as the NVSwitches of a rack.
        let pair = Pair::of(View::between_hosts(found), View::between_hosts(expected));
        compare(&mut report, &pair);
    }
    if found_hosts < expected_hosts {
        let what = format!("{} of the {expected_hosts} expected hosts", expected_hosts - found_hosts);
        let needs = format!("`weft doctor --expect {}` on each of them", expected.name());
        report.add(GPUS, vec![Outcome::Unknown { what, needs }]);
    }
    report
}

/// Ids of findings.
const GPUS: &str = "expect-gpus";
const MODEL: &str = "expect-model";
const NVLINK: &str = "expect-nvlink";
const C2C: &str = "expect-c2c";
const PCIE: &str = "expect-pcie";
const NUMA: &str = "expect-numa";
const NICS: &str = "expect-nics";
const SWITCHES: &str = "expect-switches";

fn compare(report: &mut Report, pair: &Pair<'_>) {
    report.add(GPUS, gpus::count(pair));
    report.add(MODEL, gpus::models(pair));
    report.add(NVLINK, links::links(pair));
    report.add(C2C, links::c2c(pair));
    report.add(PCIE, pcie::links(pair));
    report.add(NUMA, pcie::numa(pair));
    report.add(NICS, nics::nics(pair));
    report.add(SWITCHES, switches::switches(pair));
}

/// A finding with the two values that differ.
fn differs(id: &'static str, severity: Severity, what: String, found: String, expected: String) -> Finding {
    Finding::new(id, severity, what).shown_by("found", found).shown_by("expected", expected)
}

#[cfg(test)]
mod tests;
