//! The devices whose links are read: PCI functions and the driver's GPUs, by their names in the fabric.

use std::collections::BTreeMap;

use weftlink_fabric::catalog::gpus::GpuModel;
use weftlink_fabric::catalog::links;
use weftlink_fabric::device::BusId;
use weftlink_fabric::link::LinkSpec;

use super::{GpuFields, Links};
use crate::gpu_source::{GpuReport, gpu_numbers, read_gpu};
use crate::interfaces::{NET, NVME, RDMA, owner};
use crate::models::model_of;
use crate::pci::{Functions, Role};
use crate::tree::names;
use crate::{ProbeError, Tree};

/// The devices of a machine.
pub(super) struct Devices {
    pub(super) functions: Functions,
    /// The GPUs of NVIDIA's driver, with its numbers.
    pub(super) driven: Vec<(u32, GpuReport)>,
    names: BTreeMap<BusId, String>,
}

impl Devices {
    pub(super) fn read(tree: &dyn Tree) -> Result<Self, ProbeError> {
        let functions = Functions::read(tree)?;
        let driven: Vec<(u32, GpuReport)> = gpu_numbers(tree)
            .into_iter()
            .filter_map(|number| Some((number, read_gpu(tree, number)?)))
            .collect();
        let mut named = BTreeMap::new();
        // As in the fabric: by PCI address, and those that only the driver knows after them.
        let on_bus = functions.by_bus.values().filter(|function| function.role == Role::Gpu);
        let buses: Vec<BusId> = on_bus.map(|function| function.bus).collect();
        let unlisted = driven.iter().map(|(_, report)| report.bus).filter(|bus| !buses.contains(bus));
        for (ordinal, bus) in buses.iter().copied().chain(unlisted).enumerate() {
            named.insert(bus, format!("gpu{ordinal}"));
        }
        let switches = functions.by_bus.values().filter(|function| function.role == Role::NvSwitch);
        for (ordinal, switch) in switches.enumerate() {
            named.insert(switch.bus, format!("nvswitch{ordinal}"));
        }
        // The first name counts, and RDMA names before those of network interfaces.
        for (class, what) in [(RDMA, "RDMA devices"), (NET, "network interfaces"), (NVME, "NVMe drives")] {
            for name in names(tree, class, what)? {
                if let Some(bus) = owner(tree, class, &name) {
                    named.entry(bus).or_insert(name);
                }
            }
        }
        Ok(Self { functions, driven, names: named })
    }

    /// The name of a device; its PCI address if it has none.
    pub(super) fn name(&self, bus: BusId) -> String {
        self.names.get(&bus).cloned().unwrap_or_else(|| bus.to_string())
    }

    /// The name of a device, None if it is not of this machine.
    pub(super) fn known(&self, bus: BusId) -> Option<&str> {
        self.names.get(&bus).map(String::as_str)
    }

    /// The catalog's model of a GPU of the driver.
    pub(super) fn model(&self, report: &GpuReport) -> Option<&'static GpuModel> {
        let ids = self.functions.by_bus.get(&report.bus).map(|function| (function.vendor, function.device));
        model_of(ids, Some(report))
    }
}

/// Values of a GPU that describe its wiring, and are shown with its links.
const WIRING: [&str; 6] = ["bus", "sm", "c2c_links", "pcie_replays", "pcie_tx_kb_per_s", "pcie_rx_kb_per_s"];

/// Adds the driver's values of each GPU, apart from those of its links.
pub(super) fn add_fields(tree: &dyn Tree, devices: &Devices, links: &mut Links) {
    for (number, report) in &devices.driven {
        let folder = format!("nvml/{number}");
        let value = |name: &String| Some((name.clone(), tree.read(&format!("{folder}/{name}"))?));
        let is_field = |name: &String| !WIRING.contains(&name.as_str()) && !name.ends_with(".reason");
        let mut fields: Vec<(String, String)> =
            tree.list(&folder).iter().filter(|name| is_field(name)).filter_map(value).collect();
        fields.retain(|(_, value)| value != "not supported");
        for (name, _) in fields.iter_mut().filter(|(name, _)| name == "name") {
            "product_name".clone_into(name);
        }
        links.gpus.push(GpuFields {
            gpu: devices.name(report.bus),
            bus: Some(report.bus.to_string()),
            fields,
        });
    }
}

/// The kind of NVLink of a GPU: by its model, its compute capability or the generation of the link.
pub(super) fn nvlink_spec(
    model: Option<&'static GpuModel>,
    sm: Option<u32>,
    generation: Option<u8>,
) -> Option<&'static LinkSpec> {
    let of_model = model.and_then(GpuModel::gpu_links).map(|(spec, _)| spec);
    let of_sm = || sm.and_then(links::nvlink_of_sm);
    let of_generation = || links::NVLINK.get(usize::from(generation?.checked_sub(1)?));
    of_model.or_else(of_sm).or_else(of_generation)
}

/// The nominal rate of a link, in bytes per second each way.
pub(super) fn nominal(spec: &LinkSpec) -> Option<u64> {
    spec.nominal.as_ref().map(|figure| figure.value.bytes_per_second())
}
