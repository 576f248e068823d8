//! Layouts of catalog systems, clusters and files, compared with the expected ones.

mod wired;

use std::collections::BTreeMap;

use weftlink_fabric::domains::gpu_domains;
use weftlink_fabric::{DeviceId, DeviceKind, Fabric, LinkKind, Paths};
use weftlink_plan::Layout;
use weftlink_plan::wiring::{Mesh, Packing, RINGS_ON_A_SWITCH, RINGS_OVER_PCIE};

use wired::{every_fabric, fabric, layout, samples};

/// The mesh of a fabric's first domain.
fn mesh(fabric: &Fabric) -> Mesh {
    Mesh::of(fabric, &gpu_domains(fabric)[0]).expect("the GPUs have direct links")
}

/// The wires that the rings use, in parts of the packing's split. No wire may be used twice.
fn used(mesh: &Mesh, rings: &Packing<Vec<u32>>) -> u64 {
    let mut uses: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    for ring in &rings.items {
        for (at, source) in ring.iter().enumerate() {
            *uses.entry((*source, ring[(at + 1) % ring.len()])).or_default() += 1;
        }
    }
    for (&(a, b), &count) in &uses {
        assert!(count <= rings.split * mesh.wires(a as usize, b as usize), "{a} to {b}: {count} uses");
    }
    uses.values().map(|count| u64::from(*count)).sum()
}

#[test]
fn every_fabric_has_a_sound_layout() {
    for (name, fabric) in every_fabric() {
        wired::is_sound(&name, &fabric, &Layout::of(&fabric));
    }
}

#[test]
fn rings_use_every_link_of_real_meshes() {
    // The number of rings, and the parts of each wire: K4 decomposes into rings only when doubled.
    for (name, rings, split) in [
        ("dgx-1-p100", 4, 1),
        ("dgx-1-v100", 6, 1),
        ("p3dn", 6, 1),
        ("8x-mi300x", 7, 1),
        ("4x-gh200", 6, 2),
        ("2x-rtx3090-bridge", 1, 1),
    ] {
        let mesh = mesh(&fabric(name));
        let found = mesh.rings();
        assert_eq!((found.items.len(), found.split), (rings, split), "{name}");
        assert_eq!(used(&mesh, &found), mesh.wire_count() * u64::from(split), "{name}: wires are left");
        assert_eq!(mesh.share_of_wires(&found), 1000, "{name}");
        assert_eq!(layout(name).rings, found.items, "{name}: one island, whose rings are the layout's");
    }
}

#[test]
fn meshes_of_sample_files() {
    for (name, fabric) in samples() {
        let layout = Layout::of(&fabric);
        wired::is_sound(&name, &fabric, &layout);
        for domain in gpu_domains(&fabric) {
            let Some(mesh) = Mesh::of(&fabric, &domain) else { continue };
            let rings = mesh.rings();
            used(&mesh, &rings);
            let (count, share) = (rings.items.len(), mesh.share_of_wires(&rings));
            println!("{name}: {} GPUs, {count} rings, {share} thousandths of the wires", mesh.ranks());
            if name.contains("4p3l") || name.contains("8p6l") {
                assert_eq!(share, 1000, "{name}");
            }
        }
    }
}

#[test]
fn links_of_one_direction_make_rings_of_one_direction() {
    let (_, fabric) =
        every_fabric().find(|(name, _)| name == "ring-of-four.json").expect("it is in testdata");
    assert_eq!(Layout::of(&fabric).rings, [[0, 1, 2, 3]]);
}

#[test]
fn links_without_a_cycle_make_no_rings() {
    let star = Mesh::linked(4, &[(0, 1, 1), (0, 2, 1), (0, 3, 1)], 1);
    assert_eq!(star.rings().items, Vec::<Vec<u32>>::new());
    let odd_one_out = Mesh::linked(4, &[(0, 1, 2), (1, 2, 2), (0, 2, 2), (2, 3, 4)], 1);
    assert_eq!(odd_one_out.rings().items, Vec::<Vec<u32>>::new());
}

#[test]
fn switched_islands_have_rings_to_fill_their_ports() {
    for name in ["dgx-2", "hgx-a100", "hgx-h100", "gb200-nvl72"] {
        let layout = layout(name);
        assert!(layout.switched, "{name}");
        assert_eq!(layout.rings.len(), RINGS_ON_A_SWITCH, "{name}");
        assert!(layout.rings.iter().all(|ring| ring.is_sorted()), "{name}");
    }
    for name in ["dgx-1-v100", "8x-mi300x", "4x-gh200", "8x-rtx4090", "4x-a100-pcie-bridge"] {
        assert!(!layout(name).switched, "{name}");
    }
}

#[test]
fn rings_over_pcie_use_every_link_once_each_way() {
    for name in ["2x-rtx4090", "4x-rtx4090", "8x-rtx4090", "8x-rtx5090"] {
        let fabric = fabric(name);
        let (paths, layout) = (Paths::of(&fabric), layout(name));
        assert_eq!(layout.rings.len(), RINGS_OVER_PCIE, "{name}");
        let mut passed: BTreeMap<(DeviceId, DeviceId), u32> = BTreeMap::new();
        let ring = &layout.rings[0];
        for (at, source) in ring.iter().enumerate() {
            let target = ring[(at + 1) % ring.len()];
            let route = paths.route(fabric.gpus()[*source as usize], fabric.gpus()[target as usize]);
            for hop in route.stations.windows(2) {
                *passed.entry((hop[0][0], hop[1][0])).or_default() += 1;
            }
        }
        assert!(passed.values().all(|times| *times == 1), "{name}: {passed:?}");
        assert!(passed.keys().all(|(a, b)| passed.contains_key(&(*b, *a))), "{name}: {passed:?}");
    }
}

#[test]
fn islands_are_domains_or_hosts_in_the_order_of_rails() {
    assert_eq!(
        layout("2x hgx-h100 + 8x ndr").islands,
        [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15]]
    );
    assert_eq!(layout("4x-a100-pcie-bridge").islands, [[0, 1], [2, 3]]);
    assert_eq!(layout("2x 2x-rtx4090 + 1x eth25").islands, [[0, 1], [2, 3]]);
    assert_eq!(layout("4x gb200-nvl72 + 4x ndr").per_island(), Some(72));
}

#[test]
fn a_ring_enters_each_host_beside_its_nic() {
    let layout = layout("3x hgx-h100 + 8x ndr");
    assert_eq!(layout.rings.len(), RINGS_ON_A_SWITCH);
    for (number, ring) in layout.rings.iter().enumerate() {
        for (host, ranks) in ring.chunks(8).enumerate() {
            assert_eq!(ranks[0] as usize, 8 * host + number % 8, "ring {number}: {ring:?}");
            assert!(
                ranks.iter().all(|rank| *rank as usize / 8 == host),
                "ring {number} comes back to host {host}"
            );
        }
    }
}

#[test]
fn rings_load_nics_and_slots_evenly() {
    // Ranks of an island, rings, and GPUs that share a slot's bandwidth to the NICs: two GPUs and two NICs below each
    // PCIe switch; four NICs beside each GPU; one NIC for two GPUs, and another number of cycles; a rack.
    for (spec, ranks, rings, together) in [
        ("3x hgx-a100 + 8x hdr", 8, 16, 1),
        ("2x p5", 8, 32, 1),
        ("2x dgx-1-v100 + 4x edr", 8, 12, 2),
        ("2x gb200-nvl72 + 4x ndr", 72, 72, 1),
    ] {
        let layout = layout(spec);
        assert_eq!(layout.rings.len(), rings, "{spec}");
        let mut entered = vec![0; ranks / together];
        for ring in &layout.rings {
            entered[ring[0] as usize % ranks / together] += 1;
        }
        assert!(entered.iter().all(|times| *times == entered[0]), "{spec}: {entered:?}");
    }
    // Pairs of GPUs on bridges, connected by PCIe: both directions of the bridges are used.
    assert_eq!(layout("4x-a100-pcie-bridge").rings, [[0, 1, 2, 3], [1, 0, 3, 2]]);
    // A ring of DGX A100 enters and leaves a host below the same PCIe switch, which has two GPUs.
    let layout = layout("2x hgx-a100 + 8x hdr");
    assert!(layout.rings.iter().all(|ring| ring[0] / 2 == ring[7] / 2), "{:?}", layout.rings);
}

#[test]
fn hosts_below_one_leaf_are_neighbours() {
    let spec = "6x hgx-h100 + 8x ndr, leaf-spine, leaf-ports 32";
    let fabric = fabric(spec);
    let leaf = |rank: u32| {
        let host = fabric.device(fabric.gpus()[rank as usize]).host;
        let of_host = |link: &&weftlink_fabric::Link| fabric.device(link.source).host == host;
        let is_cable =
            |link: &&weftlink_fabric::Link| matches!(fabric.spec(link).kind, LinkKind::Network { .. });
        let cable = fabric.links().iter().filter(of_host).find(is_cable).expect("every host has a cable");
        assert!(matches!(fabric.device(cable.target).kind, DeviceKind::NetSwitch(_)));
        cable.target
    };
    let leaves: Vec<DeviceId> = layout(spec).rings[0].iter().map(|rank| leaf(*rank)).collect();
    let mut visits = leaves.clone();
    visits.dedup();
    let mut distinct = leaves;
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(visits.len(), distinct.len());
}

#[test]
fn switches_that_cannot_compute_have_a_reason() {
    assert_eq!(layout("2x hgx-h100 + 8x ndr").multicast, Ok(()));
    assert_eq!(layout("2x hgx-h100 + 8x ndr").network_reduces, Ok(()));
    let reason = |capability: Result<(), String>, word: &str| {
        let why = capability.expect_err("it cannot");
        assert!(why.contains(word), "{why}");
    };
    reason(layout("hgx-a100").multicast, "Hopper");
    reason(layout("dgx-1-v100").multicast, "direct links");
    reason(layout("8x-rtx4090").multicast, "no NVSwitch");
    reason(layout("hgx-h100").network_reduces, "there is no network between ranks");
    reason(layout("2x p5").network_reduces, "EFA");
    reason(layout("2x hgx-h100").network_reduces, "no switch connects rank 0");
    reason(layout("4x-a100-pcie-bridge").network_reduces, "there is no network between ranks");
}

#[test]
fn many_hosts_repeat_the_layout_of_one() {
    let layout = layout("1250x hgx-h100 + 8x ndr");
    assert_eq!((layout.islands.len(), layout.per_island()), (1250, Some(8)));
    assert_eq!(layout.rings.len(), RINGS_ON_A_SWITCH);
}
