//! Links of GPUs to GPUs and to the CPU of their package.

use crate::figure::{Figure, LinkRate, Nanoseconds};
use crate::link::{LinkKind, LinkSpec};
use crate::rate::{Link, OneWay, Rate};

const NCCL_TOPO: &str = "NCCL 2.31 src/graph/topo.h";
const NCCL_TUNING: &str = "NCCL 2.30 src/graph/tuning.cc, LL hop";
const RCCL_TOPO: &str = "RCCL src/graph/topo.h";
const NVLINK_PAGE: &str = "NVIDIA NVLink and NVSwitch product page";

/// Latency of an NVLink hop.
const NVLINK_LATENCY: Option<Figure<Nanoseconds>> =
    Some(Figure::effective(Nanoseconds(600), NCCL_TUNING).checked());

/// NVLink 1 to 6 of data-centre GPUs: 20, 25, 25, 25, 50 and 50 GB/s each way per link.
pub static NVLINK: [LinkSpec; 6] = [
    nvlink(
        1,
        Rate::from_gb(20),
        "NVIDIA Tesla P100 whitepaper: 160 GB/s both ways over 4 links",
        Rate::from_gb(18),
    ),
    nvlink(2, Rate::from_gb(25), NVLINK_PAGE, Rate::from_gb(20)),
    nvlink(3, Rate::from_gb(25), NVLINK_PAGE, Rate::from_gb(20)),
    nvlink(4, Rate::from_gb(25), NVLINK_PAGE, Rate::from_mb(20_600)),
    nvlink(5, Rate::from_gb(50), NVLINK_PAGE, Rate::from_mb(40_100)),
    // NCCL counts 36 links of a Rubin GPU, so that the rate of one is that of NVLink 5.
    nvlink(
        6,
        Rate::from_gb(50),
        "NVIDIA Vera Rubin NVL72 product page: 3.6 TB/s both ways per GPU, over the 36 links that NCCL counts",
        Rate::from_mb(31_200),
    ),
];

/// NVLink 3 of the GeForce RTX 3090 and the A40, slower than that of the A100: 14.0625 GB/s each way per link.
pub static NVLINK3_GEFORCE: LinkSpec = LinkSpec {
    kind: LinkKind::NvLink { generation: Some(3) },
    nominal: Some(Figure::nominal(
        Rate::from_bytes(14_062_500_000),
        "NVIDIA Ampere GA102 whitepaper: 56.25 GB/s each way over 4 links",
    )),
    effective: Some(Figure::effective(Rate::from_gb(12), NCCL_TOPO).checked()),
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
        100..107 => Some(&NVLINK[4]),
        // Rubin.
        107..110 => Some(&NVLINK[5]),
        _ => None,
    }
}

/// NVLink-C2C between Grace and its GPU, 45 GB/s each way per link: a GH200 has 10, a GB200's GPU 5. NVML reports 44.712
/// GB/s as the speed of the link; what transfers reach is not published.
pub static C2C: LinkSpec = c2c(Figure::nominal(
    Rate::from_gb(45),
    "NVIDIA GH200 Grace Hopper whitepaper: 900 GB/s both ways; NVML counts 10 links",
));

/// NVLink-C2C of the GB10. No data sheet has a rate per link: this is the one that NVML reports.
pub static C2C_GB10: LinkSpec = c2c(Figure::nominal(
    Rate::from_mb(43_125),
    "NVML's link speed, in the NCCL topology dump of NVIDIA/nccl pull request 2202",
)
.checked());

/// NVLink-C2C between Vera and its GPU, at the rate that NVML reports.
pub static C2C_VERA: LinkSpec = c2c(Figure::nominal(
    Rate::from_mb(56_376),
    "NVML's link speed, in a published NCCL topology dump of a GPU with sm 107",
)
.checked());

/// xGMI of the MI50, MI60 and MI100.
pub static XGMI2: LinkSpec =
    xgmi(2, Rate::from_gb(46), 24, "AMD Instinct MI100 data sheet: 92 GB/s both ways per link");
/// xGMI of the MI200 series.
pub static XGMI3: LinkSpec =
    xgmi(3, Rate::from_gb(50), 36, "AMD Instinct MI250X data sheet: 100 GB/s both ways per link");
/// xGMI of the MI300A, MI300X and MI325X.
pub static XGMI4: LinkSpec =
    xgmi(4, Rate::from_gb(64), 48, "AMD Instinct MI300X data sheet: 128 GB/s both ways per link");
/// xGMI of the MI350 series: that of the MI300X at 1.2 times the rate. RCCL plans with the same rate for both.
pub static XGMI4_MI350: LinkSpec =
    xgmi(4, Rate::from_mb(76_800), 48, "AMD Instinct MI355X data sheet: 153.6 GB/s both ways per link");

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

/// A UALink port of four lanes: 100 GB/s each way. Its lanes signal at 212.5 Gb/s; coding takes 12.5 of them. What transfers
/// reach is not published; UALink over Ethernet, which the first systems have, needs part of the rate for Ethernet's headers.
pub static UALINK: LinkSpec = LinkSpec {
    kind: LinkKind::UaLink,
    nominal: Some(Figure::nominal(
        Rate::from_gb(100),
        "UALink Consortium, UALink 200G 1.0 specification: 200 Gb/s each way per lane, up to 4 lanes",
    )),
    effective: None,
    latency: None,
};

const fn nvlink(
    generation: u8,
    nominal: Rate<Link, OneWay>,
    source: &'static str,
    effective: Rate<Link, OneWay>,
) -> LinkSpec {
    LinkSpec {
        kind: LinkKind::NvLink { generation: Some(generation) },
        nominal: Some(Figure::nominal(nominal, source)),
        effective: Some(Figure::effective(effective, NCCL_TOPO).checked()),
        latency: NVLINK_LATENCY,
    }
}

const fn c2c(nominal: LinkRate) -> LinkSpec {
    LinkSpec { kind: LinkKind::C2c, nominal: Some(nominal), effective: None, latency: None }
}

const fn xgmi(
    generation: u8,
    nominal: Rate<Link, OneWay>,
    effective_gb: u64,
    source: &'static str,
) -> LinkSpec {
    LinkSpec {
        kind: LinkKind::Xgmi { generation },
        nominal: Some(Figure::nominal(nominal, source)),
        effective: Some(Figure::effective(Rate::from_gb(effective_gb), RCCL_TOPO).checked()),
        latency: None,
    }
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
}
