//! Links: the kind of wire between two devices, and its rates.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::figure::{Basis, Figure, LinkRate, Nanoseconds};
use crate::id::DeviceId;
use crate::rate::{OneWay, Pair, Rate};

/// The technology of a network port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// InfiniBand: HDR, NDR, XDR.
    InfiniBand,
    /// RDMA over converged Ethernet, version 2.
    Roce,
    /// The Elastic Fabric Adapter of AWS, of unknown generation.
    Efa,
    /// EFA of p3dn and p4d.
    EfaV1,
    /// EFA of p5.
    EfaV2,
    /// EFA of p5en.
    EfaV3,
    /// EFA of p6.
    EfaV4,
    /// HPE Slingshot: 11 at 200 Gb/s, 400 at 400 Gb/s.
    Slingshot,
    /// Omni-Path: 100 Gb/s of Intel and Cornelis, 400 Gb/s of the CN5000.
    OmniPath,
    /// GPUDirect-TCPX of Google Cloud's A3 High.
    TcpX,
    /// GPUDirect-TCPXO of Google Cloud's A3 Mega.
    TcpXo,
    /// TCP over Ethernet.
    Ethernet,
    /// Of a technology and rate that the description does not say.
    Unknown,
}

/// The technology between two CPU sockets or NUMA nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Socket {
    /// Intel QPI or UPI up to Broadwell.
    IntelBroadwell,
    /// Intel UPI of Skylake to Ice Lake.
    IntelSkylake,
    /// Intel UPI 2.0 of Sapphire Rapids.
    IntelSapphireRapids,
    /// Intel UPI 2.0 of Emerald Rapids and later.
    IntelEmeraldRapids,
    /// AMD Infinity Fabric of Zen 1 and 2.
    AmdZen2,
    /// AMD Infinity Fabric of Zen 3 and 4.
    AmdZen4,
    /// AMD Infinity Fabric of Zen 5.
    AmdZen5,
    /// NVLink-C2C between the CPUs of a Grace superchip node.
    Grace,
    /// IBM X bus of POWER9.
    Power9,
    /// Any other; assumed to be as slow as the slowest known.
    Other,
}

/// The kind of wire a link is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LinkKind {
    /// NVLink.
    NvLink {
        /// 1 (Pascal) to 6 (Rubin), where known.
        generation: Option<u8>,
    },
    /// NVLink-C2C between a GPU and its Grace or Vera CPU.
    C2c,
    /// AMD Infinity Fabric between GPUs.
    Xgmi {
        /// 2 (MI50, MI100), 3 (MI200) or 4 (MI300, MI350).
        generation: u8,
    },
    /// Intel Xe Link between Max GPUs.
    XeLink,
    /// UALink between accelerators: a port of four lanes of 200 Gb/s.
    UaLink,
    /// PCI Express.
    Pcie {
        /// 1 to 6; 0 where unknown.
        generation: u8,
        /// Lanes; 0 where unknown.
        width: u8,
    },
    /// Between the sockets of a host.
    Socket(Socket),
    /// Between hosts.
    Network {
        /// The technology.
        network: Network,
        /// Gb/s of one port.
        gbit: u32,
    },
}

impl LinkKind {
    /// True for the links over which GPUs access each other's memory: NVLink, xGMI, Xe Link, UALink.
    pub fn is_gpu_fabric(self) -> bool {
        matches!(self, Self::NvLink { .. } | Self::Xgmi { .. } | Self::XeLink | Self::UaLink)
    }
}

/// The display name: `NVLink 4`, `PCIe 5.0 x16`.
impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            Self::NvLink { generation: Some(generation) } => format!("NVLink {generation}"),
            Self::NvLink { generation: None } => "NVLink".to_owned(),
            Self::C2c => "NVLink-C2C".to_owned(),
            Self::Xgmi { generation } => format!("xGMI {generation}"),
            Self::XeLink => "Xe Link".to_owned(),
            Self::UaLink => "UALink".to_owned(),
            Self::Pcie { generation: 0, width: 0 } => "PCIe".to_owned(),
            Self::Pcie { generation, width } => format!("PCIe {generation}.0 x{width}"),
            Self::Socket(socket) => match socket {
                Socket::IntelBroadwell => "Intel QPI",
                Socket::IntelSkylake => "Intel UPI",
                Socket::IntelSapphireRapids | Socket::IntelEmeraldRapids => "Intel UPI 2.0",
                Socket::AmdZen2 | Socket::AmdZen4 | Socket::AmdZen5 => "AMD Infinity Fabric",
                Socket::Grace => "Grace to Grace",
                Socket::Power9 => "POWER9 X bus",
                Socket::Other => "inter-socket",
            }
            .to_owned(),
            Self::Network { network, gbit } => match (network, gbit) {
                (Network::InfiniBand, 100) => "InfiniBand EDR".to_owned(),
                (Network::InfiniBand, 200) => "InfiniBand HDR".to_owned(),
                (Network::InfiniBand, 400) => "InfiniBand NDR".to_owned(),
                (Network::InfiniBand, 800) => "InfiniBand XDR".to_owned(),
                (Network::InfiniBand, _) => format!("InfiniBand {gbit}G"),
                (Network::Roce, _) => format!("RoCE {gbit}G"),
                (Network::Efa, _) => format!("EFA {gbit}G"),
                (Network::EfaV1, _) => format!("EFA v1 {gbit}G"),
                (Network::EfaV2, _) => format!("EFA v2 {gbit}G"),
                (Network::EfaV3, _) => format!("EFA v3 {gbit}G"),
                (Network::EfaV4, _) => format!("EFA v4 {gbit}G"),
                (Network::Slingshot, 0..=200) => "Slingshot-11".to_owned(),
                (Network::Slingshot, _) => format!("Slingshot-{gbit}"),
                (Network::OmniPath, _) => format!("Omni-Path {gbit}G"),
                (Network::TcpX, _) => format!("GPUDirect-TCPX {gbit}G"),
                (Network::TcpXo, _) => format!("GPUDirect-TCPXO {gbit}G"),
                (Network::Ethernet, _) => format!("Ethernet {gbit}G"),
                (Network::Unknown, _) => "network of unknown rate".to_owned(),
            },
        };
        f.pad(&text)
    }
}

const SOCKET_IDS: [(Socket, &str); 10] = [
    (Socket::IntelBroadwell, "socket-intel-broadwell"),
    (Socket::IntelSkylake, "socket-intel-skylake"),
    (Socket::IntelSapphireRapids, "socket-intel-sapphire-rapids"),
    (Socket::IntelEmeraldRapids, "socket-intel-emerald-rapids"),
    (Socket::AmdZen2, "socket-amd-zen2"),
    (Socket::AmdZen4, "socket-amd-zen4"),
    (Socket::AmdZen5, "socket-amd-zen5"),
    (Socket::Grace, "socket-grace"),
    (Socket::Power9, "socket-power9"),
    (Socket::Other, "socket"),
];

/// Prefixes of network ids that a rate in Gb/s follows.
const NETWORK_IDS: [(Network, &str); 7] = [
    (Network::InfiniBand, "ib"),
    (Network::Roce, "roce"),
    (Network::Efa, "efa"),
    (Network::TcpXo, "tcpxo"),
    (Network::TcpX, "tcpx"),
    (Network::Ethernet, "eth"),
    (Network::OmniPath, "opa"),
];

/// Network ids without a rate in them.
const NETWORK_WORDS: [(Network, u32, &str); 11] = [
    (Network::InfiniBand, 100, "edr"),
    (Network::InfiniBand, 200, "hdr"),
    (Network::InfiniBand, 400, "ndr"),
    (Network::InfiniBand, 800, "xdr"),
    (Network::Slingshot, 200, "slingshot"),
    (Network::Slingshot, 400, "slingshot400"),
    (Network::EfaV1, 100, "efa-v1"),
    (Network::EfaV2, 100, "efa-v2"),
    (Network::EfaV3, 200, "efa-v3"),
    (Network::EfaV4, 400, "efa-v4"),
    (Network::Unknown, 0, "network"),
];

impl Network {
    /// The EFA generation with a PCI device id of Amazon (vendor `1d0f`).
    pub fn efa_by_pci_device(device: u16) -> Option<Self> {
        match device {
            0xefa0 => Some(Self::EfaV1),
            0xefa1 => Some(Self::EfaV2),
            0xefa2 => Some(Self::EfaV3),
            0xefa3 => Some(Self::EfaV4),
            0xefa4..=0xefaf => Some(Self::Efa),
            _ => None,
        }
    }
}

impl LinkKind {
    /// The kind as files and specs spell it: `nvlink4`, `pcie5x16`, `ndr`, `eth100`.
    pub fn id(self) -> String {
        match self {
            Self::NvLink { generation: Some(generation) } => format!("nvlink{generation}"),
            Self::NvLink { generation: None } => "nvlink".to_owned(),
            Self::C2c => "c2c".to_owned(),
            Self::Xgmi { generation } => format!("xgmi{generation}"),
            Self::XeLink => "xelink".to_owned(),
            Self::UaLink => "ualink".to_owned(),
            Self::Pcie { generation: 0, width: 0 } => "pcie".to_owned(),
            Self::Pcie { generation, width } => format!("pcie{generation}x{width}"),
            Self::Socket(socket) => SOCKET_IDS
                .iter()
                .find(|(candidate, _)| *candidate == socket)
                .map_or("socket", |(_, id)| id)
                .to_owned(),
            Self::Network { network, gbit } => {
                let word = NETWORK_WORDS.iter().find(|(n, g, _)| (*n, *g) == (network, gbit));
                match (word, NETWORK_IDS.iter().find(|(candidate, _)| *candidate == network)) {
                    (Some((_, _, word)), _) => (*word).to_owned(),
                    (None, Some((_, prefix))) => format!("{prefix}{gbit}"),
                    // An EFA generation at a rate it does not have.
                    (None, None) if network == Network::Unknown => "network".to_owned(),
                    (None, None) if network != Network::Slingshot => format!("efa{gbit}"),
                    (None, None) => format!("slingshot{gbit}"),
                }
            }
        }
    }

    /// Another spelling of [`LinkKind::id`], if there is one: `ib400` for `ndr`.
    pub fn other_id(self) -> Option<String> {
        let Self::Network { network, gbit } = self else { return None };
        let (_, prefix) = NETWORK_IDS.iter().find(|(candidate, _)| *candidate == network)?;
        Some(format!("{prefix}{gbit}")).filter(|id| *id != self.id())
    }
}

/// A text is not the id of a link kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no link kind is called `{0}`; `weft topo --list links` prints them")]
pub struct ParseLinkKindError(String);

impl FromStr for LinkKind {
    type Err = ParseLinkKindError;

    fn from_str(id: &str) -> Result<Self, Self::Err> {
        let unknown = || ParseLinkKindError(id.to_owned());
        if let Some((socket, _)) = SOCKET_IDS.iter().find(|(_, candidate)| *candidate == id) {
            return Ok(Self::Socket(*socket));
        }
        if let Some((network, gbit, _)) = NETWORK_WORDS.iter().find(|(_, _, word)| *word == id) {
            return Ok(Self::Network { network: *network, gbit: *gbit });
        }
        match id {
            "nvlink" => return Ok(Self::NvLink { generation: None }),
            "c2c" => return Ok(Self::C2c),
            "xelink" => return Ok(Self::XeLink),
            "ualink" => return Ok(Self::UaLink),
            "pcie" => {
                return Ok(Self::Pcie { generation: 0, width: 0 });
            }
            _ => {}
        }
        let digits = id.find(|c: char| c.is_ascii_digit()).ok_or_else(unknown)?;
        let (prefix, number) = id.split_at(digits);
        match prefix {
            "nvlink" => match number.parse() {
                Ok(generation @ 1..=6) => Ok(Self::NvLink { generation: Some(generation) }),
                _ => Err(unknown()),
            },
            "xgmi" => match number.parse() {
                Ok(generation @ 2..=4) => Ok(Self::Xgmi { generation }),
                _ => Err(unknown()),
            },
            "pcie" => {
                let (generation, width) = number.split_once('x').ok_or_else(unknown)?;
                match (generation.parse(), width.parse()) {
                    (Ok(generation @ 1..=6), Ok(width @ (1 | 2 | 4 | 8 | 12 | 16 | 32))) => {
                        Ok(Self::Pcie { generation, width })
                    }
                    _ => Err(unknown()),
                }
            }
            _ => {
                let network =
                    NETWORK_IDS.iter().find(|(_, candidate)| *candidate == prefix).ok_or_else(unknown)?.0;
                match number.parse() {
                    Ok(gbit @ 1..=3200) => Ok(Self::Network { network, gbit }),
                    _ => Err(unknown()),
                }
            }
        }
    }
}

impl Serialize for LinkKind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.id())
    }
}

impl<'de> Deserialize<'de> for LinkKind {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let id = <std::borrow::Cow<'_, str>>::deserialize(deserializer)?;
        id.parse().map_err(serde::de::Error::custom)
    }
}

/// The properties of one kind of link in a fabric.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LinkSpec {
    /// The kind of wire.
    pub kind: LinkKind,
    /// The signalling rate, per link and direction.
    pub nominal: Option<LinkRate>,
    /// The rate that large transfers reach: a known effective rate, or one measured here.
    pub effective: Option<LinkRate>,
    /// The time until the first byte arrives.
    pub latency: Option<Figure<Nanoseconds>>,
}

impl LinkSpec {
    /// The rate to plan with: the effective one, or the nominal one where that is all that is known.
    pub fn best(&self) -> Option<&LinkRate> {
        self.effective.as_ref().or(self.nominal.as_ref())
    }
}

/// Index of a [`LinkSpec`] in its fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpecId(pub u32);

/// `count` parallel links from one device to another, in that direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Link {
    /// The sending device.
    pub source: DeviceId,
    /// The receiving device.
    pub target: DeviceId,
    /// How many links run in parallel.
    pub count: u32,
    /// The properties of each.
    pub spec: SpecId,
}

/// Bytes per second of a link without a known limit; sums of many do not overflow.
const UNLIMITED: u64 = 1 << 50;

/// Which of a link's rates to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Measure {
    /// The signalling rate.
    Nominal,
    /// The rate that large transfers reach.
    Effective,
}

impl LinkSpec {
    /// The rate of `count` such links; zero where unknown.
    pub fn rate(&self, measure: Measure, count: u32) -> Rate<Pair, OneWay> {
        let figure = match measure {
            Measure::Nominal => self.nominal.as_ref().or(self.effective.as_ref()),
            Measure::Effective => self.best(),
        };
        figure.map_or(Rate::ZERO, |figure| figure.value.per_pair(count.into()))
    }

    /// The rate that no transfer over `count` such links exceeds: the signalling rate, or a measured one; zero where unknown. The links
    /// between sockets have none unless they were measured: the public figures are those of one path, of which several run side by side.
    pub fn limit(&self, count: u32) -> Rate<Pair, OneWay> {
        let measured = self.effective.as_ref().filter(|rate| rate.basis == Basis::Measured);
        if matches!(self.kind, LinkKind::Socket(_)) && measured.is_none() {
            return Rate::from_bytes(UNLIMITED);
        }
        let figure = measured.or(self.nominal.as_ref()).or(self.effective.as_ref());
        figure.map_or(Rate::ZERO, |figure| figure.value.per_pair(count.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_reads_back() {
        let mut kinds = vec![
            LinkKind::NvLink { generation: None },
            LinkKind::C2c,
            LinkKind::XeLink,
            LinkKind::UaLink,
            LinkKind::Pcie { generation: 0, width: 0 },
            LinkKind::Network { network: Network::Slingshot, gbit: 200 },
        ];
        kinds.extend(NETWORK_WORDS.map(|(network, gbit, _)| LinkKind::Network { network, gbit }));
        kinds.extend((1..=6).map(|g| LinkKind::NvLink { generation: Some(g) }));
        kinds.extend((2..=4).map(|generation| LinkKind::Xgmi { generation }));
        kinds.extend((1..=6).map(|generation| LinkKind::Pcie { generation, width: 8 }));
        kinds.extend(SOCKET_IDS.iter().map(|(socket, _)| LinkKind::Socket(*socket)));
        for (network, _) in NETWORK_IDS {
            kinds.extend([25, 100, 200, 400, 800].map(|gbit| LinkKind::Network { network, gbit }));
        }
        for kind in kinds {
            for id in kind.other_id().into_iter().chain([kind.id()]) {
                assert_eq!(id.parse(), Ok(kind), "{id}");
            }
        }
    }

    #[test]
    fn unknown_ids_are_refused() {
        for id in ["", "nvlink9", "pcie5", "pcie5x3", "pcie7x16", "eth0", "eth99999", "warp", "x", "7"] {
            assert!(id.parse::<LinkKind>().is_err(), "{id}");
        }
    }
}
