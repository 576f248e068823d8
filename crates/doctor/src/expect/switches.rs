//! NVSwitches and PCIe switches.

use weftlink_fabric::DeviceId;
use weftlink_fabric::device::DeviceKind;
use weftlink_fabric::link::LinkKind;

use super::view::{Pair, Part, View};
use super::{SWITCHES, differs};
use crate::finding::{Finding, Outcome, Severity};
use crate::job::counted;

/// The number of switches, the links between NVSwitches, and GPUs that no longer share a PCIe switch with their NIC.
pub(super) fn switches(pair: &Pair<'_>) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    outcomes.extend(nvswitches(pair));
    outcomes.extend(between_nvswitches(pair));
    outcomes.extend(pcie_switches(pair));
    let expected = pair.expected.nvswitches.len() + pair.expected.pcie_switches.len();
    if outcomes.is_empty() && expected > 0 {
        outcomes.push(Outcome::Fine(format!("{expected} switches as expected")));
    }
    outcomes
}

fn nvswitches(pair: &Pair<'_>) -> Option<Outcome> {
    let (was, should) = (pair.found.nvswitches.len(), pair.expected.nvswitches.len());
    if was >= should {
        return None;
    }
    // A virtual machine sees the links of its GPUs, but not the switches.
    let links = |view: &View<'_>, part: &Part| view.links(part.id, LinkKind::is_gpu_fabric, |_| true).0;
    let all_there = pair.found.gpus.len() >= pair.expected.gpus.len()
        && pair
            .same_gpus()
            .all(|(found, expected)| links(&pair.found, found) >= links(&pair.expected, expected));
    let (severity, but) = match all_there && !pair.expected.gpus.is_empty() {
        true => (Severity::Note, "; the GPUs have all their links, so that the others are only hidden"),
        false => (Severity::Critical, ""),
    };
    let what = format!("{was} NVSwitches{} instead of {should}{but}", pair.found.of_this());
    let finding = differs(SWITCHES, severity, what, was.to_string(), should.to_string());
    Some(Outcome::Found(finding.fixed_by(
        "lspci -d 10de: | grep -i bridge lists the NVSwitches; if one is missing on the host itself, look for SXid in sudo dmesg and \
            have the baseboard checked",
    )))
}

/// Links between NVSwitches, as in DGX-2, where both fabrics have as many switches.
fn between_nvswitches(pair: &Pair<'_>) -> Vec<Outcome> {
    if pair.found.nvswitches.len() != pair.expected.nvswitches.len() {
        return Vec::new();
    }
    let is_link = |kind: LinkKind| matches!(kind, LinkKind::NvLink { .. });
    let links = |view: &View<'_>, id: DeviceId| {
        let to_switch = |to: DeviceId| matches!(view.fabric.device(to).kind, DeviceKind::NvSwitch { .. });
        view.links(id, is_link, to_switch)
    };
    let mut outcomes = Vec::new();
    for (found, expected) in pair.found.nvswitches.iter().zip(&pair.expected.nvswitches) {
        let (was, was_rate) = links(&pair.found, *found);
        let (should, should_rate) = links(&pair.expected, *expected);
        if was >= should && was_rate as f64 >= should_rate as f64 * 0.99 {
            continue;
        }
        let words = |count: u32, rate: u64| {
            format!("{} of {:.0} GB/s in all", counted(count.into(), "link"), rate as f64 / 1e9)
        };
        let (was, should) = (words(was, was_rate), words(should, should_rate));
        let what =
            format!("{} has {was} to other NVSwitches instead of {should}", pair.found.name_of(*found));
        let finding = differs(SWITCHES, Severity::Warning, what, was, should);
        outcomes.push(Outcome::Found(
            finding.fixed_by("look for SXid in sudo dmesg, and restart nvidia-fabricmanager: it trains the links between NVSwitches"),
        ));
    }
    outcomes
}

fn pcie_switches(pair: &Pair<'_>) -> Option<Outcome> {
    let (was, should) = (pair.found.pcie_switches.len(), pair.expected.pcie_switches.len());
    let apart: Vec<String> = pair
        .gpus
        .iter()
        .zip(&pair.expected.gpus)
        .filter_map(|(found, expected)| {
            let found = &pair.found.gpus[(*found)?];
            // As many NICs as expected are near the GPU, whichever they are.
            let near = |view: &View<'_>, gpu: &Part| {
                view.nics.iter().filter(|nic| share_a_switch(view, gpu, nic)).count()
            };
            let (now, usual) = (near(&pair.found, found), near(&pair.expected, expected));
            let is_complete = pair.nics.iter().all(Option::is_some);
            (is_complete && now == 0 && usual > 0).then(|| pair.found.name_of(found.id))
        })
        .collect();
    if was >= should && apart.is_empty() {
        return None;
    }
    let counts = format!("{was} PCIe switches{} instead of {should}", pair.found.of_this());
    let finding = match apart.is_empty() {
        true => differs(SWITCHES, Severity::Note, counts, was.to_string(), should.to_string()),
        false => {
            let what = format!(
                "{counts}: {} share none with a NIC, so that GPUDirect RDMA goes through the CPU",
                apart.join(", ")
            );
            apart.iter().fold(Finding::new(SWITCHES, Severity::Warning, what), |finding, gpu| {
                finding.shown_by(gpu.clone(), "no NIC below its PCIe switch, expected at least one")
            })
        }
    };
    Some(Outcome::Found(finding.fixed_by(
        "lspci -tv shows the tree. In a virtual machine, the provider's topology file (NCCL_TOPO_FILE) tells NCCL what the machine \
            hides; on the host itself, check that the cards are in the right slots",
    )))
}

/// Whether the ways of two devices pass the same PCIe switch.
fn share_a_switch(view: &View<'_>, one: &Part, other: &Part) -> bool {
    let switches = |part: &Part| -> Vec<DeviceId> {
        let passed = part.uplink.iter().map(|link| link.target);
        passed.filter(|id| matches!(view.fabric.device(*id).kind, DeviceKind::PcieSwitch)).collect()
    };
    let others = switches(other);
    switches(one).iter().any(|switch| others.contains(switch))
}
