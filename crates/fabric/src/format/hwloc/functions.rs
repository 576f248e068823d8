//! PCI functions: their class, their ids, and the link above them.

use super::objects::{Kind, Object};
use crate::catalog::gpus::{self, GpuModel, Vendor};
use crate::catalog::links;
use crate::device::{DeviceKind, Gpu, PciClass, Port};
use crate::format::excerpt;
use crate::format::network::names::clean;
use crate::link::{LinkSpec, Network};
use crate::rate::Rate;

/// The class, vendor and device of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PciIds {
    pub(super) class: PciClass,
    pub(super) vendor: u16,
    pub(super) device: u16,
}

/// Parses `0302 [10de:2330] [10de:16c1] a1`.
pub(super) fn ids(object: &Object) -> Result<PciIds, String> {
    let text = object.attribute("pci_type").unwrap_or_default();
    let wrong = || {
        format!(
            "pci_type is `{}`, expected class and ids such as 0302 [10de:2330] [10de:16c1] a1",
            excerpt(text)
        )
    };
    let number = |digits: &str| match digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        true => u16::from_str_radix(digits, 16).map_err(|_| wrong()),
        false => Err(wrong()),
    };
    let mut words = text.split_ascii_whitespace();
    let class = number(words.next().ok_or_else(wrong)?)?;
    let ids = words.next().and_then(|word| word.strip_prefix('[')?.strip_suffix(']'));
    let (vendor, device) = ids.and_then(|ids| ids.split_once(':')).ok_or_else(wrong)?;
    // Of the class code, hwloc 2 leaves out the last two digits.
    Ok(PciIds { class: PciClass(u32::from(class) << 8), vendor: number(vendor)?, device: number(device)? })
}

/// The device of a function, given the objects inside it; none for functions that move no data of GPUs.
pub(super) fn kind(ids: PciIds, inside: &[&Object]) -> Option<DeviceKind> {
    let is_vendor = |vendor: Vendor| vendor.pci_id() == ids.vendor;
    let model = gpus::by_pci_device(ids.device).filter(|model| is_vendor(model.vendor));
    match ids.class.0 >> 8 {
        _ if ids.class.is_gpu() && is_gpu(ids, model, inside) => {
            let sm = model.filter(|model| model.vendor == Vendor::Nvidia).map(|model| model.architecture);
            Some(DeviceKind::Gpu(Gpu { model, sm, ranks: Vec::new() }))
        }
        // Older adapters of Mellanox have the class of serial InfiniBand controllers.
        0x0200..=0x02ff | 0x0c06 => Some(DeviceKind::Nic(ports(ids, inside))),
        0x0108 => Some(DeviceKind::Storage),
        0x0680 if is_vendor(Vendor::Nvidia) => Some(DeviceKind::NvSwitch { generation: None }),
        _ => None,
    }
}

/// Display controllers of management processors are no GPUs.
fn is_gpu(ids: PciIds, model: Option<&'static GpuModel>, inside: &[&Object]) -> bool {
    let computes = |object: &&Object| {
        let name = object.attribute("name").unwrap_or_default();
        ["cuda", "nvml", "rsmi", "ze", "opencl"].iter().any(|start| name.starts_with(start))
    };
    let made =
        [Vendor::Nvidia, Vendor::Amd, Vendor::Intel].iter().any(|vendor| vendor.pci_id() == ids.vendor);
    let is_display = ids.class.0 >> 8 == 0x0300;
    let is_nvidia = ids.vendor == Vendor::Nvidia.pci_id();
    made && (!is_display || is_nvidia || model.is_some() || inside.iter().any(computes))
}

/// The RDMA ports of a NIC. Their rates are unknown.
fn ports(ids: PciIds, inside: &[&Object]) -> Vec<Port> {
    let names = inside.iter().filter_map(|object| object.attribute("name")).map(clean);
    let rdma = names.filter(|name| {
        ["mlx", "rdmap", "efa", "bnxt_re", "irdma", "hfi", "qib", "roce"]
            .iter()
            .any(|start| name.starts_with(start))
    });
    let network = match (ids.class.0 >> 8, ids.vendor) {
        (0x0207 | 0x0c06, _) => Some(Network::InfiniBand),
        (_, 0x1d0f) => Network::efa_by_pci_device(ids.device),
        _ => None,
    };
    rdma.map(|name| Port { name: Some(name.into()), network, rate: Rate::ZERO, extra: Vec::new() }).collect()
}

/// What the system calls a function.
pub(super) fn label(kind: &DeviceKind, object: &Object, inside: &[&Object]) -> Option<Box<str>> {
    let named = |wanted: &str| inside.iter().find_map(|object| object.info(wanted));
    let os_name = || inside.iter().find(|object| object.kind == Kind::OsDevice)?.attribute("name");
    let text = match kind {
        DeviceKind::Gpu(_) => named("GPUModel").or_else(|| object.info("PCIDevice"))?,
        DeviceKind::Nic(_) | DeviceKind::Storage => os_name()?,
        _ => return None,
    };
    Some(clean(text).into())
}

/// The link with a rate in GB/s: the widest slot of up to `width` lanes with that rate.
pub(super) fn link(speed: Option<&str>, width: u8) -> Result<Option<LinkSpec>, String> {
    let Some(text) = speed else { return Ok(None) };
    let gb_per_s = text.parse::<f64>().ok().filter(|rate| rate.is_finite() && *rate >= 0.0);
    let gb_per_s = gb_per_s
        .ok_or_else(|| format!("pci_link_speed is `{}`, expected GB/s such as 31.507692", excerpt(text)))?;
    // GB/s of a lane of each generation, as hwloc computes them.
    const LANES: [(u8, f64); 6] =
        [(1, 0.25), (2, 0.5), (3, 0.984_615), (4, 1.969_231), (5, 3.938_462), (6, 7.562_5)];
    let widths = [16, 12, 8, 4, 2, 1].into_iter().filter(|lanes| *lanes <= width);
    let fits = |(lane, lanes): (f64, u8)| (lane * f64::from(lanes) - gb_per_s).abs() < 0.01 * gb_per_s;
    let found = widths.flat_map(|lanes| LANES.map(|(generation, lane)| (generation, lane, lanes)));
    let found = found.into_iter().find(|(_, lane, lanes)| fits((*lane, *lanes)));
    Ok(found.map(|(generation, _, lanes)| links::pcie(generation, lanes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_the_widest_of_their_rate() {
        let of = |text: &str, width| link(Some(text), width).unwrap().map(|link| link.kind.to_string());
        for (text, width, expected) in [
            ("63.015385", 16, Some("PCIe 5.0 x16")),
            ("31.507692", 16, Some("PCIe 4.0 x16")),
            ("15.753846", 16, Some("PCIe 3.0 x16")),
            ("7.876923", 4, Some("PCIe 4.0 x4")),
            ("7.876923", 16, Some("PCIe 3.0 x8")),
            ("121.000000", 16, Some("PCIe 6.0 x16")),
            ("4.000000", 16, Some("PCIe 1.0 x16")),
            ("0.000000", 16, None),
            ("99", 16, None),
        ] {
            assert_eq!(of(text, width).as_deref(), expected, "{text}");
        }
        for text in ["", "fast", "-1", "inf", "NaN"] {
            assert!(link(Some(text), 16).is_err(), "{text}");
        }
    }
}
