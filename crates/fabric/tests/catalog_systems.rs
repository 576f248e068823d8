//! Properties of every system of the catalog, and the device counts and placements of each.

use std::collections::HashSet;

use weftlink_fabric::catalog::gpus::GpuLinks;
use weftlink_fabric::catalog::switches::{self, NVSWITCHES};
use weftlink_fabric::catalog::systems;
use weftlink_fabric::device::DeviceKind;
use weftlink_fabric::link::{Link, LinkKind};
use weftlink_fabric::{DeviceId, Fabric};

fn system(name: &str) -> Fabric {
    systems::by_name(name).unwrap_or_else(|| panic!("no system {name}")).fabric()
}

fn gpu_fabric_links(fabric: &Fabric, device: DeviceId) -> impl Iterator<Item = &Link> {
    let links = fabric.links_from(device).iter();
    links.filter(|link| fabric.spec(link).kind.is_gpu_fabric())
}

fn gpu_fabric_ports(fabric: &Fabric, device: DeviceId) -> u32 {
    gpu_fabric_links(fabric, device).map(|link| link.count).sum()
}

fn count(fabric: &Fabric, wanted: fn(&DeviceKind) -> bool) -> usize {
    fabric.devices_where(wanted).count()
}

#[test]
fn every_wired_gpu_uses_all_its_links() {
    for system in systems::all() {
        let fabric = system.fabric();
        for &gpu in fabric.gpus() {
            let model = fabric.device(gpu).kind.gpu_model().unwrap();
            let found = gpu_fabric_ports(&fabric, gpu);
            let name = system.name;
            match model.links {
                GpuLinks::Wired(link, links) => {
                    let used = match name {
                        // The seventh link of an odd die leads to its NIC, if there is one.
                        "frontier-node" | "4x-mi250" if found == links - 1 => found,
                        // Two links to each of five others.
                        "aurora-node" => 10,
                        _ => links,
                    };
                    assert_eq!(found, used, "{name}");
                    assert!(gpu_fabric_links(&fabric, gpu).all(|wire| fabric.spec(wire) == link));
                }
                GpuLinks::Bridge { links, .. } => {
                    assert_eq!(
                        found,
                        if name.ends_with("-bridge") || name == "nc-a100-v4" { links } else { 0 },
                        "{name}"
                    );
                }
                GpuLinks::Absent(_) => assert_eq!(found, 0, "{name}"),
            }
        }
    }
}

#[test]
fn no_nvswitch_has_more_links_than_ports() {
    for system in systems::all() {
        let fabric = system.fabric();
        for switch in fabric.devices_where(|kind| matches!(kind, DeviceKind::NvSwitch { .. })) {
            let DeviceKind::NvSwitch { generation } = fabric.device(switch).kind else { unreachable!() };
            let chip = NVSWITCHES[usize::from(generation.unwrap()) - 1].ports;
            // A tray of the DGX GH200 is one device of two chips.
            let ports = if system.name == "dgx-gh200" { 2 * chip } else { chip };
            let used = gpu_fabric_ports(&fabric, switch);
            assert!((1..=ports).contains(&used), "{}: {used} links on {ports} ports", system.name);
        }
    }
}

#[test]
fn trays_count_as_their_chips() {
    for (name, chips) in [("hgx-h100", 4), ("dgx-2", 12), ("gb200-nvl72", 18), ("dgx-gh200", 2 * (96 + 36))] {
        assert_eq!(switches::chips(&system(name)), chips, "{name}");
    }
}

#[test]
fn every_link_runs_both_ways() {
    for system in systems::all() {
        let fabric = system.fabric();
        let wires: HashSet<Link> = fabric.links().iter().copied().collect();
        for link in fabric.links() {
            let back = Link { source: link.target, target: link.source, ..*link };
            assert!(wires.contains(&back), "{}: {link:?}", system.name);
        }
    }
}

#[test]
fn every_system_is_connected_and_names_are_unique() {
    let mut systems_seen = HashSet::new();
    for system in systems::all() {
        assert!(systems_seen.insert(system.name), "{} twice", system.name);
        assert!(!system.source.is_empty() && system.summary.len() <= 70, "{}", system.name);
        assert_eq!(systems::by_name(system.name).map(|found| found.name), Some(system.name));
        let fabric = system.fabric();
        let mut seen = HashSet::from([DeviceId(0)]);
        let mut todo = vec![DeviceId(0)];
        while let Some(device) = todo.pop() {
            let next = fabric.links_from(device).iter().map(|link| link.target);
            todo.extend(next.filter(|&device| seen.insert(device)));
        }
        assert_eq!(seen.len(), fabric.devices().len(), "{} is in pieces", system.name);
        let names: HashSet<String> = fabric.device_ids().map(|id| fabric.device_name(id)).collect();
        assert_eq!(names.len(), fabric.devices().len(), "{}", system.name);
    }
}

#[test]
fn sizes() {
    // Hosts, GPUs, NVSwitches, NUMA nodes, NICs.
    let expected = [
        ("2x-rtx3090", [1, 2, 0, 1, 0]),
        ("2x-rtx3090-bridge", [1, 2, 0, 1, 0]),
        ("2x-rtx4090", [1, 2, 0, 1, 0]),
        ("4x-rtx4090", [1, 4, 0, 1, 0]),
        ("8x-rtx4090", [1, 8, 0, 2, 0]),
        ("2x-rtx5090", [1, 2, 0, 1, 0]),
        ("4x-rtx5090", [1, 4, 0, 1, 0]),
        ("8x-rtx5090", [1, 8, 0, 2, 0]),
        ("4x-a100-pcie-bridge", [1, 4, 0, 2, 0]),
        ("2x-h100-nvl-bridge", [1, 2, 0, 1, 0]),
        ("2x-h200-nvl-bridge", [1, 2, 0, 1, 0]),
        ("4x-h200-nvl-bridge", [1, 4, 0, 1, 0]),
        ("8x-l40s", [1, 8, 0, 2, 0]),
        ("8x-rtxpro6000", [1, 8, 0, 2, 0]),
        ("dgx-1-p100", [1, 8, 0, 2, 0]),
        ("dgx-1-v100", [1, 8, 0, 2, 0]),
        ("dgx-2", [1, 16, 12, 2, 0]),
        ("hgx-a100", [1, 8, 6, 8, 0]),
        ("hgx-h100", [1, 8, 4, 2, 0]),
        ("hgx-a100-4", [1, 4, 0, 2, 0]),
        ("hgx-h100-4", [1, 4, 0, 2, 0]),
        ("dgx-a100", [1, 8, 6, 8, 8]),
        ("dgx-h100", [1, 8, 4, 2, 8]),
        ("hgx-h200", [1, 8, 4, 2, 0]),
        ("hgx-b200", [1, 8, 2, 2, 0]),
        ("dgx-h200", [1, 8, 4, 2, 8]),
        ("dgx-b200", [1, 8, 2, 2, 8]),
        ("hgx-b300", [1, 8, 2, 2, 8]),
        ("dgx-b300", [1, 8, 2, 2, 8]),
        ("4x-gh200", [1, 4, 0, 4, 0]),
        ("dgx-gh200", [256, 256, 96 + 36, 256, 0]),
        ("gb200-nvl72", [18, 72, 18, 36, 0]),
        ("gb300-nvl72", [18, 72, 18, 36, 72]),
        ("vr-nvl72", [18, 72, 36, 36, 144]),
        ("dgx-spark", [1, 1, 0, 1, 1]),
        ("8x-mi300x", [1, 8, 0, 2, 0]),
        ("8x-mi325x", [1, 8, 0, 2, 0]),
        ("8x-mi350x", [1, 8, 0, 2, 0]),
        ("8x-mi355x", [1, 8, 0, 2, 0]),
        ("4x-mi250", [1, 8, 0, 2, 0]),
        ("frontier-node", [1, 8, 0, 4, 4]),
        ("aurora-node", [1, 6, 0, 2, 8]),
        ("p3dn", [1, 8, 0, 2, 1]),
        ("p4d", [1, 8, 6, 2, 4]),
        ("p4de", [1, 8, 6, 2, 4]),
        ("p5", [1, 8, 4, 2, 32]),
        ("p5e", [1, 8, 4, 2, 32]),
        ("p5en", [1, 8, 4, 2, 16]),
        ("p6-b200", [1, 8, 2, 2, 8]),
        ("p6-b300", [1, 8, 2, 2, 16]),
        ("p6e-gb200", [18, 72, 18, 36, 144]),
        ("p6e-gb300", [18, 72, 18, 36, 144]),
        ("g5", [1, 8, 0, 2, 1]),
        ("g6", [1, 8, 0, 2, 1]),
        ("g6e", [1, 8, 0, 2, 4]),
        ("ndv2", [1, 8, 0, 2, 1]),
        ("nc-a100-v4", [1, 4, 0, 4, 0]),
        ("nd-a100-v4", [1, 8, 6, 4, 8]),
        ("nd-h100-v5", [1, 8, 4, 2, 8]),
        ("nd-h200-v5", [1, 8, 4, 2, 8]),
        ("nd-mi300x-v5", [1, 8, 0, 2, 8]),
        ("nd-gb200-v6", [18, 72, 18, 36, 72]),
        ("nd-gb300-v6", [18, 72, 18, 36, 72]),
        ("a2-high", [1, 8, 6, 2, 1]),
        ("a2-ultra", [1, 8, 6, 2, 1]),
        ("a3-high", [1, 8, 4, 2, 4]),
        ("a3-mega", [1, 8, 4, 2, 8]),
        ("a3-ultra", [1, 8, 4, 2, 8]),
        ("a4", [1, 8, 2, 2, 8]),
        ("a4x", [18, 72, 18, 36, 72]),
        ("a4x-max", [18, 72, 18, 36, 72]),
        ("bm-gpu-a100-v2-8", [1, 8, 6, 2, 16]),
        ("bm-gpu-h100-8", [1, 8, 4, 2, 16]),
        ("bm-gpu-h200-8", [1, 8, 4, 2, 8]),
        ("bm-gpu-b200-8", [1, 8, 2, 2, 8]),
        ("bm-gpu-mi300x-8", [1, 8, 0, 2, 8]),
    ];
    let found: Vec<_> = systems::all()
        .map(|system| {
            let fabric = system.fabric();
            let sizes = [
                fabric.hosts().len(),
                fabric.gpus().len(),
                count(&fabric, |kind| matches!(kind, DeviceKind::NvSwitch { .. })),
                count(&fabric, |kind| matches!(kind, DeviceKind::Numa(_))),
                count(&fabric, |kind| matches!(kind, DeviceKind::Nic(_))),
            ];
            (system.name, sizes)
        })
        .collect();
    assert_eq!(found, expected);
}

/// The matrix of direct links between GPUs, as `nvidia-smi topo -m` prints it.
fn matrix(fabric: &Fabric) -> Vec<String> {
    let cell = |a: DeviceId, b: DeviceId| {
        let direct = gpu_fabric_links(fabric, a).filter(|link| link.target == b);
        match direct.map(|link| link.count).sum::<u32>() {
            _ if a == b => "X".to_owned(),
            0 => "-".to_owned(),
            links => format!("NV{links}"),
        }
    };
    let row = |&a: &DeviceId| {
        let cells: Vec<String> = fabric.gpus().iter().map(|&b| cell(a, b)).collect();
        cells.join(" ")
    };
    fabric.gpus().iter().map(row).collect()
}

#[test]
fn the_cube_mesh_is_the_published_one() {
    let published = [
        "X NV1 NV1 NV2 NV2 - - -",
        "NV1 X NV2 NV1 - NV2 - -",
        "NV1 NV2 X NV2 - - NV1 -",
        "NV2 NV1 NV2 X - - - NV1",
        "NV2 - - - X NV1 NV1 NV2",
        "- NV2 - - NV1 X NV2 NV1",
        "- - NV1 - NV1 NV2 X NV2",
        "- - - NV1 NV2 NV1 NV2 X",
    ];
    assert_eq!(matrix(&system("dgx-1-v100")), published);
    assert_eq!(matrix(&system("p3dn")), published);
    // The P100 has the same edges, each once.
    let single: Vec<String> = published.iter().map(|row| row.replace("NV2", "NV1")).collect();
    assert_eq!(matrix(&system("dgx-1-p100")), single);
}

#[test]
fn dies_of_mi200_packages_are_wired_as_published() {
    let frontier = [
        "X NV4 NV1 - - - NV2 -",
        "NV4 X - NV1 - NV1 - -",
        "NV1 - X NV4 NV2 - - -",
        "- NV1 NV4 X - - - NV1",
        "- - NV2 - X NV4 NV1 -",
        "- NV1 - - NV4 X - NV1",
        "NV2 - - - NV1 - X NV4",
        "- - - NV1 - NV1 NV4 X",
    ];
    assert_eq!(matrix(&system("frontier-node")), frontier);
    let mi250 = [
        "X NV4 - - NV2 - NV1 -",
        "NV4 X - NV1 - - - NV1",
        "- - X NV4 NV1 - NV2 -",
        "- NV1 NV4 X - NV1 - -",
        "NV2 - NV1 - X NV4 - -",
        "- - - NV1 NV4 X - NV1",
        "NV1 - NV2 - - - X NV4",
        "- NV1 - - - NV1 NV4 X",
    ];
    assert_eq!(matrix(&system("4x-mi250")), mi250);
}

#[test]
fn bridges_join_pairs_only() {
    let pairs = ["X NV12 - -", "NV12 X - -", "- - X NV12", "- - NV12 X"];
    assert_eq!(matrix(&system("4x-a100-pcie-bridge")), pairs);
    assert_eq!(matrix(&system("2x-rtx3090-bridge")), ["X NV4", "NV4 X"]);
    assert_eq!(matrix(&system("2x-rtx3090")), ["X -", "- X"]);
}

/// PCIe generation and width of a GPU's slot and of the link above its PCIe switch.
fn pcie_above(fabric: &Fabric, gpu: DeviceId) -> ((u8, u8), (u8, u8)) {
    let pcie = |device: DeviceId, below: Option<DeviceId>| {
        let mut up = fabric.links_from(device).iter().filter(|link| {
            let leads_up = matches!(
                fabric.device(link.target).kind,
                DeviceKind::PcieSwitch | DeviceKind::RootPort | DeviceKind::Numa(_)
            );
            leads_up && Some(link.target) != below
        });
        up.find_map(|link| match fabric.spec(link).kind {
            LinkKind::Pcie { generation, width } => Some((link.target, (generation, width))),
            _ => None,
        })
        .expect("a PCIe link upward")
    };
    let (parent, slot) = pcie(gpu, None);
    (slot, pcie(parent, Some(gpu)).1)
}

#[test]
fn pcie_links_run_at_the_slower_end() {
    for (name, slot, above) in [
        ("p4d", (3, 16), (3, 16)), // A100s, Gen4, in a Gen3 host
        ("p5", (5, 16), (4, 16)),  // Gen5 switches below Milan
        ("p5en", (5, 16), (5, 16)),
        ("p6-b200", (5, 16), (5, 16)),
        ("p6-b300", (6, 16), (5, 16)),
        ("p6e-gb200", (5, 16), (4, 1)),
        ("p6e-gb300", (5, 16), (4, 1)),
        ("aurora-node", (5, 16), (5, 16)),
        ("hgx-b300", (6, 16), (5, 16)), // Gen6 below the ConnectX-8, Gen5 to the CPU
        ("gb300-nvl72", (6, 16), (5, 16)),
        ("2x-rtx4090", (4, 16), (4, 16)),
        ("8x-rtx5090", (5, 16), (5, 16)),
    ] {
        let fabric = system(name);
        for &gpu in fabric.gpus() {
            assert_eq!(pcie_above(&fabric, gpu), (slot, above), "{name}");
        }
    }
}

#[test]
fn grace_gpus_reach_their_cpu_over_c2c() {
    // Links of each GPU; both ways, 900 GB/s for a GH200 and for the two GPUs of a GB200 together.
    for (name, count) in [("4x-gh200", 10), ("dgx-gh200", 10), ("gb200-nvl72", 5), ("gb300-nvl72", 5)] {
        let fabric = system(name);
        for &gpu in fabric.gpus() {
            let to_cpu = fabric.links_from(gpu).iter().find(|link| {
                matches!(fabric.device(link.target).kind, DeviceKind::Numa(_))
                    && fabric.spec(link).kind == LinkKind::C2c
            });
            assert_eq!(to_cpu.map(|link| link.count), Some(count), "{name}");
        }
    }
}

#[test]
fn nd_a100_v4_has_its_gpus_on_the_published_nodes() {
    let fabric = system("nd-a100-v4");
    let numa_of = |gpu: DeviceId| {
        let mut seen = vec![gpu];
        loop {
            let last = *seen.last().unwrap();
            if let DeviceKind::Numa(numa) = &fabric.device(last).kind {
                return numa.id;
            }
            let up = fabric.links_from(last).iter().map(|link| link.target).find(|target| {
                !seen.contains(target)
                    && matches!(
                        fabric.device(*target).kind,
                        DeviceKind::PcieSwitch | DeviceKind::RootPort | DeviceKind::Numa(_)
                    )
            });
            seen.push(up.unwrap());
        }
    };
    let nodes: Vec<i32> = fabric.gpus().iter().map(|&gpu| numa_of(gpu)).collect();
    assert_eq!(nodes, [1, 1, 0, 0, 3, 3, 2, 2]);
}
