//! NCCL topology XML (version 1) and RCCL's dialect of it (version 2), in and out.
//!
//! The reader accepts every file that NCCL accepts, with NCCL's defaults for missing attributes: `elements` parses bytes
//! into a flat list of known elements, `read` and `gpu_links` build a fabric from it, `write` is the reverse.
//!
//! Deliberately absent: the changes that NCCL makes to a file at run time. Nothing is filled in from the machine, nothing
//! is trimmed, and two-level Broadcom switches stay two switches.

mod attributes;
mod elements;
mod gpu_links;
mod hosts;
mod identify;
mod link_switches;
mod markup;
mod notes;
mod read;
mod switches;
mod tree;
mod write;
mod write_gpu;

pub use hosts::nvlink_domain;
pub use read::read;
pub use write::write;

use crate::catalog::links;
use crate::device::{BusId, DeviceKind, PciClass};
use crate::figure::Figure;
use crate::link::{LinkKind, LinkSpec};
use crate::rate::Rate;

/// The PCIe link assumed where the file gives no speed: NCCL's default, without a nominal rate.
fn assumed_pcie(width: u8) -> LinkSpec {
    LinkSpec {
        nominal: None,
        effective: links::pcie(3, width).effective.map(|figure| Figure {
            source: crate::figure::Source::named("NCCL's default where a file names no link speed"),
            checked: true,
            ..figure
        }),
        ..links::pcie(3, width)
    }
}

/// A connection inside one chip: between the halves of a split PCIe switch, or to a NIC that a file puts directly on a
/// CPU.
fn local_link() -> LinkSpec {
    LinkSpec {
        kind: LinkKind::Pcie { generation: 0, width: 0 },
        nominal: None,
        effective: Some(Figure::effective(
            Rate::from_gb(5_000),
            "NCCL 2.31 src/graph/topo.h, local bandwidth",
        )),
        latency: None,
    }
}

/// The bus id of an NVSwitch that the host cannot see, because of a virtual machine or a rack.
const HIDDEN_SWITCH: BusId = BusId::new(HIDDEN_DOMAIN, 0xff, 0xff, 0);
/// The PCI domain of hidden switches, which no machine uses.
const HIDDEN_DOMAIN: u32 = 0x0fff_ffff;

/// The PCI class that follows from the kind of a device.
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
