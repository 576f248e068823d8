//! One host, drawn: NVSwitches on top, GPUs below them, PCIe, NUMA nodes; arcs where GPUs are linked directly.

use weftlink_fabric::{DeviceId, DeviceKind, Fabric, HostId};

use super::canvas::Canvas;
use super::slots::{Node, Stack, label};
use crate::screen;

/// More arcs than this between directly linked GPUs are counted instead of drawn.
const ARCS_MAX: usize = 24;

/// What is drawn of a host.
pub(super) struct HostPicture<'a> {
    pub(super) fabric: &'a Fabric,
    /// NUMA nodes in order, each with its PCIe switches and loose devices.
    pub(super) nodes: Vec<Node>,
    /// NVSwitches that its GPUs are linked to.
    pub(super) switches: Vec<DeviceId>,
    /// Width of a box around one device; odd, so that it has a middle.
    box_width: usize,
}

impl<'a> HostPicture<'a> {
    pub(super) fn of(fabric: &'a Fabric, host: HostId) -> Self {
        let mine = |id: &DeviceId| fabric.device(*id).host == Some(host);
        let numa = fabric.devices_where(|kind| matches!(kind, DeviceKind::Numa(_))).filter(mine);
        let mut seen = vec![false; fabric.devices().len()];
        let nodes: Vec<Node> = numa.map(|id| Node::of(fabric, id, &mut seen)).collect();
        let mut switches: Vec<DeviceId> = Vec::new();
        for gpu in fabric.gpus().iter().filter(|gpu| mine(gpu)) {
            let targets = fabric.links_from(*gpu).iter().map(|link| link.target);
            switches
                .extend(targets.filter(|id| matches!(fabric.device(*id).kind, DeviceKind::NvSwitch { .. })));
        }
        switches.sort_unstable();
        switches.dedup();
        let stacks = nodes.iter().flat_map(|node| &node.stacks);
        let gpu_names = stacks.clone().flat_map(|stack| &stack.gpus).map(|gpu| label(fabric, *gpu));
        let longest =
            gpu_names.chain(stacks.flat_map(|stack| stack.lines(fabric))).map(|name| name.len()).max();
        Self { fabric, nodes, switches, box_width: (longest.unwrap_or(5).max(5) + 2) | 1 }
    }

    /// Whether the host has NUMA nodes, which everything that is drawn hangs on.
    pub(super) fn has_tree(&self) -> bool {
        !self.nodes.is_empty()
    }

    pub(super) fn draw(&self) -> Canvas {
        let mut canvas = Canvas::default();
        let spans = self.node_spans();
        let gpus = self.gpu_columns(&spans);
        let width = spans.last().map_or(0, |(x, width)| x + width);
        let mut y = 0;
        if !self.switches.is_empty() {
            let (band, sharing) = (self.switch_band(), self.sharing());
            // The drawing may be narrower than the text, or too wide for the screen and cut.
            let fits = (band.len() + 4..=screen::columns()).contains(&width);
            let inside = if fits { band.clone() } else { String::new() };
            let beside = if inside.is_empty() { format!("{band} {sharing}") } else { sharing };
            canvas.boxed(0, y, width, &[inside]);
            canvas.note(y + 1, "switches", beside.trim_end().to_owned());
            canvas.note(y + 3, "GPU links", self.gpu_link_label(&gpus));
            y += 4;
        }
        if !gpus.is_empty() {
            for (gpu, x) in &gpus {
                canvas.boxed(x - self.box_width / 2, y, self.box_width, &[label(self.fabric, *gpu)]);
                if !self.switches.is_empty() {
                    canvas.down(*x, y - 2, y, true);
                }
            }
            canvas.note(y + 1, "GPU", self.model_label(&gpus));
            canvas.note(y + 3, "slot", self.slot_label(&gpus));
            y = self.draw_stacks(&mut canvas, &spans, &gpus, y + 2);
        }
        for (x, node_width) in spans.iter().filter(|_| gpus.is_empty()) {
            canvas.boxed(*x, y, *node_width, &[String::new()]);
        }
        for (index, (node, (x, node_width))) in self.nodes.iter().zip(&spans).enumerate() {
            if index > 0 {
                canvas.put(x - 2, y + 1, "├─┤");
            }
            canvas.put(x + 1, y + 1, &format!("{:^1$}", self.node_label(node), node_width - 2));
        }
        if let Some(text) = self.socket_label() {
            canvas.note(y + 1, "sockets", text);
        }
        self.draw_arcs(&mut canvas, &gpus, y + 3);
        canvas
    }

    /// From the GPUs' lower edges at row `top` down to the NUMA nodes, whose boxes are drawn; returns the row of those.
    fn draw_stacks(
        &self,
        canvas: &mut Canvas,
        spans: &[(usize, usize)],
        gpus: &[(DeviceId, usize)],
        top: usize,
    ) -> usize {
        let stacks = || self.nodes.iter().flat_map(|node| &node.stacks);
        let lines = stacks().map(|stack| stack.lines(self.fabric).len()).max().unwrap_or(0);
        let bottom = if lines > 0 { top + lines + 5 } else { top + 2 };
        for (node, (node_x, node_width)) in self.nodes.iter().zip(spans) {
            canvas.boxed(*node_x, bottom, *node_width, &[String::new()]);
            let mut x = *node_x;
            for stack in &node.stacks {
                canvas.cut_at(x);
                let columns: Vec<usize> =
                    gpus.iter().filter(|(gpu, _)| stack.gpus.contains(gpu)).map(|(_, x)| *x).collect();
                let width = self.stack_width(stack);
                let text = stack.lines(self.fabric);
                if !text.is_empty() {
                    canvas.boxed(x, top + 2, width, &text);
                    columns.iter().for_each(|column| canvas.down(*column, top, top + 2, false));
                    canvas.down(x + width / 2, top + 3 + text.len(), bottom, false);
                } else {
                    columns.iter().for_each(|column| canvas.down(*column, top, bottom, false));
                }
                x += width + 1;
            }
        }
        bottom
    }

    /// Lines between GPUs that are linked without a switch, one row each.
    fn draw_arcs(&self, canvas: &mut Canvas, gpus: &[(DeviceId, usize)], top: usize) {
        let mut arcs = Vec::new();
        for (gpu, x) in gpus {
            for link in self.fabric.links_from(*gpu) {
                let kind = self.fabric.spec(link).kind;
                if let Some((_, other)) = gpus.iter().find(|(other, _)| *other == link.target && other > gpu)
                    && kind.is_gpu_fabric()
                {
                    arcs.push(((*x).min(*other), (*x).max(*other), link.count, kind));
                }
            }
        }
        let Some((_, _, count, kind)) = arcs.first().copied() else { return };
        let all_alike = arcs.iter().all(|arc| arc.2 == count);
        if all_alike && arcs.len() == gpus.len() * (gpus.len() - 1) / 2 && arcs.len() > 1 {
            let rate = self.link_rate(kind, count);
            canvas
                .caption(format!("Every two GPUs are joined by {count} x {kind}, {rate} each way per pair."));
            return;
        }
        if arcs.len() > ARCS_MAX {
            canvas.caption(format!("{} pairs of GPUs are joined by {kind}: see --matrix.", arcs.len()));
            return;
        }
        canvas.caption(format!("{kind} between GPUs, {} each way per link:", self.link_rate(kind, 1)));
        for (row, (from, to, count, _)) in arcs.iter().enumerate() {
            let (line, text) =
                if *count > 1 { ("═", format!(" {count} ")) } else { ("─", String::new()) };
            let (left, right) = if *count > 1 { ("╞", "╡") } else { ("├", "┤") };
            let y = top + row;
            canvas.put(*from, y, left);
            canvas.put(from + 1, y, &line.repeat(to - from - 1));
            canvas.put(from + (to - from) / 2 - 1, y, &text);
            canvas.put(*to, y, right);
        }
    }

    /// Left edge and width of each NUMA node.
    fn node_spans(&self) -> Vec<(usize, usize)> {
        let mut next = 0;
        let mut span = |node: &Node| {
            let stacks: usize = node.stacks.iter().map(|stack| self.stack_width(stack) + 1).sum();
            let width = stacks.saturating_sub(1).max(self.node_label(node).len() + 4);
            let x = next;
            next += width + 1;
            (x, width)
        };
        self.nodes.iter().map(&mut span).collect()
    }

    fn stack_width(&self, stack: &Stack) -> usize {
        stack.gpus.len() * (self.box_width + 1) - 1
    }

    /// The middle column of each GPU.
    fn gpu_columns(&self, spans: &[(usize, usize)]) -> Vec<(DeviceId, usize)> {
        let mut columns = Vec::new();
        for (node, (x, _)) in self.nodes.iter().zip(spans) {
            let gpus = node.stacks.iter().flat_map(|stack| &stack.gpus);
            let column = |index: usize| x + index * (self.box_width + 1) + self.box_width / 2;
            columns.extend(gpus.enumerate().map(|(index, gpu)| (*gpu, column(index))));
        }
        columns
    }
}
