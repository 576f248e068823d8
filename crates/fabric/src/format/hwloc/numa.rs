//! NUMA nodes, the links between them, and the one that each PCIe tree hangs on.

use super::objects::{Kind, Object};
use crate::catalog::links;
use crate::device::{Cpu, DeviceKind, Numa};
use crate::fabric::FabricBuilder;
use crate::format::ReadError;
use crate::format::network::names::clean;
use crate::id::{DeviceId, HostId};

/// NUMA nodes of a host. Each has a link to every other.
const NUMA_NODES_MAX: usize = 128;

/// The NUMA nodes of a host.
pub(super) struct NumaNodes {
    /// For each object, the first NUMA node in it.
    first_inside: Vec<Option<DeviceId>>,
    first: DeviceId,
}

impl NumaNodes {
    /// Adds the NUMA nodes; a machine without any gets one.
    pub(super) fn add(
        builder: &mut FabricBuilder,
        host: HostId,
        objects: &[Object],
    ) -> Result<Self, ReadError> {
        let mut first_inside: Vec<Option<DeviceId>> = vec![None; objects.len()];
        let mut nodes: Vec<DeviceId> = Vec::new();
        for (number, object) in objects.iter().enumerate().filter(|(_, object)| object.kind == Kind::NumaNode)
        {
            if nodes.len() == NUMA_NODES_MAX {
                let reason =
                    format!("the host has more than {NUMA_NODES_MAX} NUMA nodes, which is the limit");
                return Err(ReadError::at(object.line, reason));
            }
            let id = object.attribute("os_index").and_then(|text| text.parse().ok()).unwrap_or(-1);
            let cpu = cpu(objects, number);
            let spec = builder.spec(links::socket(links::socket_of(&cpu)));
            let node = builder.add(Some(host), DeviceKind::Numa(Numa { id, cpu }));
            for other in &nodes {
                builder.connect(*other, node, 1, spec);
            }
            nodes.push(node);
            ancestors(objects, number).for_each(|at| {
                first_inside[at].get_or_insert(node);
            });
        }
        let first = match nodes.first() {
            Some(first) => *first,
            None => builder.add(Some(host), DeviceKind::Numa(Numa { id: -1, cpu: cpu(objects, 0) })),
        };
        Ok(Self { first_inside, first })
    }

    /// The NUMA node of a PCIe tree: the first of its package or group, or else of what is around that.
    pub(super) fn of(&self, objects: &[Object], bridge: usize) -> DeviceId {
        ancestors(objects, bridge).find_map(|at| self.first_inside[at]).unwrap_or(self.first)
    }
}

/// An object and all around it, inside out.
fn ancestors(objects: &[Object], from: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(from), move |at| Some(objects[*at].parent).filter(|parent| parent != at))
}

/// The CPU around an object.
fn cpu(objects: &[Object], at: usize) -> Cpu {
    let info = |name: &str| ancestors(objects, at).find_map(|at| objects[at].info(name));
    let number = |name: &str| info(name).and_then(|text| text.parse().ok());
    Cpu {
        arch: info("Architecture").map(|arch| clean(arch).into()),
        vendor: info("CPUVendor").map(|vendor| clean(vendor).into()),
        family: number("CPUFamilyNumber"),
        model: number("CPUModelNumber"),
    }
}
