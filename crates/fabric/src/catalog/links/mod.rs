//! Every kind of link, with its rates and their sources.
//!
//! A rate is given once, for the smallest unit that has one (a lane, a link, a port), each way; rates of larger units
//! are multiples. Effective rates are those that large transfers reach.

mod gpu;
mod host;
mod network;

pub use gpu::{
    C2C, C2C_GB10, C2C_VERA, NVLINK, NVLINK_UNKNOWN, NVLINK3_GEFORCE, UALINK, XE_LINK, XGMI2, XGMI3, XGMI4,
    XGMI4_MI350, nvlink_of_sm,
};
pub use host::{PCIE_UNKNOWN, pcie, pcie_lane, socket, socket_of};
pub use network::network;

use crate::link::{LinkKind, LinkSpec, Network, Socket};

/// The links that have the kind of another one and a different rate, each with its id.
static VARIANTS: [(&str, &LinkSpec); 4] = [
    ("nvlink3-geforce", &NVLINK3_GEFORCE),
    ("c2c-gb10", &C2C_GB10),
    ("c2c-vera", &C2C_VERA),
    ("xgmi4-mi350", &XGMI4_MI350),
];

/// The id of a link of the catalog: that of its kind, or `nvlink3-geforce` where the kind alone would mean another rate.
pub fn id_of(spec: &LinkSpec) -> String {
    let variant =
        VARIANTS.iter().find(|(_, other)| (other.kind, &other.nominal) == (spec.kind, &spec.nominal));
    variant.map_or_else(|| spec.kind.id(), |(id, _)| (*id).to_owned())
}

/// The link with an id that is not that of a kind: `nvlink3-geforce`.
pub fn variant(id: &str) -> Option<&'static LinkSpec> {
    VARIANTS.iter().find(|(other, _)| *other == id).map(|(_, spec)| *spec)
}

/// The links of the catalog that have the kind of another one and a different rate.
pub fn variants_of(kind: LinkKind) -> impl Iterator<Item = &'static LinkSpec> {
    VARIANTS.iter().map(|(_, spec)| *spec).filter(move |spec| spec.kind == kind)
}

/// The default spec of a kind. For xGMI 4 and NVLink 3 it has the rates of the data-centre GPUs.
pub fn spec_of(kind: LinkKind) -> LinkSpec {
    match kind {
        LinkKind::NvLink { generation: Some(generation @ 1..=6) } => {
            NVLINK[usize::from(generation) - 1].clone()
        }
        LinkKind::NvLink { .. } => NVLINK_UNKNOWN.clone(),
        LinkKind::C2c => C2C.clone(),
        LinkKind::Xgmi { generation: ..=2 } => XGMI2.clone(),
        LinkKind::Xgmi { generation: 3 } => XGMI3.clone(),
        LinkKind::Xgmi { .. } => XGMI4.clone(),
        LinkKind::XeLink => XE_LINK.clone(),
        LinkKind::UaLink => UALINK.clone(),
        LinkKind::Pcie { generation: 0, .. } => PCIE_UNKNOWN.clone(),
        LinkKind::Pcie { generation, width } => pcie(generation, width),
        LinkKind::Socket(kind) => socket(kind),
        LinkKind::Network { network: technology, gbit } => network(technology, gbit),
    }
}

/// The link kinds that `weft topo --list links` shows, slowest family last.
pub fn all() -> Vec<LinkSpec> {
    let mut specs: Vec<LinkSpec> = NVLINK.to_vec();
    specs.extend(
        [
            &NVLINK3_GEFORCE,
            &C2C,
            &C2C_GB10,
            &C2C_VERA,
            &XGMI2,
            &XGMI3,
            &XGMI4,
            &XGMI4_MI350,
            &XE_LINK,
            &UALINK,
        ]
        .map(LinkSpec::clone),
    );
    for generation in 3..=6 {
        specs.extend([4, 8, 16].map(|width| pcie(generation, width)));
    }
    specs.extend([100, 200, 400, 800].map(|gbit| network(Network::InfiniBand, gbit)));
    specs.extend([100, 200, 400, 800].map(|gbit| network(Network::Roce, gbit)));
    for (generation, gbit) in
        [(Network::EfaV1, 100), (Network::EfaV2, 100), (Network::EfaV3, 200), (Network::EfaV4, 400)]
    {
        specs.push(network(generation, gbit));
    }
    specs.extend([200, 400].map(|gbit| network(Network::Slingshot, gbit)));
    specs.extend([100, 400].map(|gbit| network(Network::OmniPath, gbit)));
    specs.extend([network(Network::TcpX, 200), network(Network::TcpXo, 200)]);
    specs.extend([10, 25, 40, 50, 100, 200, 400, 800].map(|gbit| network(Network::Ethernet, gbit)));
    specs.extend(
        [
            Socket::IntelBroadwell,
            Socket::IntelSkylake,
            Socket::IntelSapphireRapids,
            Socket::IntelEmeraldRapids,
            Socket::AmdZen2,
            Socket::AmdZen4,
            Socket::AmdZen5,
            Socket::Grace,
            Socket::Power9,
        ]
        .map(socket),
    );
    specs
}
