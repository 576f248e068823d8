//! Links inside a host: PCIe, and those between sockets.

use crate::device::Cpu;
use crate::figure::{Figure, Nanoseconds};
use crate::link::{LinkKind, LinkSpec, Socket};
use crate::rate::{Lane, OneWay, Rate};

const PCI_SIG: &str = "PCI-SIG base specification: signalling rate less coding";

/// Latency of a PCIe hop between GPUs.
const PCIE_LATENCY: Option<Figure<Nanoseconds>> =
    Some(Figure::effective(Nanoseconds(1_000), "NCCL 2.30 src/graph/tuning.cc, LL hop").checked());

/// The rate of one PCIe lane each way: megatransfers per second times what the coding leaves: 8b/10b, then
/// 128b/130b; of Gen6's flits of 256 bytes, the 14 of CRC and FEC are coding. Headers and acknowledgements are not
/// deducted in any generation.
pub const fn pcie_lane(generation: u8) -> Rate<Lane, OneWay> {
    let (megatransfers, payload, coded) = match generation {
        1 => (2_500, 8, 10),
        2 => (5_000, 8, 10),
        3 => (8_000, 128, 130),
        4 => (16_000, 128, 130),
        5 => (32_000, 128, 130),
        _ => (64_000, 242, 256),
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
        effective: Some(
            Figure::effective(
                Rate::<Lane, OneWay>::from_bytes(units * 12_500_000).per_link(width as u64),
                "NCCL src/graph/topo.cc, kvDictPciGen",
            )
            .checked(),
        ),
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
        // NCCL's constant for ARM, far below the coherent links between Grace or Vera CPUs.
        Socket::Grace => Rate::from_gb(6),
    };
    LinkSpec {
        kind: LinkKind::Socket(socket),
        nominal: None,
        effective: Some(
            Figure::effective(rate, "NCCL 2.31 inter-CPU bandwidths, src/graph/topo.h").checked(),
        ),
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

#[cfg(test)]
mod tests {
    use super::*;

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
