//! Devices: the ends of links.

use std::fmt;
use std::str::FromStr;

use crate::gpu_model::GpuModel;
pub use crate::id::{DeviceId, HostId};
use crate::link::Network;
use crate::rate::{Link, OneWay, Rate};

/// One operating system: the devices whose memory and buses one kernel manages.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Host {
    /// Unique within the fabric.
    pub name: String,
    /// Its system in the catalog, where known.
    pub system: Option<String>,
}

/// A PCI address: domain, bus, device and function, as NCCL packs them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BusId(u64);

impl BusId {
    /// From its parts; `function` keeps 4 bits.
    pub const fn new(domain: u32, bus: u8, device: u8, function: u8) -> Self {
        Self((domain as u64) << 20 | (bus as u64) << 12 | (device as u64) << 4 | (function & 0xf) as u64)
    }

    /// The PCI domain.
    pub const fn domain(self) -> u64 {
        self.0 >> 20
    }
}

/// `0000:17:00.0`
impl fmt::Display for BusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v = self.0;
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", v >> 20, v >> 12 & 0xff, v >> 4 & 0xff, v & 0xf)
    }
}

impl fmt::Debug for BusId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text is not a PCI address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a PCI bus id; write it as 0000:17:00.0")]
pub struct ParseBusIdError(String);

impl FromStr for BusId {
    type Err = ParseBusIdError;

    /// Accepts what NCCL accepts: hexadecimal digits, with `:` and `.` between them, and a domain of any width. An
    /// 8-digit domain, as NVML prints it, is the same address as the 4-digit one.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || ParseBusIdError(text.chars().take(40).collect());
        let mut packed = 0_u64;
        let mut digits = 0;
        for c in text.chars() {
            if c == ':' || c == '.' {
                continue;
            }
            let digit = c.to_digit(16).ok_or_else(bad)?;
            packed = packed.checked_mul(16).ok_or_else(bad)? | u64::from(digit);
            digits += 1;
        }
        if digits == 0 { Err(bad()) } else { Ok(Self(packed)) }
    }
}

/// The class code of a PCI function, such as `0x030200` for a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PciClass(pub u32);

impl PciClass {
    /// PCI-to-PCI bridge.
    pub const BRIDGE: Self = Self(0x06_04_00);
    /// An NVSwitch ("other bridge").
    pub const NVSWITCH: Self = Self(0x06_80_00);
    /// A GPU without display.
    pub const GPU: Self = Self(0x03_02_00);
    /// An Ethernet adapter.
    pub const ETHERNET: Self = Self(0x02_00_00);
    /// An InfiniBand adapter.
    pub const INFINIBAND: Self = Self(0x02_07_00);
    /// An NVMe drive.
    pub const NVME: Self = Self(0x01_08_02);

    /// The leading byte: the base class.
    pub fn base(self) -> u8 {
        (self.0 >> 16) as u8
    }

    /// True for PCI-to-PCI bridges.
    pub fn is_bridge(self) -> bool {
        self.0 >> 8 == 0x0604
    }

    /// True for display and processing accelerators.
    pub fn is_gpu(self) -> bool {
        self.base() == 0x03 || self.base() == 0x12
    }
}

impl fmt::Display for PciClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

/// The identity of a CPU.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Cpu {
    /// `x86_64`, `arm64`, `ppc64`.
    pub arch: Option<Box<str>>,
    /// As in `/proc/cpuinfo`: `GenuineIntel`, `AuthenticAMD`.
    pub vendor: Option<Box<str>>,
    /// CPU family.
    pub family: Option<u32>,
    /// CPU model.
    pub model: Option<u32>,
}

/// A NUMA node: some cores, their memory, and a PCIe root complex.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Numa {
    /// The kernel's number; -1 where unknown.
    pub id: i32,
    /// Its CPU.
    pub cpu: Cpu,
}

/// A rank that uses a GPU, as a topology file records it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct GpuRank {
    /// NVML's index of the GPU.
    pub dev: Option<i32>,
    /// The rank.
    pub rank: Option<i32>,
    /// Further attributes, in the file's order.
    pub extra: Attributes,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Gpu {
    /// Its model in the catalog, where known.
    pub model: Option<&'static GpuModel>,
    /// Compute capability times ten, where known: 90 for Hopper.
    pub sm: Option<u32>,
    /// The ranks a topology file puts on it. Empty where the file describes the PCI function only; NCCL then fills the
    /// GPU in when it loads the file.
    pub ranks: Vec<GpuRank>,
}

/// A network port of a NIC.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Port {
    /// The kernel's name, such as `mlx5_0`.
    pub name: Option<Box<str>>,
    /// The technology, where known.
    pub network: Option<Network>,
    /// Line rate each way.
    pub rate: Rate<Link, OneWay>,
    /// Further attributes of a topology file, in its order.
    pub extra: Attributes,
}

/// The tier of a network switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tier {
    /// Connects NICs.
    Leaf,
    /// Connects leaves. One device represents a whole non-blocking layer, however many switches it takes; the links
    /// that lead to it may be oversubscribed.
    Spine,
}

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// A NUMA node.
    Numa(Numa),
    /// A port of a PCIe root complex.
    RootPort,
    /// A PCIe switch.
    PcieSwitch,
    /// A GPU.
    Gpu(Gpu),
    /// An NVSwitch chip, or a switch tray whose inner wiring is not public.
    NvSwitch {
        /// 1 (DGX-2) to 4 (NVLink 5 switch), where known.
        generation: Option<u8>,
    },
    /// A network adapter and its ports.
    Nic(Vec<Port>),
    /// A drive.
    Storage,
    /// A network switch.
    NetSwitch(Tier),
    /// Any other PCI function.
    PciFunction,
}

impl DeviceKind {
    /// The first part of a device's name: `gpu` in `gpu3`.
    pub fn stem(&self) -> &'static str {
        match self {
            Self::Numa(_) => "numa",
            Self::RootPort => "port",
            Self::PcieSwitch => "pcie",
            Self::Gpu(_) => "gpu",
            Self::NvSwitch { .. } => "nvswitch",
            Self::Nic(_) => "nic",
            Self::Storage => "nvme",
            Self::NetSwitch(Tier::Leaf) => "leaf",
            Self::NetSwitch(Tier::Spine) => "spine",
            Self::PciFunction => "pci",
        }
    }

    /// The catalog's model, if this is a GPU that the catalog knows.
    pub fn gpu_model(&self) -> Option<&'static GpuModel> {
        match self {
            Self::Gpu(gpu) => gpu.model,
            _ => None,
        }
    }
}

/// Attribute names and values of a file that Weft passes on without reading them.
pub type Attributes = Vec<(Box<str>, Box<str>)>;

/// A device of a fabric.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Device {
    /// The host it belongs to; none for switches between hosts.
    pub host: Option<HostId>,
    /// Its number among its host's devices of the same stem.
    pub ordinal: u32,
    /// What it is.
    pub kind: DeviceKind,
    /// Its PCI address.
    pub bus: Option<BusId>,
    /// Its PCI class.
    pub class: Option<PciClass>,
    /// The machine's name for it, such as `nvme0n1` or `NVIDIA H200`.
    pub label: Option<Box<str>>,
    /// Further attributes of a topology file, in its order.
    pub extra: Attributes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ids_read_as_nccl_reads_them() {
        for (text, shown) in [
            ("0000:17:00.0", "0000:17:00.0"),
            ("00000000:17:00.0", "0000:17:00.0"),
            ("ffff:ff:01.0", "ffff:ff:01.0"),
            ("10000:E1:1c.3", "10000:e1:1c.3"),
        ] {
            assert_eq!(text.parse::<BusId>().unwrap().to_string(), shown);
        }
        assert_eq!("0000:3b:1f.7".parse(), Ok(BusId::new(0, 0x3b, 0x1f, 7)));
        for text in ["", ":.", "hello", "ffff:ffff:ffff:ffff:ff", "-1"] {
            assert!(text.parse::<BusId>().is_err(), "{text}");
        }
    }
}
