//! Device entries: their names, and the keys of each kind.

use std::fmt;
use std::str::FromStr;

use super::assemble::bytes_per_second;
use super::schema::{CpuEntry, DeviceEntry, PortEntry, RankEntry};
use crate::catalog::gpus;
use crate::device::{BusId, Cpu, Device, DeviceKind, Gpu, GpuRank, Numa, PciClass, Port, Tier};
use crate::format::excerpt;
use crate::id::HostId;
use crate::nearest::did_you_mean;
use crate::rate::Rate;

/// The part of a device's name after the host: `gpu3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct LocalName {
    pub(super) stem: &'static str,
    pub(super) ordinal: u32,
}

impl LocalName {
    pub(super) fn of(device: &Device) -> Self {
        Self { stem: device.kind.stem(), ordinal: device.ordinal }
    }

    /// True for network switches, which belong to no host.
    pub(super) fn is_network_switch(self) -> bool {
        matches!(self.stem, "leaf" | "spine")
    }

    /// True for devices that may belong to no host: network switches and NVSwitches.
    pub(super) fn is_switch(self) -> bool {
        self.is_network_switch() || self.stem == "nvswitch"
    }
}

impl fmt::Display for LocalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.stem, self.ordinal)
    }
}

impl FromStr for LocalName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let digits = text.find(|c: char| c.is_ascii_digit()).unwrap_or(text.len());
        let (stem, number) = text.split_at(digits);
        let kind = bare_kinds().into_iter().find(|kind| kind.stem() == stem);
        let is_canonical = number == "0" || !number.starts_with('0');
        match (kind, number.parse()) {
            (Some(kind), Ok(ordinal)) if is_canonical => Ok(Self { stem: kind.stem(), ordinal }),
            (Some(_), _) => {
                Err(format!("`{}` needs a device number after `{stem}`, as in `{stem}0`", excerpt(text)))
            }
            (None, _) => Err(format!(
                "`{}` is not a device name: write kind and number, as in `host0/gpu3`; the kinds are {}",
                excerpt(text),
                bare_kinds().map(|kind| kind.stem()).join(", ")
            )),
        }
    }
}

/// Every kind of device, without properties.
fn bare_kinds() -> [DeviceKind; 10] {
    [
        DeviceKind::Numa(Numa::default()),
        DeviceKind::RootPort,
        DeviceKind::PcieSwitch,
        DeviceKind::Gpu(Gpu::default()),
        DeviceKind::NvSwitch { generation: None },
        DeviceKind::Nic(Vec::new()),
        DeviceKind::Storage,
        DeviceKind::NetSwitch(Tier::Leaf),
        DeviceKind::NetSwitch(Tier::Spine),
        DeviceKind::PciFunction,
    ]
}

/// Builds the device of an entry.
pub(super) fn device(entry: DeviceEntry, host: Option<HostId>, local: LocalName) -> Result<Device, String> {
    check_keys(&entry, local)?;
    let bus = entry.bus.as_deref().map(str::parse::<BusId>).transpose();
    Ok(Device {
        host,
        ordinal: local.ordinal,
        bus: bus.map_err(|error| error.to_string())?,
        class: entry.class.as_deref().map(class).transpose()?,
        kind: kind(&entry, local)?,
        label: entry.label,
        extra: entry.extra,
    })
}

/// Refuses keys that the device's kind does not have.
fn check_keys(entry: &DeviceEntry, local: LocalName) -> Result<(), String> {
    for (key, is_given, of) in [
        ("model", entry.model.is_some(), "gpu"),
        ("sm", entry.sm.is_some(), "gpu"),
        ("ranks", !entry.ranks.is_empty(), "gpu"),
        ("numa", entry.numa.is_some(), "numa"),
        ("cpu", entry.cpu.is_some(), "numa"),
        ("generation", entry.generation.is_some(), "nvswitch"),
        ("ports", !entry.ports.is_empty(), "nic"),
    ] {
        if is_given && local.stem != of {
            return Err(format!("`{key}` applies to `{of}` devices only, not to `{local}`"));
        }
    }
    Ok(())
}

fn kind(entry: &DeviceEntry, local: LocalName) -> Result<DeviceKind, String> {
    let bare = bare_kinds().into_iter().find(|kind| kind.stem() == local.stem);
    Ok(match bare.unwrap_or(DeviceKind::PciFunction) {
        DeviceKind::Numa(_) => DeviceKind::Numa(Numa {
            id: match entry.numa {
                Some(id) => id,
                None => i32::try_from(local.ordinal)
                    .map_err(|_| "the number in the name is too large".to_owned())?,
            },
            cpu: entry.cpu.as_deref().map(cpu).unwrap_or_default(),
        }),
        DeviceKind::Gpu(_) => DeviceKind::Gpu(Gpu {
            model: entry.model.as_deref().map(gpu_model).transpose()?,
            sm: entry.sm,
            ranks: entry.ranks.iter().map(rank).collect(),
        }),
        DeviceKind::NvSwitch { .. } => DeviceKind::NvSwitch { generation: entry.generation },
        DeviceKind::Nic(_) => DeviceKind::Nic(entry.ports.iter().map(port).collect::<Result<_, _>>()?),
        other => other,
    })
}

fn gpu_model(id: &str) -> Result<&'static gpus::GpuModel, String> {
    gpus::by_id(id).ok_or_else(|| {
        let hint = did_you_mean(id, gpus::GPUS.iter().map(|model| model.id));
        format!(
            "the catalog has no GPU `{}`.{hint} `weft topo --list gpus` prints all; \
             for any other GPU, omit `model` and set `label`",
            excerpt(id)
        )
    })
}

fn class(text: &str) -> Result<PciClass, String> {
    let digits = text.strip_prefix("0x").filter(|digits| !digits.starts_with('+'));
    digits
        .and_then(|digits| u32::from_str_radix(digits, 16).ok())
        .map(PciClass)
        .ok_or_else(|| format!("`{}` is not a PCI class; write it as 0x030200", excerpt(text)))
}

fn cpu(entry: &CpuEntry) -> Cpu {
    Cpu { arch: entry.arch.clone(), vendor: entry.vendor.clone(), family: entry.family, model: entry.model }
}

fn rank(entry: &RankEntry) -> GpuRank {
    GpuRank { dev: entry.dev, rank: entry.rank, extra: entry.extra.clone() }
}

fn port(entry: &PortEntry) -> Result<Port, String> {
    Ok(Port {
        name: entry.name.clone(),
        network: entry.network,
        rate: Rate::from_bytes(bytes_per_second(entry.gb_per_s_each_way)?),
        extra: entry.extra.clone(),
    })
}

/// The entry of a device with that name.
pub(super) fn entry(device: &Device, name: String) -> DeviceEntry {
    let mut entry = DeviceEntry {
        name,
        label: device.label.clone(),
        bus: device.bus.map(|bus| bus.to_string().into()),
        class: device.class.map(|class| class.to_string().into()),
        extra: device.extra.clone(),
        ..DeviceEntry::default()
    };
    match &device.kind {
        DeviceKind::Numa(numa) => {
            entry.numa = Some(numa.id);
            entry.cpu = (numa.cpu != Cpu::default()).then(|| Box::new(cpu_entry(&numa.cpu)));
        }
        DeviceKind::Gpu(gpu) => {
            entry.model = gpu.model.map(|model| model.id.into());
            entry.sm = gpu.sm;
            entry.ranks = gpu.ranks.iter().map(rank_entry).collect();
        }
        DeviceKind::NvSwitch { generation } => entry.generation = *generation,
        DeviceKind::Nic(ports) => entry.ports = ports.iter().map(port_entry).collect(),
        DeviceKind::RootPort
        | DeviceKind::PcieSwitch
        | DeviceKind::Storage
        | DeviceKind::NetSwitch(_)
        | DeviceKind::PciFunction => {}
    }
    entry
}

fn cpu_entry(cpu: &Cpu) -> CpuEntry {
    CpuEntry { arch: cpu.arch.clone(), vendor: cpu.vendor.clone(), family: cpu.family, model: cpu.model }
}

fn rank_entry(rank: &GpuRank) -> RankEntry {
    RankEntry { dev: rank.dev, rank: rank.rank, extra: rank.extra.clone() }
}

fn port_entry(port: &Port) -> PortEntry {
    PortEntry {
        name: port.name.clone(),
        network: port.network,
        gb_per_s_each_way: port.rate.gb(),
        extra: port.extra.clone(),
    }
}
