//! Networks of hosts from `ibnetdiscover` and Slurm, alone and with the type of their hosts.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use weftlink_fabric::bisection::bisection;
use weftlink_fabric::device::Tier;
use weftlink_fabric::format::network::{self, AttachError, HostNetwork};
use weftlink_fabric::format::{self, document, hwloc};
use weftlink_fabric::spec::HostSpec;
use weftlink_fabric::summary::Summary;
use weftlink_fabric::{DeviceKind, Fabric, Measure, Paths, resolve};

fn bytes(file: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    std::fs::read(folder.join(file)).expect(file)
}

fn network(file: &str) -> HostNetwork {
    network::read(&bytes(file)).expect(file).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn attached(file: &str, host: &Fabric, spec: &str) -> Result<Fabric, AttachError> {
    let text = format!("{file} + {spec}");
    let spec = HostSpec::parse(&text, file.len() + 3).unwrap_or_else(|error| panic!("{error}"));
    network(file).with_host(&text, host, &spec)
}

fn cluster(file: &str, spec: &str) -> Fabric {
    let host = resolve(spec.split([' ', ',']).next().unwrap()).unwrap();
    attached(file, &host, spec).unwrap_or_else(|error| panic!("{file} + {spec}: {error}"))
}

fn cables(fabric: &Fabric, from: &str, to: &str) -> u32 {
    let [from, to] = [from, to].map(|name| fabric.find(name).unwrap_or_else(|| panic!("no {name}")));
    fabric.links_from(from).iter().filter(|link| link.target == to).map(|link| link.count).sum()
}

fn bisection_gb(fabric: &Fabric) -> f64 {
    let found = bisection(&Paths::of(fabric), Measure::Nominal).unwrap();
    assert!(found.is_exact(), "{found:?}");
    found.upper.gb()
}

#[test]
fn a_missing_cable_counts_in_the_bisection() {
    // Four HDR cables leave each leaf, two to each spine: 100 GB/s. GPUs and NICs can carry more than that.
    let whole = cluster("ibnetdiscover/two-leaves.ibnet", "2x-rtx4090");
    let cut = cluster("ibnetdiscover/missing-cable.ibnet", "2x-rtx4090");
    assert_eq!(cables(&whole, "leaf02", "spine02"), 2);
    assert_eq!(cables(&cut, "leaf02", "spine02"), 1);
    assert_eq!(bisection_gb(&whole), 100.0);
    assert_eq!(bisection_gb(&cut), 75.0);
    let past_the_leaf = |fabric: &Fabric| Summary::of(&Paths::of(fabric)).cliff.len();
    assert_eq!(past_the_leaf(&cut), past_the_leaf(&whole) + 1, "the cut leaf is a level of the cliff");
}

#[test]
fn hosts_switches_and_ports_keep_their_names() {
    let fabric = cluster("ibnetdiscover/rails.ibnet", "hgx-h100");
    assert_eq!((fabric.hosts().len(), fabric.gpus().len()), (2, 16));
    assert_eq!(fabric.hosts()[1].name, "node002");
    assert_eq!(fabric.hosts()[1].system.as_deref(), Some("hgx-h100"));
    assert_eq!(fabric.device_name(fabric.gpus()[8]), "node002/gpu0");
    assert_eq!(fabric.find("leaf03"), fabric.find("leaf2"));
    assert_eq!(cables(&fabric, "node002/nic5", "leaf06"), 1);
    let paths = Paths::of(&fabric);
    let path = |a: &str, b: &str| paths.path(fabric.find(a).unwrap(), fabric.find(b).unwrap());
    // NIC 5 is on the PCIe switch of GPU 5.
    assert_eq!(path("node001/gpu5", "node001/nic5").cell(), "PIX");
    assert_eq!(path("node001/gpu0", "node002/gpu0").cell(), "NET");
    assert_eq!(Summary::of(&paths).nics.unwrap().describe(1), "8 x 50 GB/s");
}

#[test]
fn nics_of_the_host_type_take_the_cables() {
    let fabric = cluster("ibnetdiscover/rails.ibnet", "dgx-h100");
    let nics = fabric.devices_where(|kind| matches!(kind, DeviceKind::Nic(_))).count();
    assert_eq!(nics, 16, "no NIC is added");
    let fabric = cluster("ibnetdiscover/two-leaves.ibnet", "dgx-h100");
    assert!(fabric.notes().iter().any(|note| note.starts_with("24 NICs of dgx-h100 have no cable")));
}

#[test]
fn alone_a_network_has_no_gpus_and_says_how_to_add_them() {
    for (file, hosts, leaves, spines) in [
        ("ibnetdiscover/two-leaves.ibnet", 4, 2, 2),
        ("ibnetdiscover/rails.ibnet", 2, 8, 4),
        ("slurm/tree.conf", 8, 2, 1),
        ("slurm/rails.conf", 4, 4, 3),
        ("slurm/blocks.conf", 8, 2, 1),
    ] {
        let fabric = format::read(&bytes(file), file, None).unwrap();
        let switches = |tier| fabric.devices_where(move |kind| *kind == DeviceKind::NetSwitch(tier)).count();
        assert_eq!((fabric.hosts().len(), fabric.gpus().len()), (hosts, 0), "{file}");
        assert_eq!((switches(Tier::Leaf), switches(Tier::Spine)), (leaves, spines), "{file}");
        assert!(fabric.notes()[0].contains(&format!("\"{file} + hgx-h100")), "{:?}", fabric.notes());
        let toml = document::write_toml(&fabric).unwrap();
        assert!(document::read_toml(toml.as_bytes()).unwrap() == fabric, "{file}");
    }
}

#[test]
fn a_tree_is_cabled_as_the_options_say() {
    let fabric = cluster("slurm/tree.conf", "hgx-h100 + 8x ndr");
    assert_eq!(fabric.device_name(fabric.gpus()[63]), "node008/gpu7");
    assert_eq!(cables(&fabric, "node005/nic7", "leaf2"), 1);
    assert_eq!(cables(&fabric, "leaf1", "spine"), 32);
    let fabric = cluster("slurm/tree.conf", "dgx-h100, oversubscribed 2:1");
    assert_eq!(cables(&fabric, "leaf1", "spine"), 16);
    let fabric = cluster("slurm/blocks.conf", "2x-rtx4090 + 1x hdr");
    assert_eq!(cables(&fabric, "rack2", "spine"), 4);
}

#[test]
fn a_node_below_two_leaves_alternates_its_nics() {
    let fabric = cluster("slurm/rails.conf", "2x-rtx4090 + 2x hdr");
    assert_eq!(cables(&fabric, "gpu-a1/nic0", "pod1-rail1"), 1);
    assert_eq!(cables(&fabric, "gpu-a1/nic1", "pod1-rail2"), 1);
    // Two rails of two hosts below each pod.
    assert_eq!(cables(&fabric, "pod1-rail1", "pod1"), 2);
    assert_eq!(cables(&fabric, "pod1", "core"), 4);
    assert!(bisection(&Paths::of(&fabric), Measure::Nominal).unwrap().upper.gb() > 0.0);
}

#[test]
fn the_hosts_with_gpus_can_be_named() {
    let fabric = cluster("slurm/tree.conf", "2x-rtx4090 + 1x hdr, hosts node[001-003,006]");
    assert_eq!((fabric.hosts().len(), fabric.gpus().len()), (8, 8));
    assert_eq!(fabric.device_name(*fabric.gpus().last().unwrap()), "node006/gpu1");
    let host = resolve("2x-rtx4090").unwrap();
    for (list, reason) in [
        ("node[001-009]", "no host `node009`"),
        ("node[0-999999999]", "the limit is 100000"),
        ("node[001", "without `]`"),
    ] {
        let error = attached("slurm/tree.conf", &host, &format!("h + 1x hdr, hosts {list}")).unwrap_err();
        assert!(error.to_string().contains(reason), "{list}: {error}");
    }
}

#[test]
fn a_host_of_lstopo_is_a_host_type() {
    let host = hwloc::read(&bytes("hwloc/four-h100.xml"), "four-h100.xml").unwrap();
    let fabric = attached("ibnetdiscover/two-leaves.ibnet", &host, "four-h100.xml").unwrap();
    assert_eq!((fabric.hosts().len(), fabric.gpus().len()), (4, 16));
    // The names mlx5_0 and mlx5_1 of both files match; the rates are those of the cables.
    assert_eq!(cables(&fabric, "node001/nic0", "leaf01"), 1);
    assert_eq!(Summary::of(&Paths::of(&fabric)).nics.unwrap().describe(1), "2 x 25 GB/s");
    let fabric = attached("slurm/tree.conf", &host, "four-h100.xml + 2x ndr").unwrap();
    assert_eq!(Summary::of(&Paths::of(&fabric)).nics.unwrap().describe(1), "2 x 50 GB/s");
    assert_eq!(cables(&fabric, "leaf1", "spine"), 8);
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let system = |name: &str| resolve(name).unwrap();
    for (file, host, spec, reason) in [
        ("slurm/tree.conf", "hgx-h100", "h", "has no NICs and the file lists none"),
        ("slurm/tree.conf", "dgx-h100", "h + 8x ndr", "has its own NICs"),
        ("slurm/tree.conf", "gb200-nvl72", "h + 4x ndr", "has 18 hosts"),
        ("ibnetdiscover/rails.ibnet", "hgx-h100", "h + 8x ndr", "remove `+ NICSx NETWORK`"),
        ("ibnetdiscover/rails.ibnet", "hgx-h100", "h, oversubscribed 2:1", "remove `oversubscribed`"),
    ] {
        let error = attached(file, &system(host), spec).unwrap_err();
        assert!(error.to_string().contains(reason), "{file} + {host}: {error}");
    }
}
