//! NVSwitch chips, by generation.

use crate::catalog::links;
use crate::figure::Figure;
use crate::link::LinkSpec;
use crate::rate::{Device, OneWay, Rate};

/// A generation of NVSwitch.
#[derive(Debug)]
pub struct NvSwitch {
    /// 1 to 4.
    pub generation: u8,
    /// NVLink ports of one chip.
    pub ports: u32,
    /// The kind of link of each port.
    pub link: &'static LinkSpec,
    /// Systems that have it.
    pub found_in: &'static str,
    /// The source of the figures.
    pub source: &'static str,
}

impl NvSwitch {
    /// The nominal rate of all its ports together, each way.
    pub fn rate(&self) -> Option<Figure<Rate<Device, OneWay>>> {
        Some(self.link.nominal.clone()?.per_device(self.ports.into()))
    }
}

/// Every generation, oldest first.
pub static NVSWITCHES: [NvSwitch; 4] = [
    NvSwitch {
        generation: 1,
        ports: 18,
        link: &links::NVLINK[1],
        found_in: "dgx-2",
        source: "NVIDIA NVSwitch technical overview: 18 ports, 900 GB/s",
    },
    NvSwitch {
        generation: 2,
        ports: 36,
        link: &links::NVLINK[2],
        found_in: "hgx-a100",
        source: "NVIDIA A100 architecture whitepaper: 36 ports",
    },
    NvSwitch {
        generation: 3,
        ports: 64,
        link: &links::NVLINK[3],
        found_in: "hgx-h100, hgx-h200, dgx-gh200",
        source: "NVIDIA H100 architecture whitepaper: 64 ports, 3.2 TB/s",
    },
    NvSwitch {
        generation: 4,
        ports: 72,
        link: &links::NVLINK[4],
        found_in: "hgx-b200, hgx-b300, gb200-nvl72, gb300-nvl72",
        source: "NVIDIA GB200 NVL72 blog: 144 ports in a switch tray of two chips",
    },
];
