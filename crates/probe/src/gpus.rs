//! Adds GPUs to the fabric: those on the PCI bus, and those that only the driver reports.

use std::collections::BTreeMap;

use weftlink_fabric::catalog::gpus::{GpuModel, Vendor};
use weftlink_fabric::device::{BusId, Device, DeviceKind, Gpu};

use crate::gpu_source::GpuReport;
use crate::models::model_of;
use crate::nvlinks::{self, WiredGpu};
use crate::pci::{AMD_GPUS, Lanes, NVIDIA, Role};
use crate::pcie;
use crate::wiring::Wiring;

impl<'a> Wiring<'a> {
    /// Adds the GPUs and returns them by PCI address.
    pub(crate) fn gpus(&mut self) -> BTreeMap<BusId, WiredGpu<'a>> {
        let machine = self.machine;
        let mut gpus = BTreeMap::new();
        let mut reports: BTreeMap<BusId, &GpuReport> = BTreeMap::new();
        for report in &machine.reports.gpus {
            reports.entry(report.bus).or_insert(report);
        }
        for function in machine.all(Role::Gpu) {
            let report = reports.get(&function.bus).copied();
            let model = model_of(Some((function.vendor, function.device)), report);
            let label = report.and_then(|report| report.name.as_deref());
            let device = self.add(function, DeviceKind::Gpu(gpu_kind(model, report)), label);
            self.place(function, device, model);
            let numa = self.numa_device(function.numa_node);
            gpus.insert(function.bus, WiredGpu { device, numa, model, report });
        }
        // In a sandbox, GPUs may be visible to the driver only.
        for report in &machine.reports.gpus {
            let model = model_of(None, Some(report));
            gpus.entry(report.bus).or_insert_with(|| self.unlisted(report.bus, model, Some(report)));
        }
        for (bus, gpu) in &machine.kfd.gpus {
            let model = model_of(Some(gpu.ids), None);
            gpus.entry(*bus).or_insert_with(|| self.unlisted(*bus, model, None));
        }
        gpus
    }

    /// Adds a GPU that is not on the PCI bus.
    fn unlisted(
        &mut self,
        bus: BusId,
        model: Option<&'static GpuModel>,
        report: Option<&'a GpuReport>,
    ) -> WiredGpu<'a> {
        let device = self.builder.add_device(Device {
            host: Some(self.host),
            ordinal: 0,
            kind: DeviceKind::Gpu(gpu_kind(model, report)),
            bus: Some(bus),
            class: None,
            label: report.and_then(|report| report.name.as_deref()).map(Into::into),
            extra: Vec::new(),
        });
        let numa = self.numa_device(-1);
        let spec = self.builder.spec(pcie::assumed(Lanes::default(), model));
        self.builder.connect(numa, device, 1, spec);
        let name = nvlinks::name(&self.builder, device, bus);
        self.builder.note(format!("{name} is known to the driver but not listed on the PCI bus"));
        WiredGpu { device, numa, model, report }
    }

    /// Notes which GPU data is missing, and why.
    pub(crate) fn note_missing_gpu_data(&mut self, gpus: &BTreeMap<BusId, WiredGpu<'_>>) {
        let mut unreported: Vec<String> = Vec::new();
        for function in self.machine.all(Role::Gpu) {
            let Some(gpu) = gpus.get(&function.bus) else {
                continue;
            };
            let name = nvlinks::name(&self.builder, gpu.device, function.bus);
            if function.vendor == AMD_GPUS {
                if !self.machine.kfd.gpus.contains_key(&function.bus) {
                    self.builder.note(format!(
                        "{name}: the amdgpu driver does not list it below /sys/class/kfd; only PCIe is included"
                    ));
                }
            } else if function.vendor != NVIDIA {
                self.builder.note(format!(
                    "{name}: links between GPUs are read for NVIDIA and AMD only; only PCIe is included"
                ));
            } else if gpu.report.is_none() {
                unreported.push(name);
            }
        }
        if !unreported.is_empty() {
            let reason = self.machine.reports.reason.as_deref().unwrap_or("the driver does not report it");
            self.builder.note(format!(
                "NVLinks are unknown without the driver ({reason}): {}",
                unreported.join(", ")
            ));
        }
    }
}

fn gpu_kind(model: Option<&'static GpuModel>, report: Option<&GpuReport>) -> Gpu {
    let of_model = model.filter(|model| model.vendor == Vendor::Nvidia).map(|model| model.architecture);
    Gpu { model, sm: report.and_then(|report| report.sm).or(of_model), ranks: Vec::new() }
}
