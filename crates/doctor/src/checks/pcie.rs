//! PCIe links that are narrower or slower than both ends support, or whose slot is less than the card.
//!
//! An idle GPU lowers the speed of its link, and so does a switch with only GPUs below it; their current speed is not compared.

use weftlink_fabric::catalog::links;
use weftlink_fabric::device::DeviceKind;
use weftlink_fabric::{Fabric, LinkSpec, Paths};
use weftlink_probe::Tree;

use super::host_reads::{self as reads, Function, Outcomes};
use crate::check::{Check, Machine};
use crate::finding::{Cost, Finding, Outcome, Severity};
use crate::{cost, host_cost};

pub(super) static CHECKS: &[Check] = &[Check {
    id: "pcie-link",
    finds: "PCIe links that are narrower or slower than both ends support",
    reads: "`/sys/bus/pci/devices/*/{current,max}_link_{speed,width}`",
    run: links_of_devices,
}];

/// The vendor of ports that a hypervisor emulates; their rates mean nothing.
const VIRTUAL_PORT: &str = "0x1b36";

/// Speed and width of one end; zero where unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lanes {
    pub(super) generation: u8,
    pub(super) width: u8,
}

impl Lanes {
    fn read(tree: &dyn Tree, folder: &str, which: &str) -> Self {
        let read = |what: &str| tree.read(&format!("{folder}/{which}_link_{what}")).unwrap_or_default();
        Self { generation: generation(&read("speed")), width: width(&read("width")) }
    }

    pub(super) fn is_known(self) -> bool {
        self.generation > 0 && self.width > 0
    }

    /// What two ends have in common.
    fn with(self, other: Self) -> Self {
        Self { generation: self.generation.min(other.generation), width: self.width.min(other.width) }
    }

    fn spec(self) -> LinkSpec {
        links::pcie(self.generation, self.width)
    }
}

impl std::fmt::Display for Lanes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PCIe {}.0 x{}", self.generation, self.width)
    }
}

/// `32.0 GT/s PCIe` is generation 5.
pub(super) fn generation(speed: &str) -> u8 {
    match speed.split_whitespace().next().unwrap_or_default() {
        "2.5" => 1,
        "5" | "5.0" => 2,
        "8" | "8.0" => 3,
        "16" | "16.0" => 4,
        "32" | "32.0" => 5,
        "64" | "64.0" => 6,
        _ => 0,
    }
}

/// The kernel and hypervisors report 0, 63 or 255 for an unknown width.
pub(super) fn width(text: &str) -> u8 {
    text.parse().ok().filter(|width| matches!(width, 1 | 2 | 4 | 8 | 12 | 16 | 32)).unwrap_or(0)
}

/// Both ends of the link above a device.
pub(super) struct Ends {
    pub(super) now: Lanes,
    max: Lanes,
    /// The address of the port above it and its maximum.
    pub(super) port: Option<(String, Lanes)>,
}

impl Ends {
    pub(super) fn read(tree: &dyn Tree, function: &Function) -> Option<Self> {
        let folder = |address: &str| format!("{}/{address}", reads::FUNCTIONS);
        let (now, max) =
            ["current", "max"].map(|which| Lanes::read(tree, &folder(&function.address), which)).into();
        let port = reads::above(tree, &function.address).pop().and_then(|port| {
            let is_virtual = tree.read(&format!("{}/vendor", folder(&port))).as_deref() == Some(VIRTUAL_PORT);
            let max = Lanes::read(tree, &folder(&port), "max");
            (max.is_known() && !is_virtual).then_some((port, max))
        });
        (now.is_known() && max.is_known()).then_some(Self { now, max, port })
    }

    /// What both ends support.
    fn best(&self) -> Lanes {
        self.port.as_ref().map_or(self.max, |(_, port)| self.max.with(*port))
    }
}

fn links_of_devices(machine: &Machine<'_>) -> Vec<Outcome> {
    let wanted = |kind: &DeviceKind| {
        reads::is_gpu(kind) || reads::is_nic(kind) || matches!(kind, DeviceKind::PcieSwitch)
    };
    let mut outcomes = Outcomes::new();
    for function in reads::linked_functions(machine, wanted) {
        let Some(ends) = Ends::read(machine.tree, &function) else {
            outcomes.unknown.push(function.name);
            continue;
        };
        match slow_link(machine, &function, &ends) {
            Some(finding) => outcomes.findings.push(finding),
            None => outcomes.fine.push(function.name),
        }
    }
    outcomes.finish(
        |fine| format!("{} as wide and fast as both ends support", reads::count(fine.len(), "PCIe link")),
        |unknown| {
            (
                format!("the PCIe links of {}", reads::some_of(unknown)),
                "the host: a virtual machine hides them".to_owned(),
            )
        },
    )
}

pub(super) fn slow_link(machine: &Machine<'_>, function: &Function, ends: &Ends) -> Option<Finding> {
    let (best, name) = (ends.best(), &function.name);
    let is_narrow = ends.now.width < best.width;
    let is_slow = ends.now.generation < best.generation && !slows_when_idle(machine, function);
    let file = |file: &str| format!("/{}", function.path(file));
    let read = |file: &str| function.read(machine.tree, file).unwrap_or_default();
    let new = |severity, what: String, usual: Lanes| {
        let mut finding = Finding::new("pcie-link", severity, what).costing(cost_of(
            machine.fabric,
            function,
            usual.spec(),
        ));
        for name in ["current_link_width", "max_link_width", "current_link_speed", "max_link_speed"] {
            finding = finding.shown_by(file(name), read(name));
        }
        match &ends.port {
            Some((port, lanes)) => {
                finding.shown_by(format!("/{}/{port}/max_link_*", reads::FUNCTIONS), format!("{lanes}"))
            }
            None => finding,
        }
    };
    if is_narrow || is_slow {
        let usual = Lanes {
            generation: if is_slow { best.generation } else { ends.now.generation.max(best.generation) },
            ..best
        };
        let mut finding = match is_narrow {
            true => new(
                Severity::Warning,
                format!("{name} runs at x{}; it and its slot support x{}", ends.now.width, best.width),
                usual,
            )
            .fixed_by(format!("power down and reseat {name}, its riser and its cables; clean the contacts"))
            .fixed_by("in the BIOS, set the bifurcation of the slot to one device with all lanes (x16)"),
            false => new(
                Severity::Warning,
                format!(
                    "{name} runs at PCIe {}.0; it and its slot support {}.0",
                    ends.now.generation, best.generation
                ),
                usual,
            )
            .fixed_by("in the BIOS, set the link speed of the slot to Auto")
            .fixed_by(format!("reseat {name}; replace its riser, cable or retimer if the speed stays low")),
        };
        finding =
            finding.fixed_by(format!("check with `sudo lspci -vv -s {} | grep LnkSta`", function.address));
        return Some(finding);
    }
    let (port, lanes) = ends.port.as_ref()?;
    if lanes.width >= ends.max.width && lanes.generation >= ends.max.generation {
        return None;
    }
    let severity =
        if needs_its_slot(machine.fabric, function, best) { Severity::Warning } else { Severity::Note };
    let what = format!("the slot of {name} is {lanes}, and the card supports {}", ends.max);
    let usual = if lanes.width < ends.max.width { Lanes { width: ends.max.width, ..best } } else { ends.max };
    Some(new(severity, what, usual).fixed_by(format!(
        "move the card to a slot of {}, not below port {port}; the board's manual lists the lanes",
        ends.max
    )))
}

/// True for GPUs, and for switches without other devices below them.
fn slows_when_idle(machine: &Machine<'_>, function: &Function) -> bool {
    if reads::is_gpu(&machine.fabric.device(function.id).kind) {
        return true;
    }
    let keeps_awake = |kind: &DeviceKind| reads::is_nic(kind) || matches!(kind, DeviceKind::Storage);
    let awake = reads::functions(machine, keeps_awake);
    let is_above = |other: &Function| {
        other.id == function.id || reads::above(machine.tree, &other.address).contains(&function.address)
    };
    !awake.iter().any(is_above)
}

/// False where a slower slot limits nothing that matters: a GPU that exchanges data over NVLink, a NIC whose ports are slower still.
fn needs_its_slot(fabric: &Fabric, function: &Function, slot: Lanes) -> bool {
    match &fabric.device(function.id).kind {
        DeviceKind::Gpu(_) => Paths::of(fabric).gpu_fabric_out(function.id).links == 0,
        DeviceKind::Nic(ports) => {
            let rate: u64 = ports.iter().map(|port| port.rate.bytes_per_second()).sum();
            slot.spec().rate(weftlink_fabric::Measure::Effective, 1).bytes_per_second() < rate
        }
        _ => true,
    }
}

/// What a slower slot costs: of the calls that depend on it, the first that gets slower.
fn cost_of(fabric: &Fabric, function: &Function, usual: LinkSpec) -> Option<Cost> {
    let repaired = host_cost::with_slot(fabric, function.id, &usual);
    let copy = || host_cost::of_host_copy(fabric, &repaired, function.id);
    match fabric.device(function.id).kind {
        DeviceKind::Nic(_) => {
            let ports = host_cost::ports_of(fabric);
            host_cost::of_two_hosts((fabric, &ports), (&repaired, &ports)).or_else(copy)
        }
        _ => cost::of_all_reduce(fabric, &repaired).or_else(copy),
    }
}

#[cfg(test)]
mod tests {
    use super::super::host_tests::{Recorded, healthy, healthy_text, is_fine, is_unknown, virtual_machine};
    use super::*;

    const GPU0: &str = "sys/bus/pci/devices/0000:19:00.0";
    const NIC0: &str = "sys/bus/pci/devices/0000:1b:00.0";

    #[test]
    fn a_narrow_gpu_is_found_with_its_cost() {
        let found = healthy(&[&format!("{GPU0}/current_link_width = 4")]).finding(&CHECKS[0]);
        assert_eq!(found.severity, Severity::Warning);
        assert_eq!(found.what, "gpu0 (0000:19:00.0) runs at x4; it and its slot support x16");
        let cost = found.cost.unwrap();
        assert!(cost.sentence.starts_with("copies between host memory and gpu0"), "{cost:?}");
        assert!((3.5..4.5).contains(&(cost.usual_gb_per_s / cost.now_gb_per_s)), "{cost:?}");
    }

    #[test]
    fn without_nvlink_a_narrow_gpu_slows_the_collective() {
        let text = healthy_text();
        let cards: String =
            text.lines().filter(|line| !line.starts_with("nvml/")).flat_map(|line| [line, "\n"]).collect();
        let found = Recorded::new(&cards, &[&format!("{GPU0}/current_link_width = 4")]).finding(&CHECKS[0]);
        let cost = found.cost.unwrap();
        assert!(cost.sentence.starts_with("all-reduce of 1 GiB: "), "{cost:?}");
        assert!(cost.usual_gb_per_s > 1.5 * cost.now_gb_per_s, "{cost:?}");
    }

    #[test]
    fn a_narrow_nic_costs_bandwidth_between_hosts() {
        let found = healthy(&[&format!("{NIC0}/current_link_width = 4")]).finding(&CHECKS[0]);
        let cost = found.cost.unwrap();
        assert!(cost.sentence.contains("between two such hosts"), "{cost:?}");
        let slow = healthy(&[&format!("{NIC0}/current_link_speed = 8.0 GT/s PCIe")]).finding(&CHECKS[0]);
        assert!(slow.what.contains("runs at PCIe 3.0; it and its slot support 5.0"), "{}", slow.what);
    }

    #[test]
    fn idle_gpus_may_be_slow() {
        assert!(is_fine(&healthy(&[&format!("{GPU0}/current_link_speed = 2.5 GT/s PCIe")]).run(&CHECKS[0])));
    }

    #[test]
    fn a_narrow_slot_is_a_note_where_nvlink_carries_the_data() {
        let port = "sys/bus/pci/devices/0000:18:00.0/max_link_width = 8";
        let found = healthy(&[port, &format!("{GPU0}/current_link_width = 8")]).finding(&CHECKS[0]);
        assert_eq!(found.severity, Severity::Note);
        assert!(found.what.contains("is PCIe 5.0 x8, and the card supports PCIe 5.0 x16"), "{}", found.what);
    }

    #[test]
    fn hidden_links_are_unknown() {
        let file = "sys/bus/pci/devices/0000:00:06.0/current_link_width -";
        assert!(is_unknown(&virtual_machine(&[file]).run(&CHECKS[0])));
    }
}
