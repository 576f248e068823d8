//! Derives a setup from a fabric: the properties that determine the constants and a library's choice.
//!
//! A setup has less detail than a fabric: slower links, switches between racks and shared slots are lost. Plans are
//! [executed](crate::execute) on the fabric itself, where these still count.

use std::collections::BTreeMap;

use thiserror::Error;
use weftlink_fabric::catalog::gpus::{self, GpuModel, Vendor};
use weftlink_fabric::domains::gpu_domains;
use weftlink_fabric::link::Network as NetworkKind;
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, HostId, LinkKind};
use weftlink_plan::cost::lines;

use crate::estimate::x16_gbytes_per_second;
use crate::gpu::Gpu;
use crate::setup::{Intra, Library, Network, RACK_GPUS, Setup};
use crate::what_if::WhatIf;

/// NICs at or below this fraction of the fastest NIC's rate are not used for collectives.
const NIC_RATE_MIN: f64 = 0.5;

/// Why no setup can be derived from a fabric.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SurveyError {
    /// The fabric has no GPU.
    #[error("the fabric has no GPU; name one that has, such as hgx-h100 (`weft topo --list` prints them)")]
    NoGpu,
    /// A GPU that the catalog does not know.
    #[error(
        "the fabric does not name its GPU model, which predictions need (`weft topo --list gpus` prints the known models); give it"
    )]
    UnknownGpu,
    /// No network connects the hosts.
    #[error("no network connects its {hosts} hosts; name one, as in \"2x hgx-h100 + 8x ndr\"")]
    NoNetwork {
        /// Number of hosts.
        hosts: u32,
    },
}

impl Setup {
    /// The setup of a fabric, with the vendor's library and its default settings.
    pub fn of(fabric: &Fabric) -> Result<Self, SurveyError> {
        let gpu = slowest(fabric)?;
        let mut hosts: BTreeMap<Option<HostId>, u32> = BTreeMap::new();
        for id in fabric.gpus() {
            *hosts.entry(fabric.device(*id).host).or_default() += 1;
        }
        let most = hosts.values().copied().max().unwrap_or(0);
        let nodes = hosts.len() as u32;
        let domains = gpu_domains(fabric);
        let largest = domains.iter().map(Vec::len).max().unwrap_or(0);
        let intra = intra(fabric, most, &domains);
        let nics = if nodes > 1 { nics(fabric, &hosts) } else { None };
        if nodes > 1 && domains.len() > 1 && nics.is_none() {
            return Err(SurveyError::NoNetwork { hosts: nodes });
        }
        let (network, nics_per_node, nic_gbits_per_second) = nics.unwrap_or((Network::None, 0, 0.0));
        let (pcie_generation, slot_share) = slowest_slot(fabric, gpu);
        let mut setup = Self {
            gpu,
            intra,
            rack_gpus: if intra == Intra::Nvl72 { largest as u32 } else { RACK_GPUS },
            links_share: 1.0,
            pcie_generation,
            slot_share,
            gpus_per_node: most,
            nodes,
            missing_gpus: u64::from(most) * u64::from(nodes) - fabric.gpus().len() as u64,
            network,
            nics_per_node,
            nic_gbits_per_second,
            library: match gpu.model().vendor {
                Vendor::Nvidia => Library::Nccl,
                Vendor::Amd => Library::Rccl,
                Vendor::Intel => Library::OneCcl,
            },
            version: None,
            algorithm: None,
            protocol: None,
            launch: None,
            what_if: WhatIf::default(),
        };
        setup.links_share = links_share(fabric, &setup);
        Ok(setup)
    }

    /// The same machine with the library and the settings of another setup.
    pub(crate) fn with_settings_of(self, other: &Self) -> Self {
        let Self { library, version, algorithm, protocol, launch, what_if, .. } = *other;
        Self { library, version, algorithm, protocol, launch, what_if, ..self }
    }
}

/// The rate of the links of the slowest GPU to others, relative to those of the usual machine of that kind. Only links to GPUs that are
/// there count.
fn links_share(fabric: &Fabric, setup: &Setup) -> f64 {
    let least = |fabric: &Fabric| {
        let ports = fabric.gpus().iter().map(|gpu| lines::port(fabric, *gpu)).filter(|port| *port > 0.0);
        ports.min_by(f64::total_cmp)
    };
    let usual = Setup {
        nodes: if setup.intra == Intra::Nvl72 { setup.nodes } else { 1 },
        missing_gpus: 0,
        network: Network::None,
        nics_per_node: 0,
        ..setup.clone()
    };
    match (least(fabric), usual.fabric().ok().and_then(|fabric| least(&fabric))) {
        (Some(found), Some(usual)) => (found / usual).min(1.0),
        _ => 1.0,
    }
}

/// The slowest GPU, which limits the others.
fn slowest(fabric: &Fabric) -> Result<Gpu, SurveyError> {
    let known = |id: &DeviceId| match &fabric.device(*id).kind {
        DeviceKind::Gpu(gpu) => gpu.model.or_else(|| of_architecture(gpu.sm?)).map(Gpu::from),
        _ => None,
    };
    let all: Vec<Gpu> =
        fabric.gpus().iter().map(known).collect::<Option<_>>().ok_or(SurveyError::UnknownGpu)?;
    let rate = |gpu: &Gpu| gpu.port_line_gbytes_per_second();
    all.into_iter().min_by(|a, b| rate(a).total_cmp(&rate(b))).ok_or(SurveyError::NoGpu)
}

/// The GPU model for a description that gives the architecture only, `sm="90"`: the first of the newest architecture up to
/// it, which is a data-centre part if there is one.
fn of_architecture(sm: u32) -> Option<&'static GpuModel> {
    let known = gpus::GPUS.iter().filter(|model| model.vendor == Vendor::Nvidia && model.architecture <= sm);
    known.rev().max_by_key(|model| model.architecture)
}

fn intra(fabric: &Fabric, per_host: u32, domains: &[Vec<DeviceId>]) -> Intra {
    let largest = domains.iter().max_by_key(|domain| domain.len()).map_or(&[][..], Vec::as_slice);
    let linked = |id: &DeviceId| {
        let links = fabric.links_from(*id).iter().filter(|link| fabric.spec(link).kind.is_gpu_fabric());
        links.map(|link| (fabric.spec(link).kind, link.target)).collect::<Vec<_>>()
    };
    let links = largest.first().map(linked).unwrap_or_default();
    let switched =
        links.iter().any(|(_, target)| matches!(fabric.device(*target).kind, DeviceKind::NvSwitch { .. }));
    match links.first() {
        _ if largest.len() > per_host as usize => Intra::Nvl72,
        _ if per_host == 1 => Intra::None,
        None if fabric.lacks_peer_access() => Intra::PcieHost,
        None => Intra::PciePeers,
        Some((LinkKind::Xgmi { .. } | LinkKind::XeLink | LinkKind::UaLink, _)) => Intra::Xgmi,
        Some(_) if switched => Intra::NvSwitch,
        Some(_) if largest.len() == 2 => Intra::NvLinkBridge,
        Some(_) if largest.iter().all(|id| linked(id).len() + 1 >= largest.len()) => Intra::NvLinkMesh,
        Some(_) => Intra::CubeMesh,
    }
}

/// The network, and the number and average rate in Gb/s of the NICs of the host with the slowest. A NIC is as fast as its cables and its
/// slot.
fn nics(fabric: &Fabric, hosts: &BTreeMap<Option<HostId>, u32>) -> Option<(Network, u32, f64)> {
    let mut of_host: BTreeMap<HostId, Vec<(NetworkKind, f64)>> = BTreeMap::new();
    for id in fabric.devices_where(|kind| matches!(kind, DeviceKind::Nic(_))) {
        let slot = lines::slot(fabric, id).map_or(f64::INFINITY, |(rate, _)| rate);
        let cables = fabric.links_from(id).iter().filter_map(|link| match fabric.spec(link).kind {
            LinkKind::Network { network, .. } => Some((network, link.count, lines::line(fabric, link))),
            _ => None,
        });
        let cables: Vec<_> = cables.collect();
        let all: f64 = cables.iter().map(|(_, _, rate)| rate).sum();
        let Some(host) = fabric.device(id).host else { continue };
        for (network, count, rate) in cables {
            let each = rate * (slot / all).min(1.0) / f64::from(count);
            let ports = std::iter::repeat_n((network, each * 8.0 / 1e9), count as usize);
            of_host.entry(host).or_default().extend(ports);
        }
    }
    let mut slowest: Option<(Network, u32, f64)> = None;
    for host in hosts.keys() {
        let ports = of_host.remove(&(*host)?)?;
        let fastest = ports.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
        let used: Vec<(NetworkKind, f64)> =
            ports.into_iter().filter(|(_, rate)| *rate > fastest * NIC_RATE_MIN).collect();
        let all: f64 = used.iter().map(|(_, rate)| rate).sum();
        let is_slower = |before: &(Network, u32, f64)| all < f64::from(before.1) * before.2 * (1.0 - 1e-9);
        if slowest.as_ref().is_none_or(is_slower) {
            slowest = Some((network(used.first()?.0), used.len() as u32, all / used.len() as f64));
        }
    }
    slowest
}

fn network(kind: NetworkKind) -> Network {
    match kind {
        // No measurement of Omni-Path is known: it is predicted as InfiniBand.
        NetworkKind::InfiniBand | NetworkKind::OmniPath => Network::InfiniBand,
        NetworkKind::Roce => Network::Roce,
        NetworkKind::Efa
        | NetworkKind::EfaV1
        | NetworkKind::EfaV2
        | NetworkKind::EfaV3
        | NetworkKind::EfaV4 => Network::Efa,
        NetworkKind::Slingshot => Network::Slingshot,
        NetworkKind::TcpX => Network::Tcpx,
        NetworkKind::TcpXo => Network::Tcpxo,
        NetworkKind::Ethernet | NetworkKind::Unknown => Network::Tcp,
    }
}

/// The PCIe generation of the slowest slot of a GPU, and its rate relative to 16 lanes of that generation.
fn slowest_slot(fabric: &Fabric, gpu: Gpu) -> (u32, f64) {
    // NVLink-C2C takes the place of the slot.
    if gpu.model().c2c_links() > 0 {
        return (gpu.model().pcie.0.into(), 1.0);
    }
    let slots = fabric.gpus().iter().filter_map(|gpu| lines::slot(fabric, *gpu));
    let Some((rate, generation)) = slots.min_by(|a, b| a.0.total_cmp(&b.0)) else {
        return (gpu.model().pcie.0.into(), 1.0);
    };
    if generation == 0 {
        return (gpu.model().pcie.0.into(), 1.0);
    }
    (generation, (rate / 1e9 / x16_gbytes_per_second(generation)).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weftlink_fabric::catalog::systems;
    use weftlink_fabric::resolve;

    fn survey(spec: &str) -> Result<String, SurveyError> {
        Setup::of(&resolve(spec).unwrap()).map(|setup| setup.name())
    }

    #[test]
    fn a_fabric_built_from_a_setup_has_that_setup() {
        for (spec, name) in [
            ("hgx-h100", "8 x h100 (nvswitch)"),
            ("dgx-1-v100", "8 x v100 (cube-mesh)"),
            ("2x-rtx4090", "2 x rtx4090 (pcie-host)"),
            ("2x-rtx3090-bridge", "2 x rtx3090 (nvlink-bridge)"),
            ("2x hgx-h100 + 8x ndr", "2 nodes of 8 x h100 (nvswitch), 8 x ib 400 Gb/s"),
            ("2x hgx-h100 + 8x eth100", "2 nodes of 8 x h100 (nvswitch), 8 x tcp 100 Gb/s"),
            ("gb200-nvl72", "18 nodes of 4 x gb200 (nvl72)"),
        ] {
            assert_eq!(survey(spec).as_deref(), Ok(name), "{spec}");
            let setup = Setup::of(&resolve(spec).unwrap()).unwrap();
            assert_eq!(Setup::of(&setup.fabric().unwrap()), Ok(setup), "{spec} there and back");
        }
    }

    #[test]
    fn every_system_of_the_catalog_has_a_setup() {
        for system in systems::all() {
            if let Err(error) = survey(system.name) {
                panic!("{}: {error}", system.name);
            }
        }
    }

    #[test]
    fn hosts_without_a_network_are_an_error() {
        let error = survey("2x hgx-h100").unwrap_err();
        assert_eq!(error, SurveyError::NoNetwork { hosts: 2 });
    }
}
