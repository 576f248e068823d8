//! AMD's GPUs and the xGMI links between them, from the topology that the kernel driver amdgpu shows: one folder for each node, with
//! the links of the node.
//!
//! A partitioned GPU has a node for each partition; its partitions are one GPU here. A link to a GPU that is reached only through
//! another one has no bandwidth. Some drivers report no bandwidth at all; then each listed pair counts as one link.

use std::collections::BTreeMap;

use weftlink_fabric::device::BusId;

use crate::ProbeError;
use crate::pci::Functions;
use crate::tree::{Tree, names};

pub(crate) const NODES: &str = "sys/class/kfd/kfd/topology/nodes";
/// `io_link` type of xGMI, as in the kernel's `kfd_crat.h`.
const TYPE_XGMI: u64 = 11;
/// Links between two GPUs. The dies of an MI250 have four.
const LINKS_MAX: u64 = 16;
/// Nodes of one machine: eight GPUs in eight partitions each have 64.
const NODES_MAX: usize = 4096;

/// What the driver shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Kfd {
    /// The GPUs, by PCI address.
    pub(crate) gpus: BTreeMap<BusId, KfdGpu>,
    /// The links between GPUs: each pair once, the lower address first.
    pub(crate) links: BTreeMap<(BusId, BusId), XgmiLinks>,
    /// True if the driver reports no bandwidth, so that the numbers of links are assumed.
    pub(crate) is_assumed: bool,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KfdGpu {
    /// Its PCI vendor and device.
    pub(crate) ids: (u16, u16),
    /// `90402` is gfx942.
    pub(crate) gfx: u32,
    /// Partitions into which it is divided.
    pub(crate) partitions: u32,
}

/// The links between two GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct XgmiLinks {
    pub(crate) count: u32,
    /// MB/s each way over all of them; 0 if not reported.
    pub(crate) mb_per_s: u64,
    /// The driver's measure of distance: 15 for a direct link.
    pub(crate) weight: u64,
}

impl Kfd {
    pub(crate) fn read(tree: &dyn Tree, functions: &Functions) -> Result<Self, ProbeError> {
        let mut kfd = Self::default();
        let mut nodes: BTreeMap<u64, BusId> = BTreeMap::new();
        let numbers = names(tree, NODES, "KFD nodes")?;
        if numbers.len() > NODES_MAX {
            return Err(ProbeError::TooMany { what: "KFD nodes", path: NODES.to_owned(), limit: NODES_MAX });
        }
        for name in &numbers {
            let properties = properties(tree, &format!("{NODES}/{name}/properties"));
            let of = |key: &str| properties.get(key).copied().unwrap_or(0);
            let Some(number) = name.parse::<u64>().ok().filter(|_| of("simd_count") > 0) else {
                continue;
            };
            let bus = address(of("domain"), of("location_id"), functions);
            nodes.insert(number, bus);
            let ids = (of("vendor_id") as u16, of("device_id") as u16);
            let gfx = u32::try_from(of("gfx_target_version")).unwrap_or(0);
            kfd.gpus.entry(bus).or_insert(KfdGpu { ids, gfx, partitions: 0 }).partitions += 1;
        }
        for (number, bus) in &nodes {
            kfd.read_links(tree, &format!("{NODES}/{number}/io_links"), *bus, &nodes)?;
        }
        kfd.is_assumed = kfd.links.values().all(|links| links.mb_per_s == 0);
        if !kfd.is_assumed {
            kfd.links.retain(|_, links| links.mb_per_s > 0);
        }
        Ok(kfd)
    }

    fn read_links(
        &mut self,
        tree: &dyn Tree,
        folder: &str,
        bus: BusId,
        nodes: &BTreeMap<u64, BusId>,
    ) -> Result<(), ProbeError> {
        for name in names(tree, folder, "links of a KFD node")? {
            let properties = properties(tree, &format!("{folder}/{name}/properties"));
            let of = |key: &str| properties.get(key).copied().unwrap_or(0);
            let far = nodes.get(&of("node_to")).copied().filter(|far| *far != bus);
            let (TYPE_XGMI, Some(far)) = (of("type"), far) else {
                continue;
            };
            let (least, most) = (of("min_bandwidth"), of("max_bandwidth"));
            // The least bandwidth is that of one link.
            let count = most.checked_div(least).unwrap_or(1).clamp(1, LINKS_MAX) as u32;
            let links = XgmiLinks { count, mb_per_s: most, weight: of("weight") };
            let pair = (bus.min(far), bus.max(far));
            let kept = self.links.entry(pair).or_insert(links);
            if links.mb_per_s > kept.mb_per_s {
                *kept = links;
            }
        }
        Ok(())
    }
}

/// `key value` lines.
fn properties(tree: &dyn Tree, path: &str) -> BTreeMap<String, u64> {
    let text = tree.read(path).unwrap_or_default();
    let pair = |line: &str| {
        let (key, value) = line.trim().split_once(' ')?;
        Some((key.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(pair).collect()
}

/// The PCI address of a node. The function number of a partition is its own, unless there is such a function.
fn address(domain: u64, location: u64, functions: &Functions) -> BusId {
    let (domain, bus, device) = (domain as u32, (location >> 8) as u8, (location >> 3) as u8 & 0x1f);
    let exact = BusId::new(domain, bus, device, location as u8 & 7);
    if functions.by_bus.contains_key(&exact) { exact } else { BusId::new(domain, bus, device, 0) }
}

/// The text of a node's properties without what identifies a single GPU.
pub(crate) fn anonymous(text: &str) -> String {
    let identifies =
        |line: &&str| !["unique_id ", "hive_id "].iter().any(|key| line.trim_start().starts_with(key));
    text.lines().filter(identifies).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Recording;

    /// A recording of GPUs at buses 1, 2, ..., with links given as `(from, to, least, most)`.
    fn kfd(gpus: u32, links: &[(u32, u32, u64, u64)]) -> Kfd {
        let mut text =
            format!("# weft recording 1\n{NODES}/0/properties = cpu_cores_count 64\\nsimd_count 0\n");
        for number in 1..=gpus {
            text += &format!(
                "{NODES}/{number}/properties = simd_count 440\\nlocation_id {}\\nvendor_id 4098\\ndevice_id 29708\\n\
                 gfx_target_version 90010\\nunique_id 4711\n",
                number << 8
            );
        }
        for (index, (from, to, least, most)) in links.iter().enumerate() {
            text += &format!(
                "{NODES}/{from}/io_links/{index}/properties = type 11\\nnode_from {from}\\nnode_to {to}\\nweight 15\\n\
                 min_bandwidth {least}\\nmax_bandwidth {most}\n"
            );
        }
        let recording: Recording = text.parse().unwrap();
        Kfd::read(&recording, &Functions::default()).unwrap()
    }

    fn bus(number: u8) -> BusId {
        BusId::new(0, number, 0, 0)
    }

    #[test]
    fn bandwidth_gives_the_number_of_links() {
        let kfd =
            kfd(3, &[(1, 2, 50_000, 200_000), (2, 1, 50_000, 200_000), (1, 3, 50_000, 50_000), (2, 3, 0, 0)]);
        assert_eq!(kfd.gpus.len(), 3);
        assert_eq!(kfd.gpus[&bus(1)], KfdGpu { ids: (0x1002, 0x740c), gfx: 90_010, partitions: 1 });
        let counts: Vec<_> = kfd.links.iter().map(|(pair, links)| (*pair, links.count)).collect();
        // The pair without bandwidth is not connected directly.
        assert_eq!(counts, [((bus(1), bus(2)), 4), ((bus(1), bus(3)), 1)]);
        assert!(!kfd.is_assumed);
    }

    #[test]
    fn without_bandwidths_each_pair_counts_once() {
        let kfd = kfd(2, &[(1, 2, 0, 0), (2, 1, 0, 0)]);
        assert!(kfd.is_assumed);
        assert_eq!(kfd.links[&(bus(1), bus(2))].count, 1);
    }

    #[test]
    fn partitions_are_one_gpu() {
        let mut text = "# weft recording 1\n".to_owned();
        for partition in 0..4 {
            text += &format!(
                "{NODES}/{partition}/properties = simd_count 152\\nlocation_id {}\n",
                0x500 + partition
            );
            text += &format!(
                "{NODES}/{partition}/io_links/0/properties = type 11\\nnode_to {}\\nmax_bandwidth 819200\n",
                (partition + 1) % 4
            );
        }
        let recording: Recording = text.parse().unwrap();
        let kfd = Kfd::read(&recording, &Functions::default()).unwrap();
        assert_eq!((kfd.gpus.len(), kfd.gpus[&bus(5)].partitions, kfd.links.len()), (1, 4, 0));
    }

    #[test]
    fn serial_numbers_are_removed() {
        assert_eq!(anonymous("simd_count 4\nunique_id 99\nhive_id 7\ndomain 0"), "simd_count 4\ndomain 0");
    }
}
