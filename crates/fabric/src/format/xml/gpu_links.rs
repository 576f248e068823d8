//! Reads the links of GPUs (NVLink, xGMI, C2C), and the links between the halves of split PCIe switches.
//!
//! A `<nvlink>` between GPUs is one direction of the link, because each GPU lists the other. A `<nvlink>` to a switch or a
//! CPU is both directions. Several `<gpu>` in one PCI function are ranks on one GPU, and each lists all links of the GPU.

use rustc_hash::{FxHashMap, FxHashSet};

use super::attributes::class;
use super::elements::{Element, Tag};
use super::local_link;
use super::read::{TreeReader, bus_id};
use super::switches::SwitchKey;
use crate::catalog::gpus::Vendor;
use crate::catalog::links;
use crate::device::{BusId, Device, DeviceKind, PciClass};
use crate::figure::Figure;
use crate::format::ReadError;
use crate::id::DeviceId;
use crate::link::{LinkKind, LinkSpec, SpecId};
use crate::rate::Rate;

/// Links between two devices.
const COUNT_MAX: u32 = 1_000;

/// The class of a POWER CPU as the target of NVLinks.
pub(super) const CPU_BRIDGE: PciClass = PciClass(0x06_80_01);

/// Reads every link element, after all devices.
pub(super) fn read(tree: &mut TreeReader<'_, '_>) -> Result<(), ReadError> {
    let mut reader = LinkReader {
        switches: FxHashMap::default(),
        merged_into: FxHashMap::default(),
        link_elements: Vec::new(),
        dropped_pcilinks: 0,
        self_links: 0,
        gpus_as_switches: false,
        unknown_xgmi: false,
        tree,
    };
    let document = reader.tree.document;
    reader.find_split_switches();
    for (at, element) in document.elements.iter().enumerate() {
        let Some(device) = reader.tree.devices[at] else {
            continue;
        };
        match element.tag {
            Tag::NvLink | Tag::Xgmi => reader.gpu_link(element, device)?,
            Tag::C2c => reader.c2c(element, device)?,
            Tag::PciLink => reader.pcilink(element, device)?,
            _ => {}
        }
    }
    reader.finish()
}

/// The link of one element.
#[derive(Debug)]
struct LinkElement {
    source: DeviceId,
    target: DeviceId,
    spec: LinkSpec,
    /// The `<gpu>` it is in.
    rank: usize,
    count: u32,
    line: usize,
    both_ways: bool,
    /// The element names a target that other elements name too: counts do not add up.
    repeats: bool,
}

pub(super) struct LinkReader<'t, 'd, 'a> {
    pub(super) tree: &'t mut TreeReader<'d, 'a>,
    /// Switches by host (none: shared by hosts) and bus id.
    pub(super) switches: FxHashMap<SwitchKey, DeviceId>,
    /// The switch that each merged switch became part of.
    pub(super) merged_into: FxHashMap<SwitchKey, SwitchKey>,
    link_elements: Vec<LinkElement>,
    dropped_pcilinks: usize,
    self_links: usize,
    gpus_as_switches: bool,
    unknown_xgmi: bool,
}

impl LinkReader<'_, '_, '_> {
    fn gpu_link(&mut self, element: &Element<'_>, source: DeviceId) -> Result<(), ReadError> {
        let Some(count) = count(element)? else {
            return Ok(());
        };
        let link = if element.tag == Tag::Xgmi {
            self.xgmi(source)
        } else {
            nvlink(self.tree.builder.device(source))
        };
        let generation = match link.kind {
            LinkKind::NvLink { generation } => generation,
            _ => None,
        };
        let target_class = element.text("tclass").map(class);
        let mut repeats = false;
        let target = match target_class {
            Some(Some(class)) if class.is_gpu() => match self.target_gpu(element, source)? {
                target if target == source => {
                    self.self_links += 1;
                    return Ok(());
                }
                target => target,
            },
            Some(Some(CPU_BRIDGE)) => match self.numa_above(element) {
                Some(numa) => numa,
                None => return Ok(()),
            },
            Some(_) => {
                let target;
                (target, repeats) = self.switch_bus(element, source)?;
                self.gpus_as_switches |= repeats;
                self.switch(source, target, generation)
            }
            None => {
                return Err(ReadError::at(
                    element.line,
                    format!(
                        "<{}> has no `tclass`, the PCI class of its target (0x030200 for a GPU, 0x068000 for a switch)",
                        name_of(element)
                    ),
                ));
            }
        };
        let both_ways = !matches!(self.tree.builder.device(target).kind, DeviceKind::Gpu(_));
        self.link_elements.push(LinkElement {
            source,
            target,
            spec: link,
            rank: element.parent,
            count,
            line: element.line,
            both_ways,
            repeats,
        });
        Ok(())
    }

    /// The GPU that a link names, on the same host.
    fn target_gpu(&self, element: &Element<'_>, source: DeviceId) -> Result<DeviceId, ReadError> {
        let bus = bus_id(element, "target")?;
        let name = name_of(element);
        match self.at_bus(source, bus) {
            Some(target) if matches!(self.tree.builder.device(target).kind, DeviceKind::Gpu(_)) => Ok(target),
            Some(_) => Err(ReadError::at(
                element.line,
                format!("the <{name}> target {bus} is not a GPU, but its tclass is that of one"),
            )),
            None => Err(ReadError::at(
                element.line,
                format!(
                    "the <{name}> target {bus} is not in this file; add that GPU, or remove the <{name}> if the GPU is \
                     left out on purpose"
                ),
            )),
        }
    }

    fn at_bus(&self, near: DeviceId, bus: BusId) -> Option<DeviceId> {
        let host = self.tree.builder.device(near).host?;
        self.tree.by_bus.get(&(host, bus)).copied()
    }

    pub(super) fn is_gpu(&self, near: DeviceId, bus: BusId) -> bool {
        self.at_bus(near, bus)
            .is_some_and(|id| matches!(self.tree.builder.device(id).kind, DeviceKind::Gpu(_)))
    }

    /// The NUMA node above a link's GPU.
    fn numa_above(&self, element: &Element<'_>) -> Option<DeviceId> {
        let elements = &self.tree.document.elements;
        let mut above = element.parent;
        while elements[above].tag != Tag::Cpu {
            if above == 0 {
                return None;
            }
            above = elements[above].parent;
        }
        self.tree.devices[above]
    }

    fn xgmi(&mut self, source: DeviceId) -> LinkSpec {
        let gcn = match &self.tree.builder.device(source).kind {
            DeviceKind::Gpu(gpu) => gpu.ranks.iter().flat_map(|rank| &rank.extra),
            _ => return links::XGMI2.clone(),
        }
        .find(|(name, _)| &**name == "gcn")
        .map_or("", |(_, gcn)| gcn.trim_start_matches("gfx"));
        match gcn {
            "906" | "908" => links::XGMI2.clone(),
            // RCCL's files write 910 for gfx90a.
            "90a" | "910" => links::XGMI3.clone(),
            "940" | "941" | "942" => links::XGMI4.clone(),
            "950" => links::XGMI4_MI350.clone(),
            _ => {
                self.unknown_xgmi = true;
                links::XGMI2.clone()
            }
        }
    }

    fn c2c(&mut self, element: &Element<'_>, gpu: DeviceId) -> Result<(), ReadError> {
        let (Some(count), Some(numa)) = (count(element)?, self.numa_above(element)) else {
            return Ok(());
        };
        let megabytes = element.small_number("bw").unwrap_or(0).max(0) as u64;
        // NCCL writes the speed of the link that NVML reports, not a rate that transfers reach.
        let spec = LinkSpec {
            nominal: Some(Figure::nominal(
                Rate::from_mb(megabytes),
                "c2c bw of the topology file: NVML's link speed",
            )),
            ..links::C2C.clone()
        };
        self.link_elements.push(LinkElement {
            source: gpu,
            target: numa,
            spec,
            rank: element.parent,
            count,
            line: element.line,
            both_ways: true,
            repeats: false,
        });
        Ok(())
    }

    fn pcilink(&mut self, element: &Element<'_>, source: DeviceId) -> Result<(), ReadError> {
        let bus = bus_id(element, "target")?;
        let switch = |id| matches!(self.tree.builder.device(id).kind, DeviceKind::PcieSwitch);
        let target = self.at_bus(source, bus);
        match target.filter(|&target| target != source && switch(source) && switch(target)) {
            Some(target) => {
                self.link_elements.push(LinkElement {
                    source,
                    target,
                    spec: local_link(),
                    rank: 0,
                    count: 1,
                    line: element.line,
                    both_ways: false,
                    repeats: true,
                });
            }
            // NCCL's own files name halves that NCCL trimmed.
            None => self.dropped_pcilinks += 1,
        }
        Ok(())
    }

    /// Adds up the elements: counts within one `<gpu>` add, those of several ranks repeat.
    fn finish(mut self) -> Result<(), ReadError> {
        // Link kinds are registered in a canonical order, so that equivalent files give equal fabrics.
        self.link_elements.sort_by_key(|l| order(&l.spec));
        let ids: Vec<SpecId> =
            self.link_elements.iter().map(|l| self.tree.builder.spec(l.spec.clone())).collect();
        let mut link_elements: Vec<(SpecId, LinkElement)> =
            ids.into_iter().zip(std::mem::take(&mut self.link_elements)).collect();
        link_elements.sort_by_key(|(spec, l)| (l.source, l.target, *spec, l.rank));
        for link in
            link_elements.chunk_by(|(x, a), (y, b)| (a.source, a.target, x) == (b.source, b.target, y))
        {
            let count = link
                .chunk_by(|(_, a), (_, b)| a.rank == b.rank)
                .map(|rank| {
                    let adding = rank.iter().filter(|(_, l)| !l.repeats).map(|(_, l)| l.count);
                    let repeats = rank.iter().filter(|(_, l)| l.repeats).map(|(_, l)| l.count).max();
                    adding.fold(repeats.unwrap_or(0), u32::saturating_add)
                })
                .max()
                .unwrap_or(0);
            let (spec, first) = &link[0];
            if count > COUNT_MAX {
                let line = link.iter().map(|(_, l)| l.line).max().unwrap_or(first.line);
                return Err(ReadError::at(
                    line,
                    format!("{count} links between two devices; the limit is {COUNT_MAX}"),
                ));
            }
            let builder = &mut self.tree.builder;
            if first.both_ways {
                builder.connect(first.source, first.target, count, *spec);
            } else {
                builder.link(first.source, first.target, count, *spec);
            }
        }
        self.notes();
        Ok(())
    }

    fn notes(self) {
        let builder = &mut self.tree.builder;
        if !self.merged_into.is_empty() {
            let stand_ins: FxHashSet<&SwitchKey> = self.merged_into.values().collect();
            builder.note(format!(
                "Some GPUs share no NVSwitch, probably because switches are linked to each other, which the format \
                 cannot express; as in NCCL, {} NVSwitches are counted as {}.",
                self.merged_into.len() + stand_ins.len(),
                stand_ins.len()
            ));
        }
        if self.gpus_as_switches {
            builder.note(
                "NVLinks name GPUs with the class of a switch, as in sandboxes; they are read as links to one NVSwitch.",
            );
        }
        if self.self_links > 0 {
            builder.note(format!(
                "{} links lead from a GPU to itself, as in virtual machines that hide the peer; they are left out.",
                self.self_links
            ));
        }
        if self.unknown_xgmi {
            builder
                .note("The gcn of the GPUs is unknown; as in RCCL, their xGMI is assumed to be the slowest.");
        }
        if self.dropped_pcilinks > 0 {
            builder.note(format!(
                "{} pcilinks lead to no PCIe switch of the file; NCCL ignores them too.",
                self.dropped_pcilinks
            ));
        }
    }
}

/// The canonical order of link kinds.
pub(super) fn order(spec: &LinkSpec) -> (LinkKind, u64) {
    (spec.kind, spec.best().map_or(0, |figure| figure.value.bytes_per_second()))
}

/// The number of links of an element; none for zero.
pub(super) fn count(element: &Element<'_>) -> Result<Option<u32>, ReadError> {
    match element.number("count") {
        Some(count @ 1..) => Ok(Some(u32::try_from(count).unwrap_or(u32::MAX))),
        Some(_) => Ok(None),
        None => Err(ReadError::at(element.line, format!("<{}> has no `count`", name_of(element)))),
    }
}

fn name_of(element: &Element<'_>) -> &'static str {
    match element.tag {
        Tag::Xgmi => "xgmi",
        Tag::C2c => "c2c",
        _ => "nvlink",
    }
}

/// The kind of NVLink of a GPU, by its compute capability.
fn nvlink(gpu: &Device) -> LinkSpec {
    let DeviceKind::Gpu(gpu) = &gpu.kind else {
        return links::NVLINK_UNKNOWN.clone();
    };
    let model = gpu.model.filter(|model| model.vendor == Vendor::Nvidia);
    let sm = gpu.sm.or(model.map(|model| model.architecture));
    sm.and_then(links::nvlink_of_sm).unwrap_or(&links::NVLINK_UNKNOWN).clone()
}
