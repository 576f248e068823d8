//! Paths inside a host over PCIe, C2C and the links between sockets.
//!
//! A path's type is that of its worst step. The best type wins, then the greatest width, then the fewest hops. Three
//! searches decide them in that order: a single search over all three could drop a prefix of the best path.
//!
//! Step types follow NCCL: an end device to a switch is PIX, switch to switch PXB, through a CPU from PCIe to PCIe PHB,
//! from C2C to PCIe P2C, from C2C to C2C C2C, between sockets SYS. The type of a step out of a CPU depends on how the path
//! arrived there, so the search runs over (device, arrived by C2C).

use std::collections::{BinaryHeap, VecDeque};

use crate::device::DeviceKind;
use crate::fabric::Fabric;
use crate::id::DeviceId;
use crate::link::LinkKind;

use super::kind::PathType;
use super::width::Width;

/// The path from a source to a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reach {
    pub(super) kind: PathType,
    pub(super) width: Width,
    /// The devices on the path, from source to target, by their numbers in the graph.
    pub(super) devices: Vec<u32>,
}

/// Devices connected by PCIe, C2C and inter-socket links.
#[derive(Debug)]
pub(super) struct LocalGraph {
    roles: Vec<Role>,
    edges: Vec<Vec<Edge>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Traffic ends here: GPUs, NICs, drives.
    End,
    Bridge,
    Cpu,
}

#[derive(Debug, Clone, Copy)]
struct Edge {
    target: u32,
    wire: Wire,
    width: Width,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    Pcie,
    C2c,
    Socket,
}

const LEVELS: [PathType; 6] =
    [PathType::C2c, PathType::Pix, PathType::Pxb, PathType::P2c, PathType::Phb, PathType::Sys];

impl LocalGraph {
    pub(super) fn of(fabric: &Fabric, members: &[DeviceId]) -> Self {
        let number = |id: DeviceId| members.binary_search(&id).ok().map(|index| index as u32);
        let role = |id: &DeviceId| match fabric.device(*id).kind {
            DeviceKind::Numa(_) => Role::Cpu,
            DeviceKind::RootPort | DeviceKind::PcieSwitch => Role::Bridge,
            _ => Role::End,
        };
        let edges_of = |id: &DeviceId| {
            let links = fabric.links_from(*id).iter();
            links.filter_map(|link| {
                let spec = fabric.spec(link);
                let wire = Self::wire(spec.kind)?;
                Some(Edge { target: number(link.target)?, wire, width: Width::of(spec, link.count) })
            })
        };
        Self {
            roles: members.iter().map(role).collect(),
            edges: members.iter().map(|id| edges_of(id).collect()).collect(),
        }
    }

    /// True for the links that these paths use.
    pub(super) fn uses(kind: LinkKind) -> bool {
        Self::wire(kind).is_some()
    }

    fn wire(kind: LinkKind) -> Option<Wire> {
        match kind {
            LinkKind::Pcie { .. } => Some(Wire::Pcie),
            LinkKind::C2c => Some(Wire::C2c),
            LinkKind::Socket(_) => Some(Wire::Socket),
            _ => None,
        }
    }

    /// The best path from one device to every other.
    pub(super) fn reach_from(&self, source: u32) -> Vec<Option<Reach>> {
        let mut reached: Vec<Option<Reach>> = vec![None; self.roles.len()];
        for level in LEVELS {
            let widest = self.widest(source, level);
            let mut open: Vec<(u64, u32)> = Vec::new();
            for device in 0..self.roles.len() as u32 {
                if device != source
                    && reached[device as usize].is_none()
                    && let Some(width) = self.arrivals(device, level).filter_map(|state| widest[state]).max()
                {
                    open.push((width, device));
                }
            }
            open.sort_unstable();
            for same_width in open.chunk_by(|a, b| a.0 == b.0) {
                let came_from = self.shortest(source, level, same_width[0].0);
                for &(_, device) in same_width {
                    reached[device as usize] = self.walk_back(source, device, level, &came_from);
                }
            }
            if reached.iter().enumerate().all(|(device, reach)| reach.is_some() || device as u32 == source) {
                break;
            }
        }
        reached
    }

    /// The states in which a path may end at a device: at a CPU by PCIe only where PHB is allowed.
    fn arrivals(&self, device: u32, level: PathType) -> impl Iterator<Item = usize> {
        let by_pcie = self.roles[device as usize] != Role::Cpu || level >= PathType::Phb;
        [state(device, false), state(device, true)].into_iter().skip(usize::from(!by_pcie))
    }

    /// The steps from a state that are no worse than `level`.
    fn steps(&self, from: usize, source: u32, level: PathType) -> impl Iterator<Item = (usize, &Edge)> {
        let device = (from / 2) as u32;
        let by_c2c = from % 2 == 1;
        let role = self.roles[device as usize];
        // Only the source of a path leaves an end device.
        let edges =
            if role == Role::End && device != source { &[] } else { self.edges[device as usize].as_slice() };
        edges.iter().filter_map(move |edge| {
            let target_role = self.roles[edge.target as usize];
            let kind = match edge.wire {
                Wire::Socket => PathType::Sys,
                Wire::C2c if role == Role::Cpu && !by_c2c && device != source => PathType::P2c,
                Wire::C2c => PathType::C2c,
                Wire::Pcie if role == Role::Cpu => {
                    if by_c2c {
                        PathType::P2c
                    } else {
                        PathType::Phb
                    }
                }
                Wire::Pcie if role == Role::Bridge && target_role == Role::Bridge => PathType::Pxb,
                Wire::Pcie => PathType::Pix,
            };
            let arrived_by_c2c = edge.wire == Wire::C2c && target_role == Role::Cpu;
            (kind <= level).then(|| (state(edge.target, arrived_by_c2c), edge))
        })
    }

    /// The width of the widest path to every state, by steps no worse than `level`.
    fn widest(&self, source: u32, level: PathType) -> Vec<Option<u64>> {
        let mut widths: Vec<Option<u64>> = vec![None; self.roles.len() * 2];
        let start = state(source, false);
        widths[start] = Some(u64::MAX);
        let mut heap = BinaryHeap::from([(u64::MAX, start)]);
        while let Some((width, from)) = heap.pop() {
            if widths[from] != Some(width) {
                continue;
            }
            for (to, edge) in self.steps(from, source, level) {
                let through = width.min(edge.width.effective.bytes_per_second());
                if widths[to].is_none_or(|known| through > known) {
                    widths[to] = Some(through);
                    heap.push((through, to));
                }
            }
        }
        widths
    }

    /// For every state, its predecessor on a path of fewest hops over links of at least `width`, and the link between
    /// the two.
    fn shortest(&self, source: u32, level: PathType, width: u64) -> Vec<Option<(usize, Width)>> {
        let mut came_from = vec![None; self.roles.len() * 2];
        let start = state(source, false);
        came_from[start] = Some((start, Width::UNLIMITED));
        let mut queue = VecDeque::from([start]);
        while let Some(from) = queue.pop_front() {
            for (to, edge) in self.steps(from, source, level) {
                if edge.width.effective.bytes_per_second() >= width && came_from[to].is_none() {
                    came_from[to] = Some((from, edge.width));
                    queue.push_back(to);
                }
            }
        }
        came_from
    }

    fn walk_back(
        &self,
        source: u32,
        target: u32,
        level: PathType,
        came_from: &[Option<(usize, Width)>],
    ) -> Option<Reach> {
        let path_to = |end: usize| {
            let mut reach = Reach { kind: level, width: Width::UNLIMITED, devices: vec![target] };
            let mut at = end;
            while at != state(source, false) {
                let (before, width) = came_from[at]?;
                reach.devices.push((before / 2) as u32);
                reach.width = reach.width.then(width);
                at = before;
            }
            reach.devices.reverse();
            Some(reach)
        };
        self.arrivals(target, level).filter_map(path_to).min_by_key(|reach| reach.devices.len())
    }
}

fn state(device: u32, by_c2c: bool) -> usize {
    device as usize * 2 + usize::from(by_c2c)
}
