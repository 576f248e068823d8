//! Builds a fabric from the data of a probe.
//!
//! Devices are numbered by PCI address, like in the driver and `nvidia-smi`. The several functions of a PCIe switch in the
//! kernel (an upstream port with downstream ports below it) are one device here.

use std::collections::{BTreeMap, BTreeSet};

use weftlink_fabric::catalog::gpus::GpuModel;
use weftlink_fabric::catalog::links;
use weftlink_fabric::device::{BusId, Device, DeviceId, DeviceKind, HostId, Numa};
use weftlink_fabric::link::{LinkSpec, Measure};
use weftlink_fabric::{Fabric, FabricBuilder, FabricError};

use crate::cpu::Sockets;
use crate::gpu_source::GpuReports;
use crate::interfaces::Interfaces;
use crate::kfd::Kfd;
use crate::nvlinks::{self, Endpoints};
use crate::pci::{Function, Functions, Role};
use crate::pcie::Slot;
use crate::xgmi;

/// The data of a probe.
pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) sockets: Sockets,
    pub(crate) functions: Functions,
    pub(crate) interfaces: Interfaces,
    pub(crate) reports: GpuReports,
    pub(crate) kfd: Kfd,
}

impl Machine {
    pub(crate) fn assemble(&self) -> Result<Fabric, FabricError> {
        let mut builder = FabricBuilder::new(&self.name);
        let host = builder.host(&self.name, None);
        for note in &self.functions.notes {
            builder.note(note);
        }
        let mut wiring = Wiring {
            machine: self,
            builder,
            host,
            numa: BTreeMap::new(),
            ports: BTreeMap::new(),
            root_ports: BTreeMap::new(),
            assumed: Vec::new(),
            numa_unknown: Vec::new(),
        };
        wiring.sockets();
        wiring.bridges();
        let gpus = wiring.gpus();
        let switches = wiring.nvswitches();
        wiring.nics();
        wiring.drives();
        wiring.root_ports();
        wiring.note_missing_gpu_data(&gpus);
        let endpoints = Endpoints { host, gpus: &gpus, switches };
        nvlinks::wire(&mut wiring.builder, endpoints);
        xgmi::wire(&mut wiring.builder, &gpus, &self.kfd);
        wiring.builder.finish()
    }

    pub(crate) fn all(&self, role: Role) -> impl Iterator<Item = &Function> {
        self.functions.by_bus.values().filter(move |function| function.role == role)
    }
}

/// The role of a bridge in the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Port {
    Root,
    Upstream,
    Downstream,
}

/// A root port. Its link to the NUMA node is as wide as the widest link below it.
struct RootPort {
    numa_node: i32,
    widest: Option<LinkSpec>,
}

/// A fabric under construction.
pub(crate) struct Wiring<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) builder: FabricBuilder,
    pub(crate) host: HostId,
    numa: BTreeMap<i32, DeviceId>,
    /// The device of each bridge function.
    ports: BTreeMap<BusId, (Port, DeviceId)>,
    root_ports: BTreeMap<DeviceId, RootPort>,
    /// Devices with an unreported link.
    assumed: Vec<String>,
    /// Devices with an unknown NUMA node.
    numa_unknown: Vec<String>,
}

impl<'a> Wiring<'a> {
    fn sockets(&mut self) {
        let cpu = &self.machine.sockets.cpu;
        let spec = self.builder.spec(links::socket(links::socket_of(cpu)));
        for &id in &self.machine.sockets.nodes {
            let kind = DeviceKind::Numa(Numa { id, cpu: cpu.clone() });
            let node = self.builder.add(Some(self.host), kind);
            for other in self.numa.values() {
                self.builder.connect(*other, node, 1, spec);
            }
            self.numa.insert(id, node);
        }
    }

    /// Root ports and PCIe switches, those nearest to the CPU first.
    fn bridges(&mut self) {
        let mut bridges: Vec<&Function> = self.machine.all(Role::Bridge).collect();
        bridges.sort_by_key(|bridge| (bridge.above.len(), bridge.bus));
        // Bridges are not included for the sake of an NVSwitch.
        let keeps_awake =
            |function: &&Function| !matches!(function.role, Role::Bridge | Role::Gpu | Role::NvSwitch);
        let all = self.machine.functions.by_bus.values();
        let awake: BTreeSet<BusId> =
            all.filter(keeps_awake).flat_map(|function| &function.above).copied().collect();
        for bridge in bridges {
            let port = match self.nearest_port(bridge) {
                None => {
                    let device = self.add(bridge, DeviceKind::RootPort, None);
                    let root = RootPort { numa_node: bridge.numa_node, widest: None };
                    self.root_ports.insert(device, root);
                    (Port::Root, device)
                }
                Some((_, Port::Upstream, switch)) => (Port::Downstream, switch),
                Some((above, _, parent)) => {
                    let device = self.add(bridge, DeviceKind::PcieSwitch, None);
                    let slot = Slot::of(bridge, Some(above), None, !awake.contains(&bridge.bus));
                    self.plug(bridge, device, Some((above, parent)), slot);
                    (Port::Upstream, device)
                }
            };
            self.ports.insert(bridge.bus, port);
        }
    }

    fn nvswitches(&mut self) -> BTreeMap<BusId, DeviceId> {
        let machine = self.machine;
        let kind = || DeviceKind::NvSwitch { generation: None };
        machine.all(Role::NvSwitch).map(|function| (function.bus, self.add(function, kind(), None))).collect()
    }

    /// NICs; the functions of one slot are the ports of one card.
    fn nics(&mut self) {
        let machine = self.machine;
        let mut slots: BTreeMap<BusId, Vec<&Function>> = BTreeMap::new();
        let mut first: BTreeMap<&str, BusId> = BTreeMap::new();
        for function in machine.all(Role::Nic) {
            let bus = *first.entry(function.slot.as_str()).or_insert(function.bus);
            slots.entry(bus).or_default().push(function);
        }
        for functions in slots.values() {
            let adapter = machine.interfaces.adapter(functions);
            let device = self.add(functions[0], DeviceKind::Nic(adapter.ports), adapter.label.as_deref());
            self.place(functions[0], device, None);
            self.note_problems(device, functions[0].bus, adapter.problems);
        }
    }

    fn drives(&mut self) {
        let machine = self.machine;
        for function in machine.all(Role::Nvme) {
            let device = self.add(function, DeviceKind::Storage, machine.interfaces.drive(function.bus));
            self.place(function, device, None);
        }
    }

    /// Connects root ports to their NUMA nodes, once the links below them are known.
    fn root_ports(&mut self) {
        for (device, root) in std::mem::take(&mut self.root_ports) {
            if let Some(widest) = root.widest {
                let bus = self.builder.device(device).bus;
                let numa = self.numa_or_first(root.numa_node, device, bus);
                let spec = self.builder.spec(widest);
                self.builder.connect(numa, device, 1, spec);
            }
        }
        if !self.numa_unknown.is_empty() {
            self.builder.note(format!(
                "the NUMA node is unknown, and the first of {} is assumed, for {}",
                self.machine.sockets.nodes.len(),
                self.numa_unknown.join(", ")
            ));
        }
        if !self.assumed.is_empty() {
            self.builder.note(format!(
                "the PCIe link is not reported (a virtual machine?) and is assumed for {}",
                self.assumed.join(", ")
            ));
        }
    }

    pub(crate) fn add(&mut self, function: &Function, kind: DeviceKind, label: Option<&str>) -> DeviceId {
        self.builder.add_device(Device {
            host: Some(self.host),
            ordinal: 0,
            kind,
            bus: Some(function.bus),
            class: Some(function.class),
            label: label.map(Into::into),
            extra: Vec::new(),
        })
    }

    /// Connects an endpoint to the port above it.
    pub(crate) fn place(&mut self, function: &Function, device: DeviceId, model: Option<&GpuModel>) {
        let above = self.nearest_port(function).map(|(port, _, device)| (port, device));
        let slot = Slot::of(function, above.map(|(port, _)| port), model, function.role == Role::Gpu);
        self.plug(function, device, above, slot);
    }

    fn plug(
        &mut self,
        function: &Function,
        device: DeviceId,
        above: Option<(&Function, DeviceId)>,
        slot: Slot,
    ) {
        let parent = match above {
            Some((_, parent)) => parent,
            None => self.numa_or_first(function.numa_node, device, Some(function.bus)),
        };
        let spec = self.builder.spec(slot.spec.clone());
        self.builder.connect(parent, device, 1, spec);
        if slot.is_assumed {
            self.assumed.push(nvlinks::name(&self.builder, device, function.bus));
        }
        self.note_problems(device, function.bus, slot.problems);
        if let Some(root) = self.root_ports.get_mut(&parent) {
            let rate = |spec: &LinkSpec| spec.rate(Measure::Effective, 1);
            if root.widest.as_ref().is_none_or(|widest| rate(widest) < rate(&slot.spec)) {
                root.widest = Some(slot.spec);
            }
            if root.numa_node < 0 {
                root.numa_node = function.numa_node;
            }
        }
    }

    fn note_problems(&mut self, device: DeviceId, bus: BusId, problems: Vec<String>) {
        for problem in problems {
            let name = nvlinks::name(&self.builder, device, bus);
            self.builder.note(format!("{name} {problem}"));
        }
    }

    /// The innermost bridge above a function that is already in the fabric.
    fn nearest_port(&self, function: &Function) -> Option<(&'a Function, Port, DeviceId)> {
        let bus = function.above.iter().rev().find(|bus| self.ports.contains_key(bus))?;
        let (port, device) = self.ports[bus];
        Some((&self.machine.functions.by_bus[bus], port, device))
    }

    /// The NUMA node of a device. If it is unknown and there are several, the first, and the device is noted.
    fn numa_or_first(&mut self, numa_node: i32, device: DeviceId, bus: Option<BusId>) -> DeviceId {
        let sockets = &self.machine.sockets;
        if let (false, true, Some(bus)) = (sockets.is_known(numa_node), sockets.nodes.len() > 1, bus) {
            self.numa_unknown.push(nvlinks::name(&self.builder, device, bus));
        }
        self.numa_device(numa_node)
    }

    pub(crate) fn numa_device(&self, numa_node: i32) -> DeviceId {
        self.numa[&self.machine.sockets.node_for(numa_node)]
    }
}
