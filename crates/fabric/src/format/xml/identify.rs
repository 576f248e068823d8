//! Identifies a PCI function by its content, its class and its ids.

use super::attributes::leading_number;
use super::elements::Element;
use crate::catalog::gpus::{self, GpuModel};
use crate::device::{Device, DeviceKind, Gpu, PciClass};
use crate::link::Network;

/// The elements inside an element that decide its kind.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Contents {
    pub(super) gpu: bool,
    pub(super) nic: bool,
    pub(super) pci: bool,
}

/// The kind of a PCI function: by its content, then by its class.
pub(super) fn kind_of(class: Option<PciClass>, contents: Contents, element: &Element<'_>) -> DeviceKind {
    let gpu = |class: PciClass| class.is_gpu();
    if contents.gpu || (!contents.nic && class.is_some_and(gpu)) {
        return DeviceKind::Gpu(Gpu { model: gpu_model(element), ..Gpu::default() });
    }
    if contents.nic {
        return DeviceKind::Nic(Vec::new());
    }
    match class {
        Some(PciClass::NVSWITCH) => DeviceKind::NvSwitch { generation: None },
        // The data-direct function of ConnectX-8 is a bridge of this class.
        Some(class) if class.is_bridge() || class == PciClass(0x08_01_00) => DeviceKind::PcieSwitch,
        Some(class) if class.base() == 0x02 => DeviceKind::Nic(Vec::new()),
        Some(class) if class.0 >> 8 == 0x01_08 => DeviceKind::Storage,
        _ if contents.pci => DeviceKind::PcieSwitch,
        _ => DeviceKind::PciFunction,
    }
}

fn gpu_model(element: &Element<'_>) -> Option<&'static GpuModel> {
    let device = u16::try_from(element.number("device")?).ok()?;
    let model = gpus::by_pci_device(device)?;
    (element.number("vendor") == Some(model.vendor.pci_id().into())).then_some(model)
}

/// The network of a NIC, where its PCI ids or its port's name identify it.
pub(super) fn network_of(nic: &Device, port: Option<&str>) -> Option<Network> {
    let id = |name| {
        let (_, value) = nic.extra.iter().find(|(key, _)| &**key == name)?;
        Some(leading_number(value))
    };
    match nic.class? {
        PciClass::INFINIBAND => Some(Network::InfiniBand),
        PciClass::ETHERNET if id("vendor") == Some(0x1d0f) => {
            Network::efa_by_pci_device(u16::try_from(id("device")?).ok()?)
        }
        PciClass::ETHERNET if port.is_some_and(|name| name.starts_with("rdmap")) => Some(Network::Efa),
        // An Ethernet port with an RDMA name uses RoCE.
        PciClass::ETHERNET if port.is_some_and(|name| name.starts_with("mlx5_")) => Some(Network::Roce),
        _ => None,
    }
}
