//! NCCL's path types.

use std::fmt;

/// The type of a path, given by its worst part, in NCCL's order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PathType {
    /// The same device.
    Loc,
    /// NVLink (or xGMI, Xe Link, UALink), directly or through switches.
    Nvl,
    /// NVLink through one other GPU.
    Nvb,
    /// NVLink-C2C through a CPU.
    C2c,
    /// At most one PCIe switch.
    Pix,
    /// Several PCIe switches, but no host bridge.
    Pxb,
    /// From a GPU over C2C to its CPU, and from there over PCIe.
    P2c,
    /// To a NIC through the NVLink peer next to it.
    Pxn,
    /// A PCIe host bridge.
    Phb,
    /// Between NUMA nodes.
    Sys,
    /// The network.
    Net,
    /// No path at all.
    Dis,
}

impl PathType {
    /// Every type, best first.
    pub const ALL: [Self; 12] = [
        Self::Loc,
        Self::Nvl,
        Self::Nvb,
        Self::C2c,
        Self::Pix,
        Self::Pxb,
        Self::P2c,
        Self::Pxn,
        Self::Phb,
        Self::Sys,
        Self::Net,
        Self::Dis,
    ];

    /// NCCL's three letters.
    pub fn name(self) -> &'static str {
        ["LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS"][self as usize]
    }

    /// The meaning of the letters.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Loc => "the device itself",
            Self::Nvl => "NVLink, xGMI, Xe Link or UALink, directly or through switches",
            Self::Nvb => "NVLink through one other GPU",
            Self::C2c => "NVLink-C2C through a CPU",
            Self::Pix => "at most one PCIe switch",
            Self::Pxb => "several PCIe switches, no host bridge",
            Self::P2c => "C2C to the CPU, then PCIe",
            Self::Pxn => "NVLink to the GPU beside the NIC, then PCIe",
            Self::Phb => "a PCIe host bridge (the CPU)",
            Self::Sys => "the link between NUMA nodes",
            Self::Net => "the network",
            Self::Dis => "no path",
        }
    }
}

impl fmt::Display for PathType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
