//! Bisection bandwidth against its definition: on small random fabrics, the result must equal the smallest capacity over
//! all ways to split the devices with half of the GPUs on each side.

use proptest::prelude::*;
use weftlink_fabric::bisection::{bisection, bounds};
use weftlink_fabric::catalog::links;
use weftlink_fabric::device::{Gpu, Numa, Tier};
use weftlink_fabric::link::{Network, Socket};
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, FabricBuilder, Link, Measure, Paths};

/// 0 to 2 is a GPU, 3 an NVSwitch, 4 a CPU, 5 a PCIe switch, 6 a leaf, 7 a spine.
fn kind(choice: u8) -> DeviceKind {
    match choice {
        0..=2 => DeviceKind::Gpu(Gpu::default()),
        3 => DeviceKind::NvSwitch { generation: None },
        4 => DeviceKind::Numa(Numa::default()),
        5 => DeviceKind::PcieSwitch,
        6 => DeviceKind::NetSwitch(Tier::Leaf),
        _ => DeviceKind::NetSwitch(Tier::Spine),
    }
}

fn fabric(devices: &[u8], wires: &[(usize, usize, u8)]) -> Fabric {
    let mut builder = FabricBuilder::new("random");
    let host = builder.host("host0", None);
    let ids: Vec<DeviceId> = devices.iter().map(|choice| builder.add(Some(host), kind(*choice))).collect();
    for &(a, b, choice) in wires {
        let (a, b) = (a % ids.len(), b % ids.len());
        if a == b {
            continue;
        }
        let spec = match choice % 5 {
            0 | 1 => links::NVLINK[3].clone(),
            2 => links::pcie(4, 16),
            3 => links::socket(Socket::AmdZen2),
            _ => links::network(Network::InfiniBand, 400),
        };
        let spec = builder.spec(spec);
        builder.connect(ids[a], ids[b], 1 + u32::from(choice) / 5, spec);
    }
    builder.finish().expect("no device is linked to itself")
}

fn by_brute_force(fabric: &Fabric) -> Option<u64> {
    let gpus = fabric.gpus();
    let one_domain = weftlink_fabric::domains::gpu_domains(fabric).len() == 1;
    let counts = |link: &&Link| !one_domain || fabric.spec(link).kind.is_gpu_fabric();
    let sides = 0..1_u32 << fabric.devices().len();
    let on = |side: u32, id: DeviceId| side >> id.0 & 1 == 1;
    let halved = sides.filter(|side| gpus.iter().filter(|gpu| on(*side, **gpu)).count() == gpus.len() / 2);
    let capacity = |side: u32| {
        let crossing = fabric.links().iter().filter(counts);
        let crossing = crossing.filter(|link| on(side, link.source) && !on(side, link.target));
        crossing.map(|link| fabric.rate(link, Measure::Nominal).bytes_per_second()).sum()
    };
    halved.map(capacity).min()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn bisection_is_the_smallest_cut(
        devices in prop::collection::vec(0_u8..8, 2..10),
        wires in prop::collection::vec((0_usize..10, 0_usize..10, 0_u8..15), 1..20),
    ) {
        let fabric = fabric(&devices, &wires);
        let paths = Paths::of(&fabric);
        let Some(found) = bisection(&paths, Measure::Nominal) else {
            prop_assert!(fabric.gpus().len() < 2);
            return Ok(());
        };
        let truth = by_brute_force(&fabric).expect("there are two halves");
        prop_assert_eq!(found.upper.bytes_per_second(), truth);
        let bounds = bounds(&paths, Measure::Nominal).expect("bisection() had a result");
        prop_assert!(bounds.lower.bytes_per_second() <= truth, "{:?} > {}", bounds, truth);
        prop_assert!(bounds.upper.bytes_per_second() >= truth, "{:?} < {}", bounds, truth);
    }
}

/// The link between the two CPUs is narrower than half of the GPUs' slots: flows to both hubs must share it.
#[test]
fn hubs_share_link_capacity() {
    let mut builder = FabricBuilder::new("two sockets");
    let host = builder.host("host0", None);
    let cpus = [(); 2].map(|()| builder.add(Some(host), DeviceKind::Numa(Numa::default())));
    let socket = builder.spec(links::socket(Socket::AmdZen2));
    let slot = builder.spec(links::pcie(3, 4));
    builder.connect(cpus[0], cpus[1], 1, socket);
    for gpu in 0..20 {
        let id = builder.add(Some(host), DeviceKind::Gpu(Gpu::default()));
        builder.connect(cpus[gpu / 2 % 2], id, 1, slot);
    }
    let fabric = builder.finish().unwrap();
    let bounds = bounds(&Paths::of(&fabric), Measure::Nominal).unwrap();
    assert!(bounds.lower.gb() <= 16.0, "{bounds:?}");
}
