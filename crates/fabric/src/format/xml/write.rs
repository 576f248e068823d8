//! Writes a fabric as NCCL topology XML, or in RCCL's dialect for AMD GPUs.
//!
//! Root ports are left out, as in NCCL's own files. Network switches, links between switches, Xe Link and UALink are left out
//! because the format cannot express them. A device without a bus id gets one, the same on every run.

use super::attributes::speed_text;
use super::hosts::{Dialect, needs_hashes};
use super::markup::Markup;
use super::tree::Tree;
use super::{class_of, local_link};
use crate::device::{Device, DeviceKind, Numa, PciClass, Port};
use crate::fabric::Fabric;
use crate::id::{DeviceId, HostId};
use crate::link::{LinkKind, LinkSpec, Network};

/// Writes the given hosts. A fabric from [`super::read`], written with all its hosts, reads back equal.
pub fn write(fabric: &Fabric, hosts: &[HostId]) -> String {
    let tree = Tree::new(fabric, hosts);
    let dialect = Dialect::of(fabric, &tree);
    let mut writer = Writer {
        fabric,
        hash_hosts: needs_hashes(fabric, &tree),
        tree: &tree,
        markup: Markup::default(),
        nets: 0,
        dialect,
    };
    writer.system();
    writer.markup.finish()
}

/// A file under construction.
pub(super) struct Writer<'f> {
    pub(super) fabric: &'f Fabric,
    pub(super) tree: &'f Tree,
    pub(super) markup: Markup,
    /// Network ports written so far, which number the ports without a number.
    nets: usize,
    pub(super) dialect: Dialect,
    hash_hosts: bool,
}

/// Pending work: an explicit stack instead of recursion, because trees may be deep.
enum Step {
    Device(DeviceId),
    Close(&'static str),
}

impl Writer<'_> {
    fn system(&mut self) {
        let version = match self.dialect {
            Dialect::Nccl => "1",
            Dialect::Rccl => "2",
        };
        self.markup.open("system", &[("version", version)]);
        for root in &self.tree.roots {
            self.cpu(root.numa, root.host);
            let mut steps = vec![Step::Close("cpu")];
            steps.extend(root.children.iter().rev().map(|child| Step::Device(*child)));
            while let Some(step) = steps.pop() {
                match step {
                    Step::Close(tag) => self.markup.close(tag),
                    Step::Device(id) if self.is_bare_nic(id) => self.nic(id),
                    Step::Device(id) => {
                        self.pci(id);
                        steps.push(Step::Close("pci"));
                        steps.extend(self.tree.children(id).iter().rev().map(|child| Step::Device(*child)));
                    }
                }
            }
        }
        self.markup.close("system");
    }

    fn cpu(&mut self, id: Option<DeviceId>, host: HostId) {
        let none = Numa { id: -1, ..Numa::default() };
        let (numa, extra) = match id.map(|id| self.fabric.device(id)) {
            Some(Device { kind: DeviceKind::Numa(numa), extra, .. }) => (numa, extra.as_slice()),
            _ => (&none, [].as_slice()),
        };
        let mut attributes = vec![("numaid", numa.id.to_string())];
        if self.hash_hosts {
            attributes.push(("host_hash", format!("{:#x}", host.0 + 1)));
        }
        for (name, value) in extra {
            if !(self.hash_hosts && &**name == "host_hash") {
                attributes.push((name, value.to_string()));
            }
        }
        let number = |n: &u32| n.to_string();
        for (name, value) in [
            ("arch", numa.cpu.arch.as_deref().map(str::to_owned)),
            ("vendor", numa.cpu.vendor.as_deref().map(str::to_owned)),
            ("familyid", numa.cpu.family.as_ref().map(number)),
            ("modelid", numa.cpu.model.as_ref().map(number)),
        ] {
            attributes.extend(value.map(|value| (name, value)));
        }
        self.markup.open("cpu", &attributes);
    }

    fn pci(&mut self, id: DeviceId) {
        let device = self.fabric.device(id);
        let mut attributes = vec![("busid", self.tree.bus(id).to_string())];
        let class = match find(&device.extra, "class") {
            Some(_) => None,
            None => device.class.or_else(|| class_with_network(&device.kind)),
        };
        attributes.extend(class.map(|class| ("class", class.to_string())));
        if let (None, Some(model)) = (find(&device.extra, "device"), device.kind.gpu_model())
            && let Some(pci_device) = model.pci_devices.first()
        {
            attributes.push(("vendor", format!("{:#06x}", model.vendor.pci_id())));
            attributes.push(("device", format!("{pci_device:#06x}")));
        }
        for (name, value) in &device.extra {
            attributes.push((name, value.to_string()));
        }
        attributes.extend(link_attributes(&device.extra, self.tree.link_above(id)));
        self.markup.open("pci", &attributes);
        for target in self.split_switch_halves(id) {
            let target = self.tree.bus(target).to_string();
            self.markup.empty("pcilink", &[("target", &target)]);
        }
        match &device.kind {
            DeviceKind::Gpu(gpu) => self.gpu(id, gpu),
            // The class identifies a NIC without ports, if it is that of a NIC.
            DeviceKind::Nic(ports) if !ports.is_empty() || class.is_none_or(|class| class.base() != 0x02) => {
                self.nic(id);
            }
            _ => {}
        }
    }

    /// The other halves of a split PCIe switch.
    fn split_switch_halves(&self, id: DeviceId) -> Vec<DeviceId> {
        let local = local_link();
        let is_switch = |id| matches!(self.fabric.device(id).kind, DeviceKind::PcieSwitch);
        self.fabric
            .links_from(id)
            .iter()
            .filter(|link| is_switch(link.source) && is_switch(link.target))
            .filter(|link| *self.fabric.spec(link) == local)
            .map(|link| link.target)
            .collect()
    }

    /// True for a NIC that is not a PCI function: its element is inside that of its parent.
    fn is_bare_nic(&self, id: DeviceId) -> bool {
        let device = self.fabric.device(id);
        let local = self.tree.link_above(id).is_some_and(|link| *link == local_link());
        matches!(device.kind, DeviceKind::Nic(_)) && device.bus.is_none() && local
    }

    fn nic(&mut self, id: DeviceId) {
        let DeviceKind::Nic(ports) = &self.fabric.device(id).kind else {
            return;
        };
        self.markup.open("nic", &[] as &[(&str, &str)]);
        for (index, port) in ports.iter().enumerate() {
            self.net(id, index, port);
        }
        self.markup.close("nic");
    }

    fn net(&mut self, nic: DeviceId, index: usize, port: &Port) {
        let device = self.fabric.device(nic);
        let from_file = device.bus.is_some() || self.is_bare_nic(nic);
        let mut attributes = Vec::new();
        let name = match &port.name {
            Some(name) => Some(name.to_string()),
            None if from_file => None,
            None => Some(format!("nic{}_{index}", device.ordinal)),
        };
        attributes.extend(name.map(|name| ("name", name)));
        if find(&port.extra, "speed").is_none() {
            let megabits = port.rate.bytes_per_second() / 125_000;
            attributes.push(("speed", megabits.to_string()));
        }
        if !from_file {
            attributes.push(("dev", self.nets.to_string()));
            for (name, value) in [("port", "1"), ("latency", "0"), ("maxconn", "131072"), ("gdr", "1")] {
                attributes.push((name, value.to_owned()));
            }
        }
        self.nets += 1;
        for (name, value) in &port.extra {
            attributes.push((name, value.to_string()));
        }
        self.markup.empty("net", &attributes);
    }
}

/// The class of a device; that of a NIC depends on its network.
fn class_with_network(kind: &DeviceKind) -> Option<PciClass> {
    match kind {
        DeviceKind::Nic(ports) if ports.iter().any(|port| port.network == Some(Network::InfiniBand)) => {
            Some(PciClass::INFINIBAND)
        }
        other => class_of(other),
    }
}

/// Speed and width of the link above a device, unless its extra attributes contain them.
fn link_attributes(extra: &[(Box<str>, Box<str>)], link: Option<&LinkSpec>) -> Vec<(&'static str, String)> {
    let mut attributes = Vec::new();
    let Some(LinkSpec { kind: LinkKind::Pcie { generation, width }, nominal, .. }) = link else {
        return attributes;
    };
    if nominal.is_some() && find(extra, "link_speed").is_none() {
        attributes.push(("link_speed", speed_text(*generation).to_owned()));
    }
    let known = nominal.is_some() || *width != 16;
    if *width > 0 && known && find(extra, "link_width").is_none() {
        attributes.push(("link_width", width.to_string()));
    }
    attributes
}

/// The value of an extra attribute.
pub(super) fn find<'e>(extra: &'e [(Box<str>, Box<str>)], name: &str) -> Option<&'e str> {
    extra.iter().find(|(key, _)| &**key == name).map(|(_, value)| &**value)
}
