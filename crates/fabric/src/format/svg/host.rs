//! One host: GPUs in a row with what joins them above, the PCIe tree below with CPUs as its roots.
//!
//! NICs stand on the side away from their CPU's middle, so that a line can leave the host downwards past the CPU.

use std::collections::{BTreeMap, BTreeSet};

use super::canvas::{Block, Look, Panel, Picture, Rect, Step, Tag, Wire, sway};
use super::paint::{Tone, text_width};
use super::scene::{Edge, Scene};
use super::{bands, mesh, words};
use crate::device::{DeviceId, HostId};

/// Sizes at one level of detail.
#[derive(Debug, Clone, Copy)]
pub(super) struct Metrics {
    pub(super) gpu: (f64, f64),
    pub(super) small: (f64, f64),
    pub(super) switch: (f64, f64),
    pub(super) cpu: (f64, f64),
    pub(super) chip: (f64, f64),
    pub(super) gap: f64,
    pub(super) row_gap: f64,
    pub(super) font: f64,
    /// NICs and drives stand beside their switch, not below it.
    pub(super) beside: bool,
    /// Alike NICs of one switch are drawn as one block past this many.
    pub(super) nics_shown: usize,
}

/// Draws what a host holds, without a frame. `drives` is false where hosts are many and the network is the subject.
pub(super) fn host(scene: &Scene, host: Option<HostId>, metrics: &Metrics, drives: bool) -> Picture {
    let devices: Vec<DeviceId> = scene
        .devices(host)
        .iter()
        .copied()
        .filter(|&id| drives || !matches!(scene.look(id), Look::Drive | Look::Other))
        .filter(|&id| scene.look(id) != Look::NetSwitch)
        .collect();
    let mut tree = Tree::new(scene, &devices, metrics);
    tree.place();
    let mut picture = Picture::default();
    let mut gpus = std::mem::take(&mut tree.gpus);
    let sideways = mesh::direct_links(scene, &mut gpus, metrics, &mut picture);
    let chips: Vec<DeviceId> =
        devices.iter().copied().filter(|&id| scene.look(id) == Look::NvSwitch).collect();
    bands::above(scene, &chips, &gpus, metrics, &mut picture);
    let ids: Vec<DeviceId> = gpus.keys().copied().collect();
    if let Some((word, _)) = words::no_fabric(scene, &ids) {
        no_fabric_tag(&gpus, word, metrics, &mut picture);
    }
    tree.wire_up(&gpus, &sideways, &mut picture);
    for (&id, &rect) in &gpus {
        picture.blocks.push(block(scene, &[id], rect, metrics.font));
    }
    let above = picture.h;
    let height = above + tree.height;
    let width = tree.width;
    picture = picture.shifted(0.0, above);
    (picture.w, picture.h) = (width, height);
    picture
}

/// Puts a titled frame around a drawing.
pub(super) fn framed(inner: Picture, title: &str, detail: &str, font: f64) -> Picture {
    let pad = (font * 1.9 - 12.0).clamp(6.0, 16.0);
    let head = if title.is_empty() { pad } else { font * 2.5 };
    let least = text_width(&format!("{title}   {detail}"), font).min(420.0);
    let w = (inner.w + 2.0 * pad).max(least);
    let h = inner.h + head + pad;
    let dx = (w - inner.w) / 2.0;
    let mut picture = Picture { w, h, ..Picture::default() };
    picture.panels.push(Panel {
        rect: Rect::new(0.0, 0.0, (w, h)),
        tone: None,
        title: title.to_owned(),
        detail: detail.to_owned(),
        font,
    });
    picture.absorb(inner.shifted(dx, head));
    picture
}

/// A block for one device, or for several alike.
pub(super) fn block(scene: &Scene, members: &[DeviceId], rect: Rect, font: f64) -> Block {
    let (title, mut detail) = words::plural_caption(scene, members);
    if rect.h < font * 2.4 {
        detail.clear();
    }
    Block {
        rect,
        look: members.first().map_or(Look::Other, |&id| scene.look(id)),
        title,
        detail,
        font,
        members: members.to_vec(),
    }
}

fn no_fabric_tag(gpus: &BTreeMap<DeviceId, Rect>, text: String, metrics: &Metrics, picture: &mut Picture) {
    let left = gpus.values().map(|rect| rect.cx()).fold(f64::MAX, f64::min);
    let right = gpus.values().map(|rect| rect.cx()).fold(f64::MIN, f64::max);
    let font = metrics.font * 0.9;
    picture.tags.push(Tag { at: ((left + right) / 2.0, -font * 1.6), text, tone: Tone::Socket, font });
    picture.h = picture.h.max(font * 3.0);
}

/// A device of the PCIe tree and what hangs from it.
#[derive(Debug)]
struct Branch {
    /// Absent for the root of what hangs from no CPU.
    device: Option<DeviceId>,
    /// 0 for a CPU.
    depth: usize,
    /// Switches and GPUs, in order.
    limbs: Vec<Limb>,
    /// NICs, drives and the like, those alike together; split at `outer` into left and right.
    left: Vec<Vec<DeviceId>>,
    right: Vec<Vec<DeviceId>>,
}

#[derive(Debug)]
enum Limb {
    Gpu(DeviceId),
    Branch(Branch),
}

struct Tree<'s, 'a> {
    scene: &'s Scene<'a>,
    metrics: &'s Metrics,
    roots: Vec<Branch>,
    gpus: BTreeMap<DeviceId, Rect>,
    placed: Vec<Block>,
    /// Top of the row of each depth, and whether a row of NICs lies below it.
    rows: Vec<f64>,
    width: f64,
    height: f64,
}

impl<'s, 'a> Tree<'s, 'a> {
    fn new(scene: &'s Scene<'a>, devices: &[DeviceId], metrics: &'s Metrics) -> Self {
        let within: BTreeSet<DeviceId> = devices.iter().copied().collect();
        let mut children: BTreeMap<Option<DeviceId>, Vec<DeviceId>> = BTreeMap::new();
        for &id in devices.iter().filter(|&&id| scene.look(id) != Look::NvSwitch) {
            let parent = scene.parent(id).filter(|parent| within.contains(parent));
            children.entry(parent).or_default().push(id);
        }
        let tops = children.remove(&None).unwrap_or_default();
        let (cpus, loose): (Vec<DeviceId>, Vec<DeviceId>) =
            tops.into_iter().partition(|&id| scene.look(id) == Look::Cpu);
        let mut tree = Self {
            scene,
            metrics,
            roots: Vec::new(),
            gpus: BTreeMap::new(),
            placed: Vec::new(),
            rows: Vec::new(),
            width: 0.0,
            height: 0.0,
        };
        let mut roots: Vec<Branch> =
            cpus.iter().map(|&cpu| tree.grow(Some(cpu), 0, &mut children, true)).collect();
        if !loose.is_empty() {
            children.insert(None, loose);
            roots.push(tree.grow(None, 0, &mut children, true));
        }
        tree.roots = roots;
        tree
    }

    /// `leftward`: which side of its CPU's middle it stands on, and so which side its NICs go to.
    fn grow(
        &self,
        device: Option<DeviceId>,
        depth: usize,
        children: &mut BTreeMap<Option<DeviceId>, Vec<DeviceId>>,
        leftward: bool,
    ) -> Branch {
        let kids = children.remove(&device).unwrap_or_default();
        let (limbs, sides): (Vec<DeviceId>, Vec<DeviceId>) =
            kids.into_iter().partition(|&id| matches!(self.scene.look(id), Look::Gpu | Look::PcieSwitch));
        let half = limbs.len().div_ceil(2);
        let limbs = limbs
            .into_iter()
            .enumerate()
            .map(|(index, id)| match self.scene.look(id) {
                Look::Gpu => Limb::Gpu(id),
                _ => {
                    let leftward = if depth == 0 { index < half } else { leftward };
                    Limb::Branch(self.grow(Some(id), depth + 1, children, leftward))
                }
            })
            .collect();
        let mut left = self.bundled(&sides);
        let mut right = left.split_off(left.len().div_ceil(2));
        let mixed = sides.iter().any(|&id| self.scene.look(id) != Look::Nic);
        if !leftward && mixed {
            std::mem::swap(&mut left, &mut right);
        }
        Branch { device, depth, limbs, left, right }
    }

    /// NICs first; those alike as one where they are many, drives always.
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

    fn place(&mut self) {
        let roots = std::mem::take(&mut self.roots);
        let metrics = self.metrics;
        let deepest = roots.iter().map(Branch::deepest).max().unwrap_or(0);
        self.rows = vec![0.0; deepest + 1];
        let has_gpus = roots.iter().any(Branch::has_gpus);
        let mut y = if has_gpus { metrics.gpu.1 } else { -metrics.row_gap };
        for depth in (0..=deepest).rev() {
            let shown = depth > 0 || roots.iter().any(|root| root.device.is_some());
            let below = roots.iter().any(|root| root.has_sides(depth)) && (!metrics.beside || !shown);
            if shown {
                y += metrics.row_gap;
                self.rows[depth] = y;
                y += if depth == 0 { metrics.cpu.1 } else { metrics.switch.1 };
            }
            if below {
                y += self.side_drop() + metrics.small.1;
            }
        }
        self.height = y;
        let mut x = 0.0;
        for root in &roots {
            let width = self.span(root);
            self.settle(root, x, width);
            x += width + 2.0 * metrics.gap;
        }
        self.width = (x - 2.0 * metrics.gap).max(0.0);
        self.narrow_cpus();
        self.roots = roots;
    }

    /// From a switch down to the row of its NICs, where they stand below it.
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
        let gap = self.metrics.gap;
        let limbs: f64 = branch
            .limbs
            .iter()
            .map(|limb| match limb {
                Limb::Gpu(_) => self.metrics.gpu.0 + gap,
                Limb::Branch(branch) => self.span(branch) + 1.5 * gap,
            })
            .sum();
        let side = branch.left.len().max(branch.right.len()) as f64 * (self.metrics.small.0 + gap * 0.6);
        let (width, _) = self.box_size(branch);
        let own = if self.metrics.beside { width + 2.0 * side } else { width.max(2.0 * (side + 4.0)) };
        (limbs - gap).max(own)
    }

    fn settle(&mut self, branch: &Branch, x: f64, width: f64) {
        let metrics = self.metrics;
        let middle = x + width / 2.0;
        let size = self.box_size(branch);
        let rect = Rect::new(middle - size.0 / 2.0, self.rows[branch.depth], size);
        if let Some(id) = branch.device {
            self.placed.push(block(self.scene, &[id], rect, metrics.font));
        }
        let space = metrics.gap * 0.6;
        let pitch = metrics.small.0 + space;
        let (reach, y) = if metrics.beside && branch.device.is_some() {
            (rect.w / 2.0, rect.cy() - metrics.small.1 / 2.0)
        } else {
            // The line to the CPU passes between them.
            (4.0, rect.bottom() + self.side_drop())
        };
        for (index, members) in branch.left.iter().rev().enumerate() {
            let x = middle - reach - pitch * (index + 1) as f64;
            self.put_side(members, Rect::new(x, y, metrics.small));
        }
        for (index, members) in branch.right.iter().enumerate() {
            let x = middle + reach + space + pitch * index as f64;
            self.put_side(members, Rect::new(x, y, metrics.small));
        }
        let inner: f64 = branch.limbs.iter().map(|limb| self.limb_span(limb)).sum::<f64>() - metrics.gap;
        // Room to spare goes between GPUs, up to half a GPU each.
        let only_gpus = branch.limbs.iter().all(|limb| matches!(limb, Limb::Gpu(_)));
        let spare = (width - inner) / branch.limbs.len().max(1) as f64;
        let spread = if only_gpus { spare.clamp(0.0, metrics.gpu.0 * 0.5) } else { 0.0 };
        let mut at = middle - inner / 2.0 - spread * (branch.limbs.len().max(1) - 1) as f64 / 2.0;
        for limb in &branch.limbs {
            match limb {
                Limb::Gpu(id) => {
                    self.gpus.insert(*id, Rect::new(at, 0.0, metrics.gpu));
                }
                Limb::Branch(branch) => {
                    let width = self.span(branch);
                    self.settle(branch, at, width);
                }
            }
            at += self.limb_span(limb) + spread;
        }
    }

    fn limb_span(&self, limb: &Limb) -> f64 {
        match limb {
            Limb::Gpu(_) => self.metrics.gpu.0 + self.metrics.gap,
            Limb::Branch(branch) => self.span(branch) + 1.5 * self.metrics.gap,
        }
    }

    fn put_side(&mut self, members: &[DeviceId], rect: Rect) {
        let block = block(self.scene, members, rect, self.metrics.font * 0.88);
        self.placed.push(block);
    }

    /// A CPU lets the lines of NICs above it pass on both sides.
    fn narrow_cpus(&mut self) {
        let nics: Vec<Rect> =
            self.placed.iter().filter(|block| block.look == Look::Nic).map(|block| block.rect).collect();
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

    fn wire_up(
        &self,
        gpus: &BTreeMap<DeviceId, Rect>,
        sideways: &BTreeMap<DeviceId, f64>,
        picture: &mut Picture,
    ) {
        let mut rects: BTreeMap<DeviceId, Rect> = gpus.clone();
        for block in &self.placed {
            rects.extend(block.members.iter().map(|&id| (id, block.rect)));
        }
        let mut fans: BTreeMap<DeviceId, Vec<&[DeviceId]>> = BTreeMap::new();
        let singles: Vec<[DeviceId; 1]> = gpus.keys().map(|&id| [id]).collect();
        let members = singles.iter().map(|single| &single[..]);
        for group in members.chain(self.placed.iter().map(|block| &block.members[..])) {
            if let Some(parent) = group.first().and_then(|&id| self.scene.parent(id)) {
                fans.entry(parent).or_default().push(group);
            }
        }
        for (parent, mut fan) in fans {
            let Some(&above) = rects.get(&parent) else { continue };
            // Of two GPUs in a column, the upper one's line arrives on the side it passes the lower one.
            let from = |id: &DeviceId| rects[id].cx() + sideways.get(id).unwrap_or(&0.0) * rects[id].w;
            fan.sort_by(|a, b| from(&a[0]).total_cmp(&from(&b[0])));
            let over: Vec<_> = fan.iter().filter(|group| rects[&group[0]].bottom() <= above.y).collect();
            for (index, group) in over.iter().enumerate() {
                let port = above.port_above(index, over.len());
                self.join(parent, group[0], rects[&group[0]], port, sideways, picture);
            }
            for group in fan.iter().filter(|group| rects[&group[0]].bottom() > above.y) {
                self.join_side(parent, group, above, rects[&group[0]], picture);
            }
        }
        self.join_cpus(&rects, picture);
        picture.blocks.extend(self.placed.iter().cloned());
    }

    /// From a child down to its parent; each kind of link a line of its own.
    fn join(
        &self,
        parent: DeviceId,
        child: DeviceId,
        rect: Rect,
        port: (f64, f64),
        sideways: &BTreeMap<DeviceId, f64>,
        picture: &mut Picture,
    ) {
        // What hangs below the child is passed before the line may turn.
        let below = self.placed.iter().filter(|block| block.rect.y >= rect.bottom());
        let clear = below
            .filter(|block| block.members.iter().any(|&id| self.scene.parent(id) == Some(child)))
            .map(|block| block.rect.bottom())
            .fold(rect.bottom(), f64::max);
        let edges: Vec<&Edge> = self.scene.between(parent, child).collect();
        for (index, edge) in edges.iter().enumerate() {
            let offset = (index as f64 - (edges.len() - 1) as f64 / 2.0) * (edge.width() + 3.0).max(6.0);
            let end = (port.0 + offset, port.1);
            let wire = match sideways.get(&child) {
                None => {
                    let x = rect.cx() + offset;
                    let steps = vec![Step::Line((x, clear)), sway((x, clear), end)];
                    Wire::new((x, rect.bottom()), steps, edge.tone(), edge.width())
                }
                // Another GPU stands below this one: go around it.
                Some(&side) => {
                    let reach = self.metrics.gap * 0.9 + offset;
                    let (from, x) = if side < 0.0 {
                        ((rect.x, rect.cy()), rect.x - reach)
                    } else {
                        ((rect.right(), rect.cy()), rect.right() + reach)
                    };
                    let corner = (x, rect.bottom());
                    let lower = (x, self.metrics.gpu.1 + self.metrics.row_gap * 0.3);
                    let steps = vec![
                        Step::Curve((x, rect.cy()), (x, rect.cy()), corner),
                        Step::Line(lower),
                        sway(lower, end),
                    ];
                    Wire::new(from, steps, edge.tone(), edge.width())
                }
            };
            picture.wires.push(wire);
        }
    }

    /// To a NIC or drive beside or below its parent.
    fn join_side(
        &self,
        parent: DeviceId,
        members: &[DeviceId],
        above: Rect,
        rect: Rect,
        picture: &mut Picture,
    ) {
        for edge in self.scene.between(parent, members[0]) {
            let wire = if rect.y >= above.bottom() {
                let share = ((rect.cx() - above.cx()) / above.w * 0.5).clamp(-0.42, 0.42);
                let from = (above.cx() + share * above.w, above.bottom());
                Wire::sway(from, (rect.cx(), rect.y), edge.tone(), edge.width())
            } else {
                Wire::straight((above.cx(), above.cy()), (rect.cx(), rect.cy()), edge.tone(), edge.width())
            };
            picture.wires.push(wire);
        }
    }

    /// Links between sockets: straight to the neighbour, a bow below to any other.
    fn join_cpus(&self, rects: &BTreeMap<DeviceId, Rect>, picture: &mut Picture) {
        let cpus: Vec<DeviceId> = self.roots.iter().filter_map(|root| root.device).collect();
        for (i, &a) in cpus.iter().enumerate() {
            for (j, &b) in cpus.iter().enumerate().skip(i + 1) {
                for edge in self.scene.between(a, b) {
                    let (from, to) = (rects[&a], rects[&b]);
                    let (tone, width) = (edge.tone(), edge.width());
                    picture.wires.push(if j == i + 1 {
                        Wire::straight((from.right(), from.cy()), (to.x, to.cy()), tone, width)
                    } else {
                        let drop = -self.metrics.row_gap * 0.35 * (j - i) as f64;
                        Wire::arch((from.cx(), from.bottom()), (to.cx(), to.bottom()), drop, tone, width)
                    });
                }
            }
        }
    }
}

impl Branch {
    fn branches(&self) -> impl Iterator<Item = &Branch> {
        self.limbs.iter().filter_map(|limb| match limb {
            Limb::Branch(branch) => Some(branch),
            Limb::Gpu(_) => None,
        })
    }

    fn deepest(&self) -> usize {
        self.branches().map(Self::deepest).max().unwrap_or(self.depth)
    }

    fn has_gpus(&self) -> bool {
        self.limbs.iter().any(|limb| match limb {
            Limb::Gpu(_) => true,
            Limb::Branch(branch) => branch.has_gpus(),
        })
    }

    fn has_sides(&self, depth: usize) -> bool {
        let own = self.depth == depth && !(self.left.is_empty() && self.right.is_empty());
        own || self.branches().any(|branch| branch.has_sides(depth))
    }
}
