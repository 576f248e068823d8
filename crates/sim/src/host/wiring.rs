//! Builds a fabric from hosts: cores, shared memory and NICs.
//!
//! All data between cores goes through memory. The ranks of a host share its bandwidth evenly, so the cost model limits each core's rate
//! instead. Ranks take the place of GPUs, on which plans run.

use weftlink_fabric::catalog::links;
use weftlink_fabric::device::{Gpu, Numa, Port, Tier};
use weftlink_fabric::link::{Network as NetworkKind, SpecId};
use weftlink_fabric::rate::Rate;
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, FabricBuilder, FabricError, LinkKind};

use super::Hosts;
use crate::setup::Network;

/// The kind of link that models a core's incoming data.
pub(super) const CORE: LinkKind = LinkKind::Pcie { generation: 5, width: 16 };
/// The kind of link that models a core's outgoing data.
const OUT: LinkKind = LinkKind::Pcie { generation: 6, width: 16 };

pub(super) fn fabric(hosts: &Hosts) -> Result<Fabric, FabricError> {
    let mut builder = FabricBuilder::new(format!("{} hosts of {} cores", hosts.hosts, hosts.ranks_per_host));
    let cores = (builder.spec(links::spec_of(OUT)), builder.spec(links::spec_of(CORE)));
    let leaf = (hosts.hosts > 1).then(|| builder.add(None, DeviceKind::NetSwitch(Tier::Leaf)));
    let gbit = hosts.nic_gbits_per_second.round().max(1.0) as u32;
    let network = kind(hosts.network);
    let cable = builder.spec(links::network(network, gbit));
    for number in 0..hosts.hosts {
        let host = builder.host(format!("host{number}"), None);
        let memory = builder.add(Some(host), DeviceKind::Numa(Numa::default()));
        for _ in 0..hosts.ranks_per_host {
            let rank = Gpu { model: None, sm: None, ranks: Vec::new() };
            beside(&mut builder, memory, DeviceKind::Gpu(rank), cores);
        }
        let Some(leaf) = leaf else { continue };
        for _ in 0..hosts.nics_per_host {
            let rate = Rate::from_gbit(gbit.into());
            let port = Port { name: None, network: Some(network), rate, extra: Vec::new() };
            let nic = beside(&mut builder, memory, DeviceKind::Nic(vec![port]), cores);
            builder.connect(nic, leaf, 1, cable);
        }
    }
    builder.finish()
}

/// Adds a device that writes to and reads from a host's memory.
fn beside(
    builder: &mut FabricBuilder,
    memory: DeviceId,
    kind: DeviceKind,
    (out, into): (SpecId, SpecId),
) -> DeviceId {
    let host = builder.device(memory).host;
    let device = builder.add(host, kind);
    builder.link(device, memory, 1, out);
    builder.link(memory, device, 1, into);
    device
}

fn kind(network: Network) -> NetworkKind {
    match network {
        Network::InfiniBand => NetworkKind::InfiniBand,
        Network::Roce => NetworkKind::Roce,
        Network::Efa => NetworkKind::EfaV2,
        Network::Slingshot => NetworkKind::Slingshot,
        Network::Tcp | Network::Tcpx | Network::Tcpxo | Network::None => NetworkKind::Ethernet,
    }
}
