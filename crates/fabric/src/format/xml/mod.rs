//! NCCL topology XML (version 1) and RCCL's dialect of it (version 2), in and out.
//!
//! A file that NCCL accepts is accepted, with NCCL's defaults for what it leaves out: `elements` turns bytes into
//! a flat list of known elements, `read` and `gpu_links` turn that into a fabric, `write` goes back.
//!
//! What NCCL does to a file at run time is deliberately absent: nothing is filled in from the machine, nothing is
//! trimmed, and two-level Broadcom switches stay two switches.

mod attributes;
mod elements;
mod gpu_links;
mod hosts;
mod identify;
mod markup;
mod notes;
mod read;
mod switches;
mod tree;
mod write;
mod write_gpu;

pub use hosts::island;
pub use read::read;
pub use write::write;

use crate::catalog::links;
use crate::device::{BusId, DeviceKind, PciClass};
use crate::figure::Figure;
use crate::link::{LinkKind, LinkSpec};
use crate::rate::Rate;

/// What a PCIe link is taken for where the file does not say how fast it is: NCCL's default, without a nominal rate,
/// because nobody named one.
fn assumed_pcie(width: u8) -> LinkSpec {
    LinkSpec {
        nominal: None,
        effective: links::pcie(3, width).effective.map(|figure| Figure {
            source: crate::figure::Source::named("NCCL's default where a file names no link speed"),
            ..figure
        }),
        ..links::pcie(3, width)
    }
}

/// A connection inside one chip: the halves of a split PCIe switch, or a NIC that a file puts straight on a CPU.
fn local_link() -> LinkSpec {
    LinkSpec {
        kind: LinkKind::Pcie { generation: 0, width: 0 },
        nominal: None,
        effective: Some(Figure::effective(
            Rate::from_gb(5_000),
            "NCCL 2.30 src/graph/topo.h, local bandwidth",
        )),
        latency: None,
    }
}

/// The bus id that stands for an NVSwitch which a virtual machine or a rack hides from the host.
const HIDDEN_SWITCH: BusId = BusId::new(HIDDEN_DOMAIN, 0xff, 0xff, 0);
/// The PCI domain of hidden switches, which no machine has.
const HIDDEN_DOMAIN: u32 = 0x0fff_ffff;

/// The class of a device whose kind says enough to know it.
fn class_of(kind: &DeviceKind) -> Option<PciClass> {
    match kind {
        DeviceKind::PcieSwitch => Some(PciClass::BRIDGE),
        DeviceKind::Gpu(_) => Some(PciClass::GPU),
        DeviceKind::NvSwitch { .. } => Some(PciClass::NVSWITCH),
        DeviceKind::Nic(_) => Some(PciClass::ETHERNET),
        DeviceKind::Storage => Some(PciClass::NVME),
        _ => None,
    }
}
