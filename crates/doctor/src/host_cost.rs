//! What faults of slots and NICs cost: copies of the host's memory, and all-reduces between two hosts.

use weftlink_fabric::catalog::links;
use weftlink_fabric::device::{DeviceKind, Tier};
use weftlink_fabric::link::{LinkKind, LinkSpec, Measure, Network};
use weftlink_fabric::paths::Paths;
use weftlink_fabric::{DeviceId, Fabric, FabricBuilder};
use weftlink_plan::Kind;
use weftlink_sim::predict::{Options, predict};

use crate::finding::Cost;

/// Bytes of the call whose bandwidth is compared.
const BYTES: u64 = 1 << 30;
/// GPUs of a host up to which two hosts are predicted; more would take seconds.
const GPUS_MAX: usize = 16;

/// The line rate of a NIC's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRate {
    /// The NIC.
    pub nic: DeviceId,
    /// The technology.
    pub network: Network,
    /// Gb/s each way.
    pub gbit: u32,
}

/// The ports of a host over which GPUs of several hosts exchange data: those with RDMA, or all if none has it.
pub fn ports_of(host: &Fabric) -> Vec<PortRate> {
    let mut rates = Vec::new();
    for nic in host.device_ids() {
        let DeviceKind::Nic(ports) = &host.device(nic).kind else { continue };
        for port in ports {
            let gbit = u32::try_from(port.rate.bytes_per_second() / 125_000_000).unwrap_or(0);
            if let (Some(network), 1..) = (port.network, gbit) {
                rates.push(PortRate { nic, network, gbit });
            }
        }
    }
    if rates.iter().any(|rate| rate.network != Network::Ethernet) {
        rates.retain(|rate| rate.network != Network::Ethernet);
    }
    rates
}

/// The same all-reduce between two hosts of this kind, one switch between them: as the host and its ports are, and as they should be.
pub fn of_two_hosts(now: (&Fabric, &[PortRate]), usual: (&Fabric, &[PortRate])) -> Option<Cost> {
    let options = Options::default();
    let (now, usual) = (two_hosts(now)?, two_hosts(usual)?);
    compare("all-reduce of 1 GiB between two such hosts", (&now, &options), (&usual, &options))
}

/// The same all-reduce between two hosts of this kind if NICs cannot access the memory of GPUs.
pub fn of_no_gpudirect(host: &Fabric) -> Option<Cost> {
    let mut now = Options::default();
    now.what_if.no_gpudirect = true;
    between_two(host, &now)
}

/// The same all-reduce between two hosts of this kind over sockets instead of RDMA.
pub fn of_sockets(host: &Fabric) -> Option<Cost> {
    between_two(host, &Options { sockets: true, ..Options::default() })
}

/// An all-reduce of 1 GiB within the host if GPUs cannot access each other's memory.
pub fn of_no_peer_access(host: &Fabric) -> Option<Cost> {
    let now = Options { no_peer_access: true, ..Options::default() };
    compare("all-reduce of 1 GiB", (host, &now), (host, &Options::default()))
}

fn between_two(host: &Fabric, now: &Options) -> Option<Cost> {
    let fabric = two_hosts((host, &ports_of(host)))?;
    compare("all-reduce of 1 GiB between two such hosts", (&fabric, now), (&fabric, &Options::default()))
}

/// The rate of copies between the memory of the host and a device; None if it is the same on both fabrics.
pub fn of_host_copy(now: &Fabric, usual: &Fabric, device: DeviceId) -> Option<Cost> {
    let gb_per_s = |fabric: &Fabric| {
        let paths = Paths::of(fabric);
        let nodes = fabric.devices_where(|kind| matches!(kind, DeviceKind::Numa(_)));
        nodes.map(|node| paths.path(node, device).width.rate(Measure::Effective).gb()).reduce(f64::max)
    };
    let (now_gb_per_s, usual_gb_per_s) = (gb_per_s(now)?, gb_per_s(usual)?);
    let name = now.device_name(device);
    let sentence = format!(
        "copies between host memory and {name}: {now_gb_per_s:.1} instead of {usual_gb_per_s:.1} GB/s (the path's rate)"
    );
    (now_gb_per_s < usual_gb_per_s * 0.99).then_some(Cost { sentence, now_gb_per_s, usual_gb_per_s })
}

/// The fabric with another PCIe link above a device. The link of a root port to its socket is at least as wide.
pub fn with_slot(fabric: &Fabric, device: DeviceId, slot: &LinkSpec) -> Fabric {
    let is_pcie = |spec: &LinkSpec| matches!(spec.kind, LinkKind::Pcie { .. });
    let rank = |id: DeviceId| match fabric.device(id).kind {
        DeviceKind::Numa(_) => 0,
        DeviceKind::RootPort => 1,
        // Switches nearer to the CPU have lower ids.
        DeviceKind::PcieSwitch => 2,
        _ => 3,
    };
    let neighbours = fabric.links_from(device).iter().filter(|link| is_pcie(fabric.spec(link)));
    let Some(parent) = neighbours.map(|link| link.target).min_by_key(|id| (rank(*id), *id)) else {
        return fabric.clone();
    };
    let root = (rank(parent) == 1).then_some(parent);
    let rate = |spec: &LinkSpec| spec.rate(Measure::Effective, 1);
    fabric.with_links(|link, spec| {
        let ends = [link.source, link.target];
        let is_slot = ends.contains(&device) && ends.contains(&parent) && is_pcie(spec);
        let is_root = root.is_some_and(|root| ends.contains(&root)) && ends.iter().any(|id| rank(*id) == 0);
        let is_slow_root = is_root && is_pcie(spec) && rate(spec) < rate(slot);
        Some((link.count, if is_slot || is_slow_root { slot.clone() } else { spec.clone() }))
    })
}

/// Two copies of a host whose ports all connect to one switch; None without ports or with more GPUs than the limit.
fn two_hosts((host, ports): (&Fabric, &[PortRate])) -> Option<Fabric> {
    if ports.is_empty() || host.gpus().is_empty() || host.gpus().len() > GPUS_MAX || host.hosts().len() != 1 {
        return None;
    }
    let mut builder = FabricBuilder::new("two such hosts");
    let leaf = builder.add(None, DeviceKind::NetSwitch(Tier::Leaf));
    for copy in ["a", "b"] {
        let first = builder.append(host, |_, _| copy.to_owned());
        for port in ports {
            let cable = builder.spec(links::network(port.network, port.gbit));
            builder.connect(DeviceId(first.0 + port.nic.0), leaf, 1, cable);
        }
    }
    builder.finish().ok()
}

fn compare(call: &str, now: (&Fabric, &Options), usual: (&Fabric, &Options)) -> Option<Cost> {
    let gb_per_s = |(fabric, options): (&Fabric, &Options)| {
        let predicted = predict(Kind::AllReduce, fabric, &[BYTES], options).ok()?;
        Some(predicted.rows.first()?.busbw_gb_per_s)
    };
    let (now_gb_per_s, usual_gb_per_s) = (gb_per_s(now)?, gb_per_s(usual)?);
    let sentence =
        format!("{call}: {now_gb_per_s:.1} instead of {usual_gb_per_s:.1} GB/s (bus bandwidth, predicted)");
    (now_gb_per_s <= usual_gb_per_s * 0.99).then_some(Cost { sentence, now_gb_per_s, usual_gb_per_s })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weftlink_fabric::resolve;

    #[test]
    fn a_narrow_slot_costs_bandwidth() {
        let usual = resolve("2x-rtx3090-bridge").unwrap();
        let gpu = usual.gpus()[1];
        let now = with_slot(&usual, gpu, &links::pcie(4, 4));
        assert_ne!(now, usual);
        let cost = of_host_copy(&now, &usual, gpu).unwrap();
        assert!((3.5..4.5).contains(&(cost.usual_gb_per_s / cost.now_gb_per_s)), "{cost:?}");
        assert_eq!(of_host_copy(&usual, &usual, gpu), None);
        assert_eq!(crate::cost::of_all_reduce(&now, &usual), None, "NVLink carries it");
        let cards = resolve("2x-rtx4090").unwrap();
        let slow = with_slot(&cards, cards.gpus()[0], &links::pcie(4, 4));
        let cost = crate::cost::of_all_reduce(&slow, &cards).unwrap();
        assert!(cost.usual_gb_per_s > 1.5 * cost.now_gb_per_s, "{cost:?}");
    }

    #[test]
    fn two_hosts_are_as_fast_as_their_ports() {
        let host = resolve("nd-h100-v5").unwrap();
        let nics = host.devices_where(|kind| matches!(kind, DeviceKind::Nic(_)));
        let port = |nic| PortRate { nic, network: Network::InfiniBand, gbit: 400 };
        let all: Vec<PortRate> = nics.map(port).collect();
        let cost = of_two_hosts((&host, &all[..4]), (&host, &all)).unwrap();
        assert!(cost.usual_gb_per_s > 1.5 * cost.now_gb_per_s, "{cost:?}");
        assert_eq!(of_two_hosts((&host, &[]), (&host, &all)), None);
    }
}
