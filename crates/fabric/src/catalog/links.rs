//! Every kind of link, with its rates and their sources.
//!
//! A rate is given once, for the smallest unit that has one (a lane, a link, a port), each way; rates of larger units
//! are multiples. Effective rates are those that large transfers reach.

use crate::device::Cpu;
use crate::figure::{Figure, Nanoseconds};
use crate::link::{LinkKind, LinkSpec, Network, Socket};
use crate::rate::{Lane, Link, OneWay, Rate};

const NCCL_TOPO: &str = "NCCL 2.31 src/graph/topo.h";
const NCCL_TUNING: &str = "NCCL 2.30 src/graph/tuning.cc, LL hop";
const RCCL_TOPO: &str = "RCCL src/graph/topo.h";
const NETWORK_FIT: &str = "fit over 190 published nccl-tests tables";
const PCI_SIG: &str = "PCI-SIG base specification: signalling rate x line code";
const NVLINK_PAGE: &str = "NVIDIA NVLink and NVSwitch product page";
const C2C_PAPER: &str = "NVIDIA GH200 Grace Hopper whitepaper: 900 GB/s both ways over 10 links";

/// Latency of an NVLink hop.
const NVLINK_LATENCY: Option<Figure<Nanoseconds>> = Some(Figure::effective(Nanoseconds(600), NCCL_TUNING));
/// Latency of a PCIe hop between GPUs.
const PCIE_LATENCY: Option<Figure<Nanoseconds>> = Some(Figure::effective(Nanoseconds(1_000), NCCL_TUNING));

/// NVLink 1 to 5 of data-centre GPUs: 20, 25, 25, 25 and 50 GB/s each way per link.
pub static NVLINK: [LinkSpec; 5] = [
    nvlink(1, Rate::from_gb(20), Rate::from_gb(18)),
    nvlink(2, Rate::from_gb(25), Rate::from_gb(20)),
    nvlink(3, Rate::from_gb(25), Rate::from_gb(20)),
    nvlink(4, Rate::from_gb(25), Rate::from_mb(20_600)),
    nvlink(5, Rate::from_gb(50), Rate::from_mb(40_100)),
];

/// NVLink 3 of the GeForce RTX 3090, slower than that of the A100: 14.0625 GB/s each way per link.
pub static NVLINK3_GEFORCE: LinkSpec = LinkSpec {
    kind: LinkKind::NvLink { generation: Some(3) },
    nominal: Some(Figure::nominal(
        Rate::from_bytes(14_062_500_000),
        "NVIDIA Ampere GA102 whitepaper: 56.25 GB/s each way over 4 links",
    )),
    effective: Some(Figure::effective(Rate::from_gb(12), NCCL_TOPO)),
    latency: NVLINK_LATENCY,
};

/// An NVLink of unknown generation.
pub static NVLINK_UNKNOWN: LinkSpec = LinkSpec {
    kind: LinkKind::NvLink { generation: None },
    nominal: None,
    effective: None,
    latency: NVLINK_LATENCY,
};

/// The NVLink of GPUs with a compute capability (times ten), by the same rules as NCCL; none for GPUs without NVLink:
/// Orin, Ada, Thor and Blackwell workstation cards.
pub fn nvlink_of_sm(sm: u32) -> Option<&'static LinkSpec> {
    match sm {
        60..70 => Some(&NVLINK[0]),
        70..80 => Some(&NVLINK[1]),
        86 => Some(&NVLINK3_GEFORCE),
        80..86 => Some(&NVLINK[2]),
        90..100 => Some(&NVLINK[3]),
        100..110 => Some(&NVLINK[4]),
        _ => None,
    }
}

/// NVLink-C2C between Grace and its GPU, 45 GB/s each way per link: a GH200 has 10, a GB200's GPU 5.
pub static C2C: LinkSpec = LinkSpec {
    kind: LinkKind::C2c,
    nominal: Some(Figure::nominal(Rate::from_gb(45), C2C_PAPER)),
    effective: Some(Figure::effective(
        Rate::from_mb(44_712),
        "c2c bw in NCCL topology dumps of GB300 (NVML's link speed)",
    )),
    latency: NVLINK_LATENCY,
};

/// xGMI of the MI50, MI60 and MI100.
pub static XGMI2: LinkSpec =
    xgmi(2, Rate::from_gb(46), Some(24), "AMD Instinct MI100 data sheet: 92 GB/s both ways per link");
/// xGMI of the MI200 series.
pub static XGMI3: LinkSpec =
    xgmi(3, Rate::from_gb(50), Some(36), "AMD Instinct MI250X data sheet: 100 GB/s both ways per link");
/// xGMI of the MI300X and MI325X.
pub static XGMI4: LinkSpec =
    xgmi(4, Rate::from_gb(64), Some(48), "AMD Instinct MI300X data sheet: 128 GB/s both ways per link");
/// xGMI of the MI350 series: that of the MI300X at 1.2 times the rate.
pub static XGMI4_MI350: LinkSpec =
    xgmi(4, Rate::from_mb(76_800), None, "AMD Instinct MI355X data sheet: 153.6 GB/s both ways per link");

/// Xe Link between Intel Max GPUs: 26.5 GB/s each way per link.
pub static XE_LINK: LinkSpec = LinkSpec {
    kind: LinkKind::XeLink,
    nominal: Some(Figure::nominal(
        Rate::from_mb(26_500),
        "Intel Data Center GPU Max 1550 product brief: 53 GB/s both ways per link",
    )),
    effective: None,
    latency: None,
};

const fn nvlink(generation: u8, nominal: Rate<Link, OneWay>, effective: Rate<Link, OneWay>) -> LinkSpec {
    LinkSpec {
        kind: LinkKind::NvLink { generation: Some(generation) },
        nominal: Some(Figure::nominal(nominal, NVLINK_PAGE)),
        effective: Some(Figure::effective(effective, NCCL_TOPO)),
        latency: NVLINK_LATENCY,
    }
}

const fn xgmi(
    generation: u8,
    nominal: Rate<Link, OneWay>,
    effective_gb: Option<u64>,
    source: &'static str,
) -> LinkSpec {
    LinkSpec {
        kind: LinkKind::Xgmi { generation },
        nominal: Some(Figure::nominal(nominal, source)),
        effective: match effective_gb {
            Some(gb) => Some(Figure::effective(Rate::from_gb(gb), RCCL_TOPO)),
            None => None,
        },
        latency: None,
    }
}

/// The rate of one PCIe lane each way: megatransfers per second times the efficiency of the line code (8b/10b, then
/// 128b/130b; Gen6 has none).
pub const fn pcie_lane(generation: u8) -> Rate<Lane, OneWay> {
    let (megatransfers, payload, coded) = match generation {
        1 => (2_500, 8, 10),
        2 => (5_000, 8, 10),
        3 => (8_000, 128, 130),
        4 => (16_000, 128, 130),
        5 => (32_000, 128, 130),
        _ => (64_000, 1, 1),
    };
    Rate::from_bytes(megatransfers * 1_000_000 * payload / coded / 8)
}

/// A PCIe link of unknown generation, width and rate.
pub static PCIE_UNKNOWN: LinkSpec = LinkSpec {
    kind: LinkKind::Pcie { generation: 0, width: 0 },
    nominal: None,
    effective: None,
    latency: PCIE_LATENCY,
};

/// A PCIe link of a generation and width.
pub const fn pcie(generation: u8, width: u8) -> LinkSpec {
    // NCCL uses 60 units of 100 Mb/s for a Gen3 lane and doubles it with each generation.
    let units = match generation {
        1 => 15,
        2 => 30,
        3 => 60,
        4 => 120,
        5 => 240,
        _ => 480,
    };
    LinkSpec {
        kind: LinkKind::Pcie { generation, width },
        nominal: Some(Figure::nominal(pcie_lane(generation).per_link(width as u64), PCI_SIG)),
        effective: Some(Figure::effective(
            Rate::<Lane, OneWay>::from_bytes(units * 12_500_000).per_link(width as u64),
            NCCL_TOPO,
        )),
        latency: PCIE_LATENCY,
    }
}

/// A link between two sockets. NCCL's constants are the only public figures for GPU traffic across sockets.
pub const fn socket(socket: Socket) -> LinkSpec {
    let rate = match socket {
        Socket::IntelBroadwell | Socket::Other => Rate::from_gb(6),
        Socket::IntelSkylake => Rate::from_gb(10),
        Socket::IntelSapphireRapids => Rate::from_gb(22),
        Socket::IntelEmeraldRapids => Rate::from_gb(40),
        Socket::AmdZen2 => Rate::from_gb(16),
        Socket::AmdZen4 => Rate::from_gb(24),
        Socket::AmdZen5 | Socket::Power9 => Rate::from_gb(32),
        // NCCL's constant for ARM, far below the four to six coherent links between Grace CPUs.
        Socket::Grace => Rate::from_gb(6),
    };
    LinkSpec {
        kind: LinkKind::Socket(socket),
        nominal: None,
        effective: Some(Figure::effective(rate, "NCCL 2.31 inter-CPU bandwidths, src/graph/topo.h")),
        latency: None,
    }
}

/// The technology between the sockets of a CPU, by the same rules as NCCL.
pub fn socket_of(cpu: &Cpu) -> Socket {
    let (arch, vendor) = (cpu.arch.as_deref().unwrap_or_default(), cpu.vendor.as_deref().unwrap_or_default());
    let family = cpu.family.unwrap_or_default();
    let is_x86 = arch.is_empty() || arch.starts_with("x86_64");
    match vendor {
        _ if arch.starts_with("ppc64") => Socket::Power9,
        "NVIDIA" if arch.starts_with("arm64") => Socket::Grace,
        _ if is_x86 && vendor.starts_with("GenuineIntel") && family == 6 => {
            match cpu.model.unwrap_or_default() {
                0xad..=0xaf | 0xcf.. => Socket::IntelEmeraldRapids,
                0x8f.. => Socket::IntelSapphireRapids,
                0x55.. => Socket::IntelSkylake,
                _ => Socket::IntelBroadwell,
            }
        }
        _ if is_x86 && vendor.starts_with("GenuineIntel") => Socket::IntelBroadwell,
        // RCCL's files put the base family in the low digit and the extended family above it: 0x8f is 15 + 8.
        _ if is_x86 && vendor.starts_with("AuthenticAMD") => {
            match if family > 0x7f && family & 0xf == 0xf { 15 + (family >> 4) } else { family } {
                26.. => Socket::AmdZen5,
                25 => Socket::AmdZen4,
                _ => Socket::AmdZen2,
            }
        }
        _ => Socket::Other,
    }
}

/// A network port of `gbit` Gb/s.
pub fn network(network: Network, gbit: u32) -> LinkSpec {
    let line: Rate<Link, OneWay> = Rate::from_gbit(gbit.into());
    let effective = match network {
        Network::TcpX => line.bytes_per_second() / 100 * 84,
        // Kernel TCP on one host CPU moves about 3.3 GB/s of GPU data per NIC, independent of the NIC.
        Network::Ethernet => line.bytes_per_second().min(3_300_000_000),
        _ => line.bytes_per_second() / 1000 * 993,
    };
    let latency = match network {
        Network::InfiniBand => {
            Some(Figure::nominal(Nanoseconds(130), "NVIDIA Quantum QM8700 brief: port to port"))
        }
        Network::Slingshot => Some(Figure::nominal(Nanoseconds(350), "HPE Slingshot brief: port to port")),
        _ => None,
    };
    LinkSpec {
        kind: LinkKind::Network { network, gbit },
        nominal: Some(Figure::nominal(line, "line rate of the port")),
        effective: Some(Figure::effective(Rate::from_bytes(effective), NETWORK_FIT)),
        latency,
    }
}

/// The default spec of a kind. For xGMI 4 and NVLink 3 it has the rates of the data-centre GPUs.
pub fn spec_of(kind: LinkKind) -> LinkSpec {
    match kind {
        LinkKind::NvLink { generation: Some(generation @ 1..=5) } => {
            NVLINK[usize::from(generation) - 1].clone()
        }
        LinkKind::NvLink { .. } => NVLINK_UNKNOWN.clone(),
        LinkKind::C2c => C2C.clone(),
        LinkKind::Xgmi { generation: ..=2 } => XGMI2.clone(),
        LinkKind::Xgmi { generation: 3 } => XGMI3.clone(),
        LinkKind::Xgmi { .. } => XGMI4.clone(),
        LinkKind::XeLink => XE_LINK.clone(),
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
        [&NVLINK3_GEFORCE, &C2C, &XGMI2, &XGMI3, &XGMI4, &XGMI4_MI350, &XE_LINK].map(LinkSpec::clone),
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
    specs.push(network(Network::Slingshot, 200));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvlinks_follow_the_compute_capability() {
        use crate::catalog::gpus::{GPUS, Vendor};

        for model in GPUS.iter().filter(|model| model.vendor == Vendor::Nvidia) {
            if let Some((spec, _)) = model.gpu_links() {
                let of_sm = nvlink_of_sm(model.architecture).map(|spec| spec.kind);
                assert_eq!(of_sm, Some(spec.kind), "{model}");
            }
        }
        assert_eq!([52, 87, 89, 110, 120, 121].map(nvlink_of_sm), [None; 6]);
    }

    #[test]
    fn sockets_follow_the_cpu() {
        for (arch, vendor, family, model, expected) in [
            ("x86_64", "GenuineIntel", 6, 0x4f, Socket::IntelBroadwell),
            ("x86_64", "GenuineIntel", 6, 0x6a, Socket::IntelSkylake),
            ("x86_64", "GenuineIntel", 6, 0x8f, Socket::IntelSapphireRapids),
            ("x86_64", "GenuineIntel", 6, 0xad, Socket::IntelEmeraldRapids),
            ("x86_64", "GenuineIntel", 6, 0xcf, Socket::IntelEmeraldRapids),
            ("x86_64", "AuthenticAMD", 23, 49, Socket::AmdZen2),
            ("x86_64", "AuthenticAMD", 25, 17, Socket::AmdZen4),
            ("x86_64", "AuthenticAMD", 143, 49, Socket::AmdZen2),
            ("x86_64", "AuthenticAMD", 175, 1, Socket::AmdZen4),
            ("x86_64", "AuthenticAMD", 26, 2, Socket::AmdZen5),
            ("x86_64", "CentaurHauls", 7, 91, Socket::Other),
            ("arm64", "NVIDIA", 0, 0, Socket::Grace),
            ("arm64", "ARM", 0, 0xd4f, Socket::Other),
            ("ppc64", "IBM", 0, 0, Socket::Power9),
        ] {
            let cpu = Cpu {
                arch: Some(arch.into()),
                vendor: Some(vendor.into()),
                family: Some(family),
                model: Some(model),
            };
            assert_eq!(socket_of(&cpu), expected, "{vendor} {model:#x}");
        }
        assert_eq!(socket_of(&Cpu::default()), Socket::Other);
    }
}
