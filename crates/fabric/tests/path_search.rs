//! The path search against its definition: on small random machines, the result must be the best of all simple paths by
//! type, then width, then hops.

use proptest::prelude::*;
use weftlink_fabric::catalog::links;
use weftlink_fabric::device::{Gpu, Numa, Port};
use weftlink_fabric::link::Socket;
use weftlink_fabric::rate::Rate;
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, FabricBuilder, LinkKind, Measure, PathType, Paths};

/// 0 and 1 is a CPU, 2 and 3 a PCIe switch, 4 a GPU, 5 a NIC, 6 a drive.
fn kind(choice: u8) -> DeviceKind {
    match choice {
        0 | 1 => DeviceKind::Numa(Numa::default()),
        2 | 3 => DeviceKind::PcieSwitch,
        4 => DeviceKind::Gpu(Gpu::default()),
        5 => DeviceKind::Nic(vec![Port { name: None, network: None, rate: Rate::ZERO, extra: Vec::new() }]),
        _ => DeviceKind::Storage,
    }
}

/// A machine with random devices and links; the kind of a link depends on its ends.
fn machine(devices: &[u8], wires: &[(usize, usize, u8)]) -> Fabric {
    let mut builder = FabricBuilder::new("random");
    let host = builder.host("host0", None);
    let ids: Vec<DeviceId> = devices.iter().map(|choice| builder.add(Some(host), kind(*choice))).collect();
    for &(a, b, width) in wires {
        let (a, b) = (a % ids.len(), b % ids.len());
        let is = |index: usize, low: u8, high: u8| (low..=high).contains(&devices[index]);
        let spec = match () {
            () if a == b => continue,
            () if is(a, 0, 1) && is(b, 0, 1) => links::socket(Socket::Other),
            () if (is(a, 0, 1) && is(b, 4, 4) || is(a, 4, 4) && is(b, 0, 1)) && width % 2 == 0 => {
                links::C2C.clone()
            }
            () => links::pcie(3 + width % 3, 16),
        };
        let spec = builder.spec(spec);
        builder.connect(ids[a], ids[b], 1, spec);
    }
    builder.finish().expect("no device is linked to itself")
}

/// The type of a whole path by NCCL's rules.
fn type_of(fabric: &Fabric, stations: &[DeviceId], wires: &[LinkKind]) -> PathType {
    let is_cpu = |index: usize| matches!(fabric.device(stations[index]).kind, DeviceKind::Numa(_));
    let is_bridge = |index: usize| matches!(fabric.device(stations[index]).kind, DeviceKind::PcieSwitch);
    let mut worst = PathType::Loc;
    for (index, wire) in wires.iter().enumerate() {
        worst = worst.max(match wire {
            LinkKind::Socket(_) => PathType::Sys,
            LinkKind::C2c => PathType::C2c,
            _ if is_bridge(index) && is_bridge(index + 1) => PathType::Pxb,
            _ => PathType::Pix,
        });
    }
    for station in 0..stations.len() {
        if !is_cpu(station) {
            continue;
        }
        let sides = [station.checked_sub(1), (station < wires.len()).then_some(station)];
        let sides: Vec<LinkKind> = sides.into_iter().flatten().map(|wire| wires[wire]).collect();
        let pcie = sides.iter().filter(|wire| matches!(wire, LinkKind::Pcie { .. })).count();
        let c2c = sides.contains(&LinkKind::C2c);
        worst = worst.max(match (pcie, c2c) {
            (0, _) => PathType::Loc,
            (1, true) => PathType::P2c,
            _ => PathType::Phb,
        });
    }
    worst
}

/// The best of all simple paths: by type, then bytes per second, then hops.
fn by_brute_force(fabric: &Fabric, source: DeviceId, target: DeviceId) -> Option<(PathType, u64, usize)> {
    let mut best: Option<(PathType, std::cmp::Reverse<u64>, usize)> = None;
    let mut pending = vec![(vec![source], Vec::new(), u64::MAX)];
    while let Some((stations, wires, width)) = pending.pop() {
        let at = stations[stations.len() - 1];
        if at == target {
            let found = (type_of(fabric, &stations, &wires), std::cmp::Reverse(width), wires.len());
            best = Some(best.map_or(found, |known| known.min(found)));
            continue;
        }
        let passes = matches!(fabric.device(at).kind, DeviceKind::Numa(_) | DeviceKind::PcieSwitch);
        if at != source && !passes {
            continue;
        }
        for link in fabric.links_from(at).iter().filter(|link| !stations.contains(&link.target)) {
            let width = width.min(fabric.rate(link, Measure::Effective).bytes_per_second());
            let with = |list: &Vec<DeviceId>| list.iter().copied().chain([link.target]).collect();
            let wires = wires.iter().copied().chain([fabric.spec(link).kind]).collect();
            pending.push((with(&stations), wires, width));
        }
    }
    best.map(|(kind, width, hops)| (kind, width.0, hops))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_search_finds_the_best_path(
        devices in prop::collection::vec(0_u8..7, 2..8),
        wires in prop::collection::vec((0_usize..8, 0_usize..8, 0_u8..6), 1..14),
    ) {
        let fabric = machine(&devices, &wires);
        let paths = Paths::of(&fabric);
        for source in fabric.device_ids() {
            for target in fabric.device_ids().filter(|target| *target != source) {
                let path = paths.path(source, target);
                match by_brute_force(&fabric, source, target) {
                    None => prop_assert_eq!(path.kind, PathType::Dis),
                    Some((kind, width, hops)) => {
                        prop_assert_eq!(path.kind, kind);
                        prop_assert_eq!(path.width.effective.bytes_per_second(), width);
                        prop_assert_eq!(path.hops as usize, hops);
                    }
                }
            }
        }
    }
}
