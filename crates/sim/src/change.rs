//! Changes to a fabric that its owner may consider: other NICs, sockets, no access between GPUs.

use std::collections::BTreeMap;

use weftlink_fabric::catalog::links;
use weftlink_fabric::link::Network;
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, HostId, LinkKind, LinkSpec, PeerAccess};

/// Sockets on the same NICs, in place of RDMA.
pub(crate) fn over_sockets(fabric: &Fabric) -> Fabric {
    fabric.with_links(|link, spec| {
        let spec = match spec.kind {
            LinkKind::Network { gbit, .. } => {
                let sockets = links::network(Network::Ethernet, gbit);
                LinkSpec { kind: sockets.kind, ..spec.clone() }
            }
            _ => spec.clone(),
        };
        Some((link.count, spec))
    })
}

/// GPUs exchange all data through host memory, whatever links connect them (`NCCL_P2P_DISABLE=1`).
pub(crate) fn without_peer_access(fabric: &Fabric) -> Fabric {
    let without_links =
        fabric.with_links(|link, spec| (!spec.kind.is_gpu_fabric()).then(|| (link.count, spec.clone())));
    without_links.with_peer_access(PeerAccess::Never)
}

/// Each host has `nics` NICs for each of its GPUs: its NICs get more cables and wider slots, or some lose theirs.
pub(crate) fn with_nics_per_gpu(fabric: &Fabric, nics: u32) -> Fabric {
    let mut of_host: BTreeMap<HostId, Vec<DeviceId>> = BTreeMap::new();
    for nic in fabric.devices_where(|kind| matches!(kind, DeviceKind::Nic(_))) {
        let is_cable = |kind| matches!(kind, LinkKind::Network { .. });
        let has_cable = fabric.links_from(nic).iter().any(|link| is_cable(fabric.spec(link).kind));
        if let (Some(host), true) = (fabric.device(nic).host, has_cable) {
            of_host.entry(host).or_default().push(nic);
        }
    }
    let mut gpus: BTreeMap<HostId, u32> = BTreeMap::new();
    for gpu in fabric.gpus() {
        if let Some(host) = fabric.device(*gpu).host {
            *gpus.entry(host).or_default() += 1;
        }
    }
    // How many NICs stand in the place of each.
    let mut times: BTreeMap<DeviceId, u32> = BTreeMap::new();
    for (host, there) in of_host {
        let wanted = gpus.get(&host).map_or(0, |gpus| gpus * nics.max(1));
        let count = there.len() as u32;
        for (at, nic) in (0..).zip(there) {
            times.insert(nic, (at + 1) * wanted / count - at * wanted / count);
        }
    }
    fabric.with_links(|link, spec| {
        let times = times.get(&link.source).or_else(|| times.get(&link.target)).copied().unwrap_or(1);
        (times > 0).then(|| (link.count * times, spec.clone()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Setup;
    use crate::setup::{Intra, Network as SetupNetwork};
    use weftlink_fabric::resolve;

    #[test]
    fn changes_are_seen_by_a_survey() {
        let fabric = resolve("4x hgx-h100 + 8x ndr").unwrap();
        let of = |fabric: &Fabric| Setup::of(fabric).unwrap();
        let usual = of(&fabric);
        assert_eq!(of(&over_sockets(&fabric)), Setup { network: SetupNetwork::Tcp, ..usual.clone() });
        assert_eq!(of(&without_peer_access(&fabric)).intra, Intra::PcieHost);
        assert_eq!(of(&with_nics_per_gpu(&fabric, 1)), usual);
        assert_eq!(of(&with_nics_per_gpu(&fabric, 2)).nics_per_node, 16);
        let half = resolve("4x hgx-h100 + 4x ndr").unwrap();
        assert_eq!(of(&with_nics_per_gpu(&half, 1)).nics_per_node, 8);
        let twice = resolve("2x hgx-h100 + 16x ndr").unwrap();
        assert_eq!(of(&with_nics_per_gpu(&twice, 1)).nics_per_node, 8);
    }
}
