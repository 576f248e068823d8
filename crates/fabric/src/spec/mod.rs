//! Cluster specs: a cluster in one line, such as `2x hgx-h100 + 8x ndr`.
//!
//! ```text
//! spec    = count "x" spaces system [ "+" nics "x" network ] { "," option }
//! count   = number of systems, 1 to 100000
//! system  = a system of the catalog                      `weft topo --list`
//! nics    = single-port network adapters per host, 1 to 64
//! network = a network of the catalog                     `weft topo --list links`
//! option  = "rail-optimised"        NIC 0 of every host on one leaf switch, NIC 1 on the next (the default)
//!         | "leaf-spine"            all NICs of a host on the same leaf switch
//!         | "oversubscribed" a ":" b   a units of bandwidth down from a leaf for b up, a >= b
//!         | "leaf-ports" n          ports of a leaf switch, up and down together, 2 to 1024
//! ```
//!
//! Spaces are allowed anywhere between the parts; the one after the first `x` is required. No preset has a space in its
//! name, so `2x-rtx4090` is a preset and `3x 2x-rtx4090` is three of them.
//!
//! | spec | meaning |
//! |---|---|
//! | `2x hgx-h100 + 8x ndr` | 16 GPUs, one NDR port each, eight rails |
//! | `16x hgx-a100 + 8x hdr, leaf-spine` | the NICs of a host together on one leaf |
//! | `128x gb200-nvl72 + 4x ndr, oversubscribed 2:1` | NICs are counted per host, and a rack has 18 |
//! | `2x p5` | cloud instances have their own NICs |
//! | `4x 2x-rtx4090 + 1x eth25` | four workstations on 25 Gb/s Ethernet |
//!
//! Printing normalizes a spec, and the result parses to an equal one:
//!
//! ```
//! use weftlink_fabric::ClusterSpec;
//! let spec: ClusterSpec = "2x hgx-h100+8xndr , oversubscribed 4:2".parse().unwrap();
//! assert_eq!(spec.to_string(), "2x hgx-h100 + 8x ndr, oversubscribed 2:1");
//! assert_eq!(spec.to_string().parse(), Ok(spec));
//! ```
//!
//! Deliberately absent: mixed systems, several networks, single slow links. Describe those in a file.

mod host;
mod parse;

pub use host::HostSpec;

use std::fmt;

use crate::catalog::systems::System;
use crate::link::{LinkKind, Network};

/// Systems in a spec.
pub const COUNT_MAX: u32 = 100_000;
/// GPUs in a spec.
pub const GPUS_MAX: u64 = 200_000;
/// NICs per host in a spec.
pub const NICS_PER_HOST_MAX: u32 = 64;
/// Ports of a leaf switch in a spec.
pub const LEAF_PORTS_MAX: u32 = 1024;
/// The larger side of an oversubscription ratio.
pub const OVERSUBSCRIPTION_MAX: u32 = 1000;

/// A cluster in one line: the number of systems, and the network between them. Parsing checks all limits.
#[derive(Debug, Clone)]
pub struct ClusterSpec {
    count: u32,
    system: &'static System,
    nics: Option<Nics>,
    layout: Layout,
    oversubscription: Oversubscription,
    leaf_ports: Option<u32>,
}

/// The network adapters that a spec adds to each host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nics {
    /// NICs per host, with one port each.
    pub per_host: u32,
    /// Their technology.
    pub network: Network,
    /// Gb/s of the port.
    pub gbit: u32,
}

impl Nics {
    /// The kind of their cables.
    pub fn link_kind(self) -> LinkKind {
        LinkKind::Network { network: self.network, gbit: self.gbit }
    }
}

/// Which leaf switch a NIC connects to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// NIC `r` of every host of a scalable unit connects to leaf `r` of that unit.
    #[default]
    RailOptimised,
    /// All NICs of a host connect to the same leaf.
    LeafSpine,
}

/// The ratio of a leaf's bandwidth toward hosts to its bandwidth toward the spine, in lowest terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Oversubscription {
    down: u32,
    up: u32,
}

impl Oversubscription {
    /// As much bandwidth up as down.
    pub const NONE: Self = Self { down: 1, up: 1 };

    /// The number of a leaf's ports that lead down; at least one leads down and one up.
    pub fn downlinks(self, leaf_ports: u32) -> u32 {
        (leaf_ports * self.down / (self.down + self.up)).clamp(1, leaf_ports - 1)
    }

    /// The uplinks of a leaf with `used` cables down, rounded up so that the ratio is not exceeded.
    pub fn uplinks(self, used: u32) -> u32 {
        (used * self.up).div_ceil(self.down).max(1)
    }
}

impl ClusterSpec {
    /// The number of systems.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The system.
    pub fn system(&self) -> &'static System {
        self.system
    }

    /// The number of GPUs in all.
    pub fn gpus(&self) -> u64 {
        u64::from(self.count) * self.system.fabric().gpus().len() as u64
    }

    /// The NICs that the spec adds to each host; none where the system has its own, or there is no network.
    pub fn nics(&self) -> Option<Nics> {
        self.nics
    }

    /// Which leaf a NIC connects to.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Bandwidth down to bandwidth up at a leaf.
    pub fn oversubscription(&self) -> Oversubscription {
        self.oversubscription
    }

    /// The ports of a leaf switch, where the spec gives them.
    pub fn leaf_ports(&self) -> Option<u32> {
        self.leaf_ports
    }
}

// The name identifies the system.
impl PartialEq for ClusterSpec {
    fn eq(&self, other: &Self) -> bool {
        let parts = |spec: &Self| {
            (spec.count, spec.system.name, spec.nics, spec.layout, spec.oversubscription, spec.leaf_ports)
        };
        parts(self) == parts(other)
    }
}
impl Eq for ClusterSpec {}

/// The canonical form: without defaults, options in the order of the grammar.
impl fmt::Display for ClusterSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x {}", self.count, self.system.name)?;
        if let Some(nics) = self.nics {
            write!(f, " + {}x {}", nics.per_host, nics.link_kind().id())?;
        }
        if self.layout == Layout::LeafSpine {
            f.write_str(", leaf-spine")?;
        }
        if self.oversubscription != Oversubscription::NONE {
            let Oversubscription { down, up } = self.oversubscription;
            write!(f, ", oversubscribed {down}:{up}")?;
        }
        if let Some(ports) = self.leaf_ports {
            write!(f, ", leaf-ports {ports}")?;
        }
        Ok(())
    }
}

/// A text is not a cluster spec. The message underlines the mistake and says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecError {
    text: String,
    /// Characters before the wrong part, and its length.
    place: (usize, usize),
    reason: String,
}

impl SpecError {
    /// The mistake and what to write instead, without the underlined text.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The wrong part of the text.
    pub fn wrong_part(&self) -> String {
        self.text.chars().skip(self.place.0).take(self.place.1).collect()
    }
}

impl std::error::Error for SpecError {}

/// The reason, then the text with the wrong part underlined.
impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Of longer texts only the part around the mistake is shown.
        const SHOWN_CHARS_MAX: usize = 100;
        let (before, wrong) = self.place;
        let skipped = if before + wrong > SHOWN_CHARS_MAX { before } else { 0 };
        let shown: String = self
            .text
            .chars()
            .skip(skipped)
            .take(SHOWN_CHARS_MAX)
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let marks = wrong.clamp(1, SHOWN_CHARS_MAX);
        write!(f, "{}\n  {shown}\n  {:indent$}{:^<marks$}", self.reason, "", "", indent = before - skipped)
    }
}

/// The PCIe generation and width of a slot that is fast enough for a port of `gbit` Gb/s, if there is one.
pub(crate) fn slot_for(gbit: u32) -> Option<(u8, u8)> {
    match gbit {
        0..=50 => Some((3, 8)),
        51..=100 => Some((3, 16)),
        101..=200 => Some((4, 16)),
        201..=400 => Some((5, 16)),
        401..=800 => Some((6, 16)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_splits_its_ports() {
        let two_to_one = Oversubscription { down: 2, up: 1 };
        assert_eq!(Oversubscription::NONE.downlinks(64), 32);
        assert_eq!(two_to_one.downlinks(64), 42);
        assert_eq!(two_to_one.downlinks(2), 1);
        let steep = Oversubscription { down: 1000, up: 1 };
        assert_eq!(steep.downlinks(64), 63);
        assert_eq!(steep.uplinks(63), 1);
        assert_eq!(two_to_one.uplinks(5), 3);
        assert_eq!(two_to_one.uplinks(0), 1);
    }
}
