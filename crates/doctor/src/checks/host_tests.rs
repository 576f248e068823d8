//! Machines for the tests of checks of the host: a recording with changed lines.

use std::collections::BTreeMap;

use proptest::prelude::*;
use weftlink_probe::{Recording, Tree, probe};

use super::{
    bios, bridges, congestion, driver, environment, gpudirect, interface, libraries, limits, pcie, pcie_boot,
    pcie_errors, placement, power, rdma, roce,
};
use crate::check::{Check, Machine};
use crate::finding::{Finding, Outcome, Severity};

const HGX: &str = include_str!("../../../../testdata/machines/hgx-h100.txt");
const HEALTHY: &str = include_str!("../../../../testdata/doctor/healthy-host.txt");
const VM: &str = include_str!("../../../../testdata/machines/h200-vm.txt");

/// A recorded machine, and outputs of commands, whose paths contain spaces.
pub(super) struct Recorded {
    recording: Recording,
    outputs: BTreeMap<String, String>,
}

impl Tree for Recorded {
    fn read(&self, path: &str) -> Option<String> {
        self.outputs.get(path).cloned().or_else(|| self.recording.read(path))
    }

    fn list(&self, path: &str) -> Vec<String> {
        self.recording.list(path)
    }

    fn link(&self, path: &str) -> Option<String> {
        self.recording.link(path)
    }
}

/// The path of a line, which ends before the sign.
fn path(line: &str) -> &str {
    let ends = [" = ", " -> ", " =", " -"].map(|sign| line.find(sign).unwrap_or(line.len()));
    // The dash of a command's option is not a sign.
    let end = if line.starts_with("run/") {
        line.find(" = ").or_else(|| line.strip_suffix(" -").map(str::len))
    } else {
        ends.into_iter().min()
    };
    &line[..end.unwrap_or(line.len())]
}

impl Recorded {
    /// `text` with other lines: each replaces the line of its path; one that ends with ` -` removes it.
    pub(super) fn new(text: &str, changes: &[&str]) -> Self {
        let changed: Vec<&str> = changes.iter().map(|line| path(line)).collect();
        let kept = text.lines().filter(|line| !changed.contains(&path(line)));
        let added = changes.iter().copied().filter(|line| !line.ends_with(" -"));
        let (outputs, files): (Vec<&str>, Vec<&str>) =
            kept.chain(added).partition(|line| line.starts_with("run/"));
        let output = |line: &&str| {
            Some((path(line).to_owned(), line.split_once(" = ")?.1.replace("\\n", "\n").replace("\\t", "\t")))
        };
        let text = files.join("\n").replace("\\t", "\t");
        Self { recording: text.parse().unwrap(), outputs: outputs.iter().filter_map(output).collect() }
    }

    /// The outcomes of a check.
    pub(super) fn run(&self, check: &Check) -> Vec<Outcome> {
        let fabric = probe(&self.recording, &self.recording).unwrap();
        (check.run)(&Machine { tree: self, fabric: &fabric })
    }

    /// The only finding of a check.
    pub(super) fn finding(&self, check: &Check) -> Finding {
        let found = findings(self.run(check));
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(!found[0].evidence.is_empty(), "{found:#?}");
        assert!(!found[0].fixes.is_empty() || found[0].severity == Severity::Note, "{found:#?}");
        found.into_iter().next().unwrap()
    }
}

/// An HGX H100 on which nothing is wrong, with changes.
pub(super) fn healthy(changes: &[&str]) -> Recorded {
    Recorded::new(&healthy_text(), changes)
}

/// An HGX H100 of which only the wiring was recorded, with changes.
pub(super) fn bare(changes: &[&str]) -> Recorded {
    Recorded::new(HGX, changes)
}

/// A virtual machine with one H200.
pub(super) fn virtual_machine(changes: &[&str]) -> Recorded {
    Recorded::new(VM, changes)
}

/// The wiring, the host's part, and counters at zero for all functions and ports.
pub(super) fn healthy_text() -> String {
    let mut text = format!("{HGX}\n{HEALTHY}\n");
    let hgx: Recording = HGX.parse().unwrap();
    for address in hgx.list("sys/bus/pci/devices") {
        let folder = format!("sys/bus/pci/devices/{address}");
        for kind in ["correctable", "nonfatal", "fatal"] {
            text += &format!("{folder}/aer_dev_{kind} = RxErr 0\\nTOTAL_ERR 0\n");
        }
        let class = hgx.read(&format!("{folder}/class")).unwrap_or_default();
        if class.starts_with("0x0302") {
            let bar = "0x0000208000000000 0x0000209fffffffff 0x000000000014220c";
            let none = "0x0000000000000000 0x0000000000000000 0x0000000000000000";
            text += &format!(
                "{folder}/resource = 0x00000000e0000000 0x00000000e0ffffff 0x0000000000040200\\n{bar}\\n{none}\n"
            );
        }
        if class.starts_with("0x0604") {
            text += &format!("pci-config/{address} = {}\n", "00".repeat(4096));
        }
    }
    for device in hgx.list("sys/class/infiniband") {
        let folder = format!("sys/class/infiniband/{device}/ports/1");
        text += &format!("{folder}/phys_state = 5: LinkUp\n");
        for counter in
            ["symbol_error", "link_downed", "link_error_recovery", "port_rcv_errors", "port_xmit_wait"]
        {
            text += &format!("{folder}/counters/{counter} = 0\n");
        }
        text += &format!("{folder}/counters/port_xmit_data = 1000000000\n");
        for counter in ["out_of_sequence", "packet_seq_err", "local_ack_timeout_err"] {
            text += &format!("{folder}/hw_counters/{counter} = 0\n");
        }
    }
    for name in hgx.list("sys/class/net") {
        text += &format!("sys/class/net/{name}/mtu = 4092\nsys/class/net/{name}/operstate = up\n");
        text +=
            &format!("sys/class/net/{name}/flags = 0x1003\nsys/class/net/{name}/carrier_down_count = 1\n");
    }
    text
}

pub(super) fn findings(outcomes: Vec<Outcome>) -> Vec<Finding> {
    outcomes
        .into_iter()
        .filter_map(|outcome| if let Outcome::Found(found) = outcome { Some(found) } else { None })
        .collect()
}

/// True if a check says that something is unknown, and nothing else that is wrong.
pub(super) fn is_unknown(outcomes: &[Outcome]) -> bool {
    outcomes.iter().any(|outcome| matches!(outcome, Outcome::Unknown { what, needs } if !what.is_empty() && !needs.is_empty()))
        && !outcomes.iter().any(|outcome| matches!(outcome, Outcome::Found(_)))
}

/// True if a check says that things are fine, and nothing else.
pub(super) fn is_fine(outcomes: &[Outcome]) -> bool {
    !outcomes.is_empty() && outcomes.iter().all(|outcome| matches!(outcome, Outcome::Fine(_)))
}

fn all() -> Vec<&'static Check> {
    let groups = [
        pcie::CHECKS,
        pcie_boot::CHECKS,
        pcie_errors::CHECKS,
        bridges::CHECKS,
        bios::CHECKS,
        gpudirect::CHECKS,
        rdma::CHECKS,
        congestion::CHECKS,
        roce::CHECKS,
        interface::CHECKS,
        limits::CHECKS,
        environment::CHECKS,
        libraries::CHECKS,
        driver::CHECKS,
        power::CHECKS,
        placement::CHECKS,
    ];
    groups.into_iter().flatten().collect()
}

#[test]
fn a_healthy_machine_has_no_findings() {
    let machine = healthy(&[]);
    for check in all() {
        let outcomes = machine.run(check);
        assert!(is_fine(&outcomes) || outcomes.is_empty(), "{}: {outcomes:#?}", check.id);
    }
}

#[test]
fn a_bare_recording_and_a_virtual_machine_have_nothing_wrong() {
    for machine in [bare(&[]), virtual_machine(&[])] {
        for check in all() {
            let found = findings(machine.run(check));
            assert!(found.is_empty(), "{}: {found:#?}", check.id);
        }
    }
}

/// Values that files might have.
fn value() -> impl Strategy<Value = String> {
    let words = prop_oneof![
        Just("-1".to_owned()),
        Just("0xffffffffffffffff".to_owned()),
        Just("18446744073709551615".to_owned()),
        Just("400 Gb/sec (4X NDR)".to_owned()),
        Just("1: DOWN".to_owned()),
        "[0-9a-f]{0,40}",
        "\\PC{0,60}",
        "[0-9 .:|x=/\\[\\],-]{0,60}",
    ];
    proptest::collection::vec(words, 0..4).prop_map(|words| words.join("\\n"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every file has a random value in one of ten cases.
    #[test]
    fn no_check_panics(values in proptest::collection::vec(value(), 1..20), seed in any::<u64>()) {
        let mut state = seed | 1;
        let lines: Vec<String> = healthy_text().lines().map(|line| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let pick = (state >> 33) as usize;
            match line.split_once(" = ") {
                Some((path, _)) if pick.is_multiple_of(10) && !path.ends_with("/class") => {
                    format!("{path} = {}", values[pick / 10 % values.len()])
                }
                _ => line.to_owned(),
            }
        }).collect();
        let machine = Recorded::new(&lines.join("\n"), &[]);
        for check in all() {
            machine.run(check);
        }
    }
}
