//! The kernel's names for what hangs off PCI functions: network interfaces, RDMA ports, NVMe drives.

use std::collections::BTreeMap;

use weftlink_fabric::device::{BusId, Port};
use weftlink_fabric::link::Network;
use weftlink_fabric::rate::{Link, OneWay, Rate};

use crate::ProbeError;
use crate::pci::Function;
use crate::tree::{Tree, names, pci_addresses};

pub(crate) const NET: &str = "sys/class/net";
pub(crate) const RDMA: &str = "sys/class/infiniband";
pub(crate) const NVME: &str = "sys/class/nvme";

const AMAZON: u16 = 0x1d0f;
/// More ports than any adapter has.
const MAX_PORTS: usize = 64;

/// An RDMA port as sysfs shows it.
#[derive(Debug, Clone)]
struct RdmaPort {
    name: String,
    layer: String,
    is_active: bool,
    rate: Rate<Link, OneWay>,
}

/// A network interface.
#[derive(Debug, Clone)]
struct NetDevice {
    name: String,
    /// Zero where it shows none.
    rate: Rate<Link, OneWay>,
}

/// Everything found, by the PCI function it belongs to.
#[derive(Debug, Default)]
pub(crate) struct Interfaces {
    rdma: BTreeMap<BusId, Vec<RdmaPort>>,
    net: BTreeMap<BusId, Vec<NetDevice>>,
    nvme: BTreeMap<BusId, String>,
}

/// A NIC's ports, its interfaces' names, and what is wrong with them.
#[derive(Debug, Default)]
pub(crate) struct Adapter {
    pub(crate) ports: Vec<Port>,
    pub(crate) label: Option<Box<str>>,
    pub(crate) troubles: Vec<String>,
}

impl Interfaces {
    pub(crate) fn read(tree: &dyn Tree) -> Result<Self, ProbeError> {
        let mut found = Self::default();
        for name in names(tree, NVME, "NVMe drives")? {
            if let Some(owner) = owner(tree, NVME, &name) {
                found.nvme.insert(owner, name);
            }
        }
        for name in names(tree, NET, "network interfaces")? {
            let Some(owner) = owner(tree, NET, &name) else {
                continue;
            };
            // Radio does not join GPUs.
            if tree.read(&format!("{NET}/{name}/phy80211/index")).is_some() {
                continue;
            }
            let megabits =
                tree.read(&format!("{NET}/{name}/speed")).and_then(|text| text.parse::<u32>().ok());
            // An interface that is down shows -1, or the same read as unsigned.
            let megabits = megabits.filter(|megabits| *megabits < 10_000_000).unwrap_or(0);
            let rate = Rate::from_bytes(u64::from(megabits) * 125_000);
            found.net.entry(owner).or_default().push(NetDevice { name, rate });
        }
        for name in names(tree, RDMA, "RDMA devices")? {
            if let Some(owner) = owner(tree, RDMA, &name) {
                let ports = rdma_ports(tree, &name)?;
                found.rdma.entry(owner).or_default().extend(ports);
            }
        }
        Ok(found)
    }

    /// The drive's name, such as `nvme0`.
    pub(crate) fn drive(&self, bus: BusId) -> Option<&str> {
        self.nvme.get(&bus).map(String::as_str)
    }

    /// The NIC that some functions of one slot are. RDMA ports are its ports where it has them, for they are what
    /// GPU traffic uses; the interfaces beside them then name it.
    pub(crate) fn adapter(&self, functions: &[&Function]) -> Adapter {
        let mut adapter = Adapter::default();
        let mut labels = Vec::new();
        for function in functions {
            let is_amazon = function.vendor == AMAZON;
            let fixed = is_amazon.then(|| Network::efa_by_pci_device(function.device)).flatten();
            let nets = self.net.get(&function.bus).map_or(&[][..], Vec::as_slice);
            match self.rdma.get(&function.bus) {
                Some(ports) => {
                    labels.extend(nets.iter().map(|net| net.name.as_str()));
                    for port in ports {
                        adapter.add_rdma(port, fixed);
                    }
                }
                None if nets.is_empty() => {
                    adapter.troubles.push("has no driver: its ports are not known".to_owned());
                    adapter.add(None, fixed, Rate::ZERO);
                }
                None => {
                    for net in nets {
                        if net.rate == Rate::ZERO {
                            adapter
                                .troubles
                                .push(format!("{} shows no line rate: it is virtual, or down", net.name));
                        }
                        adapter.add(Some(&net.name), fixed.or(Some(Network::Ethernet)), net.rate);
                    }
                }
            }
        }
        if !labels.is_empty() {
            adapter.label = Some(labels.join(" ").into());
        }
        adapter
    }
}

impl Adapter {
    fn add_rdma(&mut self, port: &RdmaPort, fixed: Option<Network>) {
        let network = match port.layer.as_str() {
            _ if fixed.is_some() => fixed,
            "InfiniBand" => Some(Network::InfiniBand),
            "Ethernet" => Some(Network::Roce),
            _ => None,
        };
        // A port that is down shows the rate it would start training at.
        let rate = if port.is_active { port.rate } else { Rate::ZERO };
        if !port.is_active {
            self.troubles.push(format!("port {} is down", port.name));
        }
        self.add(Some(&port.name), network, rate);
    }

    fn add(&mut self, name: Option<&str>, network: Option<Network>, rate: Rate<Link, OneWay>) {
        self.ports.push(Port { name: name.map(Into::into), network, rate, extra: Vec::new() });
    }
}

/// The innermost PCI function that a class entry's link leads through.
fn owner(tree: &dyn Tree, class: &str, name: &str) -> Option<BusId> {
    pci_addresses(&tree.link(&format!("{class}/{name}"))?).pop()
}

fn rdma_ports(tree: &dyn Tree, name: &str) -> Result<Vec<RdmaPort>, ProbeError> {
    let folder = format!("{RDMA}/{name}/ports");
    let numbers = names(tree, &folder, "ports")?;
    if numbers.len() > MAX_PORTS {
        return Err(ProbeError::TooMany { what: "ports", path: folder, limit: MAX_PORTS });
    }
    let only = numbers.len() == 1;
    Ok(numbers
        .iter()
        .filter_map(|number| {
            let read = |file: &str| tree.read(&format!("{folder}/{number}/{file}"));
            Some(RdmaPort {
                // Several ports are told apart as NCCL does, by a colon and their number.
                name: if only { name.to_owned() } else { format!("{name}:{number}") },
                is_active: read("state")?.contains("ACTIVE"),
                layer: read("link_layer").unwrap_or_default(),
                rate: read("rate").as_deref().map_or(Rate::ZERO, gigabits),
            })
        })
        .collect())
}

/// `400 Gb/sec (4X NDR)`; zero where it is not that.
fn gigabits(text: &str) -> Rate<Link, OneWay> {
    let number = text.split_whitespace().next().and_then(|number| number.parse::<f64>().ok());
    match number {
        Some(gigabits) if (0.0..=10_000.0).contains(&gigabits) => Rate::from_bytes((gigabits * 125e6) as u64),
        _ => Rate::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_read_as_the_kernel_writes_them() {
        assert_eq!(gigabits("400 Gb/sec (4X NDR)"), Rate::from_gbit(400));
        assert_eq!(gigabits("2.5 Gb/sec (1X SDR)"), Rate::from_bytes(312_500_000));
        for text in ["", "fast", "-1 Gb/sec", "NaN", "inf", "1e99 Gb/sec"] {
            assert_eq!(gigabits(text), Rate::ZERO, "{text}");
        }
    }
}
