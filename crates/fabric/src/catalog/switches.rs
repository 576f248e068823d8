//! NVSwitch chips, by generation.

use crate::catalog::links;
use crate::device::DeviceKind;
use crate::fabric::Fabric;
use crate::figure::Figure;
use crate::id::DeviceId;
use crate::link::LinkSpec;
use crate::rate::{Device, OneWay, Rate};

/// A generation of NVSwitch.
#[derive(Debug)]
pub struct NvSwitch {
    /// 1 to 5.
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

/// The NVSwitch chips of a fabric. A device with more links than a chip has ports is a tray of several chips.
pub fn chips(fabric: &Fabric) -> usize {
    let switches = fabric.device_ids().filter_map(|id| match fabric.device(id).kind {
        DeviceKind::NvSwitch { generation } => Some((id, generation)),
        _ => None,
    });
    let chips_of = |(id, generation): (DeviceId, Option<u8>)| {
        let ports = generation.and_then(|generation| NVSWITCHES.get(usize::from(generation).checked_sub(1)?));
        let links = fabric.links_from(id).iter().filter(|link| fabric.spec(link).kind.is_gpu_fabric());
        let used: u32 = links.map(|link| link.count).sum();
        ports.map_or(1, |switch| used.div_ceil(switch.ports).max(1)) as usize
    };
    switches.map(chips_of).sum()
}

/// Every generation, oldest first.
pub static NVSWITCHES: [NvSwitch; 5] = [
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
    NvSwitch {
        generation: 5,
        ports: 72,
        link: &links::NVLINK[5],
        found_in: "vr-nvl72",
        source: "NVIDIA Vera Rubin NVL72: 28.8 TB/s in a switch tray of four chips (unverified)",
    },
];
