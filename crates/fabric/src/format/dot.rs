//! A fabric as Graphviz text: a cluster for each host, a node for each device, an edge for each bundle of links.
//!
//! All devices are written except root ports, which are folded into the edge as in the drawing. Links that are equal in
//! both directions are one edge without arrowheads; otherwise each direction is an edge.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::device::DeviceKind;
use crate::fabric::Fabric;
use crate::id::{DeviceId, HostId};
use crate::link::{LinkKind, LinkSpec, Measure, SpecId};

/// Writes a fabric for `dot`, `fdp` or another Graphviz program.
pub fn dot(fabric: &Fabric) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "digraph {} {{", quoted(fabric.name()));
    let _ = writeln!(out, "  label={}; labelloc=t; rankdir=TB;", quoted(fabric.name()));
    out.push_str(
        "  graph [fontname=\"Helvetica\"]; node [fontname=\"Helvetica\", style=\"rounded,filled\"];\n",
    );
    out.push_str("  edge [fontname=\"Helvetica\", fontsize=9];\n");
    let mut by_host: BTreeMap<Option<HostId>, Vec<DeviceId>> = BTreeMap::new();
    for id in fabric.devices_where(|kind| !matches!(kind, DeviceKind::RootPort)) {
        by_host.entry(fabric.device(id).host).or_default().push(id);
    }
    for (host, devices) in by_host {
        let indent = if host.is_some() { "    " } else { "  " };
        if let Some(host) = host {
            let system = &fabric.hosts()[host.index()];
            let title = match &system.system {
                Some(name) => format!("{} ({name})", system.name),
                None => system.name.clone(),
            };
            let _ = writeln!(out, "  subgraph cluster_{} {{", host.0);
            let _ = writeln!(out, "    label={}; style=rounded; color=\"#b9c1ca\";", quoted(&title));
        }
        for id in devices {
            let _ = writeln!(out, "{indent}d{} [{}];", id.0, node(fabric, id));
        }
        out.push_str(if host.is_some() { "  }\n" } else { "" });
    }
    edges(fabric, &mut out);
    out.push_str("}\n");
    out
}

fn node(fabric: &Fabric, id: DeviceId) -> String {
    let kind = &fabric.device(id).kind;
    let (shape, fill, word) = match kind {
        DeviceKind::Numa(_) => ("box", "#e6eaee", "NUMA node".to_owned()),
        DeviceKind::RootPort => ("box", "#ffffff", "root port".to_owned()),
        DeviceKind::PcieSwitch => ("box", "#dcebfb", "PCIe switch".to_owned()),
        DeviceKind::Gpu(gpu) => {
            let name = gpu.model.map_or("GPU", |model| model.name);
            ("box", "#c9d3de", name.to_owned())
        }
        DeviceKind::NvSwitch { generation } => {
            let generation = generation.map_or(String::new(), |number| format!(" {number}"));
            ("hexagon", "#dff0bd", format!("NVSwitch{generation}"))
        }
        DeviceKind::Nic(ports) => ("box", "#fde6cd", format!("NIC, ports: {}", ports.len())),
        DeviceKind::Storage => ("cylinder", "#f3f5f7", "drive".to_owned()),
        DeviceKind::NetSwitch(_) => ("hexagon", "#fbd3a8", "network switch".to_owned()),
        DeviceKind::PciFunction => ("box", "#ffffff", "PCI function".to_owned()),
    };
    // Graphviz breaks the line at an unescaped `\n`.
    let name = quoted(&fabric.device_name(id));
    let name = name.trim_matches('"');
    format!("label=\"{name}\\n{word}\", shape={shape}, fillcolor=\"{fill}\"")
}

/// One line for each pair and kind: `x18`, the kind, and the rate of all its links each way.
fn edges(fabric: &Fabric, out: &mut String) {
    let mut bundles: BTreeMap<(DeviceId, DeviceId, SpecId), [u32; 2]> = BTreeMap::new();
    for link in fabric.links() {
        let (a, b) = (folded(fabric, link.source), folded(fabric, link.target));
        if a != b {
            let ways = bundles.entry((a.min(b), a.max(b), link.spec)).or_default();
            let way = &mut ways[usize::from(a > b)];
            *way = way.saturating_add(link.count);
        }
    }
    for ((a, b, spec), [forth, back]) in bundles {
        let spec = &fabric.specs()[spec.0 as usize];
        if forth == back {
            let _ = writeln!(out, "  d{} -> d{} [{}, dir=none];", a.0, b.0, edge(spec, forth));
            continue;
        }
        for (from, to, count) in [(a, b, forth), (b, a, back)].into_iter().filter(|(_, _, count)| *count > 0)
        {
            let _ = writeln!(out, "  d{} -> d{} [{}];", from.0, to.0, edge(spec, count));
        }
    }
}

fn edge(spec: &LinkSpec, count: u32) -> String {
    let colour = match spec.kind {
        LinkKind::NvLink { .. } => "#76b900",
        LinkKind::Xgmi { .. } => "#d64550",
        LinkKind::XeLink => "#7a5cd6",
        LinkKind::UaLink => "#c2389a",
        LinkKind::C2c => "#0fa3a3",
        LinkKind::Pcie { .. } => "#3b82d6",
        LinkKind::Network { .. } => "#f0882a",
        LinkKind::Socket(_) => "#8b95a1",
    };
    let times = if count > 1 { format!("x{count} ") } else { String::new() };
    let rate = spec.rate(Measure::Nominal, count);
    let rate = match rate.bytes_per_second() {
        0 => "unknown rate".to_owned(),
        _ => rate.to_string(),
    };
    format!("label=\"{times}{}\\n{rate}\", color=\"{colour}\"", spec.kind)
}

/// The upstream end of a root port, if it has one; any other device itself.
fn folded(fabric: &Fabric, id: DeviceId) -> DeviceId {
    if fabric.device(id).kind != DeviceKind::RootPort {
        return id;
    }
    let ends = fabric.links_from(id).iter().map(|link| link.target);
    let numa = |end: &DeviceId| matches!(fabric.device(*end).kind, DeviceKind::Numa(_));
    ends.clone().find(numa).or_else(|| ends.min()).unwrap_or(id)
}

/// A string as DOT quotes it; line breaks become spaces.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{links, systems};
    use crate::fabric::FabricBuilder;

    #[test]
    fn all_devices_except_root_ports_are_nodes_and_symmetric_links_are_one_edge() {
        let fabric = systems::by_name("hgx-h100").unwrap().fabric();
        let text = dot(&fabric);
        for id in fabric.device_ids() {
            let drawn = text.contains(&format!(" d{} [label", id.0));
            assert_eq!(drawn, fabric.device(id).kind != DeviceKind::RootPort, "{}", fabric.device_name(id));
        }
        let (gpu, chip) = (fabric.gpus()[0], fabric.find("nvswitch0").unwrap());
        let line = format!("d{} -> d{} [label=\"x5 NVLink 4\\n125 GB/s each way per pair\"", gpu.0, chip.0);
        assert!(text.contains(&line), "{line}");
        assert_eq!(text.matches(&format!("d{} -> d{} ", chip.0, gpu.0)).count(), 0);
        let ports = fabric.devices_where(|kind| *kind == DeviceKind::RootPort);
        for port in ports {
            assert!(!text.contains(&format!("d{} ", port.0)), "a root port is in the text");
        }
    }

    #[test]
    fn asymmetric_links_are_two_edges_and_names_are_quoted() {
        let mut builder = FabricBuilder::new("a \"b\" \\ c\n");
        let host = builder.host("h\"1", None);
        let a = builder.add(Some(host), DeviceKind::Storage);
        let b = builder.add(Some(host), DeviceKind::PcieSwitch);
        let spec = builder.spec(links::pcie(4, 4));
        builder.link(a, b, 1, spec);
        builder.link(b, a, 2, spec);
        let text = dot(&builder.finish().unwrap());
        assert!(text.starts_with("digraph \"a \\\"b\\\" \\\\ c \" {"), "{text}");
        assert!(text.contains("label=\"h\\\"1\""));
        assert_eq!(text.matches("->").count(), 2);
        assert_eq!(text.matches("dir=none").count(), 0);
    }
}
