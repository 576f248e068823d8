//! The tables of public guides on GPU interconnects, recomputed from the catalog: links x rate x direction.
//! Expected values are as the guides print them.

use weftlink_fabric::catalog::switches::NVSWITCHES;
use weftlink_fabric::catalog::{gpus, links, systems};
use weftlink_fabric::device::DeviceKind;
use weftlink_fabric::link::{LinkSpec, Measure, Network};
use weftlink_fabric::rate::{BothWays, Device, Domain, Link, OneWay, Rate};
use weftlink_fabric::{DeviceId, Fabric};

fn nominal(spec: &LinkSpec) -> Rate<Link, OneWay> {
    spec.nominal.as_ref().expect("a rated link").value
}

fn system(name: &str) -> Fabric {
    systems::by_name(name).unwrap_or_else(|| panic!("no system {name}")).fabric()
}

/// The nominal rate of a device each way over NVLink, xGMI, Xe Link or UALink.
fn gpu_fabric_rate(fabric: &Fabric, device: DeviceId) -> Rate<Device, OneWay> {
    fabric
        .links_from(device)
        .iter()
        .filter(|link| fabric.spec(link).kind.is_gpu_fabric())
        .map(|link| fabric.rate(link, Measure::Nominal).into_device())
        .fold(Rate::ZERO, Rate::plus)
}

/// Line rate of all NIC ports.
fn nic_rate(fabric: &Fabric) -> Rate<Link, OneWay> {
    let ports = fabric.devices().iter().filter_map(|device| match &device.kind {
        DeviceKind::Nic(ports) => Some(ports),
        _ => None,
    });
    ports.flatten().map(|port| port.rate).fold(Rate::ZERO, Rate::plus)
}

#[test]
fn nvlink_generations() {
    // Links per GPU, GB/s both ways per link, GB/s both ways per GPU.
    for (generation, id, count, per_link, per_gpu) in [
        (1, "p100", 4, 40, 160),
        (2, "v100", 6, 50, 300),
        (3, "a100", 12, 50, 600),
        (4, "h100", 18, 50, 900),
        (5, "b200", 18, 100, 1800),
        (6, "vr200", 36, 100, 3600),
    ] {
        let (link, links) = gpus::by_id(id).unwrap().gpu_links().unwrap();
        assert_eq!(link, &links::NVLINK[generation - 1], "{id}");
        assert_eq!(links, count, "{id}");
        assert_eq!(nominal(link).both_ways(), Rate::from_gb(per_link), "{id}");
        assert_eq!(nominal(link).per_device(links.into()).both_ways(), Rate::from_gb(per_gpu), "{id}");
    }
}

#[test]
fn ualink_ports_have_four_lanes_of_200_gbit() {
    assert_eq!(nominal(&links::UALINK), Rate::from_gbit(4 * 200));
    // Announced for a rack of 72: 260 TB/s both ways.
    let (link, ports) = gpus::by_id("mi455x").unwrap().gpu_links().unwrap();
    let rack: Rate<Domain, BothWays> = nominal(link).per_device(ports.into()).per_domain(72).both_ways();
    assert_eq!(rack, Rate::from_gb(259_200));
}

#[test]
fn pcie_generations_each_way_over_16_lanes() {
    // The guides ignore the coding, which takes 1.5 % of Gen3 to Gen5 and 5.5 % of Gen6's flits.
    for (generation, gb, coding) in [(3, 16, 0.0154), (4, 32, 0.0154), (5, 64, 0.0154), (6, 128, 0.0547)] {
        let slot = links::pcie_lane(generation).per_link(16);
        let printed: Rate<Link, OneWay> = Rate::from_gb(gb);
        assert!((1.0 - slot.ratio(printed) - coding).abs() < 1e-4, "Gen{generation}: {slot}");
        assert_eq!(nominal(&links::pcie(generation, 16)), slot);
    }
}

#[test]
fn pcie_4_has_32_gb_per_slot_not_per_lane() {
    let lane = links::pcie_lane(4);
    assert!((lane.gb() - 2.0).abs() < 0.04, "{lane}");
    assert!((lane.per_link(16).gb() - 32.0).abs() < 0.64);
}

#[test]
fn network_ports() {
    for (network, gbit, gb) in [
        (Network::InfiniBand, 200, 25.0),
        (Network::InfiniBand, 400, 50.0),
        (Network::InfiniBand, 800, 100.0),
        (Network::Roce, 100, 12.5),
        (Network::Roce, 800, 100.0),
    ] {
        let port = links::network(network, gbit);
        assert_eq!(nominal(&port).gb(), gb, "{}", port.kind);
        assert!(port.effective.unwrap().value <= nominal(&links::network(network, gbit)));
    }
}

#[test]
fn efa_of_p5en_adds_up() {
    let rate = nic_rate(&system("p5en"));
    assert_eq!(rate, Rate::from_gbit(3200));
    assert_eq!(rate.gb(), 400.0);
}

#[test]
fn dgx_generations_any_gpu_to_any_gpu() {
    // GPUs, GB/s both ways between any two.
    for (name, gpus, gb) in [("hgx-a100", 8, 600), ("hgx-h100", 8, 900), ("dgx-gh200", 256, 900)] {
        let fabric = system(name);
        assert_eq!(fabric.gpus().len(), gpus, "{name}");
        let expected: Rate<Device, BothWays> = Rate::from_gb(gb);
        for &gpu in fabric.gpus() {
            assert_eq!(gpu_fabric_rate(&fabric, gpu).both_ways(), expected, "{name}");
        }
        // No switch is a bottleneck: it has as many links up as down.
        for switch in fabric.devices_where(|kind| matches!(kind, DeviceKind::NvSwitch { .. })) {
            let toward = |gpus: bool| {
                let links = fabric.links_from(switch).iter();
                let wanted = links.filter(|link| fabric.gpus().contains(&link.target) == gpus);
                wanted.map(|link| link.count).sum::<u32>()
            };
            let (down, up) = (toward(true), toward(false));
            assert!(up == 0 || down == 0 || up == down, "{name}: {down} down, {up} up");
        }
    }
}

#[test]
fn nvl72_rack() {
    let fabric = system("gb200-nvl72");
    assert_eq!((fabric.hosts().len(), fabric.gpus().len()), (18, 72));
    let per_gpu = gpu_fabric_rate(&fabric, fabric.gpus()[0]);
    assert_eq!(per_gpu.both_ways(), Rate::from_gb(1800));
    let rack: Rate<Domain, BothWays> = per_gpu.per_domain(72).both_ways();
    assert_eq!(rack.amount().to_string(), "130 TB/s");
    // "144 ports at 14.4 TB/s" is a switch tray, two chips, both directions.
    let switches: Vec<DeviceId> =
        fabric.devices_where(|kind| matches!(kind, DeviceKind::NvSwitch { .. })).collect();
    assert_eq!(switches.len(), 9 * 2);
    let tray = gpu_fabric_rate(&fabric, switches[0]).plus(gpu_fabric_rate(&fabric, switches[1]));
    assert_eq!(tray.both_ways(), Rate::from_gb(14_400));
    assert_eq!(2 * NVSWITCHES[3].ports, 144);
}

#[test]
fn consumer_cards() {
    // The RTX 3090 is the last with an NVLink bridge; later cards state a reason.
    let bridge = system("2x-rtx3090-bridge");
    assert_eq!(gpu_fabric_rate(&bridge, bridge.gpus()[0]).both_ways(), Rate::from_mb(112_500));
    for id in ["rtx4090", "rtx5090"] {
        let gpus::GpuLinks::Absent(reason) = gpus::by_id(id).unwrap().links else {
            panic!("{id} has no NVLink");
        };
        assert!(reason.contains("PCIe only"), "{reason}");
    }
}

#[test]
fn cloud_networks_in_gbit() {
    for (name, gbit) in [
        ("p3dn", 100),
        ("p4d", 400),
        ("p4de", 400),
        ("p5", 3200),
        ("p5en", 3200),
        ("p6-b200", 3200),
        ("p6-b300", 6400),
        ("nd-a100-v4", 1600),
        ("nd-h100-v5", 3200),
        ("a3-high", 800),
        ("a3-mega", 1600),
        ("a3-ultra", 3200),
        ("a4", 3200),
        ("p5e", 3200),
        ("p6e-gb200", 18 * 4 * 400),
        ("p6e-gb300", 18 * 4 * 400),
        ("g5", 100),
        ("g6", 100),
        ("g6e", 400),
        ("ndv2", 100),
        ("nd-h200-v5", 3200),
        ("nd-mi300x-v5", 3200),
        ("nd-gb200-v6", 18 * 4 * 400),
        ("nd-gb300-v6", 18 * 4 * 800),
        ("a2-high", 100),
        ("a4x", 18 * 4 * 400),
        ("a4x-max", 18 * 4 * 800),
        ("bm-gpu-a100-v2-8", 1600),
        ("bm-gpu-h100-8", 3200),
        ("bm-gpu-h200-8", 3200),
        ("dgx-b200", 3200),
        ("dgx-spark", 200),
        ("gb300-nvl72", 18 * 4 * 800),
        ("vr-nvl72", 18 * 4 * 1600),
        ("frontier-node", 800),
        ("aurora-node", 1600),
        ("hgx-b300", 6400),
    ] {
        assert_eq!(nic_rate(&system(name)), Rate::from_gbit(gbit), "{name}");
    }
}

#[test]
fn gpu_ids_and_pci_devices_are_unique() {
    let mut ids = std::collections::HashSet::new();
    let mut devices = std::collections::HashSet::new();
    for model in gpus::GPUS {
        assert!(ids.insert(model.id), "{} twice", model.id);
        for &device in model.pci_devices {
            assert!(devices.insert(device), "{device:#06x} twice");
            assert_eq!(gpus::by_pci_device(device), Some(model));
        }
        assert!(!model.memory_rate.source.to_string().is_empty(), "{}", model.id);
        assert!(model.memory.0 > 0 && model.memory_rate.value > Rate::ZERO);
        assert!(model.pcie.0 > 0 && model.pcie.1 > 0, "{}", model.id);
        if let gpus::GpuLinks::Absent(reason) = model.links {
            assert!(reason.len() > 20, "{} does not say why", model.id);
        }
    }
}

#[test]
fn measured_gpus_are_known() {
    for id in [
        "p100",
        "p100-pcie",
        "v100",
        "a100",
        "a100-pcie",
        "h100",
        "h100-pcie",
        "h200",
        "h20",
        "gh200",
        "b200",
        "b300",
        "gb200",
        "gb300",
        "gb10",
        "a10g",
        "rtx2080ti",
        "rtx3090",
        "rtx4070tis",
        "rtx4090",
        "rtx5090",
        "rtxpro6000",
        "mi300x",
        "mi325x",
        "mi355x",
    ] {
        assert!(gpus::by_id(id).is_some(), "{id}");
    }
}

#[test]
fn links_of_one_kind_have_ids_of_their_own() {
    let mut seen = std::collections::HashSet::new();
    for spec in links::all() {
        let id = links::id_of(&spec);
        assert!(seen.insert(id.clone()), "{id} twice");
        match links::variant(&id) {
            Some(variant) => assert_eq!(*variant, spec, "{id}"),
            None => assert_eq!(id, spec.kind.id()),
        }
    }
    for (id, link) in [("rtx3090", "nvlink3-geforce"), ("mi355x", "xgmi4-mi350"), ("h100", "nvlink4")] {
        assert_eq!(links::id_of(gpus::by_id(id).unwrap().gpu_links().unwrap().0), link);
    }
}
