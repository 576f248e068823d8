//! Adds NVLinks and C2C to the fabric, from the driver's reports.

use std::collections::BTreeMap;

use weftlink_fabric::FabricBuilder;
use weftlink_fabric::catalog::gpus::{self, GpuLinks, GpuModel};
use weftlink_fabric::catalog::links;
use weftlink_fabric::device::{BusId, Device, DeviceId, DeviceKind, HostId};
use weftlink_fabric::link::{LinkKind, LinkSpec};

use crate::gpu_source::{GpuReport, NvLinkUp, Remote};
use crate::pci::NVIDIA;

/// A GPU in the fabric, and the data needed to add its links.
pub(crate) struct WiredGpu<'a> {
    pub(crate) device: DeviceId,
    pub(crate) numa: DeviceId,
    pub(crate) model: Option<&'static GpuModel>,
    pub(crate) report: Option<&'a GpuReport>,
}

/// The possible far ends of NVLinks.
pub(crate) struct Endpoints<'a> {
    pub(crate) host: HostId,
    pub(crate) gpus: &'a BTreeMap<BusId, WiredGpu<'a>>,
    /// The NVSwitches on the PCI bus.
    pub(crate) switches: BTreeMap<BusId, DeviceId>,
}

/// Connects GPUs to GPUs, NVSwitches and CPUs, and notes problems.
pub(crate) fn wire(builder: &mut FabricBuilder, endpoints: Endpoints<'_>) {
    let mut wires = Wires::default();
    for (bus, gpu) in endpoints.gpus {
        let name = name(builder, gpu.device, *bus);
        let c2c = gpu.report.and_then(|report| report.c2c_links);
        let c2c = c2c.unwrap_or_else(|| gpu.model.map_or(0, GpuModel::c2c_links));
        if c2c > 0 {
            let (link, _) = gpu.model.and_then(|model| model.c2c).unwrap_or((&links::C2C, c2c));
            let spec = builder.spec(link.clone());
            builder.connect(gpu.numa, gpu.device, c2c, spec);
        }
        let Some(report) = gpu.report else { continue };
        if let (true, Some(GpuLinks::Wired(_, links))) =
            (report.nvlinks.is_empty(), gpu.model.map(|model| &model.links))
        {
            builder.note(format!(
                "{name}: the model has {links} links to other GPUs but the driver reports none, as in a virtual machine \
                 with a single passed-through GPU"
            ));
        }
        let down = report.nvlinks.iter().filter(|link| link.up.is_none()).count();
        if down > 0 {
            builder.note(format!("{name}: {down} of {} NVLinks are down and left out", report.nvlinks.len()));
        }
        let mut unknown = 0;
        for up in report.nvlinks.iter().filter_map(|link| link.up) {
            match far_end(&endpoints, gpu, up.remote) {
                Some(end) => wires.add(gpu.device, end, spec_of(gpu, up)),
                None => unknown += 1,
            }
        }
        if unknown > 0 {
            builder.note(format!("{name}: the driver does not report the far end of {unknown} NVLinks"));
        }
    }
    wires.connect(builder, endpoints.host);
}

/// `gpu2 (0000:41:00.0)`
pub(crate) fn name(builder: &FabricBuilder, id: DeviceId, bus: BusId) -> String {
    let device = builder.device(id);
    format!("{}{} ({bus})", device.kind.stem(), device.ordinal)
}

/// Where an NVLink leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Gpu(DeviceId),
    /// An NVSwitch or a CPU.
    Other(DeviceId),
    /// An NVSwitch with an unlisted address, or without one.
    UnlistedSwitch(Option<BusId>),
}

/// The far end of a link. As in NCCL, an unlisted device is an NVSwitch, unless its ids are those of a GPU.
fn far_end(endpoints: &Endpoints<'_>, gpu: &WiredGpu<'_>, remote: Remote) -> Option<End> {
    let (bus, id) = match remote {
        Remote::Unknown => return None,
        Remote::Hidden => return Some(End::UnlistedSwitch(None)),
        Remote::Function { bus, id } => (bus, id),
    };
    if let Some(peer) = endpoints.gpus.get(&bus) {
        return (peer.device != gpu.device).then_some(End::Gpu(peer.device));
    }
    if let Some(switch) = endpoints.switches.get(&bus) {
        return Some(End::Other(*switch));
    }
    match id {
        (NVIDIA, device) if gpus::by_pci_device(device).is_some() => None,
        (IBM, _) => Some(End::Other(gpu.numa)),
        _ => Some(End::UnlistedSwitch(Some(bus))),
    }
}

/// The vendor of the bridge functions that represent the CPU on POWER machines.
const IBM: u16 = 0x1014;

/// The kind of NVLink: from the model, or else from the compute capability, or else from the reported generation.
fn spec_of(gpu: &WiredGpu<'_>, up: NvLinkUp) -> &'static LinkSpec {
    if let Some((spec, _)) = gpu.model.and_then(GpuModel::gpu_links) {
        return spec;
    }
    let by_sm = gpu.report.and_then(|report| report.sm).and_then(links::nvlink_of_sm);
    by_sm.unwrap_or(match up.generation {
        Some(generation @ 1..=6) => &links::NVLINK[usize::from(generation) - 1],
        _ => &links::NVLINK_UNKNOWN,
    })
}

/// The NVLinks of all reports, counted by pair of ends. A pair of GPUs is listed once, the lower first.
#[derive(Default)]
struct Wires(BTreeMap<(DeviceId, End), Wire>);

/// The NVLinks between two ends: the number that each end reports, and their kind.
struct Wire {
    counts: [u32; 2],
    spec: &'static LinkSpec,
}

impl Wires {
    fn add(&mut self, gpu: DeviceId, end: End, spec: &'static LinkSpec) {
        let (ends, side) = match end {
            End::Gpu(peer) if peer < gpu => ((peer, End::Gpu(gpu)), 1),
            _ => ((gpu, end), 0),
        };
        let wire = self.0.entry(ends).or_insert(Wire { counts: [0; 2], spec });
        wire.counts[side] += 1;
    }

    fn connect(self, builder: &mut FabricBuilder, host: HostId) {
        let mut unlisted: BTreeMap<Option<BusId>, DeviceId> = BTreeMap::new();
        for ((gpu, end), Wire { counts: [here, there], spec }) in self.0 {
            let target = match end {
                End::Gpu(device) | End::Other(device) => device,
                End::UnlistedSwitch(bus) => {
                    *unlisted.entry(bus).or_insert_with(|| add_switch(builder, host, bus))
                }
            };
            if let DeviceKind::NvSwitch { generation } = &mut builder.device_mut(target).kind {
                *generation = nvswitch_generation(spec.kind);
            }
            if here > 0 && there > 0 && here != there {
                let (a, b) = (builder.device(gpu).ordinal, builder.device(target).ordinal);
                builder.note(format!("gpu{a} reports {here} NVLinks to gpu{b}, but gpu{b} reports {there}"));
            }
            let spec = builder.spec(spec.clone());
            builder.connect(gpu, target, here.max(there), spec);
        }
        if unlisted.contains_key(&None) {
            builder.note("the NVSwitches are hidden from this machine and shown as one");
        }
    }
}

fn add_switch(builder: &mut FabricBuilder, host: HostId, bus: Option<BusId>) -> DeviceId {
    builder.add_device(Device {
        host: Some(host),
        ordinal: 0,
        kind: DeviceKind::NvSwitch { generation: None },
        bus,
        class: None,
        label: None,
        extra: Vec::new(),
    })
}

/// The first NVSwitch came with NVLink 2; each later generation belongs to the next NVLink.
fn nvswitch_generation(kind: LinkKind) -> Option<u8> {
    match kind {
        LinkKind::NvLink { generation: Some(generation @ 2..) } => Some(generation - 1),
        _ => None,
    }
}
