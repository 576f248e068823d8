//! Paths on the catalog's systems.

use weftlink_fabric::bisection::bisection;
use weftlink_fabric::catalog::{links, systems};
use weftlink_fabric::device::{Gpu, Numa};
use weftlink_fabric::paths::worse;
use weftlink_fabric::{DeviceKind, Fabric, FabricBuilder, Measure, Path, PathType, Paths};

fn system(name: &str) -> Fabric {
    systems::by_name(name).unwrap_or_else(|| panic!("no system {name}")).fabric()
}

fn cells(name: &str) -> Vec<Vec<String>> {
    let fabric = system(name);
    let matrix = Paths::of(&fabric).matrix(fabric.gpus());
    matrix.iter().map(|row| row.iter().map(|path| path.cell()).collect()).collect()
}

#[test]
fn every_pair_of_an_hgx_has_all_links() {
    for (a, row) in cells("hgx-h100").iter().enumerate() {
        for (b, cell) in row.iter().enumerate() {
            assert_eq!(cell, if a == b { "X" } else { "NV18" });
        }
    }
    let fabric = system("hgx-h100");
    let paths = Paths::of(&fabric);
    let path = paths.path(fabric.gpus()[0], fabric.gpus()[7]);
    assert_eq!((path.kind, path.hops), (PathType::Nvl, 2));
    assert_eq!((path.width.nominal.gb(), path.width.effective.gb()), (450.0, 370.8));
    let route = paths.route(fabric.gpus()[0], fabric.gpus()[7]);
    assert_eq!(route.stations.iter().map(Vec::len).collect::<Vec<_>>(), [1, 4, 1]);
    assert_eq!(bisection(&paths, Measure::Nominal).unwrap().upper.both_ways().gb(), 3600.0);
}

#[test]
fn the_cube_mesh_has_single_and_double_links_and_relays() {
    let expected = [
        "X NV1 NV1 NV2 NV2 NVB NVB NVB",
        "NV1 X NV2 NV1 NVB NV2 NVB NVB",
        "NV1 NV2 X NV2 NVB NVB NV1 NVB",
        "NV2 NV1 NV2 X NVB NVB NVB NV1",
    ];
    let cells = cells("dgx-1-v100");
    for (row, expected) in cells.iter().zip(expected) {
        assert_eq!(row.join(" "), expected);
    }
}

#[test]
fn consumer_cards_connect_through_the_cpu() {
    assert_eq!(cells("2x-rtx4090"), [["X", "PHB"], ["PHB", "X"]]);
}

#[test]
fn a_rack_is_one_domain() {
    let fabric = system("gb200-nvl72");
    let paths = Paths::of(&fabric);
    let classes = paths.classes();
    assert_eq!(classes.len(), 1);
    assert_eq!((classes[0].path.cell(), classes[0].pairs), ("NV18".to_owned(), 72 * 71 / 2));
    let bisection = bisection(&paths, Measure::Nominal).unwrap();
    assert!(bisection.is_exact());
    assert_eq!(bisection.upper.gb(), 36.0 * 900.0);
}

#[test]
fn bisection_of_the_cube_mesh_is_exact() {
    let fabric = system("dgx-1-v100");
    let bisection = bisection(&Paths::of(&fabric), Measure::Nominal).unwrap();
    assert!(bisection.is_exact());
    // Six links of 25 GB/s cross between the quads.
    assert_eq!(bisection.upper.gb(), 150.0);
}

fn cluster(spec: &str) -> Fabric {
    weftlink_fabric::resolve(spec).unwrap_or_else(|error| panic!("{spec}: {error}"))
}

fn path(fabric: &Fabric, from: &str, to: &str) -> Path {
    let id = |name: &str| fabric.find(name).unwrap_or_else(|| panic!("no {name}"));
    Paths::of(fabric).path(id(from), id(to))
}

fn kind(fabric: &Fabric, from: &str, to: &str) -> PathType {
    path(fabric, from, to).kind
}

#[test]
fn a_cluster_crosses_on_rails() {
    let fabric = cluster("2x hgx-h100 + 8x ndr");
    assert_eq!(kind(&fabric, "host0/gpu0", "host0/nic0"), PathType::Pix);
    // The path to another GPU's NIC leads through that GPU; the path back does not.
    assert_eq!(kind(&fabric, "host0/gpu0", "host0/nic5"), PathType::Pxn);
    assert_eq!(kind(&fabric, "host0/nic1", "host0/gpu0"), PathType::Phb);
    assert_eq!(kind(&fabric, "host0/nic5", "host0/gpu0"), PathType::Sys);
    let same_rail = path(&fabric, "host0/gpu3", "host1/gpu3");
    assert_eq!((same_rail.kind, same_rail.hops, same_rail.width.nominal.gb()), (PathType::Net, 6, 50.0));
    let other_rail = Paths::of(&fabric).route(fabric.gpus()[0], fabric.gpus()[8 + 3]);
    let names: Vec<String> =
        other_rail.stations.iter().map(|station| fabric.device_name(station[0])).collect();
    assert_eq!(
        names,
        [
            "host0/gpu0",
            "host0/nvswitch0",
            "host0/gpu3",
            "host0/pcie3",
            "host0/nic3",
            "leaf3",
            "host1/nic3",
            "host1/pcie3",
            "host1/gpu3"
        ]
    );
    assert_eq!(other_rail.path.hops as usize, names.len() - 1);
}

#[test]
fn grace_sends_over_c2c_first() {
    let fabric = cluster("1x gb200-nvl72 + 4x ndr");
    assert_eq!(kind(&fabric, "rack0-host0/gpu0", "rack0-host0/numa0"), PathType::C2c);
    assert_eq!(kind(&fabric, "rack0-host0/gpu0", "rack0-host0/nic0"), PathType::P2c);
    assert_eq!(kind(&fabric, "rack0-host0/gpu0", "rack0-host17/gpu3"), PathType::Nvl);
}

#[test]
fn hosts_without_a_network_are_disconnected() {
    let fabric = cluster("2x 2x-rtx4090");
    assert_eq!(kind(&fabric, "host0/gpu0", "host0/gpu1"), PathType::Phb);
    assert_eq!(kind(&fabric, "host0/gpu0", "host1/gpu0"), PathType::Dis);
    assert_eq!(kind(&fabric, "host0/gpu0", "host0/gpu0"), PathType::Loc);
}

#[test]
fn two_levels_of_switches_carry_every_link() {
    for (name, links, cut_gb) in [("dgx-2", 6, 8.0 * 150.0), ("dgx-gh200", 18, 128.0 * 450.0)] {
        let fabric = system(name);
        let paths = Paths::of(&fabric);
        assert!(paths.classes().iter().all(|class| class.path.width.links == links), "{name}");
        let bisection = bisection(&paths, Measure::Nominal).unwrap();
        assert!(bisection.is_exact(), "{name}: {bisection:?}");
        assert_eq!(bisection.upper.gb(), cut_gb, "{name}");
    }
}

#[test]
fn oversubscription_reduces_the_bisection() {
    for (spec, gb) in [
        ("2x hgx-h100 + 8x ndr", 8.0 * 50.0),
        ("128x hgx-h100 + 8x ndr", 512.0 * 50.0),
        // Leaves of 42 ports down and 21 up: two units of 42 hosts.
        ("84x hgx-h100 + 8x ndr, oversubscribed 2:1", 336.0 * 25.0),
        // Six hosts on each of two leaves.
        ("12x hgx-h100 + 8x ndr, leaf-spine, oversubscribed 4:1", 48.0 * 12.5),
    ] {
        let fabric = cluster(spec);
        let found = bisection(&Paths::of(&fabric), Measure::Nominal).unwrap();
        assert!(found.lower <= found.upper);
        assert!((found.upper.gb() / gb - 1.0).abs() < 0.05, "{spec}: {found:?}, expected {gb}");
        assert!(found.lower.gb() > 0.9 * gb, "{spec}: {found:?}");
    }
}

#[test]
fn classes_agree_with_the_matrix() {
    for spec in [
        "2x hgx-h100 + 8x ndr",
        "3x dgx-1-v100 + 4x edr",
        "2x 4x-a100-pcie-bridge + 1x hdr, leaf-spine",
        "5x 2x-rtx3090",
        "70x 2x-rtx3090 + 2x hdr",
        "9x hgx-a100 + 3x hdr, leaf-spine, oversubscribed 3:1, leaf-ports 16",
    ] {
        let fabric = cluster(spec);
        let paths = Paths::of(&fabric);
        let matrix = paths.matrix(fabric.gpus());
        for class in paths.classes() {
            let pairs =
                (0..matrix.len()).flat_map(|b| matrix[b][..b].iter().enumerate().map(move |(a, _)| (a, b)));
            let same = pairs.filter(|(a, b)| worse(matrix[*a][*b], matrix[*b][*a]) == class.path).count();
            assert_eq!(same as u64, class.pairs, "{spec}: {:?}", class.path);
        }
    }
}

#[test]
fn one_slow_link_makes_a_different_shape() {
    let regular = cluster("4x hgx-h100 + 8x ndr");
    assert_eq!(Paths::of(&regular).islands().shapes(), 1);
    let text = "weft = 1\nbase = \"4x hgx-h100 + 8x ndr\"\n[[override]]\nbetween = [\"host2/gpu5\", \"host2/nvswitch1\"]\n\
                gb_per_s_each_way = 5.0\nsource = \"measured\"\n";
    let slowed = weftlink_fabric::format::document::read_toml(text.as_bytes()).unwrap();
    assert_eq!(Paths::of(&slowed).islands().shapes(), 2);
    let width = |host: &str| path(&slowed, &format!("{host}/gpu5"), &format!("{host}/gpu0")).width.effective;
    assert!(width("host2") < width("host1"));
}

/// Two PCIe switches below a third, a GPU below each, and two GPUs on C2C to one CPU.
#[test]
fn switches_in_a_row_and_shared_c2c() {
    let mut builder = FabricBuilder::new("by hand");
    let host = builder.host("host0", None);
    let mut add = |kind| builder.add(Some(host), kind);
    let gpu = || DeviceKind::Gpu(Gpu::default());
    let cpu = add(DeviceKind::Numa(Numa::default()));
    let [top, left, right] = [(); 3].map(|()| add(DeviceKind::PcieSwitch));
    let [a, b, c, d] = [(); 4].map(|()| add(gpu()));
    let pcie = builder.spec(links::pcie(5, 16));
    let c2c = builder.spec(links::C2C.clone());
    for (above, below) in [(cpu, top), (top, left), (top, right), (left, a), (right, b)] {
        builder.connect(above, below, 1, pcie);
    }
    builder.connect(cpu, c, 5, c2c);
    builder.connect(cpu, d, 5, c2c);
    let fabric = builder.finish().unwrap();
    let paths = Paths::of(&fabric);
    assert_eq!(paths.path(a, b).kind, PathType::Pxb);
    assert_eq!(paths.path(c, d).kind, PathType::C2c);
    assert_eq!(paths.path(a, c).kind, PathType::P2c);
}

#[test]
fn one_way_links_connect_islands() {
    let one_way = |pairs: &[(usize, usize)]| {
        let mut builder = FabricBuilder::new("one way");
        let host = builder.host("host0", None);
        let gpus = [(); 4].map(|()| builder.add(Some(host), DeviceKind::Gpu(Gpu::default())));
        let nvlink = builder.spec(links::NVLINK[1].clone());
        for (a, b) in pairs {
            builder.link(gpus[*a], gpus[*b], 2, nvlink);
        }
        builder.finish().unwrap()
    };
    let fabric = one_way(&[(0, 2), (1, 2), (2, 3), (3, 0)]);
    let paths = Paths::of(&fabric);
    assert_eq!(paths.islands().all().len(), 1);
    assert_eq!(paths.classes().iter().map(|class| class.pairs).sum::<u64>(), 6);
    assert_eq!(paths.path(fabric.gpus()[0], fabric.gpus()[2]).kind, PathType::Nvl);
    assert_eq!(paths.path(fabric.gpus()[2], fabric.gpus()[0]).kind, PathType::Nvb);
    assert_eq!(paths.path(fabric.gpus()[2], fabric.gpus()[1]).kind, PathType::Dis);
    // Islands whose GPUs alternate in number.
    let fabric = one_way(&[(0, 2), (2, 0), (1, 3), (3, 1)]);
    assert_eq!(Paths::of(&fabric).classes().iter().map(|class| class.pairs).sum::<u64>(), 6);
}

#[test]
fn a_gpu_without_pcie_is_reachable_over_nvlink_only() {
    let mut builder = FabricBuilder::new("half wired");
    let host = builder.host("host0", None);
    let cpu = builder.add(Some(host), DeviceKind::Numa(Numa::default()));
    let [a, b] = [(); 2].map(|()| builder.add(Some(host), DeviceKind::Gpu(Gpu::default())));
    let (pcie, nvlink) = (builder.spec(links::pcie(5, 16)), builder.spec(links::NVLINK[3].clone()));
    builder.connect(cpu, a, 1, pcie);
    builder.connect(a, b, 4, nvlink);
    let fabric = builder.finish().unwrap();
    let paths = Paths::of(&fabric);
    assert_eq!(paths.path(a, b).kind, PathType::Nvl);
    assert_eq!(paths.path(b, cpu).kind, PathType::Dis);
    assert_eq!(paths.path(cpu, b).kind, PathType::Dis);
}

#[test]
fn a_route_names_the_switches_it_passes() {
    let fabric = cluster("70x hgx-h100 + 8x ndr");
    let id = |name: &str| fabric.find(name).unwrap();
    let route = Paths::of(&fabric).route(id("host1/gpu2"), id("host69/gpu2"));
    let names: Vec<String> = route.stations.iter().map(|station| fabric.device_name(station[0])).collect();
    // Units of 32 hosts, eight leaves each: the third unit's leaf for rail 2 is leaf 18.
    assert_eq!(names[3..6], ["leaf2", "spine0", "leaf18"], "{names:?}");
    assert_eq!(route.path.hops as usize, names.len() - 1);
    let wired = |pair: &[Vec<_>]| fabric.links_from(pair[0][0]).iter().any(|link| link.target == pair[1][0]);
    assert!(route.stations.windows(2).all(wired), "{names:?}");
}

#[test]
fn paths_avoid_failed_links() {
    let fabric = system("hgx-h100");
    let gpus = fabric.gpus();
    let ports: Vec<_> = fabric
        .links_from(gpus[3])
        .iter()
        .filter(|link| fabric.spec(link).kind.is_gpu_fabric())
        .map(|link| (link.target, gpus[3]))
        .collect();
    let left = fabric.without(&ports);
    assert_eq!(left.links().len(), fabric.links().len() - 2 * ports.len());
    assert_eq!(left.gpus(), gpus);
    let paths = Paths::of(&left);
    assert_eq!(paths.path(gpus[0], gpus[1]).kind, PathType::Nvl);
    assert!(paths.path(gpus[0], gpus[3]).kind > PathType::Nvl);
    assert_eq!(fabric.without(&[]), fabric);
}
