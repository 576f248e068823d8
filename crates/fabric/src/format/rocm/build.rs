//! Builds a fabric from the tables: NUMA nodes, a root port for each GPU, and xGMI links.

use std::collections::BTreeMap;

use super::tables::{Tables, Type};
use crate::catalog::gpus::{GpuModel, Vendor};
use crate::catalog::links;
use crate::device::{Cpu, DeviceKind, Gpu, Numa};
use crate::fabric::{Fabric, FabricBuilder};
use crate::format::ReadError;
use crate::id::DeviceId;
use crate::link::{LinkKind, LinkSpec, Socket};

pub(super) fn build(
    tables: &Tables,
    name: &str,
    model: Option<&'static GpuModel>,
) -> Result<Fabric, ReadError> {
    let mut fabric = FabricBuilder::new(name);
    let host = fabric.host("host0", None);
    let between = fabric.spec(LinkSpec {
        kind: LinkKind::Socket(Socket::Other),
        nominal: None,
        effective: None,
        latency: None,
    });
    let mut nodes: BTreeMap<u32, DeviceId> = BTreeMap::new();
    let mut ids: Vec<u32> = tables.gpus.iter().map(|gpu| gpu.numa.unwrap_or(0)).collect();
    ids.sort_unstable();
    ids.dedup();
    for id in ids {
        let numa = Numa { id: i32::try_from(id).unwrap_or(-1), cpu: Cpu::default() };
        let node = fabric.add(Some(host), DeviceKind::Numa(numa));
        for other in nodes.values() {
            fabric.connect(*other, node, 1, between);
        }
        nodes.insert(id, node);
    }
    let slot = model.map_or(links::PCIE_UNKNOWN.clone(), |model| links::pcie(model.pcie.0, model.pcie.1));
    let slot = fabric.spec(slot);
    let sm = model.filter(|model| model.vendor == Vendor::Nvidia).map(|model| model.architecture);
    let mut gpus = Vec::new();
    for row in &tables.gpus {
        let port = fabric.add(Some(host), DeviceKind::RootPort);
        fabric.connect(nodes[&row.numa.unwrap_or(0)], port, 1, slot);
        let gpu = fabric.add(Some(host), DeviceKind::Gpu(Gpu { model, sm, ranks: Vec::new() }));
        fabric.connect(port, gpu, 1, slot);
        if row.name != format!("GPU{}", fabric.device(gpu).ordinal) {
            fabric.device_mut(gpu).label = Some(row.name.as_str().into());
        }
        gpus.push(gpu);
    }
    wire(tables, &gpus, model, &mut fabric)?;
    if tables.gpus.iter().any(|gpu| gpu.numa.is_none()) {
        fabric.note("The output does not name the NUMA nodes of all GPUs; node 0 is assumed for the others.");
    }
    fabric.note(
        "The output contains neither the PCIe wiring nor NICs: each GPU is placed on its own root port.",
    );
    Ok(fabric.finish()?)
}

fn wire(
    tables: &Tables,
    gpus: &[DeviceId],
    model: Option<&'static GpuModel>,
    fabric: &mut FabricBuilder,
) -> Result<(), ReadError> {
    let pairs = || (0..gpus.len()).flat_map(|row| (0..row).map(move |column| (column, row)));
    let kind = |row: usize, column: usize| tables.types[row][column];
    for (one, other) in pairs() {
        if kind(one, other) != kind(other, one) {
            let (one, other) = (&tables.gpus[one].name, &tables.gpus[other].name);
            return Err(ReadError::at(
                tables.line,
                format!(
                    "{one} to {other} and {other} to {one} have different link types; both must be equal"
                ),
            ));
        }
    }
    let weight = |(one, other): (usize, usize)| *tables.weights.get(one)?.get(other)?;
    let xgmi = || pairs().filter(|(one, other)| kind(*one, *other) == Some(Type::Xgmi));
    if xgmi().next().is_none() {
        return Ok(());
    }
    let spec = match model.and_then(GpuModel::gpu_links) {
        Some((spec, _)) if matches!(spec.kind, LinkKind::Xgmi { .. }) => spec,
        _ => {
            let found = model
                .map_or("the output does not contain it".to_owned(), |model| format!("{model} has no xGMI"));
            return Err(ReadError::at(
                tables.line,
                format!(
                    "GPUs are connected by xGMI, whose rate follows from the GPU model, and {found}; name the model, such as mi300x"
                ),
            ));
        }
    };
    let spec = fabric.spec(spec.clone());
    let least = xgmi().filter_map(weight).min();
    let has_counts = !tables.links.is_empty();
    for pair in xgmi() {
        let count = match tables.links.get(pair.0).and_then(|row| row[pair.1]) {
            Some(count) => count,
            // Each GPU in between adds to the weight.
            None => u32::from(weight(pair) == least),
        };
        if count > 0 {
            fabric.connect(gpus[pair.0], gpus[pair.1], count, spec);
        }
    }
    if !has_counts {
        fabric.note(
            "The output does not contain the number of xGMI links between two GPUs: one is assumed. Append the output of \
             `rocm-smi --shownodesbw`.",
        );
    }
    Ok(())
}
