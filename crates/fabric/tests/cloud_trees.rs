//! The PCIe trees of cloud instances, against the topology files that their providers publish.

use std::collections::BTreeMap;
use std::path::Path;

use weftlink_fabric::catalog::systems;
use weftlink_fabric::device::DeviceKind;
use weftlink_fabric::link::LinkKind;
use weftlink_fabric::{DeviceId, Fabric, format};

fn system(name: &str) -> Fabric {
    systems::by_name(name).unwrap_or_else(|| panic!("no system {name}")).fabric()
}

/// A topology file of the shared samples, or none with a message.
fn sample(file: &str, test: &str) -> Option<Fabric> {
    let Some(shared) = std::env::var_os("WEFT_SHARED") else {
        eprintln!("skipped {test}: WEFT_SHARED is not set");
        return None;
    };
    let path = Path::new(&shared).join("samples/topology").join(file);
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Some(format::read(&bytes, file, None).unwrap_or_else(|error| panic!("{file}: {error}")))
}

/// The links from a device up to its NUMA node, and the id of that node. Root ports add none: files have no such element.
fn upward(fabric: &Fabric, device: DeviceId) -> (Vec<(DeviceId, LinkKind)>, i32) {
    let (mut at, mut way) = (device, Vec::new());
    loop {
        let passed = |id: DeviceId| id == device || way.iter().any(|(seen, _)| *seen == id);
        let link = fabric.links_from(at).iter().find(|link| {
            let pcie = matches!(fabric.spec(link).kind, LinkKind::Pcie { .. });
            let above = matches!(
                fabric.device(link.target).kind,
                DeviceKind::PcieSwitch | DeviceKind::RootPort | DeviceKind::Numa(_)
            );
            pcie && above && !passed(link.target)
        });
        let link = link.unwrap_or_else(|| panic!("{} has no parent", fabric.device_name(at)));
        if !matches!(fabric.device(at).kind, DeviceKind::RootPort) {
            way.push((link.target, fabric.spec(link).kind));
        }
        at = link.target;
        if let DeviceKind::Numa(numa) = &fabric.device(at).kind {
            return (way, numa.id);
        }
    }
}

/// For each NUMA node, its groups of devices below one PCIe switch: what they are, their slots and the uplink.
fn groups(fabric: &Fabric) -> BTreeMap<i32, Vec<Vec<String>>> {
    let mut below: BTreeMap<(i32, DeviceId), Vec<String>> = BTreeMap::new();
    for id in fabric.device_ids() {
        let what = match &fabric.device(id).kind {
            DeviceKind::Gpu(gpu) => gpu.model.map_or("gpu", |model| model.id),
            DeviceKind::Nic(_) => "nic",
            _ => continue,
        };
        let (way, numa) = upward(fabric, id);
        let links: Vec<String> = way.iter().map(|(_, kind)| kind.id()).collect();
        below.entry((numa, way[0].0)).or_default().push(format!("{what} {}", links.join(" ")));
    }
    let mut nodes: BTreeMap<i32, Vec<Vec<String>>> = BTreeMap::new();
    for ((numa, _), mut devices) in below {
        devices.sort();
        nodes.entry(numa).or_default().push(devices);
    }
    nodes
}

#[test]
fn p4d_has_the_published_tree() {
    let Some(published) = sample("p4d.24xl.xml", "p4d_has_the_published_tree") else { return };
    let expected = groups(&published);
    assert_eq!(groups(&system("p4d")), expected);
    let switch = ["a100-40gb pcie3x16 pcie3x16", "a100-40gb pcie3x16 pcie3x16", "nic pcie3x16 pcie3x16"];
    assert_eq!(expected[&0], [switch, switch], "two switches on a node, with two GPUs and one EFA each");
}

/// The file of g5 has bus ids only: it tells how many functions each NUMA node has, and that none is below a switch.
#[test]
fn g5_has_the_published_nodes() {
    let Some(published) = sample("g5.48xl.xml", "g5_has_the_published_nodes") else { return };
    let functions = |fabric: &Fabric| {
        let mut nodes: BTreeMap<i32, usize> = BTreeMap::new();
        for id in fabric.device_ids() {
            let kind = &fabric.device(id).kind;
            if matches!(kind, DeviceKind::Gpu(_) | DeviceKind::Nic(_) | DeviceKind::PciFunction) {
                let (way, numa) = upward(fabric, id);
                assert_eq!(way.len(), 1, "{} is below a switch", fabric.device_name(id));
                *nodes.entry(numa).or_default() += 1;
            }
        }
        nodes
    };
    assert_eq!(functions(&system("g5")), functions(&published));
}
