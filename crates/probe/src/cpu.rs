//! NUMA nodes and their CPU.

use weftlink_fabric::device::Cpu;

use crate::ProbeError;
use crate::tree::{Tree, hexadecimal, names};

const NODES: &str = "sys/devices/system/node";
/// The kernel's limit.
const NODES_MAX: usize = 1024;

/// The NUMA nodes of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sockets {
    /// The CPU, the same for all nodes.
    pub(crate) cpu: Cpu,
    /// Numbers of the nodes with cores, ascending; never empty.
    pub(crate) nodes: Vec<i32>,
    /// For each node without cores (GPU or CXL memory), the nearest node with cores.
    nearest: Vec<(i32, i32)>,
}

impl Sockets {
    pub(crate) fn read(tree: &dyn Tree) -> Result<Self, ProbeError> {
        let mut all: Vec<i32> = names(tree, NODES, "NUMA nodes")?
            .iter()
            .filter_map(|name| name.strip_prefix("node")?.parse().ok())
            .filter(|id| *id >= 0)
            .collect();
        all.sort_unstable();
        all.dedup();
        if all.len() > NODES_MAX {
            return Err(ProbeError::TooMany { what: "NUMA nodes", path: NODES.to_owned(), limit: NODES_MAX });
        }
        let file = |id: i32, name: &str| tree.read(&format!("{NODES}/node{id}/{name}"));
        all.retain(|id| file(*id, "cpulist").is_some());
        let (mut nodes, bare): (Vec<i32>, Vec<i32>) =
            all.iter().partition(|id| file(**id, "cpulist").is_some_and(|list| !list.is_empty()));
        if nodes.is_empty() {
            nodes.push(0);
        }
        // The distances of a node are in the order of all nodes.
        let nearest = bare
            .into_iter()
            .filter_map(|id| {
                let distances = file(id, "distance")?;
                let distance = |text: &str| text.parse::<u32>().ok();
                let closest = all
                    .iter()
                    .zip(distances.split_whitespace().map(distance))
                    .filter(|(other, _)| nodes.contains(other))
                    .min_by_key(|(_, distance)| distance.unwrap_or(u32::MAX))?;
                Some((id, *closest.0))
            })
            .collect();
        let cpu = tree.read(CPUINFO).map(|text| identify(&text)).unwrap_or_default();
        Ok(Self { cpu, nodes, nearest })
    }

    /// The node with cores for a device on `numa_node`; the first one if that is unknown (-1).
    pub(crate) fn node_for(&self, numa_node: i32) -> i32 {
        self.known_node_for(numa_node).unwrap_or(self.nodes[0])
    }

    /// True if `node_for` does not have to guess.
    pub(crate) fn is_known(&self, numa_node: i32) -> bool {
        self.known_node_for(numa_node).is_some()
    }

    fn known_node_for(&self, numa_node: i32) -> Option<i32> {
        if self.nodes.contains(&numa_node) {
            return Some(numa_node);
        }
        self.nearest.iter().find(|(bare, _)| *bare == numa_node).map(|(_, node)| *node)
    }
}

pub(crate) const CPUINFO: &str = "proc/cpuinfo";

/// The lines of `/proc/cpuinfo` that identify a CPU: x86, ARM, POWER.
const KEYS: [&str; 6] = ["vendor_id", "cpu family", "model", "CPU implementer", "CPU part", "cpu"];

/// The identifying lines of the first processor in `/proc/cpuinfo`, without serial numbers.
pub(crate) fn identifying_lines(cpuinfo: &str) -> String {
    let lines = KEYS.iter().filter_map(|key| Some(format!("{key} : {}", value(cpuinfo, key)?)));
    lines.collect::<Vec<_>>().join("\n")
}

fn value<'a>(cpuinfo: &'a str, key: &str) -> Option<&'a str> {
    cpuinfo.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then_some(value.trim())
    })
}

fn identify(cpuinfo: &str) -> Cpu {
    if let Some(vendor) = value(cpuinfo, "vendor_id") {
        return Cpu {
            arch: Some("x86_64".into()),
            vendor: Some(vendor.into()),
            family: value(cpuinfo, "cpu family").and_then(|text| text.parse().ok()),
            model: value(cpuinfo, "model").and_then(|text| text.parse().ok()),
        };
    }
    if let Some(implementer) = value(cpuinfo, "CPU implementer") {
        let vendor = match hexadecimal(implementer) {
            Some(0x41) => "ARM",
            Some(0x46) => "Fujitsu",
            Some(0x48) => "HiSilicon",
            Some(0x4e) => "NVIDIA",
            Some(0xc0) => "Ampere",
            _ => implementer,
        };
        return Cpu {
            arch: Some("arm64".into()),
            vendor: Some(vendor.into()),
            family: None,
            model: value(cpuinfo, "CPU part").and_then(hexadecimal),
        };
    }
    match value(cpuinfo, "cpu") {
        Some(name) if name.starts_with("POWER") => {
            Cpu { arch: Some("ppc64".into()), vendor: Some("IBM".into()), ..Cpu::default() }
        }
        _ => Cpu::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Recording;

    #[test]
    fn cpus_are_identified() {
        let intel =
            "processor : 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name : X\n";
        let cpu = identify(intel);
        assert_eq!((cpu.family, cpu.model), (Some(6), Some(143)));
        assert_eq!(identify(&identifying_lines(intel)), cpu);
        let grace = "processor : 0\nCPU implementer : 0x41\nCPU part : 0xd4f\nSerial : 123\n";
        assert_eq!(identify(grace).model, Some(0xd4f));
        assert!(!identifying_lines(grace).contains("123"));
        let power = identify("processor : 0\ncpu : POWER9, altivec supported\n");
        assert_eq!(power.arch.as_deref(), Some("ppc64"));
        assert_eq!(identify("garbage"), Cpu::default());
    }

    #[test]
    fn devices_on_nodes_without_cores_get_the_nearest_node() {
        let recording: Recording = "# weft recording 1
sys/devices/system/node/node0/cpulist = 0-71
sys/devices/system/node/node1/cpulist = 72-143
sys/devices/system/node/node9/cpulist =
sys/devices/system/node/node9/distance = 80 20 10
"
        .parse()
        .unwrap();
        let sockets = Sockets::read(&recording).unwrap();
        assert_eq!(sockets.nodes, [0, 1]);
        assert_eq!([9, 1, -1, 77].map(|node| sockets.node_for(node)), [1, 1, 0, 0]);
        assert_eq!([9, 1, -1, 77].map(|node| sockets.is_known(node)), [true, true, false, false]);
    }
}
