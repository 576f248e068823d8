//! Builds the tree of CPUs and PCI functions from elements. [`super::gpu_links`] adds the links of GPUs.

use rustc_hash::FxHashMap;

use super::attributes::{class, follows_from_link, hash, pci_link};
use super::elements::{Document, Element, Tag, parse};
use super::identify::{Contents, kind_of, network_of};
use super::{class_of, gpu_links, local_link};
use crate::catalog::links;
use crate::device::{BusId, Cpu, Device, DeviceKind, GpuRank, Numa, Port};
use crate::fabric::{Fabric, FabricBuilder};
use crate::format::{ReadError, excerpt};
use crate::id::{DeviceId, HostId};
use crate::rate::{Link, OneWay, Rate};

/// NUMA nodes of one host. Each has a link to every other, so their number is bounded.
const NUMA_NODES_MAX: usize = 128;

/// Reads NCCL or RCCL topology XML. The fabric's name is that of the system in the file, or else `name`.
pub fn read(bytes: &[u8], name: &str) -> Result<Fabric, ReadError> {
    let document = parse(crate::format::text(bytes)?)?;
    let root = &document.elements[0];
    check_version(root)?;
    if !document.elements.iter().any(|element| element.tag == Tag::Cpu) {
        let instead = match document.ignored.first() {
            Some((name, line)) => format!("; <{name}> on line {line} is not part of NCCL's format"),
            None => String::new(),
        };
        return Err(ReadError::at(
            root.line,
            format!("<system> has no <cpu>, so it describes no machine{instead}"),
        ));
    }
    let mut reader = TreeReader {
        builder: FabricBuilder::new(root.text("name").unwrap_or(name)),
        hosts: FxHashMap::default(),
        numa_nodes: Vec::new(),
        devices: vec![None; document.elements.len()],
        by_bus: FxHashMap::default(),
        speed_assumed: 0,
        repeated_ids: 0,
        contents: contents(&document),
        document: &document,
    };
    for at in 1..document.elements.len() {
        reader.element(at)?;
    }
    gpu_links::read(&mut reader)?;
    reader.notes();
    Ok(reader.builder.finish()?)
}

/// A fabric under construction.
pub(super) struct TreeReader<'d, 'a> {
    pub(super) builder: FabricBuilder,
    pub(super) document: &'d Document<'a>,
    /// The device of each element.
    pub(super) devices: Vec<Option<DeviceId>>,
    /// PCI functions by host and address.
    pub(super) by_bus: FxHashMap<(HostId, BusId), DeviceId>,
    hosts: FxHashMap<u64, HostId>,
    /// The NUMA nodes of each host.
    numa_nodes: Vec<Vec<DeviceId>>,
    /// The direct content of each element.
    contents: Vec<Contents>,
    pub(super) speed_assumed: usize,
    pub(super) repeated_ids: usize,
}

fn contents(document: &Document<'_>) -> Vec<Contents> {
    let mut contents = vec![Contents::default(); document.elements.len()];
    for element in &document.elements[1..] {
        let parent = &mut contents[element.parent];
        match element.tag {
            Tag::Gpu => parent.gpu = true,
            Tag::Nic => parent.nic = true,
            Tag::Pci => parent.pci = true,
            _ => {}
        }
    }
    contents
}

fn check_version(root: &Element<'_>) -> Result<(), ReadError> {
    match root.number("version") {
        Some(1 | 2) => Ok(()),
        Some(other) => Err(ReadError::at(
            root.line,
            format!("<system> has version {other}, expected 1 (NCCL) or 2 (RCCL)"),
        )),
        None => Err(ReadError::at(
            root.line,
            "<system> has no version; add version=\"1\" (NCCL) or version=\"2\" (RCCL)",
        )),
    }
}

impl TreeReader<'_, '_> {
    fn element(&mut self, at: usize) -> Result<(), ReadError> {
        let element = &self.document.elements[at];
        let parent = self.devices[element.parent];
        self.devices[at] = match (element.tag, parent) {
            (Tag::Cpu, _) => Some(self.cpu(element)?),
            (Tag::Pci, Some(parent)) => Some(self.pci(at, parent)?),
            (Tag::Gpu, Some(device)) => {
                self.gpu(element, device);
                Some(device)
            }
            (Tag::Nic, Some(parent)) => Some(self.nic(parent)),
            (Tag::Net, Some(device)) => {
                self.net(element, device);
                None
            }
            // Links are read after all devices, as part of the element around them.
            (_, parent) => parent,
        };
        Ok(())
    }

    fn cpu(&mut self, element: &Element<'_>) -> Result<DeviceId, ReadError> {
        let hash = element.text("host_hash").map_or(0, hash);
        let known_hosts = self.hosts.len();
        let host =
            *self.hosts.entry(hash).or_insert_with(|| self.builder.host(format!("host{known_hosts}"), None));
        self.numa_nodes.resize(self.hosts.len(), Vec::new());
        let siblings = &mut self.numa_nodes[host.index()];
        if siblings.len() == NUMA_NODES_MAX {
            return Err(ReadError::at(
                element.line,
                format!("one host has more than {NUMA_NODES_MAX} <cpu>, which is the limit"),
            ));
        }
        let count = |name: &str| element.number(name).and_then(|n| u32::try_from(n).ok());
        let cpu = Cpu {
            arch: element.text("arch").map(Into::into),
            vendor: element.text("vendor").map(Into::into),
            family: count("familyid"),
            model: count("modelid"),
        };
        let known = |name: &str| match name {
            "numaid" | "arch" | "vendor" => true,
            "familyid" | "modelid" => count(name).is_some(),
            _ => false,
        };
        let away = self.builder.spec(links::socket(links::socket_of(&cpu)));
        let node = self.builder.add(
            Some(host),
            DeviceKind::Numa(Numa { id: element.small_number("numaid").unwrap_or(-1), cpu }),
        );
        self.builder.device_mut(node).extra = element.others(known);
        for &other in siblings.iter() {
            // NCCL gives each direction the rate of the CPU it leaves.
            let DeviceKind::Numa(numa) = &self.builder.device(other).kind else {
                continue;
            };
            let back = links::socket(links::socket_of(&numa.cpu));
            let back = self.builder.spec(back);
            self.builder.link(other, node, 1, back);
            self.builder.link(node, other, 1, away);
        }
        siblings.push(node);
        Ok(node)
    }

    fn pci(&mut self, at: usize, parent: DeviceId) -> Result<DeviceId, ReadError> {
        let element = &self.document.elements[at];
        let contents = self.contents[at];
        let bus = bus_id(element, "busid")?;
        let class_text = element.text("class");
        let file_class = class_text.and_then(class);
        let kind = kind_of(file_class, contents, element);
        let link = pci_link(element);
        if link.nominal.is_none() {
            self.speed_assumed += 1;
        }
        let known = |name: &str| match name {
            "busid" => true,
            "class" => file_class.is_some(),
            _ => element.text(name).is_some_and(|value| follows_from_link(name, value, &link)),
        };
        let device = Device {
            host: self.builder.device(parent).host,
            ordinal: 0,
            class: file_class.or_else(|| if class_text.is_none() { class_of(&kind) } else { None }),
            kind,
            bus: Some(bus),
            label: None,
            extra: element.others(known),
        };
        let spec = self.builder.spec(link);
        let id = self.builder.add_device(device);
        self.builder.connect(parent, id, 1, spec);
        self.register(at, bus, id)?;
        Ok(id)
    }

    /// Records the device of a bus id. Real files repeat the ids of bridges and NICs; for GPUs, links would be ambiguous.
    fn register(&mut self, at: usize, bus: BusId, id: DeviceId) -> Result<(), ReadError> {
        let element = &self.document.elements[at];
        let mut above = element.parent;
        while self.document.elements[above].tag == Tag::Pci {
            if self.devices[above].is_some_and(|device| self.builder.device(device).bus == Some(bus)) {
                return Err(ReadError::at(
                    element.line,
                    format!("<pci> {bus} is inside another <pci> with the same bus id; correct one of them"),
                ));
            }
            above = self.document.elements[above].parent;
        }
        let Some(host) = self.builder.device(id).host else {
            return Ok(());
        };
        let first = *self.by_bus.entry((host, bus)).or_insert(id);
        if first == id {
            return Ok(());
        }
        let gpu = |id| matches!(self.builder.device(id).kind, DeviceKind::Gpu(_));
        if gpu(first) || gpu(id) {
            return Err(ReadError::at(
                element.line,
                format!("duplicate bus id {bus}; a GPU cannot share its bus id"),
            ));
        }
        self.repeated_ids += 1;
        Ok(())
    }

    fn gpu(&mut self, element: &Element<'_>, device: DeviceId) {
        let device = self.builder.device_mut(device);
        let DeviceKind::Gpu(gpu) = &mut device.kind else {
            return;
        };
        // In RCCL's files, `sm` is the number of compute units.
        let sm = match element.text("gcn") {
            Some(_) => None,
            None => element.number("sm").and_then(|n| u32::try_from(n).ok()),
        };
        gpu.sm = gpu.sm.or(sm);
        let of_gpu = gpu.sm;
        let known = |name: &str| match name {
            "dev" | "rank" => true,
            "sm" => sm.is_some() && sm == of_gpu,
            _ => false,
        };
        gpu.ranks.push(GpuRank {
            dev: element.small_number("dev"),
            rank: element.small_number("rank"),
            extra: element.others(known),
        });
    }

    /// The NIC of a `<nic>`: the PCI function around it if that is a NIC, otherwise a new device.
    fn nic(&mut self, parent: DeviceId) -> DeviceId {
        if matches!(self.builder.device(parent).kind, DeviceKind::Nic(_)) {
            return parent;
        }
        let host = self.builder.device(parent).host;
        let spec = self.builder.spec(local_link());
        let nic = self.builder.add(host, DeviceKind::Nic(Vec::new()));
        self.builder.connect(parent, nic, 1, spec);
        nic
    }

    fn net(&mut self, element: &Element<'_>, device: DeviceId) {
        let device = self.builder.device_mut(device);
        let network = network_of(device, element.text("name"));
        let DeviceKind::Nic(ports) = &mut device.kind else {
            return;
        };
        let megabits = element.small_number("speed").filter(|&speed| speed > 0);
        let rate: Rate<Link, OneWay> = Rate::from_bytes(megabits.unwrap_or(10_000) as u64 * 125_000);
        let known = |name: &str| match name {
            "name" => true,
            "speed" => megabits.is_some(),
            _ => false,
        };
        ports.push(Port {
            name: element.text("name").map(Into::into),
            network,
            rate,
            extra: element.others(known),
        });
    }
}

/// A required bus id.
pub(super) fn bus_id(element: &Element<'_>, name: &str) -> Result<BusId, ReadError> {
    let text = element.text(name).ok_or_else(|| {
        ReadError::at(element.line, format!("<{:?}> has no `{name}`", element.tag).to_lowercase())
    })?;
    // Sub-devices have a suffix that NCCL does not read: `0000:17:00.0-1`.
    let address = text.split_once('-').map_or(text, |(address, _)| address);
    address.parse().map_err(|_| {
        ReadError::at(
            element.line,
            format!("`{}` is not a PCI bus id; write it as 0000:17:00.0", excerpt(text)),
        )
    })
}
