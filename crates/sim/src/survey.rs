//! A fabric as a setup: what of its wiring decides which constants hold and what a library would choose.
//!
//! A setup says less than a fabric does; what it leaves out (slower links, switches between racks, who shares a slot) a plan that is
//! [executed](crate::execute) on the fabric itself still meets.

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

/// A part of the fastest NIC's rate below which another is there for something else.
const NIC_PART: f64 = 0.5;

/// A fabric that predictions know too little of.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SurveyError {
    /// Nothing to predict for.
    #[error("the fabric has no GPU; name one that has, such as hgx-h100 (`weft topo --list` prints them)")]
    NoGpu,
    /// A GPU that the catalog does not know.
    #[error(
        "the fabric does not say what its GPUs are, and how fast they are depends on it: say it with --gpu (`weft topo --list gpus` prints those that are known)"
    )]
    UnknownGpu,
    /// Hosts that differ.
    #[error("its hosts have {fewest} to {most} GPUs; predictions are for hosts that are alike")]
    Uneven {
        /// GPUs of the smallest.
        fewest: u32,
        /// GPUs of the largest.
        most: u32,
    },
    /// Hosts that nothing joins.
    #[error("there are {hosts} hosts and no network between them; say which, as in \"2x hgx-h100 + 8x ndr\"")]
    NoNetwork {
        /// How many.
        hosts: u32,
    },
}

impl Setup {
    /// What a fabric's wiring says; the library and what it is told are the usual ones.
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

/// The GPU that the others wait for.
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

/// The first GPU of an architecture, where a description says no more: `sm="90"`.
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

/// The network, how many NICs of a host are on it, and the rate of the slowest of them.
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
    let used: Vec<&Port> = ports.into_iter().filter(|port| gbits(port) > fastest * NIC_PART).collect();
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

/// Of the first GPU's slot.
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
    fn what_is_built_from_a_setup_is_that_setup() {
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
    fn every_system_of_the_catalog_can_be_predicted_for() {
        for system in systems::all() {
            if let Err(error) = survey(system.name) {
                panic!("{}: {error}", system.name);
            }
        }
    }

    #[test]
    fn hosts_that_nothing_joins_are_an_error() {
        let error = survey("2x hgx-h100").unwrap_err();
        assert_eq!(error, SurveyError::NoNetwork { hosts: 2 });
    }
}
