//! Adds xGMI links to the fabric, from the topology of AMD's driver.

use std::collections::BTreeMap;

use weftlink_fabric::FabricBuilder;
use weftlink_fabric::catalog::gpus::GpuModel;
use weftlink_fabric::catalog::links;
use weftlink_fabric::device::BusId;
use weftlink_fabric::link::{LinkKind, LinkSpec};

use crate::kfd::{Kfd, KfdGpu};
use crate::models::by_pci_id;
use crate::nvlinks::{WiredGpu, name};

/// Connects GPUs to GPUs, and notes what is assumed.
pub(crate) fn wire(builder: &mut FabricBuilder, gpus: &BTreeMap<BusId, WiredGpu<'_>>, kfd: &Kfd) {
    let mut unknown = Vec::new();
    for ((here, there), wires) in &kfd.links {
        let (Some(one), Some(other)) = (gpus.get(here), gpus.get(there)) else {
            continue;
        };
        let Some(spec) = spec_of(&kfd.gpus[here]) else {
            unknown.push(format!(
                "{} to {}",
                name(builder, one.device, *here),
                name(builder, other.device, *there)
            ));
            continue;
        };
        let spec = builder.spec(spec.clone());
        builder.connect(one.device, other.device, wires.count, spec);
    }
    if kfd.is_assumed && !kfd.links.is_empty() {
        builder.note("the amdgpu driver does not report the bandwidth of xGMI links; one link between each two GPUs is assumed");
    }
    if !unknown.is_empty() {
        builder
            .note(format!("xGMI links of an unknown GPU architecture are left out: {}", unknown.join(", ")));
    }
    for (bus, gpu) in &kfd.gpus {
        if let (true, Some(wired)) = (gpu.partitions > 1, gpus.get(bus)) {
            let name = name(builder, wired.device, *bus);
            builder.note(format!(
                "{name} is divided into {} partitions, which are one GPU here",
                gpu.partitions
            ));
        }
    }
}

/// The kind of xGMI of a GPU: that of its model, or else of its architecture.
pub(crate) fn spec_of(gpu: &KfdGpu) -> Option<&'static LinkSpec> {
    let of_model = by_pci_id(gpu.ids.0, gpu.ids.1).and_then(GpuModel::gpu_links).map(|(spec, _)| spec);
    let of_model = of_model.filter(|spec| matches!(spec.kind, LinkKind::Xgmi { .. }));
    of_model.or(match gpu.gfx {
        90_006 | 90_008 => Some(&links::XGMI2),
        90_010 => Some(&links::XGMI3),
        90_400..90_500 => Some(&links::XGMI4),
        90_500..90_600 => Some(&links::XGMI4_MI350),
        _ => None,
    })
}
