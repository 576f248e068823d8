//! The drawn picture: one host of each make, GPUs in a row, what joins them above, what feeds them below.

use std::io::{self, Write};

use weftlink_fabric::catalog::gpus::GpuModel;
use weftlink_fabric::device::Tier;
use weftlink_fabric::rate::{Device, OneWay, Rate};
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, HostId, Link, LinkKind, Measure};

use super::canvas::Canvas;

/// Hosts of different makes that are drawn before the rest is only counted.
const MAKES_MAX: usize = 3;
/// Arcs between directly linked GPUs that are drawn before they are only counted.
const ARCS_MAX: usize = 24;

pub(super) fn print(out: &mut impl Write, fabric: &Fabric) -> io::Result<()> {
    let makes = makes(fabric);
    for (host, alike) in makes.iter().take(MAKES_MAX) {
        let name = &fabric.hosts()[host.index()].name;
        let system = fabric.hosts()[host.index()].system.as_deref().unwrap_or("");
        match *alike {
            1 => writeln!(out, "{name} {system}")?,
            alike => writeln!(out, "{name} {system} ({alike} hosts like this)")?,
        }
        write!(out, "{}", HostPicture::of(fabric, *host).draw())?;
        writeln!(out)?;
    }
    if makes.len() > MAKES_MAX {
        writeln!(out, "and {} other makes of host\n", makes.len() - MAKES_MAX)?;
    }
    print_network(out, fabric)
}

/// A device's links: how far away the target is, how many links, and of which kind.
type LinksOut = Vec<(i64, u32, u32)>;

/// One host of each make and how many are alike: the same devices, linked in the same way.
fn makes(fabric: &Fabric) -> Vec<(HostId, usize)> {
    let mut devices: Vec<Vec<DeviceId>> = vec![Vec::new(); fabric.hosts().len()];
    for id in fabric.device_ids() {
        if let Some(host) = fabric.device(id).host {
            devices[host.index()].push(id);
        }
    }
    let outline = |members: &[DeviceId]| -> Vec<(&'static str, LinksOut)> {
        let first = members.first().map_or(0, |id| i64::from(id.0));
        let inside = |link: &Link| fabric.device(link.target).host == fabric.device(link.source).host;
        let place = |link: &Link| if inside(link) { i64::from(link.target.0) - first } else { -1 };
        let links = |id: &DeviceId| {
            fabric.links_from(*id).iter().map(|link| (place(link), link.count, link.spec.0)).collect()
        };
        members.iter().map(|id| (fabric.device(*id).kind.stem(), links(id))).collect()
    };
    let mut found: Vec<(HostId, Vec<_>, usize)> = Vec::new();
    for (host, members) in devices.iter().enumerate() {
        let outline = outline(members);
        match found.iter_mut().find(|(_, other, _)| *other == outline) {
            Some((_, _, alike)) => *alike += 1,
            None => found.push((HostId(host as u32), outline, 1)),
        }
    }
    found.into_iter().map(|(host, _, alike)| (host, alike)).collect()
}

/// What is drawn of a host.
struct HostPicture<'a> {
    fabric: &'a Fabric,
    /// NUMA nodes in order, each with its PCIe switches and loose devices.
    nodes: Vec<Node>,
    /// NVSwitches that its GPUs are linked to.
    switches: Vec<DeviceId>,
    /// Width of a box around one device; odd, so that it has a middle.
    box_width: usize,
}

struct Node {
    id: DeviceId,
    stacks: Vec<Stack>,
    /// NICs, drives and others that hang on the node without a switch.
    loose: Vec<DeviceId>,
}

/// A PCIe switch with what is below it, or a GPU on a root port of its own.
struct Stack {
    switch: Option<DeviceId>,
    gpus: Vec<DeviceId>,
    others: Vec<DeviceId>,
}

impl<'a> HostPicture<'a> {
    fn of(fabric: &'a Fabric, host: HostId) -> Self {
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

    fn draw(&self) -> Canvas {
        let mut canvas = Canvas::default();
        let spans = self.node_spans();
        let gpus = self.gpu_columns(&spans);
        let width = spans.last().map_or(0, |(x, width)| x + width);
        let mut y = 0;
        if !self.switches.is_empty() {
            canvas.boxed(0, y, width, &[self.switch_band()]);
            canvas.put(width + 2, y + 1, &self.sharing());
            canvas.put(width + 2, y + 3, &self.gpu_link_label(&gpus));
            y += 4;
        }
        if !gpus.is_empty() {
            for (gpu, x) in &gpus {
                canvas.boxed(x - self.box_width / 2, y, self.box_width, &[label(self.fabric, *gpu)]);
                if !self.switches.is_empty() {
                    canvas.down(*x, y - 2, y, true);
                }
            }
            canvas.put(width + 2, y + 1, &self.model_label(&gpus));
            canvas.put(width + 2, y + 3, &self.slot_label(&gpus));
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
            canvas.put(width + 2, y + 1, &text);
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
                    arcs.push((*x, *other, link.count, kind));
                }
            }
        }
        let Some((_, _, count, kind)) = arcs.first().copied() else { return };
        let all_alike = arcs.iter().all(|arc| arc.2 == count);
        if all_alike && arcs.len() == gpus.len() * (gpus.len() - 1) / 2 && arcs.len() > 1 {
            let rate = self.link_rate(kind, count);
            canvas.put(
                0,
                top,
                &format!("every two GPUs are joined by {count} x {kind}, {rate} each way per pair"),
            );
            return;
        }
        if arcs.len() > ARCS_MAX {
            canvas.put(0, top, &format!("{} pairs of GPUs are joined by {kind}: see --matrix", arcs.len()));
            return;
        }
        canvas.put(0, top, &format!("{kind} between GPUs, {} each way per link:", self.link_rate(kind, 1)));
        for (row, (from, to, count, _)) in arcs.iter().enumerate() {
            let (line, text) =
                if *count > 1 { ("═", format!(" {count} ")) } else { ("─", String::new()) };
            let (left, right) = if *count > 1 { ("╞", "╡") } else { ("├", "┤") };
            let y = top + 1 + row;
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

    fn node_label(&self, node: &Node) -> String {
        let name = label(self.fabric, node.id);
        let loose = gathered(self.fabric, &node.loose);
        if loose.is_empty() { name } else { format!("{name}: {}", loose.join(" ")) }
    }

    fn switch_band(&self) -> String {
        match self.switches.len() {
            1 => "1 NVSwitch".to_owned(),
            count => format!("{count} NVSwitches"),
        }
    }

    /// How many hosts the switches serve, where it is more than this one.
    fn sharing(&self) -> String {
        let targets = self.switches.iter().flat_map(|id| self.fabric.links_from(*id)).map(|link| link.target);
        let mut hosts: Vec<HostId> = targets.filter_map(|id| self.fabric.device(id).host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        if hosts.len() > 1 { format!("shared by {} hosts", hosts.len()) } else { String::new() }
    }

    fn gpu_link_label(&self, gpus: &[(DeviceId, usize)]) -> String {
        let Some((gpu, _)) = gpus.first() else { return String::new() };
        let links =
            self.fabric.links_from(*gpu).iter().filter(|link| self.fabric.spec(link).kind.is_gpu_fabric());
        let (mut count, mut kind, mut bytes) = (0, None, 0);
        for link in links {
            count += link.count;
            kind = Some(self.fabric.spec(link).kind);
            bytes += self.fabric.rate(link, Measure::Nominal).bytes_per_second();
        }
        let rate: Rate<Device, OneWay> = Rate::from_bytes(bytes);
        kind.map_or_else(String::new, |kind| match bytes {
            0 => format!("{count} x {kind} per GPU"),
            _ => format!("{count} x {kind}: {rate}"),
        })
    }

    fn model_label(&self, gpus: &[(DeviceId, usize)]) -> String {
        let Some((gpu, _)) = gpus.first() else { return String::new() };
        let device = self.fabric.device(*gpu);
        let name = device
            .kind
            .gpu_model()
            .map(|model: &GpuModel| format!("{}, {}", model.name, model.memory_rate.value.amount()));
        name.or_else(|| device.label.as_deref().map(str::to_owned))
            .unwrap_or_else(|| "GPU of unknown model".to_owned())
    }

    fn slot_label(&self, gpus: &[(DeviceId, usize)]) -> String {
        let Some((gpu, _)) = gpus.first() else { return String::new() };
        let of_kind = |wanted: fn(LinkKind) -> bool| {
            self.fabric.links_from(*gpu).iter().find(|link| wanted(self.fabric.spec(link).kind))
        };
        let text = |link: &Link| {
            let spec = self.fabric.spec(link);
            match spec.nominal.as_ref() {
                Some(_) => {
                    format!("{}: {} each way", spec.kind, self.fabric.rate(link, Measure::Nominal).amount())
                }
                None => spec.kind.to_string(),
            }
        };
        let slots =
            [of_kind(|kind| matches!(kind, LinkKind::Pcie { .. })), of_kind(|kind| kind == LinkKind::C2c)];
        slots.into_iter().flatten().map(text).collect::<Vec<_>>().join("; ")
    }

    fn socket_label(&self) -> Option<String> {
        let links = self.fabric.links_from(self.nodes.first()?.id);
        let spec = links
            .iter()
            .map(|link| self.fabric.spec(link))
            .find(|spec| matches!(spec.kind, LinkKind::Socket(_)))?;
        let rate = spec
            .best()
            .map_or_else(String::new, |figure| format!(": {} each way effective", figure.value.amount()));
        Some(format!("{}{rate}", spec.kind))
    }

    fn link_rate(&self, kind: LinkKind, count: u32) -> String {
        let spec = self.fabric.specs().iter().find(|spec| spec.kind == kind);
        spec.map_or_else(String::new, |spec| spec.rate(Measure::Nominal, count).amount().to_string())
    }
}

impl Node {
    fn of(fabric: &Fabric, id: DeviceId, seen: &mut [bool]) -> Self {
        let mut node = Self { id, stacks: Vec::new(), loose: Vec::new() };
        seen[id.index()] = true;
        for child in children(fabric, id, seen) {
            match fabric.device(child).kind {
                DeviceKind::RootPort => {
                    for below in children(fabric, child, seen) {
                        node.take(fabric, below, seen);
                    }
                }
                _ => node.take(fabric, child, seen),
            }
        }
        node
    }

    fn take(&mut self, fabric: &Fabric, id: DeviceId, seen: &mut [bool]) {
        match fabric.device(id).kind {
            DeviceKind::Gpu(_) => {
                self.stacks.push(Stack { switch: None, gpus: vec![id], others: Vec::new() })
            }
            DeviceKind::PcieSwitch => {
                let mut stack = Stack { switch: Some(id), gpus: Vec::new(), others: Vec::new() };
                stack.fill(fabric, id, seen);
                match stack.gpus.is_empty() {
                    true => self.loose.extend(stack.others),
                    false => self.stacks.push(stack),
                }
            }
            _ => self.loose.push(id),
        }
    }
}

impl Stack {
    fn fill(&mut self, fabric: &Fabric, switch: DeviceId, seen: &mut [bool]) {
        let mut pending = vec![switch];
        while let Some(at) = pending.pop() {
            for child in children(fabric, at, seen) {
                match fabric.device(child).kind {
                    DeviceKind::Gpu(_) => self.gpus.push(child),
                    DeviceKind::PcieSwitch => pending.push(child),
                    _ => self.others.push(child),
                }
            }
        }
        self.gpus.sort_unstable();
        self.others.sort_unstable();
    }

    /// What is written in its box: the switch, then what else is below it.
    fn lines(&self, fabric: &Fabric) -> Vec<String> {
        self.switch
            .map(|switch| label(fabric, switch))
            .into_iter()
            .chain(gathered(fabric, &self.others))
            .collect()
    }
}

/// The names of devices, those of a kind in one: `nic0-3`.
fn gathered(fabric: &Fabric, devices: &[DeviceId]) -> Vec<String> {
    let mut ranges: Vec<(&'static str, u32, u32)> = Vec::new();
    for id in devices {
        let (stem, ordinal) = (fabric.device(*id).kind.stem(), fabric.device(*id).ordinal);
        match ranges.iter_mut().find(|(other, _, last)| *other == stem && last + 1 == ordinal) {
            Some((_, _, last)) => *last = ordinal,
            None => ranges.push((stem, ordinal, ordinal)),
        }
    }
    ranges.sort_unstable();
    let name = |(stem, first, last): (&str, u32, u32)| match first == last {
        true => format!("{stem}{first}"),
        false => format!("{stem}{first}-{last}"),
    };
    ranges.into_iter().map(name).collect()
}

/// What hangs below a device on PCIe and was not drawn yet.
fn children(fabric: &Fabric, id: DeviceId, seen: &mut [bool]) -> Vec<DeviceId> {
    let links = fabric.links_from(id).iter();
    let below = links.filter(|link| matches!(fabric.spec(link).kind, LinkKind::Pcie { .. } | LinkKind::C2c));
    let mut found = Vec::new();
    for target in below.map(|link| link.target) {
        let is_numa = matches!(fabric.device(target).kind, DeviceKind::Numa(_));
        if !is_numa && !std::mem::replace(&mut seen[target.index()], true) {
            found.push(target);
        }
    }
    found
}

/// A device's name within its host.
fn label(fabric: &Fabric, id: DeviceId) -> String {
    let device = fabric.device(id);
    format!("{}{}", device.kind.stem(), device.ordinal)
}

fn print_network(out: &mut impl Write, fabric: &Fabric) -> io::Result<()> {
    let tier = |wanted: Tier| {
        fabric.devices_where(move |kind| *kind == DeviceKind::NetSwitch(wanted)).collect::<Vec<_>>()
    };
    let (leaves, spines) = (tier(Tier::Leaf), tier(Tier::Spine));
    let Some(leaf) = leaves.first() else { return Ok(()) };
    let links = fabric.links_from(*leaf);
    let to_nics = links.iter().filter(|link| matches!(fabric.device(link.target).kind, DeviceKind::Nic(_)));
    let (down, kind) =
        to_nics.fold((0, None), |(count, _), link| (count + link.count, Some(fabric.spec(link).kind)));
    let up: u32 = links.iter().filter(|link| spines.contains(&link.target)).map(|link| link.count).sum();
    let kind = kind.map_or_else(|| "network".to_owned(), |kind| kind.to_string());
    let plural = if leaves.len() == 1 { "" } else { "es" };
    write!(out, "{} leaf switch{plural}, {down} x {kind} down", leaves.len())?;
    match spines.len() {
        0 => writeln!(out, "; no spine\n"),
        _ => writeln!(out, ", {up} up to the spine, each\n"),
    }
}
