//! Derives a setup from a fabric: the properties that determine the constants and a library's choice.
//!
//! A setup has less detail than a fabric: slower links, switches between racks and shared slots are lost. Plans are
//! [executed](crate::execute) on the fabric itself, where these still count.

use std::collections::BTreeMap;

use thiserror::Error;
use weftlink_fabric::catalog::gpus::{self, GpuModel, Vendor};
use weftlink_fabric::device::Port;
use weftlink_fabric::domains::gpu_domains;
use weftlink_fabric::link::Network as NetworkKind;
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, HostId, LinkKind};

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
    /// The hosts differ.
    #[error("its hosts have {fewest} to {most} GPUs; predictions need hosts with the same number of GPUs")]
    Uneven {
        /// Fewest GPUs of a host.
        fewest: u32,
        /// Most GPUs of a host.
        most: u32,
    },
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
        let (fewest, most) = hosts
            .values()
            .fold((u32::MAX, 0), |(fewest, most), count| (fewest.min(*count), most.max(*count)));
        if fewest != most {
            return Err(SurveyError::Uneven { fewest, most });
        }
        let nodes = hosts.len() as u32;
        let domains = gpu_domains(fabric);
        let largest = domains.iter().map(Vec::len).max().unwrap_or(0);
        let intra = intra(fabric, gpu, most, &domains);
        let nics = if nodes > 1 { nics(fabric, hosts.keys().next().copied().flatten()) } else { None };
        if nodes > 1 && domains.len() > 1 && nics.is_none() {
            return Err(SurveyError::NoNetwork { hosts: nodes });
        }
        let (network, nics_per_node, nic_gbits_per_second) = nics.unwrap_or((Network::None, 0, 0.0));
        Ok(Self {
            gpu,
            intra,
            rack_gpus: if intra == Intra::Nvl72 { largest as u32 } else { RACK_GPUS },
            pcie_generation: slot_generation(fabric, gpu),
            gpus_per_node: most,
            nodes,
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
        })
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

/// The GPU model for a description that gives the architecture only: `sm="90"`.
fn of_architecture(sm: u32) -> Option<&'static GpuModel> {
    gpus::GPUS.iter().rfind(|model| model.vendor == Vendor::Nvidia && model.architecture <= sm)
}

fn intra(fabric: &Fabric, gpu: Gpu, per_host: u32, domains: &[Vec<DeviceId>]) -> Intra {
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
        None if !gpu.reaches_peers() => Intra::PcieHost,
        None => Intra::PciePeers,
        Some((LinkKind::Xgmi { .. } | LinkKind::XeLink, _)) => Intra::Xgmi,
        Some(_) if switched => Intra::NvSwitch,
        Some(_) if largest.len() == 2 => Intra::NvLinkBridge,
        Some(_) if largest.iter().all(|id| linked(id).len() + 1 >= largest.len()) => Intra::NvLinkMesh,
        Some(_) => Intra::CubeMesh,
    }
}

/// The network, the number of a host's NICs on it, and the rate in Gb/s of the slowest.
fn nics(fabric: &Fabric, host: Option<HostId>) -> Option<(Network, u32, f64)> {
    let of_host = fabric.devices().iter().filter(|device| device.host == host);
    let ports: Vec<&Port> = of_host
        .filter_map(|device| match &device.kind {
            DeviceKind::Nic(ports) => Some(ports),
            _ => None,
        })
        .flatten()
        .collect();
    let gbits = |port: &&Port| port.rate.bytes_per_second() as f64 / 125e6;
    let fastest = ports.iter().map(gbits).fold(0.0, f64::max);
    let used: Vec<&Port> = ports.into_iter().filter(|port| gbits(port) > fastest * NIC_RATE_MIN).collect();
    let slowest = used.iter().map(gbits).fold(f64::INFINITY, f64::min);
    let kind = used.first()?.network.unwrap_or(NetworkKind::Ethernet);
    let network = match kind {
        NetworkKind::InfiniBand => Network::InfiniBand,
        NetworkKind::Roce => Network::Roce,
        NetworkKind::Efa
        | NetworkKind::EfaV1
        | NetworkKind::EfaV2
        | NetworkKind::EfaV3
        | NetworkKind::EfaV4 => Network::Efa,
        NetworkKind::Slingshot => Network::Slingshot,
        NetworkKind::TcpX => Network::Tcpx,
        NetworkKind::TcpXo => Network::Tcpxo,
        NetworkKind::Ethernet => Network::Tcp,
    };
    Some((network, used.len() as u32, slowest))
}

/// The PCIe generation of the first GPU's slot.
fn slot_generation(fabric: &Fabric, gpu: Gpu) -> u32 {
    let links = fabric.gpus().first().map_or(&[][..], |first| fabric.links_from(*first));
    let generation = |kind| match kind {
        LinkKind::Pcie { generation, .. } if generation > 0 => Some(u32::from(generation)),
        _ => None,
    };
    let found = links.iter().find_map(|link| generation(fabric.spec(link).kind));
    found.unwrap_or(u32::from(gpu.model().pcie.0))
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
