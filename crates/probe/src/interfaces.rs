//! The kernel's interfaces of PCI functions: network interfaces, RDMA ports, NVMe drives.

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
/// Ports of one adapter.
const PORTS_MAX: usize = 64;

/// An RDMA port in sysfs.
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
    /// Zero if unknown.
    rate: Rate<Link, OneWay>,
}

/// All interfaces, by PCI function.
#[derive(Debug, Default)]
pub(crate) struct Interfaces {
    rdma: BTreeMap<BusId, Vec<RdmaPort>>,
    net: BTreeMap<BusId, Vec<NetDevice>>,
    nvme: BTreeMap<BusId, String>,
}

/// A NIC's ports, the names of its interfaces, and problems with them.
#[derive(Debug, Default)]
pub(crate) struct Adapter {
    pub(crate) ports: Vec<Port>,
    pub(crate) label: Option<Box<str>>,
    pub(crate) problems: Vec<String>,
}

impl Interfaces {
    pub(crate) fn read(tree: &dyn Tree) -> Result<Self, ProbeError> {
        let mut interfaces = Self::default();
        for name in names(tree, NVME, "NVMe drives")? {
            if let Some(owner) = owner(tree, NVME, &name) {
                interfaces.nvme.insert(owner, name);
            }
        }
        for name in names(tree, NET, "network interfaces")? {
            let Some(owner) = owner(tree, NET, &name) else {
                continue;
            };
            // Wi-Fi carries no GPU traffic, and a representor is the switch side of another function's port.
            let read = |file: &str| tree.read(&format!("{NET}/{name}/{file}"));
            if read("phy80211/index").is_some()
                || read("phys_port_name").is_some_and(|port| is_representor(&port))
            {
                continue;
            }
            let megabits =
                tree.read(&format!("{NET}/{name}/speed")).and_then(|text| text.parse::<u32>().ok());
            // The speed of an interface that is down is -1, or that as an unsigned number.
            let megabits = megabits.filter(|megabits| *megabits < 10_000_000).unwrap_or(0);
            let rate = Rate::from_bytes(u64::from(megabits) * 125_000);
            interfaces.net.entry(owner).or_default().push(NetDevice { name, rate });
        }
        for name in names(tree, RDMA, "RDMA devices")? {
            if let Some(owner) = owner(tree, RDMA, &name) {
                let ports = rdma_ports(tree, &name)?;
                interfaces.rdma.entry(owner).or_default().extend(ports);
            }
        }
        Ok(interfaces)
    }

    /// The drive's name, such as `nvme0`.
    pub(crate) fn drive(&self, bus: BusId) -> Option<&str> {
        self.nvme.get(&bus).map(String::as_str)
    }

    /// The NIC that consists of the functions of one slot. Its ports are the RDMA ports, if it has any, because GPU
    /// traffic uses them; the network interfaces then give its label, including those of functions whose RDMA is bonded
    /// into another function.
    pub(crate) fn adapter(&self, functions: &[&Function]) -> Adapter {
        let mut adapter = Adapter::default();
        let mut labels = Vec::new();
        let has_rdma = functions.iter().any(|function| self.rdma.contains_key(&function.bus));
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
                    adapter
                        .problems
                        .push("has no interface here (no driver, or another network namespace)".to_owned());
                    adapter.add(None, fixed, Rate::ZERO);
                }
                None if has_rdma => labels.extend(nets.iter().map(|net| net.name.as_str())),
                None => {
                    for net in nets {
                        if net.rate == Rate::ZERO {
                            adapter
                                .problems
                                .push(format!("{} has no line rate: it is virtual, or down", net.name));
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
        // The rate of a port that is down is the initial training rate.
        let rate = if port.is_active { port.rate } else { Rate::ZERO };
        if !port.is_active {
            self.problems.push(format!("port {} is down", port.name));
        }
        self.add(Some(&port.name), network, rate);
    }

    fn add(&mut self, name: Option<&str>, network: Option<Network>, rate: Rate<Link, OneWay>) {
        self.ports.push(Port { name: name.map(Into::into), network, rate, extra: Vec::new() });
    }
}

/// The innermost PCI function on the path of a class entry. None for subfunctions, whose parent function has its own
/// interface.
pub(crate) fn owner(tree: &dyn Tree, class: &str, name: &str) -> Option<BusId> {
    let path = tree.link(&format!("{class}/{name}"))?;
    let is_subfunction = path.split('/').any(|part| part.contains(".sf."));
    pci_addresses(&path).pop().filter(|_| !is_subfunction)
}

/// True for `pf0vf3`, `pf0sf88`, or with a controller number `c1pf0`; the card's own port is `p0`.
pub(crate) fn is_representor(port: &str) -> bool {
    let own =
        port.strip_prefix('c').map_or(port, |rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
    own.strip_prefix("pf").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

fn rdma_ports(tree: &dyn Tree, name: &str) -> Result<Vec<RdmaPort>, ProbeError> {
    let folder = format!("{RDMA}/{name}/ports");
    let numbers = names(tree, &folder, "ports")?;
    if numbers.len() > PORTS_MAX {
        return Err(ProbeError::TooMany { what: "ports", path: folder, limit: PORTS_MAX });
    }
    let only = numbers.len() == 1;
    Ok(numbers
        .iter()
        .filter_map(|number| {
            let read = |file: &str| tree.read(&format!("{folder}/{number}/{file}"));
            Some(RdmaPort {
                // Several ports are named as in NCCL, with a colon and their number.
                name: if only { name.to_owned() } else { format!("{name}:{number}") },
                is_active: read("state")?.contains("ACTIVE"),
                layer: read("link_layer").unwrap_or_default(),
                rate: read("rate").as_deref().map_or(Rate::ZERO, gigabits),
            })
        })
        .collect())
}

/// Parses `400 Gb/sec (4X NDR)`; zero if malformed.
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
    fn a_bonded_card_has_one_port_and_subfunctions_have_none() {
        use crate::{Recording, probe};

        let mut text = "# weft recording 1\n".to_owned();
        for function in 0..2 {
            let bus = format!("0000:08:00.{function}");
            text += &format!("sys/bus/pci/devices/{bus} -> ../../../devices/pci0000:00/{bus}\n");
            for line in ["class = 0x020000", "vendor = 0x15b3", "device = 0x101d"] {
                text += &format!("sys/bus/pci/devices/{bus}/{line}\n");
            }
        }
        let first = "../../devices/pci0000:00/0000:08:00.0";
        for (name, path) in [
            ("net/ens1f0", format!("{first}/net/ens1f0")),
            ("net/ens1f1", "../../devices/pci0000:00/0000:08:00.1/net/ens1f1".to_owned()),
            ("net/ens1f0r3", format!("{first}/net/ens1f0r3")),
            ("net/ens1f0s88", format!("{first}/mlx5_core.sf.2/net/ens1f0s88")),
            ("infiniband/mlx5_2", format!("{first}/mlx5_core.sf.2/infiniband/mlx5_2")),
            ("infiniband/mlx5_bond_0", format!("{first}/infiniband/mlx5_bond_0")),
        ] {
            text += &format!("sys/class/{name} -> {path}\n");
        }
        for (interface, port) in [("ens1f0", "p0"), ("ens1f1", "p1"), ("ens1f0r3", "pf0vf3")] {
            text += &format!("{NET}/{interface}/phys_port_name = {port}\n{NET}/{interface}/speed = 100000\n");
        }
        for device in ["mlx5_2", "mlx5_bond_0"] {
            text += &format!(
                "{RDMA}/{device}/ports/1/state = 4: ACTIVE\n{RDMA}/{device}/ports/1/rate = 100 Gb/sec\n"
            );
        }
        let recording: Recording = text.parse().unwrap();
        let fabric = probe(&recording, &recording).unwrap();
        let nic = fabric.device(fabric.find("nic0").unwrap());
        let weftlink_fabric::device::DeviceKind::Nic(ports) = &nic.kind else { panic!("{nic:?}") };
        let names: Vec<_> = ports.iter().filter_map(|port| port.name.as_deref()).collect();
        assert_eq!((names, nic.label.as_deref()), (vec!["mlx5_bond_0"], Some("ens1f0 ens1f1")));
        assert_eq!(
            ["p0", "pf0vf3", "c1pf0", "c1pf0sf8", "", "core"].map(is_representor),
            [false, true, true, true, false, false]
        );
    }

    #[test]
    fn kernel_rates_are_parsed() {
        assert_eq!(gigabits("400 Gb/sec (4X NDR)"), Rate::from_gbit(400));
        assert_eq!(gigabits("2.5 Gb/sec (1X SDR)"), Rate::from_bytes(312_500_000));
        for text in ["", "fast", "-1 Gb/sec", "NaN", "inf", "1e99 Gb/sec"] {
            assert_eq!(gigabits(text), Rate::ZERO, "{text}");
        }
    }
}
