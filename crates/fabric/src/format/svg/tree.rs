//! The positions of a host's devices: the PCIe tree, from GPUs at the top to CPUs at the bottom.
//!
//! NICs are on the side away from the centre of their CPU, so that a line can leave the host past the CPU.

use std::collections::{BTreeMap, BTreeSet};

use super::canvas::{Block, Look, Rect};
use super::host::{Metrics, block};
use super::scene::{Edge, Scene};
use super::words;
use crate::id::DeviceId;
use crate::link::LinkKind;

/// Half the gap between NICs below a switch, for the line to its CPU.
const TRUNK_HALF: f64 = 5.0;

/// A device of the PCIe tree and its children.
#[derive(Debug)]
pub(super) struct Branch {
    /// None for the root of the devices without a CPU.
    pub(super) device: Option<DeviceId>,
    /// 0 for a CPU.
    depth: usize,
    /// Switches and GPUs, in order.
    children: Vec<Child>,
    /// NICs, drives and other devices on either side, equal ones bundled.
    left: Vec<Vec<DeviceId>>,
    right: Vec<Vec<DeviceId>>,
}

#[derive(Debug)]
enum Child {
    Gpu(DeviceId),
    Branch(Branch),
}

pub(super) struct Tree<'s, 'a> {
    pub(super) scene: &'s Scene<'a>,
    pub(super) metrics: &'s Metrics,
    pub(super) roots: Vec<Branch>,
    pub(super) gpus: BTreeMap<DeviceId, Rect>,
    pub(super) placed: Vec<Block>,
    /// The lowest edge of the devices below a device.
    pub(super) lowest: BTreeMap<DeviceId, f64>,
    /// The blocks in the row of the CPUs, sorted by left edge, each with the smallest right edge among itself and those
    /// after it.
    beside_cpus: Vec<(f64, f64)>,
    /// Top of the row of each depth.
    rows: Vec<f64>,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl<'s, 'a> Tree<'s, 'a> {
    pub(super) fn new(scene: &'s Scene<'a>, devices: &[DeviceId], metrics: &'s Metrics) -> Self {
        let within: BTreeSet<DeviceId> = devices.iter().copied().collect();
        let mut by_parent: BTreeMap<Option<DeviceId>, Vec<DeviceId>> = BTreeMap::new();
        for &id in devices.iter().filter(|&&id| scene.look(id) != Look::NvSwitch) {
            let parent = scene.parent(id).filter(|parent| within.contains(parent));
            by_parent.entry(parent).or_default().push(id);
        }
        let tops = by_parent.remove(&None).unwrap_or_default();
        let (cpus, loose): (Vec<DeviceId>, Vec<DeviceId>) =
            tops.into_iter().partition(|&id| scene.look(id) == Look::Cpu);
        let mut tree = Self {
            scene,
            metrics,
            roots: Vec::new(),
            gpus: BTreeMap::new(),
            placed: Vec::new(),
            lowest: BTreeMap::new(),
            beside_cpus: Vec::new(),
            rows: Vec::new(),
            width: 0.0,
            height: 0.0,
        };
        let mut roots: Vec<Branch> =
            cpus.iter().map(|&cpu| tree.branch(Some(cpu), 0, &mut by_parent, true)).collect();
        if !loose.is_empty() {
            by_parent.insert(None, loose);
            roots.push(tree.branch(None, 0, &mut by_parent, true));
        }
        tree.roots = roots;
        tree
    }

    /// `leftward`: whether the branch is left of its CPU's centre, which decides the side of its NICs.
    fn branch(
        &self,
        device: Option<DeviceId>,
        depth: usize,
        by_parent: &mut BTreeMap<Option<DeviceId>, Vec<DeviceId>>,
        leftward: bool,
    ) -> Branch {
        let below = by_parent.remove(&device).unwrap_or_default();
        let (children, sides): (Vec<DeviceId>, Vec<DeviceId>) =
            below.into_iter().partition(|&id| matches!(self.scene.look(id), Look::Gpu | Look::PcieSwitch));
        let half = children.len().div_ceil(2);
        let children = children
            .into_iter()
            .enumerate()
            .map(|(index, id)| match self.scene.look(id) {
                Look::Gpu => Child::Gpu(id),
                _ => {
                    let leftward = if depth == 0 { index < half } else { leftward };
                    Child::Branch(self.branch(Some(id), depth + 1, by_parent, leftward))
                }
            })
            .collect();
        let mut left = self.bundled(&sides);
        let mut right = left.split_off(left.len().div_ceil(2));
        let nics = sides.iter().filter(|&&id| self.scene.look(id) == Look::Nic).count();
        if !leftward && nics > 0 && nics < sides.len() {
            std::mem::swap(&mut left, &mut right);
        }
        Branch { device, depth, children, left, right }
    }

    /// NICs first; many equal NICs are one bundle, and equal drives always are.
    fn bundled(&self, sides: &[DeviceId]) -> Vec<Vec<DeviceId>> {
        let mut kinds: BTreeMap<(Look, String), Vec<DeviceId>> = BTreeMap::new();
        for &id in sides {
            let (_, detail) = words::caption(self.scene, id);
            kinds.entry((self.scene.look(id), detail)).or_default().push(id);
        }
        let mut bundles = Vec::new();
        for ((look, _), members) in kinds {
            if look == Look::Nic && members.len() <= self.metrics.nics_shown {
                bundles.extend(members.into_iter().map(|id| vec![id]));
            } else {
                bundles.push(members);
            }
        }
        bundles
    }

    pub(super) fn place(&mut self) {
        let roots = std::mem::take(&mut self.roots);
        let metrics = self.metrics;
        let deepest = roots.iter().map(Branch::deepest).max().unwrap_or(0);
        self.rows = vec![0.0; deepest + 1];
        let has_gpus = roots.iter().any(Branch::has_gpus);
        let mut y = if has_gpus { metrics.gpu.1 } else { 0.0 };
        for depth in (0..=deepest).rev() {
            let shown = depth > 0 || roots.iter().any(|root| root.device.is_some());
            if shown && y > 0.0 {
                y += metrics.row_gap;
            }
            self.rows[depth] = y;
            let row = match depth {
                _ if !shown => 0.0,
                0 => metrics.cpu.1,
                _ => metrics.switch.1,
            };
            let with_sides = |box_height: f64| box_height + self.side_drop() + metrics.small.1;
            let mut height = row;
            // Devices without a CPU have a root of zero height.
            if depth == 0 && roots.iter().any(|root| root.device.is_none() && root.has_sides(0)) {
                height = height.max(with_sides(0.0));
            }
            let boxed = |root: &&Branch| depth > 0 || root.device.is_some();
            if !metrics.beside && roots.iter().filter(boxed).any(|root| root.has_sides(depth)) {
                height = with_sides(row);
            }
            y += height;
        }
        let mut x = 0.0;
        for root in &roots {
            self.place_branch(root, x);
            x += self.span(root) + 2.0 * metrics.gap;
        }
        self.width = (x - 2.0 * metrics.gap).max(0.0);
        self.narrow_cpus();
        let rects = self.rects();
        let cpus: Vec<DeviceId> = roots.iter().filter_map(|root| root.device).collect();
        self.index(&rects, cpus.first().and_then(|cpu| rects.get(cpu)));
        self.height = y + self.room_for_bows(&cpus, &rects);
        self.roots = roots;
    }

    /// The distance from a switch to the row of its NICs below it.
    fn side_drop(&self) -> f64 {
        self.metrics.row_gap * 0.5
    }

    fn box_size(&self, branch: &Branch) -> (f64, f64) {
        match (branch.device, branch.depth) {
            (None, _) => (0.0, 0.0),
            (_, 0) => self.metrics.cpu,
            _ => self.metrics.switch,
        }
    }

    fn span(&self, branch: &Branch) -> f64 {
        let (left, right) = self.reach(branch);
        left + right
    }

    /// The extent of a branch to the left and to the right of its box's centre.
    fn reach(&self, branch: &Branch) -> (f64, f64) {
        let pitch = self.metrics.small.0 + self.side_gap();
        let half = self.children_span(branch).max(0.0) / 2.0;
        let own = self.box_size(branch).0 / 2.0;
        let side = |sides: &[Vec<DeviceId>]| match sides.len() as f64 * pitch {
            0.0 => half.max(own),
            row if self.is_beside(branch) => half.max(own + row),
            row => half.max(own).max(row + TRUNK_HALF - self.side_gap()),
        };
        (side(&branch.left), side(&branch.right))
    }

    fn children_span(&self, branch: &Branch) -> f64 {
        branch.children.iter().map(|child| self.child_span(child)).sum::<f64>() - self.metrics.gap
    }

    fn side_gap(&self) -> f64 {
        self.metrics.gap * 0.6
    }

    fn is_beside(&self, branch: &Branch) -> bool {
        self.metrics.beside && branch.device.is_some()
    }

    fn place_branch(&mut self, branch: &Branch, x: f64) {
        let metrics = self.metrics;
        let reach = self.reach(branch);
        let middle = x + reach.0;
        let size = self.box_size(branch);
        let rect = Rect::new(middle - size.0 / 2.0, self.rows[branch.depth], size);
        if let Some(id) = branch.device {
            self.placed.push(block(self.scene, &[id], rect, metrics.font));
        }
        let (near, y) = if self.is_beside(branch) {
            (rect.w / 2.0 + self.side_gap(), rect.cy() - metrics.small.1 / 2.0)
        } else {
            (TRUNK_HALF, rect.bottom() + self.side_drop())
        };
        let pitch = metrics.small.0 + self.side_gap();
        for (index, members) in branch.left.iter().rev().enumerate() {
            let x = middle - near - metrics.small.0 - pitch * index as f64;
            self.put_side(members, Rect::new(x, y, metrics.small));
        }
        for (index, members) in branch.right.iter().enumerate() {
            let x = middle + near + pitch * index as f64;
            self.put_side(members, Rect::new(x, y, metrics.small));
        }
        let inner = self.children_span(branch);
        // Spare width goes between GPUs, up to half a GPU each.
        let gaps = (branch.children.len().max(1) - 1) as f64;
        let only_gpus = branch.children.iter().all(|child| matches!(child, Child::Gpu(_)));
        let spare = (2.0 * reach.0.min(reach.1) - inner) / gaps.max(1.0);
        let spread = if only_gpus { spare.clamp(0.0, metrics.gpu.0 * 0.5) } else { 0.0 };
        let mut at = middle - inner / 2.0 - spread * gaps / 2.0;
        for child in &branch.children {
            match child {
                Child::Gpu(id) => {
                    self.gpus.insert(*id, Rect::new(at, 0.0, metrics.gpu));
                }
                Child::Branch(branch) => {
                    self.place_branch(branch, at);
                }
            }
            at += self.child_span(child) + spread;
        }
    }

    fn child_span(&self, child: &Child) -> f64 {
        match child {
            Child::Gpu(_) => self.metrics.gpu.0 + self.metrics.gap,
            Child::Branch(branch) => self.span(branch) + 1.5 * self.metrics.gap,
        }
    }

    fn put_side(&mut self, members: &[DeviceId], rect: Rect) {
        let block = block(self.scene, members, rect, self.metrics.font * 0.88);
        self.placed.push(block);
    }

    /// The depth of the arch between two CPUs that are `apart` places apart.
    pub(super) fn bow(&self, apart: usize) -> f64 {
        if apart < 2 { 0.0 } else { self.metrics.row_gap * 0.3 * apart as f64 }
    }

    /// The position of every placed device.
    pub(super) fn rects(&self) -> BTreeMap<DeviceId, Rect> {
        let blocks = self.placed.iter();
        blocks.flat_map(|block| block.members.iter().map(|&id| (id, block.rect))).collect()
    }

    /// Computes `lowest` and `beside_cpus`, which are read once for each line.
    fn index(&mut self, rects: &BTreeMap<DeviceId, Rect>, cpu: Option<&Rect>) {
        for block in &self.placed {
            for parent in block.members.iter().filter_map(|&id| self.scene.parent(id)) {
                if rects.get(&parent).is_some_and(|above| block.rect.y >= above.bottom()) {
                    let lowest = self.lowest.entry(parent).or_insert(block.rect.bottom());
                    *lowest = lowest.max(block.rect.bottom());
                }
            }
        }
        // All CPUs are in one row and of the same height.
        let level = |rect: &Rect| cpu.is_some_and(|cpu| rect.y < cpu.bottom() && cpu.y < rect.bottom());
        let beside = self.placed.iter().map(|block| block.rect).filter(level);
        self.beside_cpus = beside.map(|rect| (rect.x, rect.right())).collect();
        self.beside_cpus.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut first_end = f64::MAX;
        for (_, end) in self.beside_cpus.iter_mut().rev() {
            first_end = first_end.min(*end);
            *end = first_end;
        }
    }

    /// The height of the deepest arch between CPUs.
    fn room_for_bows(&self, cpus: &[DeviceId], rects: &BTreeMap<DeviceId, Rect>) -> f64 {
        let mut deepest = 0.0_f64;
        for (i, a) in cpus.iter().enumerate() {
            for (j, b) in cpus.iter().enumerate().skip(i + 1) {
                if let (Some(_), Some(&from), Some(&to)) =
                    (self.scene.between(*a, *b).next(), rects.get(a), rects.get(b))
                {
                    deepest = deepest.max(self.bow(self.places_apart(from, to, j - i)));
                }
            }
        }
        deepest * 0.75
    }

    /// The distance of two CPUs in places; at least 2 if a block is between them.
    pub(super) fn places_apart(&self, from: Rect, to: Rect, places: usize) -> usize {
        let after = self.beside_cpus.partition_point(|(x, _)| *x < from.right());
        let something_between = self.beside_cpus.get(after).is_some_and(|(_, first_end)| *first_end <= to.x);
        if something_between { places.max(2) } else { places }
    }

    fn is_cabled(&self, nics: &[DeviceId]) -> bool {
        let network = |edge: &Edge| matches!(edge.kind, LinkKind::Network { .. });
        nics.iter().any(|&nic| self.scene.edges_of(nic).any(network))
    }

    /// Narrows CPUs so that the lines of NICs above them pass on both sides.
    fn narrow_cpus(&mut self) {
        let nics: Vec<Rect> = self
            .placed
            .iter()
            .filter(|block| block.look == Look::Nic && self.is_cabled(&block.members))
            .map(|block| block.rect)
            .collect();
        for cpu in self.placed.iter_mut().filter(|block| block.look == Look::Cpu) {
            let middle = cpu.rect.cx();
            let free = nics
                .iter()
                .filter(|nic| nic.bottom() <= cpu.rect.y)
                .map(|nic| ((nic.cx() - middle).abs() - 5.0) * 2.0)
                .fold(cpu.rect.w, f64::min)
                .max(cpu.rect.w * 0.5);
            cpu.rect = Rect::new(middle - free / 2.0, cpu.rect.y, (free, cpu.rect.h));
        }
    }
}

impl Branch {
    fn branches(&self) -> impl Iterator<Item = &Branch> {
        self.children.iter().filter_map(|child| match child {
            Child::Branch(branch) => Some(branch),
            Child::Gpu(_) => None,
        })
    }

    fn deepest(&self) -> usize {
        self.branches().map(Self::deepest).max().unwrap_or(self.depth)
    }

    fn has_gpus(&self) -> bool {
        self.children.iter().any(|child| match child {
            Child::Gpu(_) => true,
            Child::Branch(branch) => branch.has_gpus(),
        })
    }

    fn has_sides(&self, depth: usize) -> bool {
        let own = self.depth == depth && !(self.left.is_empty() && self.right.is_empty());
        own || self.branches().any(|branch| branch.has_sides(depth))
    }
}
