//! Whole machines: recorded ones and the local one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;

use common::{count, machine, text, unpack, wires};
use weftlink_fabric::catalog::systems;
use weftlink_fabric::device::{DeviceKind, Port};
use weftlink_fabric::link::{LinkKind, Network};
use weftlink_fabric::rate::Rate;
use weftlink_fabric::{DeviceId, Fabric};
use weftlink_probe::{Folder, Nvml, Recording, probe, record, this_machine};

/// NVLinks between two devices.
fn nvlinks(fabric: &Fabric, a: DeviceId, b: DeviceId) -> u32 {
    let links = fabric.links_from(a).iter().filter(|link| link.target == b);
    links.filter(|link| fabric.spec(link).kind.is_gpu_fabric()).map(|link| link.count).sum()
}

fn pcie_above(fabric: &Fabric, device: &str) -> (String, LinkKind) {
    let id = fabric.find(device).unwrap();
    let link = fabric
        .links_from(id)
        .iter()
        .find(|link| matches!(fabric.spec(link).kind, LinkKind::Pcie { .. }) && link.target < id)
        .unwrap();
    (fabric.device_name(link.target), fabric.spec(link).kind)
}

fn ports<'a>(fabric: &'a Fabric, nic: &str) -> &'a [Port] {
    match &fabric.device(fabric.find(nic).unwrap()).kind {
        DeviceKind::Nic(ports) => ports,
        other => panic!("{nic} is {other:?}"),
    }
}

#[test]
fn an_hgx_h100_is_read_whole() {
    let (_, fabric) = machine("hgx-h100.txt");
    // Five root ports: one above each PCIe switch, one above the Ethernet card. Those of the BMC and the NVSwitches are
    // left out.
    for (stem, expected) in
        [("numa", 2), ("port", 5), ("pcie", 4), ("gpu", 8), ("nvswitch", 4), ("nic", 9), ("nvme", 4)]
    {
        assert_eq!(count(&fabric, stem), expected, "{stem}");
    }
    let switches: Vec<DeviceId> =
        fabric.devices_where(|kind| matches!(kind, DeviceKind::NvSwitch { generation: Some(3) })).collect();
    for gpu in fabric.gpus() {
        let per_switch: Vec<u32> = switches.iter().map(|switch| nvlinks(&fabric, *gpu, *switch)).collect();
        assert_eq!(per_switch, [5, 4, 4, 5]);
        assert_eq!(fabric.device(*gpu).kind.gpu_model().unwrap().id, "h100");
    }
    // Idle GPUs report 2.5 GT/s and count as 32.
    let slot = LinkKind::Pcie { generation: 5, width: 16 };
    assert_eq!(pcie_above(&fabric, "gpu1"), ("pcie0".to_owned(), slot));
    assert_eq!(pcie_above(&fabric, "gpu7"), ("pcie3".to_owned(), slot));
    assert_eq!(pcie_above(&fabric, "mlx5_7"), ("pcie3".to_owned(), slot));
    assert_eq!(pcie_above(&fabric, "pcie2"), ("port3".to_owned(), slot));
    assert_eq!(pcie_above(&fabric, "port3"), ("numa1".to_owned(), slot));
    let ndr = &ports(&fabric, "mlx5_0")[0];
    assert_eq!((ndr.network, ndr.rate), (Some(Network::InfiniBand), Rate::from_gbit(400)));
    assert_eq!(fabric.find("ib3"), fabric.find("mlx5_3"));
    let ethernet = ports(&fabric, "ens3f1");
    assert_eq!(ethernet.len(), 2);
    assert_eq!(ethernet.iter().map(|port| port.rate).collect::<Vec<_>>(), [Rate::from_gbit(100), Rate::ZERO]);
    assert_eq!(fabric.notes().len(), 1, "{:?}", fabric.notes());
}

#[test]
fn a_dgx_1_has_the_cube_mesh_of_the_catalog() {
    let (_, fabric) = machine("dgx-1-v100.txt");
    for (stem, expected) in [("numa", 2), ("port", 4), ("pcie", 4), ("gpu", 8), ("nvswitch", 0), ("nic", 4)] {
        assert_eq!(count(&fabric, stem), expected, "{stem}");
    }
    let catalog = systems::by_name("dgx-1-v100").unwrap().fabric();
    for a in 0..8 {
        for b in 0..8 {
            let pair = |fabric: &Fabric| nvlinks(fabric, fabric.gpus()[a], fabric.gpus()[b]);
            assert_eq!(pair(&fabric), pair(&catalog), "gpu{a} to gpu{b}");
        }
    }
    assert!(fabric.notes().is_empty(), "{:?}", fabric.notes());
}

#[test]
fn a_recording_of_a_recording_is_the_same_machine() {
    for name in ["hgx-h100.txt", "dgx-1-v100.txt"] {
        let (recording, fabric) = machine(name);
        let again = record(&recording, &recording).unwrap();
        assert_eq!(probe(&again, &again).unwrap(), fabric, "{name}");
        assert_eq!(again.to_string().parse::<Recording>().unwrap(), again, "{name}");
    }
}

#[test]
fn this_machine_probes_and_records() {
    let live = this_machine().unwrap();
    assert!(count(&live, "numa") >= 1);
    let recording = record(&Folder::new("/"), &Nvml).unwrap();
    let again = probe(&recording, &recording).unwrap();
    // The host name is not recorded; everything else is the same.
    assert_eq!(again.devices(), live.devices());
    assert_eq!(wires(&again), wires(&live));
    assert_eq!(again.hosts()[0].name, "host0");
}

#[test]
fn a_folder_reads_like_its_recording() {
    let (recording, fabric) = machine("hgx-h100.txt");
    let root = unpack("folder", &text("hgx-h100.txt"));
    assert_eq!(probe(&Folder::new(&root), &recording).unwrap(), fabric);
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn machines_without_a_driver_or_gpus_are_probed() {
    let text = text("hgx-h100.txt");
    let undriven: String =
        text.lines().filter(|line| !line.starts_with("nvml/")).map(|line| format!("{line}\n")).collect();
    let undriven: Recording = (undriven + "nvml/reason = no driver").parse().unwrap();
    let fabric = probe(&undriven, &undriven).unwrap();
    assert_eq!(count(&fabric, "gpu"), 8);
    let note = fabric.notes().iter().find(|note| note.contains("NVLinks are unknown"));
    assert!(
        note.is_some_and(|note| note.contains("no driver") && note.contains("gpu7")),
        "{:?}",
        fabric.notes()
    );

    let bare: Recording =
        "# weft recording 1\nproc/cpuinfo = vendor_id : AuthenticAMD\\ncpu family : 25".parse().unwrap();
    let fabric = probe(&bare, &bare).unwrap();
    assert_eq!((fabric.devices().len(), fabric.links().len()), (1, 0));
    assert!(fabric.notes().is_empty());
}

#[test]
fn devices_of_a_virtual_machine_are_on_the_root_bus() {
    let text = "# weft recording 1
proc/cpuinfo = vendor_id : GenuineIntel\\ncpu family : 6\\nmodel : 207
sys/bus/pci/devices/0000:00:03.0 -> ../../../devices/pci0000:00/0000:00:03.0
sys/bus/pci/devices/0000:00:03.0/class = 0x020000
sys/bus/pci/devices/0000:00:03.0/vendor = 0x1af4
sys/bus/pci/devices/0000:00:03.0/numa_node = -1
sys/bus/pci/devices/0000:00:06.0 -> ../../../devices/pci0000:00/0000:00:06.0
sys/bus/pci/devices/0000:00:06.0/class = 0x030200
sys/bus/pci/devices/0000:00:06.0/vendor = 0x10de
sys/bus/pci/devices/0000:00:06.0/device = 0x2330
sys/bus/pci/devices/0000:00:06.0/numa_node = -1
sys/class/net/eth0 -> ../../devices/pci0000:00/0000:00:03.0/virtio2/net/eth0
sys/class/net/eth0/speed = -1
nvml/0/bus = 0000:00:06.0
nvml/0/nvlink/0 = down
nvml/0/nvlink/1 = up nvlink4 hidden
nvml/0/nvlink/2 = up nvlink4
nvml/1/bus = 0000:00:07.0
nvml/1/name = NVIDIA Mystery
";
    let recording: Recording = text.parse().unwrap();
    let fabric = probe(&recording, &recording).unwrap();
    let (gpu0, gpu1, nvswitch) = (fabric.gpus()[0], fabric.gpus()[1], fabric.find("nvswitch0").unwrap());
    assert_eq!(pcie_above(&fabric, "gpu0").0, "numa0");
    assert_eq!(nvlinks(&fabric, gpu0, nvswitch), 1);
    assert_eq!(fabric.device(gpu1).label.as_deref(), Some("NVIDIA Mystery"));
    assert_eq!(ports(&fabric, "eth0")[0].rate, Rate::ZERO);
    for expected in [
        "1 of 3 NVLinks are down",
        "the far end of 1 NVLinks",
        "hidden from this machine",
        "eth0 has no line rate",
        "assumed for gpu0",
        "gpu1 (0000:00:07.0) is known to the driver",
    ] {
        assert!(
            fabric.notes().iter().any(|note| note.contains(expected)),
            "{expected}: {:?}",
            fabric.notes()
        );
    }
}

#[test]
fn devices_without_a_numa_node_are_noted() {
    let text = text("hgx-h100.txt");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut changed = 0;
    for line in lines.iter_mut().filter(|line| line.contains("/numa_node = ")) {
        *line = line.replace("/numa_node = 1", "/numa_node = -1");
        changed += usize::from(line.ends_with("-1"));
    }
    assert!(changed > 0);
    let recording: Recording = lines.join("\n").parse().unwrap();
    let fabric = probe(&recording, &recording).unwrap();
    let note = fabric.notes().iter().find(|note| note.contains("NUMA node is unknown")).unwrap();
    assert!(note.contains("the first of 2") && note.contains("port3"), "{note}");
}

#[test]
fn many_gpus_are_matched() {
    let mut text = "# weft recording 1\n".to_owned();
    for number in 0..20_000_u32 {
        let bus = format!("{:04x}:{:02x}:00.0", number >> 8, number & 0xff);
        let path = format!("sys/bus/pci/devices/{bus}");
        text += &format!("{path} -> ../../../devices/pci0000:00/{bus}\n{path}/class = 0x030200\n");
        text += &format!("{path}/vendor = 0x10de\nnvml/{number}/bus = {bus}\n");
    }
    let recording: Recording = text.parse().unwrap();
    assert_eq!(count(&probe(&recording, &recording).unwrap(), "gpu"), 20_000);
}
