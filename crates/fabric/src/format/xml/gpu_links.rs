//! What joins GPUs: NVLink, xGMI and C2C, and the PCIe switches that are split in two.
//!
//! A `<nvlink>` is one direction of a link between GPUs (each lists the other), but both directions of one to a switch
//! or a CPU. Several `<gpu>` in one PCI function are ranks on one GPU, each of which lists all its links.

use rustc_hash::{FxHashMap, FxHashSet};

use super::attributes::class;
use super::elements::{Element, Tag};
use super::read::{TreeReader, bus_id};
use super::switches::{Attachment, SwitchKey, merged};
use super::{HIDDEN_DOMAIN, HIDDEN_SWITCH, local_link};
use crate::catalog::gpus::Vendor;
use crate::catalog::links;
use crate::device::{BusId, Device, DeviceKind, PciClass};
use crate::figure::{Basis, Figure, Source};
use crate::format::ReadError;
use crate::id::DeviceId;
use crate::link::{LinkKind, LinkSpec, SpecId};
use crate::rate::Rate;

/// Links between two devices. Today's largest GPU has 36.
const MAX_COUNT: u32 = 1_000;

/// What a POWER CPU reports where NVLinks end in it.
const CPU_BRIDGE: PciClass = PciClass(0x06_80_01);

/// Reads every link element; all devices are there.
pub(super) fn read(tree: &mut TreeReader<'_, '_>) -> Result<(), ReadError> {
    let mut reader = LinkReader {
        switches: FxHashMap::default(),
        one_switch: FxHashMap::default(),
        listed: Vec::new(),
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

/// One element's share of a link.
#[derive(Debug)]
struct Listed {
    source: DeviceId,
    target: DeviceId,
    spec: LinkSpec,
    /// The `<gpu>` it is in.
    rank: usize,
    count: u32,
    line: usize,
    both_ways: bool,
    /// Every target of this kind is the same switch seen again: counts do not add up.
    seen_again: bool,
}

struct LinkReader<'t, 'd, 'a> {
    tree: &'t mut TreeReader<'d, 'a>,
    /// Switches by host (none: shared by hosts) and bus id.
    switches: FxHashMap<SwitchKey, DeviceId>,
    /// The switch that stands for others, by each of those.
    one_switch: FxHashMap<SwitchKey, SwitchKey>,
    listed: Vec<Listed>,
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
        let mut seen_again = false;
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
                (target, seen_again) = self.switch_bus(element, source)?;
                self.gpus_as_switches |= seen_again;
                self.switch(source, target, generation)
            }
            None => {
                return Err(ReadError::at(
                    element.line,
                    format!(
                        "{} has no tclass, the PCI class of its target (0x030200 for a GPU, 0x068000 for a switch)",
                        name_of(element)
                    ),
                ));
            }
        };
        let both_ways = !matches!(self.tree.builder.device(target).kind, DeviceKind::Gpu(_));
        self.listed.push(Listed {
            source,
            target,
            spec: link,
            rank: element.parent,
            count,
            line: element.line,
            both_ways,
            seen_again,
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
                format!("{name} target {bus} is no GPU, but its tclass says so"),
            )),
            None => Err(ReadError::at(
                element.line,
                format!(
                    "{name} target {bus} is no device of this file; add that GPU, or remove the {name} if it is left \
                     out on purpose"
                ),
            )),
        }
    }

    fn at_bus(&self, near: DeviceId, bus: BusId) -> Option<DeviceId> {
        let host = self.tree.builder.device(near).host?;
        self.tree.by_bus.get(&(host, bus)).copied()
    }

    fn is_gpu(&self, near: DeviceId, bus: BusId) -> bool {
        self.at_bus(near, bus)
            .is_some_and(|id| matches!(self.tree.builder.device(id).kind, DeviceKind::Gpu(_)))
    }

    /// Where the switch is that a link leads to, and whether the link names a GPU in its place. NCCL knows a switch by
    /// its class alone, so a link may leave the rest out.
    fn switch_bus(&self, element: &Element<'_>, source: DeviceId) -> Result<(BusId, bool), ReadError> {
        if element.text("target").is_none() {
            return Ok((HIDDEN_SWITCH, false));
        }
        let target = bus_id(element, "target")?;
        let names_gpu = self.is_gpu(source, target);
        Ok((if names_gpu { HIDDEN_SWITCH } else { target }, names_gpu))
    }

    /// Looks ahead for switches that have to be one.
    fn find_split_switches(&mut self) {
        let document = self.tree.document;
        let mut attachments = Vec::new();
        for (at, element) in document.elements.iter().enumerate() {
            let (Tag::NvLink | Tag::Xgmi, Some(gpu)) = (element.tag, self.tree.devices[at]) else {
                continue;
            };
            let to_switch = match element.text("tclass").map(class) {
                Some(Some(class)) => !class.is_gpu() && class != CPU_BRIDGE,
                Some(None) => true,
                None => false,
            };
            // What is wrong with an element is told when its turn comes.
            let (Ok(Some(_)), Ok((bus, _)), true, Some(host)) = (
                count(element),
                self.switch_bus(element, gpu),
                to_switch,
                self.tree.builder.device(gpu).host,
            ) else {
                continue;
            };
            attachments.push(Attachment { gpu, host, switch: self.switch_key(gpu, bus) });
        }
        self.one_switch = merged(&attachments);
    }

    fn switch_key(&self, near: DeviceId, bus: BusId) -> SwitchKey {
        let host = self.tree.builder.device(near).host;
        // A hidden switch is the rack's where the file has several hosts.
        let shared = bus.domain() >= u64::from(HIDDEN_DOMAIN)
            && self.tree.builder.host_count() > 1
            && self.switch_in_file((host, bus)).is_none();
        (if shared { None } else { host }, bus)
    }

    fn switch_in_file(&self, (host, bus): SwitchKey) -> Option<DeviceId> {
        let device = *self.tree.by_bus.get(&(host?, bus))?;
        matches!(self.tree.builder.device(device).kind, DeviceKind::NvSwitch { .. }).then_some(device)
    }

    /// The switch at a bus id, as a PCI function of the file or as a device that only links name.
    fn switch(&mut self, near: DeviceId, bus: BusId, nvlink: Option<u8>) -> DeviceId {
        let key = self.switch_key(near, bus);
        let key = *self.one_switch.get(&key).unwrap_or(&key);
        let switch = match self.switch_in_file(key) {
            Some(switch) => switch,
            None => *self.switches.entry(key).or_insert_with(|| {
                let (owner, bus) = key;
                self.tree.builder.add_device(Device {
                    host: owner,
                    ordinal: 0,
                    kind: DeviceKind::NvSwitch { generation: None },
                    bus: Some(bus),
                    class: Some(PciClass::NVSWITCH),
                    label: None,
                    extra: Vec::new(),
                })
            }),
        };
        if let DeviceKind::NvSwitch { generation } = &mut self.tree.builder.device_mut(switch).kind {
            // NVSwitch came with NVLink 2 and has kept step.
            *generation = generation.or(nvlink.filter(|g| *g >= 2).map(|g| g - 1));
        }
        switch
    }

    /// The NUMA node that a link's GPU hangs below.
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
            // RCCL's files call gfx90a 910.
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
        let known = links::C2C.effective.as_ref().map(|figure| figure.value);
        let spec = if known == Some(Rate::from_mb(megabytes)) {
            links::C2C.clone()
        } else {
            LinkSpec {
                nominal: None,
                effective: Some(Figure {
                    value: Rate::from_mb(megabytes),
                    basis: Basis::Effective,
                    source: Source::named("c2c bw of the topology file"),
                }),
                ..links::C2C.clone()
            }
        };
        self.listed.push(Listed {
            source: gpu,
            target: numa,
            spec,
            rank: element.parent,
            count,
            line: element.line,
            both_ways: true,
            seen_again: false,
        });
        Ok(())
    }

    fn pcilink(&mut self, element: &Element<'_>, source: DeviceId) -> Result<(), ReadError> {
        let bus = bus_id(element, "target")?;
        let switch = |id| matches!(self.tree.builder.device(id).kind, DeviceKind::PcieSwitch);
        let target = self.at_bus(source, bus);
        match target.filter(|&target| target != source && switch(source) && switch(target)) {
            Some(target) => {
                self.listed.push(Listed {
                    source,
                    target,
                    spec: local_link(),
                    rank: 0,
                    count: 1,
                    line: element.line,
                    both_ways: false,
                    seen_again: true,
                });
            }
            // NCCL's own files name halves that it has trimmed away.
            None => self.dropped_pcilinks += 1,
        }
        Ok(())
    }

    /// Adds up what the elements listed: over one `<gpu>` counts add, over several they repeat.
    fn finish(mut self) -> Result<(), ReadError> {
        // Link kinds are made known in an order of their own, not the file's: files that say the same are equal.
        self.listed.sort_by_key(|l| order(&l.spec));
        let ids: Vec<SpecId> = self.listed.iter().map(|l| self.tree.builder.spec(l.spec.clone())).collect();
        let mut listed: Vec<(SpecId, Listed)> =
            ids.into_iter().zip(std::mem::take(&mut self.listed)).collect();
        listed.sort_by_key(|(spec, l)| (l.source, l.target, *spec, l.rank));
        for link in listed.chunk_by(|(x, a), (y, b)| (a.source, a.target, x) == (b.source, b.target, y)) {
            let count = link
                .chunk_by(|(_, a), (_, b)| a.rank == b.rank)
                .map(|rank| {
                    let adding = rank.iter().filter(|(_, l)| !l.seen_again).map(|(_, l)| l.count);
                    let seen_again = rank.iter().filter(|(_, l)| l.seen_again).map(|(_, l)| l.count).max();
                    adding.fold(seen_again.unwrap_or(0), u32::saturating_add)
                })
                .max()
                .unwrap_or(0);
            let (spec, first) = &link[0];
            if count > MAX_COUNT {
                let line = link.iter().map(|(_, l)| l.line).max().unwrap_or(first.line);
                return Err(ReadError::at(
                    line,
                    format!("{count} links between two devices; no GPU has more than {MAX_COUNT}"),
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
        if !self.one_switch.is_empty() {
            let stand_ins: FxHashSet<&SwitchKey> = self.one_switch.values().collect();
            builder.note(format!(
                "Some GPUs share no NVSwitch, as where switches are linked to each other, which a file cannot say; as \
                 NCCL does, {} NVSwitches are counted as {}.",
                self.one_switch.len() + stand_ins.len(),
                stand_ins.len()
            ));
        }
        if self.gpus_as_switches {
            builder.note(
                "NVLinks name GPUs but call them switches, as sandboxes do; they are taken to meet in one NVSwitch.",
            );
        }
        if self.self_links > 0 {
            builder.note(format!(
                "{} links lead from a GPU to itself, as where a virtual machine hides the peer; they are left out.",
                self.self_links
            ));
        }
        if self.unknown_xgmi {
            builder.note(
                "The GPUs' gcn is not one Weft knows; as RCCL does, their xGMI is taken to be the slowest.",
            );
        }
        if self.dropped_pcilinks > 0 {
            builder.note(format!(
                "{} pcilinks lead to no PCIe switch of the file; NCCL ignores them too.",
                self.dropped_pcilinks
            ));
        }
    }
}

/// An order of link kinds that does not depend on where they are met.
pub(super) fn order(spec: &LinkSpec) -> (LinkKind, u64) {
    (spec.kind, spec.best().map_or(0, |figure| figure.value.bytes_per_second()))
}

/// How many links an element stands for; none where it says zero.
fn count(element: &Element<'_>) -> Result<Option<u32>, ReadError> {
    match element.number("count") {
        Some(count @ 1..) => Ok(Some(u32::try_from(count).unwrap_or(u32::MAX))),
        Some(_) => Ok(None),
        None => Err(ReadError::at(element.line, format!("{} has no count", name_of(element)))),
    }
}

fn name_of(element: &Element<'_>) -> &'static str {
    match element.tag {
        Tag::Xgmi => "xgmi",
        Tag::C2c => "c2c",
        _ => "nvlink",
    }
}

/// The NVLinks of a GPU, told by its compute capability.
fn nvlink(gpu: &Device) -> LinkSpec {
    let DeviceKind::Gpu(gpu) = &gpu.kind else {
        return links::NVLINK_UNKNOWN.clone();
    };
    let model = gpu.model.filter(|model| model.vendor == Vendor::Nvidia);
    let sm = gpu.sm.or(model.map(|model| model.architecture));
    sm.and_then(links::nvlink_of_sm).unwrap_or(&links::NVLINK_UNKNOWN).clone()
}
