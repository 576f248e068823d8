//! Builds the fabric of a host: NUMA nodes, root ports, PCIe switches and the functions below them.

use super::functions::{PciIds, ids, kind, label, link};
use super::numa::NumaNodes;
use super::objects::{Kind, Object, parse};
use crate::catalog::links;
use crate::device::{BusId, Device, DeviceKind};
use crate::fabric::{Fabric, FabricBuilder};
use crate::format::network::names::clean_host;
use crate::format::{ReadError, excerpt, text};
use crate::id::{DeviceId, HostId};
use crate::link::LinkSpec;

/// Reads the XML of `lstopo`. `name` is the name of the fabric.
pub fn read(bytes: &[u8], name: &str) -> Result<Fabric, ReadError> {
    let objects = parse(text(bytes)?)?;
    let mut builder = FabricBuilder::new(name);
    let host = objects[0].info("HostName").map(clean_host).filter(|host| !host.is_empty());
    let host = builder.host(host.unwrap_or_else(|| "host0".to_owned()), None);
    let numa = NumaNodes::add(&mut builder, host, &objects)?;
    let mut tree = Tree::of(builder, host, &objects)?;
    for (number, object) in objects.iter().enumerate().skip(1) {
        match &tree.kinds[number] {
            _ if object.kind == Kind::Bridge && tree.leads_somewhere[number] => tree.bridge(number, &numa)?,
            Some(_) => tree.function(number, &numa)?,
            None => {}
        }
    }
    tree.notes();
    Ok(tree.builder.finish()?)
}

/// What a bridge is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The host bridge: it stands for the NUMA node.
    HostBridge,
    RootPort,
    /// The upstream port of a switch, which stands for the switch.
    Upstream,
    /// A downstream port: a part of the switch above.
    Downstream,
}

struct Tree<'o> {
    builder: FabricBuilder,
    host: HostId,
    objects: &'o [Object],
    /// For each bridge, what it is and the device that stands for it.
    bridges: Vec<Option<(Place, DeviceId)>>,
    /// For each PCI function that is shown, what it is.
    kinds: Vec<Option<(PciIds, DeviceKind)>>,
    /// For each bridge, whether such a function is below it.
    leads_somewhere: Vec<bool>,
    /// The objects directly inside each PCI function.
    inside: Vec<Vec<&'o Object>>,
    gpus: usize,
    nics: usize,
    without_speed: usize,
}

impl<'o> Tree<'o> {
    fn of(builder: FabricBuilder, host: HostId, objects: &'o [Object]) -> Result<Self, ReadError> {
        let mut inside: Vec<Vec<&Object>> = vec![Vec::new(); objects.len()];
        for object in objects.iter().filter(|object| object.kind == Kind::OsDevice) {
            inside[object.parent].push(object);
        }
        let bridges = vec![None; objects.len()];
        let mut kinds = vec![None; objects.len()];
        let mut leads_somewhere = vec![false; objects.len()];
        // Children come after their parents.
        for (number, object) in objects.iter().enumerate().rev() {
            if object.kind == Kind::PciDevice {
                let ids = ids(object).map_err(|reason| ReadError::at(object.line, reason))?;
                kinds[number] = kind(ids, &inside[number]).map(|kind| (ids, kind));
            }
            leads_somewhere[object.parent] |= leads_somewhere[number] || kinds[number].is_some();
        }
        Ok(Self {
            builder,
            host,
            objects,
            bridges,
            kinds,
            leads_somewhere,
            inside,
            gpus: 0,
            nics: 0,
            without_speed: 0,
        })
    }

    fn bridge(&mut self, number: usize, numa: &NumaNodes) -> Result<(), ReadError> {
        let object = &self.objects[number];
        let is_host_bridge = object.attribute("bridge_type").is_some_and(|kind| kind.starts_with("0-"));
        let (place, above) = match self.bridges[object.parent] {
            _ if is_host_bridge => (Place::HostBridge, numa.of(self.objects, number)),
            None => (Place::RootPort, numa.of(self.objects, number)),
            Some((Place::HostBridge, above)) => (Place::RootPort, above),
            Some((Place::RootPort | Place::Downstream, above)) => (Place::Upstream, above),
            Some((Place::Upstream, above)) => (Place::Downstream, above),
        };
        let kind = match place {
            Place::RootPort => DeviceKind::RootPort,
            Place::Upstream => DeviceKind::PcieSwitch,
            Place::HostBridge | Place::Downstream => {
                self.bridges[number] = Some((place, above));
                return Ok(());
            }
        };
        let link = self.link(object, 16)?.unwrap_or_else(|| links::PCIE_UNKNOWN.clone());
        let id = self.add(object, kind, None, above, link)?;
        self.bridges[number] = Some((place, id));
        Ok(())
    }

    fn function(&mut self, number: usize, numa: &NumaNodes) -> Result<(), ReadError> {
        let object = &self.objects[number];
        let inside = std::mem::take(&mut self.inside[number]);
        let Some((ids, kind)) = self.kinds[number].take() else { return Ok(()) };
        let label = label(&kind, object, &inside);
        let width = if kind == DeviceKind::Storage { 4 } else { 16 };
        self.gpus += usize::from(matches!(kind, DeviceKind::Gpu(_)));
        self.nics += usize::from(matches!(kind, DeviceKind::Nic(_)));
        let above = match self.bridges[object.parent] {
            Some((_, above)) => above,
            None => numa.of(self.objects, number),
        };
        let link = self.link(object, width)?;
        self.without_speed += usize::from(link.is_none());
        let id = self.add(object, kind, label, above, link.unwrap_or_else(|| links::PCIE_UNKNOWN.clone()))?;
        self.builder.device_mut(id).class = Some(ids.class);
        Ok(())
    }

    fn link(&self, object: &Object, width: u8) -> Result<Option<LinkSpec>, ReadError> {
        link(object.attribute("pci_link_speed"), width).map_err(|reason| ReadError::at(object.line, reason))
    }

    fn add(
        &mut self,
        object: &Object,
        kind: DeviceKind,
        label: Option<Box<str>>,
        above: DeviceId,
        link: LinkSpec,
    ) -> Result<DeviceId, ReadError> {
        let text = object.attribute("pci_busid").unwrap_or_default();
        let bus: BusId = text.parse().map_err(|_| {
            ReadError::at(
                object.line,
                format!("pci_busid is `{}`, expected an address such as 0000:17:00.0", excerpt(text)),
            )
        })?;
        let spec = self.builder.spec(link);
        let id = self.builder.add_device(Device {
            host: Some(self.host),
            ordinal: 0,
            kind,
            bus: Some(bus),
            class: None,
            label,
            extra: Vec::new(),
        });
        self.builder.connect(above, id, 1, spec);
        Ok(id)
    }

    fn notes(&mut self) {
        if self.gpus == 0 {
            self.builder.note("The file has no GPU; lstopo shows PCI devices with --whole-io, or as root");
        } else {
            self.builder.note(
                "lstopo does not show NVLinks or other links between GPUs, so they are unknown; for them, use \
                 `nvidia-smi topo -m` or NCCL's topology XML",
            );
            self.builder.note(
                "lstopo shows the rates of PCIe links when it ran, not generations and widths; an idle GPU may have \
                 lowered its rate",
            );
        }
        if self.nics > 0 {
            self.builder.note("lstopo does not show the rates of network ports, so they are unknown");
        }
        if self.without_speed > 0 {
            self.builder
                .note(format!("{} PCI functions have no link speed that is known", self.without_speed));
        }
    }
}
