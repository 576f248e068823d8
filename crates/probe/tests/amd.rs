//! Recorded machines with AMD GPUs: their GPUs and xGMI links, from the topology of the kernel driver.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use weftlink_fabric::catalog::systems;
use weftlink_fabric::{DeviceId, Fabric, LinkSpec};
use weftlink_probe::links::{self, Kind};
use weftlink_probe::{Recording, probe, record};

const NODES: &str = "sys/class/kfd/kfd/topology/nodes";

/// A machine whose GPUs have the given PCI device and architecture, with `mb_per_s(a, b)` the least and most bandwidth.
fn machine(gpus: u32, device: u32, gfx: u32, mb_per_s: impl Fn(u32, u32) -> Option<(u64, u64)>) -> Recording {
    let mut text =
        "# weft recording 1\nproc/cpuinfo = vendor_id : AuthenticAMD\\ncpu family : 25\n".to_owned();
    text += &format!("{NODES}/0/properties = cpu_cores_count 64\\nsimd_count 0\n");
    for gpu in 0..gpus {
        let bus = format!("0000:{:02x}:00.0", gpu + 1);
        let path = format!("sys/bus/pci/devices/{bus}");
        text += &format!("{path} -> ../../../devices/pci0000:00/{bus}\n{path}/class = 0x120000\n");
        text += &format!("{path}/vendor = 0x1002\n{path}/device = {device:#06x}\n");
        text += &format!(
            "{NODES}/{}/properties = simd_count 440\\nvendor_id 4098\\ndevice_id {device}\\nlocation_id {}\\ndomain 0\\n\
             gfx_target_version {gfx}\\nhive_id 123456789\\nunique_id 987654321{gpu}\n",
            gpu + 1,
            (gpu + 1) << 8
        );
        text += &format!("{NODES}/{}/io_links/0/properties = type 2\\nnode_to 0\\nweight 20\n", gpu + 1);
        for peer in (0..gpus).filter(|peer| *peer != gpu) {
            let Some((least, most)) = mb_per_s(gpu, peer) else { continue };
            text += &format!(
                "{NODES}/{}/io_links/{}/properties = type 11\\nnode_from {}\\nnode_to {}\\nweight 15\\n\
                 min_bandwidth {least}\\nmax_bandwidth {most}\n",
                gpu + 1,
                peer + 1,
                gpu + 1,
                peer + 1
            );
        }
    }
    text.parse().unwrap()
}

fn between(fabric: &Fabric, one: DeviceId, other: DeviceId) -> Vec<(u32, &LinkSpec)> {
    let links = fabric.links_from(one).iter().filter(|link| link.target == other);
    links.map(|link| (link.count, fabric.spec(link))).filter(|(_, spec)| spec.kind.is_gpu_fabric()).collect()
}

/// Asserts that GPUs of both fabrics have the same links.
fn assert_wired_like(fabric: &Fabric, system: &str) {
    let catalog = systems::by_name(system).unwrap().fabric();
    assert_eq!(fabric.gpus().len(), catalog.gpus().len());
    for (a, x) in fabric.gpus().iter().zip(catalog.gpus()) {
        for (b, y) in fabric.gpus().iter().zip(catalog.gpus()) {
            assert_eq!(between(fabric, *a, *b), between(&catalog, *x, *y), "{a:?} to {b:?}");
        }
    }
}

/// The links of the dies of four MI250 that the catalog has: RCCL's model 66.
fn mi250(one: u32, other: u32) -> Option<(u64, u64)> {
    let catalog = systems::by_name("4x-mi250").unwrap().fabric();
    let [one, other] = [one, other].map(|gpu| catalog.gpus()[gpu as usize]);
    let count = between(&catalog, one, other).first().map_or(0, |(count, _)| u64::from(*count));
    // Dies that are not connected directly are listed without bandwidth.
    Some(if count == 0 { (0, 0) } else { (50_000, 50_000 * count) })
}

#[test]
fn four_mi250_have_the_links_of_the_catalog() {
    let recording = machine(8, 0x740c, 90_010, mi250);
    let fabric = probe(&recording, &recording).unwrap();
    assert_wired_like(&fabric, "4x-mi250");
    assert!(
        fabric.notes().iter().all(|note| !note.contains("xGMI") && !note.contains("links")),
        "{:?}",
        fabric.notes()
    );
}

#[test]
fn eight_mi300x_have_the_links_of_the_catalog() {
    let recording = machine(8, 0x74a1, 90_402, |_, _| Some((64_000, 64_000)));
    let fabric = probe(&recording, &recording).unwrap();
    assert_wired_like(&fabric, "8x-mi300x");
    assert_eq!(fabric.device(fabric.gpus()[0]).kind.gpu_model().unwrap().id, "mi300x");
}

#[test]
fn a_driver_without_bandwidths_gives_one_link_each_and_a_note() {
    let recording = machine(4, 0x74b5, 90_402, |_, _| Some((0, 0)));
    let fabric = probe(&recording, &recording).unwrap();
    let [a, b] = [0, 3].map(|gpu| fabric.gpus()[gpu]);
    assert_eq!(between(&fabric, a, b).len(), 1);
    assert!(
        fabric.notes().iter().any(|note| note.contains("one link between each two GPUs is assumed")),
        "{:?}",
        fabric.notes()
    );
}

#[test]
fn cards_without_the_driver_are_noted() {
    let text = machine(2, 0x74a1, 90_402, |_, _| None).to_string();
    let undriven: String =
        text.lines().filter(|line| !line.contains("kfd")).map(|line| format!("{line}\n")).collect();
    let undriven: Recording = undriven.parse().unwrap();
    let fabric = probe(&undriven, &undriven).unwrap();
    assert_eq!(fabric.gpus().len(), 2);
    assert_eq!(
        fabric.notes().iter().filter(|note| note.contains("does not list it below /sys/class/kfd")).count(),
        2
    );
}

#[test]
fn gpus_that_only_the_driver_shows_are_included() {
    let text = machine(2, 0x74a1, 90_402, |_, _| Some((64_000, 64_000))).to_string();
    let unlisted: String =
        text.lines().filter(|line| !line.contains("bus/pci")).map(|line| format!("{line}\n")).collect();
    let unlisted: Recording = unlisted.parse().unwrap();
    let fabric = probe(&unlisted, &unlisted).unwrap();
    assert_eq!(fabric.gpus().len(), 2);
    assert_eq!(between(&fabric, fabric.gpus()[0], fabric.gpus()[1]).len(), 1);
}

#[test]
fn recordings_have_no_serial_numbers_and_probe_to_the_same_fabric() {
    let recording = machine(8, 0x740c, 90_010, mi250);
    let again = record(&recording, &recording).unwrap();
    let text = again.to_string();
    assert!(!text.contains("987654321") && !text.contains("123456789"), "{text}");
    assert_eq!(probe(&again, &again).unwrap().links(), probe(&recording, &recording).unwrap().links());
}

#[test]
fn links_list_each_peer_of_a_gpu() {
    let links = links::of_tree(&machine(8, 0x740c, 90_010, mi250)).unwrap();
    let first = links.of_kind(Kind::Xgmi).next().unwrap();
    assert_eq!((first.id.to_string(), first.width), ("gpu0 link 0".to_owned(), Some(4)));
    assert_eq!((first.nominal, first.trained), (Some(200_000_000_000), Some(200_000_000_000)));
    assert_eq!(first.remote.as_ref().unwrap().device.as_deref(), Some("gpu1"));
    // Each die of the package has three peers.
    assert_eq!(links.of_kind(Kind::Xgmi).filter(|link| link.id.device == "gpu5").count(), 3);
}
