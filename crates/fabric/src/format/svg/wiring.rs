//! The lines inside a host, between devices that [`Tree`] has placed.

use std::collections::BTreeMap;

use super::canvas::{Picture, Rect, Step, Wire, s_curve};
use super::scene::Edge;
use super::tree::Tree;
use crate::id::DeviceId;

impl Tree<'_, '_> {
    /// Draws all lines except those between GPUs; `sideways` is the side on which a GPU's line passes another below it.
    pub(super) fn wire_up(
        &self,
        gpus: &BTreeMap<DeviceId, Rect>,
        sideways: &BTreeMap<DeviceId, f64>,
        picture: &mut Picture,
    ) {
        let mut rects: BTreeMap<DeviceId, Rect> = gpus.clone();
        rects.extend(self.rects());
        let mut fans: BTreeMap<DeviceId, Vec<&[DeviceId]>> = BTreeMap::new();
        let singles: Vec<[DeviceId; 1]> = gpus.keys().map(|&id| [id]).collect();
        let members = singles.iter().map(|single| &single[..]);
        for group in members.chain(self.placed.iter().map(|block| &block.members[..])) {
            if let Some(parent) = group.first().and_then(|&id| self.scene.parent(id)) {
                fans.entry(parent).or_default().push(group);
            }
        }
        for (parent, mut fan) in fans {
            let Some(&above) = rects.get(&parent) else {
                continue;
            };
            // Of two GPUs in a column, the line of the upper one arrives on the side where it passes the lower one.
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
        self.join_past(&rects, gpus, picture);
        self.join_cpus(&rects, picture);
        picture.blocks.extend(self.placed.iter().cloned());
    }

    /// From a child down to its parent, one line for each kind of link.
    fn join(
        &self,
        parent: DeviceId,
        child: DeviceId,
        rect: Rect,
        port: (f64, f64),
        sideways: &BTreeMap<DeviceId, f64>,
        picture: &mut Picture,
    ) {
        // The line is vertical until it is below the child's NICs.
        let clear = self.lowest.get(&child).map_or(rect.bottom(), |lowest| lowest.max(rect.bottom()));
        let edges: Vec<&Edge> = self.scene.between(parent, child).collect();
        for (index, edge) in edges.iter().enumerate() {
            let offset = (index as f64 - (edges.len() - 1) as f64 / 2.0) * (edge.width() + 3.0).max(6.0);
            let end = (port.0 + offset, port.1);
            let wire = match sideways.get(&child) {
                None => {
                    let x = rect.cx() + offset;
                    let steps = vec![Step::Line((x, clear)), s_curve((x, clear), end)];
                    Wire::new((x, rect.bottom()), steps, edge.tone(), edge.width())
                }
                // Another GPU is below this one: go around it.
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
                        s_curve(lower, end),
                    ];
                    Wire::new(from, steps, edge.tone(), edge.width())
                }
            };
            picture.wires.push(wire);
        }
    }

    /// From a parent to a NIC or drive beside or below it.
    fn join_side(
        &self,
        parent: DeviceId,
        members: &[DeviceId],
        above: Rect,
        rect: Rect,
        picture: &mut Picture,
    ) {
        for edge in self.scene.between(parent, members[0]) {
            let left = rect.cx() < above.cx();
            let between = if left { above.x - rect.right() } else { rect.x - above.right() };
            let wire = if rect.y >= above.bottom() {
                let share = ((rect.cx() - above.cx()) / above.w * 0.5).clamp(-0.42, 0.42);
                let from = (above.cx() + share * above.w, above.bottom());
                Wire::s_curve(from, (rect.cx(), rect.y), edge.tone(), edge.width())
            } else if between < rect.w {
                let y = rect.cy();
                Wire::straight((above.cx(), y), (rect.cx(), y), edge.tone(), edge.width())
            } else {
                // Others are in between: pass below them, or the line would look like a chain.
                let aside = if left { 1.0 } else { -1.0 };
                let from = (rect.cx() + aside * rect.w * 0.28, rect.bottom());
                let to = (above.cx() - aside * above.w * 0.36, above.bottom());
                let drop = self.metrics.row_gap * (0.34 + 0.1 * (between / rect.w).floor());
                Wire::arch(from, to, -drop, edge.tone(), edge.width())
            };
            picture.wires.push(wire);
        }
    }

    /// Links outside the tree, such as C2C past a PCIe switch: around the devices below the GPU.
    fn join_past(
        &self,
        rects: &BTreeMap<DeviceId, Rect>,
        gpus: &BTreeMap<DeviceId, Rect>,
        picture: &mut Picture,
    ) {
        for (&gpu, &rect) in gpus {
            for edge in self.scene.edges_of(gpu) {
                let other = edge.other_end(gpu);
                let Some(&below) = rects.get(&other) else { continue };
                if gpus.contains_key(&other) || self.scene.parent(gpu) == Some(other) || below.y <= rect.y {
                    continue;
                }
                let parent = self.scene.parent(gpu).and_then(|id| rects.get(&id));
                let right = parent.map_or(rect.right(), |parent| parent.right().max(rect.right()));
                let x = right + self.metrics.gap * 0.75;
                let from = (rect.cx() + rect.w * 0.3, rect.bottom());
                let turn = (x, from.1 + self.metrics.row_gap * 0.6);
                let lower = (x, (below.y - self.metrics.row_gap * 0.6).max(turn.1));
                let end = (x.clamp(below.x + 6.0, below.right() - 6.0), below.y);
                let steps = vec![s_curve(from, turn), Step::Line(lower), s_curve(lower, end)];
                picture.wires.push(Wire::new(from, steps, edge.tone(), edge.width()));
            }
        }
    }

    /// Links between sockets: straight to the neighbour, or an arch below if a block is in between.
    fn join_cpus(&self, rects: &BTreeMap<DeviceId, Rect>, picture: &mut Picture) {
        let cpus: Vec<DeviceId> = self.roots.iter().filter_map(|root| root.device).collect();
        for (i, &a) in cpus.iter().enumerate() {
            for (j, &b) in cpus.iter().enumerate().skip(i + 1) {
                let (from, to) = (rects[&a], rects[&b]);
                for edge in self.scene.between(a, b) {
                    let (tone, width) = (edge.tone(), edge.width());
                    let apart = self.places_apart(from, to, j - i);
                    picture.wires.push(if apart == 1 {
                        Wire::straight((from.right(), from.cy()), (to.x, to.cy()), tone, width)
                    } else {
                        let ends = ((from.cx(), from.bottom()), (to.cx(), to.bottom()));
                        Wire::arch(ends.0, ends.1, -self.bow(apart), tone, width)
                    });
                }
            }
        }
    }
}
