//! The devices whose links are read: PCI functions and the driver's GPUs, by their names in the fabric.

use std::collections::BTreeMap;

use weftlink_fabric::catalog::gpus::GpuModel;
use weftlink_fabric::catalog::links;
use weftlink_fabric::device::BusId;
use weftlink_fabric::link::LinkSpec;

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
